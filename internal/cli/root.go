// Package cli is the command line of trueup: one file per command, and common parts: flags, help, completion, the
// report, the terminal, signals, exit codes and the sandbox of the process.
package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/progress"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/scan/results"
)

// Main runs the program and returns its exit code.
func Main(version string, args []string) (code int) {
	c := &Base{Asked: asksJSON(args), OwnProcess: true}
	worker := len(args) > 0 && args[0] == Worker
	if !worker {
		AbortOnCrash()
	} else { // the parent reads the cause of a crash from its output
		c.Ending.Hold("") // the parent ends it
	}
	// Without recover, the runtime would end the program with a signal and without JSON on standard output.
	defer func() {
		if p := recover(); p != nil {
			err := fmt.Errorf("internal error, please report it: %v at %s", p, debug.Stack())
			code = Finish(err, c, "trueup", os.Stdout, os.Stderr)
		}
	}()
	root := newRoot(version, c)
	root.SetArgs(args)
	command := commandOf(root, args).Name()
	boundHeap(command)
	if len(args) > 0 && strings.HasPrefix(args[0], cobra.ShellCompRequestCmd) {
		plainUsages(root)
	}
	ctx := c.Receive(command)
	cmd, err := root.ExecuteContextC(ctx)
	return Finish(interrupted(ctx, err), c, cmd.Name(), os.Stdout, os.Stderr)
}

// interrupted replaces the error of a cancelled run by its interrupt. It returns any other error unchanged.
func interrupted(ctx context.Context, err error) error {
	if !errors.Is(err, context.Canceled) {
		return err
	}
	i := InterruptOf(ctx)
	var left interface{ Remedy() string } // files of a copy or a marked device left by the run
	if errors.As(err, &left) {
		i = i.Saying("interrupted; " + left.Remedy())
	}
	return i
}

// boundHeap limits the memory of this process with soft limits. Buffers are few and of fixed size, so a small heap
// target keeps the peak low without noticeable cost. Most user runs stay below the first limit; two collections before
// it would need a third of their time. A report holds a record for each row, which can exceed any limit: it would
// collect without end. Commands that only look at images make much garbage. They collect seldom, which saves a third
// of the CPU time of an image with many partitions. A worker collects when its memory reaches the limit, since the
// memory of each image is garbage at the next one.
func boundHeap(command string) {
	limit, percent := int64(44<<20), 50
	switch command {
	case results.ReportCommand:
		limit = math.MaxInt64
	case "inspect", "plan", results.Command:
		percent = 200
	case Worker:
		percent = 1000
	}
	lasting := func(percent int) {
		debug.SetMemoryLimit(limit)
		debug.SetGCPercent(percent)
	}
	if command == Worker {
		lasting(percent)
		return
	}
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(12 << 20)
	runtime.AddCleanup(new([64]byte), lasting, percent) // runs with the first collection
}

// Run runs a command in the process of another program, without restricting it, and returns its exit code. Tests run
// hundreds of commands without a process for each.
func Run(ctx context.Context, version string, args []string, out, errOut io.Writer) int {
	c := &Base{Asked: asksJSON(args)}
	root := newRoot(version, c)
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(errOut)
	root.SetIn(strings.NewReader(""))
	cmd, err := root.ExecuteContextC(ctx)
	return Finish(interrupted(ctx, err), c, cmd.Name(), out, errOut)
}

// Commands returns the tree of all commands, for manual pages and completions.
func Commands(version string) *cobra.Command {
	root := newRoot(version, &Base{})
	for _, cmd := range append(root.Commands(), root) {
		describe(cmd)
	}
	return root
}

// commandOf returns the command that a command line calls.
func commandOf(root *cobra.Command, args []string) *cobra.Command {
	cmd, _, err := root.Find(args)
	if err != nil {
		cmd = root
	}
	return cmd
}

// asksJSON reports whether a command line requests JSON. It also covers invalid command lines, which are parsed only up
// to the error.
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

