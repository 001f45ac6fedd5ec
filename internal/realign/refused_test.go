package realign

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/ova"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/verify"
)

// Invalid values of flags, and claims of the user that contradict the image, are refused.
func TestStatements(t *testing.T) {
	t.Parallel()
	for arg, want := range map[string]int64{"512": 512, "4096": 4096, "4K": 4096, "": 0, "x": 0, "1024": 0, "0": 0} {
		var got int64
		err := SectorSize(&got).Set(arg)
		require.Equal(t, want, got, arg)
		require.Equal(t, want == 0, err != nil, arg)
	}
	for arg, fits := range map[string]bool{"0": true, "65s": true, "100": false, "-512": false, "x": false} {
		require.Equal(t, fits, Offset(new(int64)).Set(arg) == nil, arg)
	}
	for arg, want := range map[string]Target{
		"qcow2":                   {Format: "qcow2"},
		"VMDK:twoGbMaxExtentFlat": {Format: "vmdk", Subformat: "twoGbMaxExtentFlat"},
		"raw,align=1M":            {Format: "raw", Round: units.MiB},
		"raw,align=512":           {Format: "raw", Round: 512},
		"raw,align=1G":            {Format: "raw", Round: units.GiB},
	} {
		got, err := ParseTarget(arg)
		require.NoError(t, err, arg)
		require.Equal(t, want, got)
	}
	for _, arg := range []string{"raw,size=1M", "raw,align=x", "raw,align=256", "raw,align=2G", "raw,align=3K"} {
		_, err := ParseTarget(arg)
		require.ErrorIs(t, err, ondisk.ErrUsage, arg)
	}
	names, text := Targets()
	require.Subset(t, names, []string{"raw", "qcow2", "vmdk", "vmdk:streamOptimized"})
	require.Contains(t, text, "vmdk (monolithicSparse")

	dir := t.TempDir()
	smallPackage(t, dir)
	packed := filepath.Join(dir, "vm.ova")
	require.Equal(t, []string{dir}, Folders([]string{packed}))
	_, err := Open("-", Reading{})
	require.ErrorIs(t, err, ondisk.ErrUsage)
	_, err = Open(packed+"!one.vmdk", Reading{Format: "floppy"})
	require.ErrorIs(t, err, ondisk.ErrUsage)
	require.NotErrorIs(t, err, ErrOpen)
	src := openedPackage(t, packed)
	_, err = PlanPackage(src, Reading{Format: "floppy"}, Goal{})
	require.ErrorIs(t, err, ondisk.ErrUsage)
	for _, read := range []func() error{
		func() error { _, err := PlanPackage(src, Reading{Allow: []string{dir}}, Goal{}); return err },
		func() error { _, err := Open(packed+"!one.vmdk", Reading{Allow: []string{dir}}); return err },
	} {
		require.ErrorIs(t, read(), ErrComplete)
	}
	_, err = Open(filepath.Join(dir, "none.vmdk"), Reading{})
	require.ErrorIs(t, err, ErrOpen)
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = PlanPackage(src, Reading{}, Goal{Only: []int{3}})
	require.ErrorIs(t, err, plan.ErrSelection)
}

