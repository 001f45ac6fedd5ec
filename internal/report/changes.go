package report

import (
	"fmt"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/trueup/trueup/internal/units"
)

// Plan prints a dry run: moves, changed bytes, growth, and the inspection of the result.
func (t *Text) Plan(r *Plan) {
	t.image(r.Image)
	t.printf("\n")
	t.changes(r.Changes)
	t.findings(r.Findings)
	if r.Result != nil && r.Moved > 0 {
		t.printf("\nThe result would be, as read from the planned bytes:\n")
		t.disk(*r.Result)
	}
	t.printf("\n")
	switch {
	case len(r.Refusals) > 0:
		t.printf("%s\n", t.paint(text.FgRed, "Refused, nothing was written:"))
		for _, f := range r.Refusals {
			t.printf("  %s: %s\n", f.Subject, SafeMessage(f.Text))
			if f.Remedy != "" {
				t.printf("      %s\n", SafeMessage(f.Remedy))
			}
		}
	case r.Error != nil:
		t.printf("%s %s\n", t.paint(text.FgRed, "A copy would fail:"), SafeMessage(r.Error.Message))
	default:
		t.printf("This was a dry run, nothing was written. To do it:   trueup align %s %s\n",
			shellQuote(r.Image.Path), shellQuote(alignedName(r.Image.Path)))
	}
}

func (t *Text) changes(c Changes) {
	if c.Moved == 0 {
		t.printf("Nothing has to move.\n")
		return
	}
	w := newTable()
	w.AppendHeader(table.Row{"partition", "from byte", "to byte", "shift", "size"})
	for _, m := range c.Moves {
		w.AppendRow(table.Row{m.Partition, m.From, m.To, units.Format(m.Delta), units.Format(m.Size)})
	}
	t.printf("%s\n", render(w))
	if c.NewSize > c.OldSize {
		t.printf("The disk grows by %s, from %d to %d bytes.\n", units.Format(c.NewSize-c.OldSize), c.OldSize, c.NewSize)
	} else {
		t.printf("The disk keeps its size of %d bytes.\n", c.OldSize)
	}
	t.patches(c.Patches)
}

func (t *Text) patches(ps []Patch) {
	if len(ps) == 0 {
		return
	}
	t.printf("Bytes that change, at their place in the result:\n\n")
	w := newTable()
	w.AppendHeader(table.Row{"offset", "old", "new", "reason"})
	for _, p := range ps {
		w.AppendRow(table.Row{fmt.Sprintf("%#x", p.Off), cut(p.Old), cut(p.New), SafeMessage(p.Reason)})
	}
	t.printf("%s", render(w))
}

// cut keeps long runs of hexadecimal digits on one line; JSON has them whole.
func cut(s string) string {
	if len(s) > 32 {
		return s[:32] + "…"
	}
	return s
}

// Align prints what a copy has become.
func (t *Text) Align(r *Align) {
	t.findings(r.Findings)
	if len(r.Findings) > 0 {
		t.printf("\n")
	}
	if !r.Written {
		t.printf("%s is aligned already; nothing was written.\n", Safe(r.Source))
		return
	}
	name := r.Format
	if r.Subformat != "" {
		name += " " + r.Subformat
	}
	switch r.Moved {
	case 0:
		t.printf("%s: a copy with nothing moved (%s)", Safe(r.Dest), name)
	case 1:
		t.printf("%s: 1 partition moved (%s)", Safe(r.Dest), name)
	default:
		t.printf("%s: %d partitions moved (%s)", Safe(r.Dest), r.Moved, name)
	}
	how := map[string]string{"full": "every byte compared", "structure": "structures compared, --verify full compares every byte"}
	t.printf(", verified: %s.\n", how[r.Verified])
	for _, m := range r.Moves {
		t.printf("  partition %d: byte %d -> %d\n", m.Partition, m.From, m.To)
	}
	if r.NewSize > r.OldSize {
		t.printf("  the disk grew by %s\n", units.Format(r.NewSize-r.OldSize))
	}
	if t.Verbose {
		t.patches(r.Patches)
	}
}

// Verify prints whether a copy is right.
func (t *Text) Verify(r *Verify) {
	if r.Equal {
		t.printf("%s is %s with %d of its partitions moved: every byte is equal but the %d listed changes.\n",
			Safe(r.Dest), Safe(r.Source), r.Moved, len(r.Patches))
		if t.Verbose {
			t.patches(r.Patches)
		}
		return
	}
	t.printf("%s: %s differs from what %s would become:\n", t.paint(text.FgRed, "Different"), Safe(r.Dest), Safe(r.Source))
	for _, d := range r.Differences {
		if d.Len == 0 {
			t.printf("  %s\n", SafeMessage(d.Text))
			continue
		}
		t.printf("  bytes %d to %d: %s\n", d.Off, d.Off+d.Len-1, SafeMessage(d.Text))
	}
}
