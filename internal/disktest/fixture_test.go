package disktest

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFixtureText(t *testing.T) {
	d, err := parseFixture(`
# a disk
size 3s   # sectors
@2s+0x10 01 02
         0304 "AB" 05
@0 eb 52 90 "NTFS    "
`)
	require.NoError(t, err)
	want := make([]byte, 3*512)
	copy(want, "\xeb\x52\x90NTFS    ")
	copy(want[1024+16:], "\x01\x02\x03\x04AB\x05")
	CheckBytes(t, d, want)
	require.Equal(t, int64(512), d.SectorSize())

	big, err := parseFixture("size 2T\nsector 4096\n@2199023255040 55 aa")
	require.NoError(t, err)
	require.Equal(t, int64(2<<40), big.Size())
	require.Equal(t, int64(4096), big.SectorSize())
	e, err := big.Extent(0, big.Size())
	require.NoError(t, err)
	require.True(t, e.Zero)
}

func TestFixtureRefusesMistakes(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"past the end", "size 512\n@511 01 02", "pass the size"},
		{"overlap", "size 512\n@0 01 02\n@1 03", "overlap"},
		{"no offset", "size 512\n01 02", "line 2: bytes without"},
		{"no hexadecimal digits", "size 512\n@0 0x", "line 2"},
		{"unclosed quote", "size 512\n@0 \"NTFS", "line 2: unclosed"},
		{"bad size", "size many", "line 1"},
		{"bad offset", "size 512\n@0x1g 00", "line 2"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := parseFixture(tc.text)
			require.ErrorContains(t, err, tc.want)
		})
	}
}

func TestMaterializeWritesTheDisk(t *testing.T) {
	d, err := parseFixture("size 1M\n@0x1be 01 02 03\n@1048570 ff")
	require.NoError(t, err)
	got, err := os.ReadFile(Materialize(t, d))
	require.NoError(t, err)
	CheckBytes(t, d, got)
	require.Equal(t, byte(0xff), got[1048570])
}
