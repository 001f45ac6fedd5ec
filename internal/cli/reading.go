package cli

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/units"
)

// reading is what the user says about the image that a command reads. The zero value says nothing.
type reading struct {
	format string
	sector sectorSize
}

// said is the same as a value.
func (r reading) said() realign.Reading {
	return realign.Reading{Format: r.format, SectorSize: int64(r.sector)}
}

func (r *reading) addReading(cmd *cobra.Command) {
	usage := "require this image `FORMAT`: " + strings.Join(image.Names(), ", ")
	cmd.Flags().StringVar(&r.format, "format", "", usage)
	complete(cmd, "format", image.Names()...)
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

// sectorSize is a flag value: a number of bytes, 0 for what is not said.
type sectorSize int64

func (s *sectorSize) String() string {
	if *s == 0 {
		return ""
	}
	return strconv.FormatInt(int64(*s), 10)
}

// Set parses a flag argument.
func (s *sectorSize) Set(arg string) error {
	n, err := units.Parse(arg)
	if err != nil || (n != 512 && n != 4096) {
		return fmt.Errorf("sector size %q, want 512 or 4096", arg)
	}
	*s = sectorSize(n)
	return nil
}

// Type is the word that help texts show for the argument.
func (s *sectorSize) Type() string { return "BYTES" }
