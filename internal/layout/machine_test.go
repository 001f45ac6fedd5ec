package layout_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
)

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
		`\WINDOWS\system32\config\SYSTEM of partition 1 names partitions of other disks`)
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
	linux := tableforge.NewMBR(4096, tableforge.Slot{Type: 0x83, Start: 63, Sectors: 3000})
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
