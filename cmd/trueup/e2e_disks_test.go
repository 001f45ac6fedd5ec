package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

const (
	sectorSize = 512
	// One cylinder of the 255/63 geometry. XP and its contemporaries end partitions on such a boundary and leave the
	// last, incomplete cylinder of the disk free.
	cylinder = 255 * 63
	// The first track, which belongs to the master boot record. The first partition follows it.
	firstTrack = 63
)

// madeVolume is a partition of a test disk with its file system. Positions are in sectors.
type madeVolume struct {
	kind, label    string
	start, sectors int64
	typ            string // in the notation of sfdisk
	active         bool
}

// madeDisk is a disk made by sfdisk and the mkfs tools. Positions are in sectors.
type madeDisk struct {
	name     string
	sectors  int64
	bootCode func(testing.TB) []byte
	adapter  string
	volumes  []madeVolume
}

// madeDisks lists kinds of misaligned disks.
var madeDisks = []madeDisk{
	{
		name:     "xp, lba 63, one ntfs",
		sectors:  6 * cylinder,
		bootCode: chsBootCode, adapter: "lsilogic",
		volumes: []madeVolume{
			{
				kind: "ntfs", label: "XP System", typ: "7", active: true,
				start: firstTrack, sectors: 5*cylinder - firstTrack,
			},
		},
	},
	{
		name:     "xp, two ntfs, the second at a cylinder boundary",
		sectors:  5 * cylinder,
		bootCode: chsBootCode, adapter: "lsilogic",
		volumes: []madeVolume{
			{
				kind: "ntfs", label: "System", typ: "7", active: true,
				start: firstTrack, sectors: 2*cylinder - firstTrack,
			},
			// 32130 is 2 modulo 128: this one moves by another distance than the first.
			{
				kind: "ntfs", label: "Data", typ: "7",
				start: 2 * cylinder, sectors: 2 * cylinder,
			},
		},
	},
	{
		name:     "fat16 at lba 63, no slack behind it",
		sectors:  2 * cylinder,
		bootCode: lbaBootCode, adapter: "ide",
		volumes: []madeVolume{
			{
				kind: "fat16", label: "SIXTEEN", typ: "6", active: true,
				start: firstTrack, sectors: 2*cylinder - firstTrack,
			},
		},
	},
	{
		name:    "fat32 at lba 63",
		sectors: 7 * cylinder,
		adapter: "buslogic",
		volumes: []madeVolume{
			{
				kind: "fat32", label: "THIRTYTWO", typ: "c",
				start: firstTrack, sectors: 6*cylinder - firstTrack,
			},
		},
	},
	{
		name:    "ext3 at lba 63, then ext2 and ext4",
		sectors: 8 * cylinder,
		adapter: "ide",
		volumes: []madeVolume{
			{
				kind: "ext3", label: "root", typ: "83", active: true,
				start: firstTrack, sectors: 3*cylinder - firstTrack,
			},
			{
				kind: "ext2", label: "var", typ: "83",
				start: 3 * cylinder, sectors: 2 * cylinder,
			},
			{
				kind: "ext4", label: "home", typ: "83",
				start: 5 * cylinder, sectors: 2 * cylinder,
			},
		},
	},
}

// files returns the files of every test volume. Their content depends only on the label.
func (v madeVolume) files() map[string][]byte {
	return map[string][]byte{
		"hello.txt":             []byte("This is " + v.label + ".\n"),
		"random.bin":            noise(v.label, 300_001),
		"a longer name of it.x": []byte(strings.Repeat("0123456789abcdef", 1024)),
	}
}

// make copies the disk to dir as a raw file.
func (d madeDisk) make(t testing.TB, dir string) string {
	t.Helper()
	recipe := []string{"cmd/trueup/e2e_disks_test.go", "cmd/trueup/files_test.go"}
	name := strings.NewReplacer(" ", "-", ",", "").Replace(d.name)
	kept := disktest.Made(t, name, recipe, func(dir string) { d.build(t, dir) })
	raw := filepath.Join(dir, "source.raw")
	disktest.Run(t, "cp", "--sparse=always", filepath.Join(kept, "source.raw"), raw)
	return raw
}

