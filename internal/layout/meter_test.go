package layout_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/poolforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

// Headers of 4 MiB in each of many partitions cost a stranger nothing, and us minutes.
func TestMetadataOfAllVolumesAreBounded(t *testing.T) {
	const count, size, header = 24, 9 << 11, 4 << 20
	var entries []tableforge.GPTEntry
	for i := range uint64(count) {
		entries = append(entries, tableforge.GPTEntry{First: 2048 + i*size, Last: 2048 + (i+1)*size - 1})
	}
	f := tableforge.NewGPT(512, 2048+count*size+64, 128, entries...)
	for _, e := range entries {
		poolforge.PutLUKS2(f[e.First*512:], poolforge.LUKS2Text("8388608", "1000"), header)
	}
	l := readForged(t, f)
	require.Len(t, l.Partitions, count)
	require.Equal(t, volume.LUKS, l.Partitions[0].Volume.Kind)
	require.Equal(t, volume.Unknown, l.Partitions[count-1].Volume.Kind)
	requireLimit(t, l)
}

// Thousands of small partitions that hold anything cost a stranger a few bytes each, and us all probers. Empty ones
// cost nothing.
func TestFilledPartitionsAreBounded(t *testing.T) {
	const count, step = 1200, 64
	entries := make([]tableforge.GPTEntry, count)
	for i := range entries {
		first := 2048 + uint64(i)*step
		entries[i] = tableforge.GPTEntry{First: first, Last: first + step - 1}
	}
	f := tableforge.NewGPT(512, 2048+count*step+1024, count, entries...)
	for _, i := range readForged(t, f).Issues {
		require.NotErrorIs(t, i.Err, ondisk.ErrLimit)
	}
	for _, e := range entries {
		f[e.First*512+100] = 1
	}
	l := readForged(t, f)
	require.Len(t, l.Partitions, count)
	requireLimit(t, l)
	last := l.Issues[slices.IndexFunc(l.Issues, func(i ondisk.Issue) bool { return errors.Is(i.Err, ondisk.ErrLimit) })]
	require.Contains(t, last.Text, "more than 1024 partitions in front of partition 1026 hold data")
}

// requireLimit requires one limit, and that it was that of the volumes.
func requireLimit(t *testing.T, l *layout.Layout) {
	t.Helper()
	var limits []ondisk.Issue
	for _, i := range l.Issues {
		if errors.Is(i.Err, ondisk.ErrLimit) {
			limits = append(limits, i)
		}
	}
	require.Len(t, limits, 1)
	require.Equal(t, []any{"volume", ondisk.Broken}, []any{limits[0].Code, limits[0].Effect})
}

// A table can name one volume group over and over, and each time there are all of its logical volumes.
func TestPartsOfAllVolumesAreBounded(t *testing.T) {
	const count, sectors = 300, 1024
	var text strings.Builder
	text.WriteString("g { extent_size = 8 logical_volumes {")
	for i := range 256 {
		fmt.Fprintf(&text, "l%d { s { extent_count = 1 } }\n", i)
	}
	text.WriteString("} }")
	entries := make([]tableforge.GPTEntry, count)
	for i := range entries {
		entries[i] = tableforge.GPTEntry{First: 2048, Last: 2048 + sectors - 1}
	}
	f := tableforge.NewGPT(512, 2048+sectors+1024, 512, entries...)
	poolforge.PutLVM(f[2048*512:][:sectors*512], text.String(), 512)
	l := readForged(t, f)
	require.Len(t, l.Partitions, count)
	require.Len(t, l.Partitions[0].Volume.Parts, 256)
	require.Empty(t, l.Partitions[count-1].Volume.Parts)
	requireLimit(t, l)
}

// However many places of other disks a hive names, one finding says so.
func TestNamesOfManyDisks(t *testing.T) {
	l := &layout.Layout{Boot: &boot.Result{Code: boot.Empty, Found: boot.Found{Unlisted: 7000}}}
	for i := range 1024 {
		l.Boot.Refs = append(l.Boot.Refs,
			boot.Ref{File: "WINDOWS/system32/config/SYSTEM", Partition: 1, Disk: uint32(i%300 + 1), Points: int64(i)})
	}
	l.Relate(&layout.Machine{})
	l.Relate(&layout.Machine{})
	require.Len(t, l.Issues, 1)
	require.Equal(t, "names-other-disks", l.Issues[0].Code)
	require.Equal(t, ondisk.Warn, l.Issues[0].Effect)
	require.True(t, l.Issues[0].OnMove)
	require.Contains(t, l.Issues[0].Text,
		`\WINDOWS\system32\config\SYSTEM of partition 1 refers to partitions of other disks`)
	require.Contains(t, l.Issues[0].Text, "disk 0x00000004 at byte 3, and 8020 more")
	require.Less(t, len(l.Issues[0].Text), 400)
}

// A data disk warns when it has an MBR with a signature and a volume that gets a letter, and no system of its own boots
// from it.
func TestDisksThatAWindowsElsewhereMayKnow(t *testing.T) {
	ntfs := func(signature uint32, active byte, code []byte) forge.Bytes {
		f := tableforge.NewMBR(4096, tableforge.Slot{Flag: active, Type: 7, Start: 63, Sectors: 3000})
		fsforge.PutNTFS(f, 63, 3000)
		f.U32(tableforge.MBRSignature, signature)
		f.Put(0, code)
		return f
	}
	generic := []byte{0xbe, 0xbe, 0x07, 0xb8, 0x01, 0x02, 0xcd, 0x13} // reads the sector of an entry of the table
	gpt := tableforge.NewGPT(512, 8192, 128, tableforge.GPTEntry{First: 63, Last: 3062})
	fsforge.PutNTFS(gpt, 63, 3000)
	linux := tableforge.NewMBR(4096, slot(0x83, 63, 3000))
	fsforge.PutExt(linux, 63, 3000)
	for name, c := range map[string]struct {
		disk  forge.Bytes
		warns bool
	}{
		"no boot code":                {ntfs(1, 0, nil), true},
		"active, no boot code":        {ntfs(1, 0x80, nil), true},
		"boot code, nothing active":   {ntfs(1, 0, generic), true},
		"boot code, active":           {ntfs(1, 0x80, generic), false},
		"without a signature":         {ntfs(0, 0, nil), false},
		"partitions have identifiers": {gpt, false},
		"no volume that has letters":  {linux, false},
	} {
		t.Run(name, func(t *testing.T) {
			warns := false
			for _, i := range layout.Elsewhere(read(t, c.disk).Issues) {
				require.Equal(t, layout.KnownElsewhere, i.Code)
				warns = true
			}
			require.Equal(t, c.warns, warns)
		})
	}
}
