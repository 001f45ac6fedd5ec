package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
)

// The tests here are about what a guest boots with. A disk of theirs has an aligned partition, which stays, and a
// misaligned one, which moves: what the first one holds can depend on the place of the second.

const (
	stayStart, stayLength = 2048, 6000
	moveStart, moveLength = 10000, 6000
)

// chainCase is something that finds the second partition, or is found by it.
type chainCase struct {
	name   string
	kind   byte
	change func(disk, partition forge.Bytes)
	code   string // of the refusal
	says   string
	force  int // exit code of align with --allow-unbootable
}

var chainCases = []chainCase{
	{
		name: "bootmgr on ntfs", kind: 0x07, code: "bcd", says: "BCD",
		change: func(disk, partition forge.Bytes) {
			fsforge.PutNTFS(disk, stayStart, stayLength)
			partition.Text(0x1a0, "BOOTMGR is missing")
		},
	},
	{
		name: "ntldr on ntfs", kind: 0x07, code: "mounted-devices", says: "its registry",
		change: func(disk, partition forge.Bytes) {
			fsforge.PutNTFS(disk, stayStart, stayLength)
			partition.Text(0x1a0, "NTLDR is missing")
		},
	},
	{
		name: "hibernated linux", kind: 0x82, code: "hibernated-linux", says: "hibernated", force: 4,
		change: func(_, partition forge.Bytes) { partition.Text(4086, "S1SUSPEND") },
	},
	{
		name: "lilo", kind: 0x83, code: "lilo", says: "LILO",
		change: func(disk, partition forge.Bytes) {
			fsforge.PutExt(disk, stayStart, stayLength)
			partition.Put(0, []byte{0xfa, 0xeb, 0x21, 0x01, 0xb4, 0x01})
			partition.Text(6, "LILO")
			partition.U16(tableforge.MBRMagic, 0xaa55)
		},
	},
}

// TestChainsAcrossPartitions requires that align sees what a partition that stays has to do with one that moves.
func TestChainsAcrossPartitions(t *testing.T) {
	t.Parallel()
	for _, c := range chainCases {
		t.Run(c.name, func(t *testing.T) {
			disk := tableforge.NewMBR(20480, slot(c.kind, stayStart, stayLength), slot(0x83, moveStart, moveLength))
			disk.U8(tableforge.MBREntries, 0x80)
			disk.Put(moveStart*sectorSize, noise("moves", moveLength*sectorSize))
			c.change(disk, disk[stayStart*sectorSize:(stayStart+stayLength)*sectorSize])
			f := newFault(t, writeForged("disk.raw", disk)(t, t.TempDir()))
			r := trueup(t, f.args()...)
			require.Equal(t, 4, r.code, "%s%s", r.stdout, r.stderr)
			requireOneLine(t, r.stderr)
			require.Contains(t, r.stderr, c.says)
			require.Contains(t, r.stderr, "partition 1")
			f.requireUndone(t)
			require.Equal(t, []string{c.code}, refusalCodes(t, f.source))

			require.Equal(t, c.force, trueup(t, f.args("--allow-unbootable")...).code)
			require.Equal(t, 0, trueup(t, "align", "--boundary", "4K", "--partition", "1", f.source, f.dest,
				"--force").code,
				"no partition moves, so that nothing breaks")
		})
	}
}

// refusalCodes are those of the plan for an image.
func refusalCodes(t testing.TB, image string) []string {
	t.Helper()
	var plan struct {
		Refusals []jsonFinding `json:"refusals"`
	}
	unmarshal(t, trueup(t, "plan", image, "--json"), &plan)
	var codes []string
	for _, f := range plan.Refusals {
		codes = append(codes, f.Code)
	}
	return codes
}
