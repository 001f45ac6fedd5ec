package realign

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/qcow2forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/disktest/forge/vhdforge"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/unpack"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/verify"
	"github.com/trueup/trueup/internal/volume"
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

// Work that was not begun does not block a disk, and is noted.
func TestWorkThatWasNotBegun(t *testing.T) {
	t.Parallel()
	raw := oldLinux(t, t.TempDir())
	require.NoError(t, os.WriteFile(journal.PathOf(raw), nil, 0o600))
	s := open(t, raw)
	require.Len(t, s.Beside, 1)
	require.Equal(t, "unfinished", s.Beside[0].Code)
	require.Contains(t, s.Beside[0].Remedy, raw)
}

// A disk of a machine is planned together with the plans of the others for the same goal.
func TestOthers(t *testing.T) {
	system, data := oldLinux(t, t.TempDir()), oldLinux(t, t.TempDir())
	s, x := open(t, system), open(t, data)
	require.ErrorContains(t, Others{x}.Distinct(s), "0x1234abcd")
	disktest.Run(t, "sfdisk", "--disk-id", data, "0x55aa55aa")
	o := Others{open(t, data)}
	require.NoError(t, o.Distinct(s))

	p := mustPlan(t, s)
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

// The number of other disks of a machine is limited, and none of them may be written.
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
	require.ErrorContains(t, err, "--with is given 33 times; at most 32 are allowed")
	require.Zero(t, opened)
	_, err = OpenOthers(s, []string{other + ".none"}, nil, "", opens)
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = OpenOthers(s, []string{other}, nil, other, opens)
	require.ErrorContains(t, err, "would overwrite disk.img, a disk of --with")
	_, err = OpenOthers(s, []string{other}, nil, "", opens)
	require.ErrorContains(t, err, "it has disk signature 0x1b2c3d4e, like "+path)
	disktest.Run(t, "sfdisk", "--disk-id", other, "0x55aa55aa")
	opened = 0
	o, err := OpenOthers(s, []string{other}, []string{"/"}, other+".copy", opens)
	require.NoError(t, err)
	require.Equal(t, 2, opened, "the folders are those of the source")
	require.Len(t, o, 1)
	o.Close()
}

