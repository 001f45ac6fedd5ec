package cli

import (
	"cmp"
	"errors"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/shell"
)

// habits maps each command to command names of other tools: qemu-img, fdisk, virt-resize and others.
var habits = map[string][]string{
	"inspect":  {"info", "check", "show", "list", "map"},
	"align":    {"fix", "realign", "resize"},
	"replace":  {"exchange", "swap"},
	"convert":  {"copy", "clone"},
	"plan":     {"dry-run", "preview"},
	"verify":   {"compare", "diff"},
	"handover": {"migrate", "live"},
	"boot":     {"run", "start", "try"},
	"judge":    {"opinion"},
	"bench":    {"benchmark", "measure", "fio"},
	"serve":    {"export", "nbd", "mount"},
	"undo":     {"rollback", "restore", "revert"},
	"resume":   {"continue"},
	"finish":   {"commit", "cleanup"},
	"version":  {"--version"},
}

// flagHabits maps flags of other tools to equivalents of trueup. The first entry that fits counts; one that begins with
// a flag fits only a command with that flag.
var flagHabits = map[string][]string{
	"dry-run":       {"trueup plan, which writes nothing"},
	"n":             {"trueup plan, which writes nothing"},
	"O":             {"--to", asJSON},
	"output-format": {"--to", asJSON},
	"f":             {"--format for the image format, or " + asJSON, asJSON},
	"F":             {"--format for the image format, or " + asJSON, asJSON},
	"format":        {asJSON},
	"V":             {"--version"},
	"y":             {"--force"},
	"overwrite":     {"--force"},
	"threads":       {"--jobs"},
	"silent":        {"--quiet"},
}

// removed maps flags of earlier versions, some with their command, to their replacements.
var removed = map[string]string{
	"after":          "append && COMMAND to the trueup command",
	"catalog":        "use --since FILE, written by scan -o json; --out can name the same FILE",
	"bench":          "use trueup inspect --bench FILE IMAGE... or trueup plan --bench FILE IMAGE",
	"bench jobs":     fewLoads,
	"boot-trial":     "put trueup boot SOURCE && before the command",
	"dynamic-disks":  "convert the disk to a basic one in the guest, or copy its files to a new disk",
	"device":         "name the block device as DEST",
	"estimate":       "measure the read rate: pv IMAGE > /dev/null",
	"fragmentation":  "trueup inspect --fragmentation IMAGE... counts the pieces of files",
	"idle":           "put ionice -c 3 before trueup",
	"in-place":       "use trueup move DISK",
	"libvirt-xml":    definitions,
	"limit-rate":     "read SOURCE through nbdkit --filter=rate, as docs/recipes.md shows",
	"log-format":     "--log is always JSON; print it as text with jq",
	"quick":          "use --rounds 3 --runtime 1s, the shortest run that can show a difference",
	"read-only":      "name a folder on that storage, for the scratch file: writes matter most",
	"profiles":       "use --storage SIZE+OFFSET, such as 32K+63s",
	"resumable":      "run the copy again; trueup resume is for replace and move only",
	"replace":        "use trueup replace DISK",
	"since":          "use trueup scan --since; for earlier sums, run report on the older FILEs",
	"scan force":     "delete the edited script, and run again",
	"title":          "put the title into a template: --template FILE",
	"sizes":          fewLoads,
	"second-opinion": "append && trueup judge SOURCE DEST to the command",
	"view":           "use trueup view SOURCE DEST",
	"vmx":            definitions,
	"workload":       fewLoads,
}

// fewLoads replaces the removed flags for other kinds of I/O.
const fewLoads = "the kinds of I/O are fixed; for others, run fio: --offset=63.5k --size=2g, then --offset=64k"

// definitions replaces the removed flags for checks of machine definitions.
const definitions = "copy the attach command from the result, or keep the names with trueup replace"

// asJSON suggests the flag for the report format.
const asJSON = "-o FORMAT, such as -o json"

// unknownCommand returns the error of an unknown command, with a suggestion.
func unknownCommand(root *cobra.Command, name string) error {
	root.SuggestionsMinimumDistance = 2
	hint := "see trueup --help"
	near := root.SuggestionsFor(name)
	for here, words := range habits {
		if slices.Contains(words, name) {
			near = []string{here} // overrides commands of similar spelling
		}
	}
	if len(near) > 0 {
		hint = "did you mean trueup " + strings.Join(near, " or trueup ") + "? See trueup --help"
	} else if _, err := os.Stat(name); err == nil {
		hint = "to inspect the file: " + shell.Command("inspect", nil, name)
	}
	return Usage("unknown command %q; %s", name, hint)
}

// wrongFlag returns the error of an unknown flag or an invalid value, with a suggestion.
func wrongFlag(cmd *cobra.Command, err error) error {
	help := "see " + cmd.CommandPath() + " --help"
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
		name := unknown.GetSpecifiedName()
		flag := "--" + name
		if unknown.GetSpecifiedShortnames() != "" {
			flag = "-" + name
		}
		if instead := cmp.Or(removed[cmd.Name()+" "+name], removed[name]); instead != "" {
			flag += ", which was removed; " + instead
		} else if near := cmp.Or(habitOf(cmd, name), nearFlag(cmd, name)); near != "" {
			flag += "; did you mean " + near + "?"
		}
		err = errors.New("unknown flag: " + flag)
	}
	if wrong, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		err = WrongValue(wrong.GetFlag(), wrong.GetValue(), wrong.Unwrap())
	}
	if none, ok := errors.AsType[*pflag.ValueRequiredError](err); ok {
		name, _ := pflag.UnquoteUsage(none.GetFlag())
		err = Usage("--%s needs a value: %s", none.GetFlag().Name, name)
	}
	return Usage("%s", withHelp(err.Error(), help))
}

// withHelp appends a help command line to a message.
func withHelp(text, help string) string {
	if strings.HasSuffix(text, "?") {
		return text + " S" + help[1:]
	}
	return text + "; " + help
}

// habitOf returns the equivalent of another tool's flag, or "" if the command has none.
func habitOf(cmd *cobra.Command, name string) string {
	for _, habit := range flagHabits[name] {
		flag, _, _ := strings.Cut(strings.TrimLeft(habit, "-"), " ")
		if !strings.HasPrefix(habit, "-") || cmd.Flags().Lookup(flag) != nil || habit == asJSON {
			return habit
		}
	}
	return ""
}

// nearFlag returns the flag with the most similar name, or "" if none is similar.
func nearFlag(cmd *cobra.Command, name string) string {
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	if near := ondisk.Near(name, names...); near != "" {
		return "--" + near
	}
	return ""
}
