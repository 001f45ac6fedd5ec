package results

import (
	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/report"
)

// Summary holds the sums of a run. It is the last line of its JSON.
type Summary struct {
	report.Origin
	Event    string         `json:"event"`    // "summary"
	Complete bool           `json:"complete"` // unset for an interrupted run, which did not inspect all images
	Paths    []string       `json:"paths"`    // as given
	Boundary align.Boundary `json:"boundary_bytes"`
	Storage  string         `json:"storage"`
	Started  string         `json:"started"`  // RFC 3339, UTC
	Finished string         `json:"finished"` // RFC 3339, UTC
	Took     float64        `json:"duration_seconds"`
	Version  string         `json:"version"`                // of trueup
	Shard    string         `json:"shard,omitempty"`        // share K/N of the images, empty for all
	Others   int            `json:"other_shards,omitempty"` // images in the other shards

	Labels Labels `json:"labels,omitempty"` // of all rows

	AllowEmpty  bool   `json:"-"` // accept a run that judged no image
	Found       int    `json:"-"` // images found by the walk; more than Images if the run was interrupted
	Script      string `json:"-"` // path of the script, if one is written
	Replace     bool   `json:"-"` // the script exchanges images for their copies
	ChangedOnly bool   `json:"-"` // rows and exit code cover only new, changed and removed images
	LeftOut     int    `json:"-"` // images of the earlier scan that this scan did not reach

	Images     int            `json:"images"` // all kinds below
	Aligned    int            `json:"aligned"`
	Below      int            `json:"below_boundary"`
	Misaligned int            `json:"misaligned"`
	Nothing    int            `json:"nothing_to_judge"`
	Contents   map[string]int `json:"contents"` // images with nothing to judge, by content
	Failed     int            `json:"failed"`
	Orphans    int            `json:"orphans"`
	Originals  int            `json:"originals,omitempty"` // of exchanged disks, kept
	Packed     int            `json:"packed"`              // compressed files with the name of an image; not read
	Heads      int            `json:"heads,omitempty"`     // included above; judged by the heads of packed images
	Accepted   int            `json:"accepted"`            // included above
	Copied     int            `json:"copied"`              // included above; next to their aligned copies
	Formats    map[string]int `json:"formats"`
	Errors     map[string]int `json:"errors"`                    // failed images, by error code
	Skipped    int            `json:"skipped_files"`             // files that are not images
	Temporary  int            `json:"temporary_files,omitempty"` // files of unfinished runs
	Leftover   string         `json:"temporary_file,omitempty"`  // the first temporary file
	Links      int            `json:"links,omitempty"`           // symlinks in folders, not followed
	Unreadable []Unreadable   `json:"unreadable"`                // the first thousand unreadable places
	// UnreadableCount counts all unreadable places.
	UnreadableCount int       `json:"unreadable_count"`
	Changes         *Changes  `json:"changes,omitempty"`
	Fix             FixSum    `json:"fix"`
	Read            int64     `json:"read_bytes"`
	Isolation       Isolation `json:"isolation"`
	FailOn          string    `json:"fail_on"`
	Worst           string    `json:"worst,omitempty"` // the path of the image that decided the exit code
	ExitCode        int       `json:"exit_code"`
	Merged          *Merged   `json:"merged,omitempty"` // of a report of several runs
	worst           *Image    // that decided the exit code, if any
}

// Unreadable is a file or folder that could not be read.
type Unreadable struct {
	Path  string       `json:"path"`
	Error report.Error `json:"error"`
}

// Changes counts the differences from an earlier scan.
type Changes struct {
	Since   string `json:"since,omitempty"` // end of the earlier scan; empty for the first run
	New     int    `json:"new"`
	Changed int    `json:"changed"`
	Same    int    `json:"same"`
	Removed int    `json:"removed"`
}

// FixSum is the work of realigning all images that are off the boundary and not accepted.
type FixSum struct {
	Images  int   `json:"images"`          // that can be realigned
	Refused int   `json:"refused"`         // that cannot be realigned now
	Stays   int   `json:"stays,omitempty"` // that a move would make worse
	Copies  int64 `json:"copies_bytes"`    // to read and to write
	Grows   int64 `json:"grows_bytes"`
}

// Isolation is the achieved isolation of images from the rest of the machine.
type Isolation = report.Isolation