func openedPackage(t *testing.T, path string) *ova.Package {
	t.Helper()
	p, err := OpenPackage(path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

// edited writes a folder with the files of a small package with edited texts, and opens it.
func edited(t *testing.T, name string, edit func(text string) string) *ova.Package {
	t.Helper()
	dir := t.TempDir()
	smallPackage(t, dir)
	path := filepath.Join(dir, name)
	b := disktest.ReadFile(t, path)
	changed := edit(string(b))
	require.NotEqual(t, string(b), changed)
	require.NoError(t, os.WriteFile(path, []byte(changed), 0o644))
	return openedPackage(t, filepath.Join(dir, "vm.ovf"))
}

// A package that must not be copied is refused with the reason.
func TestRefusedPackages(t *testing.T) {
	t.Parallel()
	unnamed := strings.NewReplacer(` ovf:fileRef="f1"`, "", ` ovf:fileRef="f2"`, "")
	none := edited(t, "vm.ovf", unnamed.Replace)
	require.Empty(t, none.Disks())
	_, err := PlanPackage(none, Reading{}, Goal{})
	require.ErrorIs(t, err, ondisk.ErrUnsupported)

	dir := t.TempDir()
	smallPackage(t, dir)
	f := tableforge.NewMBR(4096, tableforge.Slot{Type: 0x83, Flag: 0x80, Start: 63, Sectors: 300})
	f.Put(0, []byte("\xeb\xfe code that no list has"))
	raw := filepath.Join(t.TempDir(), "disk.img")
	require.NoError(t, os.WriteFile(raw, f, 0o644))
	disktest.Run(t, "qemu-img", "convert", "-f", "raw", "-O", "vmdk", "-o", "subformat=streamOptimized", raw,
		filepath.Join(dir, "one.vmdk"))
	strange := openedPackage(t, filepath.Join(dir, "vm.ovf"))
	_, err = PlanPackage(strange, Reading{}, Goal{})
	require.ErrorContains(t, err, "one.vmdk: refused: disk: the boot code in sector 0 is unknown")
	p, err := PlanPackage(strange, Reading{}, Goal{AllowUnbootable: true})
	require.NoError(t, err)
	defer p.Close()
	out := filepath.Join(t.TempDir(), "copy.ova")
	_, err = (&Job{Jobs: 1}).WritePackage(t.Context(), p, File{Path: out})
	require.ErrorIs(t, err, ova.ErrDigest)
	require.NoFileExists(t, out)

	s := member(t, filepath.Join(dir, "vm.ovf")+"!one.vmdk")
	moves, err := s.Plan(Goal{AllowUnbootable: true})
	require.NoError(t, err)
	_, err = (&Job{Jobs: 1}).Write(t.Context(), s, moves, File{Path: out, Format: "raw"})
	require.ErrorIs(t, err, ova.ErrDigest)
	require.NoFileExists(t, out)
}

func member(t *testing.T, path string) *Source {
	t.Helper()
	s, err := Open(path, Reading{})
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

// A package that changes before it is read ends the job.
func TestPackageThatChanges(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	smallPackage(t, dir)
	p, err := PlanPackage(openedPackage(t, filepath.Join(dir, "vm.ovf")), Reading{}, Goal{})
	require.NoError(t, err)
	defer p.Close()
	to := File{Path: filepath.Join(t.TempDir(), "copy.ova")}
	require.NoError(t, os.Chtimes(filepath.Join(dir, "vm.cert"), time.Unix(1, 0), time.Unix(1, 0)))
	_, err = (&Job{Jobs: 1}).WritePackage(t.Context(), p, to)
	require.ErrorIs(t, err, ondisk.ErrChanged)
	require.NoFileExists(t, to.Path)
}

// A part that is missing from the copy of a package is a difference, and a part that cannot be compared is an error.
func TestComparedPackages(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	smallPackage(t, dir)
	s, d := openedPackage(t, filepath.Join(dir, "vm.ova")), openedPackage(t, filepath.Join(dir, "aligned.ova"))
	compare := func(ctx context.Context, d *ova.Package, r Reading) (others []string, diffs []Difference, err error) {
		others, err = (&Job{Jobs: 1}).VerifyPackages(ctx, s, d, r, func(v DiskVerified) {
			diffs = append(diffs, v.Differences...)
		})
		return others, diffs, err
	}
	others, diffs, err := compare(t.Context(), d, Reading{})
	require.NoError(t, err)
	require.Empty(t, others)
	require.Empty(t, diffs)

	lacks := edited(t, "vm.ovf", func(s string) string { return strings.Replace(s, ` ovf:fileRef="f2"`, "", 1) })
	others, _, err = compare(t.Context(), lacks, Reading{})
	require.NoError(t, err)
	require.Contains(t, others, `the disk "two.vmdk" is missing`)
	small := edited(t, "vm.ovf", func(s string) string { return strings.ReplaceAll(s, `"2097152"`, `"1048576"`) })
	_, diffs, err = compare(t.Context(), small, Reading{})
	require.NoError(t, err)
	require.Contains(t, fmt.Sprint(diffs), "the OVF states a capacity of 1048576 bytes, and the disk has 2097152")

	_, _, err = compare(t.Context(), d, Reading{Format: "vhdx"})
	require.ErrorContains(t, err, "vm.ova!one.vmdk")
	bad := edited(t, "two.vmdk", func(s string) string { return s[:1000] })
	_, _, err = compare(t.Context(), bad, Reading{})
	require.ErrorContains(t, err, "vm.ovf!two.vmdk")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err = (&Job{Jobs: 1}).VerifyPackages(ctx, s, d, Reading{}, func(DiskVerified) { cancel() })
	require.ErrorIs(t, err, context.Canceled)
	_, _, err = compare(ctx, d, Reading{})
	require.ErrorIs(t, err, context.Canceled)
	cut := edited(t, "vm.ovf", func(s string) string { return s + "\n" })
	require.NoError(t, os.Truncate(cut.Path, 100))
	_, _, err = compare(t.Context(), cut, Reading{})
	require.ErrorIs(t, err, ondisk.ErrChanged)
}

// Wrong tables of a copy are found even if its bytes are right.
func TestTablesThatAreReadAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	raw := filepath.Join(dir, "disk.img")
	require.NoError(t, os.WriteFile(raw, make([]byte, units.MiB), 0o644))
	img := imagetest.Open(t, raw)
	o, err := store.Create(filepath.Join(dir, "copy.qcow2"), img.Disk.Size(), img, store.CreateOptions{Format: "qcow2"})
	require.NoError(t, err)
	defer func() { require.NoError(t, o.Discard()) }()
	require.NoError(t, o.Finish())
	j := Job{}
	right := func(*image.Image) error { return nil }
	require.NoError(t, j.reread(o, right))
	disktest.OnUnix(t, "what others do to a file that is written")
	partial := filepath.Join(dir, ".copy.qcow2.partial")
	b := disktest.ReadFile(t, partial)
	counts := binary.BigEndian.Uint64(b[binary.BigEndian.Uint64(b[48:]):])
	b[counts+1] = 0 // the first cluster is in use
	require.NoError(t, os.WriteFile(partial, b, 0o644))
	require.ErrorIs(t, j.reread(o, right), verify.ErrDifferent)
	require.NoError(t, os.Remove(partial))
	require.ErrorContains(t, j.reread(o, right), "read back the copy")
}

// The room for a copy does not count an unreadable disk, nor one whose map is lost.
func TestRoomForUnreadableDisks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, oldLinux(t, dir))
	o, err := store.Create(filepath.Join(dir, "copy.raw"), units.MiB, s.Image, store.CreateOptions{Format: "raw"})
	require.NoError(t, err)
	defer func() { require.NoError(t, o.Discard()) }()
	huge := disk.New(1<<60, units.SectorSize, func(off int64) (disk.Run, error) {
		return disk.Run{Len: 1<<60 - off, Src: bad{}, Off: off}, nil
	})
	_, err = (&Job{Jobs: 1}).room(t.Context(), s, huge, o)
	require.ErrorIs(t, err, disktest.ErrFault)
	lost := disk.New(units.MiB, sector, func(int64) (disk.Run, error) { return disk.Run{}, disktest.ErrFault })
	_, err = (&Job{Jobs: 1}).fill(t.Context(), planned{Source: s, plan: mustPlan(t, s), view: lost}, o)
	require.ErrorIs(t, err, disktest.ErrFault)
}

