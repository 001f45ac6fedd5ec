package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReadmeExample runs the commands of the README's example where it says to run them, and wants the output that
// stands there.
func TestReadmeExample(t *testing.T) {
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(root, "README.md"))
	require.NoError(t, err)
	dir := t.TempDir()
	// A copy without holes: those of the original depend on who unpacked it.
	require.NoError(t, os.Mkdir(filepath.Join(dir, "testdata"), 0o755))
	const image = "testdata/xp-lba63.vmdk"
	b, err := os.ReadFile(filepath.Join(root, image))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, image), b, 0o644))
	examples := readmeCommands(string(text))
	require.Len(t, examples, 3, "inspect, plan and align")
	for _, e := range examples {
		cmd := exec.Command(builtPath, e.args...)
		cmd.Dir = dir
		out, _ := cmd.Output() // inspect of a misaligned disk exits with 3
		require.Equal(t, e.output, string(out), "trueup %s", strings.Join(e.args, " "))
	}
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
