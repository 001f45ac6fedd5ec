package main

import (
	"encoding/hex"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// Our own MBR code, so that a boot can be tested where no Windows is at hand. The sources in testdata say what each
// does; the bytes are here because a machine that runs the tests need not have an assembler. They are made by
//
//	as --32 -o NAME.o testdata/NAME.S
//	ld -m elf_i386 -Ttext=0x600 --oformat=binary -e start -o NAME.bin NAME.o
//	xxd -p -c 32 NAME.bin
const (
	// ownCHSCode is testdata/chs-mbr.S: it reads the start CHS of the active entry and nothing else.
	ownCHSCode = "" +
		"fa31c08ed0bc007c8ed88ec0fbfc89e6bf0006b90001f3a5ea1d060000bebe07" +
		"b90400f60480750983c610e2f6b04eeb218a74018b4c02b80102bb007ccd13b0" +
		"52720f813efe7d55aab0427505ea007c0000a26d06be6906bb0700ac84c07406" +
		"b40ecd10ebf5f4ebfd4348533a0000"

	// ownLBACode is testdata/lba-mbr.S: it reads the start LBA and tells the boot sector nothing.
	ownLBACode = "" +
		"fa31c08ed0bc007c8ed88ec0fbfc89e6bf0006b90001f3a5ea1d060000bdbe07" +
		"b90400f6460080750983c510e2f5b04eeb25668b460866a37c06be7406b442cd" +
		"13b0527212813efe7d55aab0427508be8406ea007c0000a27206be6e06bb0700" +
		"ac84c07406b40ecd10ebf5f4ebfd4c42413a000010000100007c000000000000" +
		"0000000000000000000000000000000000000000"

	// staleCode is testdata/stale.S: it says that it has been run.
	staleCode = "" +
		"fa31c08ed88ed0bc0070fbe800005e81c61700fcac84c07409b40ebb0700cd10" +
		"ebf2f4ebfd7472756575703a207374616c6520736563746f727300"
)

// codeSize is the room for code in an MBR: the disk signature follows at 0x1B8.
const codeSize = 0x1B8

// assembled gives MBR code that stands in this file.
func assembled(code string) func(testing.TB) []byte {
	return func(t testing.TB) []byte {
		t.Helper()
		bytes, err := hex.DecodeString(code)
		require.NoError(t, err)
		return bytes
	}
}

// windowsCode gives the MBR code that a real Windows Server 2003 wrote. It reads the start CHS if the start LBA lies
// within what the BIOS calls the CHS range.
func windowsCode(t testing.TB) []byte {
	t.Helper()
	return readAt(t, disktest.Corpus(t, "libldm/ldm-2003r2-simple-1.img.xz"), 0, codeSize)
}

func TestBootCodeIsItsSource(t *testing.T) {
	t.Parallel()
	for name, code := range map[string]string{
		"chs-mbr": ownCHSCode, "lba-mbr": ownLBACode, "marker": markerCode,
		"stale": staleCode, "dos-drives": dosDrivesCode,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			object, flat := filepath.Join(dir, "o"), filepath.Join(dir, "bin")
			disktest.Run(t, "as", "--32", "-o", object, filepath.Join("testdata", name+".S"))
			disktest.Run(t, "ld", "-m", "elf_i386", "-Ttext=0x600", "--oformat=binary", "-e", "start", "-o", flat,
				object)
			got := disktest.ReadFile(t, flat)
			require.Equal(t, code, hex.EncodeToString(got))
		})
	}
}
