package realign

import (
	"errors"
	"io"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/verify"
)

// sharer notes what it takes over, as far as it can.
type sharer struct {
	target
	most   int
	shared []disk.Piece
}

func (s *sharer) Share(from driver.File, off, n, at int64) error {
	if len(s.shared) == s.most {
		return errors.ErrUnsupported
	}
	s.shared = append(s.shared, disk.Piece{Range: disk.Range{Off: at, Len: n}, Src: from, At: off})
	return nil
}

// puzzle is a disk of stretches of two files, of bytes and of zeros, in random places.
func puzzle(rnd *rand.Rand) disk.Disk {
	const fileSize = 4 << 20
	var pieces []disk.Piece
	data := make([]byte, fileSize)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(data)
	files := []io.ReaderAt{
		disktest.NewMemFile("a", data, fileSize), disktest.NewMemFile("b", data[:fileSize/2], fileSize), &bytesOf{data},
	}
	off := int64(0)
	for range 12 {
		p := disk.Piece{Src: files[rnd.IntN(3)], At: rnd.Int64N(400) * sector}
		p.Range = disk.Range{Off: off + rnd.Int64N(3)*sector*7, Len: (1 + rnd.Int64N(500)) * sector}
		if rnd.IntN(2) == 0 {
			p.At = (p.At + 8191) / 4096 * 4096
			p.At += p.Off % 4096
		}
		off = p.End()
		pieces = append(pieces, p)
		if rnd.IntN(3) == 0 { // it goes on in the file
			next := disk.Piece{Range: disk.Range{Off: off, Len: 300 * sector}, Src: p.Src, At: p.At + p.Len}
			off = next.End()
			pieces = append(pieces, next)
		}
	}
	return disk.New(off, sector, disk.Pieces(off, pieces, nil))
}

// bytesOf is no file of an image.
type bytesOf struct{ b []byte }

func (b *bytesOf) ReadAt(p []byte, off int64) (int, error) { return copy(p, b.b[off:]), nil }

// What is shared are whole blocks that files hold as the disk shows them; what is left to copy is all else.
func TestShare(t *testing.T) {
	rnd := rand.New(rand.NewPCG(17, 1))
	shared := int64(0)
	for range 50 {
		d, to := puzzle(rnd), &sharer{most: 100}
		j := &Job{}
		rest, err := j.share(d, to)
		require.NoError(t, err)
		require.Equal(t, j.shared, to.shared)
		got, want := make([]byte, d.Size()), make([]byte, d.Size())
		_, err = io.ReadFull(io.NewSectionReader(rest, 0, d.Size()), got)
		require.NoError(t, err)
		_, err = io.ReadFull(io.NewSectionReader(d, 0, d.Size()), want)
		require.NoError(t, err)
		for _, p := range to.shared {
			shared += p.Len
			require.Zero(t, (p.Off|p.At|p.Len)%align.Block)
			require.GreaterOrEqual(t, p.Len, leastShared)
			part := got[p.Off:p.End()]
			require.Equal(t, make([]byte, p.Len), part)
			_, err = p.Src.ReadAt(part, p.At)
			require.NoError(t, err)
		}
		disktest.EqualBytes(t, want, got)
		requireNoneMissed(t, d, to.shared)
	}
	require.Greater(t, shared, int64(10<<20))
}

// requireNoneMissed requires that no stretch is left that lies in a file just as far off a block as on the disk.
func requireNoneMissed(t *testing.T, d disk.Disk, shared []disk.Piece) {
	t.Helper()
	for off := int64(0); off < d.Size(); {
		run, _, err := disk.Leaf(d, off)
		require.NoError(t, err)
		_, ok := run.Src.(driver.File)
		if ok && (run.Off-off)%align.Block == 0 && run.Len >= leastShared+2*align.Block {
			middle := off + run.Len/2
			i := disk.Behind(shared, middle)
			require.True(t, i < len(shared) && shared[i].Off <= middle, "at %d", off)
		}
		off += run.Len
	}
}

// A copy that shares blocks says how many.
func TestNoteOfSharedBlocks(t *testing.T) {
	t.Parallel()
	path := smallDisk(t)
	j := Job{Dest: filepath.Join(t.TempDir(), "copy.raw"), Format: "raw", Jobs: 1}
	j.Watch = func() Progress {
		j.shared = []disk.Piece{{Range: disk.Range{Len: 4096}}}
		return nil
	}
	w, err := write(t.Context(), t, &j, path)
	require.NoError(t, err)
	w.Notes = slices.DeleteFunc(w.Notes, func(i ondisk.Issue) bool {
		return i.Code == "dest-folder-not-synced" // on Windows
	})
	require.Len(t, w.Notes, 1)
	require.Equal(t, "shared", w.Notes[0].Code)
	require.Contains(t, w.Notes[0].Text, "4096 bytes")
}

// Where nothing can be shared, or not for long, the rest is copied.
func TestShareOfWhatCannot(t *testing.T) {
	rnd := rand.New(rand.NewPCG(17, 2))
	d := puzzle(rnd)
	for _, most := range []int{0, 1} {
		j, to := &Job{}, &sharer{most: most}
		rest, err := j.share(d, to)
		require.NoError(t, err)
		require.Len(t, j.shared, most)
		require.Equal(t, most == 0, rest == d)
		require.Len(t, j.sharedNotes(), most)
	}
	for _, j := range []*Job{{View: true}, {}} {
		var o target = &sharer{most: 100}
		if !j.View {
			o = o.(*sharer).target // no Sharer
		}
		rest, err := j.share(d, o)
		require.NoError(t, err)
		require.Equal(t, d, rest)
		require.Empty(t, j.shared)
	}
	bad := disk.New(d.Size(), sector, func(int64) (disk.Run, error) { return disk.Run{}, disktest.ErrFault })
	_, err := (&Job{}).share(bad, &sharer{})
	require.ErrorIs(t, err, disktest.ErrFault)
}

// A stretch whose blocks are not known to be those of SOURCE is compared, byte by byte.
func TestProofOfWhatIsShared(t *testing.T) {
	s := open(t, oldLinux(t, t.TempDir()))
	p, err := s.Plan(Goal{})
	require.NoError(t, err)
	view, err := s.View(p)
	require.NoError(t, err)
	const data = 24_000 * sector
	j := &Job{Full: true, Jobs: 1, shared: []disk.Piece{{
		Range: disk.Range{Off: data / 4096 * 4096, Len: 64 << 10}, Src: s.Image.Handles[0],
	}}}
	sum, err := j.digest(t.Context(), j.rest(view))
	require.NoError(t, err)
	for off, want := range map[int64]error{0: nil, data: verify.ErrDifferent, data + 128<<10: verify.ErrDifferent} {
		got := view
		if off > 0 {
			got = disk.Overlay(view, []disk.Patch{{Off: off, New: []byte{0, 0, 0, 0}}})
		}
		err := j.prove(t.Context(), s, p, view, &image.Image{Image: &driver.Image{Disk: got}}, &sum)
		require.ErrorIs(t, err, want)
	}
}
