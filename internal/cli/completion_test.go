package cli

import (
	"testing"

	"github.com/stretchr/testify/require"
)

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
