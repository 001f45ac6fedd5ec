package vmdk

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
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

// pipeError is the first error of a file that is read front to back.
func pipeError(t *testing.T, data []byte) error {
	t.Helper()
	s, err := openStream(bytes.NewReader(data))
	if err != nil {
		return err
	}
	for {
		if _, _, err := s.Next(); err != nil {
			_, _, again := s.Next()
			require.Equal(t, err, again, "an error stays")
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
}

// requireError wants an error of a class that says something; "" wants none.
func requireError(t *testing.T, err, class error, says, how string) {
	t.Helper()
	if says == "" {
		require.NoError(t, err, how)
		return
	}
	require.ErrorIs(t, err, class, how)
	require.ErrorContains(t, err, says, how)
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
				err := pipeError(t, file)
				require.ErrorIs(t, err, ondisk.ErrFormat, "%d bytes, front %v", n, front)
				require.ErrorIs(t, err, io.ErrUnexpectedEOF, "%d bytes, front %v", n, front)
				if front && n >= lastData {
					continue // all that the tables name is there
				}
				require.Error(t, seekError(t, file), "%d bytes, front %v", n, front)
			}
		}
		if front {
			require.NoError(t, seekError(t, v.Bytes[:v.End]))
			err := pipeError(t, v.Bytes[:v.End])
			require.NoError(t, err)
		}
	}
}

// What cannot be read from a pipe is named.
func TestOnlyStreamOptimizedComesThroughAPipe(t *testing.T) {
	for _, tc := range []struct{ says, data string }{
		{"not compressed", string(vmdkforge.NewSparse(someDisk()).Bytes)},
		{"a VMDK descriptor", vmdkforge.Descriptor("monolithicFlat", `RW 8 FLAT "x-flat.vmdk" 0`)},
		{"COWD", "COWD\x01"},
		{"seSparse", "\xbe\xba\xfe\xca\x00\x00\x00\x00"},
		{"51 46 49 fb", "QFI\xfb"},
		{"no VMDK", ""},
	} {
		err := pipeError(t, []byte(tc.data))
		require.ErrorIs(t, err, ondisk.ErrUnsupported)
		require.ErrorContains(t, err, tc.says)
		require.ErrorContains(t, err, "only a streamOptimized VMDK")
	}
	err := pipeError(t, []byte("KDMV"))
	require.ErrorIs(t, err, ondisk.ErrFormat)
}

// A pipe has no folder in which a parent could be.
func TestSnapshotChildrenDoNotComeThroughAPipe(t *testing.T) {
	v := vmdkforge.NewStream(someDisk(), vmdkforge.StreamLayout{})
	text := bytes.TrimRight(v.Bytes[512:21*512], "\x00")
	text = bytes.Replace(text, []byte("parentCID=ffffffff"),
		[]byte("parentCID=12345678\nparentFileNameHint=\"base.vmdk\""), 1)
	v.Put(512, text)
	err := pipeError(t, v.Bytes)
	require.ErrorIs(t, err, ondisk.ErrUnsupported)
	require.ErrorContains(t, err, "base.vmdk")
}

// A text that says streamOptimized belongs into the file that it describes.
func TestDescriptorOfAStreamOutsideOfIt(t *testing.T) {
	text := vmdkforge.Descriptor(streamOptimized, `RW 8 SPARSE "x-flat.vmdk"`)
	_, err := open(folder(disktest.NewMemFile("disk.vmdk", []byte(text), int64(len(text)))))
	require.ErrorIs(t, err, ondisk.ErrFormat)
	require.ErrorContains(t, err, "open the extent file itself")
}

// An error of the pipe is no fault of the image.
func TestErrorsOfThePipe(t *testing.T) {
	v := vmdkforge.NewStream(someDisk(), vmdkforge.StreamLayout{})
	broken := errors.New("broken pipe")
	for _, n := range []int64{100, 5000, v.Grains[1], v.Grains[2] + 700, v.Footer, v.End, int64(len(v.Bytes))} {
		s, err := openStream(io.MultiReader(bytes.NewReader(v.Bytes[:n]), failing{broken}))
		for err == nil {
			_, _, err = s.Next()
		}
		require.ErrorIs(t, err, broken, "%d bytes", n)
		require.NotErrorIs(t, err, ondisk.ErrFormat)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// tables3 forges a disk of three tables, the second without a grain. empty adds a table for it, named by the
// directory as asked.
func tables3(empty bool, named func(place, directory uint32) uint32) forge.Bytes {
	data := make([]byte, 3*512*4096)
	copy(data, "first grain")
	copy(data[2*512*4096:], "first grain of the third table")
	v := vmdkforge.NewStream(data, vmdkforge.StreamLayout{Grain: 8})
	if !empty {
		return v.Bytes
	}
	gd := slices.Clone(v.Bytes[v.Directory+512 : v.Footer])
	foot := slices.Clone(v.Bytes[v.Footer+512 : v.End])
	v.Bytes = v.Bytes[:v.Directory]
	place := v.AddMetadata(1, make([]byte, 2048))/512 + 1
	directory := int64(len(v.Bytes))/512 + 1
	gd.U32(4, named(uint32(place), uint32(directory)))
	v.AddMetadata(2, gd)
	foot.U64(vmdkforge.GDOffset, uint64(directory))
	v.AddMetadata(3, foot)
	v.AddMetadata(0, nil)
	return v.Bytes
}

// Tables without a grain may be there or not, and a directory may name them or not.
func TestStreamsWithEmptyTables(t *testing.T) {
	for name, tc := range map[string]struct {
		named func(place, directory uint32) uint32
		says  string
	}{
		"named":                      {func(place, _ uint32) uint32 { return place }, ""},
		"not named":                  {func(_, _ uint32) uint32 { return 0 }, ""},
		"a place that is no table":   {func(place, _ uint32) uint32 { return place - 1 }, "vmdk grain directory"},
		"the table of another entry": {func(_, _ uint32) uint32 { return 130 }, "entry 130, want 0"},
		"a place behind the directory": {
			func(_, directory uint32) uint32 { return directory + 1 },
			"vmdk grain directory",
		},
	} {
		t.Run(name, func(t *testing.T) {
			requireError(t, pipeError(t, tables3(true, tc.named)), ondisk.ErrFormat, tc.says, "pipe")
			if tc.says == "" {
				require.NoError(t, seekError(t, tables3(true, tc.named)))
			}
		})
	}
	require.NoError(t, pipeError(t, tables3(false, nil)))

	// More tables than the disk has.
	v := vmdkforge.NewStream(someDisk(), vmdkforge.StreamLayout{})
	v.Bytes = v.Bytes[:v.Directory]
	for range 1000 {
		v.AddMetadata(1, make([]byte, 2048))
	}
	require.ErrorContains(t, pipeError(t, v.Bytes), "tables without a grain 2, want at most 1")
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
	err := pipeError(t, f)
	require.ErrorIs(t, err, ondisk.ErrUnsupported)
	require.ErrorContains(t, err, "does not follow the last of its grains")

	// Grains of a table that was there already.
	again := slices.Concat(v.Bytes[:v.Grains[1]], v.Bytes[v.Grains[0]:v.Grains[0]+512])
	again.U64(v.Grains[1], 8)
	require.ErrorIs(t, pipeError(t, again), ondisk.ErrUnsupported)
}
