package report

import (
	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/journal"
)

// Unfinished is what undo, resume or finish has done with what a run had left open.
type Unfinished struct {
	Head
	Path     string          `json:"path"` // as the user wrote it
	Kind     string          `json:"kind,omitempty"`
	Text     string          `json:"text"`
	Files    []string        `json:"files"` // of the disk at the path
	Removed  []string        `json:"removed"`
	Findings []align.Finding `json:"findings"`
	ExitCode int             `json:"exit_code"`
}

// NewUnfinished reports what a command has done.
func NewUnfinished(h Head, w journal.Work, d journal.Done) *Unfinished {
	return &Unfinished{
		Head: h, Path: w.Path, Kind: w.Kind, Text: d.Text, Files: orEmptyNames(d.Files),
		Removed: orEmptyNames(d.Removed), Findings: findingsOf("disk", d.Notes),
	}
}

func orEmptyNames(names []string) []string { return append([]string{}, names...) }

// Unfinished prints what a command has done.
func (t *Text) Unfinished(r *Unfinished) {
	t.notes(r.Findings)
	t.para(2, "%s: %s.", Safe(r.Path), SafeMessage(r.Text))
	for _, name := range r.Removed {
		t.printf("  removed: %s\n", Safe(name))
	}
}
