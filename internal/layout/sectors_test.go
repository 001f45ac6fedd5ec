package layout_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
)

const eight = 4096 / 512

// recordOf4096 writes a boot record of a disk whose sectors have 4096 bytes.
func recordOf4096(f forge.Bytes, lba int64, entries ...tableforge.Slot) {
	for i, e := range entries {
		tableforge.PutSlot(f, lba*eight, i, e)
	}
}

// noise fills n bytes with data of no kind.
func noise(f forge.Bytes, at, n int64) {
	for i := range n {
		f.U8(at+i, byte(i%251)|1)
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
	primary := slot(0x83, 63, 100)
	for name, c := range map[string]struct {
		entries []tableforge.Slot
		fill    func(f forge.Bytes)
		refused bool
	}{
		"boot records at 4096, and no volume that is known": {
			[]tableforge.Slot{primary, {Type: 0x05, Start: 200, Sectors: 400}},
			func(f forge.Bytes) {
				recordOf4096(f, 200, slot(0x83, 63, 100), slot(0x05, 200, 163))
				recordOf4096(f, 400, slot(0x83, 63, 100))
			}, true,
		},
		"boot records at 512": {
			[]tableforge.Slot{primary, {Type: 0x05, Start: 200, Sectors: 400}},
			func(f forge.Bytes) {
				tableforge.PutEBR(f, 200, slot(0x83, 63, 100), tableforge.Slot{})
			}, false,
		},
		"the copy of an NTFS boot sector at 4096": {
			[]tableforge.Slot{{Type: 7, Start: 63, Sectors: 100}},
			func(f forge.Bytes) {
				at := int64(162) * 4096
				f.Text(at+3, "NTFS    ")
				f.U16(at+fsforge.BootBytesPerSector, 4096)
				f.U16(at+tableforge.MBRMagic, 0xaa55)
			}, true,
		},
		"the copy of a FAT32 boot sector at 4096": {
			[]tableforge.Slot{{Type: 0x0c, Start: 63, Sectors: 100}},
			func(f forge.Bytes) {
				at := int64(63+6) * 4096
				f.Text(at+0x52, "FAT32   ")
				f.U16(at+fsforge.BootBytesPerSector, 4096)
				f.U16(at+tableforge.MBRMagic, 0xaa55)
			}, true,
		},
		"the copy of an ext superblock at 4096": {
			[]tableforge.Slot{{Type: 0x83, Start: 63, Sectors: 4000}},
			func(f forge.Bytes) {
				at := int64(63)*4096 + 8193<<10
				f.U16(at+0x38, 0xef53)
				f.U16(at+0x5a, 1)
				f.U8(63*512, data)
			}, true,
		},
		"unknown data where 4096 leads, and zeros where 512 does": {
			[]tableforge.Slot{primary}, func(f forge.Bytes) { f.U8(63*4096, data) }, true,
		},
		"unknown data where both lead": {
			[]tableforge.Slot{primary}, func(f forge.Bytes) { f.U8(63*4096, data); f.U8(63*512, data) }, false,
		},
		"a volume at 512, data where 4096 leads": {
			[]tableforge.Slot{{Type: 7, Start: 63, Sectors: 300}}, func(f forge.Bytes) {
				fsforge.PutNTFS(f, 63, 300)
				f.U8(63*4096, data)
			}, false,
		},
		"a table that has no room at 4096": {
			[]tableforge.Slot{{Type: 0x83, Start: 63, Sectors: 5000}}, func(f forge.Bytes) {
				f.U8(63*4096, data)
			}, false,
		},
		"two of unknown data by 4096, of which 512 meets one by chance": {
			[]tableforge.Slot{{Type: 0x83, Start: 256, Sectors: 1500}, {Type: 0x83, Start: 2100, Sectors: 2000}},
			func(f forge.Bytes) { noise(f, 256*4096, 5<<20); noise(f, 2100*4096, 1<<20) }, true,
		},
		"two by 4096, one of them empty where 4096 leads": {
			[]tableforge.Slot{{Type: 0x83, Start: 256, Sectors: 1500}, {Type: 0x83, Start: 2100, Sectors: 2000}},
			func(f forge.Bytes) { noise(f, 256*4096, 5<<20) }, true,
		},
		"two by 512, both met by chance where 4096 leads": {
			[]tableforge.Slot{{Type: 0x83, Start: 63, Sectors: 200}, {Type: 0x83, Start: 300, Sectors: 3000}},
			func(f forge.Bytes) { noise(f, 63*512, 200*512); noise(f, 300*512, 3000*512) }, false,
		},
		"two by 512, one of them empty": {
			[]tableforge.Slot{{Type: 0x83, Start: 63, Sectors: 4000}, {Type: 0x83, Start: 4070, Sectors: 100}},
			func(f forge.Bytes) { noise(f, 63*512, 4000*512) }, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := tableforge.NewMBR(36000, c.entries...)
			c.fill(f)
			require.Equal(t, c.refused, refusesSectors(read(t, f)))
		})
	}
}

// An order decides where nothing but data speaks for the other size; what a boot record or volume says stands.
func TestSectorsAreAsOrdered(t *testing.T) {
	unsure := tableforge.NewMBR(36000, slot(0x83, 63, 100))
	unsure.U8(63*4096, 1)
	l := read(t, unsure)
	require.True(t, refusesSectors(l))
	l.AcceptSectorSize()
	require.False(t, refusesSectors(l))
	require.Contains(t, disktest.Codes(l.Issues), "sector-size-unsure")

	sure := tableforge.NewMBR(36000, slot(7, 63, 2400))
	fsforge.PutNTFS(sure, 63*8, 2400)
	l = read(t, sure)
	require.True(t, refusesSectors(l))
	l.AcceptSectorSize()
	require.True(t, refusesSectors(l))
}

// An extended partition without a boot record has no logical partitions for any system, and data in it are worth a
// word.
func TestAnEmptyBootRecord(t *testing.T) {
	f := tableforge.NewMBR(8000, slot(0x05, 2048, 4000))
	require.NotContains(t, disktest.Codes(read(t, f).Issues), "empty-boot-record", "never formatted")
	f.U8(3000*512, 1)
	require.Contains(t, disktest.Codes(read(t, f).Issues), "empty-boot-record")
}
