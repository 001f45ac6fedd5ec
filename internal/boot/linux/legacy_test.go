package linux_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/boot/firmware"
	"github.com/trueup/trueup/internal/boot/linux"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/boottest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/grubforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
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

// Data in the gap stay, and stage1.5 finds stage2 by partition and path.
func TestGrubLegacyInTheGap(t *testing.T) {
	f, s := legacyDisk(), grubforge.Stage15()
	s.Partition = 1
	s.List[0].Sectors = 61 // up to the last sector of the gap
	grubforge.PutStage1(f, 0, s)
	grubforge.PutStage(f, s)
	r := boottest.Read(t, f)
	require.Empty(t, r.Issues)
	require.Empty(t, r.Refs)
	require.Equal(t, []string{
		"GRUB legacy in the MBR loads stage1.5 0.97 (e2fs) from LBA 1, in the gap",
		"stage1.5 of GRUB legacy opens /boot/grub/stage2 in partition 2 by its name",
	}, boottest.Texts(r.Chain))
	require.True(t, r.Boots(2))
	require.False(t, r.Boots(1))
}

// References into a partition move with it.
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

// stage2 can be configured to read its menu from another partition, by number or by device.
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

// An unreadable sector of GRUB legacy is never mistaken for data.
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

// Unknown structures are refused, and nothing of them is rewritten.
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
		moves  int // partition whose move matters; 0: any
	}{
		"stage at lba 0":               {change: at(0), says: "neither in the gap"},
		"stage at lba 2^32-1":          {change: at(1<<32 - 1), says: "LBA 4294967295"},
		"stage between two partitions": {change: at(8080), says: "neither in the gap in front of the first partition"},
		"stage behind all partitions":  {change: at(16200), says: "neither in the gap in front of the first partition"},
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
		"list behind the partition": {after: u32(list, 7900), says: "neither in the gap"},
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
		}, says: "LBA 2, 62 sectors long, neither in the gap in front of the first partition"},
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
		require.Contains(t, r.Issues[0].Text, "behind the end of the disk")
	}
}

// grub4dosCode is the common part of the MBRs of grub4dos 0.4.4 to 0.4.6, for a second part that ends after 16 sectors.
var grub4dosCode = boottest.Code("eb5e80",
	"31f631ffb9df00fcf3a5bbfc1f66b8475255aa6639077503e89819eab800002016 1f663907",
	"83c60c81fefe0172eb")

// putGrub4DOS writes both parts of grub4dos.
func putGrub4DOS(f forge.Bytes) {
	f.Put(0, grub4dosCode)
	f.Text(0x1a0, "Missing helper.")
	f.Text(0x1ffc, "GR\x55\xaa")
}

// TestGrub4DOSWithASecondMark puts the instruction by which the second part is located also at the very start, where no
// position precedes it, and one with another mark.
func TestGrub4DOSWithASecondMark(t *testing.T) {
	for at, first := range []string{"66b8475255aa", "66b8475255aa", "90909066b811223344"} {
		f := tableforge.NewMBR(60000, tableforge.Slot{Type: 6, Flag: 0x80, Start: 63, Sectors: 40000})
		code := boottest.Code(first, "31f631ffb9df00fcf3a5bbfc1f66b8475255aa6639077503e89819eab800002016 1f663907",
			"83c60c81fefe0172eb")
		at %= 2
		f.Put(int64(at), code[:len(code)-at])
		f.Text(0x1ffc, "GR\x55\xaa")
		r := boottest.Read(t, f)
		require.Equal(t, linux.ForDOS, r.Code)
		require.Equal(t, "grub4dos in sector 0 loads LBA 1 to 15, and looks for GRLDR in every partition",
			r.Chain[0].Text)
	}
}

