package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/qcow2forge"
	"github.com/trueup/trueup/internal/disktest/forge/tarforge"
	"github.com/trueup/trueup/internal/disktest/forge/vhdforge"
	"github.com/trueup/trueup/internal/disktest/forge/vhdxforge"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
)

// Rows in words.
const (
	isOff  = "judged misaligned"
	isEven = "judged aligned"
)

// scanGroup is a folder and what the rows of a scan say about it.
type scanGroup struct {
	name  string
	files map[string][]byte
	want  map[string]string
}

// TestScanGroups is about files that are one image together, and such that only look so.
func TestScanGroups(t *testing.T) {
	t.Parallel()
	for _, c := range slices.Concat(flatGroups(), extentGroups(), packageGroups(), snapshotGroups(),
		differencingGroups(), vdiGroups(t), lockGroups()) {
		t.Run(c.name, func(t *testing.T) {
			s := newShelf(t)
			for name, content := range c.files {
				s.put(name, content)
			}
			s.requireRows(c.want, ".")
			sameAsInspect(t, s.dir, ".")
		})
	}
}

// groupSnapshot is a VMDK that holds what has changed since the file that the hint names.
func groupSnapshot(hint string) []byte {
	v := vmdkforge.NewSparse(make([]byte, scanDiskSectors*sectorSize))
	text := vmdkforge.Descriptor("monolithicSparse", fmt.Sprintf(`RW %d SPARSE "x.vmdk"`, scanDiskSectors))
	v.SetDescriptor(strings.Replace(text, "parentCID=ffffffff", "parentCID=4a5b6c7d\nparentFileNameHint=\""+hint+"\"",
		1))
	return v.Bytes
}

// groupBacked is a qcow2 with a backing file.
func groupBacked(name, format string) []byte {
	q := qcow2forge.New(make([]byte, scanDiskSectors*sectorSize), 16)
	q.SetBacking(name, format)
	return q.Bytes
}

// groupOVA is a package of disks that are off.
func groupOVA(names ...string) []byte {
	members := []tarforge.Member{{Name: "vm.ovf", Data: ovfFor(names)}}
	for _, n := range names {
		members = append(members, tarforge.Member{Name: n, Data: vmdkforge.NewSparse(offDisk()).Bytes})
	}
	return append(tarforge.New(members...), tarforge.End()...)
}

// flatGroups are descriptors with extents that are disks as they are.
func flatGroups() []scanGroup {
	off := offDisk()
	half := len(off) / 2
	even := evenDisk()
	return []scanGroup{
		{
			"a descriptor and its flat extent",
			map[string][]byte{"a.vmdk": flatText("monolithicFlat", "a-flat.vmdk"), "a-flat.vmdk": off},
			map[string]string{"a.vmdk": isOff},
		},
		{
			"a stray descriptor of the first sectors of a disk",
			map[string][]byte{"evil.vmdk": []byte(
				"# Disk DescriptorFile\nversion=1\nCID=1\nparentCID=ffffffff\ncreateType=\"monolithicFlat\"\n" +
					"RW 64 FLAT \"victim.img\" 0\n"), "victim.img": off},
			map[string]string{"evil.vmdk": "failed format", "victim.img": isOff},
		},
		{
			"a stray descriptor of zeros in a disk",
			map[string][]byte{"evil.vmdk": []byte(
				"# Disk DescriptorFile\nversion=1\nCID=1\nparentCID=ffffffff\ncreateType=\"monolithicFlat\"\n" +
					"RW 64 FLAT \"victim.img\" 300\n"), "victim.img": zeroBehind(off)},
			map[string]string{"evil.vmdk": "judged nothing_to_judge", "victim.img": isOff + ", refused: view-source"},
		},
		{
			"views of a flat disk and of a raw one, with their heads",
			map[string][]byte{
				"a.vmdk": flatText("monolithicFlat", "a-flat.vmdk"), "a-flat.vmdk": off, "b.img": off,
				"av.vmdk": viewText("av-head.vmdk", "a-flat.vmdk"), "av-head.vmdk": even[:136*sectorSize],
				"bv.vmdk": viewText("bv-head.vmdk", "b.img"), "bv-head.vmdk": even[:136*sectorSize],
			},
			map[string]string{
				"a.vmdk": isOff + ", refused: view-source", "av.vmdk": isEven,
				"b.img": isOff + ", refused: view-source", "bv.vmdk": isEven,
			},
		},
		{
			"a disk in two flat pieces",
			map[string][]byte{
				"a.vmdk":      flatText("twoGbMaxExtentFlat", "a-f001.vmdk", "a-f002.vmdk"),
				"a-f001.vmdk": off[:half], "a-f002.vmdk": off[half:],
			},
			map[string]string{"a.vmdk": isOff},
		},
		{
			"two descriptors of one extent",
			map[string][]byte{"a.vmdk": flatText("monolithicFlat", "a-flat.vmdk"), "b.vmdk": flatText("monolithicFlat",
				"a-flat.vmdk"), "a-flat.vmdk": off},
			map[string]string{"a.vmdk": isOff, "b.vmdk": isOff},
		},
		{
			"a descriptor without its extent",
			map[string][]byte{"a.vmdk": flatText("monolithicFlat", "a-flat.vmdk")},
			map[string]string{"a.vmdk": "failed io"},
		},
		{
			"a piece is missing: the others are no orphans",
			map[string][]byte{
				"a.vmdk":      flatText("twoGbMaxExtentFlat", "a-f001.vmdk", "a-f002.vmdk"),
				"a-f001.vmdk": off[:half],
			},
			map[string]string{"a.vmdk": "failed io"},
		},
	}
}

