package fleet

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// State is the state of a job.
type State string

// States.
const (
	Queued    State = "queued"
	Running   State = "running"
	Done      State = "done"
	Refused   State = "refused" // trueup refused it, and would again
	Cancelled State = "cancelled"
	Dead      State = "dead" // all tries failed
)

// States lists all states in display order.
var States = []State{Running, Queued, Done, Refused, Cancelled, Dead}

// Ended reports whether the state is final.
func (s State) Ended() bool { return s != Queued && s != Running }

// Record is the known state of a job.
type Record struct {
	Job
	State    State     `json:"state"`
	Round    int       `json:"round,omitempty"`    // number of times it was queued again
	Seq      uint64    `json:"sequence,omitempty"` // of its message; 0 before the first delivery
	Delivery int       `json:"delivery,omitempty"` // number of the delivery, from 1
	Worker   string    `json:"worker,omitempty"`   // of the last delivery
	Begun    bool      `json:"begun,omitempty"`    // this round has started a run
	Proved   bool      `json:"proved,omitempty"`   // the result of this delivery may get its final name
	Named    string    `json:"named,omitempty"`    // identity of the last copy that might have its final name
	Busy     int       `json:"busy,omitempty"`     // consecutive tries that found its files in use
	Created  time.Time `json:"created"`
	Updated  time.Time `json:"updated"`
	Progress
	Code    string `json:"code,omitempty"` // error code, from the JSON of trueup
	Message string `json:"message,omitempty"`
	Log     string `json:"log,omitempty"` // last lines of the failed run
	// Result is the output of trueup, if it is small. Otherwise ResultFile is the name of a file in the worker's
	// folder.
	Result     json.RawMessage `json:"result,omitempty"`
	ResultFile string          `json:"result_file,omitempty"`
}

// Progress is the progress of a run, as reported by trueup.
type Progress struct {
	Phase   string   `json:"phase,omitempty"`
	Done    int64    `json:"done_bytes,omitempty"`
	Total   int64    `json:"total_bytes,omitempty"`
	Images  int64    `json:"done_images,omitempty"`
	Found   int64    `json:"found_images,omitempty"`
	Seconds *float64 `json:"eta_seconds,omitempty"`
}

// Advanced reports whether progress was made since another report.
func (p Progress) Advanced(since Progress) bool {
	return p.Phase != since.Phase || p.Done != since.Done || p.Images != since.Images || p.Found != since.Found
}

// Percent returns the progress of the current phase.
func (p Progress) Percent() int64 {
	if p.Found > 0 {
		return 100 * p.Images / p.Found
	}
	return int64(100 * float64(p.Done) / float64(max(p.Total, 1)))
}

// Copied returns the number of bytes copied by a finished job, otherwise 0.
func (r *Record) Copied() int64 {
	var result struct {
		Copied int64 `json:"copied_bytes"`
	}
	if r.State != Done || json.Unmarshal(r.Result, &result) != nil {
		return 0
	}
	return max(result.Copied, 0)
}

// codes matches error codes of trueup.
var codes = regexp.MustCompile(`^[a-z0-9_-]{0,64}$`)

// IsCode reports whether a text is an error code, or empty.
func IsCode(s string) bool { return codes.MatchString(s) }

// ParseRecord decodes a record.
func ParseRecord(b []byte) (*Record, error) {
	var r Record
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, fmt.Errorf("record of a job: %w", err)
	}
	switch err := r.Check(); {
	case err != nil:
		return nil, err
	case !slices.Contains(States, r.State):
		return nil, fmt.Errorf("record of a job: unknown state %.40q", r.State)
	case !IsCode(r.Code):
		return nil, fmt.Errorf("record of a job: invalid code %.80q", r.Code)
	case r.ResultFile != "" && r.ResultFile != r.ResultName():
		return nil, fmt.Errorf("record of a job: its result is in %.80q, not in %s", r.ResultFile, r.ResultName())
	}
	return &r, nil
}

// ResultName returns the name of the result file of the job.
func (r *Record) ResultName() string {
	if r.Kind == Scan {
		return r.Key() + ".ndjson"
	}
	return r.Key() + ".json"
}

// Plain makes text from an image or another program a single line without control characters.
func Plain(s string) string {
	return strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f || c >= 0x80 && c < 0xa0 || c >= 0x2028 && c <= 0x202e || c >= 0x2066 && c <= 0x2069 {
			return '?'
		}
		return c
	}, s)
}
