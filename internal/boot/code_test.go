package boot_test

import (
	"bytes"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disktest"
)

// codeLength is the space for code in a master boot record: what follows is the disk signature.
const codeLength = 440

func codeOf(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	code := make([]byte, codeLength)
	copy(code, b)
	return code
}

// Real code: what each of them is follows from where it comes from, not from its bytes.
func TestIdentifyRealCode(t *testing.T) {
	for _, tc := range []struct {
		name, corpus, file string
		want               boot.Code
	}{
		{"disk of Windows Server 2003 R2", "libldm/ldm-2003r2-simple-1.img.xz", "", boot.Windows2000},
		{"disk of Windows 7", "vmdk-rs/monolithicFlat-flat.vmdk.xz", "", boot.WindowsNew},
		{"syslinux mbr.bin", "", "/usr/lib/syslinux/mbr/mbr.bin", boot.Syslinux},
		{"boot.img of GRUB 2", "", "/usr/lib/grub/i386-pc/boot.img", boot.Grub2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var path string
			if tc.corpus != "" {
				path = disktest.Corpus(t, tc.corpus)
			} else {
				path = disktest.DataFile(t, tc.file)
			}
			got := boot.Identify(codeOf(t, path))
			require.Equal(t, tc.want, got)
			require.Equal(t, tc.want == boot.Windows2000, got.ReadsCHS, "FACTS B2: of these, only the code of 2000 to 2003 reads CHS")
		})
	}
}

// Code by its shape. The snippets are what such programs have in common, in the assembler notation beside them.
func TestIdentifyByShape(t *testing.T) {
	var (
		siTable  = []byte{0xbe, 0xbe, 0x07}       // mov si,07beh: the table, after the move to 0600h
		bpTable  = []byte{0xbd, 0xbe, 0x7d}       // mov bp,7dbeh: the table where the BIOS put it
		addTable = []byte{0x81, 0xc3, 0xbe, 0x01} // add bx,01beh
		readCHS  = []byte{0xb8, 0x01, 0x02}       // mov ax,0201h
		readCHSb = []byte{0xb4, 0x02}             // mov ah,02h
		readLBA  = []byte{0xb4, 0x42}             // mov ah,42h
		int13    = []byte{0xcd, 0x13}
		int10    = []byte{0xcd, 0x10}
	)
	for _, tc := range []struct {
		name string
		code [][]byte
		want boot.Code
	}{
		{"nothing", nil, boot.Empty},
		{"by chs", [][]byte{siTable, readCHS, int13}, boot.GenericCHS},
		{"by chs, table at 7dbeh", [][]byte{bpTable, readCHSb, int13}, boot.GenericCHS},
		{"by lba", [][]byte{siTable, readLBA, int13}, boot.GenericLBA},
		{"by lba, table by addition", [][]byte{addTable, readLBA, int13}, boot.GenericLBA},
		{"either, so its chs bytes matter", [][]byte{siTable, readLBA, int13, readCHS, int13}, boot.GenericCHS},
		{"does not read the table", [][]byte{readLBA, int13}, boot.Unknown},
		{"does not read the disk", [][]byte{siTable, readLBA, int10}, boot.Unknown},
		{"reads in no way that is known", [][]byte{siTable, int13}, boot.Unknown},
		{"a message only", [][]byte{[]byte("No bootable device -- insert boot disk and press any key")}, boot.Unknown},
		{"lilo", [][]byte{{0xfa, 0xeb, 0x21, 1, 0xb4, 1}, []byte("LILO")}, boot.Lilo},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code := make([]byte, codeLength)
			copy(code, bytes.Join(tc.code, nil))
			require.Equal(t, tc.want, boot.Identify(code))
		})
	}
}

// GRUB legacy's stage1 has its version 3.2 where boot.img of GRUB 2 keeps a parameter block. Spec: stage1/stage1.S.
func TestGrubLegacyIsNotGrub2(t *testing.T) {
	code := make([]byte, codeLength)
	copy(code, []byte{0xeb, 0x48, 0x90})
	copy(code[0x3e:], []byte{3, 2, 0xff})
	copy(code[0x180:], "GRUB \x00Geom\x00Hard Disk\x00Read\x00 Error\x00")
	require.Equal(t, boot.GrubLegacy, boot.Identify(code))
	code[0x3e] = 0
	require.Equal(t, boot.Grub2, boot.Identify(code))
}
