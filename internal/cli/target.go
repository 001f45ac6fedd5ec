package cli

import (
	"strings"

	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/units"
)

// target is the argument of --to: FORMAT[:SUBFORMAT][,align=SIZE].
type target struct {
	format, subformat string
	round             int64 // the disk's size becomes a multiple of it; 0: it stays as it is
}

// size is what a disk of n bytes gets.
func (t *target) size(n int64) int64 { return units.AlignUp(n, max(t.round, 1)) }

// String gives the argument back.
func (t *target) String() string {
	s := t.format
	if t.subformat != "" {
		s += ":" + t.subformat
	}
	if t.round != 0 {
		s += ",align=" + units.Short(t.round)
	}
	return s
}

// Set parses the argument of the flag.
func (t *target) Set(arg string) error {
	name, options, _ := strings.Cut(arg, ",")
	*t = target{}
	t.format, t.subformat, _ = strings.Cut(name, ":")
	t.format = image.FormatName(t.format)
	if options == "" && !strings.Contains(arg, ",") {
		return nil
	}
	for o := range strings.SplitSeq(options, ",") {
		key, val, _ := strings.Cut(o, "=")
		if key != "align" {
			return ondisk.In(errUsage, "option %q, want align=SIZE", o)
		}
		n, err := units.Parse(val)
		if err != nil || n < units.SectorSize || n > realign.MaxRound || !units.IsPowerOfTwo(n) {
			return ondisk.In(errUsage, "align=%s, want a power of two from 512 bytes to 1G", val)
		}
		t.round = n
	}
	return nil
}

// Type is the word that help texts show for the argument.
func (t *target) Type() string { return "FORMAT" }

// toHelp explains --to and lists the formats: "vhd (dynamic, fixed)".
func toHelp() string {
	var out []string
	for _, f := range image.Writable() {
		name := f.Name
		if len(f.Subformats) > 0 {
			name += " (" + strings.Join(f.Subformats, ", ") + ")"
		}
		out = append(out, name)
	}
	return "--to FORMAT[:SUBFORMAT] sets the format of DEST: " + strings.Join(out, ", ") +
		". With ,align=SIZE appended, the size of the disk becomes a multiple of SIZE."
}

// targetNames are the formats and subformats that can be written, for completion and help.
func targetNames() []string {
	var out []string
	for _, f := range image.Writable() {
		out = append(out, f.Name)
		for _, s := range f.Subformats {
			out = append(out, f.Name+":"+s)
		}
	}
	return out
}
