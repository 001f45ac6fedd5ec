package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/units"
)

// Link is one image of a chain.
type Link = image.Link

// Usage is how an image stores its disk.
type Usage struct {
	Stored     int64  `json:"stored_bytes"`
	Compressed int64  `json:"compressed_bytes"`
	Inherited  int64  `json:"inherited_bytes"`
	NonZero    *int64 `json:"nonzero_bytes,omitempty"`
	Pieces     int64  `json:"pieces"`
	Unordered  int64  `json:"pieces_out_of_order"`
	InFile     int64  `json:"file_alignment_bytes,omitempty"`
	Complete   bool   `json:"complete"`
}

// stored adds how the image stores the disk; u is nil when that is not known. nonZero is nil when it was not counted.
func (r *Inspect) stored(u *align.Usage, nonZero *int64) {
	if u == nil {
		return
	}
	r.Image.Usage = &Usage{
		Stored: u.Stored, Compressed: u.Packed, Inherited: u.Inherited, NonZero: nonZero,
		Pieces: u.Pieces, Unordered: u.Unordered, InFile: u.Whole.Alignment(), Complete: u.Complete,
	}
	for _, place := range u.Places {
		i, _ := slices.BinarySearchFunc(r.Partitions, place.Number,
			func(p Partition, n int) int { return cmp.Compare(p.Number, n) })
		r.Partitions[i].InFile = place.Alignment()
	}
}

// container prints what the image needs and how it stores the disk.
func (t *Text) container(i Image) {
	for _, l := range i.Chain {
		kind := strings.TrimSpace(FormatName(l.Format) + " " + l.Subformat)
		if l.ContentID != "" {
			kind += ", content id " + Safe(l.ContentID)
		}
		t.fact("Parent", Safe(l.Name)+" ("+kind+")")
	}
	if i.Usage != nil {
		t.fact("Data", usageText(i.Usage, i.Size, i.place()))
	}
}

// place returns where bytes are stored that are counted as stored: holes of the files are not.
func (i Image) place() string {
	if slices.ContainsFunc(i.Files, func(f File) bool { return f.Allocated < f.Size }) {
		return "on this disk"
	}
	return "in the container"
}

// usageText describes in one line how a disk of so many bytes is stored.
func usageText(u *Usage, size int64, place string) string {
	s := "nothing"
	switch {
	case u.Stored > 0:
		s = units.Format(u.Stored)
	case u.Compressed > 0:
		s = units.Format(u.Compressed)
	}
	s += " of " + units.Format(size) + " stored " + place
	switch {
	case u.Stored > 0 && u.Compressed > 0:
		s += fmt.Sprintf(", in %s, %s more compressed", pieces(u), units.Format(u.Compressed))
	case u.Stored > 0:
		s += ", in " + pieces(u)
	case u.Compressed > 0:
		s += ", compressed"
	}
	if u.Inherited > 0 {
		s += fmt.Sprintf(", %s in parents", units.Format(u.Inherited))
	}
	if u.NonZero != nil && u.Stored+u.Compressed+u.Inherited > 0 {
		s += fmt.Sprintf(", %s not zero", units.Format(*u.NonZero))
	}
	if !u.Complete {
		s += ": its map is too long to look at all of it"
		if u.Stored+u.Compressed > 0 {
			s = "at least " + s
		}
	}
	return s
}

func pieces(u *Usage) string {
	s := units.Counted(u.Pieces, "piece")
	if u.Unordered > 0 {
		s += fmt.Sprintf(" (%d out of order)", u.Unordered)
	}
	return s
}

// unpackedText describes where an image was unpacked from.
func unpackedText(u image.Unpacked) string {
	text := u.Kind
	if u.Member != "" {
		text += ", member " + Safe(u.Member)
	}
	return fmt.Sprintf("%s, %s (%d bytes) unpacked", text, units.Format(u.Size), u.Size)
}
