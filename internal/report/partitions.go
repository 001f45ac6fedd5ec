package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/units"
)

// list prints the partitions as fdisk -lu does, with one more column.
func (t *Text) list(i Image, d Disk) {
	sector := d.Sector()
	t.printf("Disk %s: %s, %d bytes, %d sectors\n", Safe(i.Path), units.Format(d.Size), d.Size, d.Size/sector)
	t.printf("Units: sectors of 1 * %d = %d bytes\n", sector, sector)
	switch d.Table.Scheme {
	case "mbr":
		t.printf("Disklabel type: dos\nDisk identifier: %s\n", d.Table.Signature)
	case "gpt":
		t.printf("Disklabel type: gpt\nDisk identifier: %s\n", strings.ToUpper(d.Table.GUID))
	}
	if len(d.Partitions) == 0 {
		return
	}
	names := []string{"Device", "Boot", ">Start", ">End", ">Sectors", ">Size", ">Id", "Type", "Alignment"}
	if d.Table.Scheme == "gpt" {
		names = []string{"Device", ">Start", ">End", ">Sectors", ">Size", "Type", "Alignment"}
	}
	var rows [][]string
	for _, p := range d.Partitions {
		rows = append(rows, t.listRow(i.Path, p, sector, d.Boundary))
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

// deviceName names a partition as the kernel does: "p" separates its number from a digit before it.
func deviceName(path string, number int) string {
	name := Safe(path[strings.LastIndexByte(path, '/')+1:])
	if name != "" && name[len(name)-1] >= '0' && name[len(name)-1] <= '9' {
		name += "p"
	}
	return fmt.Sprintf("%s%d", name, number)
}

// alignment returns the power of two that a start is on, with the verdict in colour and as a mark.
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

// maxParts is how many parts of a volume the text lists; JSON has all that are known.
const maxParts = 64

// insides prints the details of volumes, and how they divide their space.
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
	// The details of a file system, beyond its line in the table, are printed with -v only.
	fileSystem := v.Cluster > 0 && !t.Verbose
	if len(v.Parts) == 0 && (len(v.order) == 0 || fileSystem) {
		return
	}
	says := []string{VolumeText(v)}
	for _, name := range v.order {
		if v.Details[name] != v.Label {
			says = append(says, Safe(name)+" "+Safe(v.Details[name]))
		}
	}
	if v.DataStart > 0 {
		says = append(says, "data from "+units.Format(v.DataStart)+" on")
	}
	t.printf("\n  ")
	t.Para(4, "Inside %s: %s", where, strings.Join(says, ", "))
	t.parts(v, d)
}

// parts lists the slices of a volume with their places on the disk. A slice that lies elsewhere, or in several pieces,
// has no place.
func (t *Text) parts(v *Volume, d Disk) {
	if len(v.Parts) == 0 {
		return
	}
	var rows [][]string
	for _, p := range v.Parts[:min(len(v.Parts), maxParts)] {
		row := []string{"", Safe(p.Name), Safe(p.Kind), "-", units.Format(p.Size), "-"}
		if p.Start != nil {
			row[3] = decimal(*p.Start / d.Sector())
			row[5] = t.yes(Partition{Verdict: d.Verdict}, d.Boundary.On(*p.Start))
		}
		rows = append(rows, row)
	}
	t.printf("\n")
	t.Table(slices.Values(rows), "   ", "name", "kind", ">start LBA", ">size", "on "+d.Boundary.String())
	if more := len(v.Parts) - maxParts; more > 0 {
		t.printf("    ... and %d more\n", more)
	}
}