// extentGroups are extents alone, and descriptors that name what is not theirs.
func extentGroups() []scanGroup {
	off := offDisk()
	even := evenDisk()
	sparse := vmdkforge.NewSparse(offDisk()).Bytes
	return []scanGroup{
		{
			"extents of nothing",
			map[string][]byte{
				"a-flat.vmdk": off, "b-f001.vmdk": even, "c-s002.vmdk": vmdkforge.NewCOWD(off, 1, nil).Bytes,
				"d-delta.vmdk": vmdkforge.NewSESparse(off, 0, nil).Bytes,
			},
			map[string]string{
				"a-flat.vmdk": "orphan", "b-f001.vmdk": "orphan", "c-s002.vmdk": "orphan", "d-delta.vmdk": "orphan",
			},
		},
		{
			"an image with a format of its own is not hidden by a descriptor that names it",
			map[string][]byte{
				"evil.vmdk": flatText("monolithicFlat", "good.qcow2"), "good.qcow2": qcow2forge.New(off, 16).Bytes,
				"wicked.vmdk": flatText("monolithicFlat", "good.vmdk"), "good.vmdk": sparse,
			},
			map[string]string{
				"evil.vmdk": "failed format", "wicked.vmdk": "failed format", "good.qcow2": isOff, "good.vmdk": isOff,
			},
		},
		{
			"a raw disk is not hidden by a descriptor that cannot be judged",
			map[string][]byte{
				"evil.vmdk":  flatText("twoGbMaxExtentFlat", "victim.img", "nothing.img"),
				"victim.img": off,
			},
			map[string]string{"evil.vmdk": "failed io", "victim.img": isOff},
		},
		{
			"a raw disk with a descriptor is one image",
			map[string][]byte{"a.vmdk": flatText("monolithicFlat", "a.img"), "a.img": off},
			map[string]string{"a.vmdk": isOff},
		},
		{
			"a descriptor that names itself",
			map[string][]byte{"a.vmdk": flatText("monolithicFlat", "a.vmdk"), "b.vmdk": flatText("monolithicFlat",
				"vm.ova"), "vm.ova": groupOVA("d.vmdk")},
			map[string]string{"a.vmdk": "failed format", "b.vmdk": "failed format", "vm.ova": isOff},
		},
	}
}

