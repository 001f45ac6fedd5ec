package copycmd

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/cli/command"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/opinion"
	"github.com/trueup/trueup/internal/realign"
)

// second is --second-opinion, and the panel that answers it.
type second struct {
	judge string // empty: none is asked
	panel *opinion.Panel
	table opinion.Table // once it was asked
}

func (o *second) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.judge, "second-opinion", "", "have other programs judge DEST, too: `JUDGE` all, qemu-img "+
		"or libguestfs")
	f.Lookup("second-opinion").NoOptDefVal = opinion.All
	command.Complete(cmd, "second-opinion", opinion.Judges()...)
}

// opinionHelp explains --second-opinion.
const opinionHelp = `--second-opinion asks other programs, too. qemu-img checks the container of DEST and compares ` +
	`every byte with the planned disk. libguestfs runs the checks of file systems that do not write, and compares ` +
	`the names and SHA-256 of all files in SOURCE and DEST. A program that is not installed is named; one of them ` +
	`must be installed.`

// Clerk is the argument that makes the program run other programs for one that is confined.
const Clerk = "opinion-clerk"

// NewClerk returns the command of a clerk, which is of no use to people.
func NewClerk() *cobra.Command {
	return command.Hidden(Clerk, "Run qemu-img and libguestfs for trueup verify", opinion.Serve)
}

// open starts what runs the judges, before the process confines itself. Packages are refused.
func (o *second) open(c *command.Base, paths ...string) (err error) {
	switch {
	case o.judge == "":
		return nil
	case !slices.Contains(opinion.Judges(), o.judge):
		return ondisk.NoChoice("--second-opinion", o.judge, opinion.Judges()...)
	case slices.ContainsFunc(paths, realign.IsPackage):
		return command.Usage("--second-opinion judges one disk, and a package has several: " +
			"extract them, and name a disk of SOURCE and of DEST")
	}
	if o.panel, err = opinion.Open(o.judge, Clerk); err == nil {
		c.Judging = o.panel.Leftovers()
	}
	return err
}

// close ends what runs the judges, and removes its files.
func (o *second) close() {
	if o.panel != nil {
		_ = o.panel.Close() // what it had to say, it has said
	}
}

// ask has the judges look at a copy. The error of a copy on which not all agree is that of their table.
func (o *second) ask(ctx context.Context, c *command.Base, errOut io.Writer, j realign.Judged) (err error) {
	if !c.Quiet && o.judge != opinion.QemuImg {
		fmt.Fprintln(errOut, "trueup: asking for a second opinion; libguestfs takes some minutes where KVM "+
			"does not work")
	}
	img := j.Source.Image
	o.table, err = o.panel.Ask(ctx, opinion.Disks{Source: img.Disk, View: j.View, Copy: j.Copy.Disk}, opinion.Copy{
		Path: j.Path, Files: j.Files, Format: j.Copy.Format, SectorSize: j.Copy.Disk.SectorSize(),
		Size: j.Copy.Disk.Size(),
	})
	if err == nil {
		err = o.table.Err()
	}
	return err
}

// judgeCopy is the end of the proof of a copy that has no name yet.
func (o *second) judgeCopy(c *command.Base, errOut io.Writer, j *realign.Job, end func()) {
	if o.panel == nil {
		return
	}
	j.Judge = func(ctx context.Context, x realign.Judged) error {
		end()
		if err := o.ask(ctx, c, errOut, x); err != nil {
			return fmt.Errorf("%w; nothing was published", err)
		}
		return nil
	}
}

// judgeDest asks about a DEST that is there, after it was compared. p is the plan that leads to it, nil if none does.
func (o *second) judgeDest(
	ctx context.Context, c *command.Base, errOut io.Writer, s, d *realign.Source, p *realign.Plan,
) error {
	if o.panel == nil || p == nil {
		return nil
	}
	return o.ask(ctx, c, errOut, realign.Judged{Source: s, View: p.View(s.Image.Disk), Copy: d.Image, Path: d.Path()})
}

// fits refuses a DEST that other programs cannot open, or would take for complete.
func (o *second) fits(d *realign.Source) error {
	if o.panel == nil {
		return nil
	}
	if _, err := os.Stat(d.Path()); err != nil {
		return command.Usage("--second-opinion: other programs cannot open %s as a file; extract it first", d.Path())
	}
	if d.Image.Child {
		return command.Usage("--second-opinion: DEST %s is a snapshot, which other programs may take for complete; "+
			"consolidate it first", d.Path())
	}
	return nil
}
