package store_test

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

const (
	sector = 512
	kib    = 1 << 10
	mib    = 1 << 20
)

var flat = store.CreateOptions{Format: "vmdk", Subformat: "monolithicFlat"}

func forced(o store.CreateOptions) store.CreateOptions {
	o.Force = true
	return o
}

// source is a raw image in a new folder.
func source(t *testing.T, seed uint64) (*image.Image, []byte) {
	t.Helper()
	data := imagetest.Noise(seed, 300*kib)
	return imagetest.Open(t, imagetest.Write(t, t.TempDir(), "src.img", data)), data
}

func TestDestIsAbsentUntilPublish(t *testing.T) {
	src, data := source(t, 1)
	for _, o := range imagetest.Kinds {
		dir := t.TempDir()
		path := filepath.Join(dir, "out.vmdk")
		out := imagetest.Fill(t, src, path, o, 2)
		for _, name := range disktest.Names(t, dir) {
			require.Regexp(t, `^\.out(-flat|-[fs]001)?\.vmdk\.partial$`, name)
		}
		require.NoError(t, out.Publish())
		want := []string{"out.vmdk"}
		switch o.Subformat {
		case "monolithicFlat", "vmfs":
			want = []string{"out-flat.vmdk", "out.vmdk"}
		case "twoGbMaxExtentSparse":
			want = []string{"out-s001.vmdk", "out.vmdk"}
		case "twoGbMaxExtentFlat":
			want = []string{"out-f001.vmdk", "out.vmdk"}
		}
		require.Equal(t, want, disktest.Names(t, dir), "no partial file remains")
		imagetest.Shows(t, path, data)
		require.NoError(t, out.Discard(), "harmless after Publish")
		require.Equal(t, want, disktest.Names(t, dir))
	}
}

func TestDiscardRemovesEverything(t *testing.T) {
	src, _ := source(t, 1)
	for _, o := range imagetest.Kinds {
		dir := t.TempDir()
		out := imagetest.Fill(t, src, filepath.Join(dir, "out.vmdk"), o, 2)
		require.NotEmpty(t, disktest.Names(t, dir))
		for range 2 {
			require.NoError(t, out.Discard())
			require.Empty(t, disktest.Names(t, dir))
		}
	}
}

func TestAnExistingDestIsRefused(t *testing.T) {
	src, _ := source(t, 1)
	for _, taken := range []string{"out.vmdk", "out-flat.vmdk"} {
		dir := t.TempDir()
		imagetest.Write(t, dir, taken, []byte("precious"))
		_, err := store.Create(filepath.Join(dir, "out.vmdk"), src.Disk.Size(), src, flat)
		require.ErrorIs(t, err, ondisk.ErrOutput)
		require.ErrorContains(t, err, taken)
		require.Equal(t, []string{taken}, disktest.Names(t, dir), "and nothing is left behind")
	}
}

// A name that appears during the copy is not replaced.
func TestADestThatAppearsMeanwhileIsKept(t *testing.T) {
	src, _ := source(t, 1)
	for _, taken := range []string{"out.vmdk", "out-flat.vmdk"} {
		dir := t.TempDir()
		out := imagetest.Fill(t, src, filepath.Join(dir, "out.vmdk"), flat, 2)
		imagetest.Write(t, dir, taken, []byte("precious"))
		require.ErrorIs(t, out.Publish(), ondisk.ErrOutput)
		require.NoError(t, out.Discard())
		require.Equal(t, []string{taken}, disktest.Names(t, dir))
		b := disktest.ReadFile(t, filepath.Join(dir, taken))
		require.Equal(t, "precious", string(b))
	}
}

// With --force, the old image is complete until the new one takes its name, and its second file is removed at the end.
// The names of second files alternate, since both must exist for a moment.
func TestForceReplacesAFlatImage(t *testing.T) {
	first, firstData := source(t, 1)
	second, secondData := source(t, 2)
	dir := t.TempDir()
	path := filepath.Join(dir, "out.vmdk")
	imagetest.Copy(t, first, path, flat)
	for _, want := range [][]string{{"out-1-flat.vmdk", "out.vmdk"}, {"out-flat.vmdk", "out.vmdk"}} {
		out := imagetest.Fill(t, second, path, forced(flat), 2)
		imagetest.Shows(t, path, firstData)
		require.NoError(t, out.Publish())
		imagetest.Shows(t, path, secondData)
		require.Equal(t, want, disktest.Names(t, dir))
		first, second, firstData, secondData = second, first, secondData, firstData
	}
	// A sparse image needs no second file: the old one is removed too.
	imagetest.Copy(t, first, path, forced(imagetest.Kinds[1]))
	imagetest.Shows(t, path, firstData)
	require.Equal(t, []string{"out.vmdk"}, disktest.Names(t, dir))
}