// A disk of a package that cannot be started ends the job.
func TestMembersThatAreNotBegun(t *testing.T) {
	t.Parallel()
	s := open(t, smallDisk(t))
	p := &Package{Disks: []*PackageDisk{{Source: s, Member: "x", Plan: mustPlan(t, s)}}}
	err := (&Job{}).fillMember(t.Context(), p, "x", func(store.CreateOptions) (*store.Output, error) {
		return nil, errMarker
	})
	require.ErrorIs(t, err, errMarker)
}

// failsOnce is a disk with one failing large read.
type failsOnce struct {
	disk.Disk
	left *int // large reads before it
}

func (d failsOnce) ReadAt(p []byte, off int64) (int, error) {
	if len(p) >= 256*int(units.KiB) {
		if *d.left--; *d.left == -1 {
			return 0, disktest.ErrFault
		}
	}
	return d.Disk.ReadAt(p, off)
}

// A failing read of the copy is an error, not a difference, even if it does not fail again.
func TestProofThatFailsOnce(t *testing.T) {
	t.Parallel()
	s := open(t, smallDisk(t))
	p := mustPlan(t, s)
	view, err := s.View(p)
	require.NoError(t, err)
	j := Job{Full: true, Jobs: 1}
	sum, err := j.digest(t.Context(), view)
	require.NoError(t, err)
	got := &image.Image{Image: &driver.Image{Disk: failsOnce{view, new(int)}}}
	require.ErrorIs(t, j.prove(t.Context(), planned{Source: s, plan: p, view: view}, got, &sum), disktest.ErrFault)
	require.NoError(t, j.prove(t.Context(), planned{Source: s, plan: p, view: view}, got, &sum))
}

