package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/opinion"
	"github.com/trueup/trueup/internal/realign"
)

type judgeFlags struct {
	*Base
	Move  // reading SOURCE, and flags of verify
	judge string
}

// newJudge returns the command judge.
func newJudge(c *Base) *cobra.Command {
	f := judgeFlags{Base: c}
	cmd := &cobra.Command{
		Use:   "judge SOURCE DEST",
		Short: "Check a finished copy with qemu-img and libguestfs",
		Args:  Arguments("SOURCE", "DEST"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runJudge(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), &f, args[0], args[1])
		},
	}
	f.judge = opinion.All
	addReading(cmd, &f.Reading)
	addFlags(cmd,
		"with", &f.With, "boundary", &f.Boundary, "data-only", &f.DataOnly, "allow-unbootable", &f.AllowUnbootable,
		"skip-free", &f.SkipFree, "flatten", &f.Flatten, "require-sandbox", &f.RequireSandbox, "by", &f.judge,
	)
	return cmd
}

func runJudge(ctx context.Context, out, errOut io.Writer, f *judgeFlags, src, dest string) error {
	if err := f.Check(); err != nil {
		return err
	}
	if _, err := f.Options(); err != nil {
		return err
	}
	if realign.IsPackage(src) || realign.IsPackage(dest) {
		return Usage("judge compares single disks, not packages: extract them, and name a disk of SOURCE and of DEST")
	}
	f.Ending.Hold("ending the judges")
	if f.judge != opinion.QemuImg && !f.Quiet {
		f.Ending.Say(errOut, "running the judges; libguestfs needs some minutes without KVM")
	}
	rows, err := opinion.Ask(ctx, errOut, opinion.Case{
		Source: src, Dest: dest, Judge: f.judge, Reading: f.repeated("serve", append(asRead, "format")...),
		Proof: f.repeated("verify", asMoved...), Sandbox: f.repeated("serve", "require-sandbox"),
	})
	if err == nil {
		err = rows.Err()
	}
	if err != nil {
		if len(rows) > 0 {
			err = fmt.Errorf("%s: %w", dest, err)
		}
		return err
	}
	r := opinion.NewJudge(Head("judge"), src, dest, rows)
	if err := f.Emit(out, r, r.Text); err != nil {
		return err
	}
	return ExitWith(r.ExitCode)
}