func TestDiscardWithForceKeepsTheOldImage(t *testing.T) {
	first, data := source(t, 1)
	second, _ := source(t, 2)
	dir := t.TempDir()
	path := filepath.Join(dir, "out.vmdk")
	imagetest.Copy(t, first, path, flat)
	require.NoError(t, imagetest.Fill(t, second, path, forced(flat), 2).Discard())
	imagetest.Shows(t, path, data)
	require.Equal(t, []string{"out-flat.vmdk", "out.vmdk"}, disktest.Names(t, dir))
}

// A flat file of another image is never replaced, even with --force.
func TestForceDoesNotTakeAStrangersFile(t *testing.T) {
	src, _ := source(t, 1)
	dir := t.TempDir()
	imagetest.Write(t, dir, "out-flat.vmdk", []byte("belongs to something else"))
	imagetest.Write(t, dir, "out.vmdk", []byte("no image at all"))
	_, err := store.Create(filepath.Join(dir, "out.vmdk"), src.Disk.Size(), src, forced(flat))
	require.ErrorIs(t, err, ondisk.ErrOutput)
	require.Equal(t, []string{"out-flat.vmdk", "out.vmdk"}, disktest.Names(t, dir))
}

// A disk that an OVF refers to is spared, wherever the OVF begins, and whether or not it can be read: other programs
// may read it.
func TestForceSparesFilesOfAnOVF(t *testing.T) {
	const text = `<Envelope xmlns="http://schemas.dmtf.org/ovf/envelope/1"
 xmlns:ovf="http://schemas.dmtf.org/ovf/envelope/1">
<References><File ovf:href="Disk%201.vmdk" ovf:id="f" ovf:chunkSize="1048576"/></References></Envelope>`

	utf16s := func(order binary.AppendByteOrder, text string) string {
		b := order.AppendUint16(nil, 0xfeff)
		for _, r := range strings.ReplaceAll(text, "%20", " ") {
			b = order.AppendUint16(b, uint16(r))
		}
		return string(b)
	}
	comment := func(n int) string { return "<!--" + strings.Repeat("x", n) + "-->" }
	for _, tc := range []struct {
		name, file, text string
		spared           bool
	}{
		{"at the start", "vm.ovf", text, true},
		{"behind a comment", "vm.ovf", comment(2000) + text, true},
		{"behind a long comment", "VM.OVF", comment(1<<20) + text, true},
		{"of any name, behind a comment", "machine", comment(7000) + text, true},
		{"little-endian UTF-16", "vm.ovf", utf16s(binary.LittleEndian, text), true},
		{"big-endian UTF-16", "vm.Ovf", utf16s(binary.BigEndian, text), true},
		{"cut short", "vm.ovf", text[:len(text)-20], true},
		{"of any name, cut short", "machine", text[:len(text)-20], true},
		{"cut short, of another disk", "vm.ovf", strings.Replace(text, "Disk%201", "disk2", 1)[:200], false},
		{"of another disk", "vm.ovf", strings.Replace(text, "Disk%201", "disk2", 1), false},
		{"empty", "vm.ovf", "", false},
		{"a text that cannot be an OVF", "machine", "notes on Disk 1.vmdk", false},
	} {
		for _, base := range []string{"disk 1.vmdk", "disk 1.vmdk.000000003"} {
			t.Run(tc.name+", "+base, func(t *testing.T) {
				src, _ := source(t, 1)
				dir := t.TempDir()
				old := imagetest.Write(t, dir, base, imagetest.Noise(2, 64*kib))
				imagetest.Write(t, dir, tc.file, []byte(tc.text))
				out, err := store.Create(old, src.Disk.Size(), src, store.CreateOptions{Format: "raw", Force: true})
				if !tc.spared {
					require.NoError(t, err)
					require.NoError(t, out.Discard())
					return
				}
				require.ErrorIs(t, err, ondisk.ErrUsage)
				require.ErrorContains(t, err, "belongs to "+tc.file)
			})
		}
	}
}

