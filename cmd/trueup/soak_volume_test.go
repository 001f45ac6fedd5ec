package main

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/poolforge"
)

// soakVolume is what a partition of a random disk holds.
type soakVolume struct {
	soakKind
	sector int64
	size   int64             // bytes
	hidden int64             // what its boot sector says about its place, in sectors
	files  map[string][]byte // by path
	noise  string            // seed of the bytes of a partition that has no file system
	group  string            // volume group of LVM
}

// soakKind is a kind of volume and how its tools make one.
type soakKind struct {
	name        string
	least, most int64  // bytes
	typ         string // MBR types that systems give to it, one byte each
	flat        bool   // its tools cannot make folders
	only512     bool   // does not fit small disks of 4096-byte sectors
	bootSector  bool   // its boot sector holds its place
}

const (
	kib = 1 << 10
	mib = 1 << 20
)

// soakKinds are the contents of random partitions. The sizes are near the least that the tools make: a disk has
// several.
var soakKinds = []soakKind{
	{name: "ext2", least: 2 * mib, most: 6 * mib, typ: "\x83"},
	// 2048 blocks for a journal, also where they are of 4 KiB
	{name: "ext3", least: 9 * mib, most: 12 * mib, typ: "\x83"},
	{name: "ext4", least: 6 * mib, most: 12 * mib, typ: "\x83"},
	{name: "fat12", least: 2 * mib, most: 4 * mib, typ: "\x01\x06", bootSector: true, only512: true},
	{name: "fat16", least: 18 * mib, most: 24 * mib, typ: "\x04\x06\x0e", bootSector: true},
	{name: "fat32", least: 34 * mib, most: 36 * mib, typ: "\x0b\x0c", bootSector: true, only512: true},
	{name: "ntfs", least: 4 * mib, most: 12 * mib, typ: "\x07", bootSector: true, flat: true},
	{name: "xfs", least: 32 * mib, most: 34 * mib, typ: "\x83"},
	{name: "btrfs", least: 18 * mib, most: 22 * mib, typ: "\x83"},
	{name: "lvm", least: 10 * mib, most: 12 * mib, typ: "\x8e", only512: true},
	{name: "swap", least: 64 * kib, most: 2 * mib, typ: "\x82"},
	{name: "noise", least: 4 * kib, most: 1 * mib, typ: "\xda\x83"},
}

// drawVolume draws a kind, its size and its files. A disk of many partitions stays small: big draws a large kind.
func drawVolume(rng *rand.Rand, sector int64, name string, big bool) *soakVolume {
	kinds := slices.DeleteFunc(slices.Clone(soakKinds), func(k soakKind) bool {
		return k.only512 && sector != sectorSize || !big && k.least > 12*mib
	})
	v := &soakVolume{
		soakKind: kinds[rng.IntN(len(kinds))], sector: sector, noise: name,
		group: strings.ReplaceAll(name, " ", "_"),
	}
	v.size = v.least + rng.Int64N((v.most-v.least)/sector)*sector
	if v.fileSystem() == "" {
		return v
	}
	// Names that all file systems keep as they are make the trees comparable.
	v.files = map[string][]byte{}
	dirs := []string{""}
	for range rng.IntN(4) {
		if !v.flat {
			dirs = append(dirs, dirs[rng.IntN(len(dirs))]+fmt.Sprintf("folder-%d/", rng.IntN(100)))
		}
	}
	for i := range 3 + rng.IntN(6) {
		name := fmt.Sprintf("%sfile-%d.%d", dirs[rng.IntN(len(dirs))], i, rng.IntN(1000))
		v.files[name] = noise(fmt.Sprint(rng.Uint64()), rng.IntN(40_000))
	}
	return v
}

// fileSystem is what mount calls the file system; it is empty for what has none.
func (v *soakVolume) fileSystem() string {
	switch v.name {
	case "fat12", "fat16", "fat32":
		return "vfat"
	case "lvm":
		return "ext4"
	case "swap", "noise":
		return ""
	}
	return v.name
}

// fileSums are the checksums of files by their paths, as sha256sum prints them.
func fileSums(files map[string][]byte) []string {
	var lines []string
	for name, data := range files {
		lines = append(lines, fmt.Sprintf("%x  ./%s", sha256.Sum256(data), name))
	}
	slices.Sort(lines)
	return lines
}

// make builds the volume in a file of its own.
func (v *soakVolume) make(t testing.TB, part string) {
	t.Helper()
	disktest.MakeBlank(t, part, v.size)
	tree := filepath.Dir(part) + "/tree"
	require.NoError(t, os.Mkdir(tree, 0o755))
	for name, data := range v.files {
		path := filepath.Join(tree, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, data, 0o644))
	}
	switch v.name {
	case "ext2", "ext3", "ext4":
		disktest.Run(t, "mke2fs", "-q", "-F", "-t", v.name, "-b", fmt.Sprint(max(v.sector, kib)), "-d", tree, part)
	case "fat12", "fat16", "fat32":
		cluster := map[string]string{"fat12": "8", "fat16": "1", "fat32": "1"}[v.name]
		if v.name == "fat16" && v.sector == sectorSize {
			cluster = "4"
		}
		disktest.Run(t, "mkfs.fat", "-F", v.name[3:], "-h", fmt.Sprint(v.hidden), "-g", "255/63", "-s", cluster,
			"-S", fmt.Sprint(v.sector), part)
		entries, err := filepath.Glob(tree + "/*")
		require.NoError(t, err)
		disktest.Run(t, "mcopy", append(append([]string{"-s", "-i", part}, entries...), "::/")...)
	case "ntfs":
		disktest.Run(t, "mkntfs", "-q", "-F", "-Q", "-p", fmt.Sprint(v.hidden), "-H", "255", "-S", "63", "-s",
			fmt.Sprint(v.sector), "-c", "4096", part)
		for _, name := range slices.Sorted(maps.Keys(v.files)) {
			disktest.Run(t, "ntfscp", "-q", part, filepath.Join(tree, name), "/"+name)
		}
	case "xfs":
		// Without the option it makes none below 300 MiB, whatever it says about support.
		disktest.Run(t, "mkfs.xfs", "--unsupported", "-q", "-s", fmt.Sprintf("size=%d", v.sector), "-p",
			v.prototype(t, part, tree), part)
	case "btrfs":
		disktest.Run(t, "mkfs.btrfs", "-q", "--mixed", "--rootdir", tree, part)
	case "lvm":
		v.makeLVM(t, part, tree)
	case "swap":
		disktest.Run(t, "mkswap", part)
	default:
		disktest.WriteAt(t, part, 0, noise(v.noise, int(v.size)))
	}
	require.NoError(t, os.RemoveAll(tree))
}

