package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/freespace"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/volume"
)

// list prints the partitions like fdisk -lu, with an additional column.
func (t *Text) list(r *Inspect) {
	t.Say("list", r)
	d, sector := r.Disk, r.Sector()
	if len(d.Partitions) == 0 {
		return
	}
	names := []string{"Device", "Boot", ">Start", ">End", ">Sectors", ">Size", ">Id", "Type", "Alignment"}
	if d.Table.Scheme == "gpt" {
		names = []string{"Device", ">Start", ">End", ">Sectors", ">Size", "Type", "Alignment"}
	}
	var rows [][]string
	for _, p := range d.Partitions {
		rows = append(rows, t.listRow(r.Image.Path, p, sector, d.Boundary))
	}
	t.printf("\n")
	t.Table(slices.Values(rows), names...)
}

func (t *Text) listRow(path string, p Partition, sector int64, boundary align.Boundary) []string {
	sectors := p.Size / sector
	place := []string{
		decimal(p.StartLBA), decimal(p.StartLBA + sectors - 1), decimal(sectors), units.Format(p.Size),
	}
	device := deviceName(path, p.Number)
	if p.Kind == "gpt" {
		return slices.Concat([]string{device}, place, []string{typeText(p), t.alignment(p, boundary)})
	}
	active := ""
	if p.Active {
		active = "*"
	}
	id := strings.TrimLeft(strings.TrimPrefix(p.Type, "0x"), "0")
	return slices.Concat([]string{device, active}, place, []string{id, p.TypeName, t.alignment(p, boundary)})
}

// deviceName names a partition like the kernel: "p" separates its number from a digit before it.
func deviceName(path string, number int) string {
	name := Safe(path[strings.LastIndexByte(path, '/')+1:])
	if name != "" && name[len(name)-1] >= '0' && name[len(name)-1] <= '9' {
		name += "p"
	}
	return fmt.Sprintf("%s%d", name, number)
}

// alignment returns the largest power of two that divides a start. Its color shows the verdict, and words are added
// unless the start is aligned.
func (t *Text) alignment(p Partition, boundary align.Boundary) string {
	on := units.Short(p.Alignment)
	switch p.Verdict {
	case align.Misaligned:
		return t.Paint(Red, on+" (off 4K)")
	case align.BelowBoundary:
		return t.Paint(Yellow, on+" (off "+boundary.String()+")")
	case align.Aligned:
		if p.Stays != "" {
			on += " (data on " + units.Short(units.Alignment(p.Data)) + ")"
		}
		return t.Paint(Green, on)
	case align.NothingToJudge:
	}
	if p.Volume != nil {
		return on + " (not judged)"
	}
	return "-"
}

// maxParts bounds the parts of a volume in text. JSON has all known parts.
const maxParts = 64

// insides prints the details and the parts of volumes.
func (t *Text) insides(d Disk) {
	if d.Volume != nil {
		t.inside("the disk", d.Volume, d)
	}
	for _, p := range d.Partitions {
		if p.Volume != nil {
			t.inside(fmt.Sprintf("partition %d", p.Number), p.Volume, d)
		}
	}
}

func (t *Text) inside(where string, v *Volume, d Disk) {
	// Details of a file system, beyond its line in the table, are printed only with -v.
	fileSystem := v.Cluster > 0 && !t.Verbose
	if len(v.Parts) == 0 && (len(v.order) == 0 || fileSystem) {
		return
	}
	t.Say("inside", struct {
		Where  string
		Volume *Volume
	}{where, v})
	t.parts(v, d)
}

// parts lists the slices of a volume with their starts on the disk. A slice on another disk or in several pieces has no
// start.
func (t *Text) parts(v *Volume, d Disk) {
	if len(v.Parts) == 0 {
		return
	}
	var rows [][]string
	for _, p := range v.Parts[:min(len(v.Parts), maxParts)] {
		row := []string{"", Safe(p.Name), Safe(p.Kind), "-", units.Format(p.Size), "-"}
		if p.Start != nil {
			row[3] = decimal(*p.Start / d.Sector())
			row[5] = t.yes(Partition{Verdict: d.Verdict}, d.Boundary.On(*p.Start+v.shift))
		}
		rows = append(rows, row)
	}
	t.printf("\n")
	t.Table(slices.Values(rows), "   ", "name", "kind", ">start LBA", ">size", "on "+d.Boundary.String())
	if more := len(v.Parts) - maxParts; more > 0 {
		t.printf("    ... and %d more\n", more)
	}
}

// Fragmentation holds the numbers of pieces of the files and of the free space of a volume.
type Fragmentation struct {
	Partition int             `json:"partition,omitempty"` // 0 for a volume on the whole disk
	Name      string          `json:"volume,omitempty"`    // inside the partition
	Kind      string          `json:"kind"`
	Files     guestfile.Group `json:"files"`
	Folders   guestfile.Group `json:"folders"`
	MFT       int64           `json:"mft_pieces,omitempty"`
	Free      *guestfile.Free `json:"free,omitempty"` // nil if unknown
	Unread    int64           `json:"unread"`
	Read      int64           `json:"records_read"`
	Records   int64           `json:"records"`
	Ended     bool            `json:"ended_early"`
	Error     *Error          `json:"error,omitempty"` // reason why nothing was counted
}

// NewFragmentation describes the counted fragments.
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

// volumeOf names a volume and its partition.
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

// shareOfFragments returns the share of the data of all volumes in fragmented files, in percent.
func shareOfFragments(all []Fragmentation) float64 {
	var files guestfile.Group
	for _, f := range all {
		files = files.With(f.Files)
	}
	return files.Share()
}
