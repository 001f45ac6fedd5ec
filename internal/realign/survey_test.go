package realign

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/qcow2forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/disktest/forge/vhdforge"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/verify"
)

func TestReading(t *testing.T) {
	raw := oldLinux(t, t.TempDir())
	qcow := converted(t, raw, "disk.qcow2", "qcow2")
	img, err := image.Open(qcow, image.Options{})
	require.NoError(t, err)
	_, err = Read(img, Reading{SectorSize: 4096})
	require.ErrorIs(t, err, ondisk.ErrFormat)
	_, err = Reading{Format: "tape"}.Options()
	require.ErrorIs(t, err, ondisk.ErrUsage)
	o, err := Reading{Format: "qcow2", Like: 4096}.Options()
	require.NoError(t, err)
	require.EqualValues(t, 4096, o.SectorSize)
}

// Work that was not begun bars no disk, and is noted.
func TestWorkThatWasNotBegun(t *testing.T) {
	t.Parallel()
	raw := oldLinux(t, t.TempDir())
	require.NoError(t, os.WriteFile(journal.PathOf(raw), nil, 0o600))
	s := open(t, raw)
	require.Len(t, s.Beside, 1)
	require.Equal(t, "unfinished", s.Beside[0].Code)
	require.Contains(t, s.Beside[0].Remedy, raw)
}

// A disk of a machine is planned with what the same goal makes of the others.
func TestOthers(t *testing.T) {
	system, data := oldLinux(t, t.TempDir()), oldLinux(t, t.TempDir())
	s, x := open(t, system), open(t, data)
	require.ErrorContains(t, Others{x}.Distinct(s), "0x1234abcd")
	disktest.Run(t, "sfdisk", "--disk-id", data, "0x55aa55aa")
	o := Others{open(t, data)}
	require.NoError(t, o.Distinct(s))

	p, err := s.Plan(Goal{})
	require.NoError(t, err)
	require.NoError(t, o.joinPlan(s, p, Goal{}))
	require.NoError(t, o.Join(s, Goal{}))
	_, refused, err := o.machine(s, p.Starts(), Goal{Only: []int{1}, DataOnly: false})
	require.NoError(t, err)
	require.Empty(t, refused)

	dest := filepath.Join(t.TempDir(), "copy.raw")
	_, err = (&Job{Full: true, Jobs: 2}).Write(t.Context(), s, p, File{Path: dest, Format: "raw"})
	require.NoError(t, err)
	d := open(t, dest)
	m, err := o.Elsewhere(s, d, Goal{})
	require.NoError(t, err)
	_, diffs, err := (&Job{Jobs: 2}).Verify(t.Context(), s, d, m)
	require.NoError(t, err)
	require.Empty(t, diffs)
	m, err = Others{}.Elsewhere(s, d, Goal{})
	require.NoError(t, err)
	require.Nil(t, m)
}

// The other disks of a machine are few, and none of them is what is written.
func TestOpenOthers(t *testing.T) {
	t.Parallel()
	path, other := smallDisk(t), smallDisk(t)
	s := open(t, path)
	opened := 0
	opens := func(path string, r Reading) (*Source, error) {
		if opened++; len(r.Allow) > 0 {
			return nil, ErrComplete
		}
		return Open(path, r)
	}
	many := slices.Repeat([]string{other}, maxOthers+1)
	_, err := OpenOthers(s, many, nil, "", opens)
	require.ErrorContains(t, err, "33 disks by --with, want 32 at most")
	require.Zero(t, opened)
	_, err = OpenOthers(s, []string{other + ".none"}, nil, "", opens)
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = OpenOthers(s, []string{other}, nil, other, opens)
	require.ErrorContains(t, err, "would overwrite disk.img, a disk of --with")
	_, err = OpenOthers(s, []string{other}, nil, "", opens)
	require.ErrorContains(t, err, "it has the disk signature 0x1b2c3d4e, as "+path)
	disktest.Run(t, "sfdisk", "--disk-id", other, "0x55aa55aa")
	opened = 0
	o, err := OpenOthers(s, []string{other}, []string{"/"}, other+".copy", opens)
	require.NoError(t, err)
	require.Equal(t, 2, opened, "the folders are those of the source")
	require.Len(t, o, 1)
	o.Close()
}

// What cannot be read, or is in the middle of something, has no survey. What uses a disk is noted.
func TestDisksThatAreNotRead(t *testing.T) {
	t.Parallel()
	path := smallDisk(t)
	img, err := image.Open(path, image.Options{})
	require.NoError(t, err)
	defer img.Close()
	good := img.Disk
	disktest.EveryBadRead(t, good, func(d disk.Disk) (string, error) {
		img.Disk = d
		s, err := Survey(img)
		if err != nil {
			return "", err
		}
		require.NotNil(t, s.Layout)
		return fmt.Sprint(s.Layout.Partitions[0].Range), nil
	})
	img.Disk = good
	lock := path + ".lck"
	require.NoError(t, os.WriteFile(lock, nil, 0o600))
	s := open(t, path)
	require.Len(t, s.Beside, 1)
	require.Equal(t, "busy", s.Beside[0].Code)
	require.NoError(t, os.Remove(lock))
	begun(t, path, journal.Exchange, []byte("plan"), journal.Begun)
	_, err = Survey(img)
	require.Equal(t, "unfinished", Code(err))
}