// An image that cannot be opened, since its own parent is missing, still counts as the parent of a snapshot.
func TestForceSparesAParentThatCannotBeOpened(t *testing.T) {
	src, _ := source(t, 1)
	dir := t.TempDir()
	out := imagetest.Rebase(t, dir, "out.qcow2", "lost.qcow2", "qcow2")
	imagetest.Rebase(t, dir, "top.qcow2", "out.qcow2", "qcow2")
	_, err := store.Create(out, src.Disk.Size(), src, forced(flat))
	var refusal *ondisk.Refusal
	require.ErrorAs(t, err, &refusal)
	require.Contains(t, refusal.Reason, `"top.qcow2" in the same folder is a snapshot`)
	require.NoError(t, os.Remove(filepath.Join(dir, "top.qcow2")))
	imagetest.Copy(t, src, out, forced(flat))
}

func TestAPartialThatIsNoFile(t *testing.T) {
	disktest.OnUnix(t, "links")
	src, _ := source(t, 1)
	dir := t.TempDir()
	victim := imagetest.Write(t, t.TempDir(), "victim", []byte("precious"))
	require.NoError(t, os.Symlink(victim, filepath.Join(dir, ".out.vmdk.partial")))
	_, err := store.Create(filepath.Join(dir, "out.vmdk"), src.Disk.Size(), src, flat)
	require.ErrorIs(t, err, ondisk.ErrOutput)
	b := disktest.ReadFile(t, victim)
	require.Equal(t, "precious", string(b))
}

func TestTwoRunsAtOnce(t *testing.T) {
	src, data := source(t, 1)
	dir := t.TempDir()
	path := filepath.Join(dir, "out.vmdk")
	first := imagetest.Fill(t, src, path, flat, 2)
	_, err := store.Create(path, src.Disk.Size(), src, flat)
	require.ErrorIs(t, err, ondisk.ErrBusy)
	require.ErrorContains(t, err, filepath.Join(dir, ".out.vmdk.partial")+": in use", "a log shows which folder it is")
	require.NoError(t, first.Publish(), "the second run has harmed nothing")
	imagetest.Shows(t, path, data)
}

// DEST must not be the source, whatever path leads to it.
func TestDestIsTheSource(t *testing.T) {
	disktest.OnUnix(t, "links")
	dir := t.TempDir()
	data := imagetest.Noise(3, 64*sector)
	imagetest.Write(t, dir, "disk-flat.vmdk", data)
	path := imagetest.Write(t, dir, "disk.vmdk",
		[]byte(vmdkforge.Descriptor("monolithicFlat", `RW 64 FLAT "disk-flat.vmdk" 0`)))
	require.NoError(t, os.Link(path, filepath.Join(dir, "hard.vmdk")))
	require.NoError(t, os.Symlink("disk.vmdk", filepath.Join(dir, "soft.vmdk")))
	require.NoError(t, os.Link(filepath.Join(dir, "disk-flat.vmdk"), filepath.Join(dir, "other-flat.vmdk")))
	src := imagetest.Open(t, path)
	for _, dest := range []string{"disk.vmdk", "hard.vmdk", "soft.vmdk", "disk-flat.vmdk", "./disk.vmdk"} {
		_, err := store.Create(filepath.Join(dir, dest), src.Disk.Size(), src, forced(store.CreateOptions{}))
		require.ErrorIs(t, err, ondisk.ErrUsage, dest)
	}
	// The flat file of a copy would be a file of the source.
	_, err := store.Create(filepath.Join(dir, "other.vmdk"), src.Disk.Size(), src, forced(store.CreateOptions{}))
	require.Error(t, err)
	imagetest.Shows(t, path, data)
	require.NoError(t, src.Unchanged())
}

// The raw extent of an image is a source too, and DEST may be the descriptor beside it: replacing that would remove the
// extent with it.
func TestDestIsTheDescriptorOfTheSource(t *testing.T) {
	dir := t.TempDir()
	data := imagetest.Noise(3, 64*sector)
	extent := imagetest.Write(t, dir, "disk-flat.vmdk", data)
	imagetest.Write(t, dir, "disk.vmdk",
		[]byte(vmdkforge.Descriptor("monolithicFlat", `RW 64 FLAT "disk-flat.vmdk" 0`)))
	src := imagetest.Open(t, extent)
	for _, o := range imagetest.Kinds {
		_, err := store.Create(filepath.Join(dir, "disk.vmdk"), src.Disk.Size(), src, forced(o))
		require.ErrorIs(t, err, ondisk.ErrUsage)
	}
	imagetest.Shows(t, extent, data)
	require.Equal(t, []string{"disk-flat.vmdk", "disk.vmdk"}, disktest.Names(t, dir))
}

