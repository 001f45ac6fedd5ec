package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/qcow2forge"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
)

// TestScanOfTheSameImagesAmongOthers takes over images that do not change, with what lies beside them, which does.
func TestScanOfTheSameImagesAmongOthers(t *testing.T) {
	t.Parallel()
	s, last := newShelf(t), t.TempDir()+"/last.ndjson"
	off := offDisk()
	child := qcow2forge.New(make([]byte, len(off)), 16)
	child.SetBacking("base.qcow2", "qcow2")
	s.put("base.qcow2", qcow2forge.New(off, 16).Bytes)
	s.put("flat.vmdk", flatText("monolithicFlat", "flat-flat.vmdk"))
	s.put("flat-flat.vmdk", off)
	s.put("vm.ovf", ovfFor([]string{"d.vmdk"}))
	s.put("d.vmdk", vmdkforge.NewSparse(off).Bytes)
	s.put("notes.txt", []byte("notes"))
	want := map[string]string{"base.qcow2": isOff, "flat.vmdk": isOff, "vm.ovf": isOff}
	same := func() {
		t.Helper()
		for range 2 {
			s.requireRows(want, append(since(last), ".")...)
			s.requireRows(want, ".")
		}
	}
	same()

	s.put("child", child.Bytes)
	want["base.qcow2"], want["child"] = isOff+", refused: snapshot-parent", isOff+", refused: snapshot-child"
	same()
	s.put("base.qcow2.lck", nil)
	want["base.qcow2"], want["child"] = isOff+", refused: busy snapshot-parent", isOff+", refused: busy snapshot-child"
	same()
	require.NoError(t, os.Remove(s.path("base.qcow2.lck")))
	require.NoError(t, os.Remove(s.path("child")))
	want["base.qcow2"] = isOff
	delete(want, "child")
	same()

	s.put("flat-flat.vmdk", evenDisk())
	want["flat.vmdk"] = isEven
	same()
	require.NoError(t, os.Remove(s.path("flat.vmdk")))
	delete(want, "flat.vmdk")
	want["flat-flat.vmdk"] = "orphan"
	same()
	require.NoError(t, os.Remove(s.path("vm.ovf")))
	delete(want, "vm.ovf")
	want["d.vmdk"] = isOff
	same()
}

// A Parallels disk is a folder: its descriptor has the row of all files in it, which a row of their own would misjudge.
func TestScanParallels(t *testing.T) {
	t.Parallel()
	const data = "disk.hdd.0.{5fbaabe3-6958-40ff-92a7-860e329aab41}.hds"
	s := newShelf(t)
	s.put("disk.img", offDisk())
	for folder, kind := range map[string][2]string{
		"a.pvm/disk.hdd/": {"parallels", "Compressed"}, "b.pvm/disk.hdd/": {"raw", "Plain"},
	} {
		text := []byte("<?xml version='1.0' encoding='UTF-8'?>\n<Parallels_disk_image Version=\"1.0\"><StorageData>" +
			"<Storage><Image><Type>" + kind[1] + "</Type><File>" + data + "</File></Image></Storage>" +
			"</StorageData></Parallels_disk_image>\n")
		s.put(folder+"DiskDescriptor.xml", text)
		s.put(folder+"DiskDescriptor.xml.Backup", text)
		s.put(folder+"disk.hdd", nil)
		disktest.Run(t, "qemu-img", "convert", "-O", kind[0], s.path("disk.img"), s.path(folder+data))
	}
	one := map[string]string{"a.pvm/disk.hdd/DiskDescriptor.xml": "failed unsupported"}
	s.requireRows(one, "a.pvm")
	last := t.TempDir() + "/last.ndjson"
	s.requireRows(one, append(since(last), "a.pvm")...)
	s.requireRows(one, append(since(last), "a.pvm")...)
	s.requireRows(map[string]string{
		"a.pvm/disk.hdd/DiskDescriptor.xml": "failed unsupported", "disk.img": isOff,
		"b.pvm/disk.hdd/DiskDescriptor.xml": "failed unsupported",
	}, ".")
	s.requireRows(map[string]string{"b.pvm/disk.hdd/" + data: isOff}, "b.pvm/disk.hdd/"+data)
	stdout, _, _ := scanRun(t, s.dir, "a.pvm")
	require.Contains(t, stdout, "convert its .hds file with qemu-img convert -f parallels")
	r := trueup(t, "inspect", s.path("a.pvm/disk.hdd"))
	require.Equal(t, 1, r.code)
	require.Contains(t, r.stderr, "disk.hdd is the folder of a Parallels HDD; what to do with it: trueup inspect ")
}

// A disk of several kinds of extents, and a map of a device that is a file, have one row each.
func TestScanCustomDisks(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	off := offDisk()
	s.put("half-flat.vmdk", off[:len(off)/2])
	s.put("rest.img", off[len(off)/2:])
	disktest.Run(t, "qemu-img", "convert", "-O", "vmdk", "-o", "subformat=twoGbMaxExtentSparse", s.path("rest.img"),
		s.path("rest.vmdk"))
	for _, name := range []string{"rest.img", "rest.vmdk"} {
		require.NoError(t, os.Remove(s.path(name)))
	}
	s.put("custom.vmdk", []byte(vmdkforge.Descriptor("custom",
		fmt.Sprintf(`RW %d FLAT "half-flat.vmdk" 0`, len(off)/2/sectorSize),
		fmt.Sprintf(`RW %d SPARSE "rest-s001.vmdk"`, len(off)/2/sectorSize))))
	s.put("lun-rdm.vmdk", off)
	lun := fmt.Sprintf(`RW %d VMFSRDM "lun-rdm.vmdk"`, len(off)/sectorSize)
	s.put("lun.vmdk", []byte(vmdkforge.Descriptor("vmfsRawDeviceMap", lun)))
	s.put("sda.vmdk", []byte(vmdkforge.Descriptor("fullDevice", `RW 8192 FLAT "/dev/sda" 0`)))
	s.requireRows(map[string]string{"custom.vmdk": isOff, "lun.vmdk": isOff, "sda.vmdk": "failed unsupported"}, ".")
	for _, name := range []string{"custom.vmdk", "lun.vmdk"} {
		copied := filepath.Join(t.TempDir(), "copy.vmdk")
		require.Zero(t, trueup(t, "align", s.path(name), copied).code)
		require.Zero(t, trueup(t, "verify", s.path(name), copied).code)
		disktest.Run(t, "qemu-img", "check", copied)
	}
}
