package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// TestPages runs the examples of README and of each users' page. The fleet runs its own page.
func TestPages(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("../../docs/*.md")
	require.NoError(t, err)
	for _, page := range append(pages, "../../README.md") {
		if filepath.Base(page) == "fleet.md" {
			continue
		}
		t.Run(filepath.Base(page), func(t *testing.T) {
			t.Parallel()
			require.Positive(t, disktest.RunExamples(t, page, filepath.Dir(builtPath)))
		})
	}
}

// pageCommand matches a command line of trueup in the text or code of a page.
var pageCommand = regexp.MustCompile("(?m)(?:^    |`|[|;&(] )(?:\\$ )?trueup ([a-z]+)([^`\\n|;&#>]*)")

// TestPagesNameFlags requires that the commands in README and the users' pages, and their flags, exist.
func TestPagesNameFlags(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("../../docs/*.md")
	require.NoError(t, err)
	helps, flags := map[string]string{}, 0
	for _, page := range append(pages, "../../README.md") {
		text := string(disktest.ReadFile(t, page))
		for _, m := range pageCommand.FindAllStringSubmatch(text, -1) {
			if helps[m[1]] == "" {
				r := trueup(t, "help", m[1])
				require.Equal(t, 0, r.code, "%s: %s", page, m[0])
				helps[m[1]] = r.stdout
			}
			for word := range strings.FieldsSeq(m[2]) {
				if word == "--" {
					break
				}
				if flag, _, _ := strings.Cut(word, "="); strings.HasPrefix(flag, "--") {
					named := regexp.QuoteMeta(strings.Trim(flag, "],.")) + `\b`
					require.Regexp(t, named, helps[m[1]], "%s: %s", page, m[0])
					flags++
				}
			}
		}
	}
	require.Greater(t, len(helps), 15, "commands that the pages name")
	require.Greater(t, flags, 45, "their flags")
}

// testName matches a test in the documentation, with the script that it runs.
var testName = regexp.MustCompile("`((?:Test|Fuzz)[A-Za-z0-9]+)(?:/([a-z0-9_]+))?`")

func TestDocumentsNameTestsThatExist(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	var documents []string
	for _, pattern := range []string{"docs/*.md", "docs/dev/*.md", "docs/dev/decisions/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		require.NoError(t, err)
		documents = append(documents, found...)
	}

	declared := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)[A-Za-z0-9]+)\([a-z]+ \*testing\.[TF]\)`)
	tests := map[string]bool{} // and fuzz targets, in the tree
	for _, dir := range []string{"cmd", "fleet", "internal"} {
		require.NoError(t, filepath.WalkDir(filepath.Join(root, dir), func(path string, _ fs.DirEntry,
			err error,
		) error {
			if err != nil || !strings.HasSuffix(path, "_test.go") {
				return err
			}
			source, err := os.ReadFile(path)
			for _, m := range declared.FindAllSubmatch(source, -1) {
				tests[string(m[1])] = true
			}
			return err
		}))
	}

	for _, path := range documents {
		text := disktest.ReadFile(t, path)
		for _, n := range testName.FindAllStringSubmatch(string(text), -1) {
			require.True(t, tests[n[1]], "%s: %s", path, n[1])
			if n[1] == "TestScripts" && n[2] != "" {
				require.FileExists(t, filepath.Join("testdata/script", n[2]+".txtar"), path)
			}
		}
	}
}

// TestBootingNamesTestsThatExist requires that each row of the table of guests names existing tests.
func TestBootingNamesTestsThatExist(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	text := disktest.ReadFile(t, filepath.Join(root, "docs/dev/guests.md"))
	_, section, ok := strings.Cut(string(text), "\n| guest | how it boots |")
	require.True(t, ok, "the table of guests")
	section, _, _ = strings.Cut(section, "\n\n")
	rows := strings.Split(section, "\n")[2:]
	require.Greater(t, len(rows), 20)
	for _, row := range rows {
		require.Regexp(t, testName, row)
	}
}

// TestMatrixOfGuestsIsFull requires that each cell of the matrix of guests and states names a test, or states that
// there is nothing to prove.
func TestMatrixOfGuestsIsFull(t *testing.T) {
	t.Parallel()
	text := disktest.ReadFile(t, "../../docs/dev/guests.md")
	_, section, ok := strings.Cut(string(text), "\n| guest | shut down |")
	require.True(t, ok, "the matrix")
	section, _, _ = strings.Cut(section, "\n\n")
	rows := strings.Split(section, "\n")[2:]
	require.Len(t, rows, 7)
	for _, row := range rows {
		cells := strings.Split(strings.Trim(row, "|"), "|")
		require.Len(t, cells, 5, row)
		for _, cell := range cells[1:] {
			require.True(t, testName.MatchString(cell) || slices.Contains([]string{"it cannot", "not looked for"},
				strings.TrimSpace(cell)), cell)
		}
	}
}
