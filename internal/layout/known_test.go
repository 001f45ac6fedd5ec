package layout_test

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/boot/firmware"
	"github.com/trueup/trueup/internal/boot/linux"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/boottest"
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

// Sector 0 of an encrypted disk can contain the rest of an earlier loader: the encryption counts.
func TestEncryptionComesBeforeLoaders(t *testing.T) {
	encrypts := 0
	for i, c := range layout.Codes() {
		if c.Encrypts {
			encrypts++
			for _, loader := range []*boot.Code{linux.ForDOS, linux.SyslinuxVolume, linux.Isolinux} {
				require.Less(t, i, slices.Index(layout.Codes(), loader), "%s and %s", c.ID, loader.ID)
			}
		}
	}
	require.Equal(t, 4, encrypts)
}

// Real code, identified by its origin and not by its bytes.
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

// Code written to a disk by a tool.
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

// GRUB legacy's stage1 has its version 3.2 in the place of boot.img's parameter block in GRUB 2. Spec: stage1/stage1.S.
func TestGrubLegacyIsNotGrub2(t *testing.T) {
	code := make([]byte, codeLength)
	copy(code, []byte{0xeb, 0x48, 0x90})
	copy(code[0x3e:], []byte{3, 2, 0xff})
	copy(code[0x180:], "GRUB \x00Geom\x00Hard Disk\x00Read\x00 Error\x00")
	require.Equal(t, linux.Legacy, layout.Identify(code))
	code[0x3e] = 0
	require.Equal(t, linux.V2, layout.Identify(code))
}

// Code in hexadecimal: shapes that such programs have in common, and code that no package here contains, from sources
// and published listings.
func TestIdentifyByInstructions(t *testing.T) {
	const (
		siTable  = "bebe07"   // mov si,07beh: the table, after the move to 0600h
		bpTable  = "bdbe07"   // mov bp,07beh
		bpBIOS   = "bdbe7d"   // mov bp,7dbeh: the table where the BIOS put it
		addTable = "81c3be01" // add bx,01beh
		readCHS  = "b80102"   // mov ax,0201h
		readCHSb = "b402"     // mov ah,02h
		readLBA  = "b442"     // mov ah,42h
		int13    = "cd13"
		int10    = "cd10"
		tpm      = "6681fb54435041" // cmp ebx,"TCPA"
		pastText = "ac 3c00 74fc bb0700 b40e cd10 ebf2"
		oldLinux = "fa 31c0 8ed8 8ed0 bc007c 89e6 06 57 8ec0 fb fc" // syslinux before 4
		bsd      = "fc 31c0 8ec0 8ed8 8ed0 bc007c"
	)
	for _, tc := range []struct {
		name, code, text string // the text follows the code
		want             *boot.Code
	}{
		{"nothing", "", "", boot.Empty},
		{"by chs", siTable + readCHS + int13, "", firmware.GenericCHS},
		{"by chs, table at 7dbeh", bpBIOS + readCHSb + int13, "", firmware.GenericCHS},
		{"by lba", siTable + readLBA + int13, "", firmware.GenericLBA},
		{"by lba, table by addition", addTable + readLBA + int13, "", firmware.GenericLBA},
		{"either, so its chs bytes matter", siTable + readLBA + int13 + readCHS + int13, "", firmware.GenericCHS},
		{"does not read the table", readLBA + int13, "", boot.Unknown},
		{"does not read the disk", siTable + readLBA + int10, "", boot.Unknown},
		{"reads in no way that is known", siTable + int13, "", boot.Unknown},
		{"a message only", "", "No bootable device -- insert boot disk and press any key", boot.Unknown},
		{"lilo", "fa eb21 01b401", "LILO", linux.Lilo},
		{"lilo with a map", "fa eb30 010000", "LILO\x16\x08\x00\x00\x01\x00\x00\x7c\x00\x00", linux.Lilo},
		{
			"dos 3.30 to 6.22", "fa 33c0 8ed0 bc007c bebe07 8b14 8b4c02 8bee" +
				"bf0500 bb007c b80102 57 cd13 5f 730c 8bf5 ea007c0000", "", boot.Named("dos"),
		},
		{
			"windows 95b", "bebe07 8a4604 b406 3c0e 7411 b40b 3c0c 7405 b80102 8bdc cd13 b80042 cd13", "",
			boot.Named("windows-98"),
		},
		{"windows vista", bpTable + tpm + pastText, "", boot.Named("windows-vista")},
		{"windows 7", bpTable + tpm + pastText + "f4 ebfd", "", boot.Named("windows-7")},
		{"freebsd boot0", bsd + "89e6 bf0006 b90001", "Drive ", boot.Named("freebsd-boot0")},
		{"freebsd mbr", bsd + "be1a7c bf1a06 b9e601", "", boot.Named("freebsd-mbr")},
		{"netbsd", "31c0 8ed0 bc007c 8ec0 8ed8 89e6 bf0006 6689ee 5a e9", "", boot.Named("netbsd")},
		{
			"openbsd", "ea0500c007 8cc8 8ed0 bcfcff 8ed8 b8a007 8ec0 31f6 31ff b90002 fc f3a4", "",
			boot.Named("openbsd"),
		},
		{"syslinux before 4", oldLinux, "Missing operating system.", boot.Named("syslinux")},
		{"gptmbr of syslinux before 4", oldLinux, "Missing OS", boot.Named("syslinux-gptmbr")},
		{
			"like 2000, without its question for the geometry", bpTable + "90 b442 8bf4 cd13", "",
			firmware.GenericLBA,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code := make([]byte, codeLength)
			copy(code, append(boottest.Code(tc.code)[:len(strings.ReplaceAll(tc.code, " ", ""))/2], tc.text...))
			require.Equal(t, tc.want, layout.Identify(code))
		})
	}
}

