package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"

	"github.com/spf13/cobra"

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
	f := serveFlags{Base: c}
	cmd := &cobra.Command{
		Use:   "serve SOURCE",
		Short: "Serve the aligned disk to other programs, without a copy",
		Args:  Arguments("SOURCE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runServe(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), &f, args[0])
		},
	}
	f.Add(cmd)
	addFlags(cmd, "offset", realign.Offset(&f.Offset), "to-sector-size", realign.SectorSize(&f.Sectors))
	addFlags(cmd,
		"require-sandbox", &f.RequireSandbox, "as-is", &f.Copy, "socket", &f.place.Socket, "listen", &f.place.TCP,
		"listen-anywhere", &f.place.Anywhere, "once", &f.once, "exit-with-parent", &f.withParent,
	)
	return cmd
}

func (f *serveFlags) checkFlags() error {
	if err := f.Check(); err != nil {
		return err
	}
	if f.withParent && runtime.GOOS == "windows" {
		return ondisk.In(ondisk.ErrUnsupported, "--exit-with-parent is not supported on this system; leave it out")
	}
	f.Flatten = f.Flatten || f.Copy
	return nil
}

func runServe(ctx context.Context, out, errOut io.Writer, f *serveFlags, src string) error {
	if err := f.checkFlags(); err != nil {
		return err
	}
	f.Stays = true
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
		if err := f.Confined(errOut, sandbox.Confine(a)); err != nil {
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
	r := report.NewServe(Head("serve"), s, p, nbd.URI(l.Addr(), ""))
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
		Export: nbd.Export{Description: "the disk of " + report.Safe(src), Disk: served.Disk}, Once: f.once,
		Unchanged: served.Fit, Parent: parent,
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
