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

// TestPages runs the examples of README and the users' pages: each line " $ COMMAND" of a page in a shell, in sequence,
// in a folder with the images of testdata. The indented lines below it are its whole output, with "..." for omitted
// lines, except for times and rates. A command without such lines must end with 0, any other with 0 or a verdict. Each
// page except pagesOfMachines has an example.
func TestPages(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("../../docs/*.md")
	require.NoError(t, err)
	for _, page := range append(pages, "../../README.md") {
		t.Run(filepath.Base(page), func(t *testing.T) {
			t.Parallel()
			examples := pageExamples(string(disktest.ReadFile(t, page)))
			require.Equal(t, slices.Contains(pagesOfMachines, filepath.Base(page)), len(examples) == 0)
			dir := t.TempDir()
			require.NoError(t, os.Mkdir(filepath.Join(dir, "testdata"), 0o755))
			const image = "testdata/xp-lba63.vmdk"
			// A copy without holes, because the holes of the original depend on how it was unpacked.
			require.NoError(t, os.WriteFile(filepath.Join(dir, image), disktest.ReadFile(t, "../../"+image), 0o600))
			for _, e := range examples {
				for _, name := range programs.FindAllString(e.command, -1) {
					disktest.Tool(t, name)
				}
				cmd := exec.Command("sh", "-c", e.command)
				cmd.Dir = dir
				cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(builtPath)+":"+os.Getenv("PATH"), "NO_COLOR=1")
				var stderr strings.Builder
				cmd.Stderr = &stderr
				out, err := cmd.Output() // inspect of a misaligned disk exits with 3
				require.Contains(t, []int{0, 2, 3}, cmd.ProcessState.ExitCode(), "%s: %s", e.command, &stderr)
				if e.output == "" {
					require.NoError(t, err, "%s\n%s%s", e.command, out, &stderr)
					continue
				}
				omitted := regexp.MustCompile(` (\\\.){3} `) // quoted
				pattern := omitted.ReplaceAllString(regexp.QuoteMeta(" "+anyMachine(e.output)+" "), " (.* )?")
				require.Regexp(t, "^"+pattern+"$", " "+anyMachine(string(out)+stderr.String())+" ", e.command)
			}
		})
	}
}

// pagesOfMachines lists pages whose commands start guests or need a server.
var pagesOfMachines = []string{"boot.md", "fleet.md"}

// programs matches programs in examples, other than trueup and utilities of every system.
var programs = regexp.MustCompile(
	`\b(qemu-img|qemu-io|qemu-nbd|nbdcopy|nbdkit|guestfish|jq|xz|zstd|duckdb|sfdisk|sgdisk|fio)\b`)

// machines matches the parts of an output that differ between runs: times, rates, and bytes that a scan reads of its
// own folder.
var machines = regexp.MustCompile(` in (less than )?[\d.]+ s\b(, [\d.]+ \w+/s)?|Read [\d.]+ KiB`)

// anyMachine returns s without these parts, with single spaces.
func anyMachine(s string) string {
	return machines.ReplaceAllString(strings.Join(strings.Fields(s), " "), "")
}

type pageExample struct{ command, output string }

// pageExamples returns the indented lines that begin with "$ " and the indented lines below each.
func pageExamples(text string) []pageExample {
	var out []pageExample
	open := false
	for line := range strings.Lines(text) {
		code, indented := strings.CutPrefix(line, "    ")
		switch command, isCommand := strings.CutPrefix(code, "$ "); {
		case indented && isCommand:
			out = append(out, pageExample{command: strings.TrimSpace(command)})
			open = true
		case open && (indented || strings.TrimSpace(line) == ""):
			out[len(out)-1].output += code
		default:
			open = false
		}
	}
	for i := range out {
		out[i].output = strings.TrimSpace(out[i].output)
	}
	return out
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