// From the instructions of each: a loader started by this code need not trust its hidden sectors.
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

// Any sector 0 gets a name from the schema, without a panic.
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

// Instructions of programs for sector 0, from their sources or public copies. Dots are bytes that differ between
// builds.
var instructions = []struct {
	name string
	want *boot.Code
	// missed lists code with another byte and what it may be identified as; nil: unknown.
	missed []*boot.Code
	runs   []string
}{
	{"freebsd pmbr, 8", boot.Named("freebsd-pmbr"), nil, []string{
		"fc 31c0 8ec0 8ed8 8ed0 bc.... be1a7c bf1a06 b9e601 f3a4 e9008a",
		"f3a6 75.. 89df 8d7520 bbc007 8ec3 31db 56 e8.... 5e 668b4528 663b04 75.. 668b452c 663b4404 75",
		"06 53 6a01 6a10 89e6 b80042 cd13 83c410 72", "9d6bbd83417fdc11be0b001560b84f0f",
	}},
	{"lilo -M", boot.Named("lilo-mbr"), []*boot.Code{linux.Lilo}, []string{
		"fa eb..12 .... 4c494c4f .... 1000 0100 007c 0000", "89ee 668b4408 66a31406 e8.... 813efe7d55aa",
		"be0c06 bbaa55 b441 cd13",
	}},
	{"lilo -M ext", boot.Named("lilo-mbr-ext"), []*boot.Code{linux.Lilo}, []string{
		"fa eb..13 .... 4c494c4f .... 1000 0100 007c 0000", "668b4408 6601061406 e8.... 813efe7d55aa",
		"be0c06 bbaa55 b441 cd13",
	}},
	{"limine 4 to 8", firmware.Limine, nil, []string{
		"680070 07 bfa87d 668b05 668b6d04 31db 6631c9 8b4dfc e8", "668b4508 668b6d0c 01cb 8b4dfe e8",
		"60 be0080 c7041000 c744020100 895c04 8c4406 52 56 6650 6655 b448 be1080 c7041e00 cd13 72.. 8b6c18",
		"66f7f5 66894408 66c7440c00000000 5a b442 f8 cd13 72.. 016c04",
	}},
	{"grub4dos", linux.ForDOS, nil, []string{
		"31f6 31ff b9df00 fc f3a5 bb.... 66b8........ 663907 7503 e8", "16 1f 663907", "83c60c 81fefe01 72",
	}},
	{"rufus", boot.Named("rufus"), []*boot.Code{firmware.GenericLBA, firmware.GenericCHS}, []string{
		"bbbe7d 8b17 52 b280 8b4f02 668b5f08 e8.... 73",
		"61 1e 6631c0 8ed8 6650 6653 50 68007c 40 50 6a10 89e6 b442 cd13", "61 bb007c b80102 cd13 c3",
	}},
	{"rufus before 2014", boot.Named("rufus"), []*boot.Code{firmware.GenericCHS}, []string{
		"bbbe7d 268b17 268b4f02 31c0 8ec0 b80102 bb007c cd13 73",
	}},
	{"reactos", boot.Named("reactos"), []*boot.Code{firmware.GenericLBA, firmware.GenericCHS}, []string{
		"8dbebe01 f60580 75.. 83c710 81fffe7d 72",
		"8b4508 a3.... 8b450a a3.... b80042 be.... cd13 c3 b80402 bb007c 8b4d02 8a7501 cd13 c3",
	}},
	{"kolibrios", boot.Named("kolibrios"), []*boot.Code{firmware.GenericLBA}, []string{
		"bdbe07 b104 386e00 7c.. 75.. 83c510 e2", "8bfc 1e 57 8bf5 cb bf0500 9090",
		"60 bbaa55 b441 cd13 72.. 81fb55aa 75.. f6c101 74.. 61 60 6a00 6a00 ff760a ff7608 6a00 68007c 6a01 6a10 b442 " +
			"8bf4 cd13",
	}},
	{"haiku", boot.Named("haiku"), []*boot.Code{firmware.GenericCHS}, []string{
		"31f6 bbbe07 b90400 382f 74.. 7f.. 85f6 75.. 89de 80c310 e2",
		"83c608 bff80d 66a5 87.. 83ee04 e8.... eb.. 8a7401 8b4c02 b002 b402 cd13", "5e 8814 81bffe0155aa",
		"31534642a33bf110802a4861696b7521",
	}},
}

