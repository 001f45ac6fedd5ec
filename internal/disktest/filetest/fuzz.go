package filetest

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
)

// A fuzz input is a small list of changes to a volume made by a tool: inputs of a few bytes reach every structure.

// fuzzBase is a volume and the positions of its structures. Changes are made near them.
type fuzzBase struct {
	raw    []byte
	places []int64
}

// newFuzzBase finds the structures of a volume: sectors with a series of zeros, since files contain noise.
func newFuzzBase(raw []byte) fuzzBase {
	const sector = 512
	b := fuzzBase{raw: raw}
	for s := 0; s+sector <= len(raw); s += sector {
		if !bytes.Contains(raw[s:s+sector], []byte{0, 0, 0}) {
			continue
		}
		for i := s; i < s+sector; i += 4 {
			if binary.LittleEndian.Uint32(raw[i:]) != 0 {
				b.places = append(b.places, int64(i))
			}
		}
	}
	return b
}

// change is five bytes of an input: a position (2), the distance from it (1), and two bytes to write.
const change = 5

// mutated returns the volume with at most 16 changes.
func (b fuzzBase) mutated(input []byte) disk.Disk {
	patches := map[int64]byte{}
	for ; len(input) >= change && len(patches) < 32; input = input[change:] {
		at := b.places[int64(binary.LittleEndian.Uint16(input))%int64(len(b.places))] + int64(input[2]%16)
		patches[at%int64(len(b.raw))], patches[(at+1)%int64(len(b.raw))] = input[3], input[4]
	}
	return disk.New(int64(len(b.raw)), 512, func(off int64) (disk.Run, error) {
		return disk.Run{Len: int64(len(b.raw)) - off, Src: patched{b.raw, patches}, Off: off}, nil
	})
}

// FuzzFiles opens and counts the files of volumes with changes.
func FuzzFiles(f *testing.F, open Reader, walk Walk, volumes ...[]byte) {
	f.Helper()
	Fuzz(f, volumes, func(t *testing.T, volume disk.Disk) {
		t.Helper()
		exercise(t, volume, open)
		ExerciseCensus(t, volume, walk)
	})
}

// Fuzz tries volumes with changes.
func Fuzz(f *testing.F, volumes [][]byte, try func(t *testing.T, volume disk.Disk)) {
	f.Helper()
	var bases []fuzzBase
	for i, raw := range volumes {
		bases = append(bases, newFuzzBase(raw))
		f.Add(byte(i), []byte{})
		f.Add(byte(i), []byte{30, 0, 0, 0xff, 0xff, 9, 1, 2, 0, 0})
	}
	f.Fuzz(func(t *testing.T, which byte, input []byte) {
		try(t, bases[int(which)%len(bases)].mutated(input))
	})
}

type patched struct {
	raw     []byte
	patches map[int64]byte
}

func (p patched) ReadAt(b []byte, off int64) (int, error) {
	n := copy(b, p.raw[off:])
	for at, v := range p.patches {
		if at >= off && at < off+int64(n) {
			b[at-off] = v
		}
	}
	return n, nil
}

// pathsOf returns the paths that a fuzz run opens in addition to listed ones.
var pathsOf = []string{"file", "DIR/IN DIR.TXT", "link", "pieces", "", "dir/../file"}

// exercise calls a file system like finders do, and checks its promises.
func exercise(t *testing.T, volume disk.Disk, open Reader) {
	t.Helper()
	g, err := open(volume)
	if err != nil {
		Known(t, err)
		return
	}
	paths := pathsOf
	for todo := []string{""}; len(todo) > 0 && len(paths) < 200; {
		list, err := g.List(todo[0])
		Known(t, err)
		for _, e := range list[:min(len(list), 50)] {
			path := e.Name
			if todo[0] != "" {
				path = todo[0] + "/" + path
			}
			if e.Dir && len(todo) < 20 {
				todo = append(todo, path)
			}
			paths = append(slices.Clip(paths), path)
		}
		todo = todo[1:]
	}
	for _, path := range paths {
		f, err := g.Open(path)
		if err != nil {
			Known(t, err)
			continue
		}
		promises(t, f, volume)
	}
}

// Known requires an error to be of a class that untrusted bytes may cause.
func Known(t *testing.T, err error) {
	t.Helper()
	for _, class := range []error{
		nil, ondisk.ErrFormat, ondisk.ErrUnsupported, ondisk.ErrLimit, ondisk.ErrNoMatch,
		fs.ErrNotExist,
	} {
		if errors.Is(err, class) {
			return
		}
	}
	t.Fatalf("an error of no class: %v", err)
}

// promises requires that the bytes of a file are at its positions, and that no position occurs twice.
func promises(t *testing.T, f *guestfile.File, volume disk.Disk) {
	t.Helper()
	n := min(f.Size(), 20_000)
	if n == 0 {
		return
	}
	got := make([]byte, n)
	require.NoError(t, ondisk.ReadFull(f, got, 0))
	byPlace := slices.SortedFunc(slices.Values(RunsOf(t, f)),
		func(a, b guestfile.Run) int { return cmp.Compare(a.At, b.At) })
	for i := 1; i < len(byPlace); i++ {
		require.LessOrEqual(t, byPlace[i-1].At+byPlace[i-1].Len, byPlace[i].At, "no place comes twice")
	}
	places, err := f.Where(0, n)
	if err != nil {
		Known(t, err)
		return
	}
	var want []byte
	for _, r := range places {
		part, err := io.ReadAll(io.NewSectionReader(volume, r.Off, r.Len))
		require.NoError(t, err)
		want = append(want, part...)
	}
	require.Equal(t, want, got)
}
