package main

import (
	"bytes"
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Where shells and man look for what is installed, below a prefix.
const (
	manFolder = "share/man/man1"
	bash      = "share/bash-completion/completions/"
	zsh       = "share/zsh/site-functions/_"
	fish      = "share/fish/vendor_completions.d/"
	pwsh      = "share/powershell/completions/"
)

// pages writes the manual pages of all commands and the completions of all shells below a prefix.
func (r *release) pages(prefix string) error {
	man := filepath.Join(prefix, filepath.FromSlash(manFolder))
	if err := os.MkdirAll(man, 0o755); err != nil {
		return err
	}
	for _, p := range products {
		root := p.commands(r.version)
		if err := r.manual(p, root, man); err != nil {
			return err
		}
		if err := completions(root, prefix); err != nil {
			return err
		}
	}
	return nil
}

// completions writes those of a program for all shells.
func completions(root *cobra.Command, prefix string) error {
	for name, write := range map[string]func(b *bytes.Buffer) error{
		bash + root.Name():           func(b *bytes.Buffer) error { return root.GenBashCompletionV2(b, true) },
		zsh + root.Name():            func(b *bytes.Buffer) error { return root.GenZshCompletion(b) },
		fish + root.Name() + ".fish": func(b *bytes.Buffer) error { return root.GenFishCompletion(b, true) },
		pwsh + root.Name() + ".ps1":  func(b *bytes.Buffer) error { return root.GenPowerShellCompletionWithDesc(b) },
	} {
		var b bytes.Buffer
		if err := write(&b); err != nil {
			return err
		}
		path := filepath.Join(prefix, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// manual writes the page of a command and those of all below it. Generators of man pages take the texts for Markdown,
// which they are not.
func (r *release) manual(of product, cmd *cobra.Command, folder string) error {
	for _, c := range shown(cmd) {
		if err := r.manual(of, c, folder); err != nil {
			return err
		}
	}
	cmd.InitDefaultHelpFlag()
	p := &page{}
	p.head(r, cmd)
	p.paragraphs(cmp.Or(cmd.Long, cmd.Short+"."))
	p.flags("OPTIONS", cmd.LocalFlags())
	p.flags("OPTIONS OF ALL COMMANDS", cmd.InheritedFlags())
	if list := shown(cmd); len(list) > 0 {
		p.line(".SH COMMANDS")
		for _, c := range list {
			p.line(".TP", ".BR "+roff(pageName(c))+" (1)")
			p.text(c.Short)
		}
	}
	p.line(".SH EXIT STATUS")
	for _, e := range of.exits(cmd.Name()) {
		p.line(".TP", `\fB`+roff(e[0])+`\fR`)
		p.text(e[1])
	}
	if cmd.HasExample() {
		p.line(".SH EXAMPLES", ".EX")
		for l := range strings.Lines(cmd.Example) {
			p.text(strings.TrimPrefix(strings.TrimRight(l, "\n"), "  "))
		}
		p.line(".EE")
	}
	p.also(cmd, of.needs)
	return os.WriteFile(filepath.Join(folder, pageName(cmd)+".1"), []byte(p.String()), 0o644)
}

func pageName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// shown lists the commands below one that have pages.
func shown(cmd *cobra.Command) (out []*cobra.Command) {
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() && c.Name() != "completion" && c.Name() != "help" {
			out = append(out, c)
		}
	}
	return out
}

// page is a manual page (man(7)).
type page struct{ strings.Builder }

// line writes lines as they are.
func (p *page) line(lines ...string) {
	for _, l := range lines {
		p.WriteString(l + "\n")
	}
}

// text writes a line of text. A point or an apostrophe in front would make it a request.
func (p *page) text(s string) {
	s = roff(s)
	if strings.HasPrefix(s, ".") || strings.HasPrefix(s, "'") {
		s = `\&` + s
	}
	p.line(s)
}

// roff escapes a text. A hyphen of a command line is a minus, which can be copied.
func roff(s string) string { return strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(s) }

func (p *page) head(r *release, cmd *cobra.Command) {
	p.line(`.TH "`+strings.ToUpper(pageName(cmd))+`" "1" "`+r.time.Format("2006-01-02")+`" "trueup `+r.number()+
		`" "User Commands"`, ".SH NAME")
	p.text(pageName(cmd) + " - " + strings.ToLower(cmd.Short[:1]) + cmd.Short[1:])
	p.line(".SH SYNOPSIS")
	name := cmd.CommandPath()
	p.line(`\fB` + roff(name) + `\fR` + roff(strings.TrimPrefix(cmd.UseLine(), name)))
	p.line(".SH DESCRIPTION")
}

// paragraphs writes a text line by line, a sentence in each: what formatters want to know.
func (p *page) paragraphs(s string) {
	for n, para := range strings.Split(strings.TrimSpace(s), "\n\n") {
		if n > 0 {
			p.line(".PP")
		}
		for _, sentence := range strings.SplitAfter(strings.Join(strings.Fields(para), " "), ". ") {
			p.text(strings.TrimSpace(sentence))
		}
	}
}

func (p *page) flags(title string, set *pflag.FlagSet) {
	if !set.HasAvailableFlags() {
		return
	}
	p.line(".SH " + title)
	set.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		arg, usage := pflag.UnquoteUsage(f)
		name := `\fB` + roff("--"+f.Name) + `\fR`
		if f.Shorthand != "" {
			name = `\fB` + roff("-"+f.Shorthand) + `\fR, ` + name
		}
		if arg != "" {
			name += ` \fI` + roff(arg) + `\fR`
		}
		unset := slices.Contains([]string{"", "0", "false", "[]"}, f.DefValue)
		if !unset && !strings.Contains(usage, "(default") {
			usage += " (default " + f.DefValue + ")"
		}
		p.line(".TP", name)
		p.text(usage)
	})
}

// also names the pages of the other commands, and that of another program.
func (p *page) also(cmd *cobra.Command, program string) {
	p.line(".SH SEE ALSO")
	var names []string
	if program != "" {
		names = append(names, ".BR "+roff(program)+" (1)")
	}
	for _, c := range append([]*cobra.Command{cmd.Root()}, shown(cmd.Root())...) {
		if c != cmd {
			names = append(names, ".BR "+roff(pageName(c))+" (1)")
		}
	}
	p.line(strings.Join(names, " ,\n"))
	p.line(".PP")
	p.text("The documentation with formats, limits and proofs: " + homepage)
}
