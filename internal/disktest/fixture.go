package disktest

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/units"
)

// Fixture reads a disk from a text, so that a disk of 2 TiB is a few lines of a diff:
//
//	# a comment
//	size 64M
//	sector 4096          (512 when it is left out)
//	@0x1be 80 01 01 00 07 fe 3f 07  3f 00 00 00 82 3e 00 00
//	       00 00                    (goes on where the line before ended)
//	@63s+3 "NTFS    "               (text; s counts sectors of 512 bytes)
//
// All other bytes are zero.
func Fixture(t testing.TB, path string) disk.Disk {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	d, err := parseFixture(string(text))
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return d
}

// Fixtures returns the disks of the repository's testdata/corpus, by name without ".disk".
func Fixtures(t testing.TB) map[string]string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(moduleRoot(t), "testdata", "corpus", "*.disk"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no *.disk in testdata/corpus: %v", err)
	}
	out := map[string]string{}
	for _, p := range paths {
		out[strings.TrimSuffix(filepath.Base(p), ".disk")] = p
	}
	return out
}

// Materialize writes d as a sparse raw file and returns its path, for tools that need a file.
func Materialize(t testing.TB, d disk.Disk) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk.img")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(d.Size()); err != nil {
		t.Fatal(err)
	}
	for off := int64(0); off < d.Size(); {
		e, err := d.Extent(off, min(d.Size()-off, 1<<40))
		if err != nil {
			t.Fatal(err)
		}
		if !e.Zero {
			if _, err := io.Copy(io.NewOffsetWriter(f, off), io.NewSectionReader(d, off, e.Len)); err != nil {
				t.Fatal(err)
			}
		}
		off = e.End()
	}
	return path
}

// piece is a run of bytes of a fixture.
type piece struct {
	off  int64
	data []byte
}

func (p piece) end() int64 { return p.off + int64(len(p.data)) }

// ReadAt makes a piece the source of a map.
func (p piece) ReadAt(b []byte, off int64) (int, error) { return copy(b, p.data[off:]), nil }

// fixture is the parser state of a text.
type fixture struct {
	size, sector int64
	pieces       []piece
}

func parseFixture(text string) (disk.Disk, error) {
	f := &fixture{sector: units.SectorSize}
	for i, line := range strings.Split(text, "\n") {
		if err := f.line(line); err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
	}
	slices.SortStableFunc(f.pieces, func(a, b piece) int { return cmp.Compare(a.off, b.off) })
	for i, p := range f.pieces {
		if p.end() > f.size {
			return nil, fmt.Errorf("bytes at %#x pass the size of %#x", p.off, f.size)
		}
		if i > 0 && f.pieces[i-1].end() > p.off {
			return nil, fmt.Errorf("bytes at %#x overlap those at %#x", p.off, f.pieces[i-1].off)
		}
	}
	return disk.New(f.size, f.sector, f.run), nil
}

func (f *fixture) line(line string) error {
	line, _, _ = strings.Cut(line, "#")
	word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
	switch {
	case word == "":
		return nil
	case word == "size" || word == "sector":
		n, err := units.Parse(rest)
		if word == "size" {
			f.size = n
		} else {
			f.sector = n
		}
		return err
	case strings.HasPrefix(word, "@"):
		off, err := offset(word[1:])
		if err != nil {
			return err
		}
		f.pieces = append(f.pieces, piece{off: off})
		return f.add(rest)
	case len(f.pieces) == 0:
		return errors.New("bytes without an @offset before them")
	}
	return f.add(line)
}

// offset parses sums such as "63s+0x1c".
func offset(s string) (int64, error) {
	sum := int64(0)
	for term := range strings.SplitSeq(s, "+") {
		n, err := strconv.ParseInt(strings.TrimPrefix(term, "0x"), 16, 64)
		if !strings.HasPrefix(term, "0x") {
			n, err = units.Parse(term)
		}
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

// add appends hexadecimal digits and quoted texts to the last piece.
func (f *fixture) add(s string) error {
	p := &f.pieces[len(f.pieces)-1]
	for i, part := range strings.Split(s, `"`) {
		if i%2 == 1 {
			p.data = append(p.data, part...)
			continue
		}
		b, err := hex.DecodeString(strings.Join(strings.Fields(part), ""))
		if err != nil {
			return err
		}
		p.data = append(p.data, b...)
	}
	if strings.Count(s, `"`)%2 == 1 {
		return errors.New("unclosed quote")
	}
	return nil
}

// run returns the map of the disk.
func (f *fixture) run(off int64) (disk.Run, error) {
	for _, p := range f.pieces {
		switch {
		case off < p.off:
			return disk.Run{Len: p.off - off}, nil
		case off < p.end():
			return disk.Run{Len: p.end() - off, Src: p, Off: off - p.off}, nil
		}
	}
	return disk.Run{Len: f.size - off}, nil
}
