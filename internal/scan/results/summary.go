package results

import (
	"fmt"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/units"
)

// Summary is the sum of a run, and the last line of its JSON.
type Summary struct {
	report.Origin
	Event    string         `json:"event"`    // "summary"
	Complete bool           `json:"complete"` // false: the run was interrupted, and not all images were looked at
	Paths    []string       `json:"paths"`    // as given
	Boundary align.Boundary `json:"boundary_bytes"`
	Storage  string         `json:"storage"`
	Started  string         `json:"started"`  // RFC 3339, UTC
	Finished string         `json:"finished"` // RFC 3339, UTC
	Took     float64        `json:"duration_seconds"`
	Version  string         `json:"version"`                // of trueup
	Shard    string         `json:"shard,omitempty"`        // K/N: the share of the images; empty: all
	Others   int            `json:"other_shards,omitempty"` // images in the other shards

	Labels Labels `json:"labels,omitempty"` // of all rows

	AllowEmpty  bool `json:"-"` // a run that judged no image is right
	Found       int  `json:"-"` // images that the walk came upon; more than Images when the run was interrupted
	Replace     bool `json:"-"` // the script exchanges images for their copies
	ChangedOnly bool `json:"-"` // rows and exit code are only those of new, changed and removed images
	LeftOut     int  `json:"-"` // images of the earlier scan that this one did not reach

	Images     int            `json:"images"` // all below
	Aligned    int            `json:"aligned"`
	Below      int            `json:"below_boundary"`
	Misaligned int            `json:"misaligned"`
	Nothing    int            `json:"nothing_to_judge"`
	Contents   map[string]int `json:"contents"` // those with nothing to judge, by what they hold
	Failed     int            `json:"failed"`
	Orphans    int            `json:"orphans"`
	Originals  int            `json:"originals,omitempty"` // of exchanged disks, kept
	Packed     int            `json:"packed"`              // compressed files with the name of an image; not read
	Heads      int            `json:"heads,omitempty"`     // of those above, judged by the heads of packed images
	Accepted   int            `json:"accepted"`            // of those above
	Copied     int            `json:"copied"`              // of those above, with their aligned copies beside them
	Formats    map[string]int `json:"formats"`
	Errors     map[string]int `json:"errors"`                    // the failed ones, by the code of their error
	Skipped    int            `json:"skipped_files"`             // files that are no images
	Temporary  int            `json:"temporary_files,omitempty"` // files of runs that were not completed
	Leftover   string         `json:"temporary_file,omitempty"`  // the first of these
	Links      int            `json:"links,omitempty"`           // symbolic links in folders, which are not followed
	Unreadable []Unreadable   `json:"unreadable"`                // what could not be read; the first thousand
	// UnreadableCount counts all of them.
	UnreadableCount int       `json:"unreadable_count"`
	Changes         *Changes  `json:"changes,omitempty"`
	Fix             FixSum    `json:"fix"`
	Read            int64     `json:"read_bytes"`
	Isolation       Isolation `json:"isolation"`
	FailOn          string    `json:"fail_on"`
	Worst           string    `json:"worst,omitempty"` // the path of the image that decided the exit code
	ExitCode        int       `json:"exit_code"`
	Merged          *Merged   `json:"merged,omitempty"` // of a report of several runs
	worst           *Image    // that decided the exit code; nil: none has
}

// Unreadable is a place that could not be looked at.
type Unreadable struct {
	Path  string       `json:"path"`
	Error report.Error `json:"error"`
}

// Changes counts the differences from an earlier scan.
type Changes struct {
	Since   string `json:"since,omitempty"` // when that ended; empty for the first run
	New     int    `json:"new"`
	Changed int    `json:"changed"`
	Same    int    `json:"same"`
	Removed int    `json:"removed"`
}