// packageGroups are OVFs and OVAs.
func packageGroups() []scanGroup {
	even := evenDisk()
	sparse := vmdkforge.NewSparse(offDisk()).Bytes
	return []scanGroup{
		{
			"an OVF with its disks and a manifest",
			map[string][]byte{
				"vm.ovf":  ovfFor([]string{"d1.vmdk", "d2.vmdk"}),
				"vm.mf":   []byte("SHA1(d1.vmdk)= " + strings.Repeat("0", 40) + "\n"),
				"d1.vmdk": sparse, "d2.vmdk": flatText("monolithicFlat", "d2-flat.vmdk"), "d2-flat.vmdk": even,
			},
			map[string]string{"vm.ovf": isOff},
		},
		{
			"two OVFs of one disk",
			map[string][]byte{
				"a.ovf": ovfFor([]string{"d.vmdk"}), "b.ovf": ovfFor([]string{"d.vmdk"}),
				"d.vmdk": sparse,
			},
			map[string]string{"a.ovf": isOff, "b.ovf": isOff},
		},
		{
			"an OVF that is cut off",
			map[string][]byte{"vm.ovf": ovfFor([]string{"d.vmdk"})[:250], "d.vmdk": sparse},
			map[string]string{"vm.ovf": "failed format", "d.vmdk": isOff},
		},
		{
			"a manifest that is not one: the disk is not lost with the package",
			map[string][]byte{"vm.ovf": ovfFor([]string{"d.vmdk"}), "vm.mf": []byte("rubbish\n"), "d.vmdk": sparse},
			map[string]string{"vm.ovf": "failed format", "d.vmdk": isOff},
		},
		{
			"an OVF hides only its disks",
			map[string][]byte{
				"vm.ovf": ovfFor([]string{"d.vmdk"}, "victim.vmdk"),
				"d.vmdk": vmdkforge.NewSparse(even).Bytes, "victim.vmdk": sparse,
			},
			map[string]string{"vm.ovf": isEven, "victim.vmdk": isOff},
		},
		{
			"OVAs",
			map[string][]byte{
				"one.ova": groupOVA("d.vmdk"), "two.ova": groupOVA("d.vmdk", "e.vmdk"),
				"two.ova.gz": {0x1f, 0x8b, 8},
			},
			map[string]string{"one.ova": isOff, "two.ova": isOff},
		},
	}
}

// snapshotGroups are VMDKs and qcow2 that others build on.
func snapshotGroups() []scanGroup {
	off := offDisk()
	sparse := vmdkforge.NewSparse(offDisk()).Bytes
	return []scanGroup{
		{
			"a VMDK snapshot and what it is one of",
			map[string][]byte{"a.vmdk": sparse, "a-000001.vmdk": groupSnapshot("/vmfs/volumes/x/a.vmdk")},
			map[string]string{
				"a.vmdk":        isOff + ", refused: snapshot-parent",
				"a-000001.vmdk": isOff + ", refused: snapshot-child",
			},
		},
		{
			"a chain of qcow2, one without a telling name",
			map[string][]byte{
				"a.qcow2": qcow2forge.New(off, 16).Bytes, "middle": groupBacked("a.qcow2", "qcow2"),
				"top.qcow2": groupBacked("middle", "qcow2"),
			},
			map[string]string{
				"a.qcow2":   isOff + ", refused: snapshot-parent",
				"middle":    isOff + ", refused: snapshot-parent snapshot-child",
				"top.qcow2": isOff + ", refused: snapshot-child",
			},
		},
		{
			"a qcow2 on a raw file",
			map[string][]byte{"a.raw": off, "b.qcow2": groupBacked("a.raw", "raw")},
			map[string]string{
				"a.raw":   isOff + ", refused: snapshot-parent",
				"b.qcow2": isOff + ", refused: snapshot-child",
			},
		},
		{
			"a snapshot of a flat extent",
			map[string][]byte{
				"a.vmdk": flatText("monolithicFlat", "a-flat.vmdk"), "a-flat.vmdk": off,
				"b.qcow2": groupBacked("a-flat.vmdk", "raw"),
			},
			map[string]string{
				"a.vmdk":  isOff + ", refused: snapshot-parent",
				"b.qcow2": isOff + ", refused: snapshot-child",
			},
		},
		{
			"only the disk of a package that has a snapshot is refused for it",
			map[string][]byte{
				"vm.ovf": ovfFor([]string{"a.vmdk", "b.vmdk"}), "a.vmdk": sparse, "b.vmdk": sparse,
				"s.vmdk": groupSnapshot("b.vmdk"),
			},
			map[string]string{
				"vm.ovf": isOff + ", refused: snapshot-parent",
				"s.vmdk": isOff + ", refused: snapshot-child",
			},
		},
	}
}

