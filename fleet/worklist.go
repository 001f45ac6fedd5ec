package fleet

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/trueup/trueup/internal/shell"
)

// Worklist turns the results of scans into jobs.
type Worklist struct {
	Kind      Kind
	Datastore string
	Prefix    string // path of the datastore in the results
	Options   Options
	Match     *shell.Glob // matches paths below the datastore; nil for all
	Below     bool        // include images with the verdict below_boundary

	Refused []Refusal
	Skipped map[string]int // number of rows that are no jobs, by reason
}

// Refusal is an image that cannot be queued.
type Refusal struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
	Remedy string `json:"remedy,omitempty"`
}

// row is the part of a scan's row that jobs need.
type row struct {
	Schema    string `json:"schema"`
	Event     string `json:"event"`
	Path      string `json:"path"`
	PathBytes string `json:"path_base64"`
	State     string `json:"state"`
	Format    string `json:"format"`
	Verdict   string `json:"verdict"`
	Accepted  *any   `json:"accepted"`
	Priority  *struct {
		Command string `json:"command"` // empty if no copy is proposed
	} `json:"priority"`
	Files []struct {
		Name     string `json:"name"`
		Size     int64  `json:"size_bytes"`
		Modified int64  `json:"modified_ns"`
	} `json:"files"`
	Disks []struct {
		Member string `json:"member"`
		Fix    *struct {
			Refusals []struct {
				Subject string `json:"subject"`
				Text    string `json:"text"`
				Remedy  string `json:"remedy"`
			} `json:"refusals"`
		} `json:"fix"`
		Unplanned *struct {
			Message string `json:"message"`
		} `json:"unplanned"`
	} `json:"disks"`
}

// mostRow limits a line, in bytes, like trueup report.
const mostRow = 64 << 20

// schema is the schema of scan results.
const schema = "trueup/1"

// Read reads rows and calls use for each job.
func (w *Worklist) Read(in io.Reader, use func(Job) error) error {
	if w.Skipped == nil {
		w.Skipped = map[string]int{}
	}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, mostRow)
	for n := 1; lines.Scan(); n++ {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		var r row
		if err := json.Unmarshal(line, &r); err != nil {
			return fmt.Errorf("line %d: not a JSON object; name a file written by trueup scan -o json", n)
		}
		if r.Schema != schema || r.Event != "image" && r.Event != "summary" {
			return fmt.Errorf("line %d: not written by trueup scan -o json", n)
		}
		if r.Event == "summary" {
			continue
		}
		j, skip, err := w.job(&r)
		switch {
		case err != nil:
			return fmt.Errorf("line %d: %w", n, err)
		case skip != "":
			w.Skipped[skip]++
		case j != nil:
			if err := use(*j); err != nil {
				return err
			}
		}
	}
	return lines.Err()
}

// job returns the job of a row, or the reason to skip it. It returns neither for a refused image.
func (w *Worklist) job(r *row) (j *Job, skip string, err error) {
	at, outside := w.below(r)
	switch {
	case r.State != "judged":
		return nil, "not judged", nil
	case outside:
		return nil, w.NotBelow(), nil
	case r.Accepted != nil:
		return nil, "accepted", nil
	case r.Verdict != "misaligned" && (r.Verdict != "below_boundary" || !w.Below):
		return nil, "nothing to be done", nil
	case r.Priority != nil && r.Priority.Command == "":
		return nil, "a move would put the data worse", nil
	case w.Match != nil && !w.Match.MatchAny([]string{at}):
		return nil, "does not match", nil
	case len(r.Files) == 0:
		return nil, "", errors.New("a judged image without files")
	}
	for _, d := range r.Disks {
		switch {
		case d.Member != "":
			w.Refused = append(w.Refused, Refusal{at, "jobs cannot realign a package", "run trueup align on it"})
			return nil, "", nil
		case d.Unplanned != nil:
			w.Refused = append(w.Refused, Refusal{at, Plain(d.Unplanned.Message), ""})
			return nil, "", nil
		case d.Fix != nil && len(d.Fix.Refusals) > 0 && !w.Options.AllowUnbootable:
			f := d.Fix.Refusals[0]
			w.Refused = append(w.Refused, Refusal{at, Plain(f.Subject + ": " + f.Text), Plain(f.Remedy)})
			return nil, "", nil
		}
	}
	j = &Job{
		Kind: w.Kind, Datastore: w.Datastore, Path: at, Options: w.Options,
		Identity: IdentityOf(r.Files[0].Size, r.Files[0].Modified),
	}
	for _, f := range r.Files[1:] {
		file := File{f.Name, IdentityOf(f.Size, f.Modified)}
		if !file.strange() && !strings.ContainsRune(f.Name, utf8.RuneError) && len(j.Files) < maxFiles {
			j.Files = append(j.Files, file)
		}
	}
	if err := j.Check(); err != nil {
		w.Refused = append(w.Refused, Refusal{Plain(at), err.Error(), "rename the image"})
		return nil, "", nil //nolint:nilerr // it is in the list
	}
	return j, "", nil
}

// NotBelow returns the reason to skip a row outside the datastore.
func (w *Worklist) NotBelow() string { return "not below " + w.Prefix }

// below returns the path of a row relative to the datastore.
func (w *Worklist) below(r *row) (at string, outside bool) {
	at = r.Path
	if b, err := base64.StdEncoding.DecodeString(r.PathBytes); err == nil && r.PathBytes != "" {
		at = string(b)
	}
	at, err := filepath.Rel(w.Prefix, at)
	return at, err != nil || !filepath.IsLocal(at)
}
