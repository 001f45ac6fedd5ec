package firmware_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest/boottest"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/ondisk"
)

var (
	rufusCode = boottest.Code("bbbe7d268b17268b4f0231c08ec0b80102bb007ccd1373")
	haikuCode = boottest.Code("31f6bbbe07b90400382f74087fe085f675dc89de80c310e2ef",
		"83c608bff80d66a587fe83ee04e82400eb0c8a74018b4c02b002b402cd13", "5e881481bffe0155aa",
		"31534642a33bf110802a4861696b7521")
)

// The code of Rufus reads the first entry of the table, though another partition is active. Its boot sector must be
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

// The code of Haiku reads both tables. What it starts from a GPT keeps its own place, in a sector that is not known.
func TestHaikuReadsBothTables(t *testing.T) {
	const reads = "code of Haiku in sector 0 reads the boot sector of the active partition, or on a GPT that of type " +
		"Haiku, by LBA (by cylinder, head and sector where the BIOS has no extensions), and hands its entry of the " +
		"table over"
	texts, needs := chain(t, twoPartitions(haikuCode, 0, 0x80))
	require.Equal(t, []string{reads, "the boot sector of partition 2 (ntfs) holds no code: the boot ends there"}, texts)
	require.Equal(t, []int{0, 2}, needs)

	f := gptWith(haikuCode, []byte("1SFB\xa3\x3b\xf1\x10\x80*Haiku!"))
	f.U16(63*512+tableforge.MBRMagic, 0xaa55)
	texts, needs = chain(t, f)
	require.Equal(t, []string{reads, "the boot sector of partition 1 (unknown) holds code that is not known"}, texts)
	require.Equal(t, []int{0, 1}, needs)
	issues := boottest.Read(t, f).Issues
	require.Len(t, issues, 1)
	require.Equal(t, ondisk.Unbootable, issues[0].Effect)
}
