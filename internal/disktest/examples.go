package disktest

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// RunExamples runs the examples of a page of the documentation: each line " $ COMMAND" in a shell, in sequence, in a
// new folder with testdata/xp-lba63.vmdk, with the programs of the folder bin. The indented lines below a command are
// its whole output, with "..." for omitted lines, except for times and rates. A command must end with 0, or with 3: a
// disk is misaligned. It returns the number of commands.
func RunExamples(t *testing.T, page, bin string) int {
	t.Helper()
	examples := pageExamples(string(ReadFile(t, page)))
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "testdata"), 0o755))
	const image = "testdata/xp-lba63.vmdk"
	// A copy without holes, because the holes of the original depend on how it was unpacked.
	require.NoError(t, os.WriteFile(filepath.Join(dir, image), ReadFile(t, "../../"+image), 0o600))
	for _, e := range examples {
		for _, name := range examplePrograms.FindAllString(e.command, -1) {
			Tool(t, name)
		}
		cmd := exec.Command("sh", "-c", e.command)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "NO_COLOR=1")
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, _ := cmd.Output()
		require.Contains(t, []int{0, 3}, cmd.ProcessState.ExitCode(), "%s\n%s%s", e.command, out, &stderr)
		if e.output != "" {
			omitted := regexp.MustCompile(` (\\\.){3} `) // quoted
			pattern := omitted.ReplaceAllString(regexp.QuoteMeta(" "+withoutFigures(e.output)+" "), " (.* )?")
			require.Regexp(t, "^"+pattern+"$", " "+withoutFigures(string(out)+stderr.String())+" ", e.command)
		}
	}
	return len(examples)
}

// examplePrograms matches programs in examples, other than trueup and utilities of every system.
var examplePrograms = regexp.MustCompile(
	`\b(qemu-img|qemu-io|qemu-nbd|nbdcopy|nbdkit|guestfish|jq|xz|zstd|duckdb|sfdisk|sgdisk|fio)\b`)

// figures matches the parts of an output that differ between runs: times, rates, and bytes that a scan reads of its
// own folder.
var figures = regexp.MustCompile(` in (less than )?[\d.]+ s\b(, [\d.]+ \w+/s)?|Read [\d.]+ KiB`)

// withoutFigures returns s without these parts, with single spaces.
func withoutFigures(s string) string {
	return figures.ReplaceAllString(strings.Join(strings.Fields(s), " "), "")
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
