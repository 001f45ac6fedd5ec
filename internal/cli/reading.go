package cli

import (
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/realign"
)

// reading are the flags about the image that a command reads. The zero value sets none.
type reading struct {
	format string
	sector sectorSize
}

// said returns the flags as a value.
func (r reading) said() realign.Reading {
	return realign.Reading{Format: r.format, SectorSize: int64(r.sector)}
}

func (r *reading) addReading(cmd *cobra.Command) {
	usage := "require this image `FORMAT`: " + strings.Join(realign.Formats(), ", ")
	cmd.Flags().StringVar(&r.format, "format", "", usage)
	complete(cmd, "format", realign.Formats()...)
	usage = "sector size of a raw image: 512 or 4096 (default: 512 for a file, the device's own for a device)"
	cmd.Flags().Var(&r.sector, "sector-size", usage)
	complete(cmd, "sector-size", "512", "4096")
}

// flags are those of a command line that reads the image in the same way.
func (r reading) flags() []string {
	if r.sector == 0 {
		return nil
	}
	return []string{"--sector-size", r.sector.String()}
}

// arguments are all flags of a command line that reads the same image.
func (r reading) arguments() []string {
	if r.format == "" {
		return r.flags()
	}
	return append(r.flags(), "--format", r.format)
}

// sectorSize is a flag value: a number of bytes, 0 if it was not given.
type sectorSize int64

func (s *sectorSize) String() string {
	if *s == 0 {
		return ""
	}
	return strconv.FormatInt(int64(*s), 10)
}

// Set parses a flag argument.
func (s *sectorSize) Set(arg string) error {
	n, err := realign.ParseSectorSize(arg)
	*s = sectorSize(n)
	return err
}

// Type is the word that help texts show for the argument.
func (s *sectorSize) Type() string { return "BYTES" }

// target is the argument of --to.
type target struct{ realign.Target }

// Set parses the argument of the flag.
func (t *target) Set(arg string) (err error) {
	t.Target, err = realign.ParseTarget(arg)
	return err
}

// Type is the word that help texts show for the argument.
func (t *target) Type() string { return "FORMAT" }

// toHelp explains --to and lists the formats.
func toHelp() string {
	_, text := realign.Targets()
	return "--to FORMAT[:SUBFORMAT] sets the format of DEST: " + text +
		". With ,align=SIZE appended, the size of the disk becomes a multiple of SIZE."
}
