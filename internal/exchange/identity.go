package exchange

import (
	"fmt"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume"
)

// diskID returns the number by which systems identify a disk with a table; empty if it has none yet. Windows gives a
// disk its signature when it finds 0.
func diskID(t *table.Table) string {
	switch {
	case t.Scheme == table.GPT:
		return given(t.GUID)
	case t.Signature != 0:
		return fmt.Sprintf("0x%08x", t.Signature)
	}
	return ""
}

// volumeID returns the UUID or the serial number of a volume, which no guest changes by its use. That of swap space is
// left out: some systems make it anew at each start.
func volumeID(v *volume.Volume) string {
	if v == nil || v.Kind == volume.Swap {
		return ""
	}
	return given(v.UUID)
}

// given returns an identifier; empty for one of zeros, which identifies nothing.
func given(id string) string {
	if strings.Trim(id, "0-") == "" {
		return ""
	}
	return id
}

// identified reports whether something on the disk tells it from others of the same sizes.
func (s shape) identified() bool {
	return s.ID != "" || s.UUID != "" ||
		slices.ContainsFunc(s.Parts, func(p part) bool { return p.GUID != "" || p.UUID != "" })
}

// another returns by what a disk is another one than that of the shape s; empty if it is the same one. What the journal
// has no identifier of is not compared.
func (s shape) another(is shape) string {
	if s.ID != "" && is.ID != s.ID {
		return fmt.Sprintf("the identifier of the disk is %q, and was %q", is.ID, s.ID)
	}
	if s.Volume != "" && !sameVolume(s.Volume, s.UUID, is.Volume, is.UUID) {
		return fmt.Sprintf("it holds another volume (%s %s), and held %s %s", is.Volume, is.UUID, s.Volume, s.UUID)
	}
	for _, was := range s.Parts {
		i := slices.IndexFunc(is.Parts, func(p part) bool { return p.Number == was.Number })
		if i < 0 {
			continue
		}
		switch p := is.Parts[i]; {
		case was.GUID != "" && p.GUID != was.GUID:
			return fmt.Sprintf("the GUID of its partition %d is %q, and was %q", p.Number, p.GUID, was.GUID)
		case was.Volume != "" && !sameVolume(was.Volume, was.UUID, p.Volume, p.UUID):
			return fmt.Sprintf("its partition %d holds another volume (%s %s), and held %s %s", p.Number, p.Volume,
				p.UUID, was.Volume, was.UUID)
		}
	}
	return ""
}

// sameVolume reports whether a volume is the one that it was. One that has kept its identifier can have got another
// kind, as an ext3 that was made an ext4.
func sameVolume(wasKind, wasID, kind, id string) bool {
	if wasID != "" {
		return id == wasID
	}
	return kind == wasKind
}

// lost returns which content of the shape s a disk lacks that no guest removes by its use; empty if it has all. A
// partition that is gone counts if the disk is to be exactly as it was.
func (s shape) lost(is shape, exactly bool) string {
	switch {
	case s.known() && !is.known():
		return "it holds neither a partition table nor a volume that is known, and did before"
	case s.holds() && !is.holds():
		return "it holds no volume that is known, and did before"
	}
	for _, was := range s.Parts {
		if was.Volume == "" || was.Volume == string(volume.Swap) {
			continue
		}
		i := slices.IndexFunc(is.Parts, func(p part) bool { return p.Number == was.Number })
		switch {
		case i < 0 && exactly:
			return fmt.Sprintf("its partition %d, which held a volume (%s), is gone", was.Number, was.Volume)
		case i >= 0 && is.Parts[i].Volume == "":
			return fmt.Sprintf("its partition %d held a volume (%s), and holds none that is known", was.Number,
				was.Volume)
		}
	}
	return ""
}

// holds reports whether the disk holds a volume that is known.
func (s shape) holds() bool {
	return s.Volume != "" || slices.ContainsFunc(s.Parts, func(p part) bool { return p.Volume != "" })
}
