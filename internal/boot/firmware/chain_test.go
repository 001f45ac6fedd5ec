package firmware_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/boottest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/ondisk"
)

// chain is the boot chain of a forged disk: the partition that each step needs, and its text.
func chain(t *testing.T, f forge.Bytes) (texts []string, needs []int) {
	t.Helper()
	r := boottest.Read(t, f)
	for _, l := range r.Chain {
		texts, needs = append(texts, l.Text), append(needs, l.Partition)
	}
	return texts, needs
}

// twoPartitions is a disk with a FAT16 and an NTFS, active according to the flags.
func twoPartitions(code []byte, flags ...byte) forge.Bytes {
	f := tableforge.NewMBR(40000,
		tableforge.Slot{Type: 6, Flag: flags[0], Start: 63, Sectors: 16000},
		tableforge.Slot{Type: 7, Flag: flags[1], Start: 20000, Sectors: 16000})
	fsforge.PutFAT16(f, 63, 16000)
	fsforge.PutNTFS(f, 20000, 16000)
	f.Put(0, code)
	return f
}

func file(t *testing.T, path string) []byte {
	t.Helper()
	b := disktest.ReadFile(t, disktest.DataFile(t, path))
	code := make([]byte, 440)
	copy(code, b)
	return code
}

func TestChainOfABIOS(t *testing.T) {
	mbr, alt, gpt := "/usr/lib/syslinux/mbr/mbr.bin", "/usr/lib/syslinux/mbr/altmbr.bin",
		"/usr/lib/syslinux/mbr/gptmbr.bin"
	const byLBA = "code of SYSLINUX in sector 0 reads the boot sector of the active partition by LBA, and passes its " +
		"table entry on"
	for _, tc := range []struct {
		name       string
		disk       forge.Bytes
		texts      []string
		partitions []int
	}{
		{"no code", twoPartitions(nil, 0x80, 0), nil, nil},
		{
			"the first is active", twoPartitions(file(t, mbr), 0x80, 0),
			[]string{byLBA, "the boot sector of partition 1 (fat16) holds unknown code"},
			[]int{0, 1},
		},
		{
			"the second is active", twoPartitions(file(t, mbr), 0, 0x80),
			[]string{byLBA, "the boot sector of partition 2 (ntfs) holds no code: the boot ends there"},
			[]int{0, 2},
		},
		{
			"none is active", twoPartitions(file(t, mbr), 0, 0),
			[]string{byLBA, "there is no such partition, so a BIOS does not boot from this disk"},
			[]int{0, 0},
		},
		{"both are active", twoPartitions(file(t, mbr), 0x80, 0x80), []string{
			byLBA, "partitions 1, 2 are all marked so, which most code treats as an error",
			"the boot sector of partition 1 (fat16) holds unknown code",
			"the boot sector of partition 2 (ntfs) holds no code: the boot ends there",
		}, []int{0, 0, 1, 2}},
		{"altmbr goes by a number, not by the flag", twoPartitions(append(file(t, alt)[:439], 2), 0x80, 0), []string{
			"code of SYSLINUX altmbr in sector 0 reads the boot sector of partition 2 by LBA, and " +
				"passes its table entry on",
			"the boot sector of partition 2 (ntfs) holds no code: the boot ends there",
		}, []int{0, 2}},
		{
			"gptmbr on an MBR", twoPartitions(file(t, gpt), 0x80, 0),
			[]string{"code of SYSLINUX gptmbr in sector 0 does not read an MBR: no BIOS boots with it"},
			[]int{0},
		},
		{"unknown code", twoPartitions([]byte{0xfa, 1, 2, 3}, 0x80, 0), []string{
			"the code in sector 0 is unknown, and so is its next step",
			"the boot sector of partition 1 (fat16) holds unknown code",
		}, []int{0, 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.disk.Put(63*512+90, []byte{0xfa, 0x33, 0xc0})
			texts, partitions := chain(t, tc.disk)
			require.Equal(t, tc.texts, texts)
			require.Equal(t, tc.partitions, partitions)
		})
	}
}

