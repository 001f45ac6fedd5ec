package main

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// TestReadmeExample runs the commands of the README's examples and compares their output. A line "..." stands for what
// the README leaves out.
func TestReadmeExample(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	text := disktest.ReadFile(t, filepath.Join(root, "README.md"))
	dir := t.TempDir()
	// A copy without holes: those of the original depend on who unpacked it.
	require.NoError(t, os.Mkdir(filepath.Join(dir, "testdata"), 0o755))
	const image = "testdata/xp-lba63.vmdk"
	b := disktest.ReadFile(t, filepath.Join(root, image))
	require.NoError(t, os.WriteFile(filepath.Join(dir, image), b, 0o644))
	examples := readmeCommands(string(text))
	require.Len(t, examples, 4, "inspect, plan, align and scan")
	for _, e := range examples {
		cmd := exec.Command(builtPath, e.args...)
		cmd.Dir = dir
		out, _ := cmd.Output()                    // inspect of a misaligned disk exits with 3
		left := regexp.MustCompile(` (\\\.){3} `) // quoted
		pattern := left.ReplaceAllString(regexp.QuoteMeta(" "+anyMachine(e.output)+" "), " (.* )?")
		require.Greater(t, len(pattern), 100, "an example shows something")
		require.Regexp(t, "^"+pattern+"$", " "+anyMachine(string(out))+" ", "trueup %s", strings.Join(e.args, " "))
	}
}

// machines are what differs from one run or machine to the next: how long it takes, and how much of its own folder a
// scan reads.
var machines = regexp.MustCompile(` in (less than )?[\d.]+ s\b(, [\d.]+ \w+/s)?|Read [\d.]+ KiB`)

// anyMachine leaves that out, and where lines are broken for it.
func anyMachine(s string) string {
	return machines.ReplaceAllString(strings.Join(strings.Fields(s), " "), "")
}

type readmeCommand struct {
	args   []string
	output string
}

// readmeCommands finds indented blocks that begin with "$ trueup" and the output below each.
func readmeCommands(text string) []readmeCommand {
	var out []readmeCommand
	open := false
	for line := range strings.Lines(text) {
		code, indented := strings.CutPrefix(line, "    ")
		switch args, isCommand := strings.CutPrefix(code, "$ trueup "); {
		case indented && isCommand:
			out = append(out, readmeCommand{args: strings.Fields(args)})
			open = true
		case open && (indented || strings.TrimSpace(line) == ""):
			out[len(out)-1].output += code
		default:
			open = false
		}
	}
	for i := range out {
		out[i].output = strings.TrimRight(out[i].output, "\n") + "\n"
	}
	return out
}

// testName is a test in the documentation, with the script that it runs.
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
	tests := testsOf(t, root)
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

// TestBootingNamesTestsThatExist requires that each row of the table of guests names tests that prove it.
func TestBootingNamesTestsThatExist(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	text := disktest.ReadFile(t, filepath.Join(root, "docs/booting.md"))
	_, section, ok := strings.Cut(string(text), "\n| guest | how it boots |")
	require.True(t, ok, "the table of guests")
	section, _, _ = strings.Cut(section, "\n\n")
	rows := strings.Split(section, "\n")[2:]
	require.Greater(t, len(rows), 20)
	for _, row := range rows {
		require.Regexp(t, testName, row)
	}
}

// TestMatrixOfGuestsIsFull requires that each cell of the matrix of guests and states names a test, or says that there
// is nothing to prove.
func TestMatrixOfGuestsIsFull(t *testing.T) {
	t.Parallel()
	text := disktest.ReadFile(t, "../../docs/guest-states.md")
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

// testsOf lists the tests and fuzz targets of the tree.
func testsOf(t *testing.T, root string) map[string]bool {
	t.Helper()
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)[A-Za-z0-9]+)\([a-z]+ \*testing\.[TF]\)`)
	tests := map[string]bool{}
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
	return tests
}
