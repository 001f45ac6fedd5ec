package cli

import (
	"bytes"
	"cmp"
	"embed"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/template"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/progress"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/shell"
)

// Exit is an exit code of a command with its meaning, a row of exits.json.
type Exit struct {
	Code, Text string
	For        string   // commands in front of the text in the list of all commands
	Of         []string // commands with the code; nil means all
}

var exits = sync.OnceValue(func() []Exit { return ondisk.Embedded[[]Exit](exitsText) })

//go:embed exits.json
var exitsText []byte

// helpFiles holds the help text of each command with its examples, and shared texts.
//
//go:embed help/*.txt
var helpFiles embed.FS

// shared matches a line that includes the text of another file.
var shared = ondisk.LazyPattern(`(?m)^\{(\w+)\}$`)

// describe adds the help text to a command, which most runs do not show.
func describe(cmd *cobra.Command) {
	if text, examples := helpText(cmd.Name()); text != "" {
		cmd.Long, cmd.Example = text, examples
	}
}

// helpText returns the help text of a command and its examples. Both are empty for commands of cobra and hidden ones.
func helpText(name string) (text, examples string) {
	b, err := helpFiles.ReadFile("help/" + name + ".txt")
	if err != nil {
		return "", ""
	}
	all := shared().ReplaceAllStringFunc(strings.TrimSpace(string(b)), func(line string) string {
		text, _ := helpText(line[1 : len(line)-1])
		return text
	})
	_, formats := realign.Targets()
	text, examples, _ = strings.Cut(strings.Replace(all, "{formats}", formats, 1), "\n\nExamples:\n")
	return text, examples
}

// helpWidth is the width of help without a terminal, in characters.
const helpWidth = 80

// mostWords limits --help of a command. trueup help COMMAND and the manual page contain the complete text.
const mostWords = 600

// usualFlags is the number of flags in -h.
const usualFlags = 6

// grouped returns the flags of a command in the groups of the help, each in row order.
func grouped(cmd *cobra.Command) (out []*pflag.FlagSet) {
	own := cmd.LocalFlags()
	for _, g := range flagGroups() {
		set := pflag.NewFlagSet(g.Title, pflag.ContinueOnError)
		set.SortFlags = false
		for _, r := range g.Rows {
			if f := own.Lookup(r.Name); f != nil && r.isOf(cmd.Name()) && set.Lookup(r.Name) == nil {
				set.AddFlag(f)
			}
		}
		out = append(out, set)
	}
	for _, name := range []string{"help", "version"} { // from cobra
		if f := own.Lookup(name); f != nil {
			out[len(out)-1].AddFlag(f)
		}
	}
	return out
}

// help prints the help of a command: one screen for -h, at most mostWords for --help, otherwise everything.
func help(cmd *cobra.Command, args []string) {
	describe(cmd)
	out := cmd.OutOrStdout()
	columns := helpWidth
	if progress.Terminal(out) {
		columns = Width(out)
	}
	if slices.Contains(args, "-h") && cmd.HasParent() {
		helpScreen(out, cmd, columns)
		return
	}
	var rest strings.Builder
	helpUse(&rest, cmd)
	for i, set := range grouped(cmd) {
		helpFlags(&rest, flagGroups()[i].Title, set, columns)
	}
	helpFlags(&rest, "Flags of all commands", cmd.InheritedFlags(), columns)
	helpExits(&rest, cmd.Name(), columns)
	all := strings.Split(strings.TrimSpace(cmp.Or(cmd.Long, cmd.Short)), "\n\n")
	shown := all
	if slices.Contains(args, "--help") {
		words := len(strings.Fields(rest.String())) + len(strings.Fields(moreHelp(cmd)))
		n := 0
		for ; n < len(all) && words+len(strings.Fields(all[n])) <= mostWords; n++ {
			words += len(strings.Fields(all[n]))
		}
		if shown = all[:n]; n == 0 {
			shown = []string{cmd.Short + "."}
		}
		if n < len(all) {
			shown = append(slices.Clone(shown), moreHelp(cmd))
		}
	}
	for _, para := range shown {
		fmt.Fprintf(out, "%s\n\n", strings.Join(report.Fold(strings.Join(strings.Fields(para), " "), columns), "\n"))
	}
	fmt.Fprint(out, rest.String())
}

