// Package results holds the rows of many images, their ranks, the images accepted by the user, and the sums. It prints
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

// Command is the name of the command that produces these results.
const Command = "scan"

// imageEvent is the value of Image.Event.
const imageEvent = "image"

// State is the outcome of an image.
type State string

// States. Only a Judged image has a verdict.
const (
	Judged State = "judged"
	Failed State = "failed" // Error holds the reason
	Orphan State = "orphan" // an extent that no image names, or a file kept beside a disk
	Packed State = "packed" // a compressed image without enough data in its head
	// Original is the kept original of a disk that was exchanged for its aligned copy. It needs no action.
	Original State = "original"
	Gone     State = "gone" // in an earlier scan only: the image no longer exists
)

// Change compares an image with its row of an earlier scan.
type Change string

// Changes since the earlier scan. Without an earlier scan it is empty.
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
	// Path is the path in the user's notation. PathBytes is its exact bytes in base64, set if they are not valid UTF-8
	// and JSON cannot represent them.
	Path      string `json:"path"`
	PathBytes string `json:"path_base64,omitempty"`
	State     State  `json:"state"`
	Format    string `json:"format,omitempty"` // of the file: vmdk, ova, …; or of the content of a packed file
	// Unpacked describes the source of a packed image.
	Unpacked  *report.Unpacked `json:"unpacked,omitempty"`
	Subformat string           `json:"subformat,omitempty"`
	Size      int64            `json:"size_bytes"`   // of its disks
	Stored    int64            `json:"stored_bytes"` // allocated to its files
	Files     []File           `json:"files"`
	Parents   []string         `json:"parents"` // names of its parents, nearest first
	Verdict   align.Verdict    `json:"verdict,omitempty"`
	Content   align.Content    `json:"content,omitempty"` // if there is nothing to judge
	Disks     []Disk           `json:"disks"`
	// Findings concern the image as a whole, such as a package or an orphan.
	Findings []align.Finding `json:"findings"`
	Error    *report.Error   `json:"error,omitempty"`
	Priority *Priority       `json:"priority,omitempty"` // of an image off the boundary
	Accepted *Accepted       `json:"accepted,omitempty"`
	Change   Change          `json:"change,omitempty"`
	Read     int64           `json:"read_bytes"` // from its files, for this row; 0 for a reused row
	Labels   Labels          `json:"labels,omitempty"`
	// Copied is CopyName if a file of that name is not older than the image. Such a file seems to be the aligned copy.
	Copied string `json:"copied_to,omitempty"`
	// FileSystem is the UUID of the file system of the main file, if known.
	FileSystem string `json:"file_system,omitempty"`
	// Reuse holds the conditions for a later scan to reuse the row. It is nil for a row that no later scan may reuse.
	Reuse *Reuse `json:"reuse,omitempty"`
	// Joined is set if the row stands for rows of several runs.
	Joined *Joined `json:"joined,omitempty"`
	// Tolerated reports that the user accepts unknown content.
	Tolerated bool `json:"-"`
	// NoExchange is the reason why trueup replace would refuse the image although a copy can be made. It is empty if
	// there is no known reason.
	NoExchange string `json:"-"`
	exchange   string // the command
	// Fleeting is set if the row depends on the moment, such as on a lock. No later run may reuse it.
	Fleeting bool `json:"-"`
}

// File is one file of an image. Its numbers serve to detect changes.
type File struct {
	Name      string `json:"name"` // in the folder of the image, or an absolute path
	Size      int64  `json:"size_bytes"`
	Allocated int64  `json:"allocated_bytes"`
	Device    uint64 `json:"device"`
	Inode     uint64 `json:"inode"`
	Modified  int64  `json:"modified_ns"` // since 1970
	Changed   int64  `json:"changed_ns"`  // since 1970; of the inode
}

// Unchanged reports whether a file has the same numbers as at another time.
func (f File) Unchanged(then File) bool {
	return f.Device == then.Device && f.Inode == then.Inode && f.Size == then.Size && f.Modified == then.Modified &&
		f.Changed == then.Changed
}

// Reuse holds the conditions of a row, besides its Files, for reuse by a later scan.
type Reuse struct {
	Settings string          `json:"settings"`         // the build, and the options that affect results
	Identity json.RawMessage `json:"identity"`         // of the main file, by its first bytes; see scan
	Beside   string          `json:"beside,omitempty"` // hash of the other files that the row depends on
}

