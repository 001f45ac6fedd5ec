package firmware_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/boottest"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/ondisk"
)

// Code that reads an MBR reads a hybrid one, by its slots and flags, and not the GPT.
func TestChainOfHybridMBRs(t *testing.T) {
	standard := []byte{0xbe, 0xbe, 0x07, 0xb8, 0x01, 0x02, 0xcd, 0x13}
	f := tableforge.NewGPT(512, 8192, 128, tableforge.GPTEntry{First: 63, Last: 2000}, tableforge.GPTEntry{
		First: 2048,
		Last:  3999,
	})
	f.Put(0, standard)
	require.Contains(t, boottest.Read(t, f).Chain[0].Text, "whether it reads the GPT is not known")
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

// Code that reads a GPT does so without a protective entry, by which systems would know of the GPT.
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
