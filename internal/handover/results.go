package handover

import (
	"math"

	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/units"
)

// Result is the result of a handover.
type Result struct {
	report.Head
	Source string `json:"source"`
	Dest   string `json:"dest"`
	report.Changes
	Proof       string              `json:"proof"` // one of the constants below
	Guest       *report.GuestWrites `json:"guest"` // writes to DEST
	Downtime    float64             `json:"downtime_seconds"`
	Differences []report.Difference `json:"differences"`
	ExitCode    int                 `json:"exit_code"`

	finish string // command line
	disk   *report.VerifiedDisk
}

// Proofs of a copy.
const (
	full    = "full"
	partial = "partial" // the writes of the guest are unknown
	differs = "differs"
)

// result returns the result of the comparison of DEST.
func (h *Handover) result(v *report.Verify) *Result {
	d := v.Disks[0]
	r := &Result{
		Source: h.Source, Dest: h.Dest, Changes: d.Changes, Proof: differs, Guest: d.Guest, Differences: d.Differences,
		Downtime: math.Round(h.state.Downtime*100) / 100, ExitCode: v.ExitCode, disk: d,
	}
	switch {
	case v.Equal:
		r.Proof, r.finish = full, h.held.Work.Command("finish")
	case len(d.Differences) == 0:
		r.Proof, r.finish, r.ExitCode = partial, h.held.Work.Command("finish", "--force"), 0
	}
	return r
}

// Text prints the result.
func (r *Result) Text(t *report.Text) {
	t.Verify(&report.Verify{Disks: []*report.VerifiedDisk{r.disk}})
	t.Para(2, "The guest could start %.1f s after the command.", r.Downtime)
	if r.Proof == partial {
		t.Para(2, "Warning: partial proof: QEMU was killed, and %s cannot be attributed to the guest.",
			units.Format(r.Guest.Differ))
	}
	if r.finish != "" {
		t.Para(2, "%s is kept, and out of date from now on; when the guest has proved itself: %s",
			report.Safe(r.Source), report.Safe(r.finish))
	}
}