// If the free space of a volume cannot be read, verify returns the error.
func TestFreeSpaceThatCannotBeRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, oldLinux(t, dir))
	dest := filepath.Join(dir, "copy.raw")
	_, err := (&Job{Jobs: 1}).Write(t.Context(), s, mustPlan(t, s), File{Path: dest, Format: "raw"})
	require.NoError(t, err)
	s.Image.Disk = &unreadOnce{Disk: s.Image.Disk, off: 63*sector + 1024} // the superblock
	_, _, err = (&Job{SkipFree: true, Jobs: 1}).Verify(t.Context(), s, open(t, dest), nil)
	require.ErrorIs(t, err, disktest.ErrFault)
	require.Nil(t, s.free)
}

// unreadOnce is a disk with a byte that cannot be read the first time.
type unreadOnce struct {
	disk.Disk
	off    int64
	failed bool
}

func (d *unreadOnce) ReadAt(p []byte, off int64) (int, error) {
	if !d.failed && off <= d.off && d.off < off+int64(len(p)) {
		d.failed = true
		return 0, disktest.ErrFault
	}
	return d.Disk.ReadAt(p, off)
}

type bad struct{}

func (bad) ReadAt([]byte, int64) (int, error) { return 0, disktest.ErrFault }

// A check of a whole image ends with its context, and finds faults in its map.
func TestCompleteLook(t *testing.T) {
	t.Parallel()
	s := open(t, oldLinux(t, t.TempDir()))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, s.checkMap(ctx), context.Canceled)
	s.Image.Disk = disktest.NewBadExtents(s.Image.Disk)
	require.NoError(t, s.checkMap(t.Context()))
	last := s.Damage[len(s.Damage)-1]
	require.Equal(t, "unreadable-data", last.Code)
	require.ErrorIs(t, last.Err, disktest.ErrFault)
}

// While a job runs, QEMU cannot start a machine from its source.
func TestSourcesAreHeld(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	smallPackage(t, dir)
	path := filepath.Join(dir, "one.vmdk")
	locked := 0
	begin := watcher(func(string) {
		out := disktest.RunInput(t, "", "sh", "-c", `qemu-io -f raw -c "write 0 512" "$1" 2>&1 || true`, "sh", path)
		require.Contains(t, out, `"write" lock`)
		locked++
	})
	p, err := PlanPackage(openedPackage(t, filepath.Join(dir, "vm.ovf")), Reading{}, Goal{})
	require.NoError(t, err)
	defer p.Close()
	_, err = (&Job{Jobs: 1, Progress: begin}).WritePackage(t.Context(), p, File{Path: filepath.Join(dir, "copy.ova")})
	require.NoError(t, err)
	require.Positive(t, locked)
	locked = 0
	s := member(t, path)
	moves := mustPlan(t, s)
	to := File{Path: filepath.Join(dir, "copy.raw"), Format: "raw"}
	_, err = (&Job{Jobs: 1, Progress: begin}).Write(t.Context(), s, moves, to)
	require.NoError(t, err)
	require.Positive(t, locked)
}

