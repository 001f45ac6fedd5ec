package linux_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disktest/boottest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/grubforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume"
)

// legacyDisk has two partitions behind a gap of 62 sectors, of which the first one is active, and a hole between them.
func legacyDisk() forge.Bytes {
	return tableforge.NewMBR(16384,
		tableforge.Slot{Type: 0x83, Flag: 0x80, Start: 63, Sectors: 8000},
		tableforge.Slot{Type: 0x83, Start: 8100, Sectors: 8000})
}

// word is a reference, in LBAs.
type word struct {
	partition int
	at        int64 // byte of the disk
	lba       int64
	target    int
}

func words(refs []boot.Ref) []word {
	var out []word
	for _, r := range refs {
		out = append(out, word{r.Partition, r.At[0].Off, r.Points / 512, r.Target})
	}
	return out
}

// What lies in the gap stays, and stage1.5 finds stage2 by partition and path.
func TestGrubLegacyInTheGap(t *testing.T) {
	f, s := legacyDisk(), grubforge.Stage15()
	s.Partition = 1
	s.List[0].Sectors = 61 // up to the last sector of the gap
	grubforge.PutStage1(f, 0, s)
	grubforge.PutStage(f, s)
	r := boottest.Read(t, f)
	require.Empty(t, r.Issues)
	require.Equal(t, []word{{0, 0x44, 1, 0}, {0, 512 + 0x1f8, 2, 0}}, words(r.Refs))
	require.NotEmpty(t, r.Refs[0].Stays)
	require.Equal(t, []string{
		"GRUB legacy in the MBR loads stage1.5 0.97 (e2fs) from LBA 1, in the gap",
		"stage1.5 of GRUB legacy opens /boot/grub/stage2 in partition 2 by its name",
	}, boottest.Texts(r.Chain))
	require.True(t, r.Boots(2))
	require.False(t, r.Boots(1))
}

// What points into a partition moves with it.
func TestGrubLegacyInAPartition(t *testing.T) {
	f, s := legacyDisk(), grubforge.Stage2(1000)
	s.List = []grubforge.Run{
		{Start: 1001, Sectors: 23, Segment: 0x820},
		{Start: 1030, Sectors: 200, Segment: 0xb00},
		{Start: 1300, Sectors: 10, Segment: 0x2400},
	}
	grubforge.PutStage1(f, 0, s)
	grubforge.PutStage1(f, 8100, s) // in the boot sector of the other partition
	grubforge.PutStage(f, s)
	r := boottest.Read(t, f)
	require.Empty(t, r.Issues)
	list := int64(1000*512 + 0x1f8)
	require.Equal(t, []word{
		{0, 0x44, 1000, 1},
		{1, list, 1001, 1},
		{1, list - 8, 1030, 1},
		{1, list - 16, 1300, 1},
		{2, 8100*512 + 0x44, 1000, 1},
	}, words(r.Refs))
	require.Equal(t, int64(0x44), r.Refs[4].Off)
	require.Equal(t, list-63*512, r.Refs[1].Off)
	b, err := r.Refs[2].Encode(r.Refs[2].Raw, 0x12345678*512)
	require.NoError(t, err)
	require.Equal(t, []byte{0x78, 0x56, 0x34, 0x12}, b)
	require.Equal(t, []string{
		"GRUB legacy in the MBR loads stage2 0.97 from LBA 1000, in partition 1",
		"stage2 of GRUB legacy opens /boot/grub/menu.lst by its name",
		"GRUB legacy in the boot sector of partition 2 loads stage2 0.97 from LBA 1000, in partition 1",
		"stage2 of GRUB legacy opens /boot/grub/menu.lst by its name",
	}, boottest.Texts(r.Chain))
	require.True(t, r.Boots(1) && r.Boots(2))
}

