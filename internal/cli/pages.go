package cli

import (
	"bytes"
	"cmp"
	_ "embed" // the template of a manual page
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

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
