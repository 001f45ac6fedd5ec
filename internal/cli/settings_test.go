package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/cli/command"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/shell"
)

// configuredAs returns a command with its flags as they are before the command line is read, and the error.
func configuredAs(t *testing.T, name, config string, environ ...string) (*cobra.Command, error) {
	t.Helper()
	root := newRoot("test", &command.Base{})
	path := filepath.Join(t.TempDir(), "config.toml")
	require.NoError(t, os.WriteFile(path, []byte(config), 0o600))
	cmd := commandOf(root, []string{name})
	return cmd, configure(root, cmd, append(environ, configVariable+"="+path))
}

// The command line goes before a variable, that before the table of the command, and that before the table of all.
func TestSettings(t *testing.T) {
	const config = "[all]\njobs = 3\nboundary = \"1M\"\nquiet = true\n" +
		"[scan]\njobs = 5\nlabel = [\"host=a\", \"room=2\"]\n[align]\nto = \"qcow2\"\n"
	for name, c := range map[string]struct {
		command, flag, want string
		environ             []string
	}{
		"table of all":             {"inspect", "boundary", "1M", nil},
		"a flag of all commands":   {"inspect", "quiet", "true", nil},
		"table of the command":     {"scan", "jobs", "5", nil},
		"of another command":       {"align", "jobs", "3", nil},
		"list":                     {"scan", "label", "[host=a,room=2]", nil},
		"only of align":            {"align", "to", "qcow2", nil},
		"variable":                 {"scan", "jobs", "7", []string{"TRUEUP_JOBS=7"}},
		"variable for a list":      {"scan", "label", "[host=b]", []string{"TRUEUP_LABEL=host=b"}},
		"words of a variable":      {"scan", "fail-on", "never", []string{"TRUEUP_FAIL_ON=never"}},
		"variables of others":      {"scan", "jobs", "5", []string{"TRUEUP_OF_ANOTHER=1", "JOBS=9"}},
		"flag of no command given": {"inspect", "quiet", "true", []string{"TRUEUP_JOBS=7"}},
	} {
		cmd, err := configuredAs(t, c.command, config, c.environ...)
		require.NoError(t, err, name)
		require.NoError(t, cmd.ParseFlags(nil), name)
		require.Equal(t, c.want, cmd.Flag(c.flag).Value.String(), name)
	}
	cmd, err := configuredAs(t, "scan", config, "TRUEUP_JOBS=7")
	require.NoError(t, err)
	require.NoError(t, cmd.ParseFlags([]string{"--jobs", "9", "--quiet=false"}))
	require.Equal(t, "9", cmd.Flag("jobs").Value.String())
	require.Equal(t, "false", cmd.Flag("quiet").Value.String())
}

// What cannot be right is wrong usage, and names the variable, or the line of the file.
func TestWrongSettings(t *testing.T) {
	for name, c := range map[string]struct {
		config, environ, want string
	}{
		"unknown key":       {"[all]\n\nboundar = \"1M\"\n", "", `line 3: unknown key "all.boundar"`},
		"of no table":       {"jobs = 1\n", "", `line 1: unknown key "jobs"`},
		"flag of others":    {"[verify]\njobs = 1\n[verify.x]\n", "", `unknown key "verify.x"`},
		"hidden flag":       {"[align]\nsupervised = true\n", "", "--supervised is taken from the command line only"},
		"unknown command":   {"[all]\n[alin]\njobs = 1\n", "", `line 2: unknown key "alin"`},
		"hidden command":    {"[_scan-worker]\n", "", `unknown key "_scan-worker"`},
		"no TOML":           {"[all]\njobs = 1\njobs = 2\n", "", "line 3, column"},
		"no table":          {"all = 1\n", "", "line 1, column 7: want a table [all] or [COMMAND]"},
		"no text":           {"[all]\njobs = 1.5\n", "", "[all]: jobs = 1.5: want a text in quotes, a number"},
		"wrong value":       {"[align]\njobs = \"x\"\n", "", `[align]: --jobs "x", want a whole number`},
		"empty":             {"[align]\nto = ''\n", "", "[align]: --to \"\": it is empty"},
		"agreement":         {"[align]\nforce = true\n", "", "[align]: --force is taken from the command line only"},
		"agreement by env":  {"", "TRUEUP_IN_PLACE=1", "variable TRUEUP_IN_PLACE: --in-place is taken from the"},
		"no truth":          {"", "TRUEUP_RESUMABLE=", `--resumable "", want true or false`},
		"wrong variable":    {"", "TRUEUP_JOBS=many", `variable TRUEUP_JOBS: --jobs "many", want a whole number`},
		"letter of another": {"", "TRUEUP_BOUNDAR=1", "unknown variable TRUEUP_BOUNDAR; did you mean TRUEUP_BOUNDARY?"},
		"too large":         {string(make([]byte, maxConfig+1)), "", "want at most 1048576 bytes"},
	} {
		_, err := configuredAs(t, "align", c.config, c.environ)
		require.ErrorIs(t, err, ondisk.ErrUsage, name)
		require.ErrorContains(t, err, c.want, name)
	}
	root := newRoot("test", &command.Base{})
	err := configure(root, commandOf(root, []string{"plan"}), []string{configVariable + "=/absent/c"})
	require.ErrorContains(t, err, "open /absent/c: no such file")
}

