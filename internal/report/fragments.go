package report

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/trueup/trueup/internal/container"
	"github.com/trueup/trueup/internal/fragments"
	"github.com/trueup/trueup/internal/fragments/volumes"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/volume"
)

// Fragmentation is in how many pieces the files of a volume and its free space lie.
type Fragmentation struct {
	Partition int         `json:"partition,omitempty"` // 0: the volume over the whole disk
	Name      string      `json:"volume,omitempty"`    // inside of it
	Kind      string      `json:"kind"`
	Files     fileGroup   `json:"files"`
	Folders   fileGroup   `json:"folders"`
	MFT       int64       `json:"mft_pieces,omitempty"`
	Free      *Free       `json:"free,omitempty"` // nil: not known
	Unread    int64       `json:"unread"`
	Read      int64       `json:"records_read"`
	Records   int64       `json:"records"`
	Ended     bool        `json:"ended_early"`
	Worst     []worstFile `json:"worst"`
	Error     *Error      `json:"error,omitempty"` // why nothing was counted
}

// FileGroup counts the files, or the folders.
type fileGroup struct {
	Number     int64 `json:"count"`
	Placed     int64 `json:"with_blocks"`
	Fragmented int64 `json:"fragmented"`
	Pieces     int64 `json:"pieces"`
	Bytes      int64 `json:"bytes"`
	Apart      int64 `json:"fragmented_bytes"`
}

// Free is free space.
type Free struct {
	Pieces  int64 `json:"pieces"`
	Bytes   int64 `json:"bytes"`
	Largest int64 `json:"largest_bytes"`
}

// worstFile is a file in many pieces.
type worstFile struct {
	Path   string    `json:"path,omitempty"` // empty: not found
	Record int64     `json:"record"`         // inode, record of the MFT, or first cluster
	Pieces int64     `json:"pieces"`
	Bytes  int64     `json:"bytes"`
	Read   *fileRead `json:"read,omitempty"` // nil: not known
}

// fileRead is what reading a file once costs the storage.
type fileRead struct {
	IO     int64    `json:"io"`
	Now    fileCost `json:"now"`
	Copied fileCost `json:"copied"`
}

// FileCost counts requests, and the blocks of the storage that they touch.
type fileCost struct {
	Requests int64 `json:"requests"`
	Blocks   int64 `json:"blocks"`
}

// NewFragmentation describes what was counted.
func NewFragmentation(vs []volumes.Volume) []Fragmentation {
	out := make([]Fragmentation, 0, len(vs))
	for _, v := range vs {
		f := Fragmentation{
			Partition: v.Number, Name: v.Name, Kind: string(cmp.Or(v.Kind, volume.Unknown)),
			Files: newFileGroup(v.Files), Folders: newFileGroup(v.Folders),
			MFT: v.MFT, Unread: v.Unread, Read: v.Looked, Records: v.Of, Ended: v.Ended, Worst: []worstFile{},
		}
		if v.Free != nil {
			free := Free(*v.Free)
			f.Free = &free
		}
		for i, w := range v.Worst {
			x := worstFile{Path: w.Path, Record: w.ID, Pieces: w.Pieces, Bytes: w.Bytes}
			if r := v.Reads[i]; r != nil {
				x.Read = &fileRead{r.IO, fileCost(r.Now), fileCost(r.Copied)}
			}
			f.Worst = append(f.Worst, x)
		}
		if v.Err != nil {
			f.Error = NewError(v.Err)
		}
		out = append(out, f)
	}
	return out
}

// With returns the sums of two volumes. Nil counts nothing.
func (f *Fragmentation) With(other Fragmentation) *Fragmentation {
	if f == nil {
		return &other
	}
	out := Fragmentation{
		Partition: f.Partition, Files: f.Files.with(other.Files), Folders: f.Folders.with(other.Folders),
		MFT: f.MFT + other.MFT, Free: f.Free,
	}
	if a, b := f.Free, other.Free; a == nil {
		out.Free = b
	} else if b != nil {
		out.Free = &Free{a.Pieces + b.Pieces, a.Bytes + b.Bytes, max(a.Largest, b.Largest)}
	}
	return &out
}

func (g fileGroup) with(o fileGroup) fileGroup {
	return fileGroup{
		g.Number + o.Number, g.Placed + o.Placed, g.Fragmented + o.Fragmented, g.Pieces + o.Pieces,
		g.Bytes + o.Bytes, g.Apart + o.Apart,
	}
}