// Depth is the depth of the inspection of a disk.
type Depth string

// Depths.
const (
	Survey Depth = "survey" // table and volumes: enough for a disk that needs no action
	Full   Depth = "full"   // also boot chain, stored positions and a plan
	Head   Depth = "head"   // starts of partitions in the head of a packed image; no copy is proposed
)

// Disk is one disk of an image.
type Disk struct {
	Member string `json:"member,omitempty"` // of a package
	report.Disk
	Depth Depth         `json:"depth"`
	Error *report.Error `json:"error,omitempty"` // reason why this disk of a package could not be judged
	// Advice and Fix are set for a disk with partitions off the boundary.
	Advice *align.Advice `json:"advice,omitempty"`
	Fix    *Fix          `json:"fix,omitempty"`
	// Unplanned is the reason for a missing Fix.
	Unplanned *report.Error `json:"unplanned,omitempty"`
	Cost      *Cost         `json:"cost,omitempty"`
}

// Fix describes an aligned copy.
type Fix struct {
	Boundary align.Boundary  `json:"boundary_bytes"` // target of the partitions
	OldSize  int64           `json:"old_size_bytes"`
	NewSize  int64           `json:"new_size_bytes"`
	Moves    []report.Move   `json:"moves"`
	Refusals []align.Finding `json:"refusals"` // empty if a copy can be made
}

// Grows returns the growth of the disk in a copy, in bytes.
func (f *Fix) Grows() int64 { return f.NewSize - f.OldSize }

// Cost is the cost of the most expensive start on a storage.
type Cost struct {
	Storage   string `json:"storage"`
	Block     int64  `json:"storage_block_bytes"`
	Partition int    `json:"partition"`

	// More is the share of extra storage blocks that a random I/O of one block of the volume touches.
	More float64 `json:"more_percent"`
	Text string  `json:"text,omitempty"`
}

// Accepted is the user's reason to accept an image.
type Accepted struct {
	Reason string `json:"reason"`
	Until  string `json:"until,omitempty"` // the last day, such as 2027-01-31; empty if it never expires
}

// text returns the reason and the last day.
func (a *Accepted) text() string {
	if a.Until == "" {
		return "accepted: " + a.Reason
	}
	return "accepted until " + a.Until + ": " + a.Reason
}

// NewImage returns a row without results.
func NewImage(path string) *Image {
	i := &Image{
		Origin: report.Origin{Schema: report.Schema, Command: Command}, Event: imageEvent,
		Files: []File{}, Parents: []string{}, Disks: []Disk{}, Findings: []align.Finding{},
	}
	i.SetPath(path)
	return i
}

// NewDisk returns a disk of size bytes, to be judged by boundary, without other data.
func NewDisk(size int64, boundary align.Boundary) Disk {
	return Disk{Depth: Survey, Disk: report.Disk{
		Size: size, Boundary: boundary, Table: report.Table{Scheme: "none"},
		Boot: report.BootCode{Name: "unknown", Text: "not read"}, Partitions: []report.Partition{},
		Findings: []align.Finding{}, Chain: []boot.Link{},
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

// ByHead reports whether the image was judged by the first bytes of its unpacked content.
func (i *Image) ByHead() bool {
	return i.State == Judged && slices.ContainsFunc(i.Disks, func(d Disk) bool { return d.Depth == Head })
}

// Fail marks the row as failed and removes its verdict.
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

// unknownText returns the reason why the content of an image is unknown.
func (i *Image) unknownText() string {
	switch {
	case i.State != Packed:
		return "nothing that can be judged was found on the disk; if that is right, give --allow-unknown"
	case len(i.Findings) == 0:
		return "it is compressed, and not read"
	}
	return i.Findings[0].Text + "; " + i.Findings[0].Remedy
}

// Grows returns the growth of all disks in an aligned copy, in bytes.
func (i *Image) Grows() (n int64) {
	for _, d := range i.Disks {
		if d.Fix != nil {
			n = plus(n, d.Fix.Grows())
		}
	}
	return n
}

// copies returns the bytes that an aligned copy would read and write. It returns 0 unless a copy is needed.
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
func (i *Image) hindered() bool { return len(i.hindrances()) > 0 }

// guest returns the state in which the machine of an image was left: the gravest state of the inspected disks, or an
// empty state without such disks.
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
