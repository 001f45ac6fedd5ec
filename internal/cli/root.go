package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/report"
)

// common are the flags of all commands.
type common struct {
	output  string
	asJSON  bool
	out     string
	quiet   bool
	verbose bool
	noColor bool
	seen    bool // a report was printed on a terminal
	ending  ending
	asked   bool // the command line asks for JSON, whether it could be parsed or not
	// ownProcess is set where the process is that of one command, which can restrict it for good.
	ownProcess     bool
	requireSandbox bool
	version        string
	judging        []string // folders of judges, which read from sockets in them that are open
}

func (c *common) json() bool { return c.asJSON || c.output == "json" }

// Main runs the program and returns its exit code.
func Main(version string, args []string) (code int) {
	c := &common{asked: asksJSON(args), ownProcess: true}
	helper := len(args) > 0 && slices.Contains([]string{workerCommand, clerkCommand, afterClerk}, args[0])
	if !helper {
		abortOnCrash()
	} else { // the parent reads the cause of a crash from its output
		c.ending.hold("") // its parent ends it
	}
	// Without this the runtime would end the program by a signal and without a word on standard output.
	defer func() {
		if p := recover(); p != nil {
			err := fmt.Errorf("internal error, please report it: %v at %s", p, debug.Stack())
			code = finish(err, c, "trueup", os.Stdout, os.Stderr)
		}
	}()
	boundHeap(helper)
	root := newRoot(version, c)
	root.SetArgs(args)
	if len(args) > 0 && strings.HasPrefix(args[0], cobra.ShellCompRequestCmd) {
		plainUsages(root)
	}
	ctx := c.receive(commandName(root, args))
	cmd, err := root.ExecuteContextC(ctx)
	if errors.Is(err, context.Canceled) {
		i := interruptOf(ctx)
		var left interface{ Remedy() string } // what the run leaves: files of a copy, or a marked device
		if errors.As(err, &left) {
			i = i.saying("interrupted; " + left.Remedy())
		}
		err = i
	}
	return finish(err, c, cmd.Name(), os.Stdout, os.Stderr)
}

// boundHeap bounds the memory of this process. Buffers are few and of fixed size; a small heap target keeps the peak low
// at no cost that shows. The limits are soft. Most runs of a user end below the first one: collecting twice before would
// be a third of their time. A helper lasts, and may set a limit of its own.
func boundHeap(helper bool) {
	lasting := func(percent int) {
		debug.SetMemoryLimit(44 << 20)
		debug.SetGCPercent(percent)
	}
	if helper {
		lasting(50)
		return
	}
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(12 << 20)
	runtime.AddCleanup(new([64]byte), lasting, 50) // runs with the first collection
}

// Run runs a command in the process of another program, which it does not restrict, and returns its exit code. Tests
// that ask hundreds of times start no process for each.
func Run(ctx context.Context, version string, args []string, out, errOut io.Writer) int {
	c := &common{asked: asksJSON(args)}
	root := newRoot(version, c)
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(errOut)
	root.SetIn(strings.NewReader(""))
	cmd, err := root.ExecuteContextC(ctx)
	return finish(err, c, cmd.Name(), out, errOut)
}

// commandName returns the command that a command line calls.
func commandName(root *cobra.Command, args []string) string {
	cmd, _, err := root.Find(args)
	if err != nil {
		cmd = root
	}
	return cmd.Name()
}

// asksJSON reports whether a command line asks for JSON, also a wrong one, which is parsed only up to its error.
func asksJSON(args []string) bool {
	for i, a := range args {
		switch {
		case a == "--":
			return false
		case a == "--json" || a == "-ojson" || a == "-o=json" || a == "--output=json":
			return true
		case (a == "-o" || a == "--output") && i+1 < len(args) && args[i+1] == "json":
			return true
		}
	}
	return false
}

func newRoot(version string, c *common) *cobra.Command {
	c.version = version
	root := &cobra.Command{
		Use:   "trueup",
		Short: "Inspect and realign virtual-disk images, offline",
		Long: `trueup finds virtual disks whose partitions do not start on a block boundary of the storage below, and
writes an aligned copy with the file systems moved and the guest still able to boot. The source is never written.`,
		Example: `  trueup inspect winxp.vmdk
  trueup align winxp.vmdk winxp-aligned.vmdk`,
		Version:       version, // for --version
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownCommand(cmd, args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	f := root.PersistentFlags()
	f.StringVarP(&c.output, "output", "o", "text", "print the result as `FORMAT`: text or json")
	f.BoolVar(&c.asJSON, "json", false, "same as --output json")
	f.StringVar(&c.out, "out", "", "write the result to `FILE`, or - for standard output")
	f.BoolVarP(&c.quiet, "quiet", "q", false, "print only errors")
	f.BoolVarP(&c.verbose, "verbose", "v", false, "also print volume IDs, hidden sectors, changed bytes")
	f.BoolVar(&c.noColor, "no-color", false, "disable colours, as the variable NO_COLOR does")
	complete(root, "output", "text", "json")
	root.SetFlagErrorFunc(wrongFlag)
	root.SetHelpFunc(help)
	root.SetHelpCommand(newHelp())
	root.AddCommand(newInspect(c), newPlan(c), newAlign(c), newConvert(c), newVerify(c), newServe(c), newScan(c),
		newUndo(c), newResume(c), newFinish(c),
		newBoot(c), newBench(c), newScanWorker(), newClerk(), newAfterClerk(), newVersion(c))
	for _, cmd := range root.Commands() {
		cmd.SuggestFor = habits[cmd.Name()]
	}
	return root
}

func newVersion(c *common) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Long:    "Prints the version of trueup. JSON also has the version of the Go tool chain that built it.",
		Example: "  trueup version --json",
		Args:    arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := c.check(); err != nil {
				return err
			}
			v := struct {
				report.Origin
				Version string `json:"version"`
				Go      string `json:"go"`
			}{report.Origin{Schema: report.Schema, Command: "version"}, c.version, runtime.Version()}
			return c.emit(cmd.OutOrStdout(), v, func(t *report.Text) { t.Version(c.version) })
		},
	}
}

