package layout_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest/boottest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/poolforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/ondisk"
)

// A BitLocker volume that does not say whether it holds a system is one of data only on a disk that nothing boots, or
// beside a Windows that can be read.
func TestBitLockerByItsDisk(t *testing.T) {
	const start, sectors = 2048, 8192
	code := func(b ...byte) func(forge.Bytes) { return func(f forge.Bytes) { f.Put(0, b) } }
	beside := func(s tableforge.Slot) func(forge.Bytes) {
		return func(f forge.Bytes) { tableforge.PutSlot(f, 0, 1, s) }
	}
	for name, c := range map[string]struct {
		change func(forge.Bytes)
		says   string // empty: a volume of data
	}{
		"a disk of data":                 {func(forge.Bytes) {}, ""},
		"with the code that Windows put": {code(0xbe, 0xbe, 0x07, 0xb8, 0x01, 0x02, 0xcd, 0x13), ""},
		"active": {
			func(f forge.Bytes) { f.U8(tableforge.MBREntries, 0x80) },
			"partition 1 is active",
		},
		"beside an active partition": {
			beside(tableforge.Slot{Flag: 0x80, Type: 7, Start: 63, Sectors: 1000}), "partition 2 is active",
		},
		"beside an EFI system partition": {
			beside(tableforge.Slot{Type: 0xef, Start: 63, Sectors: 1000}), "partition 2 is an EFI system partition",
		},
		"behind unknown code": {code(0xeb, 0x10, 0x33, 0x44), "code in sector 0 is not known"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := tableforge.NewMBR(start+sectors, tableforge.Slot{Type: 7, Start: start, Sectors: sectors})
			inside := make(forge.Bytes, sectors*512)
			poolforge.PutBitLocker(inside, "PC D: 01/02/2020")
			f.Put(start*512, inside)
			c.change(f)
			var found []ondisk.Issue
			for _, i := range boottest.Read(t, f).Issues {
				if i.Code == "bitlocker" {
					found = append(found, i)
				}
			}
			require.Len(t, found, 1)
			require.Equal(t, 1, found[0].Partition)
			require.True(t, found[0].OnMove)
			if c.says == "" {
				require.Equal(t, ondisk.Note, found[0].Effect)
				return
			}
			require.Equal(t, ondisk.Unbootable, found[0].Effect)
			require.Contains(t, found[0].Text, c.says)
		})
	}
}
