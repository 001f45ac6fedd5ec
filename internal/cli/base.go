package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/trueup/trueup/internal/progress"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/report"
)

// Base holds the flags and the state common to all commands.
type Base struct {
	Output  string
	AsJSON  bool
	Out     string
	Quiet   bool
	Verbose bool
	Color   string
	NoColor bool
	seen    bool // a report was printed on a terminal
	several bool // results go one after the other
	Stays   bool // the command keeps running after its result, which is one line for programs
	printed bool // the first result was printed
	Log     Log
	Result  any // of the run, for its log
	Ending  ending
	Asked   bool // the command line requests JSON, even if it could not be parsed
	// OwnProcess reports that the process belongs to one command, which may restrict it permanently.
	OwnProcess     bool
	line           *cobra.Command // the command that runs, with its flags
	RequireSandbox bool
	Version        string
	readsServers   bool // the command reads images on servers
	remotes        realign.Remotes
	writers        realign.Writers // programs with files open for writing
	unpacking      realign.Unpacking
	unpacked       bool   // an image was unpacked
	progress       string // one of progress.Kinds
	noProgress     bool
}

// JSON reports whether the result is printed as JSON.
func (c *Base) JSON() bool { return c.AsJSON || c.Output == "json" }

// Arguments requires exactly the named positional arguments.
func Arguments(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == len(names) {
			return nil
		}
		want := "no argument"
		if len(names) > 0 {
			want = strings.Join(names, " ")
		}
		return Usage("%s takes %s, %d given; see trueup %s --help", cmd.Name(), want, len(args), cmd.Name())
	}
}

// Several requires at least one positional argument with this name.
func Several(name string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return nil
		}
		return Usage("%s takes %s..., 0 given; see trueup %s --help", cmd.Name(), name, cmd.Name())
	}
}

// newCommand returns a command with the arguments of its usage line.
func newCommand(
	use, short string, run func(ctx context.Context, out, errOut io.Writer, args []string) error,
) *cobra.Command {
	names := strings.Fields(use)[1:]
	args := Arguments(names...)
	if name, several := strings.CutSuffix(names[len(names)-1], "..."); several {
		args = Several(name)
	}
	return &cobra.Command{
		Use: use, Short: short, Args: args,
		RunE: func(cmd *cobra.Command, args []string) error {
			return run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), args)
		},
	}
}

// Head returns the common head of all results.
func Head(command string) report.Head {
	return report.Head{Origin: report.Origin{Schema: report.Schema, Command: command}, Isolation: lost}
}

// Emit prints a result: as JSON, or as text with show. An incompletely written report is an error.
func (c *Base) Emit(stdout io.Writer, v any, show func(t *report.Text)) error {
	c.Ending.Hold("") // a report is printed completely or not at all
	c.Result = v
	t := c.Layout(stdout)
	if c.Out != "" && !c.several {
		var buf bytes.Buffer
		err := c.print(&buf, v, t, show)
		if err == nil {
			err = WriteFile(c.Out, buf.Bytes())
		}
		return WrapStdout(err)
	}
	if c.Quiet && !c.JSON() {
		return nil
	}
	c.seen = progress.Terminal(stdout) && !c.JSON()
	return WrapStdout(c.print(stdout, v, t, show))
}

func (c *Base) print(w io.Writer, v any, t *report.Text, show func(t *report.Text)) error {
	if c.JSON() {
		return c.writeJSON("")(w, v)
	}
	return t.Buffered(w, func() {
		if c.printed {
			fmt.Fprintln(t.W)
		}
		c.printed = c.several
		show(t)
	})
}

// WrapStdout marks an error of writing the report.
func WrapStdout(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", errStdout, err)
}

// completeBy sets the shell completion of a flag.
func completeBy(cmd *cobra.Command, flag string, offer cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, offer); err != nil {
		panic(err) // a missing flag is our own bug
	}
}

// progressTo returns the output for progress.
func (c *Base) progressTo(w io.Writer) progress.Output {
	kind := c.progress
	if c.noProgress {
		kind = "none"
	}
	return progress.Output{W: w, Kind: kind, Quiet: c.Quiet}
}

// Watched shows the progress of work until end is called. p is nil without progress. proves adds the phase that reads
// the copy again.
func (c *Base) Watched(w io.Writer, command string, proves bool) (p realign.Progress, end func()) {
	if shown := progress.NewCopy(c.progressTo(w), command, proves); shown != nil {
		return shown, shown.Stop
	}
	return nil, func() {}
}

// notEmpty is a flag value that refuses an empty argument, such as "$FILE" in a script that did not set it.
type notEmpty struct{ pflag.Value }

// Set parses the argument.
func (g notEmpty) Set(arg string) error {
	if arg == "" {
		return errors.New("the value is empty; give one, or leave the flag out")
	}
	return g.Value.Set(arg)
}

// WrongValue returns the error of an invalid flag value. why is the error of its parser.
func WrongValue(f *pflag.Flag, value string, why error) error {
	allowed := map[string]string{
		"bool": "true or false", "int": "a whole number", "intSlice": "a whole number", "int64": "a whole number",
		"duration": "a time such as 30s or 5m",
	}[f.Value.Type()]
	if allowed == "" || value == "" && f.Value.Type() != "bool" {
		return Usage("--%s %.256q: %w", f.Name, value, why)
	}
	return Usage("--%s %.256q: must be %s", f.Name, value, allowed)
}

// fullArguments adds to check a refusal of empty arguments, such as "$FILE" with an unset variable.
func fullArguments(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if i := slices.Index(args, ""); i >= 0 {
			return Usage("%s: argument %d is empty, perhaps an unset variable", cmd.Name(), i+1)
		}
		if check == nil {
			return nil
		}
		return check(cmd, args)
	}
}

// RefuseEmpty makes a command and its subcommands refuse empty arguments and flag values. It skips hidden commands,
// which only trueup itself runs.
func RefuseEmpty(cmd *cobra.Command) {
	cmd.Args = fullArguments(cmd.Args)
	refuse := func(f *pflag.Flag) {
		if f.Value.Type() != "bool" {
			f.Value = notEmpty{f.Value}
		}
	}
	cmd.Flags().VisitAll(refuse)
	cmd.PersistentFlags().VisitAll(refuse)
	for _, c := range cmd.Commands() {
		if !c.Hidden {
			RefuseEmpty(c)
		}
	}
}
