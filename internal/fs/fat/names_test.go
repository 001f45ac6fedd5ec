package fat

import (
	"bytes"
	"io/fs"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/filetest"
)

// Windows and Linux write names that mtools does not: kept in case by flags, with leftovers of long names, and in other
// code pages.
func TestFATNames(t *testing.T) {
	img := makeFAT(t, fatKinds[0], map[string][]byte{"x": nil})
	raw := disktest.ReadFile(t, img)
	slot := func(name string, flags byte) []byte {
		return append(append([]byte(name), 0x20, flags), make([]byte, 32-13)...)
	}
	long := func(order byte, name string, sum byte) []byte {
		b := bytes.Repeat([]byte{0xff}, 32)
		b[0], b[11], b[12], b[13], b[26], b[27] = order, 0x0f, 0, sum, 0, 0
		for i, at := range []int{1, 3, 5, 7, 9, 14, 16, 18, 20, 22, 24, 28, 30}[:min(13, len(name)+1)] {
			b[at], b[at+1] = 0, 0
			if i < len(name) {
				b[at] = name[i]
			}
		}
		return b
	}
	sum := shortSum([]byte("LONGNA~1TXT"))
	require.Equal(t, byte(0xf4), sum, "by another program")
	root := slices.Concat(slot("LABEL      ", 0), slot("NTLOADER   ", 0x08), slot("BASE    EXT", 0x10),
		slot("BOTH    EXT", 0x18), slot("\x05KANJI  TXT", 0), slot("\x81BER    TXT", 0), slot("\xe5ONE    TXT", 0),
		long(0x42, "ame.txt", sum), long(1, "A very long n", sum), slot("LONGNA~1TXT", 0), long(0x42, "x", sum+1),
		long(1, "another check", sum+1), slot("LONGNA~1TXT", 0), long(0x43, "x", sum), long(1, "one is absent", sum),
		slot("LONGNA~1TXT", 0), long(0x41, "an orphan", sum), slot("SHORT      ", 0), long(0x41, "cut off", sum),
		slot("\xe5ONGNA~1TXT", 0), slot("LONGNA~1TXT", 0), make([]byte, 32), slot("BEHIND     ", 0))
	root[11] = 0x08
	at := 19 * 512 // of a floppy: one boot sector, two FATs of nine
	copy(raw[at:], root)
	g := opened(t, filetest.Memory(raw))
	list, err := g.List("")
	require.NoError(t, err)
	var names []string
	for _, e := range list {
		names = append(names, e.Name)
	}
	require.Equal(t, []string{
		"ntloader", "BASE.ext", "both.ext", "\xe5KANJI.TXT", "\x81BER.TXT",
		"A very long name.txt", "LONGNA~1.TXT", "LONGNA~1.TXT", "SHORT", "LONGNA~1.TXT",
	}, names)
	for path, want := range map[string]string{
		"NTLDR": "", "NTLOADER": "ntloader", "\x81ber.txt": "\x81BER.TXT", "\x91BER.TXT": "",
		"a VERY long name.TXT": "A very long name.txt", "longna~1.txt": "A very long name.txt", "ſhort": "",
		"short": "SHORT", "\xe5kanji.txt": "\xe5KANJI.TXT", "\xc5kanji.txt": "",
	} {
		f, err := g.Open(path)
		if want == "" {
			require.ErrorIs(t, err, fs.ErrNotExist, path)
			continue
		}
		require.NoError(t, err, path)
		require.Equal(t, want, f.Path)
	}
}
