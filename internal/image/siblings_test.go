package image_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/ondisk"
)

// flatDisk is a folder with disk.vmdk and disk-flat.vmdk.
func flatDisk(t *testing.T) (dir string, img *image.Image) {
	t.Helper()
	dir = t.TempDir()
	imagetest.Write(t, dir, "disk-flat.vmdk", imagetest.Noise(1, 64*sector))
	return dir, imagetest.Open(t, imagetest.Write(t, dir, "disk.vmdk",
		[]byte(vmdkforge.Descriptor("monolithicFlat", `RW 64 FLAT "disk-flat.vmdk" 0`))))
}

// A source file that changes during the read is named. internal/image/gate tests the kinds of changes.
func TestUnchanged(t *testing.T) {
	for _, file := range []string{"disk.vmdk", "disk-flat.vmdk"} {
		dir, img := flatDisk(t)
		require.NoError(t, img.Unchanged())
		require.NoError(t, os.Truncate(filepath.Join(dir, file), 100))
		err := img.Unchanged()
		require.ErrorIs(t, err, ondisk.ErrChanged)
		require.ErrorContains(t, err, file)
	}
}

// What the programs of VMware leave beside a disk that is in use.
func TestBusyNeighbours(t *testing.T) {
	for _, tc := range []struct {
		name, entry string
		folder      bool
		want        string // part of the text; empty: not busy
	}{
		{"nothing", "", false, ""},
		{"workstation's lock of the disk", "disk.vmdk.lck", true, "program that has the disk open"},
		{"of its second file", "disk-flat.vmdk.lck", true, "program that has the disk open"},
		{"of another disk", "other.vmdk.lck", true, ""},
		{"workstation's lock of a machine", "xp.vmx.lck", true, "running virtual machine"},
		{"esxi's lock on nfs", ".lck-3409000000000000", false, "ESXi"},
		{"memory of the machine", "disk-4f7a.vmem", false, "memory of a running or suspended"},
		{"memory of another machine", "other.vmem", false, ""},
		{"a suspended machine", "xp.vmss", false, "suspended"},
		{"VirtualBox's saved state", "2024-05-06T07-08-09-123456789Z.sav", false, "suspended"},
		{"of its old versions", "{0b9a2c5d-1f3e-4a5b-8c7d-9e0f1a2b3c4d}.sav", false, "suspended"},
		{"of a machine below", "Snapshots/2024-05-06T07-08-09-123456789Z.sav", false, "suspended"},
		{"a game", "level 1.sav", false, ""},
		{"a snapshot of VirtualBox", "Snapshots/{0b9a2c5d-1f3e-4a5b-8c7d-9e0f1a2b3c4d}.vdi", false, ""},
		{
			"Hyper-V's saved state", "Virtual Machines/0B9A2C5D-1F3E-4A5B-8C7D-9E0F1A2B3C4D/" +
				"0B9A2C5D-1F3E-4A5B-8C7D-9E0F1A2B3C4D.vsv", false, "suspended",
		},
		{
			"a machine of Hyper-V that is off", "Virtual Machines/0B9A2C5D-1F3E-4A5B-8C7D-9E0F1A2B3C4D.vmrs", false, "",
		},
		{"a file with the name of that folder", "Snapshots", false, ""},
		{"what belongs to every machine", "xp.vmx", false, ""},
		{"a file that only sounds like a lock", "readme-lck-1.txt", false, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir, img := flatDisk(t)
			switch {
			case tc.folder:
				require.NoError(t, os.Mkdir(filepath.Join(dir, tc.entry), 0o755))
			case tc.entry != "":
				require.NoError(t, os.MkdirAll(filepath.Join(dir, filepath.Dir(tc.entry)), 0o755))
				imagetest.Write(t, dir, tc.entry, nil)
			}
			issues, err := img.Busy()
			require.NoError(t, err)
			if tc.want == "" {
				require.Empty(t, issues)
				return
			}
			require.Len(t, issues, 1)
			require.Contains(t, issues[0].Text, tc.want)
			require.Contains(t, issues[0].Text, tc.entry)
			require.Equal(t, ondisk.Refuse, issues[0].Effect)
			require.ErrorIs(t, issues[0].Err, ondisk.ErrBusy)
			require.NotEmpty(t, issues[0].Remedy, "how to tell a stale one")
		})
	}
}

