package identify

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/volume"
)

// Tables of machines other than PCs are known where their systems look for them, and nowhere else.
func TestForeignTables(t *testing.T) {
	for name, c := range map[string]struct {
		at   int64
		text string
		kind volume.Kind
	}{
		"driver map":                   {0, "ER\x02\x00", "apm"},
		"driver map of 3-byte blocks":  {0, "ER\x00\x03", volume.Unknown},
		"volume header of IRIX":        {0, "\x0b\xe5\xa9\x41", "sgi"},
		"rigid disk block in sector 2": {2 * 512, "RDSK", "rdb"},
		"rigid disk block, the last":   {15 * 512, "RDSK", "rdb"},
		"behind the first 16 sectors":  {16 * 512, "RDSK", volume.Unknown},
		"label of a SPARC":             {188, "\x60\x0d\xde\xee", "sun"},
		"VOL1 twice":                   {8192, "\xe5\xd6\xd3\xf1\xe5\xd6\xd3\xf1", "dasd"},
		"VOL1 once":                    {8192, "\xe5\xd6\xd3\xf1", volume.Unknown},
		"VOL1 twice, in block 1":       {4096, "\xe5\xd6\xd3\xf1\xe5\xd6\xd3\xf1", volume.Unknown},
		"LNX1 in sector 1":             {512, "\xd3\xd5\xe7\xf1", "dasd"},
		"CMS1 in block 1":              {4096, "\xc3\xd4\xe2\xf1", "dasd"},
	} {
		t.Run(name, func(t *testing.T) {
			f := make(forge.Bytes, 2<<20)
			f.Text(c.at, c.text)
			v, err := Probe(disktest.ShortDisk(f, int64(len(f))), 0)
			require.NoError(t, err)
			require.Equal(t, c.kind, v.Kind)
			require.Equal(t, c.kind != volume.Unknown, Traits(v.Kind).Foreign)
			require.Empty(t, v.Issues)
		})
	}
}

// A CD that a Macintosh starts from has a partition map in front: it is a CD.
func TestMapOfACD(t *testing.T) {
	f := make(forge.Bytes, 2<<20)
	f.Text(0, "ER\x02\x00")
	f.Text(512, "PM")
	f.Text(0x8000, "\x01CD001\x01")
	v, err := Probe(disktest.ShortDisk(f, int64(len(f))), 0)
	require.NoError(t, err)
	require.Equal(t, volume.ISO9660, v.Kind)
}