func newRoot(version string, c *Base) *cobra.Command {
	c.Version = version
	root := &cobra.Command{
		Use:           "trueup",
		Short:         "Inspect and realign virtual-disk images, offline",
		Version:       version, // enables --version
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
	c.Output, c.Color, c.progress = "text", "auto", progress.Kinds[0]
	addFlags(root,
		"output", &c.Output, "json", &c.AsJSON, "out", &c.Out, "quiet", &c.Quiet, "verbose", &c.Verbose,
		"color", &c.Color, "no-color", &c.NoColor, "no-progress", &c.noProgress,
	)
	keepLog(root, c)
	root.SetHelpFunc(help)
	root.SetFlagErrorFunc(wrongFlag)
	root.SetHelpCommand(newHelp())
	root.AddCommand(newInspect(c), newPlan(c),
		newAlign(c), newVerify(c),
		newConvert(c, convert, "Copy a disk image into another format without moving anything"),
		newConvert(c, "offset", "Shift a disk in its file, so that the guest does not change"),
		newReplace(c), newMove(c), newView(c),
		newOpen(c, realign.Undo, "Restore the original disk"),
		newOpen(c, realign.Resume, "Continue an interrupted exchange or move"),
		newOpen(c, realign.Finish, "Remove the kept original of an exchanged disk"),
		newServe(c), newHandover(c), newScan(c), newReport(c), newBoot(c), newBench(c), newVersion(c),
		newJudge(c), newPages(c), newWorker())
	for _, cmd := range append(root.Commands(), root) {
		cmd.SuggestFor = habits().Commands[cmd.Name()]
	}
	RefuseEmpty(root)
	completePaths(root)
	return root
}

// keepLog adds the flag --log. The log begins before a command does anything.
func keepLog(root *cobra.Command, c *Base) {
	var path string
	addFlags(root, "log", &path)
	root.PersistentPreRunE = func(cmd *cobra.Command, args []string) error {
		c.line = cmd
		if !cmd.HasParent() {
			return checkFlags(cmd, args)
		}
		if aboutUse(cmd) {
			return nil
		}
		refused := c.CheckServers(cmd, args)
		if errors.Is(refused, ondisk.ErrUsage) { // an address with secrets must not reach the log
			return refused
		}
		if refused = cmp.Or(refused, checkFlags(cmd, args)); path == "" {
			return cmp.Or(refused, c.ResolveOut())
		}
		given := args
		cmd.Flags().Visit(func(f *pflag.Flag) {
			given = append([]string{"--" + f.Name + "=" + f.Value.String()}, given...)
		})
		w := cmd.ErrOrStderr()
		if path != "-" {
			file, err := OpenLog(path, given)
			if err != nil {
				return err
			}
			w = file // open until the process ends
		}
		return cmp.Or(c.Log.Start(w, c.Version, cmd.Name(), given), refused, c.ResolveOut())
	}
}

// aboutUse reports whether a command only shows the usage of others.
func aboutUse(cmd *cobra.Command) bool {
	for cmd.HasParent() && cmd.Parent().HasParent() {
		cmd = cmd.Parent() // such as completion bash
	}
	return slices.Contains([]string{"help", "completion"}, cmd.Name()) ||
		strings.HasPrefix(cmd.Name(), cobra.ShellCompRequestCmd)
}

// newHelp replaces the help command of cobra, which accepts unknown commands.
func newHelp() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Show the help of a command",
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) (
			out []cobra.Completion, _ cobra.ShellCompDirective,
		) {
			for _, about := range cmd.Root().Commands() {
				if len(args) == 0 && about.IsAvailableCommand() {
					out = append(out, cobra.CompletionWithDesc(about.Name(), about.Short))
				}
			}
			return out, cobra.ShellCompDirectiveNoFileComp
		},
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

// newVersion returns the command version.
func newVersion(c *Base) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  Arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := struct {
				report.Origin
				Version string `json:"version"`
				Go      string `json:"go"`
				System  string `json:"system"`
			}{
				report.Origin{Schema: report.Schema, Command: "version"},
				c.Version, runtime.Version(),
				runtime.GOOS + "/" + runtime.GOARCH,
			}
			return c.Emit(cmd.OutOrStdout(), v, func(t *report.Text) { fmt.Fprintf(t.W, "trueup %s\n", c.Version) })
		},
	}
}
