package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// sectorVolume is a volume, and whether Linux mounts it on a disk with sectors of 4096 bytes. The sources are in
// docs/dev/decisions/sector-sizes.md; a Linux guest is the judge.
type sectorVolume struct {
	name   string
	mebis  int64
	make   []string // command and options; the volume follows
	mounts bool
}

var sectorVolumes = []sectorVolume{
	{"ext4 of 4096", 40, []string{"mke2fs", "-q", "-t", "ext4", "-b", "4096"}, true},
	{"FAT32 of 512, clusters of 4096", 300, []string{"mkfs.fat", "-F", "32", "-s", "8"}, true}, // its BPB is rewritten
	{"FAT16 of 512, clusters of 8192", 100, []string{"mkfs.fat", "-F", "16", "-s", "16"}, true},
	{"XFS of 4096", 320, []string{"mkfs.xfs", "-qf", "-s", "size=4096"}, true},
	{"btrfs", 120, []string{"mkfs.btrfs", "-q", "-f"}, true},
	{"JFS", 40, []string{"jfs_mkfs", "-q"}, true},
	{"F2FS", 100, []string{"mkfs.f2fs", "-q"}, true},
	{"swap", 40, []string{"mkswap"}, true},
	{"LUKS1", 40, []string{"sh", "-c", quickLUKS + " --type luks1 $0 -"}, true},
	{"LUKS2", 40, []string{"sh", "-c", quickLUKS + " --type luks2 $0 -"}, true},
	{"ext4 of 4096 in LVM", 40, []string{"sh", "-c", quickLVM, "4096"}, true},
	{"ext4 of 1024 in LVM", 40, []string{"sh", "-c", quickLVM, "1024"}, false},
	{"ext4 of 1024", 40, []string{"mke2fs", "-q", "-t", "ext4", "-b", "1024"}, false},
	{"ext2 of 2048", 40, []string{"mke2fs", "-q", "-t", "ext2", "-b", "2048"}, false},
	{"XFS of 512", 320, []string{"mkfs.xfs", "-qf", "-s", "size=512"}, false},
	{"FAT16 of 512, clusters of 2048", 40, []string{"mkfs.fat", "-F", "16", "-s", "4"}, false},
	{"FAT16 of 512, an odd FAT", 40, []string{"mkfs.fat", "-F", "16", "-s", "8", "-a", "-R", "3"}, false},
	{"exFAT of 512", 40, []string{"mkfs.exfat"}, false},
	{"ISO 9660", 1, []string{"xorriso", "-as", "mkisofs", "-quiet", "/etc/hostname", "-o"}, false},
}

// sectorDisk makes a disk with a GPT in sectors of a size, and volumes one behind the other.
func sectorDisk(t *testing.T, sector int64, volumes []sectorVolume) string {
	t.Helper()
	raw, size, at := filepath.Join(t.TempDir(), "disk.raw"), int64(2), int64(1)
	script := fmt.Sprintf("label: gpt\nunit: sectors\nsector-size: %d\n", sector)
	for _, v := range volumes {
		size += v.mebis
		script += fmt.Sprintf("start=%d, size=%d\n", (size-1-v.mebis)<<20/sector, v.mebis<<20/sector)
	}
	disktest.MakeBlank(t, raw, size<<20)
	table := hostFile(t, script)
	disktest.RunInput(t, "I\n"+table+"\nw\n", "fdisk", "--sector-size", decimal(sector), "--wipe", "never", raw)
	for _, v := range volumes {
		part := filepath.Join(t.TempDir(), "part")
		disktest.MakeBlank(t, part, v.mebis<<20)
		disktest.Run(t, v.make[0], append(v.make[1:len(v.make):len(v.make)], part)...)
		disktest.Run(t, "dd", "if="+part, "of="+raw, "bs=1M", "seek="+decimal(at), "conv=sparse,notrunc", "status=none")
		at += v.mebis
	}
	return raw
}

// quickLUKS makes a LUKS volume with a cheap key.
const quickLUKS = "printf key | cryptsetup -q --pbkdf pbkdf2 --pbkdf-force-iterations 1000 luksFormat"

// quickLVM makes a physical volume on $1, and in its only logical volume an ext4 with blocks of $0 bytes. Without the
// device mapper, mke2fs writes to the place of the first extent.
const quickLVM = "set -e; device=$(losetup -f --show $1); trap 'losetup -d $device' EXIT; " +
	"for step in \"pvcreate $device\" \"vgcreate group$0 $device\" \"lvcreate -an -Zn -Wn -n root -l 9 group$0\"; do " +
	"lvm $step --devices $device --driverloaded n -qqy; done; mke2fs -q -t ext4 -b $0 -E offset=1048576 $device 36m"