// An unreadable disk, or one with unfinished work, has no survey. Users of a disk are noted.
func TestDisksThatAreNotRead(t *testing.T) {
	t.Parallel()
	path := smallDisk(t)
	img := imagetest.Open(t, path)
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
	_, err := Survey(img)
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
	require.ErrorContains(t, Refusal(refused), `it is a snapshot of its parent "disk.img"`)
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

// A survey has the starts of partitions, and a complete reading everything from Read.
func TestSurvey(t *testing.T) {
	raw := oldLinux(t, t.TempDir())
	for _, all := range []bool{false, true} {
		s := surveyed(t, converted(t, raw, "disk.qcow2", "qcow2"))
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

// A map that points nowhere is broken: only a complete reading finds that.
func TestBrokenMap(t *testing.T) {
	dir := t.TempDir()
	q := qcow2forge.New(make([]byte, 1<<20), 16)
	q.BE64(q.L2+8*5, 1<<63|1<<40) // far after the end of the file
	path := filepath.Join(dir, "broken.qcow2")
	q.Write(t, path)
	s := surveyed(t, path)
	require.NoError(t, s.malformed())
	require.NoError(t, s.Complete(t.Context(), true))
	require.Error(t, s.malformed())
	_, err := s.Plan(Goal{})
	require.ErrorIs(t, err, ondisk.ErrFormat)
	refused, err := s.Refusals(Goal{})
	require.NoError(t, err)
	require.Empty(t, refused, "what is wrong is said by Malformed")
}

// Data hidden by the bitmaps of a VHD are also found by a survey, on a disk that reads as blank.
func TestSurveyFindsHiddenData(t *testing.T) {
	dir := t.TempDir()
	data := make(forge.Bytes, 4<<20)
	table := tableforge.NewMBR(8192, tableforge.Slot{Type: 0x83, Start: 63, Sectors: 512})
	copy(data, table)
	v := vhdforge.New(data, vhdforge.Layout{Stored: func(s int64) bool { return s != 0 }})
	v.Put(v.Blocks[0]+512, data[:512])
	path := filepath.Join(dir, "hidden.vhd")
	v.Write(t, path)
	s := surveyed(t, path)
	require.True(t, slices.ContainsFunc(s.Damage, func(i ondisk.Issue) bool { return i.Code == image.CodeHidden }))
	refused, err := s.Refusals(Goal{})
	require.NoError(t, err)
	require.NotEmpty(t, refused)
}

// A truncated image is judged by its first bytes, unless its tables are after them.
func TestHeadOfALargeImage(t *testing.T) {
	t.Parallel()
	disk := tableforge.NewMBR(40<<11, tableforge.Slot{Type: 0x83, Start: 63, Sectors: 80000})
	for off := 1 << 20; off < len(disk); off += 512 {
		disk[off] = 1 // so that no cluster is omitted
	}
	qcow2 := qcow2forge.New(disk, 16).Bytes
	require.Greater(t, len(qcow2), 32<<20)
	noise := bytes.Clone(disk)
	_, _ = rand.NewChaCha8([32]byte{}).Read(noise[1<<20:])
	vmdk := vmdkforge.NewStream(noise, vmdkforge.StreamLayout{}).Bytes // its tables lie at its end
	require.Greater(t, len(vmdk), 39<<20)
	for name, data := range map[string][]byte{
		"a.img.gz": disk, "a.qcow2.gz": qcow2,
		"a.vmdk.gz": vmdk,
	} {
		var stream bytes.Buffer
		w, err := gzip.NewWriterLevel(&stream, gzip.BestSpeed)
		require.NoError(t, err)
		_, err = w.Write(data)
		require.NoError(t, err)
		require.NoError(t, w.Close())
		path := filepath.Join(t.TempDir(), name)
		require.NoError(t, os.WriteFile(path, stream.Bytes(), 0o600))
		s, err := Head(context.Background(), path, image.Options{})
		if name == "a.vmdk.gz" {
			require.ErrorIs(t, err, unpack.ErrBeyond)
			continue
		}
		require.NoError(t, err, name)
		guessed := strings.HasSuffix(strings.TrimSuffix(name, ".gz"), ".img")
		require.Equal(t, guessed, s.Guessed(), name)
		if !guessed {
			require.Equal(t, int64(len(disk)), s.Layout.Size, name)
		}
		require.Equal(t, int64(63*512), s.Layout.Partitions[0].Off, name)
		s.Close()
	}
}

// Every finding of grade error counts: a malformed image is an error, the first one for inspect and scan; damage of the
// image keeps unknown content from being accepted; the others are reasons to refuse a copy.
func TestErrorsCount(t *testing.T) {
	t.Parallel()
	img := &image.Image{Image: &driver.Image{Disk: disktest.Memory(make([]byte, units.SectorSize))}}
	unfinished := &ondisk.Refusal{Code: "unfinished"}
	blank := &layout.Layout{Volume: &volume.Volume{Kind: volume.Unknown}, Blank: true, Boot: &boot.Result{}}
	unknown := &layout.Layout{Volume: &volume.Volume{Kind: volume.Unknown}, Boot: &boot.Result{}}
	known := &layout.Layout{Table: &table.Table{}, Boot: &boot.Result{}}
	bad := ondisk.ErrFormat
	for name, c := range map[string]struct {
		issue  ondisk.Issue
		layout *layout.Layout
		broken bool
		lacks  error
	}{
		"a note":                 {ondisk.Issue{Effect: ondisk.Note}, unknown, false, nil},
		"a warning":              {ondisk.Issue{Effect: ondisk.Warn, Err: bad}, unknown, false, nil},
		"may not boot":           {ondisk.Issue{Effect: ondisk.Unbootable}, unknown, false, nil},
		"a malformed volume":     {ondisk.Issue{Effect: ondisk.BadVolume, Err: bad}, unknown, true, nil},
		"broken":                 {ondisk.Issue{Effect: ondisk.Broken, Err: bad}, unknown, true, bad},
		"in use":                 {ondisk.Issue{Effect: ondisk.Refuse, Err: ondisk.ErrBusy}, unknown, false, nil},
		"refused":                {ondisk.Issue{Effect: ondisk.Refuse}, unknown, false, nil},
		"damaged":                {ondisk.Issue{Effect: ondisk.Refuse, Err: bad}, unknown, false, ErrUnknown},
		"an unfinished copy":     {ondisk.Issue{Effect: ondisk.Refuse, Err: unfinished}, unknown, false, ErrUnknown},
		"unfinished, of nothing": {ondisk.Issue{Effect: ondisk.Refuse, Err: unfinished}, blank, false, nil},
		"damaged, and judged":    {ondisk.Issue{Effect: ondisk.Refuse, Err: bad}, known, false, nil},
	} {
		s := &Source{Image: img, Layout: c.layout, Damage: []ondisk.Issue{c.issue}}
		require.Equal(t, c.broken, Broken(align.Relevant(s.Damage, nil)) != nil, name)
		require.ErrorIs(t, s.Lacks(), c.lacks, name)
	}
	s := open(t, imagetest.Write(t, t.TempDir(), "disk.img", append(image.Mark(512), make([]byte, units.MiB)...)))
	require.ErrorContains(t, s.Lacks(), "unfinished copy")
	require.NoError(t, (&Source{}).Lacks(), "it was not read")
}

// Costs that cannot be computed are an error, for any failing read of the source. A missing partition has no plan.
func TestCostOfUnreadableDisks(t *testing.T) {
	t.Parallel()
	s := open(t, oldLinux(t, t.TempDir()))
	_, err := s.PlanAmong(nil, Goal{Only: []int{9}}, nil)
	require.ErrorContains(t, err, "has no partition 9")
	p, err := s.PlanAmong(nil, Goal{}, nil)
	require.NoError(t, err)
	disktest.EveryReadCounts(t, s.Image.Disk, func(d disk.Disk) error {
		was := s.Image.Disk
		defer func() { s.Image.Disk = was }()
		s.Image.Disk = d
		_, err := s.Cost(p)
		return err
	})
}

// Files are counted in partitions, and on disks that are one volume. mke2fs makes two folders: the root and lost+found.
func TestFragmentsOfVolumes(t *testing.T) {
	t.Parallel()
	dir, files := t.TempDir(), t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(files, "one"), bytes.Repeat([]byte("text "), 10_000), 0o644))
	whole := filepath.Join(dir, "whole.img")
	disktest.Run(t, "mke2fs", "-q", "-F", "-t", "ext2", "-d", files, whole, "4m")
	for number, path := range []string{whole, oldLinux(t, dir)} {
		got, err := open(t, path).Fragments()
		require.NoError(t, err)
		require.Len(t, got, 1)
		require.Equal(t, number, got[0].Number)
		require.NoError(t, got[0].Err)
		require.EqualValues(t, 1, got[0].Files.Number)
		require.EqualValues(t, 2, got[0].Folders.Number)
	}
}

// counted counts the bytes read of a disk.
type counted struct {
	disk.Disk
	read *atomic.Int64
}

func (c counted) ReadAt(p []byte, off int64) (int, error) {
	c.read.Add(int64(len(p)))
	return c.Disk.ReadAt(p, off)
}

// The proof of a copy does not read its source again.
func TestTheSourceIsReadOnce(t *testing.T) {
	t.Parallel()
	s := open(t, oldLinux(t, t.TempDir()))
	p := mustPlan(t, s)
	var read [2]atomic.Int64
	was := s.Image.Disk
	for i, full := range []bool{false, true} {
		s.Image.Disk = counted{was, &read[i]}
		to := File{Path: filepath.Join(t.TempDir(), "copy.img")}
		_, err := (&Job{Full: full, Jobs: 2}).Write(t.Context(), s, p, to)
		require.NoError(t, err)
	}
	require.Positive(t, read[0].Load())
	require.Equal(t, read[0].Load(), read[1].Load())
}