// stage2 can be told to read its menu from another partition than its own: by the number of the partition, or by a
// device.
func TestGrubLegacyOpensAnotherPartition(t *testing.T) {
	for name, tc := range map[string]struct {
		slot  byte
		opens string
		want  int
	}{
		"number":                   {1, "/grub/menu.lst", 2},
		"device":                   {0, "(hd0,1)/grub/menu.lst", 2},
		"device is its own":        {1, "(hd0,0)/grub/menu.lst", 1},
		"partition of another one": {1, "(hd1,1)/grub/menu.lst", 1},
		"there is no such one":     {7, "/grub/menu.lst", 1},
	} {
		t.Run(name, func(t *testing.T) {
			f, s := legacyDisk(), grubforge.Stage2(1000)
			s.Partition, s.Opens = tc.slot, tc.opens
			grubforge.PutStage1(f, 0, s)
			grubforge.PutStage(f, s)
			r := boottest.Read(t, f)
			require.Empty(t, r.Issues)
			require.True(t, r.Boots(1))
			require.Equal(t, tc.want == 2, r.Boots(2))
			last := r.Chain[len(r.Chain)-1]
			require.Equal(t, tc.want, last.Partition)
			require.Contains(t, last.Text, "opens /grub/menu.lst")
		})
	}
}

// A sector of GRUB legacy that cannot be read is never taken for what is on the disk.
func TestBadSectorsUnderGrubLegacy(t *testing.T) {
	for _, s := range []grubforge.Stage{grubforge.Stage15(), grubforge.Stage2(1000)} {
		f := legacyDisk()
		s.Partition = 1
		grubforge.PutStage1(f, 0, s)
		grubforge.PutStage1(f, 8100, s)
		grubforge.PutStage(f, s)
		boottest.EveryBadSector(t, boottest.GuestOf(t, f))
	}
}