// FixSum is the work of realigning all images that are off the boundary and not accepted.
type FixSum struct {
	Images  int   `json:"images"`          // that can be realigned
	Refused int   `json:"refused"`         // that cannot, as they are
	Stays   int   `json:"stays,omitempty"` // that a move would make worse
	Copies  int64 `json:"copies_bytes"`    // to read and to write
	Grows   int64 `json:"grows_bytes"`
}

// Isolation is how far images were kept away from the rest of the machine.
type Isolation = report.Isolation

// Add counts an image.
func (s *Summary) Add(i *Image) {
	if c := s.Changes; c != nil {
		of := map[Change]*int{New: &c.New, Changed: &c.Changed, Same: &c.Same, Removed: &c.Removed}
		if n := of[i.Change]; n != nil { // a row from outside may have any other
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

// unknown returns how many images are packed, or have unknown content.
func (s *Summary) unknown() int { return s.Packed + s.Contents[string(align.UnknownContent)] }

// noneJudged reports whether a run that is complete has judged no image, and the user has accepted neither that nor an
// image. A shard may have none where others have some.
func (s *Summary) noneJudged() bool {
	return s.Complete && s.Others == 0 && !s.AllowEmpty && s.Accepted == 0 &&
		s.Images == s.Failed+s.Orphans+s.Packed+s.Originals
}

// maxUnreadableKept bounds the unreadable places that are named; all are counted.
const maxUnreadableKept = 1000

// AddUnreadable notes a place that could not be looked at.
func (s *Summary) AddUnreadable(u Unreadable) {
	s.UnreadableCount++
	if len(s.Unreadable) < maxUnreadableKept {
		s.Unreadable = append(s.Unreadable, u)
	}
}

// Lose notes a place that could not be looked at. Its content is unknown, which counts as a failed image.
func (s *Summary) Lose(u Unreadable, fail FailOn) {
	s.AddUnreadable(u)
	s.Exit(&Image{Path: u.Path, State: Failed}, fail)
}

// unreadable returns how many places could not be read, also those that are not named.
func (s *Summary) unreadable() int { return max(s.UnreadableCount, len(s.Unreadable)) }

// NewSummary begins the sum of a run.
func NewSummary() *Summary {
	return &Summary{
		Origin: report.Origin{Schema: report.Schema, Command: Command}, Event: "summary",
		Paths: []string{}, Formats: map[string]int{}, Errors: map[string]int{}, Contents: map[string]int{},
		Unreadable: []Unreadable{}, Isolation: Isolation{Layers: []string{}},
	}
}

// ReportCommand is the name of the command that makes a report of the results of several runs.
const ReportCommand = "report"

// Joined is why rows of several runs are one.
type Joined struct {
	By   string `json:"by"` // datastore or file_system
	Rows int    `json:"rows"`
}

// Merged are the sums of a report that only one of several runs has.
type Merged struct {
	Scans   int        `json:"scans"`        // that ended
	Rows    int        `json:"rows"`         // before those of one image were joined
	Joined  int        `json:"joined"`       // images with several rows
	Unknown int        `json:"unidentified"` // rows that nothing identifies, which are joined with no other
	Labels  []LabelSum `json:"labels"`
}

// LabelSum has the sums of the images with a label. An image that two hosts have seen counts for both.
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

// text returns the sums in words.
func (l *LabelSum) text() string {
	return fmt.Sprintf("%s, %s misaligned, %s below the boundary, %s failed, %s to copy", images(l.Images),
		thousands(int64(l.Off)), thousands(int64(l.Below)), thousands(int64(l.Failed)), units.Format(l.Copies))
}

// text returns where the rows come from.
func (m *Merged) text() string {
	out := "Made of " + units.Counted(m.Scans, "scan") + "."
	if m.Joined > 0 {
		out += " Several rows were one image: " + images(m.Joined) + "."
	}
	if m.Unknown > 0 && m.Scans > 1 {
		out += " Nothing identifies " + counted(m.Unknown, "row", "rows") +
			", so an image that several hosts have seen may count for each."
	}
	return out
}
