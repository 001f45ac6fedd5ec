package main

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// The script has the same commands whatever is printed, also where rows are printed one by one and kept no longer.
func TestScanScriptBesideEachReport(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	smallDisk(t, filepath.Join(dir, "a.raw"), 63)
	smallDisk(t, filepath.Join(dir, "b.raw"), 2048)
	smallDisk(t, filepath.Join(dir, "c.raw"), 65)
	for _, format := range []string{"text", "json", "csv", "html", "junit", "prometheus"} {
		script := filepath.Join(t.TempDir(), "fix.sh")
		r := trueup(t, "scan", "-o", format, "--script", script, dir)
		require.Equal(t, 3, r.code, r.stderr)
		text, err := os.ReadFile(script)
		require.NoError(t, err)
		require.Len(t, regexp.MustCompile(`(?m)^copy \d+ align .*/[ac]\.raw `).FindAll(text, -1), 2, "%s: %s", format, text)
	}
}