// moreHelp refers to the complete help of a command.
func moreHelp(cmd *cobra.Command) string { return "More: trueup help " + commandName(cmd) }

// commandName returns the words of a command after trueup.
func commandName(cmd *cobra.Command) string {
	return strings.TrimPrefix(cmd.CommandPath(), cmd.Root().Name()+" ")
}

// helpScreen prints the help for -h.
func helpScreen(out io.Writer, cmd *cobra.Command, columns int) {
	fmt.Fprintf(out, "%s.\n\n", cmd.Short)
	helpUse(out, cmd)
	few := pflag.NewFlagSet("", pflag.ContinueOnError)
	few.SortFlags = false
	count := 0
	for _, set := range grouped(cmd) {
		set.VisitAll(func(f *pflag.Flag) {
			if count < usualFlags && !f.Hidden {
				few.AddFlag(f)
				count++
			}
		})
	}
	helpFlags(out, "Flags", few, columns)
	fmt.Fprintf(out, "\nAll flags and exit codes: trueup %s --help\n", commandName(cmd))
}

// helpUse prints usage, commands and examples.
func helpUse(out io.Writer, cmd *cobra.Command) {
	fmt.Fprintf(out, "Usage:\n  %s\n", cmd.UseLine())
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(out, "  %s [command]\n\nCommands:\n", cmd.CommandPath())
		for _, sub := range cmd.Commands() {
			if sub.IsAvailableCommand() {
				fmt.Fprintf(out, "  %-*s %s\n", sub.NamePadding(), sub.Name(), sub.Short)
			}
		}
	}
	if cmd.HasExample() {
		fmt.Fprintf(out, "\nExamples:\n%s\n", cmd.Example)
	}
}

func helpFlags(out io.Writer, title string, f *pflag.FlagSet, columns int) {
	if f.HasAvailableFlags() {
		fmt.Fprintf(out, "\n%s:\n%s\n", title, strings.TrimRight(f.FlagUsagesWrapped(columns), " \n"))
	}
}

// Exits returns the exit codes of a command. For "trueup" it returns the exit codes of all commands.
func Exits(command string) (out []Exit) {
	for _, e := range exits() {
		if e.Of != nil && !slices.Contains(e.Of, command) {
			continue
		}
		if command == "trueup" && e.For != "" {
			e.Text = e.For + ": " + e.Text
		}
		out = append(out, e)
	}
	return out
}

// helpExits prints the exit codes of a command.
func helpExits(out io.Writer, command string, columns int) {
	fmt.Fprint(out, "\nExit codes:\n")
	indent := strings.Repeat(" ", 6)
	for _, e := range Exits(command) {
		code := fmt.Sprintf("  %-3s ", e.Code)
		fmt.Fprintln(out, code+strings.Join(report.Fold(e.Text, columns-len(code)), "\n"+indent))
	}
}

// plainUsages removes the backquotes around argument names from all flag texts, because completion would show them.
func plainUsages(cmd *cobra.Command) {
	plain := func(f *pflag.Flag) { _, f.Usage = pflag.UnquoteUsage(f) }
	cmd.PersistentFlags().VisitAll(plain)
	cmd.Flags().VisitAll(plain)
	for _, sub := range cmd.Commands() {
		plainUsages(sub)
	}
}

// pathNames lists the names of arguments that are paths.
var pathNames = []string{"IMAGE", "SOURCE", "DISK", "DEST", "PATH", "FILE", "DIR", "GLOB", "PROGRAM", "COMMAND"}

// completePaths enables shell completion of files for flags and arguments that are paths, and disables it for others.
func completePaths(root *cobra.Command) {
	root.CompletionOptions.SetDefaultShellCompDirective(cobra.ShellCompDirectiveNoFileComp)
	for _, cmd := range append(root.Commands(), root) {
		flag := func(f *pflag.Flag) {
			name, _ := pflag.UnquoteUsage(f)
			if _, chosen := cmd.GetFlagCompletionFunc(f.Name); !chosen && slices.Contains(pathNames, name) {
				completeBy(cmd, f.Name, cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault))
			}
		}
		cmd.Flags().VisitAll(flag)
		cmd.PersistentFlags().VisitAll(flag)
		if cmd.ValidArgsFunction == nil {
			cmd.ValidArgsFunction = offerArguments
		}
	}
}

