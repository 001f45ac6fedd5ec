package cli

import "github.com/spf13/cobra"

// convert is the name of the command that copies without a move.
const convert = "convert"

// newConvert returns the command convert.
func newConvert(c *Base) *cobra.Command {
	f := alignFlags{copyFlags: copyFlags{Base: c, command: convert}}
	f.Copy = true
	cmd := &cobra.Command{
		Use:   "convert SOURCE DEST",
		Short: "Copy a disk image into another format without moving anything",
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
