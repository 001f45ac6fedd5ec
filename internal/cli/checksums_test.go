package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/report"
)

// sha256sum finds the digests of all files of DEST right, also where their names have to be escaped.
func TestChecksums(t *testing.T) {
	t.Chdir(t.TempDir())
	putImage(t, "source.img")
	for _, tc := range []struct {
		args  []string
		files int
	}{
		{[]string{"align", "source.img", "a.img"}, 1},
		{[]string{"align", "--to", "vmdk:twoGbMaxExtentFlat", "source.img", "b c.vmdk"}, 2},
		{[]string{"convert", "--to", "qcow2", "source.img", `sub/d\e.qcow2`}, 1},
		{[]string{"align", "--verify", "structure", "--to", "vhdx", "source.img", "new\nline.vhdx"}, 1},
	} {
		require.NoError(t, os.MkdirAll("sub", 0o755))
		r := trueup(t, append(tc.args, "--json", "--checksums", "sub/sums")...)
		require.Equal(t, 0, r.code, r.stderr)
		var written struct {
			Files     []string
			Checksums []report.Checksum
		}
		require.NoError(t, json.Unmarshal([]byte(r.stdout), &written))
		require.Len(t, written.Checksums, tc.files)
		for i, s := range written.Checksums {
			require.Equal(t, written.Files[i], s.File)
			require.Contains(t, read(t, "sub/sums"), s.SHA256+"  ")
		}
		got := disktest.Run(t, "sha256sum", "--strict", "-c", "sub/sums")
		require.Equal(t, tc.files, strings.Count(got, ": OK"), got)
	}
	for _, bad := range [][]string{
		{"align", "--checksums", "source.img", "source.img", "x.img"},
		{"align", "--checksums", "x.img", "source.img", "x.img"},
		{"align", "--checksums", "x", "--out", "x", "source.img", "x.img"},
		{"align", "--checksums", "none/x", "source.img", "x.img"},
		{"align", "--checksums", "b c.vmdk", "source.img", "x.img"},
	} {
		r := trueup(t, bad...)
		require.NotZero(t, r.code, bad)
		require.Contains(t, r.stderr, "--checksums", bad)
		require.NoFileExists(t, "x.img", bad)
	}
	left, err := filepath.Glob(".*partial*")
	require.NoError(t, err)
	require.Empty(t, left)
}
