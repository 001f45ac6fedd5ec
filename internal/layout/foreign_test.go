package layout_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

// A table that divides more than there is of the disk is malformed, as an MBR is: the image was cut short.
func TestTablesOfCutDisks(t *testing.T) {
	path := rawFile(t, 131072)
	disktest.Run(t, "parted", "-s", path, "mklabel", "bsd", "unit", "s", "mkpart", "8192", "40000")
	require.NotContains(t, disktest.Codes(read(t, load(t, path)).Issues), "slice-outside")
	l := read(t, load(t, path)[:8<<20])
	require.Nil(t, l.Table)
	found := coded(l.Issues, "slice-outside")
	require.NotEmpty(t, found)
	require.Equal(t, ondisk.Broken, found[0].Effect)
	require.ErrorAs(t, found[0].Err, new(*ondisk.FormatError))
}

// Tables that are recognised only leave open whether a partition is aligned.
func TestTablesThatAreNotRead(t *testing.T) {
	dasd := filepath.Join(t.TempDir(), "dasd.raw")
	f := make(forge.Bytes, 4<<20)
	f.Text(8192, "\xd3\xd5\xe7\xf1\xd3\xc9\xd5\xe4\xe7\xf1")
	require.NoError(t, os.WriteFile(dasd, f, 0o600))
	made := func(label string, commands ...string) string {
		path := rawFile(t, 131072)
		disktest.Run(t, "parted", append([]string{"-s", path, "mklabel", label, "unit", "s"}, commands...)...)
		return path
	}
	cut := made("amiga", "mkpart", "one", "1024", "40063")
	require.NoError(t, os.Truncate(cut, 4<<20)) // in the middle of its partition
	for _, c := range []struct {
		name, path string
		kind       volume.Kind
	}{
		{"Apple partition map", made("mac", "mkpart", "one", "8192", "40000"), "apm"},
		{"SGI volume header", made("dvh", "mkpart", "primary", "8192", "40000"), "sgi"},
		{"Sun (SPARC) disk label", made("sun", "mkpart", "8192", "40063"), "sun"},
		{"Amiga rigid disk block", made("amiga", "mkpart", "one", "1024", "40063"), "rdb"},
		{"Amiga rigid disk block", cut, "rdb"},
		{"IBM DASD label", dasd, "dasd"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := read(t, load(t, c.path))
			require.Nil(t, l.Table)
			require.Equal(t, c.kind, l.Volume.Kind)
			require.Equal(t, c.name, l.FixedTable())
			require.True(t, l.Unlisted())
			require.Empty(t, l.FixedParts())
			require.Equal(t, []string{layout.CodeUnknownContent}, disktest.Codes(l.Issues))
		})
	}
}

// An MBR that is sound counts, whatever else stands beside it.
func TestSecondTable(t *testing.T) {
	f := tableforge.NewMBR(80000, slot(0x83, 63, 70000))
	f.Text(0, "ER\x02\x00")
	f.Text(512, "PM\x00\x00\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x3f")
	l := read(t, f)
	require.NotNil(t, l.Table)
	require.Contains(t, disktest.Codes(l.Issues), "second-table")
	require.NotContains(t, disktest.Codes(l.Issues), "ambiguous-sector-0")
	require.Empty(t, l.FixedTable())
}
