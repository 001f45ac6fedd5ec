package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// A second scan asks for nothing that the script of the first one has done.
func TestScanKnowsWhatIsCopied(t *testing.T) {
	dir := t.TempDir()
	source, script := filepath.Join(dir, "old.img"), filepath.Join(t.TempDir(), "fix.sh")
	disktest.MakeBlank(t, source, 16<<20)
	disktest.RunInput(t, "63,20000,83\n", "sfdisk", "-q", source)
	first := trueup(t, "scan", "--isolation", "none", "--script", script, dir)
	require.Equal(t, 3, first.code, first.stderr)
	require.Contains(t, first.stdout, "trueup align")
	aligned := filepath.Join(dir, "old-aligned.img")
	require.Zero(t, trueup(t, "align", source, aligned).code)

	second := trueup(t, "scan", "--isolation", "none", "--script", script, dir)
	require.Equal(t, 3, second.code, second.stderr)
	require.Contains(t, second.stdout, "copy: "+aligned+"; to prove it")
	require.Contains(t, second.stdout, "1 image seems to have its aligned copy beside it: prove it")
	require.NotContains(t, second.stdout, "trueup align")
	require.Contains(t, second.stdout, "trueup verify "+source+" "+aligned)
	text := disktest.ReadFile(t, script)
	require.NotContains(t, string(text), "\ncopy ")
	require.Contains(t, string(text), "a file has the name of its copy, which trueup verify proves: "+aligned)

	var sum struct {
		Copied int
		Fix    struct{ Images int }
	}
	lines := strings.Split(strings.TrimSpace(trueup(t, "scan", "--isolation", "none", "--json", dir).stdout), "\n")
	require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), &sum))
	require.Equal(t, 1, sum.Copied)
	require.Zero(t, sum.Fix.Images)

	// What was written to the image since is not in the copy.
	later := time.Now().Add(time.Hour)
	require.NoError(t, os.Chtimes(source, later, later))
	require.NotContains(t, trueup(t, "scan", "--isolation", "none", dir).stdout, "copy: ")
}