// usedIn returns which partitions of a disk Linux mounts, swaps on or opens, in order. The disk has sectors of a size.
func usedIn(t *testing.T, raw string, sector int64, partitions int) (out []bool) {
	t.Helper()
	const use = "if mount -o ro $1 /sysroot; then umount /sysroot; elif swapon $1; then swapoff $1; " +
		"elif lvm pvs $1 && lvm vgchange -ay && mount -o ro /dev/group*/root /sysroot; then umount /sysroot; " +
		"else printf key | cryptsetup --key-file - open $1 x && cryptsetup close x; fi"
	// The guest's own disk, without partitions, can be the first or the second.
	script := fmt.Sprintf("add-drive %s format:raw readonly:true blocksize:%d\nrun\nblockdev-getss /dev/sda\n", raw,
		sector)
	for i := range partitions {
		script += fmt.Sprintf("debug sh \"use() { %s; }; use /dev/sd?%d >/dev/null 2>&1 && echo yes || echo no\"\n",
			use, i+1)
	}
	all := strings.Fields(startGuestfish(t, "guestfish", script))
	require.Len(t, all, partitions+1)
	require.Equal(t, decimal(sector), all[0], "the sector size of the disk in the guest")
	for _, one := range all[1:] {
		out = append(out, one == "yes")
	}
	return out
}

// A volume that Linux uses on sectors of 4096 bytes is copied onto such, and back, and used there; any other one is
// refused, and Linux does not use it there.
func TestVolumesInOtherSectors(t *testing.T) {
	t.Parallel()
	requireKernel(t)
	var sound, others []sectorVolume
	for _, v := range sectorVolumes {
		if v.mounts {
			sound = append(sound, v)
			continue
		}
		others = append(others, v)
		r := trueup(t, "plan", "--to-sector-size", "4096", sectorDisk(t, 512, []sectorVolume{v}))
		require.Equal(t, 4, r.code, "%s: %s%s", v.name, r.stdout, r.stderr)
		require.Contains(t, strings.Join(strings.Fields(r.stdout), " "), "the disk has sectors of 4096 bytes", v.name)
	}
	source, dir := sectorDisk(t, 512, sound), t.TempDir()
	large, back := filepath.Join(dir, "4096.raw"), filepath.Join(dir, "512.raw")
	for _, args := range [][]string{
		{"align", "--to-sector-size", "4096", source, large},
		{"verify", source, large},
		{"align", "--to-sector-size", "512", large, back},
		{"verify", large, back},
	} {
		r := trueup(t, args...)
		require.Equal(t, 0, r.code, "%v: %s%s", args, r.stdout, r.stderr)
	}
	for raw, sector := range map[string]int64{large: 4096, back: 512} {
		for i, mounted := range usedIn(t, raw, sector, len(sound)) {
			require.True(t, mounted, "%s on sectors of %d bytes", sound[i].name, sector)
		}
	}
	for i, mounted := range usedIn(t, sectorDisk(t, 4096, others), 4096, len(others)) {
		require.False(t, mounted, "%s on sectors of 4096 bytes", others[i].name)
	}
}

// Firmware boots a disk from sectors of 4096 bytes, the copy onto 512, and the copy of that onto 4096 again. The loader
// is on a FAT32 whose BPB the last copy rewrites.
func TestUEFIBootsInOtherSectors(t *testing.T) {
	t.Parallel()
	disktest.Tool(t, "qemu-system-x86_64")
	esp := sectorVolume{"ESP", 300, []string{"mkfs.fat", "-F", "32", "-s", "8"}, true}
	source := sectorDisk(t, 512, []sectorVolume{esp})
	disktest.Run(t, "sgdisk", "-t", "1:ef00", source)
	part := source + "@@1M"
	for _, folder := range []string{"::/EFI", "::/EFI/BOOT"} {
		disktest.Run(t, "mmd", "-i", part, folder)
	}
	disktest.Run(t, "mcopy", "-i", part, efiProgram(t), "::/EFI/BOOT/BOOTX64.EFI")
	for _, sector := range []string{"512", "4096", "512", "4096"} {
		dest := filepath.Join(t.TempDir(), sector+".raw")
		r := trueup(t, "align", "--to-sector-size", sector, source, dest)
		require.Equal(t, 0, r.code, "%s%s", r.stdout, r.stderr)
		source = dest
		if !disktest.Exhaustive && sector == "512" {
			continue
		}
		pc{
			image: dest, memory: 256, nvram: firmwareMemory(t),
			disk: ",logical_block_size=" + sector + ",physical_block_size=4096",
		}.watch(t, anyOf(booted))
	}
	r := trueup(t, "boot", "--accel", "tcg", "--seconds", "1000", source) // the last one, of 4096
	require.Contains(t, r.stdout, booted, r.stderr)
}
