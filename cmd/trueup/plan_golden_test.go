package main

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the golden plans anew")

// chance matches random values of the tools that make a disk, with their replacements in golden plans.
var chance = []struct {
	of   *regexp.Regexp
	text string
}{
	{regexp.MustCompile(`disk signature 0x[0-9a-f]{8}`), "disk signature 0x(chance)"},
	// The stored size of a raw disk depends on the file system.
	{regexp.MustCompile(`(?s)\nA copy reads .*?\n\n`), "\n"},
	{regexp.MustCompile(`\b[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}\b`), "(guid)"},
}

// goldenPlan compares what plan prints for a disk with testdata/plans, where a reviewer reads every change of it: go
// test ./cmd/trueup -run NAME -update.
func goldenPlan(t testing.TB, name, source string, flags ...string) {
	t.Helper()
	cmd := exec.Command(builtPath, append(append([]string{"plan"}, flags...), filepath.Base(source))...)
	cmd.Dir = filepath.Dir(source) // a folder's name could change line breaks
	out, _ := cmd.CombinedOutput() // the text includes the result
	got := string(out)
	for _, c := range chance {
		got = c.of.ReplaceAllString(got, c.text)
	}
	path := filepath.Join("testdata", "plans", strings.NewReplacer(" ", "-", ",", "", "/", "-").Replace(name)+".txt")
	if *update {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(got), 0o600))
		return
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err, "run the test with -update and read the file")
	require.Equal(t, string(want), got)
}
