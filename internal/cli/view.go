package cli

import (
	"context"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/realign"
)

// viewFlags holds the flags of view.
type viewFlags struct {
	copyFlags
	force bool
}

// newView returns the command view.
func newView(c *Base) *cobra.Command {
	f := viewFlags{copyFlags: copyFlags{Base: c, command: "view"}}
	cmd := &cobra.Command{
		Use:   "view SOURCE DEST",
		Short: "Write a VMDK that shows a disk image aligned",
		Args:  Arguments("SOURCE", "DEST"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), args[0], args[1])
		},
	}
	f.add(cmd)
	f.AddPlaces(cmd)
	addFlags(cmd, "with", &f.With, "skip-aligned", &f.skipAligned, "force", &f.force)
	return cmd
}

// run writes a view. VMDK is the only format that refers to ranges of other files.
func (f *viewFlags) run(ctx context.Context, out, errOut io.Writer, src, dest string) error {
	if err := f.checkFlags(); err != nil {
		return err
	}
	if _, err := f.Options(); err != nil {
		return err
	}
	if !strings.EqualFold(filepath.Ext(dest), ".vmdk") {
		return Usage("DEST %s must end in .vmdk: a view is a VMDK", dest)
	}
	for _, other := range f.With {
		if err := realign.Local(other, "trueup view"); err != nil {
			return err
		}
	}
	if err := f.Confine(ctx, errOut, f.Reads(src), []string{dest, f.sums}); err != nil {
		return err
	}
	return f.copyDisk(ctx, out, errOut, src, dest, &making{
		format: "vmdk", to: realign.View{Path: dest, Force: f.force},
	})
}