func TestRefusedDest(t *testing.T) {
	src, _ := source(t, 1)
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "folder"), 0o755))
	for _, dest := range []string{"folder", "folder/", "absent/out.vmdk", "src.img/out.vmdk"} {
		_, err := store.Create(filepath.Join(dir, dest), src.Disk.Size(), src, forced(flat))
		require.Error(t, err, dest)
	}
	_, err := store.Create(dir+"/x.vmdk", src.Disk.Size(), src, store.CreateOptions{
		Format:    "vmdk",
		Subformat: "seSparse",
	})
	require.ErrorIs(t, err, ondisk.ErrUsage)
	require.Equal(t, []string{"folder"}, disktest.Names(t, dir))
}

// Only an output with Swap may have the names of the files of SOURCE.
func TestOutputsThatSwapHaveTheNamesOfTheSource(t *testing.T) {
	t.Parallel()
	made, _ := source(t, 1)
	dir := t.TempDir()
	path := filepath.Join(dir, "disk.vmdk")
	imagetest.Copy(t, made, path, flat)
	before := disktest.Names(t, dir)
	src := imagetest.Open(t, path)
	o := flat
	_, err := store.Create(path, src.Disk.Size(), src, o)
	require.ErrorIs(t, err, ondisk.ErrUsage)
	o.Swap = true
	out, err := store.Create(path, src.Disk.Size(), src, o)
	require.NoError(t, err)
	require.Subset(t, disktest.Names(t, dir), []string{".disk.vmdk.partial", ".disk-flat.vmdk.partial"})
	require.NoError(t, out.Discard())

	files, err := image.OpenFiles(path, nil)
	require.NoError(t, err)
	defer files.Close()
	parts, _, err := store.CreateFiles(path, files, false, true)
	require.NoError(t, err)
	_, err = parts.AddFile("disk-flat.vmdk")
	require.NoError(t, err)
	require.NoError(t, parts.Discard())
	require.Equal(t, before, disktest.Names(t, dir))
}

// Written data read back, before and after the file has its name, and qemu-img reads the same.
func TestWrittenImagesReadBack(t *testing.T) {
	for _, size := range []int{3*mib + 5*sector, 128 * kib, sector} {
		data := imagetest.Noise(uint64(size), size)
		if size > 2*mib {
			clear(data[mib : 2*mib+777])
		}
		src := imagetest.Open(t, imagetest.Write(t, t.TempDir(), "src.img", data))
		for _, o := range imagetest.Kinds {
			t.Run(fmt.Sprintf("%s %s of %d bytes", o.Format, o.Subformat, size), func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "disk.vmdk")
				out := imagetest.Fill(t, src, path, o, 4)
				img := imagetest.ReadsBack(t, out, path, data)
				require.Equal(t, o.Format, img.Format)
				require.Equal(t, o.Subformat, img.Subformat)
				if img.Check != nil {
					imagetest.NoDamage(t, img)
				}
				disktest.Run(t, "qemu-img", "compare", "-f", "raw", "-F", o.Format, src.Path, path)
			})
		}
	}
}

// Zeros take no space: neither those of holes nor those that the source stores.
func TestZerosTakeNoSpace(t *testing.T) {
	dir := t.TempDir()
	data := make([]byte, 64*mib)
	copy(data[40*mib:], "the only data")
	src := imagetest.Open(t, imagetest.Write(t, dir, "src.img", data))
	for i, o := range imagetest.Kinds {
		path := filepath.Join(t.TempDir(), "copy.vmdk")
		imagetest.Copy(t, src, path, o)
		img := imagetest.Open(t, path)
		stored := int64(0)
		for _, f := range img.Files() {
			stored += f.Allocated
		}
		require.Less(t, stored, int64(256*kib), "%s %s", imagetest.Kinds[i].Format, o.Subformat)
	}
}

// The digests of an output are those of its files, the named one first. A discarded output has none.
func TestSumsOfAnOutput(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	img, err := image.Open(imagetest.Write(t, dir, "src.img", make([]byte, units.MiB)), image.Options{})
	require.NoError(t, err)
	defer img.Close()
	path := filepath.Join(dir, "out.vmdk")
	out, err := store.Create(path, img.Disk.Size(), img, flat)
	require.NoError(t, err)
	_, err = out.WriteAt([]byte("some data"), 5*units.SectorSize)
	require.NoError(t, err)
	require.NoError(t, out.Finish())
	var total, read int64
	sums, err := out.Sums(t.Context(), func(n int64) { total += n }, func(n int64) { read += n })
	require.NoError(t, err)
	require.Equal(t, total, read)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	quiet := func(int64) {}
	_, err = out.Sums(ended, quiet, quiet)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, []string{sums[0].File, sums[1].File}, out.Files())
	require.NoError(t, out.Publish())
	require.NoError(t, out.Discard())
	for _, s := range sums {
		b := disktest.ReadFile(t, filepath.Join(dir, s.File))
		require.Equal(t, sha256.Sum256(b), s.SHA256, s.File)
	}
}

