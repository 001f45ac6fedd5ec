package results

import (
	"io"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/report"
)

// row is an image with one disk that is off or on the boundary.
func row(path string, v align.Verdict, role align.Role, cost float64, refused bool) *Image {
	i := NewImage(path)
	i.State = Judged
	d := Disk{Disk: report.Disk{Verdict: v, Boundary: align.DefaultBoundary}, Depth: Survey}
	if v != align.Aligned {
		d.Depth, d.Advice, d.Fix, d.Cost = Full, &align.Advice{Role: role}, &Fix{}, &Cost{More: cost}
		d.Guest = guestOf(role)
		if refused {
			d.Fix.Refusals = []align.Finding{{Code: "x", Text: "for a reason"}}
		}
	}
	i.Disks = append(i.Disks, d)
	i.Assess(nil)
	return i
}

// The worklist is ordered by misalignment, use, feasibility and cost.
func TestRank(t *testing.T) {
	failed := NewImage("failed")
	failed.Fail("format", "broken")
	images := []*Image{
		row("fine", align.Aligned, "", 0, false),
		row("below data", align.BelowBoundary, align.DataDisk, 5, false),
		row("off boot refused", align.Misaligned, align.BootDisk, 100, true),
		row("off boot", align.Misaligned, align.BootDisk, 100, false),
		row("off unsure", align.Misaligned, align.UnknownRole, 100, false),
		row("off data refused", align.Misaligned, align.DataDisk, 100, true),
		row("off data cheap", align.Misaligned, align.DataDisk, 6, false),
		row("off data", align.Misaligned, align.DataDisk, 100, false),
		failed,
	}
	accepted := row("accepted", align.Misaligned, align.DataDisk, 100, false)
	accepted.Accepted = &Accepted{Reason: "retired"}
	stays := row("stays", align.Misaligned, align.DataDisk, 100, false)
	stays.Disks[0].Advice.Gain = align.Loss
	stays.Assess(nil)
	images = append(images, accepted, stays)
	Rank(images)
	require.Equal(t, &Priority{Class: 13, Reason: stays.Priority.Reason}, stays.Priority)
	var got []string
	for n, i := range images {
		got = append(got, i.Path)
		if i.Priority != nil && i.Accepted == nil && i != stays {
			require.Equal(t, n+1, i.Priority.Rank, i.Path) // the failed one comes after all of them
		}
	}
	require.Equal(t, []string{
		"off data", "off data cheap", "off data refused", "off unsure", "off boot", "off boot refused", "below data",
		"failed", "stays", "fine", "accepted",
	}, got)
	require.Equal(t, "trueup align 'off data' 'off data-aligned'", images[0].Priority.Command)
	require.Contains(t, images[2].Priority.Reason, "a copy is refused: for a reason")
}

func TestFailOn(t *testing.T) {
	failed := NewImage("failed")
	failed.Fail("format", "broken")
	below := row("below", align.BelowBoundary, align.DataDisk, 0, false)
	below.Disks[0].Partitions = []report.Partition{{Verdict: align.BelowBoundary, Start: 8192}}
	on64 := row("64K", align.Aligned, "", 0, false)
	on64.Disks[0].Partitions = []report.Partition{{Verdict: align.Aligned, Start: 65536}}
	off := row("off", align.Misaligned, align.DataDisk, 0, false)
	for level, want := range map[FailOn][4]int{
		Never: {0, 0, 0, 0}, Errors: {1, 0, 0, 0}, Off4K: {1, 3, 0, 0},
		Default: {1, 3, 2, 0},
	} {
		for n, i := range []*Image{failed, off, below, on64} {
			require.Equal(t, want[n], level.Code(i), "%q of %s", level, i.Path)
			i.Accepted = &Accepted{Reason: "known"}
			require.Zero(t, level.Code(i))
			i.Accepted = nil
		}
	}
	require.True(t, Worse(1, 3) && Worse(3, 2) && Worse(2, 0) && !Worse(3, 1) && !Worse(0, 0))
}

