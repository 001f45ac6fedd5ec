package filetest

import (
	"bufio"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/guestfile"
)

// FreeOfSleuthkit returns the free space of a volume from blkls. A unit is a cluster, or a sector of a FAT.
func FreeOfSleuthkit(t testing.TB, img string, unit int64) *guestfile.Free {
	t.Helper()
	var f guestfile.Free
	last, length := int64(-2), int64(0)
	for lines := bufio.NewScanner(strings.NewReader(disktest.Output(t, "blkls", "-l", img))); lines.Scan(); {
		addr, free := strings.CutSuffix(lines.Text(), "|f")
		if !free {
			continue
		}
		n, err := strconv.ParseInt(addr, 10, 64)
		require.NoError(t, err)
		if n != last+1 {
			f.Pieces, length = f.Pieces+1, 0
		}
		last, length = n, length+unit
		f.Bytes, f.Largest = f.Bytes+unit, max(f.Largest, length)
	}
	return &f
}
