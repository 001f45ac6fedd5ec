package linux_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest/boottest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/volumeforge"
)

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
			f := twoPartitionDisk()
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
	f := twoPartitionDisk()
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