// What is not understood is refused, and nothing of it is rewritten.
func TestGrubLegacyRefused(t *testing.T) {
	const list = 1000*512 + 0x1f8
	long := make([]grubforge.Run, 30)
	for i := range long {
		long[i] = grubforge.Run{Start: 1001 + uint32(i)*2, Sectors: 1, Segment: 0x820 + uint16(i)*0x20}
	}
	for name, tc := range map[string]struct {
		change func(f forge.Bytes, s *grubforge.Stage) // before and after the stage is put
		after  func(f forge.Bytes)
		says   string
		moves  int // the partition whose move matters; 0: any
	}{
		"stage at lba 0":               {change: at(0), says: "which is sector 0 or ends past the disk"},
		"stage at lba 2^32-1":          {change: at(1<<32 - 1), says: "LBA 4294967295"},
		"stage between two partitions": {change: at(8080), says: "neither in one partition nor in the gap"},
		"stage behind all partitions":  {change: at(16200), says: "neither in one partition nor in the gap"},
		"no stage at its place": {
			after: func(f forge.Bytes) { clear(f[1000*512:][:0x1f8]) },
			says:  "LBA 1000 in partition 1 holds no stage",
		},
		"a stage for another address": {
			after: both(u16(0x42, 0x2000), u16(0x48, 0x200)),
			says:  "holds no stage",
		},
		"an address that is not known": {after: u16(0x42, 0x9000), says: "0x9000"},
		"an address with its segment":  {after: both(u16(0x42, 0x9000), u16(0x48, 0x900)), says: "0x9000"},
		"code that does not jump on":   {after: u8(0x15d, 0x90), says: "not that of GRUB 0.9x"},
		"code that begins otherwise":   {after: u8(0, 0xea), says: "not that of GRUB 0.9x"},
		"a jump to another segment":    {after: u8(1000*512+0xe8+3, 1), says: "holds no stage"},
		"another segment than address": {after: u16(0x48, 0x900), says: "segment 0x900"},
		"interface 3.1":                {after: u8(0x3f, 1), says: "3.1"},
		"code that uses no such field": {after: u8(0xa3, 0x40), says: "not that of GRUB 0.9x"},
		"from another disk":            {after: u8(0x40, 0x81), says: "BIOS drive 0x81"},
		"list with count 0":            {after: u16(list+4, 0), says: "empty"},
		"list with count 65535":        {after: u16(list+4, 65535), says: "65535 sectors"},
		"list that goes on with 65535": {after: func(f forge.Bytes) {
			f.U32(list-8, 2000)
			f.U16(list-4, 65535)
			f.U16(list-2, 0x2540)
		}, says: "65535 sectors in entry 2"},
		"list at another address":   {after: u16(list+6, 0x840), says: "segment 0x840, and 0x820"},
		"list behind the disk":      {after: u32(list, 1<<32-1), says: "LBA 4294967295"},
		"list behind the partition": {after: u32(list, 7900), says: "neither in one partition nor in the gap"},
		"list in the gap, stage not": {
			change: run(2, 20),
			says:   "begins in partition 1, and a piece of it lies in the gap",
		},
		"list in another partition": {
			change: run(9000, 20),
			says:   "begins in partition 1, and a piece of it lies in partition 2",
		},
		"list without end": {change: func(_ forge.Bytes, s *grubforge.Stage) { s.List = long }, says: "no end"},
		"second sector of something else": {
			after: func(f forge.Bytes) { clear(f[1001*512:][:16]) },
			says:  "second sector",
		},
		"second sector without its jump": {after: u8(1001*512, 0x90), says: "second sector"},
		"stage1.5 that leaves the gap": {change: func(_ forge.Bytes, s *grubforge.Stage) {
			*s = grubforge.Stage15()
			s.List[0].Sectors = 62
		}, says: "LBA 2, 62 sectors long, neither in one partition nor in the gap"},
		"second sector in a segment":     {after: u8(1001*512+3, 1), says: "second sector"},
		"second sector in a high one":    {after: u8(1001*512+4, 1), says: "second sector"},
		"second sector of interface 2.2": {after: u8(1001*512+6, 2), says: "second sector"},
		"a long version": {
			change: version("0.97-with-many-patches"),
			says:   `version of its stage2 is "0.97-with-many-p"`,
		},
		"a version of control codes":     {change: version("0.97\x1b"), says: `version of its stage2 is "0.97\x1b"`},
		"menu without an end":            {change: opens("/" + strings.Repeat("a", 600)), says: "no name"},
		"second sector of a stage1.5":    {after: u8(1001*512+0x10, 2), says: "stage 2"},
		"second sector of interface 3.1": {after: u8(1001*512+7, 1), says: "second sector"},
		"version 1.98":                   {change: version("1.98"), says: "1.98"},
		"version without end": {after: func(f forge.Bytes) {
			for i := int64(0x12); i < 512; i++ {
				f.U8(1001*512+i, '0')
			}
		}, says: "version"},
		"menu by blocks of the disk":      {change: opens("(hd0)63+1"), says: `"63+1"`},
		"menu by blocks of the partition": {change: opens("63+1"), says: `"63+1"`},
		"no menu":                         {change: opens(""), says: "list of blocks"},
		"menu with control codes":         {change: opens("/boot/\x1b[2J"), says: "no name"},
		"stage1.5 of a file system unknown": {change: func(_ forge.Bytes, s *grubforge.Stage) {
			*s = grubforge.Stage15()
			s.ID = 77
		}, says: "stage 77"},
		"partition of illumos": {after: u8(tableforge.MBREntries+4, 0xbf), says: "Solaris", moves: 1},
	} {
		t.Run(name, func(t *testing.T) {
			f, s := legacyDisk(), grubforge.Stage2(1000)
			if tc.change != nil {
				tc.change(f, &s)
			}
			if int64(s.First)+2 < int64(len(f)/512) {
				grubforge.PutStage(f, s)
			}
			grubforge.PutStage1(f, 0, s)
			f.U16(tableforge.MBRMagic, 0xaa55)
			if tc.after != nil {
				tc.after(f)
			}
			r := boottest.Read(t, f)
			require.Empty(t, r.Refs)
			require.Len(t, r.Issues, 1)
			require.Equal(t, "grub-legacy", r.Issues[0].Code)
			require.Contains(t, r.Issues[0].Text, tc.says)
			require.Equal(t, tc.moves, r.Issues[0].Partition)
			require.Equal(t, []string{"GRUB legacy in the MBR"}, boottest.Texts(r.Chain))
		})
	}
}