func newFileGroup(g fragments.Group) fileGroup {
	return fileGroup{g.Number, g.Placed, g.Fragmented, g.Pieces, g.Bytes, g.Apart}
}

// Share returns the share of the data that lies in fragmented files, in percent.
func (g fileGroup) Share() float64 { return percent(g.Apart, g.Bytes) }

// PiecesEach returns the pieces of a file that has blocks.
func (g fileGroup) PiecesEach() float64 {
	if g.Placed == 0 {
		return 0
	}
	return float64(g.Pieces) / float64(g.Placed)
}

func percent(n, of int64) float64 {
	if of == 0 {
		return 0
	}
	return 100 * float64(n) / float64(of)
}

// worthwhile is the share of the data in fragmented files from which defragmenting is advised, in percent. It is a
// choice: no maker of a file system states one.
const worthwhile = 10

// fragmentation prints what was counted, and what would help.
func (t *Text) fragmentation(d Disk) {
	if d.Fragmentation == nil {
		return
	}
	t.printf("\n")
	if len(d.Fragmentation) == 0 {
		t.para(2, "Fragmentation: no volume of the disk is one whose files are counted: NTFS, FAT12 to FAT32, "+
			"ext2 to ext4.")
		return
	}
	for _, f := range d.Fragmentation {
		t.fragmentationOf(f, d)
	}
	t.fragmentationAdvice(d)
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
		t.para(2, "Fragmentation of %s: not counted: %s", volumeOf(f, d), SafeMessage(f.Error.Message))
		return
	}
	t.para(2, "Fragmentation of %s:", volumeOf(f, d))
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
	t.worst(f)
}

// groupText describes files or folders in one line.
func groupText(g fileGroup) string {
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

// worst prints the files with most pieces.
func (t *Text) worst(f Fragmentation) {
	if len(f.Worst) == 0 {
		return
	}
	w := newTable(table.ColumnConfig{Name: "pieces", Align: text.AlignRight, AlignHeader: text.AlignRight},
		table.ColumnConfig{Name: "requests", Align: text.AlignRight, AlignHeader: text.AlignRight},
		table.ColumnConfig{Name: "blocks", Align: text.AlignRight, AlignHeader: text.AlignRight})
	w.AppendHeader(table.Row{"  ", "pieces", "size", "requests", "blocks", "worst files"})
	for _, x := range f.Worst {
		path := Safe(x.Path)
		if path == "" {
			path = fmt.Sprintf("record %d", x.Record)
		}
		row := table.Row{"", x.Pieces, units.Format(x.Bytes), "-", "-", path}
		if r := x.Read; r != nil {
			row[3] = fmt.Sprintf("%d -> %d", r.Now.Requests, r.Copied.Requests)
			row[4] = fmt.Sprintf("%d -> %d", r.Now.Blocks, r.Copied.Blocks)
		}
		w.AppendRow(row)
	}
	t.table(w)
}

// fragmentationAdvice says what a copy changes, and what only the guest can.
func (t *Text) fragmentationAdvice(d Disk) {
	var bytes, apart int64
	var now, copied fileCost
	for _, f := range d.Fragmentation {
		bytes, apart = bytes+f.Files.Bytes, apart+f.Files.Apart
		for _, x := range f.Worst {
			if r := x.Read; r != nil {
				now.Requests, now.Blocks = now.Requests+r.Now.Requests, now.Blocks+r.Now.Blocks
				copied.Requests, copied.Blocks = copied.Requests+r.Copied.Requests, copied.Blocks+r.Copied.Blocks
			}
		}
	}
	var says []string
	if now.Requests > 0 {
		says = append(says, fmt.Sprintf("Reading the worst files by %s takes %d requests of %d blocks of the storage; "+
			"in an aligned copy, stored in order, %d of %d.", units.Format(container.SequentialIO), now.Requests,
			now.Blocks, copied.Requests, copied.Blocks))
	}
	says = append(says, "Alignment moves partitions as they are: pieces of files stay pieces.")
	if share := percent(apart, bytes); share >= worthwhile {
		says = append(says, fmt.Sprintf("%.0f %% of the data is in files in pieces: defragment in the guest, "+
			"before the copy.", share))
	} else {
		says = append(says, "To defragment in the guest gains little.")
	}
	t.para(2, "%s", strings.Join(says, " "))
}
