package cli

import (
	"io/fs"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/scan/results"
)

// own is a folder with a disk, as the folder that the user is in.
func own(t *testing.T) {
	t.Helper()
	t.Chdir(t.TempDir())
	tiny().Write(t, "src.img")
}

func read(t *testing.T, name string) string {
	t.Helper()
	b := disktest.ReadFile(t, name)
	return string(b)
}

// A person deletes from a script what should not be done. The next scan must not bring it back.
func TestAnEditedScriptIsKept(t *testing.T) {
	own(t)
	scan := []string{"scan", "--isolation", "none", "src.img", "--script", "fix.sh"}
	for range 2 {
		require.Zero(t, trueup(t, scan...).code, "one that was not edited is written again")
	}
	whole := read(t, "fix.sh")
	require.Contains(t, whole, "\n# As trueup wrote it, SHA-256 ")
	for _, edited := range []string{
		whole + "\n", strings.Replace(whole, "echo", "true", 1), whole[:len(whole)-1],
		"echo mine\n",
	} {
		put(t, "fix.sh", []byte(edited))
		r := trueup(t, scan...)
		require.Equal(t, 64, r.code)
		require.Equal(t, "trueup: --script fix.sh is not as trueup wrote it: it was edited, or is another's; "+
			"name another file, or remove it\n", r.stderr)
		require.Equal(t, edited, read(t, "fix.sh"))
	}
	require.NoError(t, os.Remove("fix.sh"))
	require.Zero(t, trueup(t, scan...).code)
	require.Contains(t, read(t, "fix.sh"), "\n# As trueup wrote it, SHA-256 ")
}

// Every report is a text that the next one may replace.
func TestReportsAreWrittenAgain(t *testing.T) {
	own(t)
	put(t, "copy.img", tiny())
	for _, args := range [][]string{
		{"inspect", "src.img"},
		{"inspect", "--json", "src.img"},
		{"inspect", "--list", "src.img"},
		{"plan", "src.img"},
		{"verify", "src.img", "copy.img"},
		{"version"},
		{"align", "--force", "src.img", "new.img"},
	} {
		requireTwice(t, append(args, "--out", "report"))
	}
	for _, format := range results.FormatNames() {
		requireTwice(t, []string{"scan", "--isolation", "none", "-o", format, "src.img", "--out", "report"})
	}
}

func requireTwice(t *testing.T, args []string) {
	t.Helper()
	require.NoError(t, os.WriteFile("report", nil, 0o600))
	for range 2 {
		r := trueup(t, args...)
		require.Zero(t, r.code, "%q: %s", args, r.stderr)
		require.NotEmpty(t, read(t, "report"))
		st := disktest.Stat(t, "report")
		require.Equal(t, fs.FileMode(0o600), st.Mode(), "the report keeps its permissions")
	}
}

// A run that was killed had the same process id, or a program does that runs in another container.
func TestAReportWithItsOwnNameTaken(t *testing.T) {
	own(t)
	partial := ".report." + strconv.Itoa(os.Getpid()) + ".partial"
	put(t, partial, []byte("half"))
	require.Zero(t, trueup(t, "inspect", "src.img", "--out", "report").code)
	require.NoFileExists(t, partial)
	put(t, partial, tiny())
	r := trueup(t, "inspect", "src.img", "--out", "report")
	require.Equal(t, 1, r.code)
	require.Contains(t, r.stderr, partial+": file exists")
	require.Equal(t, string(tiny()), read(t, partial))
}

// One name for two outputs of a run would lose the one that was written first, however the names are spelt.
func TestOutputsOfARunAreApart(t *testing.T) {
	own(t)
	require.NoError(t, os.Mkdir("sub", 0o700))
	put(t, "x", []byte("text\n"))
	require.NoError(t, os.Link("x", "hard"))
	link(t, "x", "soft")
	link(t, ".", "here")
	for _, args := range [][]string{
		{"align", "src.img", "new", "--out", "new"},
		{"align", "src.img", "new", "--out", "./sub/../new"},
		{"align", "src.img", "new", "--out", "here/new"},
		{"convert", "src.img", "here/new", "--out", "new"},
		{"align", "--force", "src.img", "x", "--out", "x"},
		{"align", "--force", "src.img", "x", "--out", "soft"},
		{"scan", "--isolation", "none", "src.img", "--out", "new", "--script", "here/new"},
		{"scan", "--isolation", "none", "src.img", "--out", "x", "--script", "hard"},
		{"scan", "--isolation", "none", "src.img", "--out", "soft", "--ignore", "x"},
		{"scan", "--isolation", "none", "src.img", "--script", "new", "--since", "./new"},
	} {
		before := state(t)
		r := trueup(t, args...)
		require.Equal(t, 64, r.code, "%q: %s", args, r.stderr)
		require.Contains(t, r.stderr, "would overwrite")
		require.Equal(t, before, state(t), "%q", args)
	}
}

// Messages about outputs have the path as it was typed: in the log of a batch a bare name is no help.
func TestMessagesHaveTheWholePath(t *testing.T) {
	own(t)
	require.NoError(t, os.Mkdir("sub", 0o700))
	put(t, "sub/new", []byte("text"))
	put(t, "sub/flat-flat.vmdk", []byte("text"))
	for path, args := range map[string][]string{
		"./sub/new":            {"align", "src.img", "./sub/new"},
		"./sub/../src.img":     {"align", "src.img", "./sub/../src.img"},
		"sub/./flat-flat.vmdk": {"convert", "--to", "vmdk:monolithicFlat", "src.img", "sub/./flat.vmdk"},
		"./sub":                {"align", "src.img", "./sub"},
	} {
		r := trueup(t, args...)
		require.NotZero(t, r.code)
		require.Contains(t, r.stderr, path)
	}
}