// offerArguments completes the arguments of the usage line, all of which are paths.
func offerArguments(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) < len(strings.Fields(cmd.Use))-1 || strings.HasSuffix(cmd.Use, "...") {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}

// habits holds the rows of habits.json.
var habits = sync.OnceValue(func() words { return ondisk.Embedded[words](habitsText) })

//go:embed habits.json
var habitsText []byte

// words are words that trueup does not have.
type words struct {
	// Commands maps each command to command names of other tools: qemu-img, fdisk, virt-resize and others.
	Commands map[string][]string
	// Flags maps flags of other tools to equivalents of trueup. The first entry that fits counts; one that begins with
	// a flag fits only a command with that flag.
	Flags map[string][]string
	// Removed maps flags of earlier versions, some with their command, to their replacements.
	Removed map[string]string
}

// asJSON suggests the flag for the report format.
const asJSON = "-o FORMAT, such as -o json"

// unknownCommand returns the error of an unknown command, with a suggestion.
func unknownCommand(root *cobra.Command, name string) error {
	root.SuggestionsMinimumDistance = 2
	hint := "see trueup --help"
	near := root.SuggestionsFor(name)
	for here, words := range habits().Commands {
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
		was := habits().Removed
		if instead := cmp.Or(was[cmd.Name()+" "+name], was[name]); instead != "" {
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
	for _, habit := range habits().Flags[name] {
		flag, _, _ := strings.Cut(strings.TrimLeft(habit, "-"), " ")
		if !strings.HasPrefix(habit, "-") || cmd.Flags().Lookup(flag) != nil || habit == asJSON {
			return habit
		}
	}
	return ""
}

// nearFlag returns the visible flag with the most similar name, with its dashes, or "" if none is similar.
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

// Folders of manual pages and completions below a prefix, as man and the shells expect them.
const (
	ManFolder = "share/man/man1"
	Bash      = "share/bash-completion/completions/"
	Zsh       = "share/zsh/site-functions/_"
	Fish      = "share/fish/vendor_completions.d/"
	Pwsh      = "share/powershell/completions/"
)

// Homepage is the address of the project.
const Homepage = "https://github.com/trueup/trueup"

// Pages describes the manual pages of a program.
type Pages struct {
	Root    *cobra.Command
	Exits   func(command string) []Exit
	Needs   string // another program that this one starts; may be empty
	Version string
	Date    time.Time
}

// newPages returns the hidden command that make install runs.
func newPages(c *Base) *cobra.Command {
	names := []string{"PREFIX", "SECONDS"}
	return &cobra.Command{
		Use:   "pages " + strings.Join(names, " "),
		Short: "Write manual pages, dated SECONDS after 1970, and completions below PREFIX", Hidden: true,
		Args: Arguments(names...),
		RunE: func(_ *cobra.Command, args []string) error {
			seconds, err := strconv.ParseInt(args[1], 10, 64)
			if err != nil {
				return Usage("pages: SECONDS %q is no number of seconds after 1970", args[1])
			}
			p := Pages{Root: Commands(c.Version), Exits: Exits, Version: c.Version, Date: time.Unix(seconds, 0)}
			return p.Write(args[0])
		},
	}
}

// Write writes the manual pages of all commands and the completions of all shells below a prefix.
func (p Pages) Write(prefix string) error {
	if err := p.manual(p.Root, filepath.Join(prefix, filepath.FromSlash(ManFolder))); err != nil {
		return err
	}
	name := p.Root.Name()
	for path, write := range map[string]func(w io.Writer) error{
		Bash + name:           func(w io.Writer) error { return p.Root.GenBashCompletionV2(w, true) },
		Zsh + name:            p.Root.GenZshCompletion,
		Fish + name + ".fish": func(w io.Writer) error { return p.Root.GenFishCompletion(w, true) },
		Pwsh + name + ".ps1":  p.Root.GenPowerShellCompletionWithDesc,
	} {
		if err := writePage(filepath.Join(prefix, filepath.FromSlash(path)), write); err != nil {
			return err
		}
	}
	return nil
}

// writePage writes a file, and makes its folder.
func writePage(path string, write func(w io.Writer) error) error {
	var b bytes.Buffer
	if err := write(&b); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, b.Bytes(), 0o644) //nolint:gosec // every user reads manual pages
}

//go:embed manual.tmpl
var manualText string

// manual writes the pages of a command and its subcommands. Generators of manual pages expect Markdown, which help
// texts are not. Spec: man(7).
func (p Pages) manual(cmd *cobra.Command, folder string) error {
	for _, c := range withPages(cmd) {
		if err := p.manual(c, folder); err != nil {
			return err
		}
	}
	cmd.InitDefaultHelpFlag()
	page, err := template.New("manual").Funcs(template.FuncMap{
		"roff": roff, "line": roffLine, "sentences": sentences, "commands": withPages, "name": pageName,
		"flags": shownFlags, "upper": strings.ToUpper, "home": func() string { return Homepage },
	}).Parse(manualText)
	if err != nil {
		return err
	}
	data := manualPage{Program: p, Command: cmd, Text: cmp.Or(cmd.Long, cmd.Short+"."), Exits: p.Exits(cmd.Name())}
	data.Title = pageName(cmd) + " - " + strings.ToLower(cmd.Short[:1]) + cmd.Short[1:]
	data.Arguments = strings.TrimPrefix(cmd.UseLine(), cmd.CommandPath())
	for line := range strings.Lines(cmd.Example) {
		data.Examples = append(data.Examples, strings.TrimPrefix(strings.TrimRight(line, "\n"), "  "))
	}
	if p.Needs != "" {
		data.Others = []string{p.Needs}
	}
	for _, c := range append([]*cobra.Command{p.Root}, withPages(p.Root)...) {
		if c != cmd {
			data.Others = append(data.Others, pageName(c))
		}
	}
	return writePage(filepath.Join(folder, pageName(cmd)+".1"), func(w io.Writer) error {
		return page.Execute(w, data)
	})
}

// manualPage holds the values of the template.
type manualPage struct {
	Program                Pages
	Command                *cobra.Command
	Title, Arguments, Text string
	Exits                  []Exit
	Examples               []string // lines
	Others                 []string // names of related pages
}

// pageName is the name of a command's manual page.
func pageName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// withPages lists the subcommands that have manual pages.
func withPages(cmd *cobra.Command) (out []*cobra.Command) {
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() && c.Name() != "completion" && c.Name() != "help" {
			out = append(out, c)
		}
	}
	return out
}

