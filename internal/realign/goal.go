package realign

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/units"
)

// Goal selects the partitions that move, and where to.
type Goal struct {
	Copy            bool  // nothing moves: the disk is copied as it is
	Boundary        int64 // bytes; 0 chooses by the boot code
	Only            []int // numbers of the partitions that move; empty: all that are misaligned
	DataOnly        bool  // only partitions that the boot does not need
	AllowUnbootable bool  // go on although a finding warns that the copy may not boot
	Flatten         bool  // take a snapshot together with its parents
	SkipFree        bool  // the free space of volumes becomes zeros
	RepairTable     bool  // damaged copies of a GPT are written anew

	// To is the format of the copy; empty: that of the source.
	To string
}

// Consistent refuses what contradicts itself.
func (g Goal) Consistent() error {
	if g.DataOnly && len(g.Only) > 0 {
		return ondisk.In(ondisk.ErrUsage,
			"--data-only and --partition both choose the partitions that move; give one of them")
	}
	return nil
}

// Flags returns the flags of a command line that moves the same.
func (g Goal) Flags() (out []string) {
	if g.Boundary != 0 {
		out = append(out, "--boundary", (*align.Boundary)(&g.Boundary).String())
	}
	for _, n := range g.Only {
		out = append(out, "--partition", strconv.Itoa(n))
	}
	for _, f := range []struct {
		on   bool
		name string
	}{
		{g.DataOnly, "--data-only"},
		{g.AllowUnbootable, "--allow-unbootable"},
		{g.Flatten, "--flatten"},
		{g.SkipFree, "--skip-free"},
		{g.RepairTable, "--repair-table"},
	} {
		if f.on {
			out = append(out, f.name)
		}
	}
	return out
}

// maxRound bounds the size that a disk can be rounded up to, bytes.
const maxRound = units.GiB

// Target is the format of a copy. The zero value keeps the format of SOURCE.
type Target struct {
	Format, Subformat string
	Round             int64 // the size of the disk becomes a multiple of it, bytes; 0: it stays
}

// ParseTarget parses FORMAT[:SUBFORMAT][,align=SIZE]. Whether the format can be written is not checked.
func ParseTarget(arg string) (t Target, err error) {
	name, options, more := strings.Cut(arg, ",")
	t.Format, t.Subformat, _ = strings.Cut(name, ":")
	t.Format = image.FormatName(t.Format)
	if !more {
		return t, nil
	}
	for o := range strings.SplitSeq(options, ",") {
		key, val, _ := strings.Cut(o, "=")
		if key != "align" {
			return t, ondisk.In(ondisk.ErrUsage, "option %q, want align=SIZE", o)
		}
		n, err := units.Parse(val)
		if err != nil || n < units.SectorSize || n > maxRound || !units.IsPowerOfTwo(n) {
			return t, ondisk.In(ondisk.ErrUsage, "align=%s, want a power of two from 512 bytes to 1G", val)
		}
		t.Round = n
	}
	return t, nil
}

// Set parses the argument of --to.
func (t *Target) Set(arg string) (err error) {
	*t, err = ParseTarget(arg)
	return err
}

// Type is the word that help texts show for the argument.
func (t *Target) Type() string { return "FORMAT" }

// String returns what ParseTarget parses.
func (t Target) String() string {
	s := t.Format
	if t.Subformat != "" {
		s += ":" + t.Subformat
	}
	if t.Round != 0 {
		s += ",align=" + units.Short(t.Round)
	}
	return s
}

// Size returns the size of the copy of a disk of n bytes.
func (t Target) Size(n int64) int64 { return units.AlignUp(n, max(t.Round, 1)) }

// Targets lists the formats and subformats that can be written: each for --to, and all in one line for people.
func Targets() (names []string, text string) {
	var out []string
	for _, f := range image.Writable() {
		names = append(names, f.Name)
		for _, s := range f.Subformats {
			names = append(names, f.Name+":"+s)
		}
		if len(f.Subformats) > 0 {
			f.Name += " (" + strings.Join(f.Subformats, ", ") + ")"
		}
		out = append(out, f.Name)
	}
	return names, strings.Join(out, ", ")
}

// options returns the options of the container that the planned disk goes into.
func (j *Job) options(s *Source, p *plan.Plan) store.CreateOptions {
	return store.CreateOptions{
		Format: j.Format, Subformat: j.Subformat, Force: j.Force, Seed: seed(s, p),
		BIOS: s.bios(cmp.Or(j.Format, s.Image.Format)),
	}
}

// seed returns what identifiers of the copy are derived from: the disk and the job, and nothing of chance.
func seed(s *Source, p *plan.Plan) []byte {
	h := sha256.New()
	if t := s.Layout.Table; t != nil {
		fmt.Fprintln(h, t.Signature, t.GUID)
	}
	for _, x := range s.Layout.Partitions {
		fmt.Fprintln(h, x.Off, x.Len, x.GUID, x.Volume.UUID, x.Volume.Label)
	}
	for _, m := range p.Pieces {
		fmt.Fprintln(h, m.From, m.To, m.Len)
	}
	if p.Unused != nil {
		for _, r := range p.Unused.Ranges {
			fmt.Fprintln(h, "free", r.Off, r.Len)
		}
	}
	for _, x := range p.Patches {
		fmt.Fprintf(h, "%d %x\n", x.Off, x.New)
	}
	return binary.BigEndian.AppendUint64(h.Sum(nil), ondisk.U64(p.Size))
}
