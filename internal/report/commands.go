package report

import (
	"strings"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/shell"
	"github.com/trueup/trueup/internal/units"
)

// Serve is where a disk is served, and what was made of it.
type Serve struct {
	Head
	Image Image `json:"image"`
	Changes
	AsIs     bool            `json:"as_is"` // the disk of the image, with nothing moved
	URI      string          `json:"uri"`
	Findings []align.Finding `json:"findings"`
}

// NewServe reports a plan whose disk is served.
func NewServe(h Head, s *realign.Source, p *realign.Plan, uri string) *Serve {
	return &Serve{
		Head: h, Image: NewImage(s.Image), Changes: NewChanges(p), AsIs: p.Converts, URI: uri,
		Findings: orEmpty(p.Notes),
	}
}

// Serve prints the address of a served disk, and how to read it.
func (t *Text) Serve(r *Serve) {
	t.notes(r.Findings)
	what := movedText(r.Moved)
	if r.AsIs {
		what = "as it is"
	}
	t.Para(2, "%s: %s, %s, served read-only until Ctrl-C.", Safe(r.Image.Path), what, units.Format(r.NewSize))
	t.freeSpace(r.Changes)
	uri := shell.Quote(r.URI)
	t.printf("  %s\n\nTo read it:\n", Safe(r.URI))
	for _, line := range []string{
		"qemu-img convert -f raw -O qcow2 " + uri + " copy.qcow2",
		"nbdcopy " + uri + " copy.img",
		"guestfish --ro --format=raw -a " + shell.Quote(strings.Replace(r.URI, "nbd+unix:///", "nbd://", 1)),
		// It opens files only. The parent of this one is the served disk.
		"qemu-img create -f qcow2 -F raw -b " + uri + " v2v.qcow2 && virt-v2v -i disk v2v.qcow2 -o local -os .",
	} {
		t.printf("  %s\n", line)
	}
}

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
		Head: h, Path: w.Path, Kind: w.Kind, Text: d.Text, Files: orEmpty(d.Files),
		Removed: orEmpty(d.Removed), Findings: findingsOf("disk", d.Notes),
	}
}

// Unfinished prints what a command has done.
func (t *Text) Unfinished(r *Unfinished) {
	t.notes(r.Findings)
	t.Para(2, "%s: %s.", Safe(r.Path), SafeMessage(r.Text))
	for _, name := range r.Removed {
		t.printf("  removed: %s\n", Safe(name))
	}
}
