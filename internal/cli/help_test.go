package cli

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

func TestFold(t *testing.T) {
	for _, c := range []struct{ text, indent, want string }{
		{"short", "", "short"},
		{"one two three", "", "one two\nthree"},
		{"exactly 10", "", "exactly 10"},
		{"one two three four", "  ", "one two\n  three\n  four"},
		{"averyveryverylongword and more", "", "averyveryverylongword\nand more"},
		{"averyveryverylongword", "", "averyveryverylongword"},
	} {
		require.Equal(t, c.want, fold(c.text, 10, c.indent))
	}
}

// Completion shows the texts of flags without the marks that help reads.
func TestCompletionShowsPlainTexts(t *testing.T) {
	root := newRoot("test", &Base{})
	root.SetArgs([]string{"__complete", "scan", "--"})
	plainUsages(root)
	var out strings.Builder
	root.SetOut(&out)
	require.NoError(t, root.Execute())
	require.Contains(t, out.String(), "--out\twrite the result to FILE")
	require.Contains(t, out.String(), "--output\tprint the result as FORMAT")
	require.NotContains(t, out.String(), "`")
}

// A flag whose text a script left empty is a wrong command line, whatever the command and the flag.
func TestEmptyTextsOfFlags(t *testing.T) {
	flags := 0
	for _, cmd := range newRoot("test", &Base{}).Commands() {
		cmd.InheritedFlags() // they are among the flags now
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if cmd.Hidden || f.Value.Type() == "bool" {
				return
			}
			flags++
			r := trueup(t, cmd.Name(), "--"+f.Name+"=", "SOURCE", "DEST")
			require.Equal(t, 64, r.code, "%s --%s: %s", cmd.Name(), f.Name, r.stderr)
			require.Contains(t, r.stderr, "--"+f.Name, "%s: %s", cmd.Name(), r.stderr)
			require.Contains(t, r.stderr, "empty", "%s: %s", cmd.Name(), r.stderr)
		})
	}
	require.Greater(t, flags, 50)
}

// No line of help is longer than a terminal that says nothing of its width.
func TestHelpWithinItsWidth(t *testing.T) {
	for _, name := range []string{
		"inspect", "plan", "align", "convert", "verify", "serve", "boot", "bench", "scan", "report", "version",
	} {
		text := trueup(t, name, "--help").stdout
		for line := range strings.Lines(text) {
			require.LessOrEqual(t, len(line), helpWidth+1, line)
		}
		require.Less(t, strings.Index(text, "\nUsage:"), strings.Index(text, "\nExit codes:"))
	}
}

// No command has more flags of its own than a reader takes in.
func TestFewFlags(t *testing.T) {
	for _, cmd := range newRoot("test", &Base{}).Commands() {
		flags := 0
		for _, set := range grouped(cmd) {
			set.VisitAll(func(f *pflag.Flag) {
				if !f.Hidden && f.Name != "help" {
					flags++
				}
			})
		}
		require.LessOrEqual(t, flags, 24, cmd.Name())
	}
}