// While we hold the source, QEMU cannot open it for writing; it may read.
func TestHoldKeepsQemuFromWriting(t *testing.T) {
	path := imagetest.Write(t, t.TempDir(), "disk.img", imagetest.Noise(1, 64*kib))
	img := imagetest.Open(t, path)
	release, err := img.Hold()
	require.NoError(t, err)
	disktest.Run(t, "qemu-io", "-r", "-f", "raw", "-c", "read 0 512", path)
	require.Contains(t,
		disktest.RunInput(t, "", "sh", "-c", `qemu-io -f raw -c "write 0 512" "$1" 2>&1 || true`, "sh", path),
		`"write" lock`)
	require.NoError(t, img.Unchanged())
	release()
	disktest.Run(t, "qemu-io", "-f", "raw", "-c", "write 0 512", path)
	require.ErrorIs(t, img.Unchanged(), ondisk.ErrChanged)
}

const child = `# Disk DescriptorFile
version=1
CID=0e2b1b2d
parentCID=4a5b6c7d
createType="monolithicSparse"
parentFileNameHint="PARENT"

# Extent description
RW 64 SPARSE "disk-000001-delta.vmdk"
`

// A disk with a snapshot is not the machine's current state, and a new layout under the snapshot would corrupt it.
func TestSnapshotsNameTheirParent(t *testing.T) {
	embedded := func(text string) []byte { return vmdkforge.NewHiddenDescriptor(text) }
	plain := func(text string) []byte { return []byte(text) }
	for _, tc := range []struct {
		name, file, parent string
		make               func(text string) []byte
		found              bool
	}{
		{"a descriptor", "disk-000001.vmdk", "disk.vmdk", plain, true},
		{"a text inside of a sparse file", "disk-000001.vmdk", "disk.vmdk", embedded, true},
		{"by an absolute path", "disk-000001.vmdk", "/vmfs/volumes/4f7a/xp/disk.vmdk", plain, true},
		{"by a path of windows", "snapshot.VMDK", `C:\vm\disk.vmdk`, plain, true},
		{"of the second file", "disk-000001.vmdk", "disk-flat.vmdk", plain, true},
		{"in another case", "disk-000001.vmdk", `C:\vm\Disk.vmdk`, plain, true},
		{
			"without quotes", "disk-000001.vmdk", "disk.vmdk",
			func(text string) []byte { return []byte(strings.ReplaceAll(text, `"disk.vmdk"`, "disk.vmdk")) }, true,
		},
		{"of another disk", "other-000001.vmdk", "other.vmdk", plain, false},
		{"of a disk that sounds alike", "disk-000001.vmdk", "my-disk.vmdk", plain, false},
		{"in a descriptor of any name", "disk-000001.txt", "disk.vmdk", plain, true},
		{
			"in a file that is no vmdk", "disk-000001.txt", "disk.vmdk",
			func(text string) []byte { return []byte("notes\n" + text) }, false,
		},
		{
			"a broken neighbour", "broken.vmdk", "disk.vmdk", func(text string) []byte { return []byte("KDMV" + text) },
			false,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.name == "in another case" {
				disktest.OnUnix(t, "names in two cases")
			}
			dir, img := flatDisk(t)
			imagetest.Write(t, dir, tc.file, tc.make(strings.Replace(child, "PARENT", tc.parent, 1)))
			issues, err := img.Children()
			require.NoError(t, err)
			if !tc.found {
				require.Empty(t, issues)
				return
			}
			require.Len(t, issues, 1)
			require.Equal(t, "snapshot-parent", issues[0].Code)
			require.Equal(t, ondisk.Refuse, issues[0].Effect)
			require.Contains(t, issues[0].Text, tc.file)
		})
	}
}

// qemu-img's own snapshot, whose text stands in the sparse file.
func TestSnapshotByQemuImg(t *testing.T) {
	dir := t.TempDir()
	base, top := filepath.Join(dir, "base.vmdk"), filepath.Join(dir, "top.vmdk")
	disktest.Run(t, "qemu-img", "create", "-f", "vmdk", base, "1M")
	disktest.Run(t, "qemu-img", "create", "-f", "vmdk", "-b", base, "-F", "vmdk", top)
	issues, err := imagetest.Open(t, base).Children()
	require.NoError(t, err)
	require.Len(t, issues, 1)
	child := imagetest.Open(t, top)
	require.True(t, child.Child)
	require.Equal(t, "base.vmdk", child.Chain[0].Name)
}

