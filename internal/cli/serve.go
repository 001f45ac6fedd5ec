package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/bench"
	"github.com/trueup/trueup/internal/handover"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/nbd"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/scan/sandbox"
)

type serveFlags struct {
	*Base
	Move
	place      nbd.Place
	once       bool
	withParent bool
}

// newServe returns the command serve.
func newServe(c *Base) *cobra.Command {
	f := &serveFlags{Base: c}
	cmd := newCommand("serve SOURCE", "Serve the aligned disk to other programs, without a copy", f.run)
	f.Add(cmd)
	addFlags(cmd, "offset", realign.Offset(&f.Offset), "to-sector-size", realign.SectorSize(&f.Sectors))
	addFlags(cmd,
		"require-sandbox", &f.RequireSandbox, "as-is", &f.Copy, "socket", &f.place.Socket, "listen", &f.place.TCP,
		"listen-anywhere", &f.place.Anywhere, "once", &f.once, "exit-with-parent", &f.withParent,
	)
	return cmd
}

func (f *serveFlags) run(ctx context.Context, out, errOut io.Writer, args []string) error {
	src := args[0]
	if f.withParent && runtime.GOOS == "windows" {
		return ondisk.In(ondisk.ErrUnsupported, "--exit-with-parent is not supported on this system; leave it out")
	}
	f.Flatten, f.Stays = f.Flatten || f.Copy, true
	f.Ending.Hold("")      // the socket must be removed at the end
	parent := os.Getppid() // it may end during planning
	if !f.withParent {
		parent = 0
	}
	l, err := f.place.Listen()
	if err != nil {
		return err
	}
	defer l.Close()
	if f.OwnProcess {
		a := sandbox.Access{
			Read: realign.Folders(f.Reads(src)), Write: store.OutputFolders(f.Out),
			Serves: true, Remove: nbd.Leftovers(l),
		}
		if err := f.confine(errOut, a); err != nil {
			return err
		}
	}
	s, err := f.Open(src, f.Reading)
	if err != nil {
		return err
	}
	defer s.Close()
	p, err := f.accepted(f.Base, s, "", making{})
	if err != nil {
		return err
	}
	r := report.NewServe(Head("serve"), s, p, nbd.URI(l.Addr()))
	served, err := s.Serve(ctx, p)
	if err != nil {
		return err
	}
	defer served.Close()
	s.Layout = nil // clients need the memory
	if err := f.Emit(out, r, func(t *report.Text) { t.Serve(r) }); err != nil {
		return err
	}
	server := nbd.Server{
		Disk: served.Disk, Once: f.once, Unchanged: served.Fit, Parent: parent,
		Warn: func(err error) {
			fmt.Fprintf(errOut, "trueup: %s; clients get an I/O error for that range\n", report.Message(err))
		},
	}
	err = server.Serve(ctx, l)
	if _, asked := errors.AsType[InterruptError](err); asked {
		return nil
	}
	return err
}

type handoverFlags struct {
	*Base
	Move
	handover.Handover
	run                   bool
	resume, undo, discard bool
}

// newHandover returns the command handover.
func newHandover(c *Base) *cobra.Command {
	f := handoverFlags{Base: c}
	cmd := &cobra.Command{
		Use:   "handover SOURCE DEST",
		Short: "Start a guest on the aligned disk while it is being copied",
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.run {
				args, f.Program = args[:cmd.ArgsLenAtDash()], args[cmd.ArgsLenAtDash():]
			}
			return f.hand(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), args)
		},
	}
	cmd.Args = f.arguments
	f.Add(cmd)
	addFlags(cmd, "offset", realign.Offset(&f.Offset))
	addFlags(cmd,
		"require-sandbox", &f.RequireSandbox, "socket", &f.Socket, "qmp", &f.Pull.Monitor, "domain", &f.Pull.Domain,
		"limit", (*bench.Size)(&f.Pull.Limit), "run", &f.run, "resume", &f.resume, "undo", &f.undo,
		"discard-writes", &f.discard, "progress", &f.progress,
	)
	return cmd
}

// arguments requires SOURCE and DEST, or DEST for an open handover, and with --run a program behind them.
func (f *handoverFlags) arguments(cmd *cobra.Command, args []string) error {
	dash := cmd.ArgsLenAtDash()
	switch {
	case f.run && (dash < 0 || dash == len(args)):
		return Usage("--run needs a program behind --, as in: trueup handover SOURCE DEST --run -- " +
			"qemu-system-x86_64 ...")
	case f.run:
		args = args[:dash]
	}
	if !f.resume && !f.undo {
		return Arguments("SOURCE", "DEST")(cmd, args)
	}
	for _, name := range slices.Concat(asRead, asMoved, []string{"format", "socket"}) {
		if given(cmd, name) {
			return Usage("--%s: the journal of DEST has it since the handover began; leave it out", name)
		}
	}
	return Arguments("DEST")(cmd, args)
}

func (f *handoverFlags) hand(ctx context.Context, out, errOut io.Writer, args []string) (err error) {
	if _, err := f.Options(); err != nil {
		return err
	}
	h := &f.Handover
	h.Dest, h.Version, h.Stderr = args[len(args)-1], f.Base.Version, errOut
	h.Say = func(text string) { f.say(errOut, text) }
	f.Ending.Hold("leaving the handover")
	if f.undo {
		work, done, err := h.Undo(ctx, f.discard)
		if err != nil {
			return err
		}
		r := report.NewUnfinished(Head("handover"), work, done)
		return f.Emit(out, r, func(t *report.Text) { t.Unfinished(r) })
	}
	p, end := f.Watched(errOut, "handover", false)
	defer end()
	h.Progress = p
	r, err := f.goOn(ctx, args)
	end()
	if err != nil {
		return err
	}
	r.Head = Head("handover")
	if err := f.Emit(out, r, r.Text); err != nil {
		return err
	}
	return ExitWith(r.ExitCode)
}

// goOn starts or resumes a handover.
func (f *handoverFlags) goOn(ctx context.Context, args []string) (*handover.Result, error) {
	h := &f.Handover
	if f.resume {
		return h.Resume(ctx)
	}
	h.Source = args[0]
	if realign.IsPackage(h.Source) {
		return nil, Usage("handover takes one disk, and a package has several: extract them, and name one")
	}
	names := slices.Concat(asRead, []string{"format", "require-sandbox"}, asMoved)
	h.Flags = f.repeated("serve", names...)
	for i, name := range h.Flags {
		if name != "--with" && name != "--allow-folder" {
			continue
		}
		path, err := filepath.Abs(h.Flags[i+1]) // a resumed run may have another working folder
		if err != nil {
			return nil, ondisk.In(ondisk.ErrUsage, "%s %s: %w", name, h.Flags[i+1], err)
		}
		h.Flags[i+1] = path
	}
	return h.Start(ctx)
}
