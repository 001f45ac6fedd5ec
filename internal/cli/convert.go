package cli

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/report"
)

// convert is the command that moves nothing.
const convert = "convert"

// newConvert returns the command convert.
func newConvert(c *Base) *cobra.Command {
	f := alignFlags{copyFlags: copyFlags{Base: c, command: convert}}
	f.Copy = true
	cmd := &cobra.Command{
		Use:   "convert SOURCE DEST",
		Short: "Copy a disk image into another format, moving nothing",
		Args:  Arguments("SOURCE", "DEST"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), args[0], args[1])
		},
	}
	f.add(cmd)
	addFlags(cmd, "repair-table", &f.RepairTable, "skip-free", &f.SkipFree)
	addReading(cmd, &f.Reading)
	addFlags(cmd, "flatten", &f.Flatten)
	return cmd
}

// convertStream converts an image that comes through standard input.
func (f *alignFlags) convertStream(ctx context.Context, out, errOut io.Writer, dest string) error {
	if f.SkipFree {
		return Usage("--skip-free reads where SOURCE has free space before it is copied, and SOURCE is a " +
			"pipe; store it in a file first")
	}
	if err := errors.Join(f.Spare(), f.spareAll(dest)); err != nil {
		return err
	}
	in, stop := Interruptible(ctx, os.Stdin)
	defer stop()
	s, err := realign.OpenStream(ctx, in, f.Reading)
	if err != nil {
		return err
	}
	j, end := f.jobOf(errOut, dest, f.making(dest))
	p, w, err := j.WriteStream(ctx, s, f.to.Size, f.file(dest))
	end()
	if err != nil {
		return err
	}
	r := report.NewStreamAlign(Head(convert), p, dest)
	return f.report(out, r, w)
}
