package volume

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// DynamicDisk is what the database of a dynamic disk says about the disk and its group.
type DynamicDisk struct {
	Group   string // name
	GroupID string
	Name    string   // of this disk in the group, empty when the group does not know it
	Disks   []string // of the group
	Volumes []DynamicVolume
	Others  int // volumes of the group that have no piece on this disk
}

// DynamicVolume has a piece on the disk at least.
type DynamicVolume struct {
	Name  string
	Kind  string // simple, spanned, striped, mirrored, raid5
	Type  byte   // as an MBR would have it
	Hint  string // drive letter
	Start int64  // byte of the disk; -1: not in one piece there
	Size  int64
}

// maxLDMNames bounds what is listed of a group: Windows advises against more than 32 volumes, and a database has room for thousands.
const maxLDMNames = 256

// dynamicDisk puts the records together.
func (db *ldmDatabase) dynamicDisk(h *ldmHead) *DynamicDisk {
	out := &DynamicDisk{Group: ldmName(h.GroupName[:]), GroupID: strings.ToLower(ldmName(h.GroupID[:]))}
	self, known := uint64(0), false
	for _, d := range db.disks {
		if d.diskGUID == strings.ToLower(ldmName(h.DiskID[:])) {
			self, known, out.Name = d.id, true, d.name
		}
		if len(out.Disks) < maxLDMNames {
			out.Disks = append(out.Disks, d.name)
		}
	}
	db.link()
	for _, v := range db.volumes {
		start, here := v.place(self, h.DataStart, db.disk.Size()/db.sector)
		if !known || !here || len(out.Volumes) >= maxLDMNames {
			out.Others++
			continue
		}
		if start >= 0 {
			start *= db.sector
		}
		out.Volumes = append(out.Volumes, DynamicVolume{
			Name: v.name, Kind: v.layout(), Type: v.kind, Hint: v.hint, Start: start, Size: ldmBytes(v.sectors, db.sector),
		})
	}
	return out
}

func ldmName(b []byte) string { return strings.ToValidUTF8(zeroTerminated(b), "?") }

// ldmBytes is as many sectors in bytes; what no disk can have is cut.
func ldmBytes(sectors uint64, sector int64) int64 {
	return int64(min(sectors, uint64(math.MaxInt64/sector))) * sector //nolint:gosec // bounded on this line
}

// link gives every volume its components, and these their partitions. One whose parent is not there belongs to nothing.
func (db *ldmDatabase) link() {
	components, volumes := map[uint64]*ldmComponent{}, map[uint64]*ldmVolume{}
	for _, v := range db.volumes {
		volumes[v.id] = v
	}
	for _, c := range db.components {
		components[c.id] = c
		if v := volumes[c.parent]; v != nil {
			v.components = append(v.components, c)
		}
	}
	for _, p := range db.partitions {
		if c := components[p.parent]; c != nil {
			c.parts = append(c.parts, p)
		}
	}
}

// layout is how the volume spreads over disks, in the words of Windows.
func (v *ldmVolume) layout() string {
	switch {
	case v.raid5:
		return "raid5"
	case len(v.components) > 1:
		return "mirrored"
	case len(v.components) == 0:
		return "incomplete"
	case v.components[0].kind == ldmStriped:
		return "striped"
	case v.components[0].kind == ldmSpanned && len(v.components[0].parts) > 1:
		return "spanned"
	}
	return "simple"
}

// place reports whether the volume has a piece on a disk, and where it is in sectors when a whole copy of it lies there in one piece.
func (v *ldmVolume) place(disk, dataStart uint64, sectors int64) (start int64, here bool) {
	start = -1
	for _, c := range v.components {
		for _, p := range c.parts {
			if p.disk != disk {
				continue
			}
			here = true
			at := dataStart + p.start                                                                            // below 2^63, or cut here
			if len(c.parts) == 1 && p.start < 1<<62 && at < uint64(sectors) && p.sectors <= uint64(sectors)-at { //nolint:gosec // sizes are positive
				start = int64(at) //nolint:gosec // less than the disk
			}
		}
	}
	return start, here
}

// Describe adds what the database says to the volume of a partition of the disk, which has the bytes [off, end). spread: and the volumes that
// lie in no one place, which are shown once.
func (d *DynamicDisk) Describe(v *Volume, off, end int64, spread bool) {
	v.Details = append(v.Details, Detail{"disk group", d.Group}, Detail{"group id", d.GroupID})
	if d.Name != "" {
		v.Details = append(v.Details, Detail{"disk", d.Name})
	}
	v.Details = append(v.Details, Detail{"disks of the group", strings.Join(d.Disks, ", ")})
	if d.Others > 0 {
		v.Details = append(v.Details, Detail{"volumes elsewhere", strconv.Itoa(d.Others)})
	}
	for _, x := range d.Volumes {
		if x.Start < 0 && !spread || x.Start >= 0 && (x.Start < off || x.Start >= end) {
			continue
		}
		p := Part{Name: x.Name, Kind: x.Kind, Start: -1, Size: x.Size}
		if x.Start >= 0 {
			p.Start = x.Start - off
		}
		v.Parts = append(v.Parts, p)
		said := fmt.Sprintf("type %#02x", x.Type)
		if x.Hint != "" {
			said += ", drive " + x.Hint
		}
		v.Details = append(v.Details, Detail{"volume " + x.Name, said})
	}
}

func hexByte(n byte) string { return fmt.Sprintf("%#02x", n) }
