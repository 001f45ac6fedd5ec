// Package report prints results as text for people and as JSON for scripts, from the same values.
package report

import (
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/freespace"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/verify"
	"github.com/trueup/trueup/internal/volume"
)

// Schema is the version of all JSON objects.
const Schema = "trueup/1"

// Origin begins every object.
type Origin struct {
	Schema  string `json:"schema"`
	Command string `json:"command"`
}

// Head begins the object of a command that reads images.
type Head struct {
	Origin
	// Isolation is set if the program could not be fully confined.
	Isolation *Isolation `json:"isolation,omitempty"`
}

// Isolation describes the confinement of the program or its workers.
type Isolation struct {
	Wanted   string   `json:"wanted"`   // none, process, sandbox
	Achieved string   `json:"achieved"` // none, process, sandbox
	Layers   []string `json:"layers"`   // in force: "landlock-5", "seccomp", "rlimits"
	Note     string   `json:"note,omitempty"`
}

// Image is a container and its files.
type Image struct {
	Path       string            `json:"path"`
	Format     string            `json:"format"`
	Subformat  string            `json:"subformat,omitempty"`
	Size       int64             `json:"size_bytes"`
	SectorSize int64             `json:"sector_size_bytes"`
	Files      []image.FileInfo  `json:"files"`
	Chain      []image.Link      `json:"chain"`
	Usage      *Usage            `json:"usage,omitempty"`
	Details    map[string]string `json:"descriptor,omitempty"`
	Unpacked   *image.Unpacked   `json:"unpacked,omitempty"` // nil unless it is packed
	order      []string
}

// Unpacked describes the packed source of an image.
type Unpacked = image.Unpacked

// Table is a partition table.
type Table struct {
	Scheme     string `json:"scheme"` // mbr, gpt, none
	Signature  string `json:"disk_signature,omitempty"`
	GUID       string `json:"disk_guid,omitempty"`
	Heads      int    `json:"heads,omitempty"`
	Sectors    int    `json:"sectors_per_track,omitempty"`
	SectorSize int64  `json:"sector_size_bytes,omitempty"`
}

// BootCode is the program in sector 0.
type BootCode struct {
	Name     string `json:"name"`
	Text     string `json:"text"`
	ReadsCHS bool   `json:"reads_chs"`
	Hands    bool   `json:"hands_entry_over"`
}

// Guest is the state in which the machine was left before its disk was copied.
type Guest struct {
	State boot.State  `json:"state"`
	Signs []boot.Sign `json:"signs"`
}

// Aligned reports for each boundary whether it divides a start.
type Aligned struct {
	To4K     bool `json:"4K"`
	To64K    bool `json:"64K"`
	To1M     bool `json:"1M"`
	Boundary bool `json:"boundary"`
}

// Partition is one partition and its content.
type Partition struct {
	Number    int           `json:"number"`
	Kind      string        `json:"kind"`
	Active    bool          `json:"active"`
	Type      string        `json:"type"`
	TypeName  string        `json:"type_name,omitempty"`
	Name      string        `json:"name,omitempty"`
	GUID      string        `json:"guid,omitempty"`
	StartLBA  int64         `json:"start_lba"`
	Start     int64         `json:"start_bytes"`
	StartFile int64         `json:"file_start_bytes,omitempty"` // if it differs, in an image that runs in place
	Size      int64         `json:"size_bytes"`
	Alignment int64         `json:"alignment_bytes"`
	InFile    int64         `json:"file_alignment_bytes,omitempty"`
	Aligned   Aligned       `json:"aligned"`
	Verdict   align.Verdict `json:"verdict,omitempty"`
	Unjudged  string        `json:"not_judged,omitempty"`
	Stays     string        `json:"stays,omitempty"` // reason why a copy does not move it although its start is off
	Data      int64         `json:"data_bytes,omitempty"`
	Volume    *Volume       `json:"volume,omitempty"`
	Impact    *Impact       `json:"impact,omitempty"`

	shift int64 // to the start that the storage sees
}

