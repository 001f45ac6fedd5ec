package cli

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/realign"
)

// AddUnknown adds --allow-unknown.
func AddUnknown(cmd *cobra.Command, to *bool) {
	cmd.Flags().BoolVar(to, "allow-unknown", false, "exit with 0 if the content of a disk is unknown")
}

// AddReading adds the flags about the image that a command reads.
func AddReading(cmd *cobra.Command, r *realign.Reading) {
	usage := "require this image `FORMAT`: " + strings.Join(realign.Formats(), ", ")
	cmd.Flags().StringVar(&r.Format, "format", "", usage)
	Complete(cmd, "format", realign.Formats()...)
	usage = "sector size of a raw image: 512 or 4096 (default: that of its GPT or device, else 512)"
	cmd.Flags().Var((*realign.SectorSize)(&r.SectorSize), "sector-size", usage)
	Complete(cmd, "sector-size", "512", "4096")
	cmd.Flags().StringArrayVar(&r.Allow, "allow-folder", nil,
		"read parents and extents in `DIR` and below too (repeatable)")
}

// ToHelp explains --to and lists the formats.
func ToHelp() string {
	_, text := realign.Targets()
	return "--to FORMAT[:SUBFORMAT] sets the format of DEST: " + text +
		". With ,align=SIZE appended, the size of the disk becomes a multiple of SIZE."
}