// Code is identified by its instructions: with any byte of them changed, it is unknown, or identified only by its
// shape.
func TestIdentifyByEveryInstruction(t *testing.T) {
	for _, tc := range instructions {
		t.Run(tc.name, func(t *testing.T) {
			hex := strings.ReplaceAll(strings.Join(tc.runs, ".."), " ", "")
			code := boottest.Code(strings.ReplaceAll(hex, "..", "11"))
			require.Equal(t, tc.want.ID, layout.Identify(code).ID)
			for i := range len(hex) / 2 {
				was := code[i]
				code[i] ^= 0x08
				got := layout.Identify(code)
				switch hole := hex[2*i:2*i+2] == ".."; {
				case hole:
					require.Equal(t, tc.want.ID, got.ID, "byte %d", i)
				default:
					require.NotEqual(t, tc.want.ID, got.ID, "byte %d", i)
					require.True(t, got == boot.Unknown || slices.Contains(tc.missed, got), "byte %d: %s", i, got.ID)
				}
				code[i] = was
			}
		})
	}
}

// Real code of the corpus.
func TestIdentifyLoadersOfTheCorpus(t *testing.T) {
	for file, want := range map[string]*boot.Code{
		"freebsd8/pmbr":      boot.Named("freebsd-pmbr"),
		"freebsd8/boot0":     boot.Named("freebsd-boot0"),
		"freebsd8/mbr":       boot.Named("freebsd-mbr"),
		"lilo24/mbr.b":       boot.Named("lilo-mbr"),
		"grub2/grub214.boot": linux.V2, "grub2/lfs.boot": linux.V2, "grub2/ubuntu1604.boot": linux.V2,
	} {
		require.Equal(t, want.ID, layout.Identify(codeOf(t, disktest.Corpus(t, "loaders/"+file))).ID, file)
	}
	// Limine's installer has the boot sector in a header file.
	text := disktest.ReadFile(t, disktest.Corpus(t, "loaders/limine8/limine-bios-hdd.h"))
	var code []byte
	for _, x := range regexp.MustCompile(`0x[0-9a-fA-F]{2}\b`).FindAllString(string(text), codeLength) {
		n, err := strconv.ParseUint(x, 0, 8)
		require.NoError(t, err)
		code = append(code, byte(n))
	}
	require.Equal(t, firmware.Limine.ID, layout.Identify(code).ID)
	gptboot := disktest.ReadFile(t, disktest.Corpus(t, "loaders/freebsd8/gptboot"))
	require.True(t, firmware.FreeBSDBoot.Known(gptboot[:codeLength]))
}
