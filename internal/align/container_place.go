package align

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// Place describes where the blocks of a part lie in the files. Blocks are counted from the start of the part, as a file
// system does. Compressed data have no place.
type Place struct {
	Part
	stored bool
	shifts int64 // every distance from the start of the part to the place where that would lie in a file, all ORed
	past   int64 // how far behind a boundary of align.Block the blocks lie, as far as that is the same everywhere
	mixed  bool
}

// Alignment returns the largest power of two that divides the place in the file of everything that is a multiple of it
// within the part, at most 1 TiB. 0: nothing of the part has a place.
func (p *Place) Alignment() int64 {
	if !p.stored {
		return 0
	}
	return units.Alignment(p.shifts)
}

// add takes note that r of the disk lies in a file from at on. r overlaps the part.
func (p *Place) add(r disk.Range, at int64) {
	shift := at - (r.Off - p.Off)
	past := (shift%Block + Block) % Block
	p.mixed = p.mixed || (p.stored && past != p.past)
	p.stored, p.past = true, past
	p.shifts |= shift
}

// place takes note of where a range of the disk lies.
func (w *walk) place(r disk.Range, at int64) {
	w.Whole.add(r, at)
	for len(w.open) > 0 && w.open[0].End() <= r.Off {
		w.open = w.open[1:]
	}
	for i := range w.open {
		if w.open[i].Off >= r.End() {
			break
		}
		if w.open[i].Overlaps(r) {
			w.open[i].add(r, at)
		}
	}
}

// Issues reports parts that are aligned on the disk, as a guest sees it, and not in the file. Without parts it judges
// the disk as one.
func (u *Usage) Issues() []ondisk.Issue {
	places := u.Places
	if len(places) == 0 {
		places = []Place{u.Whole}
	}
	var bad []Place
	for _, p := range places {
		if p.stored && p.Off%Block == 0 && p.shifts%Block != 0 {
			bad = append(bad, p)
		}
	}
	if len(bad) == 0 {
		return nil
	}
	return []ondisk.Issue{misaligned(bad)}
}

// misaligned returns one issue for all parts: they suffer from the same container.
func misaligned(bad []Place) ondisk.Issue {
	i := ondisk.Issue{
		Code: "container-misaligned", Effect: ondisk.Warn,
		Remedy: "copy it with trueup convert --to raw, vhdx or vhd:dynamic, whose blocks lie on multiples of 4 KiB " +
			"in the file",
	}
	whose, they := "its blocks of 4 KiB", "it starts"
	if len(bad) == 1 {
		i.Partition = bad[0].Number
	} else {
		var numbers []string
		for _, p := range bad {
			numbers = append(numbers, strconv.Itoa(p.Number))
		}
		last := len(numbers) - 1
		whose, they = fmt.Sprintf("the 4 KiB blocks of partitions %s and %s", strings.Join(numbers[:last], ", "),
			numbers[last]), "they start"
	}
	where, how := fmt.Sprintf("%d bytes past a 4 KiB boundary of the file", bad[0].past), "each touches"
	for _, p := range bad {
		if p.mixed || p.past != bad[0].past { // a VHD of which every block is shifted by a sector more than the last
			where, how = "off the 4 KiB boundaries of the file", "most touch"
		}
	}
	i.Text = fmt.Sprintf("%s lie %s, although %s on one of the disk: %s two blocks of the storage instead of one",
		whose, where, they, how)
	return i
}