// newHelp replaces cobra's own command, for which a command that does not exist is no error.
func newHelp() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Show the help of a command",
		RunE: func(cmd *cobra.Command, args []string) error {
			about, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return unknownCommand(cmd.Root(), strings.Join(args, " "))
			}
			about.InitDefaultHelpFlag()
			about.InitDefaultVersionFlag()
			return about.Help()
		},
	}
}

// arguments demands so many positional arguments and names them.
func arguments(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == len(names) {
			return nil
		}
		want := "no argument"
		if len(names) > 0 {
			want = strings.Join(names, " ")
		}
		if len(names) == 1 && len(args) > 1 {
			return ondisk.In(ondisk.ErrUsage, "%s looks at one image, %d were given; for several: trueup scan PATH...",
				cmd.Name(), len(args))
		}
		return ondisk.In(ondisk.ErrUsage, "%s takes %s, %d given; see trueup %s --help", cmd.Name(), want, len(args), cmd.Name())
	}
}

func head(command string) report.Head {
	return report.Head{Origin: report.Origin{Schema: report.Schema, Command: command}, Isolation: lost}
}

// check refuses values of common flags that cannot be right.
func (c *common) check() error {
	if c.output != "text" && c.output != "json" {
		return ondisk.In(ondisk.ErrUsage, "--output %q, want text or json%s", c.output, notTarget(c.output))
	}
	return c.settleOut()
}

// notTarget returns a hint at --to, for users of tools in which -o or -O sets the format of a copy.
func notTarget(output string) string {
	t, err := realign.ParseTarget(output)
	if err == nil && t == (realign.Target{Format: t.Format}) && slices.Contains(realign.Formats(), t.Format) {
		return "; the format of a copy is --to " + t.Format
	}
	return ""
}

// emit prints a result: as JSON, or as text by show. A report that cannot be written completely is an error.
func (c *common) emit(stdout io.Writer, v any, show func(t *report.Text)) error {
	c.ending.hold("") // a report is printed whole, or not at all
	t := c.layout(stdout)
	if c.out != "" {
		var buf bytes.Buffer
		err := c.print(&buf, v, t, show)
		if err == nil {
			err = writeFile(c.out, buf.Bytes())
		}
		return wrapStdout(err)
	}
	if c.quiet && !c.json() {
		return nil
	}
	c.seen = terminal(stdout) && !c.json()
	return wrapStdout(c.print(stdout, v, t, show))
}

// htmlOutput is the format that bench, boot and scan have beside those of all commands.
const htmlOutput = "html"

// checkPage is check for commands that also print a page.
func (c *common) checkPage() error {
	output := c.output
	if output == htmlOutput && !c.asJSON {
		c.output = "text" // which the check of all commands knows
	}
	err := c.check()
	c.output = output
	return err
}

// emitPage is emit for commands that also print a page.
func (c *common) emitPage(stdout io.Writer, v any, show func(t *report.Text), page func(w io.Writer) error) error {
	if c.output != htmlOutput || c.json() {
		return c.emit(stdout, v, show)
	}
	var b bytes.Buffer
	if err := page(&b); err != nil {
		return err
	}
	if c.out != "" {
		return wrapStdout(writeFile(c.out, b.Bytes()))
	}
	_, err := b.WriteTo(stdout)
	return wrapStdout(err)
}

func (c *common) print(w io.Writer, v any, t *report.Text, show func(t *report.Text)) error {
	if c.json() {
		return report.JSON(w, v)
	}
	return t.Buffered(w, func() { show(t) })
}

func wrapStdout(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", errStdout, err)
}

// complete offers fixed choices for a flag in the shell.
func complete(cmd *cobra.Command, flag string, choices ...string) {
	fixed := cobra.FixedCompletions(choices, cobra.ShellCompDirectiveNoFileComp)
	if err := cmd.RegisterFlagCompletionFunc(flag, fixed); err != nil {
		panic(err) // the flag does not exist: our own bug
	}
}

// boundaryFlag adds --boundary.
func boundaryFlag(cmd *cobra.Command, n *align.Boundary, usage string) {
	cmd.Flags().Var(n, "boundary", usage)
	complete(cmd, "boundary", "auto", "4K", "64K", "1M")
}