// The boot path has the right step for real boot sectors, of Windows and of formatters.
func TestChainOfBootSectors(t *testing.T) {
	head := func(t *testing.T, path string) []byte {
		t.Helper()
		b := disktest.ReadFile(t, path)
		return b[:512]
	}
	made := func(t *testing.T, command string, args ...string) []byte {
		t.Helper()
		path := t.TempDir() + "/volume"
		require.NoError(t, os.WriteFile(path, make([]byte, 16<<20), 0o600))
		disktest.Run(t, command, append(args, path)...)
		return head(t, path)
	}
	windows := []string{"loads BOOTMGR of Windows Vista or later", "loads NTLDR of Windows NT to 2003"}
	const message = "shows a message of the formatter: there is no loader"
	for name, tc := range map[string]struct {
		corpus, file string
		tool         []string
		want         string
	}{
		"windows 7 or later, ntfs": {corpus: "go-ntfs/ads_with_same_ids-0x0.bin", want: windows[0]},
		"windows xp, ntfs":         {corpus: "dftt/7-ntfs-undel.dd.xz", want: windows[1]},
		"windows xp, fat16":        {corpus: "dftt/6-fat-undel.dd.xz", want: windows[1]},
		"mkfs.fat":                 {tool: []string{"mkfs.fat", "-F", "16"}, want: message},
		"mkntfs":                   {tool: []string{"mkntfs", "-F", "-q"}, want: message},
		"grub": {
			file: "/usr/lib/grub/i386-pc/boot.img",
			want: "GRUB 2 in the boot sector of partition 1 loads core.img from LBA 1, in the gap",
		},
		"zeros": {want: "holds no code: the boot ends there"},
	} {
		t.Run(name, func(t *testing.T) {
			f := tableforge.NewMBR(40000, tableforge.Slot{Type: 6, Flag: 0x80, Start: 63, Sectors: 30000})
			f.Put(0, file(t, "/usr/lib/syslinux/mbr/mbr.bin"))
			switch {
			case tc.corpus != "":
				f.Put(63*512, head(t, disktest.Corpus(t, tc.corpus)))
			case tc.file != "":
				f.Put(63*512, head(t, disktest.DataFile(t, tc.file)))
			case tc.tool != nil:
				f.Put(63*512, made(t, tc.tool[0], tc.tool[1:]...))
			}
			f.U16(63*512+510, 0xaa55)
			texts, _ := chain(t, f)
			require.True(t, strings.HasSuffix(texts[1], tc.want), texts[1])
		})
	}
}

// isolinux.bin is found by the sector number after the code, in a partition or before all of them.
func TestChainOfIsolinux(t *testing.T) {
	for name, tc := range map[string]struct {
		lba   uint32
		texts []string
		moves []int // the partitions whose move breaks it
	}{
		"in the partition": {100, []string{
			"ISOLINUX isohybrid in sector 0 loads isolinux.bin from LBA 100",
			"isolinux.bin lies in partition 1",
		}, []int{1}},
		"in front of it": {10, []string{"ISOLINUX isohybrid in sector 0 loads isolinux.bin from LBA 10"}, nil},
		"behind it": {
			39000,
			[]string{"ISOLINUX isohybrid in sector 0 loads isolinux.bin from LBA 39000"},
			[]int{0},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := tableforge.NewMBR(40000, tableforge.Slot{Type: 0x17, Flag: 0x80, Start: 63, Sectors: 30000})
			f.Put(0, file(t, "/usr/lib/ISOLINUX/isohdpfx.bin"))
			f.U32(432, tc.lba)
			r := boottest.Read(t, f)
			var texts []string
			for _, l := range r.Chain {
				texts = append(texts, l.Text)
			}
			require.Equal(t, tc.texts, texts)
			var moves []int
			for _, i := range r.Issues {
				require.Equal(t, "isolinux", i.Code)
				moves = append(moves, i.Partition)
			}
			require.Equal(t, tc.moves, moves)
		})
	}
}

