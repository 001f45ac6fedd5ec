package linux_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest/boottest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/grubforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/disktest/forge/volumeforge"
	"github.com/trueup/trueup/internal/ondisk"
)

// putLBACode makes the code of sector 0 one that reads the boot sector of the active partition by LBA.
func putLBACode(f forge.Bytes) {
	f.Put(0, []byte{0xbe, 0xbe, 0x07, 0xb4, 0x42, 0xcd, 0x13}) // mov si,07beh; mov ah,42h; int 13h
}

// brokenLoaders put a loader into a boot sector that a move breaks.
var brokenLoaders = map[string]func(f forge.Bytes, lba int64){
	"GRUB 2, no such core.img": func(f forge.Bytes, lba int64) {
		grubforge.PutBoot(f, lba, 5000)
		f.Text(5000*512, "another file")
	},
	"GRUB 2 of another build": func(f forge.Bytes, lba int64) {
		grubforge.PutBoot(f, lba, 5000)
		f.U16(lba*512+0x5a, 0x2000)
	},
	"GRUB 2 behind the disk": func(f forge.Bytes, lba int64) { grubforge.PutBoot(f, lba, 1<<30) },
	"GRUB 2 on another disk": func(f forge.Bytes, lba int64) {
		grubforge.PutBoot(f, lba, 5000)
		f.U8(lba*512+0x64, 0x81)
		grubforge.PutCore(f, 5000)
	},
	"GRUB 2, a list into nowhere": func(f forge.Bytes, lba int64) {
		grubforge.PutBoot(f, lba, 5000)
		grubforge.PutCore(f, 5000, list(8070, 2)...)
	},
	"GRUB legacy, no such stage": func(f forge.Bytes, lba int64) {
		grubforge.PutStage1(f, lba, grubforge.Stage2(5000))
	},
	"LILO": func(f forge.Bytes, lba int64) { f.Text(lba*512, "\xfa\xeb\x21\x01\xb4\x01LILO\x01\x00\x16\x08") },
	"GRUB legacy from another disk": func(f forge.Bytes, lba int64) {
		grubforge.PutStage1(f, lba, grubforge.Stage2(5000))
		f.U8(lba*512+0x40, 0x81)
	},
}

// What a move breaks is refused where the boot goes there. Old boot sectors that nothing reads are left on many disks:
// a warning.
func TestLoadersLeftOver(t *testing.T) {
	for name, put := range brokenLoaders {
		t.Run(name, func(t *testing.T) {
			for _, tc := range []struct {
				lba  int64
				code func(forge.Bytes)
				want ondisk.Effect
			}{
				{63, putLBACode, ondisk.Unbootable},
				{63, func(forge.Bytes) {}, ondisk.Unbootable}, // what boots the active partition is on another disk
				{8100, putLBACode, ondisk.Warn},
				{
					63, func(f forge.Bytes) { grubforge.PutBoot(f, 0, 1); grubforge.PutCore(f, 1, list(2, 50)...) },
					ondisk.Warn,
				},
			} {
				f := legacyDisk()
				tc.code(f)
				put(f, tc.lba)
				r := boottest.Read(t, f)
				issues := boottest.But(r, boottest.Unseen)
				require.Len(t, issues, 1)
				i := issues[0]
				require.Equal(t, tc.want, i.Effect, i.Text)
				require.True(t, i.OnMove)
				require.Zero(t, i.Partition)
				require.NotEmpty(t, i.Remedy)
			}
		})
	}
}

// A list that a boot sector without use names first is judged once more for the one that boots by it.
func TestGrub2ListOfTwoBootSectors(t *testing.T) {
	f := tableforge.NewMBR(16384, tableforge.Slot{Type: 0x83, Start: 63, Sectors: 8000},
		tableforge.Slot{Type: 0x83, Flag: 0x80, Start: 8100, Sectors: 8000})
	putLBACode(f)
	grubforge.PutBoot(f, 63, 5000)
	grubforge.PutBoot(f, 8100, 5000)
	grubforge.PutCore(f, 5000, list(5001, 7, 8070, 2)...)
	r := boottest.Read(t, f)
	require.Len(t, r.Issues, 2)
	require.Equal(t, ondisk.Warn, r.Issues[0].Effect)
	require.Equal(t, ondisk.Unbootable, r.Issues[1].Effect)
	require.Len(t, r.Refs, 3, "entry 1 is found twice and kept once")
}

