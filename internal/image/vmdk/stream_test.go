package vmdk

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
	"github.com/trueup/trueup/internal/ondisk"
)

const grain64 = 64 << 10 // bytes of a grain

// someDisk has four grains that compress badly; the last is one sector.
func someDisk() []byte {
	b := make([]byte, 3*grain64+512)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b) // never returns an error
	return b
}

// seekError is the first error of a file that is opened, checked and read.
func seekError(t *testing.T, data []byte) error {
	t.Helper()
	img, err := open(folder(disktest.NewMemFile("disk.vmdk", data, int64(len(data)))))
	if err != nil {
		return err
	}
	issues, err := img.Check()
	require.NoError(t, err)
	buf := make([]byte, 1<<20)
	for off := int64(0); off < min(img.Disk.Size(), 64<<20); off += int64(len(buf)) {
		if err := ondisk.ReadFull(img.Disk, buf[:min(int64(len(buf)), img.Disk.Size()-off)], off); err != nil {
			return err
		}
	}
	for _, i := range issues {
		if i.Effect == ondisk.Broken {
			return i.Err
		}
	}
	return nil
}

// A stream that is cut anywhere says so. Only a file with its tables in front may lack the marker of the end.
func TestCutStreams(t *testing.T) {
	for _, front := range []bool{false, true} {
		v := vmdkforge.NewStream(someDisk(), vmdkforge.StreamLayout{Front: front})
		last := v.Grains[len(v.Grains)-1]
		lastData := last + 12 + int64(binary.LittleEndian.Uint32(v.Bytes[last+8:]))
		places := append(append(slices.Clone(v.Grains), v.Tables...), v.Directory, v.End, 512, 21*512)
		if !front {
			places = append(places, v.Footer)
		}
		for _, at := range places {
			for _, n := range []int64{at - 1, at, at + 1, at + 511, at + 512} {
				if n >= int64(len(v.Bytes)) || front && n == v.End {
					continue
				}
				file := v.Bytes[:n]
				if front && n >= lastData {
					continue // all that the tables name is there
				}
				require.Error(t, seekError(t, file), "%d bytes, front %v", n, front)
			}
		}
		if front {
			require.NoError(t, seekError(t, v.Bytes[:v.End]))
		}
	}
}

// A text that says streamOptimized belongs into the file that it describes.
func TestDescriptorOfAStreamOutsideOfIt(t *testing.T) {
	text := vmdkforge.Descriptor(streamOptimized, `RW 8 SPARSE "x-flat.vmdk"`)
	_, err := open(folder(disktest.NewMemFile("disk.vmdk", []byte(text), int64(len(text)))))
	require.ErrorIs(t, err, ondisk.ErrFormat)
	require.ErrorContains(t, err, "open the extent file itself")
}

// A table that does not follow its grains is fine in a file.
func TestStreamsWithTablesElsewhere(t *testing.T) {
	data := make([]byte, 2*512*4096)
	copy(data, "first grain")
	copy(data[512*4096:], "first grain of the second table")
	v := vmdkforge.NewStream(data, vmdkforge.StreamLayout{Grain: 8})
	// Exchange the first table with the second grain, which is one sector.
	file := slices.Concat(v.Bytes[:v.Tables[0]], v.Bytes[v.Grains[1]:v.Grains[1]+512],
		v.Bytes[v.Tables[0]:v.Grains[1]], v.Bytes[v.Grains[1]+512:])
	require.Equal(t, v.Grains[1]+512, v.Tables[1])
	f := file
	f.U32(v.Tables[1]+512, uint32(v.Tables[0]/512))
	f.U32(v.Directory+512, uint32(v.Tables[0]/512+2))
	require.NoError(t, seekError(t, f))
}
