package identify

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/poolforge"
	"github.com/trueup/trueup/internal/disktest/forge/volumeforge"
	"github.com/trueup/trueup/internal/volume"
)

// What a glance believes, and where it looks as far as Probe does.
func TestGlance(t *testing.T) {
	xfs := func(f forge.Bytes) { volumeforge.PutXFS(f, 0, 1024*8) } // one group, which is sound
	atEnd := func(f forge.Bytes) { poolforge.PutMD0(f, binary.LittleEndian) }
	for name, c := range map[string]struct {
		put           []func(forge.Bytes)
		glance, probe volume.Kind
		deepest       int64 // what a glance reads no farther than; 0: anywhere
	}{
		"a sound volume":                       {[]func(forge.Bytes){xfs}, volume.XFS, volume.XFS, frontSize},
		"an array that keeps its place behind": {[]func(forge.Bytes){xfs, atEnd}, volume.XFS, volume.MDRaid, frontSize},
		"an array around nothing":              {[]func(forge.Bytes){atEnd}, volume.MDRaid, volume.MDRaid, 0},
		"a superblock farther in": {
			[]func(forge.Bytes){putWhole(volumeforge.PutBtrfs)},
			volume.Btrfs,
			volume.Btrfs, 0,
		},
		"a ruin in front of an array": {
			[]func(forge.Bytes){putWhole(volumeforge.PutXFS), atEnd}, volume.MDRaid, volume.MDRaid, 0,
		},
		"nothing": {nil, volume.Unknown, volume.Unknown, 0},
	} {
		t.Run(name, func(t *testing.T) {
			f := make(forge.Bytes, leftoverSize)
			for _, put := range c.put {
				put(f)
			}
			d := &reach{Disk: disktest.ShortDisk(f, int64(len(f)))}
			v, err := Glance(d, 0)
			require.NoError(t, err)
			require.Equal(t, c.glance, v.Kind)
			if c.deepest > 0 {
				require.LessOrEqual(t, d.end, c.deepest)
			}
			v, err = Probe(disktest.ShortDisk(f, int64(len(f))), 0)
			require.NoError(t, err)
			require.Equal(t, c.probe, v.Kind)
		})
	}
}

// reach is a disk that remembers how far it was read.
type reach struct {
	disk.Disk
	end int64
}

func (r *reach) ReadAt(p []byte, off int64) (int, error) {
	r.end = max(r.end, off+int64(len(p)))
	return r.Disk.ReadAt(p, off)
}

// The label of a FAT is found wherever in its root directory it stands.
func TestLabelBehindManyFiles(t *testing.T) {
	f := make(forge.Bytes, 16000*512)
	fsforge.PutFAT16(f, 0, 16000)
	le := binary.LittleEndian // Spec: Microsoft FAT specification 1.03, "Boot Sector and BPB"
	root := 512 * (int64(le.Uint16(f[0x0e:])) + int64(f[0x10])*int64(le.Uint16(f[0x16:])))
	const slot = 32
	last := int64(le.Uint16(f[0x11:])) - 1
	for i := range last {
		f.Text(root+i*slot, "A FILE  TXT ")
	}
	f.Text(root+last*slot, "BEHIND ALL \x08")
	v, err := Glance(disktest.ShortDisk(f, int64(len(f))), 0)
	require.NoError(t, err)
	require.Equal(t, "BEHIND ALL", v.Label)
}