// Volume is the content of a partition or of a whole disk.
type Volume struct {
	Kind      string  `json:"kind"`
	Label     string  `json:"label"`
	UUID      string  `json:"uuid"`
	Size      int64   `json:"size_bytes"`
	Cluster   int64   `json:"cluster_bytes"`
	Hidden    *uint32 `json:"hidden_sectors,omitempty"`
	DataStart int64   `json:"data_offset_bytes"`

	Details map[string]string `json:"details,omitempty"`
	Parts   []part            `json:"parts,omitempty"`
	order   []string
	shift   int64 // to the start that the storage sees, in bytes
}

// part is a slice, a logical volume or another part of a volume.
type part struct {
	Name  string `json:"name"`
	Kind  string `json:"kind,omitempty"`
	Start *int64 `json:"start_bytes,omitempty"`
	Size  int64  `json:"size_bytes"`
}

// Disk is the inspection of a disk.
type Disk struct {
	Size       int64           `json:"size_bytes"`
	Table      Table           `json:"table"`
	Boot       BootCode        `json:"boot_code"`
	Chain      []boot.Link     `json:"boot_chain"`
	Unseen     []boot.Unseen   `json:"boot_unseen,omitempty"`
	Guest      *Guest          `json:"guest,omitempty"` // nil if not inspected
	Partitions []Partition     `json:"partitions"`
	Volume     *Volume         `json:"volume,omitempty"`
	Findings   []align.Finding `json:"findings"`
	Boundary   align.Boundary  `json:"boundary_bytes"`
	Verdict    align.Verdict   `json:"verdict"`
	Content    align.Content   `json:"content,omitempty"` // if there is nothing to judge
}

// Sector returns the size of the sectors that LBAs count, in bytes.
func (d *Disk) Sector() int64 {
	if d.Table.SectorSize > 0 {
		return d.Table.SectorSize
	}
	return units.SectorSize
}

// Unknown reports whether the content of the disk is unknown.
func (d *Disk) Unknown() bool {
	return d.Table.Scheme == "none" && (d.Volume == nil || d.Volume.Kind == string(volume.Unknown))
}

// Inspect is the result of inspect.
type Inspect struct {
	Head
	Image Image `json:"image"`
	Disk
	Fragmentation []Fragmentation `json:"fragmentation,omitempty"` // nil if not counted

	Refusals []align.Finding `json:"refusals"` // reasons why a copy could not be made now
	Advice   align.Advice    `json:"advice"`
	Costs    *Costs          `json:"-"`                  // on the storage named by the user
	Measured *Measured       `json:"measured,omitempty"` // by the benchmark that the user has named
	Flags    []string        `json:"-"`                  // of the command line, for the next commands
	Error    *Error          `json:"error,omitempty"`
	ExitCode int             `json:"exit_code"`
}

// Move is the move of one partition.
type Move struct {
	Partition int   `json:"partition"`
	From      int64 `json:"from_bytes"`
	To        int64 `json:"to_bytes"`
	Size      int64 `json:"size_bytes"`
	Delta     int64 `json:"delta_bytes"`
}

// GapMove is the move of data outside of partitions: an EBR, or data in a gap.
type GapMove struct {
	From int64 `json:"from_bytes"`
	To   int64 `json:"to_bytes"`
	Size int64 `json:"size_bytes"`
}

// Patch is a range of the result that differs from the source.
type Patch struct {
	Off    int64  `json:"offset_bytes"`
	Len    int    `json:"length_bytes"`
	Old    string `json:"old"` // hexadecimal
	New    string `json:"new"`
	Reason string `json:"reason"`
}

// Plan is the result of plan.
type Plan struct {
	Head
	Image Image `json:"image"`
	Changes
	References []Reference     `json:"references"`
	Target     align.Boundary  `json:"boundary_bytes"`
	Findings   []align.Finding `json:"findings"`
	Refusals   []align.Finding `json:"refusals"`
	Result     *Disk           `json:"result,omitempty"`
	BIOS       *Geometries     `json:"bios_geometry,omitempty"` // nil if the format states none
	Cost       *realign.Cost   `json:"cost,omitempty"`
	Before     *Disk           `json:"-"`
	Measured   *Measured       `json:"measured,omitempty"` // by the benchmark that the user has named
	Flags      []string        `json:"-"`                  // of the command line that executes the plan
	Error      *Error          `json:"error,omitempty"`
	ExitCode   int             `json:"exit_code"`
}

