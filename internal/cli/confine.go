package cli

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/scan/sandbox"
)

// SpoolBeside sets the default of --spool to the folder of dest.
func (c *Base) SpoolBeside(dest string) {
	if c.unpacking.Spool == "" {
		c.unpacking.Spool = filepath.Dir(dest)
	}
}

// readsPacked sets whether a command reads packed images.
func (c *Base) readsPacked(cmd *cobra.Command) {
	c.unpacking.On, c.unpacking.Wanted = cmd.Flags().Lookup("spool") != nil, cmd.CommandPath()
}

// unpacks prepares for reading packed images.
func (c *Base) unpacks(ctx context.Context, errOut io.Writer) {
	u := &c.unpacking
	end := func() {}
	u.Run, u.Ended = ctx, func() { end() }
	u.Watch = func() (p realign.Progress) {
		c.Ending.Hold("")
		c.unpacked = true
		p, end = c.Watched(errOut, strings.TrimPrefix(u.Wanted, "trueup "), false)
		return p
	}
	if !c.Quiet {
		u.Warn = func(text string) { fmt.Fprintln(errOut, "trueup: "+report.SafeMessage(text)) }
	}
}

// CheckServers refuses server images for a command that does not read them. It also sets whether the command reads
// packed images.
func (c *Base) CheckServers(cmd *cobra.Command, args []string) error {
	c.readsPacked(cmd)
	if err := realign.CheckAddresses(args); err != nil {
		return err
	}
	if c.readsServers = c.unpacking.On; c.readsServers {
		return nil
	}
	for _, arg := range args {
		if err := realign.Local(arg, cmd.CommandPath()); err != nil {
			return err
		}
	}
	return nil
}

// lost is the isolation of this process or its workers if it is weaker than requested, otherwise nil. Every JSON object
// contains it.
var lost *report.Isolation

// Confine restricts the process to reading around images and writing beside outputs, before it reads any image. It
// first connects to image servers, until ctx ends.
func (c *Base) Confine(ctx context.Context, errOut io.Writer, images, outputs []string) (err error) {
	if c.readsServers {
		if c.remotes, err = realign.Connect(ctx, images, c.unpacking.Wanted); err != nil {
			return err
		}
	}
	c.unpacks(ctx, errOut)
	if !c.OwnProcess {
		return nil
	}
	c.writers = realign.FindWriters()
	written := store.OutputFolders(append(outputs, c.Out)...)
	if spool, err := filepath.EvalSymlinks(c.unpacking.Spool); err == nil && spool != "" {
		written = append(written, spool)
	}
	return c.Confined(errOut, sandbox.Confine(sandbox.Access{Read: realign.Folders(images), Write: written}))
}

// Confined warns of an incomplete isolation, or refuses it with --require-sandbox.
func (c *Base) Confined(errOut io.Writer, iso sandbox.Isolation) error {
	if iso.Achieved == sandbox.Sandbox {
		return nil
	}
	if c.RequireSandbox {
		return ondisk.In(ondisk.ErrUnsupported, "--require-sandbox: isolation is %q, not %q (%s); nothing was read",
			iso.Achieved, sandbox.Sandbox, iso.Note)
	}
	lost = &report.Isolation{
		Wanted: string(iso.Wanted), Achieved: string(iso.Achieved), Layers: iso.Layers, Note: iso.Note,
	}
	if !c.Quiet {
		fmt.Fprintf(errOut, "trueup: warning: isolation is %q, not %q (%s); do not open untrusted images here, or "+
			"add --require-sandbox\n",
			iso.Achieved, sandbox.Sandbox, report.SafeMessage(iso.Note))
	}
	return nil
}
