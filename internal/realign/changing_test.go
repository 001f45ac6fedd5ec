package realign

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
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

// export is the raw disk of an NBD server, which others can write to unseen.
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
	data, err := os.ReadFile(raw)
	require.NoError(t, err)
	e := &export{data: data}
	img, err := image.OpenAlone(e, e.ID(), image.Options{}, nil)
	require.NoError(t, err)
	s, err := Read(img, Reading{})
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s, e
}

// An error of a copy names the cause: the server, if its bytes changed between two readings, and this machine, if the
// bytes of the copy did.
func TestCauseOfOtherBytes(t *testing.T) {
	raw := oldLinux(t, t.TempDir())
	const (
		data = 22_000 * sector // of the second partition
		boot = 446 + 8         // a start that the plan replaces
	)
	for name, c := range map[string]struct {
		when string // the phase in which
		at   int64  // a byte changes
		copy bool   // of the copy
		want error
		text string
	}{
		"data of the server": {
			when: diskcopy.PhaseProve, at: data, want: ondisk.ErrChanged,
			text: "a second reading gave other bytes (the copy has the first ones: byte ",
		},
		"data of the copy": {
			when: diskcopy.PhaseProve, at: data, copy: true, want: verify.ErrDifferent,
			text: "the storage or memory of this machine is at fault",
		},
		"a patched byte of the server": {
			at: boot, want: ondisk.ErrChanged, text: "end what writes to the export",
		},
		"nothing": {},
	} {
		t.Run(name, func(t *testing.T) {
			s, e := exported(t, raw)
			p, err := s.Plan(Goal{})
			require.NoError(t, err)
			to := t.TempDir()
			change := func(phase string) {
				switch {
				case phase != c.when || c.at == 0:
				case c.copy:
					f, err := os.OpenFile(filepath.Join(to, ".copy.raw.partial"), os.O_RDWR, 0)
					require.NoError(t, err)
					_, err = f.WriteAt([]byte("other"), c.at)
					require.NoError(t, errors.Join(err, f.Close()))
				default:
					e.data[c.at] ^= 0xFF
				}
			}
			change("")
			j := Job{Full: true, Jobs: 2, Progress: watcher(change)}
			_, err = j.Write(t.Context(), s, p, File{Path: filepath.Join(to, "copy.raw"), Format: "raw"})
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

// A difference that a second reading does not find is an error of the disk that changed, and no verdict about the copy.
func TestVerifyOfDisksThatChange(t *testing.T) {
	raw := oldLinux(t, t.TempDir())
	source := open(t, raw)
	p, err := source.Plan(Goal{})
	require.NoError(t, err)
	copied := filepath.Join(t.TempDir(), "copy.raw")
	_, err = (&Job{Full: true, Jobs: 2}).Write(t.Context(), source, p, File{Path: copied, Format: "raw"})
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
		f, err := os.OpenFile(copied, os.O_RDWR, 0)
		require.NoError(t, err)
		_, err = f.WriteAt([]byte("other"), data)
		require.NoError(t, errors.Join(err, f.Close(), os.Chtimes(copied, time.Time{}, time.Unix(1, 0))))
	})
	require.ErrorIs(t, err, ondisk.ErrChanged, "a file shows that it was written to")
}