// Add counts an image.
func (s *Summary) Add(i *Image) {
	if c := s.Changes; c != nil {
		of := map[Change]*int{New: &c.New, Changed: &c.Changed, Same: &c.Same, Removed: &c.Removed}
		if n := of[i.Change]; n != nil { // a row from outside may contain any text
			*n++
		}
	}
	if i.State == Gone {
		return
	}
	s.Images++
	s.Read = plus(s.Read, i.Read)
	if i.Format != "" {
		s.Formats[i.Format]++
	}
	if i.Accepted != nil {
		s.Accepted++
	}
	if i.ByHead() {
		s.Heads++
	}
	switch i.State {
	case Failed:
		s.Failed++
		if i.Error != nil {
			s.Errors[i.Error.Code]++
		}
	case Orphan:
		s.Orphans++
	case Original:
		s.Originals++
	case Packed:
		s.Packed++
	default:
		s.addVerdict(i)
	}
	switch {
	case i.Priority == nil || i.Accepted != nil:
		return
	case i.Priority.Class == classStays:
		s.Fix.Stays++
		return
	case i.Copied != "":
		s.Copied++
		return
	}
	if i.hindered() {
		s.Fix.Refused++
		return
	}
	s.Fix.Images++
	s.Fix.Copies, s.Fix.Grows = plus(s.Fix.Copies, i.copies()), plus(s.Fix.Grows, i.Grows())
}

func (s *Summary) addVerdict(i *Image) {
	if i.Content != "" {
		s.Contents[string(i.Content)]++
	}
	*map[align.Verdict]*int{
		align.NothingToJudge: &s.Nothing, align.Aligned: &s.Aligned, align.BelowBoundary: &s.Below,
		align.Misaligned: &s.Misaligned,
	}[i.Verdict]++
}

// unknown returns the number of packed images and images with unknown content.
func (s *Summary) unknown() int { return s.Packed + s.Contents[string(align.UnknownContent)] }

// noneJudged reports whether a complete run judged no image. It returns false if the user allows an empty run or has
// accepted an image, and for a shard if other shards have images.
func (s *Summary) noneJudged() bool {
	return s.Complete && s.Others == 0 && !s.AllowEmpty && s.Accepted == 0 &&
		s.Images == s.Failed+s.Orphans+s.Packed+s.Originals
}

// maxUnreadableKept bounds the listed unreadable places. All are counted.
const maxUnreadableKept = 1000

// Lose records a file or folder that could not be read. Its content is unknown, so it counts as a failed image.
func (s *Summary) Lose(u Unreadable, fail FailOn) {
	s.UnreadableCount++
	if len(s.Unreadable) < maxUnreadableKept {
		s.Unreadable = append(s.Unreadable, u)
	}
	s.Exit(&Image{Path: u.Path, State: Failed}, fail)
}

// unreadable returns the number of unreadable places, including unlisted ones.
func (s *Summary) unreadable() int { return max(s.UnreadableCount, len(s.Unreadable)) }

// NewSummary returns the empty summary of a run.
func NewSummary() *Summary {
	return &Summary{
		Origin: report.Origin{Schema: report.Schema, Command: Command}, Event: "summary",
		Paths: []string{}, Formats: map[string]int{}, Errors: map[string]int{}, Contents: map[string]int{},
		Unreadable: []Unreadable{}, Isolation: Isolation{Layers: []string{}},
	}
}

// ReportCommand is the name of the command that reports on the results of several runs.
const ReportCommand = "report"

// Joined describes the merge of rows of several runs.
type Joined struct {
	By   string `json:"by"` // datastore or file_system
	Rows int    `json:"rows"`
}

// Merged holds the sums specific to a report on several runs.
type Merged struct {
	Scans   int        `json:"scans"`        // that ended with a summary
	Rows    int        `json:"rows"`         // before the rows of each image were joined
	Joined  int        `json:"joined"`       // images with several rows
	Unknown int        `json:"unidentified"` // unidentified rows, which are never joined
	Labels  []LabelSum `json:"labels"`
}

// LabelSum holds the sums of the images with a label. An image in the rows of two hosts counts for both.
type LabelSum struct {
	Key     string `json:"key"`
	Value   string `json:"value"`
	Images  int    `json:"images"`
	Aligned int    `json:"aligned"`
	Below   int    `json:"below_boundary"`
	Off     int    `json:"misaligned"`
	Failed  int    `json:"failed"`
	Copies  int64  `json:"copies_bytes"`
}

// Add counts an image.
func (l *LabelSum) Add(i *Image) {
	one := NewSummary()
	one.Add(i)
	l.Images, l.Aligned, l.Below = l.Images+one.Images, l.Aligned+one.Aligned, l.Below+one.Below
	l.Off, l.Failed, l.Copies = l.Off+one.Misaligned, l.Failed+one.Failed, plus(l.Copies, one.Fix.Copies)
}
