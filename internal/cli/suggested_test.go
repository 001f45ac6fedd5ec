package cli

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/scan/results"
)

var (
	// joinedText matches what joins two lines of a text in Go.
	joinedText = regexp.MustCompile(`" ?\+\n\s*"`)
	// suggestion matches a command in a text, or in a call that builds one, up to what is another sentence or program.
	suggestion = regexp.MustCompile(`(?:\btrueup |(?:shell|Work)\.Command\(")([a-z]+)\b([^.;:&|()\n]*)`)
	// flagIn matches a flag behind a command.
	flagIn = regexp.MustCompile(`[ /"'](--[a-z][a-z-]+|-[a-z])\b`)
)

// unknownIn adds the commands in a text with their flags to found, and returns those that the table of flags does not
// have.
func unknownIn(text string, found map[string]bool) (unknown []string) {
	root := Commands("test")
	for _, m := range suggestion.FindAllStringSubmatch(joinedText.ReplaceAllString(text, ""), -1) {
		cmd, _, err := root.Find(m[1:2])
		cmd.InitDefaultHelpFlag()
		behind, _, _ := strings.Cut(m[2], "trueup ")
		for _, f := range flagIn.FindAllStringSubmatch(behind, -1) {
			line, name := m[1]+" "+f[1], strings.TrimLeft(f[1], "-")
			found[line] = true
			if err != nil || cmd.Flag(name) == nil && (len(name) > 1 || cmd.Flags().ShorthandLookup(name) == nil &&
				cmd.InheritedFlags().ShorthandLookup(name) == nil) {
				unknown = append(unknown, line)
			}
		}
	}
	return unknown
}

// Each command line in a text of the program is one of the table of flags.
func TestSuggestionsAreOfTheTable(t *testing.T) {
	found := map[string]bool{}
	require.NoError(t, filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "disktest" || d.Name() == "testdata"):
			return fs.SkipDir
		case d.IsDir() || strings.HasSuffix(path, "_test.go") ||
			!slices.Contains([]string{".go", ".sh", ".tmpl", ".txt"}, filepath.Ext(path)):
			return nil
		}
		text, err := os.ReadFile(path)
		require.Empty(t, unknownIn(string(text), found), path)
		return err
	}))
	flags := results.BoundaryFlags(align.Kept)
	for _, built := range []string{
		report.AlignCommand("a.vhd", "raw", flags), report.AlignPackageCommand("a.ovf", flags),
		report.ReplaceCommand("a.img", flags),
	} {
		require.Empty(t, unknownIn(built, found))
	}
	for _, known := range []string{
		"finish --force", "undo --force", "inspect --spool", "align --flatten", "scan -o", "bench --starts",
		"align --to", "align --boundary", "replace --boundary",
	} {
		require.True(t, found[known], known)
	}
	require.Equal(t, []string{"finish --flatten", "undo --to", "mend --force", "plan -z"},
		unknownIn("trueup finish --flatten D; trueup undo --to raw; trueup mend --force; trueup plan -z", found))
}
