package realign

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/raw"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/units"
)

// Goal selects the partitions that move, and their new offsets.
type Goal struct {
	Copy            bool // move nothing: copy the disk unchanged
	Boundary        align.Boundary
	Only            []int // numbers of the partitions that move; by default all misaligned ones
	DataOnly        bool  // only partitions that are not needed for booting
	AllowUnbootable bool  // continue although the copy may not boot
	Flatten         bool  // merge a snapshot with its parents
	SkipFree        bool  // write zeros to the free space of volumes
	RepairTable     bool  // rewrite damaged copies of a GPT

	// To is the format of the copy, by default the source's.
	To string
	// Sectors is the sector size of the copy in bytes: 512 or 4096; 0 keeps the source's.
	Sectors int64
}

// maxRound bounds the unit for rounding up the disk size, in bytes.
const maxRound = units.GiB

// Target is the format of a copy. The zero value keeps the format of SOURCE.
type Target struct {
	Format, Subformat string
	Round             int64 // round the disk size up to a multiple, in bytes; 0 keeps it
}

// ParseTarget parses FORMAT[:SUBFORMAT][,align=SIZE]. It does not check whether the format can be written.
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
			return t, ondisk.In(ondisk.ErrUsage, "option %q: only align=SIZE is allowed", o)
		}
		n, err := units.Parse(val)
		if err != nil || n < units.SectorSize || n > maxRound || !units.IsPowerOfTwo(n) {
			return t, ondisk.In(ondisk.ErrUsage, "align=%s: must be a power of two from 512 to 1G", val)
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

// Type returns the placeholder of the value in help texts.
func (t *Target) Type() string { return "FORMAT" }

// String formats the target for ParseTarget.
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

// AtOffset returns the format of a copy at path whose disk begins at an offset of its file. The file must hold the disk
// byte for byte.
func (t Target) AtOffset(path string) (Target, error) {
	t.Format = cmp.Or(t.Format, image.SuffixFormat(path), raw.Format.Name)
	if t.Format == "vmdk" {
		t.Subformat = cmp.Or(t.Subformat, "monolithicFlat")
	}
	no := "a format that places the data of a disk itself"
	switch {
	case IsPackage(path):
		no = "a package, whose disks are copied before they run"
	case IsDevice(path), !slices.Contains(image.Names(), t.Format): // an unknown format is refused like any other
		return t, nil
	case t.Round != 0:
		no = "a file of another size, which the guest would see"
	case strings.EqualFold(t.String(), "vmdk:vmfs"):
		no = "a VMDK that neither ESXi nor QEMU opens at an offset"
	case slices.Contains([]string{"raw", "vmdk:monolithicflat", "vmdk:twogbmaxextentflat"},
		strings.ToLower(t.String())):
		return t, nil
	}
	return t, &ondisk.Refusal{
		Code: "unsupported", Reason: fmt.Sprintf("no disk begins at an offset of DEST %s (%s): it is %s", path, t, no),
		Remedy: "choose --to raw, vmdk:monolithicFlat or vmdk:twoGbMaxExtentFlat, or a block device as DEST",
	}
}

// Targets lists the formats and their subformats, as values of --to, and in one line for users.
func Targets() (names []string, text string) {
	var out []string
	for f := range image.All {
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

// options returns the options for the container of the planned disk. An empty format means the format of s.
func (s *Source) options(p *plan.Plan, format string) store.CreateOptions {
	return store.CreateOptions{Format: format, Seed: seed(s, p), BIOS: s.bios(cmp.Or(format, s.Image.Format))}
}

// seed returns the seed of the copy's identifiers. It depends only on the disk and the job, and is not random.
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

// bios returns the geometry that the BIOS must report for a copy in a format, or zero if nothing depends on it. If the
// format stays, it is the geometry reported for the source, otherwise the geometry of the table.
func (s *Source) bios(format string) driver.Geometry {
	want := general(s.Layout.BIOS())
	if want != (driver.Geometry{}) && format == s.Image.Format {
		return cmp.Or(s.Image.BIOS, want)
	}
	return want
}

// BIOSOf returns the geometry that a BIOS reports for a planned disk in the format of its source, or zero if the format
// states none.
func (s *Source) BIOSOf(p *plan.Plan) driver.Geometry {
	return store.Reports(s.Image, p.Size, store.CreateOptions{BIOS: s.bios(s.Image.Format)})
}

func general(g table.Geometry) driver.Geometry {
	return driver.Geometry{Heads: int64(g.Heads), Sectors: int64(g.Sectors)}
}

// geometryNotes warns if a disk is read by CHS addresses and a BIOS reports another geometry for its container. It
// accepts a container without a geometry if the format stays the same.
func (s *Source) geometryNotes(o *store.Output) []ondisk.Issue {
	format, got := o.Format, o.BIOS()
	want := s.bios(format)
	if want == (driver.Geometry{}) {
		return nil
	}
	says := fmt.Sprintf("a BIOS reports %d heads and %d sectors of this %s", got.Heads, got.Sectors, format)
	if got == (driver.Geometry{}) {
		if format == s.Image.Format {
			return nil
		}
		guess, _ := s.Layout.Table.Guessed()
		got, says = general(guess), fmt.Sprintf("a %s states none: the machine chooses", format)
	}
	if got.Alike(want) {
		return nil
	}
	return []ondisk.Issue{{
		Code: "container-geometry", Effect: ondisk.Warn,
		Text: fmt.Sprintf("the disk boots by a geometry of %d heads and %d sectors, and %s", want.Heads, want.Sectors,
			says),
		Remedy: "set that geometry in the machine if the guest does not start (QEMU: cyls=, heads= and secs= of the " +
			"disk), or choose --to vmdk, which states it",
	}}
}