// Geometries holds the geometries that a BIOS reports for a source, and for a copy in its format.
type Geometries struct {
	Source *Geometry `json:"source,omitempty"` // nil if its format states none
	Result *Geometry `json:"result,omitempty"`
}

// Geometry is the CHS geometry of a disk.
type Geometry struct {
	Cylinders int64 `json:"cylinders"`
	Heads     int64 `json:"heads"`
	Sectors   int64 `json:"sectors_per_track"`
}

// Changes describes the changes that a plan makes to a disk.
type Changes struct {
	OldSize int64   `json:"old_size_bytes"`
	NewSize int64   `json:"new_size_bytes"`
	Moved   int     `json:"moved"`
	Moves   []Move  `json:"moves"`
	Patches []Patch `json:"patches"`

	GapMoves  []GapMove          `json:"gap_moves,omitempty"`
	FreeSpace []freespace.Volume `json:"free_space,omitempty"` // with --skip-free
	ToSectors int64              `json:"to_sector_size_bytes,omitempty"`

	sector int64 // bytes of an LBA of the table
}

// Align is the result of align, convert, replace, move, view and offset.
type Align struct {
	Head
	Source   string          `json:"source"`
	Dest     string          `json:"dest"`
	Package  *Package        `json:"package,omitempty"` // SOURCE; nil for one disk
	Disks    []*AlignedDisk  `json:"disks"`
	Moved    int             `json:"moved"` // partitions of all disks
	Dropped  []string        `json:"dropped_members"`
	Written  bool            `json:"written"`
	Copied   int64           `json:"copied_bytes"`     // data
	Took     float64         `json:"duration_seconds"` // of writing and verifying
	Verified string          `json:"verified"`
	Files    []string        `json:"files"`               // paths
	Sums     []Checksum      `json:"checksums,omitempty"` // if requested
	Findings []align.Finding `json:"findings"`            // about the package, and the place of DEST
	Flags    []string        `json:"-"`                   // of the command line that verifies the copy again
	Folder   string          `json:"-"`                   // the working directory, empty if unknown
	ExitCode int             `json:"exit_code"`

	Replaced *Replaced `json:"replaced,omitempty"` // if DEST got the names of SOURCE
	Offset   *Offset   `json:"offset,omitempty"`   // if the disk begins at an offset of DEST
}

// AlignedDisk is one disk of an Align.
type AlignedDisk struct {
	Source    string `json:"source"` // PACKAGE!MEMBER in a package
	Dest      string `json:"dest"`
	Format    string `json:"format"`
	Subformat string `json:"subformat,omitempty"`
	Changes
	Copied   int64           `json:"copied_bytes"`
	Took     float64         `json:"duration_seconds"`
	Findings []align.Finding `json:"findings"`
	Unpacked *image.Unpacked `json:"unpacked,omitempty"` // of SOURCE; nil unless it was packed

	registered bool // VirtualBox identifies SOURCE by its UUID
}

// Checksum is the digest of a written file.
type Checksum struct {
	File   string `json:"file"`
	SHA256 string `json:"sha256"` // in hex
}

// Replaced describes the original disk whose names an aligned copy got.
type Replaced struct {
	Original string   `json:"original"` // its present path, empty if it was removed
	Files    []string `json:"files"`
	Journal  string   `json:"journal"`
}

// Difference is a range in which a copy differs from the expected bytes.
type Difference struct {
	Off  int64  `json:"offset_bytes"`
	Len  int64  `json:"length_bytes"`
	Text string `json:"text"`
}

// Verify is the result of verify.
type Verify struct {
	Head
	Source      string          `json:"source"`
	Dest        string          `json:"dest"`
	Package     *Package        `json:"package,omitempty"` // DEST; nil for one disk
	Equal       bool            `json:"equal"`
	Disks       []*VerifiedDisk `json:"disks"`
	Differences []string        `json:"differences"` // outside of the disks
	ExitCode    int             `json:"exit_code"`
}

