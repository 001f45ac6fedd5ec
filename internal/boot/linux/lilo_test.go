package linux_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/boot/linux"
	"github.com/trueup/trueup/internal/disktest/boottest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/disktest/forge/volumeforge"
	"github.com/trueup/trueup/internal/ondisk"
)

// Spec: common.h of LILO 0.5, 21, 22 and 24: the signature after a jump of 2 or 6 bytes, then stage and version, or the
// version alone.
func TestLilo(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		code string
		says string
	}{
		"before 21":    {"\xeb\x21LILO\x01\x00\x14\x00", "LILO (older than 21)"},
		"21":           {"\xeb\x3c\x00\x00\x00\x00LILO\x01\x00\x15\x00", "LILO 21"},
		"22.2":         {"\xfa\xe8\x21\x00\xb4\x01LILO\x01\x00\x16\x02", "LILO 22.2"},
		"22.8":         {"\xfa\xeb\x21\x01\xb4\x01LILO\x16\x08\x03\x1e\x2f\x4d", "LILO 22.8"},
		"24, whenever": {"\xfa\xeb\x21\x01\xb4\x01LILO\x18\x00\x10\x00\x2f\x4d", "LILO 24"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, lba := range []int64{0, 63} {
				f := twoPartitionDisk()
				f.Text(lba*512, tc.code)
				f.U16(lba*512+510, 0xaa55)
				r := boottest.Read(t, f)
				require.Empty(t, r.Refs)
				require.Len(t, r.Issues, 1)
				i := r.Issues[0]
				require.Equal(t, "lilo", i.Code)
				require.Equal(t, ondisk.Unbootable, i.Effect)
				require.True(t, i.OnMove)
				require.Zero(t, i.Partition, "a kernel can lie in any partition")
				require.Contains(t, i.Text, tc.says+" in the ")
				require.Contains(t, i.Text, "its map is not rewritten, since ")
				require.Contains(t, i.Remedy, "run lilo from a rescue system")
				require.Equal(t, lba != 0, r.Boots(1))
				require.Contains(t, r.Chain[0].Text, tc.says+" in the ")
			}
		})
	}
}

// FuzzBootSectors reads any code in sector 0, at the start of a partition, and where XFS leaves room for some.
func FuzzBootSectors(f *testing.F) {
	f.Add([]byte("\xfa\xeb\x21\x01\xb4\x01LILO\x01\x00\x16\x08"), byte(0))
	f.Add([]byte("\xeb\x58\x90SYSLINUX\x00\x02\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x3a\x00\x07\x00\x3f"), byte(1))
	f.Add([]byte("\xeb\x63\x90"), byte(2))
	f.Fuzz(func(t *testing.T, code []byte, kind byte) {
		disk := twoPartitionDisk()
		code = code[:min(len(code), 440)]
		disk.Put(0, code)
		switch kind % 4 {
		case 1:
			fsforge.PutExt(disk, 63, 8000)
		case 2:
			volumeforge.PutXFS(disk, 63, 8000)
			disk.Put((63+4)*512, code)
		case 3:
			fsforge.PutNTFS(disk, 63, 8000)
		}
		if kind%4 != 2 {
			disk.Put(63*512, code)
		}
		r := boottest.Read(t, disk)
		for _, ref := range r.Refs {
			require.True(t, ref.Follows() || ref.Stays != "")
		}
		require.Equal(t, r.Code == linux.Lilo, hasLilo(r))
	})
}

// hasLilo reports whether LILO in sector 0 is refused.
func hasLilo(r *boot.Result) bool {
	for _, i := range r.Issues {
		if i.Code == linux.Lilo.ID && i.OnMove {
			return true
		}
	}
	return false
}

// twoPartitionDisk has two partitions behind a gap of 62 sectors, of which the first one is active, and a hole between
// them.
func twoPartitionDisk() forge.Bytes {
	return tableforge.NewMBR(16384, tableforge.Slot{Type: 0x83, Flag: 0x80, Start: 63, Sectors: 8000},
		tableforge.Slot{Type: 0x83, Start: 8100, Sectors: 8000})
}
