// Package results holds the rows of many images, their ranks, the images that a user accepts, and the sums. It prints
// them as text, JSON, CSV, HTML, JUnit and metrics, from the same values. It is pure: no files, no clock.
package results

import (
	"encoding/base64"
	"encoding/json"
	"slices"
	"unicode/utf8"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/report"
)

// Command is the name of the command whose results these are.
const Command = "scan"

// imageEvent is Image.Event.
const imageEvent = "image"

// State is the outcome of an image.
type State string

// States. An image of any other state than Judged has no verdict.
const (
	Judged State = "judged"
	Failed State = "failed" // Error has the reason
	Orphan State = "orphan" // an extent that no image names, or a file kept beside a disk
	Packed State = "packed" // a compressed file with the name of an image, whose head does not show enough
	// Original is the original of a disk that was exchanged for its aligned copy. It is kept, and nothing is to be
	// done.
	Original State = "original"
	Gone     State = "gone" // an earlier scan has it, and it is not there any more
)

// Change compares an image with its row of an earlier scan.
type Change string

// Changes since the earlier scan. Without one an image has none.
const (
	New     Change = "new"
	Changed Change = "changed"
	Same    Change = "same"
	Removed Change = "removed"
)

// Image is one row: an image with all of its files, or a package with all of its disks.
type Image struct {
	report.Origin
	Event string `json:"event"` // imageEvent
	// Path is as the user would write it. Names are bytes, and JSON is text: PathBytes has them in base64 where they
	// are not UTF-8.
	Path      string `json:"path"`
	PathBytes string `json:"path_base64,omitempty"`
	State     State  `json:"state"`
	Format    string `json:"format,omitempty"` // that of the file: vmdk, ova, …; of a packed one of what is in it
	// Unpacked is where a packed image was unpacked from.
	Unpacked  *report.Unpacked `json:"unpacked,omitempty"`
	Subformat string           `json:"subformat,omitempty"`
	Size      int64            `json:"size_bytes"`   // of its disks
	Stored    int64            `json:"stored_bytes"` // taken on the file system of its files
	Files     []File           `json:"files"`
	Parents   []string         `json:"parents"` // names of the images that it completes, nearest first
	Verdict   align.Verdict    `json:"verdict,omitempty"`
	Content   align.Content    `json:"content,omitempty"` // where there is nothing to judge
	Disks     []Disk           `json:"disks"`
	// Findings concern the image as a whole: its package, an orphan.
	Findings []align.Finding `json:"findings"`
	Error    *report.Error   `json:"error,omitempty"`
	Priority *Priority       `json:"priority,omitempty"` // of an image off the boundary
	Accepted *Accepted       `json:"accepted,omitempty"`
	Change   Change          `json:"change,omitempty"`
	Read     int64           `json:"read_bytes"` // from its files, for this row; 0 when it was taken over
	Labels   Labels          `json:"labels,omitempty"`
	// Copied is CopyName if a file of that name is not older than the image: it seems to be the aligned copy.
	Copied string `json:"copied_to,omitempty"`
	// FileSystem is the UUID of the file system of its main file, where that is known.
	FileSystem string `json:"file_system,omitempty"`
	// Reuse is what a later scan needs to take the row over; nil if the row held for the moment only.
	Reuse *Reuse `json:"reuse,omitempty"`
	// Joined is set if rows of several runs are about the image.
	Joined *Joined `json:"joined,omitempty"`
	// Tolerated reports that the user accepts unknown content.
	Tolerated bool `json:"-"`
	// NoExchange is why trueup replace would refuse it although a copy can be made; empty if nothing is known against
	// it.
	NoExchange string `json:"-"`
	exchange   string // the command
	// Fleeting is set if the row depends on the moment, such as a lock, and no later run may take it over.
	Fleeting bool `json:"-"`
}

// File is one file of an image. Its numbers show whether it is unchanged.
type File struct {
	Name      string `json:"name"` // in the folder of the image, or the path elsewhere
	Size      int64  `json:"size_bytes"`
	Allocated int64  `json:"allocated_bytes"`
	Device    uint64 `json:"device"`
	Inode     uint64 `json:"inode"`
	Modified  int64  `json:"modified_ns"` // since 1970
	Changed   int64  `json:"changed_ns"`  // since 1970; of the inode
}

// Unchanged reports whether the numbers of a file are those of another time.
func (f File) Unchanged(then File) bool {
	return f.Device == then.Device && f.Inode == then.Inode && f.Size == then.Size && f.Modified == then.Modified &&
		f.Changed == then.Changed
}

// Reuse is the circumstances of a row beside its Files.
type Reuse struct {
	Settings string          `json:"settings"`         // the build, and the options that results depend on
	Identity json.RawMessage `json:"identity"`         // of the main file by its first bytes, in the form of the scan
	Beside   string          `json:"beside,omitempty"` // hash of the files around it that the row depends on
}

// Depth is how far a disk was looked into.
type Depth string

// Depths.
const (
	Survey Depth = "survey" // table and volumes: enough for a disk on which nothing is to be done
	Full   Depth = "full"   // boot chain, stored positions and a plan too
	Head   Depth = "head"   // where partitions start, by the first bytes of a packed image: no copy is proposed
)

