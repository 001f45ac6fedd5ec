package identify

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/poolforge"
	"github.com/trueup/trueup/internal/disktest/forge/volumeforge"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

const leftoverSize = 24 << 20

// putWhole makes a volume of all there is.
func putWhole(put func(f forge.Bytes, lba, sectors int64)) func(forge.Bytes) {
	return func(f forge.Bytes) { put(f, 0, leftoverSize/512) }
}

var (
	leftoverMD   = func(f forge.Bytes) { poolforge.PutMD1(f, "1.2", 2048) }
	leftoverLVM  = func(f forge.Bytes) { poolforge.PutLVM(f, poolforge.LVMText, 512) }
	leftoverVMFS = func(f forge.Bytes) { poolforge.PutVMFS(f, 5, 14, 61) }
	hibernated   = func(f forge.Bytes) { f.Text(4086, "S1SUSPEND") }
)

// Who formats a volume does not always wipe what was there. blkid: what libblkid takes it for, empty where it does not
// say.
func TestLeftovers(t *testing.T) {
	ambiguous := func(e ondisk.Effect, codes ...string) map[string]ondisk.Effect {
		out := map[string]ondisk.Effect{"ambiguous-volume": e}
		for _, c := range codes {
			out[c] = ondisk.Refuse
		}
		return out
	}
	ruin := map[string]ondisk.Effect{"leftover": ondisk.Note}
	for name, tc := range map[string]struct {
		put    []func(forge.Bytes)
		want   volume.Kind
		issues map[string]ondisk.Effect
		blkid  string
	}{
		"RAID over ext": {
			[]func(forge.Bytes){putWhole(fsforge.PutExt), leftoverMD},
			volume.MDRaid,
			ambiguous(ondisk.Warn), "linux_raid_member",
		},
		"RAID over NTFS": {
			[]func(forge.Bytes){putWhole(fsforge.PutNTFS), leftoverMD},
			volume.MDRaid,
			ambiguous(ondisk.Warn), "linux_raid_member",
		},
		"RAID over LVM": {
			[]func(forge.Bytes){leftoverLVM, leftoverMD},
			volume.MDRaid, ambiguous(ondisk.Warn),
			"linux_raid_member",
		},
		"LVM over btrfs": {
			[]func(forge.Bytes){putWhole(volumeforge.PutBtrfs), leftoverLVM},
			volume.LVM2,
			ambiguous(ondisk.Warn), "LVM2_member",
		},
		"UFS over FAT": {
			[]func(forge.Bytes){putWhole(fsforge.PutFAT16), putWhole(volumeforge.PutUFS2)},
			volume.FAT16, ambiguous(ondisk.Warn), "",
		},
		"NTFS over VMFS": {
			[]func(forge.Bytes){leftoverVMFS, putWhole(fsforge.PutNTFS)},
			volume.NTFS,
			ambiguous(ondisk.Unbootable), "",
		},
		"hibernation under ext": {
			[]func(forge.Bytes){hibernated, putWhole(fsforge.PutExt)},
			volume.Ext2,
			ambiguous(ondisk.Unbootable, "hibernated-linux"), "",
		},
		"swap over exFAT": {[]func(forge.Bytes){putWhole(fsforge.PutExFAT), func(f forge.Bytes) {
			f.Text(4086, "SWAPSPACE2")
			f.U32(1024, 1)
			f.U32(1028, 100)
		}}, volume.Swap, ruin, ""},
		"ext over a half of btrfs": {[]func(forge.Bytes){
			putWhole(volumeforge.PutBtrfs), func(f forge.Bytes) {
				f.U8(volumeforge.BtrfsAt+4000, 1)
			}, putWhole(fsforge.PutExt),
		}, volume.Ext2, ruin, ""},
		"ext beside a broken NTFS": {
			[]func(forge.Bytes){
				putWhole(fsforge.PutNTFS), func(f forge.Bytes) { f.U8(0x0d, 3) },
				putWhole(fsforge.PutExt),
			},
			volume.NTFS,
			map[string]ondisk.Effect{"volume": ondisk.BadVolume, "ambiguous-volume": ondisk.Unbootable},
			"",
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := make(forge.Bytes, leftoverSize)
			for _, put := range tc.put {
				put(f)
			}
			v := probeForged(t, f)
			require.Equal(t, tc.want, v.Kind)
			got := map[string]ondisk.Effect{}
			for _, i := range v.Issues {
				got[i.Code] = i.Effect
			}
			require.Equal(t, tc.issues, got)
			if tc.blkid != "" {
				require.Equal(t, tc.blkid, blkid(t, written(t, f))["TYPE"])
			}
		})
	}
}

// A boot sector is run by a BIOS whatever lies behind it, so that the place in it counts under a RAID, too.
func TestBootSectorUnderARaid(t *testing.T) {
	for name, tc := range map[string]struct {
		put    func(forge.Bytes)
		backup int64 // with data of the array in front of it, it is not one of the partition
	}{
		"superblock at the end": {
			func(f forge.Bytes) { poolforge.PutMD0(f, binary.LittleEndian) },
			leftoverSize - 257*512,
		},
		"superblock at the start": {leftoverMD, 0},
	} {
		f := make(forge.Bytes, leftoverSize)
		fsforge.PutNTFS(f, 0, leftoverSize/512-256)
		tc.put(f)
		v := probeForged(t, f)
		require.Equal(t, volume.MDRaid, v.Kind, name)
		require.NotNil(t, v.Boot, name)
		require.Equal(t, tc.backup, v.Boot.Backup, name)
		require.Equal(t, volume.NTFS, v.Boot.Kind, name)
	}
}

// Encrypted data begin with anything. Marks of two bytes are there by chance in one of 65536 volumes, and stand in all
// of these.
func TestNoiseIsUnknown(t *testing.T) {
	marks := []struct {
		at   int
		text string
	}{{508, "\xda\xbe"}, {510, "\x55\xaa"}, {1024, "BD"}, {1024, "H+"}, {1024, "HX"}, {1080, "\x53\xef"}}
	for seed := range uint64(3000) {
		b := make([]byte, 8<<10)
		_, _ = rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)}).Read(b)
		m := marks[seed%uint64(len(marks))]
		copy(b[m.at:], m.text)
		v, err := Probe(disktest.ShortDisk(b, 512<<10), 0)
		require.NoError(t, err)
		require.Equal(t, &volume.Volume{Kind: volume.Unknown}, v, "seed %d", seed)
	}
}

func TestJournalOfExt(t *testing.T) {
	for name, args := range map[string][]string{
		"blocks of 1 KiB": {"-b", "1024", "-L", "a journal"},
		"blocks of 4 KiB": {"-b", "4096"},
	} {
		t.Run(name, func(t *testing.T) {
			path := blank(t, 32<<20)
			disktest.Run(t, "mke2fs", append([]string{"-q", "-F", "-O", "journal_dev"}, append(args, path)...)...)
			v := probe(t, path)
			requireBlkid(t, path, v)
			require.Equal(t, volume.JBD, v.Kind)
			require.Equal(t, int64(32<<20), v.Size)
			require.Empty(t, v.Issues)
		})
	}
}