func TestSummaryCounts(t *testing.T) {
	s := NewSummary()
	s.Changes = &Changes{}
	i := row("off", align.Misaligned, align.DataDisk, 0, false)
	i.Stored, i.Change, i.Format = 100, New, "vmdk"
	i.Disks[0].Fix.NewSize = 7
	s.Add(i)
	s.Add(row("refused", align.Misaligned, align.BootDisk, 0, true))
	s.Add(row("fine", align.Aligned, "", 0, false))
	gone := NewImage("gone")
	gone.State, gone.Change = Gone, Removed
	s.Add(gone)
	require.Equal(t, 3, s.Images)
	require.Equal(t, 2, s.Misaligned)
	require.Equal(t, FixSum{Images: 1, Refused: 1, Copies: 100, Grows: 7}, s.Fix)
	require.Equal(t, Changes{New: 1, Removed: 1}, *s.Changes)
	require.Equal(t, map[string]int{"vmdk": 1}, s.Formats)
}

// An image with a copy needs none.
func TestCopied(t *testing.T) {
	off := func(path string) *Image { return row(path, align.Misaligned, align.DataDisk, 100, false) }
	images := []*Image{
		off("a.raw"), off("b.raw"), row("refused.raw", align.Misaligned, align.DataDisk, 100, true),
		row("c.raw", align.Aligned, align.DataDisk, 0, false),
	}
	s := NewSummary()
	images[0].Copied = images[0].CopyName()
	for n, i := range images {
		require.Equal(t, []string{"a-aligned.raw", "b-aligned.raw", "", ""}[n], i.CopyName())
		s.Add(i)
	}
	require.Equal(t, 1, s.Copied)
	require.Equal(t, 1, s.Fix.Images)
	Rank(images)
	copied := images[slices.IndexFunc(images, func(i *Image) bool { return i.Path == "a.raw" })]
	require.Zero(t, copied.Priority.Rank)
	require.Empty(t, copied.command())
	require.Equal(t, "copied", fixCell(copied))
}

// A row of a version that did not read the state of a machine is not reused.
func TestRowWithoutTheStateOfItsMachine(t *testing.T) {
	i := row("old", align.Misaligned, align.DataDisk, 100, false).withPartitions("raw", 63)
	complete := func(d *Disk) {
		d.Findings, d.Chain, d.Fix.Moves, d.Fix.Refusals = []align.Finding{}, []boot.Link{}, []report.Move{},
			[]align.Finding{}
		d.Advice.Unmended = []string{}
	}
	complete(&i.Disks[0])
	require.NoError(t, i.Check())
	for _, bad := range []*report.Guest{
		nil,
		{},
		{State: "asleep", Signs: []boot.Sign{}},
		{State: boot.Running, Signs: []boot.Sign{{}}},
	} {
		i.Disks[0].Guest = bad
		require.ErrorContains(t, i.Check(), "state")
	}
	i.Disks[0].Guest, i.Disks[0].Depth = nil, Survey
	require.NoError(t, i.Check(), "nothing was to be done")
}

// A row of a report is read from its file again for each pass over Images.
func TestWorkForARow(t *testing.T) {
	_, images := smallLibrary()
	images = slices.Repeat(images, 20)
	s := sampleSummary(images)
	for name, most := range map[string]struct{ passes, allocations int }{
		"text": {2, 35}, "json": {0, 0}, "csv": {1, 65}, "html": {2, 420}, "junit": {2, 55}, "prometheus": {0, 10},
	} {
		f, passes := Formats[slices.Index(FormatNames(), name)], 0
		r := &Report{
			Summary: s, Rows: len(images), Text: &report.Text{},
			Images: func(yield func(*Image) bool) { passes++; slices.Values(images)(yield) },
		}
		require.NoError(t, f.Write(io.Discard, r))
		require.Equal(t, most.passes, passes, name)
		allocations := testing.AllocsPerRun(1, func() { require.NoError(t, f.Write(io.Discard, r)) })
		require.LessOrEqual(t, int(allocations)/len(images), most.allocations, "allocations of %s for a row", name)
	}
}
