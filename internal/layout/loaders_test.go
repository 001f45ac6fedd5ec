package layout_test

import (
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

// Instructions of programs for sector 0, as their sources have them or as they were seen in public copies. Dots are
// bytes that differ between builds.
var instructions = []struct {
	name string
	want *boot.Code
	// missed are what code with another byte may be taken for; nil: it is unknown.
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

// Code is known by its instructions: a change of any byte of them makes it unknown, or known by its shape only.
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
	require.Equal(t, firmware.Limine.ID, layout.Identify(limine(t)).ID)
	gptboot := disktest.ReadFile(t, disktest.Corpus(t, "loaders/freebsd8/gptboot"))
	require.True(t, firmware.FreeBSDBoot.Known(gptboot[:codeLength]))
}

// limine returns the boot sector in the header file of Limine's installer.
func limine(t *testing.T) []byte {
	t.Helper()
	text := disktest.ReadFile(t, disktest.Corpus(t, "loaders/limine8/limine-bios-hdd.h"))
	var code []byte
	for _, x := range regexp.MustCompile(`0x[0-9a-fA-F]{2}\b`).FindAllString(string(text), codeLength) {
		n, err := strconv.ParseUint(x, 0, 8)
		require.NoError(t, err)
		code = append(code, byte(n))
	}
	return code
}
