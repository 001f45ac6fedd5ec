package identify

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/poolforge"
	"github.com/trueup/trueup/internal/volume"
)

// The judges are mdadm, which calls a checksum correct, and libblkid.
func TestMDVersion1(t *testing.T) {
	for version, sector := range map[string]uint64{"1.0": 0, "1.1": 264, "1.2": 272} {
		t.Run(version, func(t *testing.T) {
			f := make(forge.Bytes, 8<<20+4096)
			poolforge.PutMD1(f, version, sector)
			path := written(t, f)
			v := probe(t, path)
			says := columns(disktest.Output(t, "mdadm", "--examine", path))
			export := equations(disktest.Output(t, "mdadm", "--examine", "--export", path))
			require.Contains(t, says["Checksum"], "correct")
			require.Equal(t, volume.MDRaid, v.Kind)
			require.Equal(t, says["Array UUID"], v.UUID)
			require.Equal(t, says["Name"], v.Label)
			require.Equal(t, says["Version"], detail(v, "metadata"))
			require.Equal(t, export["MD_LEVEL"], detail(v, "level"))
			require.Equal(t, export["MD_DEVICES"], detail(v, "devices"))
			require.Equal(t, "64K", says["Chunk Size"])
			require.Equal(t, "64 KiB", detail(v, "chunk size"))
			require.Equal(t, says["Device Role"], "Active "+detail(v, "role"))
			require.Equal(t, version, blkid(t, path)["VERSION"])
			require.Equal(t, blkid(t, path)["LABEL"], v.Label)
			require.Equal(t, int64(sector)*512, v.DataStart)
			if sector > 0 {
				require.Equal(t, says["Data Offset"], map[uint64]string{264: "264 sectors", 272: "272 sectors"}[sector])
			}
			require.Equal(t, version == "1.0", v.AtEnd)
			require.Empty(t, v.Issues)
		})
	}
}

func TestMDVersion0(t *testing.T) {
	for name, tc := range map[string]struct {
		order    binary.ByteOrder
		metadata string
		version  string
	}{"little-endian": {binary.LittleEndian, "0.90", "0.90"}, "big-endian": {
		binary.BigEndian, "0.swap",
		"0.90, big-endian",
	}} {
		t.Run(name, func(t *testing.T) {
			f := make(forge.Bytes, 8<<20+4096)
			poolforge.PutMD0(f, tc.order)
			path := written(t, f)
			v := probe(t, path)
			says := columns(disktest.Output(t, "mdadm", "--examine", "--metadata", tc.metadata, path))
			require.Contains(t, says["Checksum"], "correct")
			require.Equal(t, says["UUID"], v.UUID)
			require.Equal(t, says["Raid Level"], detail(v, "level"))
			require.Equal(t, says["Raid Devices"], detail(v, "devices"))
			require.Equal(t, tc.version, detail(v, "metadata"))
			require.Equal(t, "linux_raid_member", blkid(t, path)["TYPE"])
			require.True(t, v.AtEnd)
			require.Zero(t, v.DataStart)
		})
	}
}

// A mirror with its superblock at the end shows its file system at the start: that is one volume, not two.
func TestMDShowsItsContent(t *testing.T) {
	for name, put := range map[string]func(forge.Bytes){
		"0.90": mirror0,
		"1.0":  func(f forge.Bytes) { poolforge.PutMD1(f, "1.0", 0) },
	} {
		t.Run(name, func(t *testing.T) {
			f := make(forge.Bytes, 8<<20)
			fsforge.PutExt(f, 0, 8<<11)
			put(f)
			v := probeForged(t, f)
			require.Equal(t, volume.MDRaid, v.Kind)
			require.Equal(t, `ext2 "forged"`, detail(v, "content"))
			require.Empty(t, v.Issues)
			require.Nil(t, v.Boot, "what is inside belongs to all members of the array, and is left alone")
		})
	}
}

// A Linux that hibernates into swap on an array or on LVM has read the partition table all the same, wherever that swap
// begins.
func TestHibernationInsideOfContainers(t *testing.T) {
	for name, c := range map[string]struct {
		put  puts
		kind volume.Kind
	}{
		"a mirror":            {puts{hibernated, mirror0}, volume.MDRaid},
		"behind a superblock": {puts{asleep(272 * 512), putMD1("1.2", 1, 272)}, volume.MDRaid},
		"LVM":                 {puts{leftoverLVM, asleep(poolforge.LVMPeStart + 8<<16)}, volume.LVM2},
	} {
		v := probeForged(t, c.put.disk())
		require.Equal(t, c.kind, v.Kind, name)
		require.Equal(t, []string{"hibernated-linux"}, disktest.Codes(v.Issues), name)
		require.True(t, v.Issues[0].DiskWide, name)
	}
}
