// Package fleetcmd holds the commands of trueup-fleet.
package fleetcmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/trueup/trueup/fleet"
	"github.com/trueup/trueup/fleet/queue"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
)

// Exit codes.
const (
	exitFailed  = 1
	exitRefused = 4
	exitUsage   = 64
)

// exitError is the exit code of a command whose message has been printed by trueup.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// base holds the flags of all commands.
type base struct {
	version string
	json    bool
	queue   queue.Options
}

// Main runs the program and returns its exit code.
func Main(version string, args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), sys.EndSignals()...)
	defer stop()
	return Run(ctx, version, args, os.Stdin, os.Stdout, os.Stderr)
}

// Run runs a command until it ends or the context is cancelled, and returns its exit code.
func Run(ctx context.Context, version string, args []string, in io.Reader, out, errOut io.Writer) int {
	root := newRoot(version)
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errOut)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	if code, ok := errors.AsType[exitError](err); ok {
		return int(code)
	}
	fmt.Fprintln(errOut, "trueup-fleet: "+fleet.Plain(err.Error()))
	if errors.Is(err, ondisk.ErrUsage) {
		return exitUsage
	}
	return exitFailed
}

// usage returns an error for wrong usage.
func usage(format string, args ...any) error { return ondisk.In(ondisk.ErrUsage, format, args...) }

// Commands returns the command tree, for manual pages and completions.
func Commands(version string) *cobra.Command { return newRoot(version) }

// Exits lists the exit codes of a command with their meanings. An empty code repeats the previous one.
func Exits(command string) (out [][2]string) {
	out = [][2]string{{"0", "done"}, {"1", "error"}}
	switch command {
	case "serve", "watch":
		out[0][1] = "ended by a signal"
	case "worker":
		out[0][1] = "ended by a signal; with --once: no job is waiting, and none was refused or failed"
		out = append(out, [2]string{"", "with --once: a job failed in its last try by this worker, or is dead"},
			[2]string{"4", "with --once: a job was refused, and none failed"})
	case "report":
		out = append(out, [2]string{"", "results of a scan are missing; all other codes as in trueup report"})
	}
	return append(out, [2]string{"64", "wrong usage"})
}

func newRoot(version string) *cobra.Command {
	b := &base{version: version}
	root := &cobra.Command{
		Use:   "trueup-fleet",
		Short: "Scan and realign the images of datastores on many hosts",
		Long: `trueup-fleet keeps jobs in NATS JetStream. serve runs a server inside this program; the other commands
connect to it, or to the server of --nats. A worker on each host runs the jobs of the datastores that the host sees.`,
		Example: `  trueup-fleet serve --store /var/lib/trueup-fleet
  trueup-fleet worker --datastore ds7=/vmfs/ds7
  trueup scan -o json /vmfs/ds7 | trueup-fleet submit align --datastore ds7=/vmfs/ds7 --worklist -
  trueup-fleet status`,
		Version: version, SilenceErrors: true, SilenceUsage: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage("unknown command %q; see trueup-fleet --help", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRun: func(cmd *cobra.Command, _ []string) {
			b.queue.Warn = func(err error) {
				fmt.Fprintln(cmd.ErrOrStderr(), "trueup-fleet: "+fleet.Plain(err.Error()))
			}
		},
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage("%w", err) })
	f := root.PersistentFlags()
	f.BoolVar(&b.json, "json", false, "print the result as JSON, one object per line")
	f.StringVar(&b.queue.URL, "nats", "nats://127.0.0.1:4222", "connect to the server at `URL`")
	f.StringVar(&b.queue.Seed, "nkey", "", "read the seed of the client's nkey from `FILE`")
	f.StringVar(&b.queue.CA, "tls-ca", "", "verify the server's certificate with the CA certificates in `FILE`")
	f.IntVar(&b.queue.Replicas, "replicas", 0, "keep each job on `N` servers of a cluster (1 at first)")
	root.AddCommand(newServe(b), newSubmit(b), newWorker(b), newStatus(b), newWatch(b), newCancel(b), newRetry(b),
		newDrain(b), newDead(b), newReport(b), newVersion(b))
	root.CompletionOptions.SetDefaultShellCompDirective(cobra.ShellCompDirectiveNoFileComp)
	complete(root)
	help := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		help(cmd, args)
		helpExits(cmd)
	})
	return root
}

// helpExits appends the exit codes of a command to its help.
func helpExits(cmd *cobra.Command) {
	if !cmd.HasParent() {
		return
	}
	fmt.Fprint(cmd.OutOrStdout(), "\nExit codes:\n")
	for _, e := range Exits(cmd.Name()) {
		fmt.Fprintf(cmd.OutOrStdout(), "  %2s  %s\n", e[0], e[1])
	}
}

// noArguments refuses positional arguments.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage("%s takes no argument, %d given; see trueup-fleet %s --help", cmd.Name(), len(args), cmd.Name())
	}
	return nil
}

// with opens the queue for the duration of use.
func (b *base) with(ctx context.Context, use func(q *queue.Queue) error) error {
	q, err := queue.Open(ctx, b.queue)
	if err != nil {
		return err
	}
	defer q.Close()
	return use(q)
}

// newVersion returns the command version, like that of trueup.
func newVersion(b *base) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: noArguments,
		Long: "Prints the version of trueup-fleet. JSON also contains the version of the Go toolchain that built " +
			"it.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := struct {
				Version string `json:"version"`
				Go      string `json:"go"`
			}{b.version, runtime.Version()}
			return b.print(cmd.OutOrStdout(), v, func(w io.Writer) { fmt.Fprintln(w, "trueup-fleet", v.Version) })
		},
	}
}

// logged adds the flag --log-json to a command.
type logged struct{ asJSON bool }

func (l *logged) register(fs *pflag.FlagSet) {
	fs.BoolVar(&l.asJSON, "log-json", false, "write the log as JSON lines")
}

func (l *logged) logger(w io.Writer) *slog.Logger {
	if l.asJSON {
		return slog.New(slog.NewJSONHandler(w, nil))
	}
	return slog.New(slog.NewTextHandler(w, nil))
}

// print writes a result as JSON, or as text with show.
func (b *base) print(out io.Writer, v any, show func(w io.Writer)) error {
	if b.json {
		return json.NewEncoder(out).Encode(v)
	}
	show(out)
	return nil
}