// vdiGroups are a VDI of qemu-img, and one that has its UUID as that of its parent.
func vdiGroups(t *testing.T) []scanGroup {
	t.Helper()
	dir := t.TempDir()
	raw, path := filepath.Join(dir, "base.img"), filepath.Join(dir, "base.vdi")
	require.NoError(t, os.WriteFile(raw, offDisk(), 0o600))
	disktest.Run(t, "qemu-img", "convert", "-f", "raw", "-O", "vdi", raw, path)
	base := disktest.ReadFile(t, path)
	child, other := slices.Clone(base), slices.Clone(base)
	const kind, created, parent = 0x4c, 0x188, 0x1a8 // VDICore.h
	child[kind], other[kind] = 4, 4
	copy(child[parent:parent+16], base[created:])
	other[parent] = 1
	return []scanGroup{
		{
			"a snapshot of a VDI, which names no file",
			map[string][]byte{"base.vdi": base, "{0a}.vdi": child},
			map[string]string{"base.vdi": isOff + ", refused: snapshot-parent", "{0a}.vdi": "failed unsupported"},
		},
		{
			"a snapshot of another VDI",
			map[string][]byte{"base.vdi": base, "{0b}.vdi": other},
			map[string]string{"base.vdi": isOff, "{0b}.vdi": "failed unsupported"},
		},
	}
}

// differencingGroups are VHDs and VHDXs with their parents.
func differencingGroups() []scanGroup {
	off := offDisk()
	return []scanGroup{
		{
			"a differencing VHD that names its parent in another case: not found, and no less its child",
			map[string][]byte{
				"Base.vhd": vhdforge.New(off, vhdforge.Layout{ID: 0xb0}).Bytes,
				"top.avhd": vhdforge.New(make([]byte, len(off)), vhdforge.Layout{
					ID: 0xb1, Stored: func(int64) bool { return false }, Parent: &vhdforge.Parent{
						ID:       0xb0,
						Relative: `.\BASE.VHD`,
					},
				}).Bytes,
			},
			map[string]string{"Base.vhd": isOff + ", refused: snapshot-parent", "top.avhd": "failed reference"},
		},
		{
			"a differencing VHD",
			map[string][]byte{
				"base.vhd": vhdforge.New(off, vhdforge.Layout{ID: 0xb0}).Bytes,
				"top.avhd": vhdforge.New(make([]byte, len(off)), vhdforge.Layout{
					ID: 0xb1, Stored: func(int64) bool { return false }, Parent: &vhdforge.Parent{
						ID:       0xb0,
						Relative: `.\base.vhd`,
					},
				}).Bytes,
			},
			map[string]string{
				"base.vhd": isOff + ", refused: snapshot-parent",
				"top.avhd": isOff + ", refused: snapshot-child",
			},
		},
		{
			"a differencing VHDX",
			map[string][]byte{
				"base.vhdx": vhdxforge.New(vhdxforge.Layout{Size: int64(len(off))}).Fill(off).Bytes,
				"top.avhdx": vhdxforge.New(vhdxforge.Layout{
					Size: int64(len(off)), DataWrite: "00000000-0000-4000-8000-000000000001",
					Parent: map[string]string{
						"parent_linkage": "{" + strings.ToUpper(vhdxforge.DataWriteGUID) + "}",
						"relative_path":  `.\base.vhdx`,
					},
				}).Bytes,
			},
			map[string]string{
				"base.vhdx": isOff + ", refused: snapshot-parent",
				"top.avhdx": isOff + ", refused: snapshot-child",
			},
		},
	}
}

// lockGroups are images that another program has open.
func lockGroups() []scanGroup {
	off := offDisk()
	even := evenDisk()
	sparse := vmdkforge.NewSparse(offDisk()).Bytes
	return []scanGroup{
		{
			"locks",
			map[string][]byte{
				"a.vmdk": sparse, "a.vmdk.lck/M1.lck": {}, "even.vmdk": vmdkforge.NewSparse(even).Bytes,
				"even.vmdk.lck": {}, "flat.vmdk": flatText("monolithicFlat", "flat-flat.vmdk"),
				"flat-flat.vmdk": off, "flat-flat.vmdk.lck": {}, "free.vmdk": sparse, "m.vmdk": sparse,
				"m-8c1f.vmem": {}, "base.qcow2": qcow2forge.New(off, 16).Bytes, "base.qcow2.lck": {},
				"top.qcow2": groupBacked("base.qcow2", "qcow2"),
			},
			map[string]string{
				"a.vmdk": isOff + ", refused: busy", "even.vmdk": isEven, "flat.vmdk": isOff + ", refused: busy",
				"free.vmdk": isOff, "m.vmdk": isOff + ", refused: busy",
				"base.qcow2": isOff + ", refused: busy snapshot-parent",
				"top.qcow2":  isOff + ", refused: busy snapshot-child",
			},
		},
		{
			"locks of all machines of a folder",
			map[string][]byte{"a.vmdk": sparse, "b.img": off, "even.img": even, ".lck-31d0": {}, "vm.vmss": {}},
			map[string]string{
				"a.vmdk": isOff + ", refused: busy busy", "b.img": isOff + ", refused: busy busy", "even.img": isEven,
			},
		},
	}
}