// prototype writes the file from which mkfs.xfs fills a volume, and returns its name. Format: mkfs.xfs(8), option -p.
func (v *soakVolume) prototype(t testing.TB, part, tree string) string {
	t.Helper()
	var text strings.Builder
	text.WriteString("/none\n0 0\nd--755 0 0\n")
	v.prototypeOf(t, &text, tree)
	text.WriteString("$\n")
	path := filepath.Dir(part) + "/prototype"
	require.NoError(t, os.WriteFile(path, []byte(text.String()), 0o644))
	return path
}

// prototypeOf lists a folder. drawVolume bounds the depth.
func (v *soakVolume) prototypeOf(t testing.TB, text *strings.Builder, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		if !entry.IsDir() {
			fmt.Fprintf(text, "%s ---644 0 0 %s\n", entry.Name(), path)
			continue
		}
		fmt.Fprintf(text, "%s d--755 0 0\n", entry.Name())
		v.prototypeOf(t, text, path)
		text.WriteString("$\n")
	}
}

// Places in a physical volume. The kernel and the tools of the guest judge it: they have to find the volume group in
// the result and activate it.
const (
	lvmExtent    = 64 * kib
	lvmDataStart = poolforge.LVMPeStart
)

// lvmUUID is an identifier that depends on the name alone, as LVM prints it.
func lvmUUID(name string) string {
	const letters = "0123456789abcdefghijklmnopqrstuv"
	var text []byte
	for i, b := range noise(name, 32) {
		if i == 6 || i > 6 && i < 30 && (i-6)%4 == 0 {
			text = append(text, '-')
		}
		text = append(text, letters[b%32])
	}
	return string(text)
}

// makeLVM forges a volume group of one physical and one logical volume, with an ext4 on it: LVM itself takes block
// devices only.
func (v *soakVolume) makeLVM(t testing.TB, part, tree string) {
	t.Helper()
	extents := (v.size - lvmDataStart) / lvmExtent
	lv := part + "-lv"
	disktest.MakeBlank(t, lv, extents*lvmExtent)
	disktest.Run(t, "mke2fs", "-q", "-F", "-t", "ext4", "-d", tree, lv)
	placeVolume(t, lv, part, lvmDataStart)
	pv := make(forge.Bytes, v.size)
	text := fmt.Sprintf(lvmText, v.group, lvmUUID("vg "+v.group), lvmUUID("pv "+v.group), lvmUUID("lv "+v.group),
		lvmExtent/sectorSize, lvmDataStart/sectorSize, v.size/sectorSize, extents)
	poolforge.PutLVM(pv, text, 512)
	pv.Text(poolforge.LVMUUID, strings.ReplaceAll(lvmUUID("pv "+v.group), "-", ""))
	pv.U32(poolforge.LVMMetaArea+32, 2) // version of the extension
	pv.U32(poolforge.LVMMetaArea+36, 1) // in use
	poolforge.SealLVM(pv)
	disktest.WriteAt(t, part, 0, pv[:lvmDataStart])
}

// lvmText is the metadata of the group.
const lvmText = `%[1]s {
id = "%[2]s"
seqno = 1
format = "lvm2"
status = ["RESIZEABLE", "READ", "WRITE"]
flags = []
extent_size = %[5]d
max_lv = 0
max_pv = 0
metadata_copies = 0
physical_volumes {
pv0 {
id = "%[3]s"
device = "/dev/none"
status = ["ALLOCATABLE"]
flags = []
dev_size = %[7]d
pe_start = %[6]d
pe_count = %[8]d
}
}
logical_volumes {
data {
id = "%[4]s"
status = ["READ", "WRITE", "VISIBLE"]
flags = []
segment_count = 1
segment1 {
start_extent = 0
extent_count = %[8]d
type = "striped"
stripe_count = 1
stripes = ["pv0", 0]
}
}
}
}
contents = "Text Format Volume Group"
version = 1
description = ""
creation_host = "test"
creation_time = 1000000000
`

// placeVolume copies the file part to a place of the disk, holes left out.
func placeVolume(t testing.TB, part, raw string, off int64) {
	t.Helper()
	disktest.Run(t, "dd", "if="+part, "of="+raw, "bs=65536", "conv=sparse,notrunc", "oflag=seek_bytes",
		fmt.Sprintf("seek=%d", off), "status=none")
	require.NoError(t, os.Remove(part))
}
