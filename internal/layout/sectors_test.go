package layout_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
)

const eight = 4096 / 512

// recordOf4096 writes a boot record of a disk whose sectors have 4096 bytes.
func recordOf4096(f disktest.Forged, lba int64, entries ...disktest.MBREntryFields) {
	for i, e := range entries {
		f.Entry(lba*eight, i, e)
	}
}

func refusesSectors(l *layout.Layout) bool {
	return slices.ContainsFunc(l.Issues, func(i ondisk.Issue) bool {
		return strings.HasPrefix(i.Code, "sector-size") && i.Effect == ondisk.Refuse
	})
}

// Nothing in a raw file says how large its sectors are. What stands where the table leads does, by sectors of the one
// size or the other.
func TestEvidenceForSectorsOf4096(t *testing.T) {
	const data = 0xa5
	primary := disktest.MBREntryFields{Type: 0x83, Start: 63, Sectors: 100}
	for name, c := range map[string]struct {
		entries []disktest.MBREntryFields
		fill    func(f disktest.Forged)
		refused bool
	}{
		"boot records at 4096, and no volume that is known": {
			[]disktest.MBREntryFields{primary, {Type: 0x05, Start: 200, Sectors: 400}},
			func(f disktest.Forged) {
				recordOf4096(f, 200, disktest.MBREntryFields{Type: 0x83, Start: 63, Sectors: 100},
					disktest.MBREntryFields{Type: 0x05, Start: 200, Sectors: 163})
				recordOf4096(f, 400, disktest.MBREntryFields{Type: 0x83, Start: 63, Sectors: 100})
			}, true,
		},
		"boot records at 512": {
			[]disktest.MBREntryFields{primary, {Type: 0x05, Start: 200, Sectors: 400}},
			func(f disktest.Forged) {
				f.EBR(200, disktest.MBREntryFields{Type: 0x83, Start: 63, Sectors: 100}, disktest.MBREntryFields{})
			}, false,
		},
		"the copy of an NTFS boot sector at 4096": {
			[]disktest.MBREntryFields{{Type: 7, Start: 63, Sectors: 100}},
			func(f disktest.Forged) {
				at := int64(162) * 4096
				f.Text(at+3, "NTFS    ")
				f.U16(at+disktest.BootBytesPerSector, 4096)
				f.U16(at+disktest.MBRMagic, 0xaa55)
			}, true,
		},
		"the copy of a FAT32 boot sector at 4096": {
			[]disktest.MBREntryFields{{Type: 0x0c, Start: 63, Sectors: 100}},
			func(f disktest.Forged) {
				at := int64(63+6) * 4096
				f.Text(at+0x52, "FAT32   ")
				f.U16(at+disktest.BootBytesPerSector, 4096)
				f.U16(at+disktest.MBRMagic, 0xaa55)
			}, true,
		},
		"the copy of an ext superblock at 4096": {
			[]disktest.MBREntryFields{{Type: 0x83, Start: 63, Sectors: 4000}},
			func(f disktest.Forged) {
				at := int64(63)*4096 + 8193<<10
				f.U16(at+0x38, 0xef53)
				f.U16(at+0x5a, 1)
				f.U8(63*512, data)
			}, true,
		},
		"unknown data where 4096 leads, and zeros where 512 does": {
			[]disktest.MBREntryFields{primary}, func(f disktest.Forged) { f.U8(63*4096, data) }, true,
		},
		"unknown data where both lead": {
			[]disktest.MBREntryFields{primary}, func(f disktest.Forged) { f.U8(63*4096, data); f.U8(63*512, data) }, false,
		},
		"a volume at 512, data where 4096 leads": {
			[]disktest.MBREntryFields{{Type: 7, Start: 63, Sectors: 300}}, func(f disktest.Forged) {
				f.PutNTFS(63, 300)
				f.U8(63*4096, data)
			}, false,
		},
		"a table that has no room at 4096": {
			[]disktest.MBREntryFields{{Type: 0x83, Start: 63, Sectors: 5000}}, func(f disktest.Forged) {
				f.U8(63*4096, data)
			}, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := disktest.ForgeMBR(36000, c.entries...)
			c.fill(f)
			require.Equal(t, c.refused, refusesSectors(read(t, f)))
		})
	}
}

// An order decides where nothing but data speaks for the other size; what a boot record or volume says stands.
func TestSectorsAreAsOrdered(t *testing.T) {
	unsure := disktest.ForgeMBR(36000, disktest.MBREntryFields{Type: 0x83, Start: 63, Sectors: 100})
	unsure.U8(63*4096, 1)
	l := read(t, unsure)
	require.True(t, refusesSectors(l))
	l.SectorsAreAsOrdered()
	require.False(t, refusesSectors(l))
	require.Contains(t, codes(l), "sector-size-unsure")

	sure := disktest.ForgeMBR(36000, disktest.MBREntryFields{Type: 7, Start: 63, Sectors: 2400})
	sure.PutNTFS(63*8, 2400)
	l = read(t, sure)
	require.True(t, refusesSectors(l))
	l.SectorsAreAsOrdered()
	require.True(t, refusesSectors(l))
}

// An extended partition without a boot record has no logical partitions for any system, and data in it are worth a
// word.
func TestAnEmptyBootRecord(t *testing.T) {
	f := disktest.ForgeMBR(8000, disktest.MBREntryFields{Type: 0x05, Start: 2048, Sectors: 4000})
	require.NotContains(t, codes(read(t, f)), "empty-boot-record", "never formatted")
	f.U8(3000*512, 1)
	require.Contains(t, codes(read(t, f)), "empty-boot-record")
}