// For any sector 0 and boot sector, each step has a text and refers to an existing partition.
func FuzzChain(f *testing.F) {
	f.Add([]byte{}, []byte("\xeb\x58\x90SYSLINUX"), byte(0x80))
	for _, name := range []string{"mbr.bin", "altmbr.bin", "gptmbr.bin"} {
		if b, err := os.ReadFile("/usr/lib/syslinux/mbr/" + name); err == nil {
			f.Add(b, []byte{}, byte(0x80))
		}
	}
	if b, err := os.ReadFile("/usr/lib/ISOLINUX/isohdpfx.bin"); err == nil {
		f.Add(b, []byte{}, byte(0))
	}
	f.Fuzz(func(t *testing.T, code, sector []byte, flag byte) {
		disk := tableforge.NewMBR(4096,
			tableforge.Slot{Type: 0x83, Flag: flag, Start: 63, Sectors: 900},
			tableforge.Slot{Type: 0xef, Start: 1000, Sectors: 900},
			tableforge.Slot{Type: 5, Start: 2000, Sectors: 900})
		tableforge.PutEBR(disk, 2000, tableforge.Slot{Type: 0x83, Flag: flag, Start: 63, Sectors: 800},
			tableforge.Slot{})
		disk.Put(0, code[:min(len(code), 440)])
		disk.Put(63*512, sector[:min(len(sector), 512)])
		r := boottest.Read(t, disk)
		for _, l := range r.Chain {
			require.NotEmpty(t, l.Text)
			require.Contains(t, []int{0, 1, 2, 3, 5}, l.Partition)
		}
		require.True(t, r.Boots(2), "the EFI system partition")
	})
}

// gptWith is a GPT with one partition of a type, and code in sector 0.
func gptWith(code []byte, kind []byte) forge.Bytes {
	f := tableforge.NewGPT(512, 4000, 128, tableforge.GPTEntry{First: 63, Last: 1062})
	for _, at := range []int64{2, 4000 - 33} {
		f.Put(at*512, kind)
	}
	tableforge.SealGPT(f, 512, 512)
	tableforge.SealGPT(f, 3999*512, 512)
	f.Put(0, code)
	f.Put(63*512, []byte{0xfa, 0x33, 0xc0})
	f.Put(63*512+0x60, []byte{0xfa, 0x33, 0xc0})
	return f
}

// FreeBSD's pmbr finds its partition by type, and its loader finds others by type: no position is stored.
func TestChainOfFreeBSDOnGPT(t *testing.T) {
	kind := []byte{0x9d, 0x6b, 0xbd, 0x83, 0x41, 0x7f, 0xdc, 0x11, 0xbe, 0x0b, 0x00, 0x15, 0x60, 0xb8, 0x4f, 0x0f}
	f := gptWith(boottest.Code("fc31c08ec08ed88ed0bc000ebe1a7cbf1a06b9e601f3a4e9008a",
		"f3a6753f89df8d7520bbc0078ec331db56e84e005e668b4528663b04750f668b452c663b44047505",
		"06536a016a1089e6b80042cd1383c41072", "9d6bbd83417fdc11be0b001560b84f0f"), kind)
	texts, partitions := chain(t, f)
	const reads = "code of FreeBSD pmbr in sector 0 reads the boot sector of the partition of type freebsd-boot by LBA"
	require.Equal(t, []string{reads, "the boot sector of partition 1 (unknown) holds unknown code"}, texts)
	require.Equal(t, []int{0, 1}, partitions)
	issues := boottest.Read(t, f).Issues
	require.Len(t, issues, 1)
	require.Equal(t, ondisk.Unbootable, issues[0].Effect)

	f.Put(63*512, boottest.Code("31c98ec18ed98ed1bc007cbb637c8b770a01de", "88160009e9ad13eb0e425458"))
	texts, partitions = chain(t, f)
	const finds = "gptboot or gptzfsboot in the boot sector of partition 1 finds the partition of FreeBSD by its type"
	require.Equal(t, []string{reads, finds}, texts)
	require.Equal(t, []int{0, 1}, partitions)
	require.Empty(t, boottest.Read(t, f).Issues)
}

