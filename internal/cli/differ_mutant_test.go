package cli

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// mutant is an image with changed bytes.
type mutant struct {
	parent  string   // file name
	path    string   // file to open
	done    []string // the changes
	damaged bool     // tables of the container are broken
}

// differCorpus lists small images of the corpus that consist of one file.
var differCorpus = []string{
	"dfvfs/ext2.qcow2.xz", "dfvfs/ext2.vmdk.xz", "dfvfs/ext2.vhd.xz", "dfvfs/mbr.raw.gz", "dfvfs/lvm.qcow2.xz",
	"keramics/fat16.qcow2.xz", "imagemounter/test.mbr.xz", "gptman/disk1.img", "mbrman/disk1.img", "mbrman/disk2.img",
}

var unpackedParents = map[string][]byte{}

// corpusParent returns a copy of an image of the corpus, or other if there is no corpus.
func corpusParent(t *testing.T, rng *rand.Rand, other string) string {
	t.Helper()
	name := differCorpus[rng.IntN(len(differCorpus))]
	if !disktest.HasCorpus(t) {
		return other
	}
	if unpackedParents[name] == nil {
		b := disktest.ReadFile(t, disktest.Corpus(t, name))
		unpackedParents[name] = b
	}
	path := filepath.Join(t.TempDir(), filepath.Base(name))
	path = path[:len(path)-len(filepath.Ext(path))]
	if filepath.Ext(path) == "" {
		path += ".img"
	}
	require.NoError(t, os.WriteFile(path, unpackedParents[name], 0o644))
	return path
}

// mutate copies an image, with the files beside it, and changes one of the files.
func mutate(t *testing.T, rng *rand.Rand, parent string) *mutant {
	t.Helper()
	dir := t.TempDir()
	m := &mutant{parent: filepath.Base(parent), path: filepath.Join(dir, filepath.Base(parent))}
	entries, err := os.ReadDir(filepath.Dir(parent))
	require.NoError(t, err)
	chosen := rng.IntN(len(entries))
	for i, e := range entries {
		b := disktest.ReadFile(t, filepath.Join(filepath.Dir(parent), e.Name()))
		if i == chosen {
			b = m.change(rng, e.Name(), b)
		}
		writeSparse(t, filepath.Join(dir, e.Name()), b)
	}
	return m
}

// writeSparse writes a file with holes in place of zeros.
func writeSparse(t *testing.T, path string, b []byte) {
	t.Helper()
	f, err := os.Create(path)
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, f.Truncate(int64(len(b))))
	const page = 4096
	zero := make([]byte, page)
	for off := 0; off < len(b); off += page {
		p := b[off:min(off+page, len(b))]
		if !bytes.Equal(p, zero[:len(p)]) {
			_, err := f.WriteAt(p, int64(off))
			require.NoError(t, err)
		}
	}
}

// change applies one to three changes, and for most mutants recomputes the checksums.
func (m *mutant) change(rng *rand.Rand, name string, b []byte) []byte {
	all := regions(b)
	for range 1 + rng.IntN(3)*rng.IntN(2) {
		if rng.IntN(12) == 0 || len(all) == 0 {
			b = m.resize(rng, name, b)
			continue
		}
		r := all[rng.IntN(len(all))]
		if r.off+r.len > int64(len(b)) || r.len == 0 {
			continue // cut off by then
		}
		if r.text {
			b = m.edit(rng, name, b, r)
		} else {
			m.patch(rng, name, b[r.off:r.off+r.len], r)
		}
	}
	if rng.IntN(4) > 0 {
		repair(b)
		m.done = append(m.done, "checksums repaired")
	}
	return b
}

func (m *mutant) did(format string, args ...any) {
	m.done = append(m.done, fmt.Sprintf(format, args...))
}

// resize cuts a file or lets it grow.
func (m *mutant) resize(rng *rand.Rand, name string, b []byte) []byte {
	size := len(b)
	switch to := rng.IntN(len(b) + 1); rng.IntN(5) {
	case 0:
		b = b[:to]
	case 1:
		b = b[:to/512*512]
	case 2:
		b = b[:max(0, len(b)-1-rng.IntN(1024))]
	case 3:
		b = append(b, make([]byte, 1+rng.IntN(4096))...)
	default:
		b = append(b, bytes.Repeat([]byte{0x5a}, 512*(1+rng.IntN(8)))...)
	}
	m.did("%s has %d bytes instead of %d", name, len(b), size)
	return b
}

// patch changes a field of a region.
func (m *mutant) patch(rng *rand.Rand, name string, p []byte, r region) {
	width := 1 << rng.IntN(4)
	n := len(p) / width
	at, from := rng.IntN(n)*width, rng.IntN(n)*width
	if rng.IntN(2) == 0 { // used entries come first
		at = rng.IntN(min(n, 8)) * width
	}
	field := p[at : at+width]
	old := slices.Clone(field)
	number := make([]byte, 8)
	if r.order.String() == "LittleEndian" {
		copy(number, field)
	} else {
		copy(number[8-width:], field)
	}
	value := r.order.Uint64(number)
	switch rng.IntN(8) {
	case 0, 1:
		field[rng.IntN(width)] ^= 1 << rng.IntN(8)
	case 2:
		copy(field, p[from:from+width])
	case 3:
		for i := range field {
			field[i] = byte(rng.Uint32())
		}
	case 4:
		clear(field)
	default:
		value = []uint64{
			value + 1, value - 1, value << 1, value >> 1, 1, uint64(rng.IntN(4096)), ^uint64(0), 1 << 63, 1 << 31,
		}[rng.IntN(9)]
		r.order.PutUint64(number, value)
		if r.order.String() == "LittleEndian" {
			copy(field, number)
		} else {
			copy(field, number[8-width:])
		}
	}
	m.did("%s, %s at %#x: % x instead of % x", name, r.name, r.off+int64(at), field, old)
}

// edit changes a text line by line, or one byte. A text inside a file keeps its length.
func (m *mutant) edit(rng *rand.Rand, name string, b []byte, r region) []byte {
	text := slices.Clone(b[r.off : r.off+r.len])
	lines := bytes.Split(text, []byte("\n"))
	i, k := rng.IntN(len(lines)), rng.IntN(len(lines))
	switch rng.IntN(6) {
	case 0:
		text[rng.IntN(len(text))] = byte(' ' + rng.IntN(95))
	case 1:
		text[rng.IntN(len(text))] ^= 1 << rng.IntN(8)
	case 2:
		lines = slices.Delete(lines, i, i+1)
		text = bytes.Join(lines, []byte("\n"))
	case 3:
		lines = slices.Insert(lines, k, lines[i])
		text = bytes.Join(lines, []byte("\n"))
	case 4:
		lines[i], lines[k] = lines[k], lines[i]
		text = bytes.Join(lines, []byte("\n"))
	default:
		for at := rng.IntN(len(text)); at < len(text); at++ {
			if text[at] >= '0' && text[at] <= '9' {
				text[at] = byte('0' + rng.IntN(10))
				break
			}
		}
	}
	m.did("%s, %s: %q", name, r.name, bytes.TrimRight(text, "\x00"))
	if r.len == int64(len(b)) {
		return text
	}
	copy(b[r.off:], append(text, make([]byte, 64)...)[:min(len(text)+64, len(b)-int(r.off))])
	return b
}
