package table_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/disktest/hostile"
	"github.com/trueup/trueup/internal/table"
)

// requireSgdisk has sgdisk find no fault in a GPT.
func requireSgdisk(t *testing.T, f forge.Bytes) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk.raw")
	f.Write(t, path)
	require.Contains(t, disktest.Run(t, "sgdisk", "-v", path), "No problems found")
}

// A GPT of which one copy has a broken header becomes the sound one.
func TestMendingOfBrokenHeaders(t *testing.T) {
	want := tableforge.NewGPT(512, hostile.Sectors, 128, tableforge.GPTEntry{First: 63, Last: 1062, Name: "data"})
	requireSgdisk(t, want)
	for _, r := range hostile.OneGoodGPT() {
		t.Run(r.Name, func(t *testing.T) {
			f := forge.Bytes(disktest.ReadFile(t, r.Write(t, t.TempDir())))
			l := readTable(t, f)
			require.True(t, l.Damaged())
			disktest.EqualBytes(t, want, patched(t, f, l.Relocate(table.Places{Mend: true}, table.Geometry{})))
		})
	}
}

// A GPT that looks odd and is allowed moves, and sgdisk finds no fault in it.
func TestOddGPTsMove(t *testing.T) {
	for _, r := range hostile.OddGPTs() {
		t.Run(r.Name, func(t *testing.T) {
			f := forge.Bytes(disktest.ReadFile(t, r.Write(t, t.TempDir())))
			l := readTable(t, f)
			require.False(t, l.Damaged())
			last := l.Partitions[len(l.Partitions)-1]
			moved := patched(t, f, l.Relocate(table.Places{Parts: map[int]disk.Range{
				last.Number: {Off: last.Off + 4096, Len: last.Len},
			}}, table.Geometry{}))
			again := readTable(t, moved)
			require.False(t, again.Damaged())
			require.Equal(t, last.Off+4096, again.Partitions[len(l.Partitions)-1].Off)
			if r.Name != "T51 entries of 4 KiB" { // sgdisk reads entries of 128 bytes only
				requireSgdisk(t, moved)
			}
		})
	}
}
