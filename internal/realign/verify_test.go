package realign

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/diskcopy"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/verify"
)

// A changed byte in the copy is found and located.
func TestVerifyFindsOneByte(t *testing.T) {
	dir := t.TempDir()
	raw := oldLinux(t, dir)
	dest := filepath.Join(dir, "copy.raw")
	s := open(t, raw)
	p := mustPlan(t, s)
	_, err := (&Job{Full: true, Jobs: 2}).Write(t.Context(), s, p, File{Path: dest, Format: "raw"})
	require.NoError(t, err)
	where := starts(t, dest)[1][0]*sector + 12345
	disktest.WriteAt(t, dest, where, []byte{0})
	_, diffs, err := (&Job{Jobs: 1}).Verify(t.Context(), s, open(t, dest), nil)
	require.NoError(t, err)
	require.Len(t, diffs, 1)
	require.Equal(t, where-where%sector, diffs[0].Off)

	require.NoError(t, os.Truncate(dest, diskSize/2))
	_, diffs, err = (&Job{Jobs: 1}).Verify(t.Context(), s, open(t, dest), nil)
	require.NoError(t, err)
	require.NotEmpty(t, diffs, "half of the disk is missing")
}

// A view with other changes than the plan is refused.
func TestViewHoldsThePlan(t *testing.T) {
	s := open(t, oldLinux(t, t.TempDir()))
	p := mustPlan(t, s)
	require.NotEmpty(t, p.Patches)
	_, err := s.View(p)
	require.NoError(t, err)
	p.Patches[0].Old = append([]byte{^p.Patches[0].Old[0]}, p.Patches[0].Old[1:]...)
	_, err = s.View(p)
	require.ErrorIs(t, err, verify.ErrDifferent)

	p = mustPlan(t, s)
	i := slices.IndexFunc(p.Pieces, func(x disk.Shift) bool { return x.From == 63*sector })
	require.GreaterOrEqual(t, i, 0)
	p.Pieces[i].From += sector // not the old file system
	_, err = s.View(p)
	require.Error(t, err)
	_, err = s.Result(p)
	require.Error(t, err)
}

// A wrong copy of the disk is a difference, not an error.
func TestVerifyOfAnotherDisk(t *testing.T) {
	dir := t.TempDir()
	s := open(t, oldLinux(t, dir))
	other := filepath.Join(dir, "other.raw")
	disktest.MakeBlank(t, other, diskSize)
	disktest.RunInput(t, "2048,20000,83\n", "sfdisk", "-q", other)
	p, diffs, err := (&Job{Jobs: 1}).Verify(t.Context(), s, open(t, other), nil)
	require.NoError(t, err)
	require.Nil(t, p)
	require.Len(t, diffs, 1)

	img, err := image.Open(other, image.Options{SectorSize: 4096})
	require.NoError(t, err)
	large, err := Read(img, Reading{})
	require.NoError(t, err)
	defer Others{large}.Close()
	_, diffs, err = (&Job{Jobs: 1}).Verify(t.Context(), s, large, nil)
	require.NoError(t, err)
	require.Contains(t, diffs[0].Text, "sectors of 4096 bytes, not 512")
}

// A copy that is malformed when read back is a difference; one that cannot be read is an error of the storage.
func TestReadBack(t *testing.T) {
	for err, different := range map[error]bool{
		ondisk.ErrFormat: true, ondisk.ErrUnsupported: true,
		ondisk.ErrReference: true, io.ErrUnexpectedEOF: false,
	} {
		got := readBack(err)
		require.ErrorIs(t, got, err)
		require.Equal(t, different, errors.Is(got, verify.ErrDifferent), "%v", err)
	}
}

// An unreadable sector of the source always ends the run, and nothing of DEST is left.
func TestBadSectorsOfTheSource(t *testing.T) {
	raw := oldLinux(t, t.TempDir())
	good := open(t, raw)
	to := t.TempDir()
	dest := filepath.Join(to, "copy.raw")
	disktest.EveryBadSector(t, good.Image.Disk, func(d disk.Disk) (sum string, err error) {
		defer func() {
			if err != nil {
				require.Empty(t, disktest.Names(t, to))
			}
		}()
		img, err := image.Open(raw, image.Options{})
		require.NoError(t, err)
		img.Disk = d
		s, err := Read(img, Reading{})
		if err != nil {
			return "", err
		}
		defer s.Close()
		p, err := s.Plan(Goal{})
		if err != nil {
			return "", err
		}
		if _, err := (&Job{Full: true, Jobs: 1}).Write(t.Context(), s, p, File{Path: dest, Format: "raw"}); err != nil {
			return "", err
		}
		b := disktest.ReadFile(t, dest)
		require.NoError(t, os.Remove(dest))
		return fmt.Sprintf("%x", sha256.Sum256(b)), nil
	})
}

// A bad sector is no difference of a copy, on either side.
func TestBadSectorsOfAVerifiedCopy(t *testing.T) {
	dir := t.TempDir()
	s := open(t, oldLinux(t, dir))
	p := mustPlan(t, s)
	dest := filepath.Join(dir, "copy.raw")
	_, err := (&Job{Jobs: 1}).Write(t.Context(), s, p, File{Path: dest, Format: "raw"})
	require.NoError(t, err)
	d := open(t, dest)
	for _, side := range []*Source{s, d} {
		disktest.EveryBadSector(t, side.Image.Disk, func(bad disk.Disk) (string, error) {
			was := side.Image.Disk
			defer func() { side.Image.Disk = was }()
			side.Image.Disk = bad
			_, diffs, err := (&Job{Jobs: 1}).Verify(t.Context(), s, d, nil)
			return fmt.Sprint(diffs), err
		})
	}
}