// A copy without moves reports that the disk was truncated; sfdisk made its table.
func TestCopyOfACutDiskIsReported(t *testing.T) {
	t.Parallel()
	path := disktest.Blank(t, "disk.raw", 8<<20)
	disktest.RunInput(t, "label: dos\nstart=2048,size=2048,type=83\nstart=8192,size=8192,type=83\n", "sfdisk",
		"--quiet", path)
	plans := func() *plan.Plan {
		s := open(t, path)
		defer s.Close()
		p, err := s.Plan(Goal{Copy: true})
		require.NoError(t, err)
		require.Empty(t, p.Refusals(false), "a copy is as good as its source")
		return p
	}
	require.Empty(t, plans().Notes)
	require.NoError(t, os.Truncate(path, 6<<20))
	notes := plans().Notes
	require.Len(t, notes, 2)
	require.Equal(t, "cut-short", notes[0].Code)
	require.Equal(t, align.Warning, notes[0].Severity)
	require.Contains(t, notes[0].Text, "has 6291456 of the 8388608 bytes")
	require.Equal(t, 2, notes[1].Partition)
}

// Code in sector 0 can have positions beyond the end of the disk.
func TestGrowthThatMakesATable(t *testing.T) {
	t.Parallel()
	const sectors = 2048 + 100
	disk := make([]byte, sectors*512)
	entry := func(slot int, flag byte, start, count uint32) {
		e := disk[446+16*slot:]
		e[0], e[4] = flag, 0x83
		binary.LittleEndian.PutUint32(e[8:], start)
		binary.LittleEndian.PutUint32(e[12:], count)
	}
	entry(0, 0, sectors+5, 50)
	entry(1, 0x77, 0x77777777, 50)
	copy(disk, "some code")
	disk[510], disk[511] = 0x55, 0xaa
	path := filepath.Join(t.TempDir(), "disk.raw")
	require.NoError(t, os.WriteFile(path, disk, 0o600))
	s := open(t, path)
	defer s.Close()
	p, err := s.Plan(Goal{Copy: true})
	require.NoError(t, err)
	_, err = s.View(p)
	require.NoError(t, err)
	p.Grow(s.Layout, 2*units.MiB)
	_, err = s.View(p)
	refused, ok := errors.AsType[*ondisk.Refusal](err)
	require.True(t, ok, err)
	require.Contains(t, refused.Reason, "from 1099776 to 2097152 bytes")
}

// A report or digests with the name of a file of DEST are refused before any data are written.
func TestTextsAreNoFilesOfDest(t *testing.T) {
	dest := filepath.Join(t.TempDir(), "x.vmdk")
	for _, name := range []string{"x.vmdk", "x-flat.vmdk"} {
		text := store.Use{Flag: "--out", Path: filepath.Join(filepath.Dir(dest), ".", name)}
		_, err := write(t.Context(), t, &Job{Jobs: 1, Dest: dest, Texts: []store.Use{{Flag: "--checksums"}, text}},
			File{Path: dest, Format: "vmdk", Subformat: "monolithicFlat"}, smallDisk(t))
		require.ErrorIs(t, err, ondisk.ErrUsage)
		require.ErrorContains(t, err, "would overwrite DEST")
		require.Empty(t, disktest.Names(t, filepath.Dir(dest)))
	}
}

// The refusal of a web address contains a command line that reads it, without secrets.
func TestRefuseWeb(t *testing.T) {
	t.Parallel()
	const uri = "https://h/a.img?sig=secret"
	for work, want := range map[string]string{
		"trueup align": `align "$uri" DEST`, "trueup verify": `verify "$uri" DEST`, "trueup plan": `plan "$uri"`,
		"trueup scan": `inspect "$uri"`, "trueup serve": `align "$uri" DEST`, "trueup replace": `align "$uri" DEST`,
	} {
		err := refuseWeb(uri, work)
		if runtime.GOOS == "windows" {
			want = "download it first"
		} else {
			want = "nbdkit -U - curl 'https://h/a.img?...' --run 'trueup " + want + "'"
		}
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "secret")
		require.Equal(t, "unsupported", Code(err))
	}
}

