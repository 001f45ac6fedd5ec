package cli

import "github.com/spf13/cobra"

// convert is the name of the command that copies without a move.
const convert = "convert"

// newConvert returns the command convert or offset.
func newConvert(c *Base, command, short string) *cobra.Command {
	f := alignFlags{copyFlags: copyFlags{Base: c, command: command, shifts: command == "offset"}}
	f.Copy = true
	cmd := &cobra.Command{
		Use:   command + " SOURCE DEST",
		Short: short,
		Args:  Arguments("SOURCE", "DEST"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), args[0], args[1])
		},
	}
	f.add(cmd)
	if !f.shifts {
		addFlags(cmd, "repair-table", &f.RepairTable, "skip-free", &f.SkipFree)
	}
	addReading(cmd, &f.Reading)
	addFlags(cmd, "flatten", &f.Flatten)
	return cmd
}