// grub4dos finds GRLDR by name, and boots from its partition, active or not.
func TestGrub4DOS(t *testing.T) {
	volume, grldr := filepath.Join(t.TempDir(), "fat"), filepath.Join(t.TempDir(), "grldr")
	require.NoError(t, os.WriteFile(volume, make([]byte, 40000*512), 0o600))
	require.NoError(t, os.WriteFile(grldr, []byte("a loader"), 0o600))
	disktest.Run(t, "mkfs.fat", "-F", "16", "-h", "63", volume)
	disktest.Run(t, "mcopy", "-i", volume, grldr, "::/grldr")
	files := disktest.ReadFile(t, volume)
	f := tableforge.NewMBR(60000, tableforge.Slot{Type: 6, Flag: 0x80, Start: 63, Sectors: 40000},
		tableforge.Slot{Type: 7, Start: 40063, Sectors: 10000})
	f.Put(63*512, files)
	putGrub4DOS(f)
	r := boottest.Read(t, f)
	require.Equal(t, linux.ForDOS, r.Code)
	require.Equal(t, []boot.Link{
		{Text: "grub4dos in sector 0 loads LBA 1 to 15, and looks for GRLDR in every partition"},
		{Partition: 1, Text: "GRLDR lies in partition 1"},
	}, r.Chain)
	require.True(t, r.Boots(1))
	require.False(t, r.Boots(2))
	for _, i := range r.Issues {
		require.NotEqual(t, "boot-code", i.Code)
		require.NotEqual(t, "grub4dos", i.Code)
	}
}

// The mark of the second part differs between builds, and installers can choose one. The code continues in another
// segment. Spec: grub4dos, stage2/grldrstart.S, disk_serial_number_structure; 0.4.4 has 054DCB93h.
func TestGrub4DOSWithAnyMark(t *testing.T) {
	for mark, jump := range map[string]string{
		"\x93\xcb\x4d\x05": "eab8000020", "\x00\x00\x00\x00": "eab8000094", "\xff\xee\xdd\xcc": "16 6ab8 cb",
	} {
		first := fmt.Sprintf("31f631ffb9df00fcf3a5bbfc1f66b8%x6639077503e89819 %s 161f663907", mark, jump)
		code := boottest.Code("eb5e80", first, "83c60c81fefe0172eb")
		f := tableforge.NewMBR(8000, tableforge.Slot{Type: 0x83, Start: 2000, Sectors: 4000})
		f.Put(0, code)
		f.Text(0x1a0, "Missing helper.")
		f.Text(0x1ffc, mark)
		r := boottest.Read(t, f)
		require.Equal(t, linux.ForDOS, r.Code)
		require.Empty(t, r.Issues)
		f.U8(0x1ffd, 0x11)
		require.Len(t, boottest.Read(t, f).Issues, 1)
	}
}

func TestGrub4DOSInsideOfAPartition(t *testing.T) {
	f := tableforge.NewMBR(8000, tableforge.Slot{Type: 0x83, Start: 15, Sectors: 4000})
	putGrub4DOS(f)
	f.Text(0x1ffc, "GR\x55\xaa")
	r := boottest.Read(t, f)
	require.Len(t, boottest.But(r, boottest.Unseen), 1)
	require.Equal(t, ondisk.Unbootable, r.Issues[0].Effect)
	require.Contains(t, r.Issues[0].Text, "first partition")
}

// Without the mark at its end, the second part is missing or unknown.
func TestGrub4DOSWithoutItsSecondPart(t *testing.T) {
	for name, change := range map[string]func(forge.Bytes){
		"another mark":       func(f forge.Bytes) { f.U8(0x1ffd, 'r') },
		"not behind sectors": func(f forge.Bytes) { f.U16(15, 0x1ff0); f.Text(0x1ff0, "GR\x55\xaa") },
		"behind a track":     func(f forge.Bytes) { f.U16(15, 0x7ffc); f.Text(0x7ffc, "GR\x55\xaa") },
	} {
		t.Run(name, func(t *testing.T) {
			f := tableforge.NewMBR(8000, tableforge.Slot{Type: 0x83, Start: 2000, Sectors: 4000})
			putGrub4DOS(f)
			require.Empty(t, boottest.Read(t, f).Issues)
			change(f)
			r := boottest.Read(t, f)
			require.Equal(t, linux.ForDOS, r.Code)
			require.Len(t, r.Issues, 1)
			require.Equal(t, ondisk.Unbootable, r.Issues[0].Effect)
			require.Contains(t, r.Issues[0].Text, "second part")
		})
	}
}

