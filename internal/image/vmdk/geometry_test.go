package vmdk

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/image/driver"
)

// The geometry that a BIOS reports stays that of the source, over the new size, or becomes that by which the disk
// boots. Where the lines do it already, none is added.
func TestGeometryForABIOS(t *testing.T) {
	chs := func(h, s int64) driver.Geometry { return driver.Geometry{Heads: h, Sectors: s} }
	lines := func(adapter, disk, bios string) *descriptor {
		text := "# Disk DescriptorFile\nCID=1\nddb.adapterType = \"" + adapter + "\"\n"
		for i, all := range []string{disk, bios} {
			names := [2][3]string{
				{"cylinders", "heads", "sectors"}, {"biosCylinders", "biosHeads", "biosSectors"},
			}[i]
			for n, v := range strings.Fields(all) {
				text += "ddb.geometry." + names[n] + " = \"" + v + "\"\n"
			}
		}
		return parsed(t, text)
	}
	for _, tc := range []struct {
		name    string
		d       *descriptor
		sectors int64
		bios    driver.Geometry
		want    string
	}{
		{
			"scsi: as it is", lines("lsilogic", "522 255 63", ""), 8390656, chs(255, 63),
			"cylinders=522 heads=255 sectors=63",
		},
		{
			"ide: the same translation", lines("ide", "8322 16 63", ""), 8390656, chs(255, 63),
			"cylinders=8324 heads=16 sectors=63",
		},
		{
			"ide: 1024 cylinders of 4 heads are left behind", lines("ide", "1023 4 17", ""), 71612, chs(4, 17),
			"cylinders=1053 heads=4 sectors=17 biosCylinders=1024 biosHeads=4 biosSectors=17",
		},
		{
			"ide: nothing depends on it", lines("ide", "1023 4 17", ""), 71612, chs(0, 0),
			"cylinders=1053 heads=4 sectors=17",
		},
		{
			"ide: the next translation", lines("ide", "2080 16 63", ""), 2099664, chs(16, 63),
			"cylinders=2083 heads=16 sectors=63 biosCylinders=1024 biosHeads=16 biosSectors=63",
		},
		{
			"pinned: over the new size", lines("ide", "600 16 63", "300 32 63"), 606816, chs(32, 63),
			"cylinders=602 heads=16 sectors=63 biosCylinders=301 biosHeads=32 biosSectors=63",
		},
		{
			"pinned: all that can be addressed", lines("ide", "83220 16 63", "1024 255 63"), 83887808, chs(255, 63),
			"cylinders=83222 heads=16 sectors=63 biosCylinders=1024 biosHeads=255 biosSectors=63",
		},
		{
			"pinned: a writer that counts them all", lines("ide", "83220 16 63", "5221 255 63"), 83903872, chs(255, 63),
			"cylinders=83237 heads=16 sectors=63 biosCylinders=5222 biosHeads=255 biosSectors=63",
		},
		{
			"zeros of VirtualBox say nothing", lines("ide", "600 16 63", "0 0 0"), 606816, chs(16, 63),
			"cylinders=602 heads=16 sectors=63 biosCylinders=0 biosHeads=0 biosSectors=0",
		},
		{
			"was no vmdk", plainDescriptor(chs(4, 17)), 71612, chs(4, 17), "cylinders=1053 heads=4 sectors=17",
		},
		{
			"was no vmdk, and nothing depends on it", plainDescriptor(chs(0, 0)), 71612, chs(0, 0),
			"cylinders=4 heads=255 sectors=63",
		},
	} {
		var got []string
		for l := range strings.SplitSeq(string(tc.d.copyFor(monolithicFlat, 512*tc.sectors, nil, nil, tc.bios)), "\n") {
			if rest, ok := strings.CutPrefix(l, "ddb.geometry."); ok {
				got = append(got, strings.NewReplacer(`"`, "", " ", "").Replace(rest))
			}
		}
		require.Equal(t, tc.want, strings.Join(got, " "), tc.name)
	}
}

// A disk that changes in its place keeps the geometry for its BIOS too.
func TestGeometryInPlace(t *testing.T) {
	text := strings.NewReplacer(`"buslogic"`, `"ide"`, `"1044"`, `"1023"`, `"255"`, `"4"`, `"63"`, `"17"`,
		"16777216", "69564").Replace(esxi)
	d := parsed(t, text)
	around, err := d.around(512*71612, driver.Geometry{Heads: 4, Sectors: 17})
	require.NoError(t, err)
	for _, line := range []string{
		`cylinders = "1053"`, `biosCylinders = "1024"`, `biosHeads = "4"`, `biosSectors = "17"`,
	} {
		require.Contains(t, string(around.Text), "ddb.geometry."+line)
	}
}