// Code in the shape of an MBR's may read a GPT anyway.
func TestGenericCodeOnGPT(t *testing.T) {
	f := gptWith([]byte{0xbe, 0xbe, 0x07, 0xb4, 0x42, 0xcd, 0x13}, []byte("a type like none"))
	texts, _ := chain(t, f)
	require.Equal(t, []string{"the code in sector 0 has the shape of standard code for an MBR, " +
		"but it is unknown whether it reads the GPT"}, texts)
	issues := boottest.Read(t, f).Issues
	require.Len(t, issues, 1)
	require.Equal(t, ondisk.Warn, issues[0].Effect)
}

// The code in sector 0 reads the boot sector of the active partition. How that boot sector finds its volume is unknown:
// OS/2's adds a stored start to every sector number. Without code in sector 0, nothing leads there.
func TestUnknownBootSectorOfTheActivePartition(t *testing.T) {
	for _, c := range []struct {
		name string
		code func(forge.Bytes)
		flag byte
		want []ondisk.Effect
	}{
		{"behind code that goes by the flag", readsByLBA, 0x80, []ondisk.Effect{ondisk.Unbootable}},
		{"behind no code", func(forge.Bytes) {}, 0x80, []ondisk.Effect{ondisk.Warn, ondisk.Warn}},
		{"not active", readsByLBA, 0, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := tableforge.NewMBR(8000, tableforge.Slot{Type: 7, Flag: c.flag, Start: 63, Sectors: 4000})
			c.code(f)
			f.Text(63*512, "\xeb\x3c\x90IBM 20.0")
			f.Put(63*512+0x5a, []byte{0xfa, 0x33, 0xdb})
			f.U16(63*512+tableforge.MBRMagic, 0xaa55)
			var got []ondisk.Effect
			for _, i := range boottest.Read(t, f).Issues {
				got = append(got, i.Effect)
				require.True(t, i.OnMove)
			}
			require.Equal(t, c.want, got)
		})
	}
}

// readsByLBA writes code to sector 0 that reads the boot sector of the active partition by LBA.
func readsByLBA(f forge.Bytes) {
	f.Put(0, []byte{0xbe, 0xbe, 0x07, 0xb4, 0x42, 0xcd, 0x13}) // mov si,07beh; mov ah,42h; int 13h
}

var (
	rufusCode = boottest.Code("bbbe7d268b17268b4f0231c08ec0b80102bb007ccd1373")
	haikuCode = boottest.Code("31f6bbbe07b90400382f74087fe085f675dc89de80c310e2ef",
		"83c608bff80d66a587fe83ee04e82400eb0c8a74018b4c02b002b402cd13", "5e881481bffe0155aa",
		"31534642a33bf110802a4861696b7521")
)

// The code of Rufus reads the first entry of the table, even if another partition is active. Its boot sector must be
// known like that of the active one.
func TestRufusReadsTheFirstEntry(t *testing.T) {
	f := twoPartitions(rufusCode, 0, 0x80)
	texts, needs := chain(t, f)
	require.Equal(t, []string{
		"code of Rufus in sector 0 reads the boot sector of partition 1 by LBA (by cylinder, head and sector where " +
			"the BIOS has no extensions)",
		"the boot sector of partition 1 (fat16) holds no code: the boot ends there",
	}, texts)
	require.Equal(t, []int{0, 1}, needs)
	require.Empty(t, boottest.Issues(boottest.Read(t, f), "boot-code"))

	f = tableforge.NewMBR(40000, tableforge.Slot{Type: 6, Start: 63, Sectors: 16000},
		tableforge.Slot{Type: 7, Flag: 0x80, Start: 20000, Sectors: 16000})
	fsforge.PutNTFS(f, 20000, 16000)
	f.Put(0, rufusCode)
	f.Put(63*512+0x60, []byte{0xfa, 0x33, 0xc0})
	f.U16(63*512+tableforge.MBRMagic, 0xaa55)
	issues := boottest.Issues(boottest.Read(t, f), "boot-code")
	require.Len(t, issues, 1)
	require.Equal(t, ondisk.Unbootable, issues[0].Effect)
	require.Equal(t, 1, issues[0].Partition)
}