// A disk has its snapshots and views under each of its names.
func TestChildrenOfALink(t *testing.T) {
	t.Parallel()
	for code, text := range map[string]string{
		"snapshot-parent": strings.Replace(child, "PARENT", "disk-flat.vmdk", 1),
		"view-source": vmdkforge.Descriptor("twoGbMaxExtentFlat", `RW 1 FLAT "head" 0`,
			`RW 63 FLAT "disk-flat.vmdk" 1`),
	} {
		dir, _ := flatDisk(t)
		imagetest.Write(t, dir, "other.vmdk", []byte(text))
		link := filepath.Join(dir, "link.img")
		require.NoError(t, os.Link(filepath.Join(dir, "disk-flat.vmdk"), link))
		issues, err := imagetest.Open(t, link).Children()
		require.NoError(t, err)
		require.Len(t, issues, 1)
		require.Equal(t, code, issues[0].Code)
		issues, err = imagetest.Open(t, imagetest.Write(t, dir, "same-size.img",
			imagetest.Noise(1, 64*sector))).Children()
		require.NoError(t, err)
		require.Empty(t, issues)
	}
}

// Headers of files that are not images. Sources: libvmdk, "VMware Virtual Disk (VMDK) format specification", "Change
// tracking file"; RFC 1740, appendix A.
const (
	trackingHead    = "\xa2\x72\x19\xf6\x01\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00"
	appleDoubleHead = "\x00\x05\x16\x07\x00\x02\x00\x00Mac OS X        "
)

// Companion files with the suffix of an image are recognized, whatever their size.
func TestCompanions(t *testing.T) {
	noise := string(imagetest.Noise(21, 3000))
	for _, tc := range []struct{ name, content, kind, says string }{
		{
			"vm-ctk.vmdk", trackingHead + noise, "VMware changed block tracking",
			`it belongs to "vm.vmdk" and holds a list of changed blocks, not the data of a disk; ` +
				`name "vm.vmdk" instead`,
		},
		{
			"VM-000001-CTK.VMDK", noise[:1024], "VMware changed block tracking",
			`it belongs to "VM-000001.VMDK" and holds`,
		},
		{"other.vmdk", trackingHead + noise, "VMware changed block tracking", "it belongs to a disk and holds a list"},
		{"vm-digest.vmdk", noise, "VMware CBRC digest", `it belongs to "vm.vmdk" and holds hashes`},
		{"._vm.vhdx", appleDoubleHead + noise, "AppleDouble", `it belongs to "vm.vhdx" and holds macOS attributes`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := imagetest.Write(t, t.TempDir(), tc.name, []byte(tc.content))
			id, err := image.Identify(path, nil)
			require.NoError(t, err)
			require.Equal(t, image.Identity{Kind: image.Companion, Format: tc.kind}, id)
			_, err = image.Open(path, image.Options{})
			require.ErrorIs(t, err, ondisk.ErrUnsupported)
			require.ErrorContains(t, err, tc.kind+": recognised, not supported; "+tc.says)
		})
	}
}

// The content decides: the name of a companion does not hide a disk.
func TestDisksNamedLikeCompanions(t *testing.T) {
	dir := t.TempDir()
	vmdk := filepath.Join(dir, "vm-ctk.vmdk")
	disktest.Run(t, "qemu-img", "create", "-q", "-f", "vmdk", vmdk, "8M")
	table := tableforge.NewMBR(4096, tableforge.Slot{Type: 7, Start: 63, Sectors: 1000})
	copy(table, trackingHead)
	for name, want := range map[string]string{
		"vm-ctk.vmdk": "vmdk", "x-ctk.vmdk": "raw", "-ctk.vmdk": "raw", "._x.img": "raw",
	} {
		path := filepath.Join(dir, name)
		switch name {
		case "vm-ctk.vmdk":
		case "x-ctk.vmdk":
			imagetest.Write(t, dir, name, table)
		default:
			imagetest.Write(t, dir, name, imagetest.Noise(22, 4096))
		}
		img := imagetest.Open(t, path)
		require.Equal(t, want, img.Format, name)
		require.NotContains(t, imagetest.Codes(img.Issues, ondisk.Note), image.CodeCompanion, name)
	}
}

// A digest of CBRC is a VMDK like any other, and noted as belonging to the disk beside it.
func TestDigestsBesideTheirDisk(t *testing.T) {
	dir := t.TempDir()
	digest := filepath.Join(dir, "vm-digest.vmdk")
	disktest.Run(t, "qemu-img", "create", "-q", "-f", "vmdk", "-o", "subformat=monolithicFlat", digest, "1M")
	require.NotContains(t, imagetest.Codes(imagetest.Open(t, digest).Issues, ondisk.Note), image.CodeCompanion)
	imagetest.Write(t, dir, "vm.vmdk", nil)
	require.Contains(t, imagetest.Codes(imagetest.Open(t, digest).Issues, ondisk.Note), image.CodeCompanion)
}
