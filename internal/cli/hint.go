package cli

import (
	"cmp"
	"errors"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/trueup/trueup/internal/cli/command"
	"github.com/trueup/trueup/internal/shell"
)

// habits are commands of other tools, by the command here: the words of qemu-img, fdisk, virt-resize and others.
var habits = map[string][]string{
	"inspect": {"info", "check", "show", "list", "map"},
	"align":   {"fix", "realign", "resize"},
	"convert": {"copy", "clone"},
	"plan":    {"dry-run", "preview"},
	"verify":  {"compare", "diff"},
	"boot":    {"run", "start", "try"},
	"bench":   {"benchmark", "measure", "fio"},
	"serve":   {"export", "nbd", "mount"},
	"undo":    {"rollback", "restore", "revert"},
	"resume":  {"continue"},
	"finish":  {"commit", "cleanup"},
	"version": {"--version"},
}

// flagHabits are flags of other tools, and their equivalents here.
var flagHabits = map[string]string{
	"dry-run":       "trueup plan, which writes nothing",
	"n":             "trueup plan, which writes nothing",
	"O":             "--to",
	"output-format": "--to",
	"f":             "--format",
	"F":             "--format",
	"V":             "--version",
	"y":             "--force",
	"overwrite":     "--force",
	"threads":       "--jobs",
	"silent":        "--quiet",
}

// unknownCommand returns the error of a command that does not exist, with a suggestion.
func unknownCommand(root *cobra.Command, name string) error {
	root.SuggestionsMinimumDistance = 2
	hint := "see trueup --help"
	near := root.SuggestionsFor(name)
	for here, words := range habits {
		if slices.Contains(words, name) {
			near = []string{here} // whatever is spelled alike
		}
	}
	if len(near) > 0 {
		hint = "did you mean trueup " + strings.Join(near, " or trueup ") + "? See trueup --help"
	} else if _, err := os.Stat(name); err == nil {
		hint = "it is a file: trueup inspect " + shell.Quote(name) + " looks at an image"
	}
	return command.Usage("unknown command %q; %s", name, hint)
}

// wrongFlag returns the error of a flag that does not exist, with a suggestion.
func wrongFlag(cmd *cobra.Command, err error) error {
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
		name := unknown.GetSpecifiedName()
		if near := cmp.Or(flagHabits[name], nearFlag(cmd, name)); near != "" {
			return command.Usage("%w; did you mean %s? See %s --help", err, near, cmd.CommandPath())
		}
	}
	return command.Usage("%w; see %s --help", err, cmd.CommandPath())
}

// nearFlag returns the flag with the most similar name, empty if more than two letters differ.
func nearFlag(cmd *cobra.Command, name string) string {
	best, least := "", 3
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if d := distance(name, f.Name); d < least && d < len(name) {
			best, least = "--"+f.Name, d
		}
	})
	return best
}

// distance returns how many letters must be changed, added or left out to make one word of another.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := before
			if a[i] != b[j] {
				change++
			}
			before = row[j+1]
			row[j+1] = slices.Min([]int{change, row[j] + 1, row[j+1] + 1})
		}
	}
	return row[len(b)]
}
