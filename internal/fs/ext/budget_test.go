package ext

import (
	"testing"

	"github.com/trueup/trueup/internal/disktest/filetest"
	"github.com/trueup/trueup/internal/guestfile"
)

// Sorting the runs of a file takes longer than reading them, and a volume can have many such files.
func TestFilesOfManyRunsCost(t *testing.T) {
	m := &blockMap{fs: &fileSystem{meter: guestfile.NewBudget().Of(nil)}, runs: filetest.ManyRuns()}
	filetest.EndsWithin(t, 100, m.disjoint)
}
