package report_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/report"
)

// Names of files stand in the steps of a boot: they must not move the cursor of a terminal. A chain is not longer than
// a screen.
func TestChainInText(t *testing.T) {
	r := &report.Inspect{Disk: report.Disk{Table: report.Table{Scheme: "mbr"}, Boot: report.BootCode{Name: "empty"}}}
	r.Chain = []report.BootLink{{Partition: 1, Text: "starts \\EFI\\\x1b]0;title\a.efi"}}
	for i := range 40 {
		r.Chain = append(r.Chain, report.BootLink{Text: fmt.Sprintf("step %d", i)})
	}
	var out bytes.Buffer
	(&report.Text{W: &out}).Inspect(r)
	require.NotContains(t, out.String(), "\x1b")
	require.NotContains(t, out.String(), "\a")
	require.Contains(t, out.String(), "\n  Boot path  starts \\EFI\\\\u001b]0;title")
	require.Contains(t, out.String(), "\n             step 30\n             ... and 9 more\n")
	require.Equal(t, 1, strings.Count(out.String(), "Boot path"))
}

// A step that needs more than one line must not look like two.
func TestLongStepsInText(t *testing.T) {
	r := &report.Inspect{Disk: report.Disk{Table: report.Table{Scheme: "mbr"}, Boot: report.BootCode{Name: "empty"}}}
	r.Chain = []report.BootLink{{Text: strings.Repeat("word ", 12) + "end"}, {Text: "next"}}
	var out bytes.Buffer
	(&report.Text{W: &out, Width: 60}).Inspect(r)
	require.Regexp(t, `\n  Boot path  (word ){8}word\n {15}word word word end\n {13}next\n`, out.String())
}

// A piece that moves can hold several partitions of the list, and bytes beside them.
func TestGapMoves(t *testing.T) {
	p := &plan.Plan{
		OldSize: 1000, Size: 1100, SectorSize: 512,
		Moves: []plan.Move{{Partition: 1, From: 100, To: 110, Len: 50}, {Partition: 2, From: 170, To: 180, Len: 30}},
		Pieces: []disk.Shift{
			{From: 0, To: 0, Len: 90},
			{From: 95, To: 105, Len: 120},
			{From: 400, To: 400, Len: 10},
			{From: 900, To: 1000, Len: 100},
		},
	}
	require.Equal(t, []report.GapMove{
		{From: 95, To: 105, Size: 5},
		{From: 150, To: 160, Size: 20},
		{From: 200, To: 210, Size: 15},
		{From: 900, To: 1000, Size: 100},
	}, report.NewChanges(p).GapMoves)
	p.Moves, p.Pieces = nil, []disk.Shift{{Len: 1000}}
	require.Empty(t, report.NewChanges(p).GapMoves)
}