// u8, u16 and u32 put a number at a byte of the disk.
func u8(off int64, v uint8) func(forge.Bytes)   { return func(f forge.Bytes) { f.U8(off, v) } }
func u16(off int64, v uint16) func(forge.Bytes) { return func(f forge.Bytes) { f.U16(off, v) } }
func u32(off int64, v uint32) func(forge.Bytes) { return func(f forge.Bytes) { f.U32(off, v) } }

func both(a, b func(forge.Bytes)) func(forge.Bytes) { return func(f forge.Bytes) { a(f); b(f) } }

func at(lba uint32) func(forge.Bytes, *grubforge.Stage) {
	return func(_ forge.Bytes, s *grubforge.Stage) {
		*s = grubforge.Stage2(lba)
		if lba == 0 || lba == 1<<32-1 { // its sectors cannot be written there
			s.List[0].Start = 1
		}
	}
}

func run(lba uint32, sectors uint16) func(forge.Bytes, *grubforge.Stage) {
	return func(_ forge.Bytes, s *grubforge.Stage) {
		s.List = append(s.List, grubforge.Run{Start: lba, Sectors: sectors, Segment: 0x820 + 233*0x20})
	}
}

func opens(name string) func(forge.Bytes, *grubforge.Stage) {
	return func(_ forge.Bytes, s *grubforge.Stage) { s.Opens = name }
}

func version(text string) func(forge.Bytes, *grubforge.Stage) {
	return func(_ forge.Bytes, s *grubforge.Stage) { s.Version = text }
}

// GRUB legacy reads sectors of 512 bytes.
func TestGrubLegacyOnLargeSectors(t *testing.T) {
	f, s := legacyDisk(), grubforge.Stage2(1000)
	grubforge.PutStage1(f, 0, s)
	grubforge.PutStage(f, s)
	tab, parts := boottest.Partitions(t, boottest.Disk(f))
	large := boottest.DiskOf(f, 4096)
	r := boottest.ReadGuest(t, boottest.Guest(large, tab, parts))
	require.Empty(t, r.Refs)
	require.Contains(t, r.Issues[0].Text, "sectors of 4096")
}

// A table of thousands of partitions, all with a loader.
func TestGrubLegacyInManyPartitions(t *testing.T) {
	f, s := legacyDisk(), grubforge.Stage2(1000)
	grubforge.PutStage1(f, 63, s)
	grubforge.PutStage(f, s)
	d := boottest.Disk(f)
	tab, parts := boottest.Partitions(t, d)
	many := slices.Repeat(parts[:1], 17)
	for i := range many {
		many[i].Number = i + 1
	}
	r := boottest.ReadGuest(t, boottest.Guest(d, tab, many))
	require.Len(t, boottest.But(r, boottest.Unseen), 1)
	require.Contains(t, r.Issues[0].Text, "more than 16 partitions")
}

// A table can say that a partition is longer than the disk.
func TestGrubLegacyBehindTheDisk(t *testing.T) {
	f, s := tableforge.NewMBR(4096,
		tableforge.Slot{Type: 0x83, Flag: 0x80, Start: 63, Sectors: 100_000}), grubforge.Stage2(1000)
	s.List = append(s.List, grubforge.Run{Start: 20_000, Sectors: 8, Segment: 0x820 + 233*0x20})
	grubforge.PutStage1(f, 0, s)
	grubforge.PutStage(f, s)
	d := boottest.Disk(f)
	tab, err := table.Read(d)
	require.NoError(t, err)
	parts := []boot.Partition{{Partition: tab.Partitions[0], Volume: &volume.Volume{Kind: volume.Unknown}}}
	for _, start := range []uint32{20_000, 4095} {
		f.U32(1000*512+0x1f8-8, start)
		r := boottest.ReadGuest(t, boottest.Guest(d, tab, parts))
		require.Len(t, r.Issues, 1)
		require.Contains(t, r.Issues[0].Text, "which is sector 0 or ends past the disk")
	}
}
