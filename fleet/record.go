package fleet

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// State is what became of a job.
type State string

// States.
const (
	Queued    State = "queued"
	Running   State = "running"
	Done      State = "done"
	Refused   State = "refused" // trueup has refused it, and will again
	Cancelled State = "cancelled"
	Dead      State = "dead" // it failed as often as it was delivered
)

// States lists all states, in the order of reports.
var States = []State{Running, Queued, Done, Refused, Cancelled, Dead}

// Ended reports whether nothing more is done for the job.
func (s State) Ended() bool { return s != Queued && s != Running }

// Record is what is known of a job.
type Record struct {
	Job
	State    State     `json:"state"`
	Round    int       `json:"round,omitempty"`    // how often it was queued anew
	Seq      uint64    `json:"sequence,omitempty"` // of its message; 0: none was delivered
	Delivery int       `json:"delivery,omitempty"` // of the message, from 1
	Worker   string    `json:"worker,omitempty"`   // that has, or had, the last delivery
	Begun    bool      `json:"begun,omitempty"`    // a run was started in this round
	Proved   bool      `json:"proved,omitempty"`   // the result of this delivery may get its name
	Named    string    `json:"named,omitempty"`    // identity of the last copy that might get its name
	Busy     int       `json:"busy,omitempty"`     // how often in a row its files were in use
	Created  time.Time `json:"created"`
	Updated  time.Time `json:"updated"`
	Progress
	Code    string `json:"code,omitempty"` // of the error, as JSON of trueup has it
	Message string `json:"message,omitempty"`
	Log     string `json:"log,omitempty"` // the last lines of the run that failed
	// Result is what trueup has printed, if it is small. ResultFile names a large one, in the folder of the worker.
	Result     json.RawMessage `json:"result,omitempty"`
	ResultFile string          `json:"result_file,omitempty"`
}

// Progress is how far the run of a job is, as trueup says it.
type Progress struct {
	Phase   string   `json:"phase,omitempty"`
	Done    int64    `json:"done_bytes,omitempty"`
	Total   int64    `json:"total_bytes,omitempty"`
	Images  int64    `json:"done_images,omitempty"`
	Found   int64    `json:"found_images,omitempty"`
	Seconds *float64 `json:"eta_seconds,omitempty"`
}

// Advanced reports whether work was done between two reports.
func (p Progress) Advanced(since Progress) bool {
	return p.Phase != since.Phase || p.Done != since.Done || p.Images != since.Images || p.Found != since.Found
}

// Percent returns how much of the phase is done.
func (p Progress) Percent() int64 {
	if p.Found > 0 {
		return 100 * p.Images / p.Found
	}
	return int64(100 * float64(p.Done) / float64(max(p.Total, 1)))
}

// Copied returns how many bytes of its disk the job has copied, 0 unless it is done.
func (r *Record) Copied() int64 {
	var result struct {
		Copied int64 `json:"copied_bytes"`
	}
	if r.State != Done || json.Unmarshal(r.Result, &result) != nil {
		return 0
	}
	return max(result.Copied, 0)
}

// codes are those of errors of trueup.
var codes = regexp.MustCompile(`^[a-z0-9_-]{0,64}$`)

// IsCode reports whether a text is the code of an error, or empty.
func IsCode(s string) bool { return codes.MatchString(s) }

// ParseRecord reads a record.
func ParseRecord(b []byte) (*Record, error) {
	var r Record
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, fmt.Errorf("record of a job: %w", err)
	}
	switch err := r.Check(); {
	case err != nil:
		return nil, err
	case !slices.Contains(States, r.State):
		return nil, fmt.Errorf("record of a job in state %.40q", r.State)
	case !IsCode(r.Code):
		return nil, fmt.Errorf("record of a job with code %.80q", r.Code)
	case r.ResultFile != "" && r.ResultFile != r.ResultName():
		return nil, fmt.Errorf("record of a job with its result in %.80q, not %s", r.ResultFile, r.ResultName())
	}
	return &r, nil
}

// ResultName returns the name of a file with the result of the job.
func (r *Record) ResultName() string {
	if r.Kind == Scan {
		return r.Key() + ".ndjson"
	}
	return r.Key() + ".json"
}

// Plain makes a text of an image or another program one line that a terminal shows as it is.
func Plain(s string) string {
	return strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f || c >= 0x80 && c < 0xa0 || c >= 0x2028 && c <= 0x202e || c >= 0x2066 && c <= 0x2069 {
			return '?'
		}
		return c
	}, s)
}
