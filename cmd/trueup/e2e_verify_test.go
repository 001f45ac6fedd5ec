package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// checkVerify requires that verify accepts the result, and notices one wrong byte wherever it is.
func (c *alignCase) checkVerify(t *testing.T) {
	t.Helper()
	answer := trueupJSON[jsonVerify](t, 0, "verify", c.source, c.dest)
	require.True(t, answer.Equal)
	require.Empty(t, answer.Differences)

	last := c.placement[len(c.placement)-1]
	places := map[string]int64{
		"in the gap behind the mbr":        17*sectorSize + 5,
		"in a partition":                   last.ToBytes + last.SizeBytes/2 + 3,
		"in the tail behind the last":      c.disk.wantSectors*sectorSize - 7,
		"in the boot code":                 0x100,
		"in a boot sector":                 c.placement[0].ToBytes + 0x1C,
		"in the entry of a partition":      mbrEntryAt + 8,
		"in front of the first that moved": c.placement[0].ToBytes - 1,
	}
	for name, off := range places {
		t.Run("one wrong byte "+name, func(t *testing.T) {
			broken := filepath.Join(t.TempDir(), filepath.Base(c.dest)) // the descriptor holds the names
			for _, file := range c.format.files(c.dest) {
				disktest.Run(t, "cp", "--sparse=always", file, filepath.Dir(broken))
			}

			// Where the byte is stored: nowhere when it lies in a hole of a sparse VMDK.
			files := c.format.files(broken)
			file, at := files[len(files)-1], off
			if c.format == formatSparse {
				var extents []struct {
					Start  int64
					Length int64
					Offset *int64
				}
				out := disktest.Output(t, "qemu-img", "map", "--output=json", "-f", "vmdk", broken)
				require.NoError(t, json.Unmarshal([]byte(out), &extents))
				file = ""
				for _, e := range extents {
					if e.Start <= off && off < e.Start+e.Length && e.Offset != nil {
						file, at = broken, *e.Offset+off-e.Start
					}
				}
			}
			if file != "" {
				old := readAt(t, file, at, 1)
				disktest.WriteAt(t, file, at, []byte{old[0] ^ 0xFF})
			} else {
				// QEMU allocates the grain. A sector at a time, for it rounds other writes itself.
				write := fmt.Sprintf("write -P 0xA5 %d %d", off/sectorSize*sectorSize, sectorSize)
				disktest.Run(t, "qemu-io", "-f", "vmdk", "-c", write, broken)
			}

			answer := trueupJSON[jsonVerify](t, 5, "verify", c.source, broken)
			require.False(t, answer.Equal)
			i := slices.IndexFunc(answer.Differences, func(d jsonDifference) bool {
				return d.OffsetBytes <= off && off < d.OffsetBytes+d.LengthBytes
			})
			require.GreaterOrEqual(t, i, 0, "the wrong byte is not named: 0x%x in %+v", off, answer.Differences)
			require.NotEmpty(t, answer.Differences[i].Text)
		})
	}
}
