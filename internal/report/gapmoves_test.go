package report_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/report"
)

// What moves is a partition of the list, or beside them: pieces can hold several of both.
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