// The code of Haiku reads both tables. Its boot sector in a GPT stores its own position, in an unknown sector.
func TestHaikuReadsBothTables(t *testing.T) {
	const reads = "code of Haiku in sector 0 reads the boot sector of the active partition, or on a GPT that of type " +
		"Haiku, by LBA (by cylinder, head and sector where the BIOS has no extensions), and passes its " +
		"table entry on"
	texts, needs := chain(t, twoPartitions(haikuCode, 0, 0x80))
	require.Equal(t, []string{reads, "the boot sector of partition 2 (ntfs) holds no code: the boot ends there"}, texts)
	require.Equal(t, []int{0, 2}, needs)

	f := gptWith(haikuCode, []byte("1SFB\xa3\x3b\xf1\x10\x80*Haiku!"))
	f.U16(63*512+tableforge.MBRMagic, 0xaa55)
	texts, needs = chain(t, f)
	require.Equal(t, []string{reads, "the boot sector of partition 1 (unknown) holds unknown code"}, texts)
	require.Equal(t, []int{0, 1}, needs)
	issues := boottest.Read(t, f).Issues
	require.Len(t, issues, 1)
	require.Equal(t, ondisk.Unbootable, issues[0].Effect)
}

// Code that reads an MBR uses the slots and flags of a hybrid one, not the GPT.
func TestChainOfHybridMBRs(t *testing.T) {
	standard := []byte{0xbe, 0xbe, 0x07, 0xb8, 0x01, 0x02, 0xcd, 0x13}
	f := tableforge.NewGPT(512, 8192, 128, tableforge.GPTEntry{First: 63, Last: 2000}, tableforge.GPTEntry{
		First: 2048,
		Last:  3999,
	})
	f.Put(0, standard)
	require.Contains(t, boottest.Read(t, f).Chain[0].Text, "it is unknown whether it reads the GPT")
	tableforge.PutSlot(f, 0, 0, tableforge.Slot{Type: 0xee, Start: 1, Sectors: 2047})
	tableforge.PutSlot(f, 0, 2, tableforge.Slot{Flag: 0x80, Type: 0x83, Start: 2048, Sectors: 1952})
	r := boottest.Read(t, f)
	require.Contains(t, r.Chain[0].Text, "the active partition of the hybrid MBR")
	require.True(t, r.Boots(2))
	require.False(t, r.Boots(1))
	require.Empty(t, boottest.Issues(r, "boot-code"))

	altmbr := []byte{
		0x33, 0xc0, 0xfa, 0x8e, 0xd8, 0x8e, 0xd0, 0xbc, 0x00, 0x7c, 0x89, 0xe6, 0x06, 0x57, 0xfe, 0x0e, 0xb7, 0x07,
	}
	f.Put(0, altmbr) // by the number of a slot
	for slot, partition := range map[byte]int{1: 0, 2: 0, 3: 2, 4: 0} {
		f.U8(439, slot)
		r := boottest.Read(t, f)
		require.Equal(t, partition == 2, r.Boots(2), "slot %d", slot)
		require.False(t, r.Boots(1), "slot %d", slot)
	}
}

// Code that reads a GPT does not need the protective entry, by which systems recognize the GPT.
func TestGPTCodeBesideAnMBR(t *testing.T) {
	gptmbr := disktest.ReadFile(t, disktest.DataFile(t, "/usr/lib/syslinux/mbr/gptmbr.bin"))
	f := tableforge.NewGPT(512, 8192, 128, tableforge.GPTEntry{First: 63, Last: 2000})
	f.Put(0, gptmbr)
	require.Empty(t, boottest.Issues(boottest.Read(t, f), "boot-code"))
	tableforge.PutSlot(f, 0, 0, tableforge.Slot{Flag: 0x80, Type: 0x83, Start: 63, Sectors: 1938})
	r := boottest.Read(t, f)
	require.Contains(t, r.Chain[0].Text, "reads the GPT at LBA 1, which the MBR does not announce")
	found := boottest.Issues(r, "boot-code")
	require.Len(t, found, 1)
	require.Equal(t, ondisk.Unbootable, found[0].Effect)
	require.Contains(t, found[0].Text, "reads the GPT at LBA 1")
}
