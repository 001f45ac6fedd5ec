package layout_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
)

// dosChain is a disk of 255 heads and 63 sectors with a FAT16 in a chain that begins so many sectors behind cylinder 1.
func dosChain(t *testing.T, off int64) *layout.Layout {
	t.Helper()
	const cylinder = 255 * 63
	start := cylinder + off
	f := tableforge.NewMBR(int(start)+17000, tableforge.Slot{Type: 0x05, Start: uint32(start), Sectors: 16500})
	tableforge.PutEBR(f, start, tableforge.Slot{Type: 0x06, Start: 63, Sectors: 16000}, tableforge.Slot{})
	fsforge.PutFAT16(f, start+63, 16000)
	l := read(t, f)
	require.Equal(t, table.Geometry{Heads: 255, Sectors: 63}, l.Geometry)
	return l
}

// A chain off the cylinders is one that DOS never read: that is said when something moves, since the move does not mend
// it.
func TestChainThatDOSCannotRead(t *testing.T) {
	for off, said := range map[int64]bool{0: false, 1: true} {
		l := dosChain(t, off)
		require.Equal(t, said,
			slices.ContainsFunc(l.Issues, func(i ondisk.Issue) bool { return i.Code == "dos-chain" && i.OnMove }))
		record := l.Items()[0]
		require.Equal(t, layout.RecordItem, record.Kind)
		require.Equal(t, !said, record.Step > 0)
	}
}
