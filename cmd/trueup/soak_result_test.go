package main

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// checkResultTable requires the old table with the planned starts. An extended partition becomes what its records need.
func (c *soakCase) checkResultTable(t *testing.T) {
	t.Helper()
	requireSoundTable(t, c.after, c.sector, c.gpt)
	got, want := readFdisk(t, c.after, c.sector, c.gpt), c.wantTable(c.placed)
	for _, p := range c.parts {
		if p.kind != "extended" {
			continue
		}
		box := got[p.number]
		for _, q := range c.chain {
			require.Less(t, box.start, got[q.number].start)
			require.LessOrEqual(t, got[q.number].start+q.sectors, box.start+box.sectors)
		}
		e := want[p.number]
		e.sectors = box.sectors
		want[p.number] = e
	}
	require.Equal(t, want, got)
}

// checkPartitions requires that partitions hold what they held, but for the patches of the plan, and has their tools
// check them.
func (c *soakCase) checkPartitions(t *testing.T) {
	t.Helper()
	for _, p := range c.parts {
		if p.volume == nil {
			continue
		}
		size, to := p.sectors*c.sector, c.placed[p.number]*c.sector
		old := extract(t, c.raw, p.start*c.sector, size)
		moved := extract(t, c.after, to, size)
		requireSoundVolume(t, p.volume, moved)
		c.checkHidden(t, p, moved)
		for _, patch := range c.plan.Patches {
			if patch.OffsetBytes >= to && patch.OffsetBytes < to+size {
				c.undo(t, p, moved, patch, to)
			}
		}
		disktest.Run(t, "cmp", old, moved)
		require.NoError(t, os.Remove(old))
		require.NoError(t, os.Remove(moved))
	}
}

// checkHidden requires that a boot sector that knew its place knows the new one, and that any other is left as it was.
// Windows counts from the record of a logical partition.
func (c *soakCase) checkHidden(t *testing.T, p *soakPart, moved string) {
	t.Helper()
	v, to := p.volume, c.placed[p.number]
	if !v.bootSector {
		return
	}
	hidden := int64(binary.LittleEndian.Uint32(readAt(t, moved, hiddenSectorsAt, 4)))
	switch {
	case v.hidden == p.start:
		require.Equal(t, to, hidden, "partition %d", p.number)
	case p.kind == "logical" && v.hidden == p.start-p.record:
		entry := readAt(t, c.after, (to-hidden)*c.sector+mbrEntryAt, mbrEntrySize)
		require.Equal(t, hidden, int64(binary.LittleEndian.Uint32(entry[8:])), "partition %d is where its record says",
			p.number)
		require.Equal(t, p.sectors, int64(binary.LittleEndian.Uint32(entry[12:])))
	default:
		require.Equal(t, v.hidden, hidden, "partition %d", p.number)
	}
}

// undo puts the old bytes of a patch back, after it has seen the new ones there.
func (c *soakCase) undo(t *testing.T, p *soakPart, part string, patch jsonPatch, to int64) {
	t.Helper()
	require.True(t, p.volume.bootSector, "partition %d: a patch at %#x", p.number, patch.OffsetBytes)
	require.LessOrEqual(t, patch.LengthBytes, int64(4))
	old, err := hex.DecodeString(patch.Old)
	require.NoError(t, err)
	require.Equal(t, patch.New, hex.EncodeToString(readAt(t, part, patch.OffsetBytes-to, patch.LengthBytes)))
	disktest.WriteAt(t, part, patch.OffsetBytes-to, old)
}

// checkData requires that what no partition owns is there: at its place in front of the first partition, between the
// same two as before elsewhere.
func (c *soakCase) checkData(t *testing.T) {
	t.Helper()
	for i, e := range c.data {
		want := readAt(t, c.raw, e.start*c.sector, e.sectors*c.sector)
		if e.behind == nil {
			require.Equal(t, want, readAt(t, c.after, e.start*c.sector, e.sectors*c.sector), "data %d", i)
			continue
		}
		from, to := (c.placed[e.behind.number]+e.behind.sectors)*c.sector, c.plan.NewSizeBytes
		for _, p := range c.parts {
			if p.start > e.start && p.kind != "extended" {
				to = c.placed[p.number] * c.sector
				break
			}
		}
		require.True(t, bytes.Contains(readAt(t, c.after, from, to-from), want), "data %d is gone: %d sectors at %d", i,
			e.sectors, e.start)
	}
}

// checkAgain requires that verify agrees, and that nothing is left to do.
func (c *soakCase) checkAgain(t *testing.T) {
	t.Helper()
	verify := append([]string{"verify", c.source, c.dest}, c.sectorFlag(c.to)...)
	require.True(t, trueupJSON[jsonVerify](t, 0, verify...).Equal)
	again := append([]string{"plan", c.dest}, c.flagsFor(c.to)...)
	answer := trueupJSON[jsonPlan](t, 0, again...)
	require.Empty(t, answer.Moves)
	require.Empty(t, answer.Patches)
	inspect := append([]string{"inspect", c.dest}, c.sectorFlag(c.to)...)
	trueupJSON[jsonInspect](t, c.verdict(c.placed), inspect...)
}