// A table names thousands of partitions: issues about a loader in each of them are bounded, and the one that boots
// counts wherever it stands.
func TestLoadersInManyPartitions(t *testing.T) {
	for name, put := range map[string]func(f forge.Bytes){
		"GRUB 2": func(f forge.Bytes) { grubforge.PutBoot(f, 63, 5000); grubforge.PutCore(f, 5000, list(5001, 9)...) },
		"LILO":   func(f forge.Bytes) { brokenLoaders["LILO"](f, 63) },
	} {
		f := legacyDisk()
		putLBACode(f)
		put(f)
		d := boottest.Disk(f)
		tab, parts := boottest.Partitions(t, d)
		many := slices.Repeat(parts[:1], 1000)
		for i := range many {
			many[i].Number, many[i].Active = i+1, i == 999
		}
		r := boottest.ReadGuest(t, boottest.Guest(d, tab, many))
		require.Less(t, len(r.Chain), 60, name)
		require.Less(t, len(r.Issues), 20, name)
		require.Equal(t, ondisk.Unbootable, r.Issues[len(r.Issues)-1].Effect, name)
	}
}

// The code of a GRUB whose core.img is gone boots nothing, and keeps no disk from moving.
func TestGrub2WithoutACore(t *testing.T) {
	for name, first := range map[string]string{"zeros": "", "made a GPT": "EFI PART\x00\x00\x01\x00"} {
		t.Run(name, func(t *testing.T) {
			f := legacyDisk()
			grubforge.PutBoot(f, 0, 1)
			f.Text(512, first)
			r := boottest.Read(t, f)
			require.Len(t, r.Issues, 1)
			require.Equal(t, ondisk.Warn, r.Issues[0].Effect)
			require.Contains(t, r.Issues[0].Text, "no BIOS boots with it")
		})
	}
}

// extlinux puts its boot sector, with a parameter block of its own, where the file system leaves room. Spec: syslinux
// 6.04, extlinux/main.c.
func TestHiddenSectorsOfExtlinuxByFileSystem(t *testing.T) {
	for kind, tc := range map[string]struct {
		put  func(f forge.Bytes)
		at   int64 // of the boot sector in the volume
		none bool  // extlinux knows no such file system
	}{
		"ext2":  {put: func(f forge.Bytes) { fsforge.PutExt(f, 63, 8000) }},
		"btrfs": {put: func(f forge.Bytes) { volumeforge.PutBtrfs(f, 63, 8000) }},
		"ufs1":  {put: func(f forge.Bytes) { volumeforge.PutUFS1(f, 63, 8000) }},
		"ufs2":  {put: func(f forge.Bytes) { volumeforge.PutUFS2(f, 63, 8000) }},
		"xfs":   {put: func(f forge.Bytes) { volumeforge.PutXFS(f, 63, 8000) }, at: 2048},
		"jfs":   {put: func(f forge.Bytes) { volumeforge.PutJFS(f, 63, 8000) }, none: true},
	} {
		t.Run(kind, func(t *testing.T) {
			f := legacyDisk()
			tc.put(f)
			require.Empty(t, boottest.Read(t, f).Refs)
			sector := 63*512 + tc.at
			f.Put(sector, []byte("\xeb\x58\x90SYSLINUX"))
			f.U32(sector+0x1c, 63)
			f.U16(sector+510, 0xaa55)
			r := boottest.Read(t, f)
			if tc.none {
				require.Empty(t, r.Refs)
				require.Empty(t, r.Chain)
				return
			}
			require.Empty(t, boottest.But(r, boottest.Unseen))
			require.Len(t, r.Refs, 1)
			ref := r.Refs[0]
			require.Equal(t, kind+" hidden sectors", ref.Kind)
			require.Equal(t, []disk.Range{{Off: sector + 0x1c, Len: 4}}, ref.At)
			require.Equal(t, tc.at+0x1c, ref.Off)
			require.Equal(t, 1, ref.Target)
			require.Equal(t, int64(63*512), ref.Points)
			require.True(t, r.Boots(1))

			f.U32(sector+0x1c, 64)
			require.False(t, boottest.Read(t, f).Refs[0].Follows(), "old value first")
		})
	}
}

// FAT has a parameter block of its own, which syslinux keeps.
func TestSyslinuxOnFAT(t *testing.T) {
	f := legacyDisk()
	fsforge.PutFAT16(f, 63, 8000)
	require.Empty(t, boottest.Read(t, f).Chain)
	f.Text(63*512+3, "SYSLINUX")
	r := boottest.Read(t, f)
	require.Len(t, r.Refs, 1)
	require.Equal(t, "fat16 hidden sectors", r.Refs[0].Kind)
	require.Equal(t,
		[]string{"SYSLINUX in the boot sector of partition 1 loads ldlinux.sys by sectors that count from " +
			"the start of the partition"}, boottest.Texts(r.Chain))
}