// build builds the disk in dir without root: it makes each volume in a file and copies it into the disk.
func (d madeDisk) build(t testing.TB, dir string) {
	t.Helper()
	raw := filepath.Join(dir, "source.raw")
	disktest.MakeBlank(t, raw, d.sectors*sectorSize)
	disktest.RunInput(t, d.table(), "sfdisk", "--quiet", raw)
	if d.bootCode != nil {
		disktest.WriteAt(t, raw, 0, d.bootCode(t))
	}
	// Boot loaders keep more of their code after the MBR. It has to stay in place.
	disktest.WriteAt(t, raw, sectorSize, noise("gap", (firstTrack-1)*sectorSize))
	for i, v := range d.volumes {
		part := filepath.Join(dir, fmt.Sprintf("part%d", i+1))
		v.make(t, part)
		disktest.Run(t, "dd", "if="+part, "of="+raw, "bs=4096", "conv=sparse,notrunc", "oflag=seek_bytes",
			fmt.Sprintf("seek=%d", v.start*sectorSize), "status=none")
		require.NoError(t, os.Remove(part))
	}
}

// diskSignature is the signature of all test disks, so that disks do not differ between runs.
const diskSignature = "0x1b2c3d4e"

// table is the disk's partition table in sfdisk's input language.
func (d madeDisk) table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "label: dos\nlabel-id: %s\n", diskSignature)
	for _, v := range d.volumes {
		fmt.Fprintf(&b, "start=%d, size=%d, type=%s", v.start, v.sectors, v.typ)
		if v.active {
			b.WriteString(", bootable")
		}
		b.WriteString("\n")
	}
	return b.String()
}

// make builds the volume in its own file.
func (v madeVolume) make(t testing.TB, part string) {
	t.Helper()
	disktest.MakeBlank(t, part, v.sectors*sectorSize)
	files := v.writeFiles(t)
	hidden := fmt.Sprint(v.start)
	switch v.kind {
	case "ntfs":
		disktest.Run(t, "mkntfs", "-q", "-F", "-Q", "-p", hidden, "-H", "255", "-S", "63", "-s", "512", "-c", "4096",
			"-L", v.label, part)
		for name := range v.files() {
			disktest.Run(t, "ntfscp", "-q", part, filepath.Join(files, name), "/"+name)
		}
	case "fat16", "fat32":
		disktest.Run(t, "mkfs.fat", "-F", strings.TrimPrefix(v.kind, "fat"), "-h", hidden, "-g", "255/63",
			"-s", map[string]string{"fat16": "4", "fat32": "1"}[v.kind], "-n", v.label, part)
		for name := range v.files() {
			disktest.Run(t, "mcopy", "-i", part, filepath.Join(files, name), "::/"+name)
		}
	default:
		disktest.Run(t, "mke2fs", "-q", "-t", v.kind, "-L", v.label, "-d", files, part)
	}
}

// writeFiles writes the volume's files to a folder, from which the tools copy them.
func (v madeVolume) writeFiles(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	for name, data := range v.files() {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), data, 0o644))
	}
	return dir
}

// chsBootCode is the boot code of parted. It loads the boot sector with INT 13h AH=02h and the CHS bytes of the active
// entry, like Windows XP.
func chsBootCode(t testing.TB) []byte {
	t.Helper()
	label := filepath.Join(t.TempDir(), "label.raw")
	require.NoError(t, os.WriteFile(label, make([]byte, 1<<20), 0o644))
	disktest.Run(t, "parted", "--script", label, "mklabel", "msdos")
	return readAt(t, label, 0, 440)
}

// lbaBootCode is syslinux's mbr.bin, which reads the LBA of the active entry.
func lbaBootCode(t testing.TB) []byte {
	t.Helper()
	code := disktest.ReadFile(t, disktest.DataFile(t, "/usr/lib/syslinux/mbr/mbr.bin"))
	return code
}
