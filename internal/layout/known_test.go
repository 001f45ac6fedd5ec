package layout_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/boot/firmware"
	"github.com/trueup/trueup/internal/boot/linux"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/layout"
)

// codeLength is the space for code in a master boot record: what follows is the disk signature.
const codeLength = 440

func codeOf(t *testing.T, path string) []byte {
	t.Helper()
	b := disktest.ReadFile(t, path)
	code := make([]byte, codeLength)
	copy(code, b)
	return code
}

// Sector 0 of an encrypted disk can hold the rest of a loader that was there before: the encryption counts.
func TestEncryptionComesBeforeLoaders(t *testing.T) {
	encrypts := 0
	for i, c := range layout.Codes {
		if c.Encrypts {
			encrypts++
			for _, loader := range []*boot.Code{linux.ForDOS, linux.SyslinuxVolume, linux.Isolinux} {
				require.Less(t, i, slices.Index(layout.Codes, loader), "%s and %s", c.ID, loader.ID)
			}
		}
	}
	require.Equal(t, 4, encrypts)
}

// Real code: what each of them is follows from where it comes from, not from its bytes.
func TestIdentifyRealCode(t *testing.T) {
	for _, tc := range []struct {
		name, corpus, file string
		want               *boot.Code
	}{
		{"disk of Windows Server 2003 R2", "libldm/ldm-2003r2-simple-1.img.xz", "", boot.Named("windows-2000")},
		{"disk of Windows 7", "vmdk-rs/monolithicFlat-flat.vmdk.xz", "", boot.Named("windows-7")},
		{"syslinux mbr.bin", "", "/usr/lib/syslinux/mbr/mbr.bin", boot.Named("syslinux")},
		{"syslinux mbr.bin, CTRL, first disk", "", "/usr/lib/syslinux/mbr/extra/mbr_c.bin", boot.Named("syslinux")},
		{"syslinux mbr.bin, first disk", "", "/usr/lib/syslinux/mbr/extra/mbr_f.bin", boot.Named("syslinux")},
		{"syslinux altmbr.bin", "", "/usr/lib/syslinux/mbr/altmbr.bin", boot.Named("syslinux-altmbr")},
		{"syslinux altmbr.bin, CTRL", "", "/usr/lib/syslinux/mbr/extra/altmbr_c.bin", boot.Named("syslinux-altmbr")},
		{"syslinux altmbr.bin, first", "", "/usr/lib/syslinux/mbr/extra/altmbr_f.bin", boot.Named("syslinux-altmbr")},
		{"syslinux gptmbr.bin", "", "/usr/lib/syslinux/mbr/gptmbr.bin", boot.Named("syslinux-gptmbr")},
		{"syslinux gptmbr.bin, CTRL", "", "/usr/lib/syslinux/mbr/extra/gptmbr_c.bin", boot.Named("syslinux-gptmbr")},
		{"syslinux gptmbr.bin, first", "", "/usr/lib/syslinux/mbr/extra/gptmbr_f.bin", boot.Named("syslinux-gptmbr")},
		{"isolinux, whole disk", "", "/usr/lib/ISOLINUX/isohdpfx.bin", linux.Isolinux},
		{"isolinux, in a partition", "", "/usr/lib/ISOLINUX/isohdppx.bin", linux.Isolinux},
		{"isolinux, CTRL", "", "/usr/lib/ISOLINUX/extra/isohdpfx_c.bin", linux.Isolinux},
		{"isolinux, in a partition, first", "", "/usr/lib/ISOLINUX/extra/isohdppx_f.bin", linux.Isolinux},
		{"boot.img of GRUB 2", "", "/usr/lib/grub/i386-pc/boot.img", linux.V2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var path string
			if tc.corpus != "" {
				path = disktest.Corpus(t, tc.corpus)
			} else {
				path = disktest.DataFile(t, tc.file)
			}
			got := layout.Identify(codeOf(t, path))
			require.Equal(t, tc.want, got)
			require.Equal(t, tc.want == boot.Named("windows-2000"), got.ReadsCHS,
				"of these, only the code of 2000 to 2003 reads CHS")
		})
	}
}

