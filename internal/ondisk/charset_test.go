package ondisk_test

import (
	"encoding/binary"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/ondisk"
)

// iconv converts text with the tool of the C library.
func iconv(t *testing.T, from, to, text string) string {
	t.Helper()
	cmd := exec.Command("iconv", "-f", from, "-t", to)
	cmd.Stdin = strings.NewReader(text)
	out, err := cmd.Output()
	require.NoError(t, err, "%s to %s", from, to)
	return string(out)
}

// Names of character sets as VMware, Windows and IANA write them, and as iconv calls them.
func TestDecodeText(t *testing.T) {
	disktest.Tool(t, "iconv")
	for _, tc := range []struct{ name, tool, text string }{
		{"windows-1252", "CP1252", "Büro €–ß"},
		{"Windows-1250", "CP1250", "Łódź"},
		{"windows-1251", "CP1251", "диск"},
		{"windows-1253", "CP1253", "δίσκος"},
		{"windows-1254", "CP1254", "ışık"},
		{"windows-1255", "CP1255", "דיסק"},
		{"windows-1256", "CP1256", "قرص"},
		{"windows-1257", "CP1257", "ąčę"},
		{"windows-1258", "CP1258", "đĐ"},
		{"ISO-8859-1", "ISO-8859-1", "Büro"},
		{"ISO-8859-2", "ISO-8859-2", "Łódź"},
		{"ISO-8859-5", "ISO-8859-5", "диск"},
		{"ISO-8859-7", "ISO-8859-7", "δίσκος"},
		{"ISO-8859-15", "ISO-8859-15", "Büro €"},
		{"KOI8-R", "KOI8-R", "диск"},
		{"GBK", "GBK", "系统"},
		{"windows-936", "CP936", "系统"},
		{"GB2312", "GB2312", "系统"},
		{"GB18030", "GB18030", "系统盘㐀"},
		{"Shift_JIS", "SHIFT_JIS", "表示システム"},
		{"windows-932", "CP932", "表①"},
		{"windows-31j", "CP932", "表①"},
		{"EUC-JP", "EUC-JP", "表示"},
		{"EUC-KR", "EUC-KR", "시스템"},
		{"windows-949", "CP949", "시스템똠"},
		{"Big5", "BIG5", "系統功"},
		{"windows-950", "CP950", "系統功"},
		{"windows-874", "CP874", "ดิสก์"},
		{"IBM437", "CP437", "Büro"},
		{" gbk ", "GBK", "系统"},
	} {
		stored := iconv(t, "UTF-8", tc.tool, tc.text+`-flat.vmdk`)
		require.Equal(t, tc.text+`-flat.vmdk`, ondisk.DecodeText(tc.name, stored), tc.name)
		require.True(t, ondisk.KnownCharset(tc.name), tc.name)
		require.Equal(t, []string{tc.text + `-flat.vmdk`, stored}, ondisk.StoredNames(tc.name, stored))
		require.Equal(t, []string{"plain.vmdk"}, ondisk.StoredNames(tc.name, "plain.vmdk"))
	}
}

// A text stays as it is where its character set is UTF-8, not known, or has other bytes than ASCII for its letters.
func TestDecodeTextLeavesTheRest(t *testing.T) {
	for _, name := range []string{"", "UTF-8", "utf8", "klingon", "ISO-2022-JP", "UTF-16LE", "UTF-16", "replacement"} {
		for _, text := range []string{"Büro", "B\xfcro", "disk.vmdk", "\x1b$B"} {
			require.Equal(t, text, ondisk.DecodeText(name, text), name)
		}
	}
	require.True(t, ondisk.KnownCharset(""))
	require.True(t, ondisk.KnownCharset("utf8"))
	require.False(t, ondisk.KnownCharset("klingon"))
	require.False(t, ondisk.KnownCharset("UTF-16"))
}

func TestEncode(t *testing.T) {
	type pair struct {
		A uint16
		_ [2]byte
		B uint32
	}
	b := ondisk.Encode(binary.BigEndian, pair{A: 1, B: 2}, []uint16{3})
	require.Equal(t, []byte{0, 1, 0, 0, 0, 0, 0, 2, 0, 3}, b)
	require.Panics(t, func() { ondisk.Encode(binary.BigEndian, "no fixed size") })
}