// Addresses with unclear ends are refused, and not shown.
func TestCheckAddresses(t *testing.T) {
	t.Parallel()
	require.NoError(t, CheckAddresses([]string{"a b.img", "https://h/a%20b?c", "nbd+unix:///x?socket=/a b", ""}))
	for _, uri := range []string{
		"https://h/vm folder/ok.img?sig=secret", "http://h/ok.img?name=my vm&sig=secret", "https://h/a?b\tsecret",
		"nbd://user:my secret@h/", "https://h/a\x7f?secret",
	} {
		err := CheckAddresses([]string{"https://h/a", uri})
		require.ErrorIs(t, err, ondisk.ErrUsage, uri)
		require.ErrorContains(t, err, "has a blank or a control character")
		require.NotContains(t, err.Error(), "secret")
	}
}

func TestShown(t *testing.T) {
	t.Parallel()
	for uri, want := range map[string]string{
		"http://user:secret@host/a": "http://...@host/a", "http://user:secret@host/a@b": "http://...@b",
		"http://user:a/b@host:9/x": "http://...@host:9/x", "http://user:a?b@host/x": "http://?...",
		"http://user:a#b@host/x?c": "http://?...", "https://host/a?sign=x@secret&y": "https://?...",
		`"https://u:a/b@h/c?d": x; "http://u:a#b@h/c": y`: `"https://...@h/c?...": x; "http://?...": y`,
		"nbd://x:y@z@host:1/":                             "nbd://...@host:1/",
		"nbd+unix:///x?socket=a@b":                        "nbd+unix:///x?socket=a@b",
		"nbd+unix://x:y@/z?socket=a":                      "nbd+unix://...@/z?socket=a",
		"[nbd+unix:///x?socket=a@b,http://x:y@h]":         "[nbd+unix:///x?socket=a@b,http://...@h]",
		"[nbd+unix:///x?socket=a,http://h/?b]":            "[nbd+unix:///x?socket=a,http://h/?...]",
		"https://host":                                    "https://host",
		"HTTPS://host/a?X-Amz-Signature=b&c='d":           "HTTPS://host/a?...", "http://host#x": "http://host?...",
		`--with=[https://h/a?b,https://h/c?d]`: "--with=[https://h/a?...]", "a file?": "a file?",
		`"https://h/a?b": not found; https://h/?c.`: `"https://h/a?...": not found; https://h/?....`,
	} {
		require.Equal(t, want, Shown(uri))
	}
}

// A run has a limited number of connections.
func TestRemotesAreFew(t *testing.T) {
	t.Parallel()
	absent := "nbd+unix:///?socket=" + filepath.Join(t.TempDir(), "absent")
	images := []string{"a.img"}
	for range maxRemotes {
		images = append(images, absent)
	}
	r, err := Connect(t.Context(), images, "trueup inspect")
	require.NoError(t, err)
	require.Len(t, r[absent], maxRemotes)
	require.Error(t, r[absent][0].err)
	_, err = Connect(t.Context(), append(images, absent), "trueup inspect")
	require.ErrorIs(t, err, ondisk.ErrUsage)
}

// The error for an image on a server has the remedy for the command.
func TestLocal(t *testing.T) {
	t.Parallel()
	require.NoError(t, Local("a.img", "trueup serve"))
	for work, want := range map[string]string{
		"trueup report": "on a server; save it as a file",
		"trueup scan":   "run trueup inspect on it",
		"trueup bench":  "write it to a file with trueup convert, and name that file",
	} {
		err := Local("nbd://host/a", work)
		require.ErrorContains(t, err, work+" needs a file, and this is ")
		require.Regexp(t, want+"$", err.Error())
	}
}