// VerifiedDisk is one disk of a Verify.
type VerifiedDisk struct {
	Source string `json:"source"` // PACKAGE!MEMBER in a package
	Dest   string `json:"dest"`
	Equal  bool   `json:"equal"`
	Changes
	Differences []Difference `json:"differences"`
	Guest       *GuestWrites `json:"guest,omitempty"`
}

// GuestWrites describes the writes of a guest to the copy.
type GuestWrites struct {
	Bitmap     string `json:"bitmap"`
	Consistent bool   `json:"consistent"`
	Written    int64  `json:"written_bytes"`
	Differ     int64  `json:"differing_bytes"`
}

// Error is the reason why a command failed.
type Error struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Failure is the object of a command without another result.
type Failure struct {
	Head
	Error    Error `json:"error"`
	ExitCode int   `json:"exit_code"`
}

// NewImage describes an opened image.
func NewImage(img *image.Image) Image {
	out := Image{
		Path: img.Path, Format: img.Format, Subformat: img.Subformat, Size: img.Disk.Size(),
		SectorSize: img.Disk.SectorSize(), Files: img.Files(), Chain: orEmpty(img.Chain), Unpacked: img.Unpacked,
	}
	for _, d := range img.Details {
		out.Details, out.order = named(out.Details, d.Name, d.Value), append(out.order, d.Name)
	}
	return out
}

// named adds a value to a map, which may be nil.
func named(values map[string]string, name, value string) map[string]string {
	if values == nil {
		values = map[string]string{}
	}
	values[name] = value
	return values
}

// NewDisk describes a layout. findings are the result of align.Check.
func NewDisk(l *layout.Layout, boundary align.Boundary, findings []align.Finding) Disk {
	d := Disk{
		Size: l.Size, Table: Table{Scheme: "none"}, Boundary: boundary, Verdict: align.Overall(l, boundary),
		Content:  align.ContentOf(l),
		Findings: orEmpty(findings), Partitions: []Partition{},
		Boot: BootCode{
			Name: l.Boot.Code.ID, Text: l.Boot.Code.Name, ReadsCHS: l.ReadsCHS(),
			Hands: l.Boot.Code.HandsOver,
		},
		Chain: orEmpty(l.Boot.Chain), Unseen: l.Boot.Unseen,
	}
	if l.Boot.State != "" {
		d.Guest = &Guest{State: l.Boot.State, Signs: orEmpty(l.Boot.Signs)}
	}
	if l.Volume != nil {
		d.Volume = newVolume(l.Volume, 0, l.Shift)
	}
	if t := l.Table; t != nil {
		d.Table = Table{
			Scheme: string(t.Scheme), GUID: t.GUID, Heads: l.Geometry.Heads, Sectors: l.Geometry.Sectors,
			SectorSize: t.SectorSize,
		}
		if t.Scheme == table.MBR || t.IsHybrid() {
			d.Table.Signature = fmt.Sprintf("0x%08x", t.Signature)
		}
		d.Partitions = slices.Grow(d.Partitions, len(l.Partitions))
		for _, p := range l.Partitions {
			d.Partitions = append(d.Partitions, newPartition(p, t.SectorSize, boundary))
		}
	}
	return d
}

func newPartition(p boot.Partition, sector int64, boundary align.Boundary) Partition {
	out := Partition{
		Number: p.Number, Kind: string(p.Kind), Active: p.Active, Type: p.TypeID(), TypeName: p.TypeName(),
		Name: p.Name, GUID: p.GUID, StartLBA: p.Off / sector, Start: p.Off, Size: p.Len,
	}
	j := align.Judge(p, boundary)
	at := p.Off + p.Shift
	if out.shift = p.Shift; p.InFile != p.Off {
		out.StartFile = p.InFile
	}
	if j.Data != p.Off {
		out.Data = j.Data
	}
	out.Verdict, out.Unjudged, out.Stays = j.Verdict, j.Unjudged, j.Stays
	out.Alignment = units.Alignment(at)
	out.Aligned = Aligned{
		align.SmallestBoundary.On(at), align.DefaultBoundary.On(at), align.Kept.On(at), boundary.On(at),
	}
	if align.HoldsVolume(p) {
		out.Volume = newVolume(p.Volume, p.Off, p.Shift)
	}
	return out
}