// Disk is one disk of an image.
type Disk struct {
	Member string `json:"member,omitempty"` // of a package
	report.Disk
	Depth Depth         `json:"depth"`
	Error *report.Error `json:"error,omitempty"` // why this disk of a package could not be judged
	// Advice and Fix are those of a disk with partitions off the boundary.
	Advice *align.Advice `json:"advice,omitempty"`
	Fix    *Fix          `json:"fix,omitempty"`
	// Unplanned is why there is no Fix.
	Unplanned *report.Error `json:"unplanned,omitempty"`
	Cost      *Cost         `json:"cost,omitempty"`
}

// Fix is what an aligned copy would be.
type Fix struct {
	Boundary align.Boundary  `json:"boundary_bytes"` // where partitions go
	OldSize  int64           `json:"old_size_bytes"`
	NewSize  int64           `json:"new_size_bytes"`
	Moves    []report.Move   `json:"moves"`
	Refusals []align.Finding `json:"refusals"` // none: it can be made
}

// Grows returns how much larger the disk of the copy would be, in bytes.
func (f *Fix) Grows() int64 { return f.NewSize - f.OldSize }

// Cost is the effect of the most expensive start on a storage.
type Cost struct {
	Storage   string `json:"storage"`
	Block     int64  `json:"storage_block_bytes"`
	Partition int    `json:"partition"`

	// More is the share of extra storage blocks that a random I/O of one block of the volume touches.
	More float64 `json:"more_percent"`
	Text string  `json:"text,omitempty"`
}

// Accepted is why the user accepts an image.
type Accepted struct {
	Reason string `json:"reason"`
	Until  string `json:"until,omitempty"` // the last day, as 2027-01-31; empty for ever
}

// text returns the reason and the last day.
func (a *Accepted) text() string {
	if a.Until == "" {
		return "accepted: " + a.Reason
	}
	return "accepted until " + a.Until + ": " + a.Reason
}

// NewImage begins a row.
func NewImage(path string) *Image {
	i := &Image{
		Origin: report.Origin{Schema: report.Schema, Command: Command}, Event: imageEvent,
		Files: []File{}, Parents: []string{}, Disks: []Disk{}, Findings: []align.Finding{},
	}
	i.SetPath(path)
	return i
}

// NewDisk returns a disk of which only the size is known, in bytes, and the boundary that it is judged by.
func NewDisk(size int64, boundary align.Boundary) Disk {
	return Disk{Depth: Survey, Disk: report.Disk{
		Size: size, Boundary: boundary, Table: report.Table{Scheme: "none"},
		Boot: report.BootCode{Name: "unknown", Text: "not read"}, Partitions: []report.Partition{},
		Findings: []align.Finding{}, Chain: []report.BootLink{},
	}}
}

// SetPath sets the path of the image.
func (i *Image) SetPath(path string) {
	i.Path, i.PathBytes = path, ""
	if !utf8.ValidString(path) {
		i.PathBytes = base64.StdEncoding.EncodeToString([]byte(path))
	}
}

// ExactPath returns the path with the exact bytes of its name. Path loses them when the row becomes JSON.
func (i *Image) ExactPath() string {
	if b, err := base64.StdEncoding.DecodeString(i.PathBytes); err == nil && i.PathBytes != "" {
		return string(b)
	}
	return i.Path
}

// ByHead reports whether an image was judged by the first bytes of what it unpacks to.
func (i *Image) ByHead() bool {
	return i.State == Judged && slices.ContainsFunc(i.Disks, func(d Disk) bool { return d.Depth == Head })
}

// Fail makes a row of an image that could not be judged.
func (i *Image) Fail(code, message string) {
	i.State, i.Verdict, i.Content, i.Priority = Failed, "", "", nil
	i.Error = &report.Error{Code: code, Message: message}
}

// unknown reports whether the content of the image, or of one of its disks, is unknown.
func (i *Image) unknown() bool {
	return i.State == Packed ||
		(i.State == Judged && slices.ContainsFunc(i.Disks,
			func(d Disk) bool { return d.Content == align.UnknownContent }))
}

// unknownText returns why the content of an image is unknown.
func (i *Image) unknownText() string {
	switch {
	case i.State != Packed:
		return "nothing that can be judged was found on the disk; if that is right, give --allow-unknown"
	case len(i.Findings) == 0:
		return "it is compressed, and not read"
	}
	return i.Findings[0].Text + "; " + i.Findings[0].Remedy
}

// Grows returns how much larger an aligned copy would be, in bytes.
func (i *Image) Grows() (n int64) {
	for _, d := range i.Disks {
		if d.Fix != nil {
			n = plus(n, d.Fix.Grows())
		}
	}
	return n
}

// copies returns the bytes that an aligned copy would read and write, 0 if none is due.
func (i *Image) copies() int64 {
	if i.Priority == nil || i.Priority.Class == classStays {
		return 0
	}
	return i.Stored
}

// Refusals returns the reasons against an aligned copy.
func (i *Image) Refusals() (out []align.Finding) {
	for _, d := range i.Disks {
		if d.Fix != nil {
			out = append(out, d.Fix.Refusals...)
		}
	}
	return out
}

// hindered reports whether no aligned copy can be made now.
func (i *Image) hindered() bool { return len(i.Refusals()) > 0 || i.unplanned() }

// guest returns how the machine of an image was left: the gravest state of the disks that were looked into, and empty
// where none was.
func (i *Image) guest() boot.State {
	var signs []boot.Sign
	for _, d := range i.Disks {
		if d.Guest != nil {
			signs = append(signs, boot.Sign{State: d.Guest.State})
		}
	}
	if len(signs) == 0 {
		return ""
	}
	return boot.Overall(signs)
}