// roff escapes a text. A hyphen becomes a minus, so that command lines can be copied.
func roff(s string) string { return strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(s) }

// roffLine escapes a line of text. A point or an apostrophe at its start would make it a request.
func roffLine(s string) string {
	if strings.HasPrefix(s, ".") || strings.HasPrefix(s, "'") {
		return `\&` + roff(s)
	}
	return roff(s)
}

// sentences splits a help text into paragraphs of sentences. Formatters expect each sentence on a line of its own.
func sentences(text string) (out [][]string) {
	for paragraph := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		lines := strings.SplitAfter(strings.Join(strings.Fields(paragraph), " "), ". ")
		for n := range lines {
			lines[n] = strings.TrimSpace(lines[n])
		}
		out = append(out, lines)
	}
	return out
}

// shownFlag is a flag in a manual page.
type shownFlag struct{ Name, Short, Value, Usage string }

// shownFlags lists the flags of a set that are not hidden.
func shownFlags(set *pflag.FlagSet) (out []shownFlag) {
	set.VisitAll(func(f *pflag.Flag) {
		value, usage := pflag.UnquoteUsage(f)
		unset := slices.Contains([]string{"", "0", "false", "[]"}, f.DefValue)
		if !unset && !strings.Contains(usage, "(default") {
			usage += " (default " + f.DefValue + ")"
		}
		if !f.Hidden {
			out = append(out, shownFlag{f.Name, f.Shorthand, value, usage})
		}
	})
	return out
}