// grub4dos can run the MBR that it replaced, with the current table.
func TestGrub4DOSRunsThePreviousMBR(t *testing.T) {
	standard := []byte{0xbe, 0xbe, 0x07, 0xb4, 0x42, 0xcd, 0x13}
	for name, tc := range map[string]struct {
		flags, later byte // at bytes 2 and 5ah
		code         []byte
		when         string
		effects      []ondisk.Effect
	}{
		"standard code, first": {0, 0, standard, "unless a key is pressed", nil},
		"standard code, last":  {0x80, 0, standard, "if it finds no GRLDR", nil},
		"unknown code, first": {
			0, 0,
			[]byte{0xfa, 1, 2},
			"unless a key is pressed",
			[]ondisk.Effect{ondisk.Unbootable},
		},
		"unknown code, first, of 0.4.6": {
			0x90, 0,
			[]byte{0xfa, 1, 2},
			"unless a key is pressed",
			[]ondisk.Effect{ondisk.Unbootable},
		},
		"unknown code, last, of 0.4.6": {
			0x90, 0x80,
			[]byte{0xfa, 1, 2},
			"if it finds no GRLDR",
			[]ondisk.Effect{ondisk.Warn},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := tableforge.NewMBR(8000, tableforge.Slot{Type: 0xda, Flag: 0x80, Start: 2000, Sectors: 4000})
			putGrub4DOS(f)
			f.U8(2, tc.flags)
			f.U8(0x5a, tc.later)
			f.Put(512, tc.code)
			f.U16(1022, 0xaa55)
			r := boottest.Read(t, f)
			require.Contains(t, boottest.Texts(r.Chain)[1], tc.when)
			var effects []ondisk.Effect
			for _, i := range r.Issues {
				effects = append(effects, i.Effect)
			}
			require.Equal(t, tc.effects, effects)
		})
	}
}

// LBA 1 without an MBR signature or code is not a copy kept by grub4dos.
func TestGrub4DOSWithoutAPreviousMBR(t *testing.T) {
	for _, tc := range []struct {
		signature uint16
		code      []byte
	}{{0xaa00, []byte{0xfa}}, {0x0055, []byte{0xfa}}, {0xaa55, nil}} {
		f := tableforge.NewMBR(8000, tableforge.Slot{Type: 0xda, Flag: 0x80, Start: 2000, Sectors: 4000})
		putGrub4DOS(f)
		f.Put(512, tc.code)
		f.U16(1022, tc.signature)
		require.Len(t, boottest.Read(t, f).Chain, 1)
	}
}

// A build with other instructions is not a standard code, though it reads the table.
func TestGrub4DOSOfAnUnknownBuild(t *testing.T) {
	code := boottest.Code("bebe01", "b402", "cd13")
	require.Equal(t, firmware.GenericCHS, layout.Identify(code))
	copy(code[0x1a0:], "Missing MBR-helper.")
	require.Equal(t, boot.Unknown, layout.Identify(code))
}

// For any position of the mark, flags and LBA 1: the position of the second part is reported, and a missing one is
// refused.
func FuzzGrub4DOS(f *testing.F) {
	f.Add(uint16(0x1ffc), uint16(0x1ffc), byte(0x80), grub4dosCode)
	f.Add(uint16(0xfffe), uint16(0), byte(0x90), []byte{0xfa})
	f.Fuzz(func(t *testing.T, place, mark uint16, flags byte, previous []byte) {
		disk := tableforge.NewMBR(128, tableforge.Slot{Type: 0xda, Start: 63, Sectors: 60})
		disk.Put(0, grub4dosCode)
		disk.U16(15, place)
		disk.U8(2, flags)
		copy(disk[512:1024], previous)
		copy(disk[mark:], "GR\x55\xaa")
		d := boottest.Disk(disk)
		tab, err := table.Read(d)
		if err != nil {
			return
		}
		g := boottest.Guest(d, tab, nil)
		r := boottest.ReadGuest(t, g)
		if r.Code != linux.ForDOS {
			return // the mark overlaps the code
		}
		require.NotEmpty(t, r.Chain)
		whole := (int(place)+4)%512 == 0 && int(place)+4 <= 63*512 && string(disk[place:place+4]) == "GR\x55\xaa"
		require.Equal(t, whole, !strings.Contains(fmt.Sprint(r.Issues), "second part"))
	})
}
