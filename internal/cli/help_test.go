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

// No line of help is longer than a terminal that says nothing of its width.
func TestHelpWithinItsWidth(t *testing.T) {
	for _, name := range []string{
		"inspect", "plan", "align", "convert", "verify", "serve", "boot", "bench", "scan", "report", "version",
	} {
		text := trueup(t, name, "--help").stdout
		for line := range strings.Lines(text) {
			require.LessOrEqual(t, len(line), helpWidth+1, line)
		}
		require.NotContains(t, text, "(default [])", name)
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

// Directives to the shells. Spec: cobra's ShellCompDirective.
const (
	files   = ":0\n"
	nothing = ":4\n"
	folders = ":16\n"
)

// The shells complete files and folders where an argument is one.
func TestCompletion(t *testing.T) {
	for _, c := range []struct {
		line []string
		want string
	}{
		{[]string{"inspect", ""}, files},
		{[]string{"inspect", "two.img", ""}, files},
		{[]string{"plan", "two.img", ""}, nothing},
		{[]string{"align", "two.img", ""}, files},
		{[]string{"align", "two.img", "dest.img", ""}, nothing},
		{[]string{"version", ""}, nothing},
		{[]string{"help", "inspect", ""}, nothing},
		{[]string{"undo", ""}, files},
		{[]string{"bench", ""}, folders},
		{[]string{"bench", "--size", ""}, nothing},
		{[]string{"scan", "--exclude", ""}, files},
		{[]string{"scan", "--since", ""}, files},
		{[]string{"plan", "--out", ""}, files},
		{[]string{"plan", "--allow-folder", ""}, folders},
		{[]string{"plan", "--color", ""}, "always\nnever\nauto\n" + nothing},
		{[]string{"inspect", "vm.ova!"}, files},
		{[]string{"plan", "two.img", "--with", ""}, files},
		{[]string{"plan", "two.img", "--partition", ""}, nothing},
	} {
		r := trueup(t, append([]string{"__complete"}, c.line...)...)
		require.Equal(t, 0, r.code, c.line)
		require.Equal(t, c.want, r.stdout, c.line)
		require.Regexp(t, "^Completion ended with directive: .*\n$", r.stderr, c.line)
	}
	root := Commands("test")
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		r := trueup(t, "__complete", cmd.Name(), "")
		require.Equal(t, 0, r.code, cmd.Name())
		require.NotEmpty(t, r.stdout, cmd.Name())
	}
}
