package cli

import (
	"context"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/realign"
)

// viewFlags are the flags of view.
type viewFlags struct {
	copyFlags
	force bool
}

const viewHelp = `Writes DEST, a VMDK over the files of a raw or flat SOURCE, in its folder, which shows the disk that
align would write: little is written, and a hosted hypervisor can start it at once. QEMU opens it with -snapshot or
below an overlay, and not for writing. It is neither a copy nor a snapshot: what a guest writes to it goes to SOURCE,
and the storage sees the old offsets until DEST is copied. Undo it by removing its two files, before anything is
written.

`

// newView returns the command view.
func newView(c *Base) *cobra.Command {
	f := viewFlags{copyFlags: copyFlags{Base: c, command: "view"}}
	cmd := &cobra.Command{
		Use:     "view SOURCE DEST",
		Short:   "Write a VMDK that shows a disk image aligned",
		Long:    viewHelp + PlacesHelp,
		Example: "  trueup view winxp.img winxp-view.vmdk",
		Args:    Arguments("SOURCE", "DEST"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), args[0], args[1])
		},
	}
	f.add(cmd)
	f.AddPlaces(cmd, c)
	addFlags(cmd, "with", &f.With, "skip-aligned", &f.skipAligned, "force", &f.force)
	return cmd
}

// run writes a view. Its format is the only one that names stretches of other files.
func (f *viewFlags) run(ctx context.Context, out, errOut io.Writer, src, dest string) error {
	if err := f.checkFlags(); err != nil {
		return err
	}
	if _, err := f.Options(); err != nil {
		return err
	}
	if !strings.EqualFold(filepath.Ext(dest), ".vmdk") {
		return Usage("a view is a VMDK, and DEST %s has another name; name it with .vmdk at the end", dest)
	}
	for _, other := range f.With {
		if err := realign.Local(other, "trueup view"); err != nil {
			return err
		}
	}
	if err := f.Confine(ctx, errOut, f.Reads(src), []string{dest, f.sums}); err != nil {
		return err
	}
	r, w, err := f.copyDisk(ctx, errOut, src, dest, &making{
		format: "vmdk", to: realign.View{Path: dest, Force: f.force},
	})
	if err != nil {
		return err
	}
	return f.report(out, r, w)
}
