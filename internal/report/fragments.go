package report

import (
	"cmp"
	"fmt"

	"github.com/trueup/trueup/internal/freespace"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/volume"
)

// Fragmentation is in how many pieces the files of a volume and its free space lie.
type Fragmentation struct {
	Partition int             `json:"partition,omitempty"` // 0: the volume over the whole disk
	Name      string          `json:"volume,omitempty"`    // inside of it
	Kind      string          `json:"kind"`
	Files     guestfile.Group `json:"files"`
	Folders   guestfile.Group `json:"folders"`
	MFT       int64           `json:"mft_pieces,omitempty"`
	Free      *guestfile.Free `json:"free,omitempty"` // nil: not known
	Unread    int64           `json:"unread"`
	Read      int64           `json:"records_read"`
	Records   int64           `json:"records"`
	Ended     bool            `json:"ended_early"`
	Error     *Error          `json:"error,omitempty"` // why nothing was counted
}

// NewFragmentation describes what was counted.
func NewFragmentation(vs []freespace.FragmentsOf) []Fragmentation {
	out := make([]Fragmentation, 0, len(vs))
	for _, v := range vs {
		f := Fragmentation{
			Partition: v.Number, Name: v.Name, Kind: string(cmp.Or(v.Kind, volume.Unknown)),
			Files: v.Files, Folders: v.Folders, Free: v.Free,
			MFT: v.MFT, Unread: v.Unread, Read: v.Looked, Records: v.Of, Ended: v.Ended,
		}
		if v.Err != nil {
			f.Error = NewError(v.Err)
		}
		out = append(out, f)
	}
	return out
}

// worthwhile is the share of the data in fragmented files from which defragmenting is advised, in percent. It is a
// choice: no maker of a file system states one.
const worthwhile = 10

// fragmentation prints what was counted, and what would help.
func (t *Text) fragmentation(r *Inspect) {
	if r.Fragmentation == nil {
		return
	}
	t.printf("\n")
	if len(r.Fragmentation) == 0 {
		t.Para(2, "Fragmentation: no volume of the disk is one whose files are counted: NTFS, FAT12 to FAT32, "+
			"ext2 to ext4.")
		return
	}
	for _, f := range r.Fragmentation {
		t.fragmentationOf(f, r.Disk)
	}
	t.fragmentationAdvice(r.Fragmentation)
}

// volumeOf names the volume and its place.
func volumeOf(f Fragmentation, d Disk) string {
	if f.Name != "" {
		where := Safe(f.Name) + " on the disk"
		if f.Partition > 0 {
			where = fmt.Sprintf("%s in partition %d", Safe(f.Name), f.Partition)
		}
		if kind := volume.Kind(f.Kind); kind != volume.Unknown {
			where += " (" + volumeName(f.Kind, "") + ")"
		}
		return where
	}
	if f.Partition == 0 && d.Volume != nil {
		return "the disk (" + volumeName(d.Volume.Kind, d.Volume.Label) + ")"
	}
	for _, p := range d.Partitions {
		if p.Number == f.Partition && p.Volume != nil {
			return fmt.Sprintf("partition %d (%s)", p.Number, volumeName(p.Volume.Kind, p.Volume.Label))
		}
	}
	return fmt.Sprintf("partition %d", f.Partition)
}

func (t *Text) fragmentationOf(f Fragmentation, d Disk) {
	if f.Error != nil {
		t.Para(2, "Fragmentation of %s: not counted: %s", volumeOf(f, d), SafeMessage(f.Error.Message))
		return
	}
	t.Para(2, "Fragmentation of %s:", volumeOf(f, d))
	t.fact("Files", groupText(f.Files))
	t.fact("Folders", groupText(f.Folders))
	if f.MFT > 0 {
		t.fact("MFT", units.Counted(f.MFT, "piece"))
	}
	switch {
	case f.Free == nil:
		t.fact("Free", "not known: the structures that show it are broken, or too large")
	case f.Free.Pieces == 0:
		t.fact("Free", "nothing")
	default:
		t.fact("Free", fmt.Sprintf("%s in %s, the largest of %s", units.Format(f.Free.Bytes),
			units.Counted(f.Free.Pieces, "piece"), units.Format(f.Free.Largest)))
	}
	switch {
	case f.Ended:
		t.fact("Sample", fmt.Sprintf("the first %d records: the walk ended there, at the limit of records or of "+
			"bytes for the disk", f.Read))
	case f.Read < f.Records:
		t.fact("Sample", fmt.Sprintf("%d of %d records, taken evenly; the numbers of files are those of the sample",
			f.Read, f.Records))
	}
	if f.Unread > 0 {
		t.fact("Left out", units.Counted(f.Unread, "file")+" with broken or unknown structures")
	}
}

// groupText describes files or folders in one line.
func groupText(g guestfile.Group) string {
	s := fmt.Sprintf("%d, %d of them in pieces", g.Number, g.Fragmented)
	if g.Fragmented == 0 {
		s = fmt.Sprintf("%d, none in pieces", g.Number)
	}
	if g.Placed > 0 {
		s += fmt.Sprintf("; %.2f pieces each", g.PiecesEach())
	}
	if g.Fragmented > 0 {
		s += fmt.Sprintf("; %.1f %% of %s in those", g.Share(), units.Format(g.Bytes))
	}
	return s
}

// fragmentationAdvice says what a copy changes, and what only the guest can.
func (t *Text) fragmentationAdvice(fragments []Fragmentation) {
	var files guestfile.Group
	for _, f := range fragments {
		files = files.With(f.Files)
	}
	advice := "To defragment in the guest gains little."
	if share := files.Share(); share >= worthwhile {
		advice = fmt.Sprintf("%.0f %% of the data is in files in pieces: defragment in the guest, before the copy.",
			share)
	}
	t.Para(2, "Alignment moves partitions as they are: pieces of files stay pieces. %s", advice)
}