// crash is a folder as left by a killed run.
type crash struct {
	t        *testing.T
	dir      string
	old, new *image.Image
}

func (c crash) link(from, to string) {
	require.NoError(c.t, os.Link(filepath.Join(c.dir, from), filepath.Join(c.dir, to)))
}

func (c crash) rename(from, to string) {
	require.NoError(c.t, os.Rename(filepath.Join(c.dir, from), filepath.Join(c.dir, to)))
}

func (c crash) copy(src *image.Image, name string, o store.CreateOptions) {
	imagetest.Copy(c.t, src, filepath.Join(c.dir, name), o)
}

// States of a folder after a kill -9 between two steps of Publish. The next run cleans up and succeeds.
func TestCrashesBetweenTheStepsOfPublish(t *testing.T) {
	old, oldData := source(t, 1)
	src, data := source(t, 2)
	for _, tc := range []struct {
		name   string
		state  func(c crash)
		before []byte // content of DEST then; nil: absent
		o      store.CreateOptions
		want   []string
	}{
		{"nothing linked, dest absent", func(c crash) {
			imagetest.Write(c.t, c.dir, ".out.vmdk.partial", []byte("half a descriptor"))
			imagetest.Write(c.t, c.dir, ".out-flat.vmdk.partial", make([]byte, mib))
		}, nil, flat, []string{"out-flat.vmdk", "out.vmdk"}},
		{"second file linked, dest absent", func(c crash) {
			imagetest.Write(c.t, c.dir, ".out.vmdk.partial",
				[]byte(vmdkforge.Descriptor("monolithicFlat", `RW 1 FLAT "out-flat.vmdk" 0`)))
			imagetest.Write(c.t, c.dir, ".out-flat.vmdk.partial", make([]byte, 512))
			c.link(".out-flat.vmdk.partial", "out-flat.vmdk")
		}, nil, flat, []string{"out-flat.vmdk", "out.vmdk"}},
		{"dest named, the second link still there", func(c crash) {
			c.copy(c.old, "out.vmdk", flat)
			c.link("out-flat.vmdk", ".out-flat.vmdk.partial")
		}, oldData, forced(flat), []string{"out-1-flat.vmdk", "out.vmdk"}},
		{"force: new second file linked, dest still the old", func(c crash) {
			c.copy(c.old, "out.vmdk", flat)
			imagetest.Write(c.t, c.dir, ".out.vmdk.partial", nil)
			imagetest.Write(c.t, c.dir, ".out-1-flat.vmdk.partial", make([]byte, 512))
			c.link(".out-1-flat.vmdk.partial", "out-1-flat.vmdk")
		}, oldData, forced(flat), []string{"out-1-flat.vmdk", "out.vmdk"}},
		{"force: dest exchanged, the old second file still there", func(c crash) {
			// Two runs make the state: the first one's flat file is kept, with the mark of a run.
			c.copy(c.new, "out.vmdk", flat)
			c.link("out-flat.vmdk", "kept")
			c.copy(c.old, "out.vmdk", forced(flat))
			c.rename("kept", "out-flat.vmdk")
			c.link("out-flat.vmdk", ".out-flat.vmdk.replaced")
			c.link("out-1-flat.vmdk", ".out-1-flat.vmdk.partial")
		}, oldData, forced(flat), []string{"out-flat.vmdk", "out.vmdk"}},
		{"force: a sparse dest exchanged, the old second file still there", func(c crash) {
			c.copy(c.new, "out.vmdk", flat)
			c.copy(c.old, "new.vmdk", imagetest.Kinds[1])
			c.rename("new.vmdk", "out.vmdk")
			c.link("out-flat.vmdk", ".out-flat.vmdk.replaced")
		}, oldData, forced(imagetest.Kinds[1]), []string{"out.vmdk"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "out.vmdk")
			tc.state(crash{t, dir, old, src})
			if tc.before == nil {
				require.NoFileExists(t, path)
			} else {
				imagetest.Shows(t, path, tc.before)
			}
			out := imagetest.Fill(t, src, path, tc.o, 2)
			if tc.before != nil {
				imagetest.Shows(t, path, tc.before)
			}
			require.NoError(t, out.Publish())
			imagetest.Shows(t, path, data)
			require.Equal(t, tc.want, disktest.Names(t, dir))
		})
	}
}