func TestCodes(t *testing.T) {
	for code, err := range map[string]error{
		"usage": ondisk.ErrUsage, "busy": ondisk.ErrBusy, "changed": ondisk.ErrChanged, "verify": verify.ErrDifferent,
		"output":    ondisk.ErrOutput,
		"reference": ondisk.ErrReference, "limit": ondisk.ErrLimit, "unsupported": ErrUnknown,
		"format": ondisk.ErrFormat,
		"io":     io.ErrUnexpectedEOF, "internal": errors.New("something"), "own": &ondisk.Refusal{Code: "own"},
	} {
		require.Equal(t, code, Code(fmt.Errorf("disk: %w", err)))
	}
}

// A snapshot alone is refused; with its parents it is one disk.
func TestSnapshots(t *testing.T) {
	dir := t.TempDir()
	base := oldLinux(t, dir)
	top := filepath.Join(dir, "top.qcow2")
	disktest.Run(t, "qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", "disk.img", top)
	s := open(t, top)
	refused, err := s.Refusals(Goal{})
	require.NoError(t, err)
	require.Len(t, refused, 1)
	require.ErrorContains(t, Refusal(refused), `complete only together with its parent "disk.img"`)
	refused, err = s.Refusals(Goal{Flatten: true})
	require.NoError(t, err)
	require.Empty(t, refused)
	require.NoError(t, Refusal(nil))

	p, err := s.Plan(Goal{Flatten: true})
	require.NoError(t, err)
	dest := filepath.Join(dir, "flat.qcow2")
	_, err = (&Job{Full: true, Jobs: 2}).Write(t.Context(), s, p, File{Path: dest})
	require.NoError(t, err)
	requireAligned(t, base, dest, "qcow2")
}

// A survey knows where partitions start, and a complete reading all that Read knows.
func TestSurvey(t *testing.T) {
	raw := oldLinux(t, t.TempDir())
	for _, all := range []bool{false, true} {
		img, err := image.Open(converted(t, raw, "disk.qcow2", "qcow2"), image.Options{})
		require.NoError(t, err)
		defer img.Close()
		s, err := Survey(img)
		require.NoError(t, err)
		require.Len(t, s.Layout.Partitions, 2)
		require.EqualValues(t, 63*sector, s.Layout.Partitions[0].Off)
		require.NoError(t, s.Complete(t.Context(), all))
		require.Empty(t, s.Damage)
		require.NoError(t, s.Misnamed())
		u, err := s.Use(t.Context(), true, watcher(func(phase string) { require.Equal(t, "read", phase) }))
		require.NoError(t, err)
		require.Empty(t, u.Issues)
		require.NotNil(t, u.NonZero)
		require.Greater(t, *u.NonZero, int64(8000*sector), "the noise of the second partition")
		require.Less(t, *u.NonZero, int64(diskSize/2))
	}
}

// A map that leads nowhere is broken: a survey does not see it, a complete reading does.
func TestBrokenMap(t *testing.T) {
	dir := t.TempDir()
	q := qcow2forge.New(make([]byte, 1<<20), 16)
	q.BE64(q.L2+8*5, 1<<63|1<<40) // far behind the end of the file
	path := filepath.Join(dir, "broken.qcow2")
	q.Write(t, path)
	img, err := image.Open(path, image.Options{})
	require.NoError(t, err)
	defer img.Close()
	s, err := Survey(img)
	require.NoError(t, err)
	require.NoError(t, s.malformed())
	require.NoError(t, s.Complete(t.Context(), true))
	require.Error(t, s.malformed())
	_, err = s.Plan(Goal{})
	require.ErrorIs(t, err, ondisk.ErrFormat)
	refused, err := s.Refusals(Goal{})
	require.NoError(t, err)
	require.Empty(t, refused, "what is wrong is said by Malformed")
}

// Data that the bitmaps of a VHD hide are found by a survey too, on a disk that reads as blank.
func TestSurveyFindsHiddenData(t *testing.T) {
	dir := t.TempDir()
	data := make(forge.Bytes, 4<<20)
	table := tableforge.NewMBR(8192, tableforge.Slot{Type: 0x83, Start: 63, Sectors: 512})
	copy(data, table)
	v := vhdforge.New(data, vhdforge.Layout{Stored: func(s int64) bool { return s != 0 }})
	v.Put(v.Blocks[0]+512, data[:512])
	path := filepath.Join(dir, "hidden.vhd")
	v.Write(t, path)
	img, err := image.Open(path, image.Options{})
	require.NoError(t, err)
	defer img.Close()
	s, err := Survey(img)
	require.NoError(t, err)
	require.True(t, slices.ContainsFunc(s.Damage, func(i ondisk.Issue) bool { return i.Code == image.CodeHidden }))
	refused, err := s.Refusals(Goal{})
	require.NoError(t, err)
	require.NotEmpty(t, refused)
}