// Code that a tool writes into a disk.
func TestIdentifyCodeOfTools(t *testing.T) {
	for name, tc := range map[string]struct {
		command []string
		want    *boot.Code
	}{
		"parted":      {[]string{"parted", "-s", "IMAGE", "mklabel", "msdos"}, boot.Named("parted")},
		"install-mbr": {[]string{"install-mbr", "--force", "IMAGE"}, boot.Named("debian-mbr")},
	} {
		t.Run(name, func(t *testing.T) {
			image := filepath.Join(t.TempDir(), "disk")
			require.NoError(t, os.WriteFile(image, make([]byte, 4<<20), 0o600))
			args := slices.Clone(tc.command[1:])
			args[slices.Index(args, "IMAGE")] = image
			disktest.Run(t, tc.command[0], args...)
			require.Equal(t, tc.want, layout.Identify(codeOf(t, image)))
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
		want *boot.Code
	}{
		{"nothing", nil, boot.Empty},
		{"by chs", [][]byte{siTable, readCHS, int13}, firmware.GenericCHS},
		{"by chs, table at 7dbeh", [][]byte{bpTable, readCHSb, int13}, firmware.GenericCHS},
		{"by lba", [][]byte{siTable, readLBA, int13}, firmware.GenericLBA},
		{"by lba, table by addition", [][]byte{addTable, readLBA, int13}, firmware.GenericLBA},
		{"either, so its chs bytes matter", [][]byte{siTable, readLBA, int13, readCHS, int13}, firmware.GenericCHS},
		{"does not read the table", [][]byte{readLBA, int13}, boot.Unknown},
		{"does not read the disk", [][]byte{siTable, readLBA, int10}, boot.Unknown},
		{"reads in no way that is known", [][]byte{siTable, int13}, boot.Unknown},
		{"a message only", [][]byte{[]byte("No bootable device -- insert boot disk and press any key")}, boot.Unknown},
		{"lilo", [][]byte{{0xfa, 0xeb, 0x21, 1, 0xb4, 1}, []byte("LILO")}, linux.Lilo},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code := make([]byte, codeLength)
			copy(code, bytes.Join(tc.code, nil))
			require.Equal(t, tc.want, layout.Identify(code))
		})
	}
}

// GRUB legacy's stage1 has its version 3.2 where boot.img of GRUB 2 keeps a parameter block. Spec: stage1/stage1.S.
func TestGrubLegacyIsNotGrub2(t *testing.T) {
	code := make([]byte, codeLength)
	copy(code, []byte{0xeb, 0x48, 0x90})
	copy(code[0x3e:], []byte{3, 2, 0xff})
	copy(code[0x180:], "GRUB \x00Geom\x00Hard Disk\x00Read\x00 Error\x00")
	require.Equal(t, linux.Legacy, layout.Identify(code))
	code[0x3e] = 0
	require.Equal(t, linux.V2, layout.Identify(code))
}

