package exchange

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume"
)

// inside describes the volume in a place of a disk.
type inside struct {
	Volume string `json:",omitempty"` // its kind; empty: unknown
	UUID   string `json:",omitempty"` // or its serial number
	Root   bool   `json:",omitempty"` // its root folder could be listed, and what leads there is sound

	damage error // why it cannot
}

func insideOf(g *boot.Guest, p boot.Partition) (in inside) {
	if p.Volume == nil || p.Volume.Kind == volume.Unknown {
		return in
	}
	in.Volume, in.UUID = string(p.Volume.Kind), volumeID(p.Volume)
	in.Root, in.damage = rootOf(g, p)
	return in
}

// rootOf reports whether the root folder of a file system can be listed, or why not. Neither holds where no reader
// understands the file system.
func rootOf(g *boot.Guest, p boot.Partition) (bool, error) {
	files, err := g.Files(p)
	if err == nil {
		_, err = files.List("")
	}
	if f, ok := files.(interface{ FirstEntry() error }); ok && err == nil { // a FAT of zeros has an empty root folder
		err = f.FirstEntry()
	}
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, ondisk.ErrNoMatch), errors.Is(err, ondisk.ErrUnsupported), errors.Is(err, ondisk.ErrLimit):
		return false, nil
	}
	return false, err
}

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
	if v.Kind == volume.Swap {
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

// another returns the identifier by which a disk differs from the shape s; empty if all agree. Identifiers that the
// journal lacks are not compared.
func (s shape) another(is shape) string {
	if s.ID != "" && is.ID != s.ID {
		return fmt.Sprintf("the identifier of the disk is %q, and was %q", is.ID, s.ID)
	}
	if s.Volume != "" && !s.sameVolume(is.inside) {
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
		case was.Volume != "" && !was.sameVolume(p.inside):
			return fmt.Sprintf("its partition %d holds another volume (%s %s), and held %s %s", p.Number, p.Volume,
				p.UUID, was.Volume, was.UUID)
		}
	}
	return ""
}

// sameVolume reports whether a volume is the one that it was. One that has kept its identifier can have got another
// kind, as an ext3 that was made an ext4.
func (in inside) sameVolume(is inside) bool {
	if in.UUID != "" {
		return is.UUID == in.UUID
	}
	return is.Volume == in.Volume
}

// lost returns which content of the shape s a disk lacks that no guest removes by its use; empty if it has all. A
// partition that is gone counts if the disk is to be exactly as it was.
func (s shape) lost(is shape, exactly bool) string {
	switch {
	case s.known() && !is.known():
		return "it holds neither a partition table nor a volume that is known, and did before"
	case s.holds() && !is.holds():
		return "it holds no volume that is known, and did before"
	case s.Root && is.damage != nil:
		return fmt.Sprintf("the root folder of its volume (%s) cannot be read any more: %v", is.Volume, is.damage)
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
		case i >= 0 && was.Root && is.Parts[i].damage != nil:
			return fmt.Sprintf("the root folder of its partition %d (%s) cannot be read any more: %v", was.Number,
				is.Parts[i].Volume, is.Parts[i].damage)
		}
	}
	return ""
}

// holds reports whether the disk holds a volume that is known.
func (s shape) holds() bool {
	return s.Volume != "" || slices.ContainsFunc(s.Parts, func(p part) bool { return p.Volume != "" })
}
