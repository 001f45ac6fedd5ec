package boot

import (
	"errors"
	"fmt"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume"
)

// Config describes where a loader that boots from the disk looks for its configuration. The finder of the loader adds
// it; the finder that reads configurations follows it.
type Config struct {
	Loader string // "GRUB 2 in the MBR"
	Syntax Syntax
	Home   int // number of the partition that relative names count from; 0: none
	// Script holds the commands that are built into the loader, and Prefix the folder that it starts with, as GRUB
	// writes it: "(,msdos1)/boot/grub".
	Script, Prefix string
	Paths          []string // names of the file: the loader takes the first one that exists
	Anywhere       bool     // the loader looks for Paths in all partitions; else in Home
	Why            string   // why the place is not known; empty: it is
}

// Syntax is the language of a configuration.
type Syntax int

// Syntaxes. Options covers languages whose lines hold kernel options and names of partitions only.
const (
	Options Syntax = iota
	GRUB2
	GRUBLegacy
	SYSLINUX
)

// maxConfigs bounds the loaders whose configuration is followed.
const maxConfigs = 64

// Configured records where a loader looks for its configuration.
func (g *Guest) Configured(c Config) {
	if len(g.configs) < maxConfigs {
		g.configs = append(g.configs, c)
	}
}

// Configs returns what Configured recorded, in the order of the boot.
func (g *Guest) Configs() []Config { return g.configs }

// NotSeen records that a search for something (empty: there is nothing to find) could not look into the files of a
// partition. err is the error of Files, or of a file.
func (g *Guest) NotSeen(p Partition, what string, err error) {
	if g.unseen == nil {
		g.unseen = map[int]bool{}
	}
	g.unseen[p.Number] = true
	if what != "" && p.Kind != table.Extended && p.Volume.Kind != volume.Swap {
		g.missed.NotSeen(p.Number, what, WhyUnseen(p, err))
	}
}

// Missed reports whether a search in a partition could not look at all of it.
func (g *Guest) Missed(p Partition) bool { return g.unseen[p.Number] }

// WhyUnseen words the error of Files, or of a file in it.
func WhyUnseen(p Partition, err error) string {
	switch {
	case !errors.Is(err, ondisk.ErrNoMatch):
		return err.Error()
	case Readers[p.Volume.Kind] != nil: // it reaches beyond the disk
		return fmt.Sprintf("partition %d (%s) ends behind the disk", p.Number, p.Volume.Kind)
	case p.Volume.Kind == volume.Unknown:
		return fmt.Sprintf("the content of partition %d is not known", p.Number)
	}
	return fmt.Sprintf("trueup does not read files in %s (partition %d)", p.Volume.Kind, p.Number)
}
