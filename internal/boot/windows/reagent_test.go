package windows_test

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest/boottest"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
)

const recoveryFile = "WINDOWS/SYSTEM32/RECOVERY/REAGENT.XML"

// agent is a ReAgent.xml as Windows 10 writes it, with these tags in the middle.
func agent(tags ...string) string {
	return "<?xml version='1.0' encoding='utf-8'?>\n\n<WindowsRE version=\"2.0\">\n  <WinreBCD " +
		"id=\"{f8d1de0b-0ced-11e6-abf9-db7ac698ead8}\"/>" +
		strings.Join(tags, "") +
		"\n  <ImageLocation path=\"\" id=\"0\" offset=\"0\" " +
		"guid=\"{00000000-0000-0000-0000-000000000000}\"/>\n</WindowsRE>\n"
}

// location is the tag that names a partition.
func location(space, name, id, offset string) string {
	return space + `<` + name + ` path="\Récupération" id="` + id + `" offset="` + offset +
		`" guid="{00000000-0000-0000-0000-000000000000}"/>`
}

func wideText(s string, order binary.ByteOrder) []byte {
	var out []byte
	for _, u := range utf16.Encode([]rune("\ufeff" + s)) {
		b := make([]byte, 2)
		order.PutUint16(b, u)
		out = append(out, b...)
	}
	return out
}

// The number grows and shrinks, the file does not.
func TestRecoveryLocations(t *testing.T) {
	const space = "\n  "
	make := func(offset, space string) string {
		return agent(location(space, "WinreLocation", fmt.Sprint(signature), offset))
	}
	before := make("32256", space)
	for name, code := range map[string]func(string) []byte{
		"utf-8":           func(s string) []byte { return []byte(s) },
		"utf-8 with mark": func(s string) []byte { return []byte("\ufeff" + s) },
		"utf-16le":        func(s string) []byte { return wideText(s, binary.LittleEndian) },
		"utf-16be":        func(s string) []byte { return wideText(s, binary.BigEndian) },
	} {
		t.Run(name, func(t *testing.T) {
			r := boottest.Read(t, windowsDisk(t, map[string][]byte{recoveryFile: code(before)}))
			require.Empty(t, boottest.Issues(r, "winre"))
			require.Equal(t, []string{"winre WinreLocation: 32256 follows 1"}, fates(stored(r)))
			ref := stored(r)[0]
			for to, want := range map[int64]string{
				1 << 20: make("1048576", " "),
				512:     make("512", "  "+space),
				65536:   make("65536", space),
			} {
				after := code(before)
				b, err := ref.Encode(ref.Raw, to)
				require.NoError(t, err)
				require.Len(t, b, len(ref.Raw))
				copy(after[ref.Off:], b)
				require.Equal(t, string(code(want)), string(after))
			}
			_, err := ref.Encode(ref.Raw, 1<<30)
			require.ErrorIs(t, err, ondisk.ErrLimit)
		})
	}
}

func TestRecoveryLocationsThatStay(t *testing.T) {
	text := agent(
		location("", "WinreLocation", "0", "32256"), location("\n", "ImageLocation", "0", "6320640"), location("\n",
			"OtherLocation", "99", "32256"),
		location("\n", "OsInstallLocation", "0", "0"), location("\n", "Elsewhere", "0", "32256"), location("\n",
			"BadLocation", "0", "-1"),
		`<!-- `+location("\n", "CommentLocation", "0", "32256")+` -->`, location("", "PBRImageLocation", "0",
			"20512256"),
	)
	r := boottest.Read(t, windowsDisk(t, map[string][]byte{recoveryFile: []byte(text)}))
	require.Equal(t, []string{
		"winre WinreLocation: 32256 follows 1", "winre ImageLocation: 6320640 stays",
		"winre PBRImageLocation: 20512256 follows 2",
	}, fates(stored(r)))
	require.Empty(t, boottest.Issues(r, "winre"))
	first, last := stored(r)[0], stored(r)[2]
	require.Equal(t, "the recovery system may be disabled", first.Loss, "a guest starts without its recovery system")
	_, err := first.Encode(first.Raw, 1<<20)
	require.ErrorIs(t, err, ondisk.ErrLimit)
	b, err := last.Encode(last.Raw, 4096)
	require.NoError(t, err)
	require.True(t, strings.HasSuffix(string(b), `offset="00004096`), "zeros where there is no white space: %s", b)
}

// A GPT has no other places: a recovery system is named by its offset there too.
func TestRecoveryOnGPT(t *testing.T) {
	text := agent(location("\n  ", "WinreLocation", "0", "20512256"))
	g := boottest.GuestOf(t, windowsDisk(t, map[string][]byte{"RECOVERY/WINDOWSRE/REAGENT.XML": []byte(text)}))
	g.Scheme = table.GPT
	r, err := layout.ReadBoot(g)
	require.NoError(t, err)
	require.Equal(t, []string{"winre WinreLocation: 20512256 follows 2"}, fates(stored(r)))
}

// Another disk can have a partition at the same offset: it is told by its GUID, or by its signature.
func TestRecoveryOnAnotherDisk(t *testing.T) {
	const here, partition, other = "01234567-89ab-cdef-0123-456789abcdef", "11111111-89ab-cdef-0123-456789abcdef",
		"22222222-89ab-cdef-0123-456789abcdef"
	for _, tc := range []struct {
		name, id, guid string
		scheme         table.Scheme
		want           int
	}{
		{"the GUID of the disk", "0", here, table.GPT, 1},
		{"that of a partition", "0", partition, table.GPT, 1},
		{"that of another disk", "0", other, table.GPT, 0},
		{"a signature on GPT", "99", zeroGUID, table.GPT, 0},
		{"a GUID on MBR", "0", other, table.MBR, 0},
		{"a signature", fmt.Sprint(signature), zeroGUID, table.MBR, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			text := strings.ReplaceAll(agent(location("\n  ", "WinreLocation", tc.id, "20512256")), zeroGUID,
				strings.ToUpper(tc.guid))
			d := boottest.Disk(windowsDisk(t, map[string][]byte{recoveryFile: []byte(text)}))
			tab, parts := boottest.Partitions(t, d)
			parts[1].GUID = partition
			g := boottest.Guest(d, tab, parts)
			g.Scheme, g.GUID = tc.scheme, here
			r, err := layout.ReadBoot(g)
			require.NoError(t, err)
			require.Len(t, stored(r), tc.want)
		})
	}
}

const zeroGUID = "00000000-0000-0000-0000-000000000000"

func TestHugeRecoveryFile(t *testing.T) {
	var tags []string
	for range 70 {
		tags = append(tags, location("\n", "WinreLocation", "0", "32256"))
	}
	for name, text := range map[string]string{"bytes": strings.Repeat("<a ", 30000), "tags": agent(tags...)} {
		t.Run(name, func(t *testing.T) {
			r := boottest.Read(t, windowsDisk(t, map[string][]byte{recoveryFile: []byte(text)}))
			require.Empty(t, stored(r))
			require.Equal(t, ondisk.Warn, boottest.Issues(r, "winre")[0].Effect)
		})
	}
}