// Code that cannot be had in a package here, by the instructions that make it what it is, as the sources and published
// listings have them.
func TestIdentifyByInstructions(t *testing.T) {
	var (
		tpm         = []byte{0x66, 0x81, 0xfb, 'T', 'C', 'P', 'A'}
		bpTable     = []byte{0xbd, 0xbe, 0x07}
		pastText    = []byte{0xac, 0x3c, 0x00, 0x74, 0xfc, 0xbb, 0x07, 0x00, 0xb4, 0x0e, 0xcd, 0x10, 0xeb, 0xf2}
		haltsThen   = append(bytes.Clone(pastText), 0xf4, 0xeb, 0xfd)
		oldSyslinux = []byte{
			0xfa, 0x31, 0xc0, 0x8e, 0xd8, 0x8e, 0xd0, 0xbc, 0x00, 0x7c, 0x89, 0xe6, 0x06, 0x57, 0x8e, 0xc0, 0xfb, 0xfc,
		}
		bsd = []byte{0xfc, 0x31, 0xc0, 0x8e, 0xc0, 0x8e, 0xd8, 0x8e, 0xd0, 0xbc, 0x00, 0x7c}
	)
	for _, tc := range []struct {
		name string
		code [][]byte
		want *boot.Code
	}{
		{"dos 3.30 to 6.22", [][]byte{
			{
				0xfa, 0x33, 0xc0, 0x8e, 0xd0, 0xbc, 0x00, 0x7c, 0xbe, 0xbe, 0x07, 0x8b, 0x14, 0x8b, 0x4c, 0x02, 0x8b,
				0xee,
			},
			{
				0xbf, 0x05, 0x00, 0xbb, 0x00, 0x7c, 0xb8, 0x01, 0x02, 0x57, 0xcd, 0x13, 0x5f, 0x73, 0x0c, 0x8b, 0xf5,
				0xea, 0x00, 0x7c, 0x00, 0x00,
			},
		}, boot.Named("dos")},
		{"windows 95b", [][]byte{
			{
				0xbe, 0xbe, 0x07, 0x8a, 0x46, 0x04, 0xb4, 0x06, 0x3c, 0x0e, 0x74, 0x11, 0xb4, 0x0b, 0x3c, 0x0c, 0x74,
				0x05,
			},
			{0xb8, 0x01, 0x02, 0x8b, 0xdc, 0xcd, 0x13, 0xb8, 0x00, 0x42, 0xcd, 0x13},
		}, boot.Named("windows-98")},
		{"windows vista", [][]byte{bpTable, tpm, pastText}, boot.Named("windows-vista")},
		{"windows 7", [][]byte{bpTable, tpm, haltsThen}, boot.Named("windows-7")},
		{
			"freebsd boot0",
			[][]byte{bsd, {0x89, 0xe6, 0xbf, 0x00, 0x06, 0xb9, 0x00, 0x01}, []byte("Drive ")},
			boot.Named("freebsd-boot0"),
		},
		{
			"freebsd mbr",
			[][]byte{bsd, {0xbe, 0x1a, 0x7c, 0xbf, 0x1a, 0x06, 0xb9, 0xe6, 0x01}},
			boot.Named("freebsd-mbr"),
		},
		{"netbsd", [][]byte{{
			0x31, 0xc0, 0x8e, 0xd0, 0xbc, 0x00, 0x7c, 0x8e, 0xc0, 0x8e, 0xd8, 0x89, 0xe6, 0xbf, 0x00, 0x06,
		}, {0x66, 0x89, 0xee, 0x5a, 0xe9}}, boot.Named("netbsd")},
		{"openbsd", [][]byte{
			{0xea, 0x05, 0x00, 0xc0, 0x07, 0x8c, 0xc8, 0x8e, 0xd0, 0xbc, 0xfc, 0xff, 0x8e, 0xd8},
			{0xb8, 0xa0, 0x07, 0x8e, 0xc0, 0x31, 0xf6, 0x31, 0xff, 0xb9, 0x00, 0x02, 0xfc, 0xf3, 0xa4},
		}, boot.Named("openbsd")},
		{"syslinux before 4", [][]byte{oldSyslinux, []byte("Missing operating system.")}, boot.Named("syslinux")},
		{"gptmbr of syslinux before 4", [][]byte{oldSyslinux, []byte("Missing OS")}, boot.Named("syslinux-gptmbr")},
		{"lilo with a map", [][]byte{{0xfa, 0xeb, 0x30, 0x01, 0, 0}, []byte("LILO"), {
			0x16, 0x08, 0, 0, 1, 0, 0, 0x7c,
			0, 0,
		}}, linux.Lilo},
		{
			"like 2000, without its question for the geometry",
			[][]byte{bpTable, {0x90, 0xb4, 0x42, 0x8b, 0xf4, 0xcd, 0x13}},
			firmware.GenericLBA,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code := make([]byte, codeLength)
			copy(code, bytes.Join(tc.code, nil))
			require.Equal(t, tc.want, layout.Identify(code))
		})
	}
}

// By the instructions of each: a loader behind this code need not trust its hidden sectors.
func TestWhoHandsTheEntryOver(t *testing.T) {
	for _, c := range []*boot.Code{
		boot.Named("windows-2000"), boot.Named("syslinux"), boot.Named("syslinux-gptmbr"), boot.Named("dos"),
		boot.Named("windows-98"), boot.Named("parted"), boot.Named("debian-mbr"), boot.Named("openbsd"),
	} {
		require.True(t, c.HandsOver, c.ID)
	}
	for _, c := range []*boot.Code{
		boot.Named("windows-vista"), boot.Named("windows-7"), boot.Named("netbsd"), boot.Named("freebsd-mbr"),
		firmware.GenericCHS, firmware.GenericLBA, boot.Unknown, boot.Empty,
	} {
		require.False(t, c.HandsOver, c.ID)
	}
}

// Whatever stands in sector 0 gets a name that is in the schema, and no panic.
func FuzzIdentify(f *testing.F) {
	for _, name := range []string{
		"/usr/lib/syslinux/mbr/mbr.bin", "/usr/lib/ISOLINUX/isohdppx.bin",
		"/usr/lib/grub/i386-pc/boot.img",
	} {
		if b, err := os.ReadFile(name); err == nil {
			f.Add(b)
		}
	}
	f.Add([]byte("\xfa\xeb\x21\x01\xb4\x01LILO"))
	schema := disktest.ReadFile(f, "../../docs/schema/common.json")
	f.Fuzz(func(t *testing.T, b []byte) {
		code := make([]byte, codeLength)
		copy(code, b)
		got := layout.Identify(code)
		require.Contains(t, string(schema), `"`+got.ID+`"`)
		require.NotEmpty(t, got.Name)
		require.Equal(t, got, layout.Identify(bytes.Clone(code)))
	})
}