// export is the raw disk of an NBD server, which others can write unnoticed.
type export struct {
	data   []byte
	forget func()
}

func (e *export) ReadAt(p []byte, off int64) (int, error) {
	return bytes.NewReader(e.data).ReadAt(p, off)
}
func (e *export) Size() int64    { return int64(len(e.data)) }
func (*export) Name() string     { return "disk" }
func (*export) ID() string       { return "nbd://host/disk" }
func (*export) Device() bool     { return true }
func (*export) Unchanged() error { return nil }
func (*export) Close() error     { return nil }
func (e *export) Forget() {
	if e.forget != nil {
		e.forget()
	}
}

func (*export) Extent(off, most int64) (disk.Extent, error) {
	return disk.Extent{Range: disk.Range{Off: off, Len: most}}, nil
}

// exported returns the source of an export with the bytes of a raw disk.
func exported(t *testing.T, raw string) (*Source, *export) {
	t.Helper()
	data := disktest.ReadFile(t, raw)
	e := &export{data: data}
	img, err := image.OpenAlone(e, e.ID(), image.Options{}, nil)
	require.NoError(t, err)
	s, err := Read(img, Reading{})
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s, e
}

// An error of a copy names the cause: the server, if its bytes changed between two readings, or this machine, if the
// bytes of the copy did.
func TestCauseOfOtherBytes(t *testing.T) {
	raw := oldLinux(t, t.TempDir())
	const (
		data = 22_000 * sector // of the second partition
		boot = 446 + 8         // a start that the plan replaces
	)
	for name, c := range map[string]struct {
		when string // the phase of the change
		at   int64  // a byte changes
		copy bool   // of the copy
		want error
		text string
	}{
		"data of the server": {
			when: diskcopy.PhaseProve, at: data, want: ondisk.ErrChanged,
			text: "a second reading returned other bytes (the copy has the first ones: byte ",
		},
		"data of the copy": {
			when: diskcopy.PhaseProve, at: data, copy: true, want: verify.ErrDifferent,
			text: "storage or memory of this machine is faulty",
		},
		"a patched byte of the server": {
			at: boot, want: ondisk.ErrChanged, text: "stop the program that writes to the export",
		},
		"nothing": {},
	} {
		t.Run(name, func(t *testing.T) {
			s, e := exported(t, raw)
			p := mustPlan(t, s)
			to := t.TempDir()
			change := func(phase string) {
				switch {
				case phase != c.when || c.at == 0:
				case c.copy:
					disktest.WriteAt(t, filepath.Join(to, ".copy.raw.partial"), c.at, []byte("other"))
				default:
					e.data[c.at] ^= 0xFF
				}
			}
			change("")
			j := Job{Full: true, Jobs: 2, Progress: watcher(change)}
			_, err := j.Write(t.Context(), s, p, File{Path: filepath.Join(to, "copy.raw"), Format: "raw"})
			if c.want == nil {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, c.want)
			require.ErrorContains(t, err, c.text)
			require.Empty(t, disktest.Names(t, to))
		})
	}
}

// A difference that a second reading does not find is an error of the changed disk, and no verdict about the copy.
func TestVerifyOfDisksThatChange(t *testing.T) {
	raw := oldLinux(t, t.TempDir())
	source := open(t, raw)
	p := mustPlan(t, source)
	copied := filepath.Join(t.TempDir(), "copy.raw")
	_, err := (&Job{Full: true, Jobs: 2}).Write(t.Context(), source, p, File{Path: copied, Format: "raw"})
	require.NoError(t, err)

	const data = 22_000 * sector
	flip := func(e *export) func(string) { return func(string) { e.data[data] ^= 0xFF } }
	verified := func(s, d *Source, change func(phase string)) ([]Difference, error) {
		t.Helper()
		j := Job{Jobs: 1, Progress: watcher(change)}
		_, diffs, err := j.Verify(t.Context(), s, d, nil)
		return diffs, err
	}
	nothing := func(string) {}

	s, e := exported(t, raw)
	diffs, err := verified(s, open(t, copied), nothing)
	require.NoError(t, err)
	require.Empty(t, diffs)
	diffs, err = verified(s, open(t, copied), flip(e))
	require.NoError(t, err)
	require.Len(t, diffs, 1, "the second reading finds the difference as well")
	e.forget = func() { flip(e)("") }
	_, err = verified(s, open(t, copied), nothing)
	require.ErrorIs(t, err, ondisk.ErrChanged)
	require.ErrorContains(t, err, "the first found that byte ")

	d, e := exported(t, copied)
	e.forget = func() { e.data[data+sector] ^= 0xFF }
	e.forget()
	_, err = verified(open(t, raw), d, nothing)
	require.ErrorIs(t, err, ondisk.ErrChanged, "the copy is an export, too")

	_, err = verified(open(t, raw), open(t, copied), func(string) {
		disktest.WriteAt(t, copied, data, []byte("other"))
		require.NoError(t, os.Chtimes(copied, time.Time{}, time.Unix(1, 0)))
	})
	require.ErrorIs(t, err, ondisk.ErrChanged, "a file shows that it was written to")
}
