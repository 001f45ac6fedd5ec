package plan_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
)

// A checksum covers two positions. It is made once, of both as they become, and again when the disk grows.
func TestChecksumOfTwoPositions(t *testing.T) {
	d := disktest.Memory(tableforge.NewMBR(20_000, tableforge.Slot{Type: 0x83, Start: 63, Sectors: 2000}))
	l := read(t, d)
	const at = 70 * sector
	made := 0
	seal := &boot.Seal{
		Name: "a log", At: []disk.Range{{Off: at, Len: 3}}, Raw: []byte{1, 2, 3},
		Make: func(b []byte) { b[2], made = b[0]+b[1], made+1 },
	}
	for i, becomes := range []byte{10, 20} {
		l.Boot.Refs = append(l.Boot.Refs, boot.Ref{
			Kind: "position", Partition: 1, File: "file", At: []disk.Range{{Off: at + int64(i), Len: 1}},
			Raw: seal.Raw[i:][:1], Points: 63 * sector, Target: 1, Seals: []*boot.Seal{seal},
			Encode: func([]byte, int64) ([]byte, error) { return []byte{becomes}, nil },
		})
	}
	p, err := plan.New(l, align.Goal{Must: align.DefaultBoundary, Want: align.Kept})
	require.NoError(t, err)
	require.Equal(t, 1, made) // it can be of many MiB, and thousands of references can share it
	for range 2 {
		sealed := 0
		for _, x := range p.Patches {
			if x.Reason == "checksum of a log" {
				sealed++
			}
		}
		require.Equal(t, 1, sealed)
		b, err := ondisk.Bytes(p.View(d), at+p.Moves[0].Delta(), 3)
		require.NoError(t, err)
		require.True(t, bytes.Equal([]byte{10, 20, 30}, b), "%v", b)
		p.Grow(l, p.Size+mib)
	}
}