// What is made, agreed to or proved is never a setting; each setting is that of a flag.
func TestSettable(t *testing.T) {
	root := newRoot("test", &command.Base{})
	all := flagsOf(root)
	for _, name := range settable {
		require.Contains(t, all, name)
	}
	for _, name := range []string{
		"allow-empty", "allow-unbootable", "allow-unknown", "checksums", "data-only", "device", "discard",
		"dynamic-disks", "flatten", "force", "format", "in-place", "isolation", "journal", "json", "keep", "listen",
		"listen-anywhere", "no-color", "no-progress", "out", "overwrite-content", "partition", "repair-table",
		"replace", "script", "sector-size", "shard", "skip-aligned", "skip-free", "verify", "view", "with",
	} {
		require.Contains(t, all, name)
		require.NotContains(t, settable, name)
	}
}

// The documentation lists the settings.
func TestSettingsOfTheDocs(t *testing.T) {
	text, err := os.ReadFile("../../docs/configuration.md")
	require.NoError(t, err)
	list := "`" + strings.Join(settable, "`, `") + "`. All others"
	require.Contains(t, strings.Join(strings.Fields(string(text)), " "), list)
}

// Help says what it says, whatever the configuration.
func TestHelpIsNotConfigured(t *testing.T) {
	for _, args := range [][]string{{"help"}, {"completion", "bash"}, {}} {
		root := newRoot("test", &command.Base{})
		root.InitDefaultCompletionCmd(args...)
		require.NoError(t, configure(root, commandOf(root, args), []string{configVariable + "=/absent"}), args)
	}
}

// A program that starts trueup and tells all that it wants says so.
func TestUnconfigured(t *testing.T) {
	root := newRoot("test", &command.Base{})
	cmd := commandOf(root, []string{"scan"})
	before := cmd.Flag("jobs").Value.String()
	require.NoError(t, configure(root, cmd, []string{"TRUEUP_JOBS=42", shell.Unconfigured, "TRUEUP_FORCE=1"}))
	require.Equal(t, before, cmd.Flag("jobs").Value.String())
}

// An error of usage names the defaults that the command line does not show.
func TestExplainedErrors(t *testing.T) {
	cmd, err := configuredAs(t, "convert", "", "TRUEUP_TO=foo")
	require.NoError(t, err)
	require.NoError(t, cmd.ParseFlags(nil))
	wrong := command.Usage("format %q cannot be written", "foo")
	require.ErrorContains(t, explained(cmd, wrong), "(defaults that are set: --to foo by variable TRUEUP_TO)")
	require.ErrorIs(t, explained(cmd, wrong), ondisk.ErrUsage)
	require.Equal(t, os.ErrNotExist, explained(cmd, os.ErrNotExist))
	require.NoError(t, cmd.ParseFlags([]string{"--to", "raw"}))
	require.Equal(t, wrong, explained(cmd, wrong))

	root := newRoot("test", &command.Base{})
	err = configure(root, commandOf(root, []string{"plan"}), []string{configVariable + "=" + t.TempDir()})
	require.ErrorContains(t, err, "it is not a regular file")
}

// Without a variable that names another one, the file in the user's folder is read, if there is one.
func TestOwnConfiguration(t *testing.T) {
	home := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", home)
	jobs := func() string {
		root := newRoot("test", &command.Base{})
		cmd := commandOf(root, []string{"scan"})
		require.NoError(t, configure(root, cmd, nil))
		return cmd.Flag("jobs").Value.String()
	}
	before := jobs()
	require.NoError(t, os.Mkdir(filepath.Join(home, "trueup"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(home, "trueup", "config.toml"), []byte("[scan]\njobs = 42\n"), 0o600))
	require.NotEqual(t, "42", before)
	require.Equal(t, "42", jobs())
}