// newVolume describes a volume. at is its offset on the disk, and shift is its offset in the file less at, in bytes.
func newVolume(v *volume.Volume, at, shift int64) *Volume {
	out := &Volume{
		Kind: string(v.Kind), Label: v.Label, UUID: v.UUID, Size: v.Size, Cluster: v.BlockSize, DataStart: v.DataStart,
		shift: shift,
	}
	if v.Boot != nil {
		out.Hidden = &v.Boot.Hidden
	}
	for _, d := range v.Details {
		out.Details, out.order = named(out.Details, d.Name, d.Value), append(out.order, d.Name)
	}
	for _, p := range v.Parts {
		x := part{Name: p.Name, Kind: p.Kind, Size: p.Size}
		if p.Start >= 0 {
			x.Start = new(at + p.Start)
		}
		out.Parts = append(out.Parts, x)
	}
	return out
}

// NewChanges describes the changes of a plan.
func NewChanges(p *plan.Plan) Changes {
	c := Changes{
		sector: p.SectorSize, OldSize: p.OldSize, NewSize: p.Size, Moved: len(p.Moves), Moves: []Move{},
		Patches: []Patch{}, ToSectors: p.Sectors,
	}
	if p.Unused != nil {
		c.FreeSpace = p.Unused.Volumes
	}
	c.Moves, c.Patches = slices.Grow(c.Moves, len(p.Moves)), slices.Grow(c.Patches, len(p.Patches))
	for _, m := range p.Moves {
		c.Moves = append(c.Moves, Move{m.Partition, m.From, m.To, m.Len, m.Delta()})
	}
	c.GapMoves = gapMoves(p)
	for _, x := range p.Patches {
		c.Patches = append(c.Patches,
			Patch{x.Off, len(x.New), hex.EncodeToString(x.Old), hex.EncodeToString(x.New), x.Reason})
	}
	return c
}

// gapMoves lists the moved ranges outside of partitions.
func gapMoves(p *plan.Plan) (out []GapMove) {
	parts := make([]disk.Range, 0, len(p.Moves))
	for _, m := range p.Moves {
		parts = append(parts, disk.Range{Off: m.From, Len: m.Len})
	}
	parts = disk.Merge(parts)
	for _, x := range p.Pieces {
		if x.From == x.To {
			continue
		}
		add := func(from, end int64) {
			if from < end {
				out = append(out, GapMove{from, from + x.To - x.From, end - from})
			}
		}
		at := x.From
		for i := disk.Behind(parts, at); i < len(parts) && parts[i].Off < x.Source().End(); i++ {
			add(at, parts[i].Off)
			at = parts[i].End()
		}
		add(at, x.Source().End())
	}
	return out
}

// NewDifferences describes the differences of a copy, with their places in its layout.
func NewDifferences(ds []verify.Difference, l *layout.Layout) []Difference {
	out := []Difference{}
	for _, d := range ds {
		out = append(out, Difference{d.Off, d.Len, d.Text + placeOf(d, l)})
	}
	return out
}

// placeOf names the partition of a difference, and its content.
func placeOf(d verify.Difference, l *layout.Layout) string {
	var in *boot.Partition
	for i, p := range l.Partitions {
		// logical partitions are inside the extended one
		if d.Len > 0 && p.Contains(disk.Range{Off: d.Off, Len: 1}) && (in == nil || p.Len < in.Len) {
			in = &l.Partitions[i]
		}
	}
	switch {
	case in == nil:
		return ""
	case align.HoldsVolume(*in):
		return fmt.Sprintf(", in partition %d (%s)", in.Number, volumeName(string(in.Volume.Kind), in.Volume.Label))
	}
	return fmt.Sprintf(", in partition %d", in.Number)
}

// orEmpty returns a copy of a list that JSON shows as [] if it is empty.
func orEmpty[T any](all []T) []T { return append([]T{}, all...) }
