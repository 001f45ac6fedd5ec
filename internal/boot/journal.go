package boot

import (
	"errors"
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/fs/ext"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

// replays reports whether the next mount of a file system writes what its journal holds.
func replays(v *volume.Volume) bool {
	return slices.ContainsFunc(v.Issues, func(i ondisk.Issue) bool { return i.Code == "ext-journal" })
}

// outlast holds every position that follows a move against the journals of ext. A replay writes whole blocks, and can
// bring the old position back.
func (r *Result) outlast(g *Guest) error {
	type place struct{ in, target int }
	reported, harmless := map[place]bool{}, map[int]bool{} // by number of the partition
	for i := range r.Refs {
		ref := &r.Refs[i]
		p, at := g.Numbered(ref.Partition), place{ref.Partition, ref.Target}
		if p.Number == 0 || !ref.Follows() || ref.Spare || reported[at] || !replays(p.Volume) {
			continue
		}
		why, err := g.overwritten(p, ref)
		switch {
		case err != nil:
			return fmt.Errorf("partition %d: %w", p.Number, err)
		case why == "":
			harmless[p.Number] = true
			continue
		}
		home := Partition{}
		if ref.File == "" && ref.Off < AreaLen {
			home = p
		}
		const back = "%s: the journal of partition %d is to be replayed, which can bring its old bytes back: %s"
		text := fmt.Sprintf(back, ref.Name(), p.Number, why)
		r.Breaks(g, home, journalCode, ref.Target, text, "shut the guest down cleanly first")
		reported[at] = true
	}
	for _, p := range g.Partitions {
		if harmless[p.Number] {
			const note = "the %s of partition %d was in use when it was copied: no block in its journal has a " +
				"position that changes"
			r.onMove(ondisk.Note, journalCode, p.Number, fmt.Sprintf(note, p.Volume.Kind, p.Number), "")
		}
	}
	return nil
}

// journalCode is the code of what journals of ext mean for a move.
const journalCode = "ext-open"

// overwritten returns why a replay can change the bytes of a reference; empty: it does not.
func (g *Guest) overwritten(p Partition, ref *Ref) (why string, err error) {
	files, err := g.Files(p)
	if Understood(err) || errors.Is(err, ondisk.ErrNoMatch) {
		return err.Error(), nil
	}
	open, ok := files.(*ext.Replayed)
	if !ok {
		return "it cannot be read", err
	}
	if open.Log == nil {
		return ondisk.Shift(open.Unread, p.Off).Error(), nil
	}
	var in []disk.Range
	for _, at := range ref.At {
		in = append(in, disk.Range{Off: at.Off - p.Off, Len: at.Len})
	}
	if w := open.Log.Conflict(in); w != nil {
		return w.String(), nil
	}
	return "", nil
}