// zeroBehind is a disk whose sectors 300 to 400 are zero.
func zeroBehind(d []byte) []byte {
	d = bytes.Clone(d)
	clear(d[300*sectorSize : 400*sectorSize])
	return d
}

// TestScanKinds is about what is an image and what is not one.
func TestScanKinds(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	off := offDisk()
	big := append(bytes.Clone(off), make([]byte, 1<<20)...)
	iso := make([]byte, 64<<10)
	copy(iso[0x8001:], "CD001")
	dump := off[63*sectorSize : 65*sectorSize]
	for name, content := range map[string][]byte{
		"disk": off, "table.bin": big, "empty": {}, "one": {1}, "odd": append([]byte("text"), make([]byte, 511)...),
		"zero.bin": make([]byte, 4096),
		"cd.iso":   iso, "cd.img": append(iso, make([]byte, 4<<20)...), "floppy.img": make([]byte, 1440<<10),
		"sector.bin": dump, "firmware.img": make([]byte, 512),
		"data.gz": {0x1f, 0x8b, 8, 0}, "off.img.xz": append([]byte("\xfd7zXZ\x00\x00\x04"), make([]byte, 504)...),
		"docs.xz":    append([]byte("\xfd7zXZ\x00\x00\x04"), make([]byte, 504)...),
		"ruined.ova": noise("ova", 8192), "notes.txt": []byte("# Disk\n"),
		"empty.vmdk": {}, "text.vmdk": []byte("nothing of a disk\n"), "blank.qcow2": make([]byte, 1<<20),
		"small.vhd": {1}, "cut.vhdx": off[:512],
		"blank.img": make([]byte, 4<<20), "disk.qed": append([]byte("QED\x00"), make([]byte, 1020)...),
		"garbled.dd": bytes.Repeat([]byte{0xe5}, 8<<20),
	} {
		s.put(name, content)
	}
	sum := s.requireRows(map[string]string{
		"disk": isOff, "table.bin": isOff, "empty.vmdk": "failed format", "text.vmdk": "failed format",
		"blank.qcow2": "failed format", "small.vhd": "failed format", "cut.vhdx": "failed format",
		"blank.img": "judged nothing_to_judge", "disk.qed": "failed unsupported", "off.img.xz": "packed",
		"ruined.ova": "failed format", "garbled.dd": "judged nothing_to_judge",
	}, ".")
	require.Equal(t, 12, sum.Skipped)
}

// TestScanNames has names that are hard to write.
func TestScanNames(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	off := offDisk()
	want := map[string]string{}
	long := strings.Repeat("x", 251) + ".img"
	for _, name := range []string{
		"-rf.img", "a\nb.img", "\xff\xfe.img", "\x1b[2J.img", long, "c d.img", "$(x).img", "-d/-e.img", "\xfc/\xfc.img",
	} {
		s.put(name, off)
		want[name] = isOff
	}
	s.requireRows(want, ".")
	for name := range want {
		_, err := os.Stat(s.path(name))
		require.NoError(t, err)
	}
	locked := "\xe4.img"
	s.put(locked, off)
	s.put(locked+".lck", nil)
	s.put("\xe5.qcow2", qcow2forge.New(off, 16).Bytes)
	child := qcow2forge.New(make([]byte, len(off)), 16)
	child.SetBacking("\xe5.qcow2", "qcow2")
	s.put("child.qcow2", child.Bytes)
	want[locked] = isOff + ", refused: busy"
	want["\xe5.qcow2"] = isOff + ", refused: snapshot-parent"
	want["child.qcow2"] = isOff + ", refused: snapshot-child"
	s.requireRows(want, ".")
}
