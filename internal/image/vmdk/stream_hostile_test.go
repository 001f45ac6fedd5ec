package vmdk

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
	"github.com/trueup/trueup/internal/ondisk"
)

// streamCase is a hostile file and the error of reading it; "" for none.
type streamCase struct {
	name   string
	layout vmdkforge.StreamLayout
	forge  func(v *vmdkforge.Stream)
	class  error // nil: malformed
	seek   string
}

func runStreamCases(t *testing.T, cases []streamCase) {
	t.Helper()
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			v := vmdkforge.NewStream(someDisk(), tc.layout)
			if tc.forge != nil {
				tc.forge(v)
			}
			if tc.class == nil {
				tc.class = ondisk.ErrFormat
			}
			err := seekError(t, v.Bytes)
			if tc.seek == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, tc.class)
			require.ErrorContains(t, err, tc.seek)
		})
	}
}

// bad is a malformed file with its tables after the grains, badInFront one with them before.
func bad(name, seek string, forge func(v *vmdkforge.Stream)) streamCase {
	return streamCase{name: name, seek: seek, forge: forge}
}

func badInFront(name, seek string, forge func(v *vmdkforge.Stream)) streamCase {
	return streamCase{name: name, seek: seek, forge: forge, layout: vmdkforge.StreamLayout{Front: true}}
}

func packing(pack func(packed []byte) []byte) vmdkforge.StreamLayout {
	return vmdkforge.StreamLayout{Pack: func(_ int64, data []byte) []byte { return pack(vmdkforge.Deflated(data)) }}
}

// TestHostileGrains reads grains whose compressed data are malformed, or unusual but valid.
func TestHostileGrains(t *testing.T) {
	same := func(name, says string, l vmdkforge.StreamLayout) streamCase {
		return streamCase{name: name, layout: l, seek: says}
	}
	bomb := func(size int) vmdkforge.StreamLayout {
		packed := vmdkforge.Deflated(make([]byte, size))
		return vmdkforge.StreamLayout{Pack: func(int64, []byte) []byte { return packed }}
	}
	runStreamCases(t, []streamCase{
		same("bomb of 256 MiB", "size 26", bomb(256<<20)),
		same("bomb that is small enough", "more bytes than a grain has", bomb(64<<20)),
		same("one byte too many", "more bytes than a grain has", bomb(grain64+1)),
		same("one byte too few", "unpacked size 65535", bomb(grain64-1)),
		same("cut like a last grain", "unpacked size 512", bomb(512)),
		same("nothing inside", "unpacked size 0", bomb(0)),
		same("wrong checksum", "zlib: invalid checksum", packing(func(p []byte) []byte {
			p[len(p)-1] ^= 1
			return p
		})),
		same("no checksum", "unexpected EOF", packing(func(p []byte) []byte { return p[:len(p)-4] })),
		same("cut in the middle", "unexpected EOF", packing(func(p []byte) []byte { return p[:len(p)/2] })),
		same("no zlib header", "zlib: invalid header", packing(func(p []byte) []byte { return p[2:] })),
		same("preset dictionary", "zlib: invalid",
			packing(func(p []byte) []byte { return append([]byte{0x78, 0xbb, 1, 2, 3, 4}, p[2:]...) })),
		same("data behind the end", "bytes behind the data 3",
			packing(func(p []byte) []byte { return append(p, 0, 0, 7) })),
		same("another stream behind the end", "bytes behind the data",
			packing(func(p []byte) []byte { return append(p, p[:100]...) })),
		same("a sector of zeros counted", "bytes behind the data 512",
			packing(func(p []byte) []byte { return append(p, make([]byte, 512)...) })),
		same("padding counted", "", packing(func(p []byte) []byte { return append(p, make([]byte, 511)...) })),
		// Without a size it is no grain, but an unexpected marker.
		{name: "empty", layout: packing(func([]byte) []byte { return nil }), seek: "size 0"},
		same("the last grain is whole", "", vmdkforge.StreamLayout{}),
		same("the last grain is cut", "", vmdkforge.StreamLayout{Short: true}),
	})
}

// A compression bomb in a grain costs no more than a normal grain.
func TestBombsAreCheap(t *testing.T) {
	packed := vmdkforge.Deflated(make([]byte, 100<<20))
	v := vmdkforge.NewStream(someDisk(), vmdkforge.StreamLayout{Pack: func(int64, []byte) []byte { return packed }})
	require.Less(t, binary.LittleEndian.Uint32(v.Bytes[v.Grains[0]+8:]), uint32(2*grain64),
		"its size alone does not betray it")
	spent := disktest.Spent()
	allocated := disktest.Allocated(func() {
		require.Error(t, seekError(t, v.Bytes))
	})
	require.Less(t, spent(), time.Second)
	require.Less(t, allocated, int64(8<<20))
}

// Markers.
func TestHostileMarkers(t *testing.T) {
	lba := func(grain int, lba uint64) func(v *vmdkforge.Stream) {
		return func(v *vmdkforge.Stream) { v.U64(v.Grains[grain], lba) }
	}
	runStreamCases(t, []streamCase{
		bad("size 2^32-1", "size 4294967295", func(v *vmdkforge.Stream) { v.U32(v.Grains[1]+8, 1<<32-1) }),
		bad("size beyond the end of the file", "size 131072",
			func(v *vmdkforge.Stream) { v.U32(v.Grains[3]+8, 2*grain64) }),
		bad("lba inside of a grain", "lba 192", lba(1, 192)),
		bad("lba at the capacity", "lba 512", lba(3, 512)),
		bad("lba 2^64-128", "lba 18446744073709551488", lba(3, 1<<64-128)),
		bad("lba going backwards", "lba 0", lba(2, 0)),
		bad("lba repeated", "lba 128", lba(2, 128)),
		bad("a grain at another place", "lba 384", lba(2, 384)),
		bad("unknown type", "", func(v *vmdkforge.Stream) { v.U32(v.Tables[0]+12, 4) }),
		bad("type 2^32-1", "", func(v *vmdkforge.Stream) { v.U32(v.Tables[0]+12, 1<<32-1) }),
	})
}

// TestHostileEndsOfStreams breaks the structures after the grains: tables, directory, footer and end.
func TestHostileEndsOfStreams(t *testing.T) {
	runStreamCases(t, []streamCase{
		bad("end with a value", "end of stream", func(v *vmdkforge.Stream) { v.U64(v.End, 1) }),
		bad("end in the middle", "", func(v *vmdkforge.Stream) { clear(v.Bytes[v.Tables[0] : v.Tables[0]+16]) }),
		bad("table of other length", "", func(v *vmdkforge.Stream) { v.U64(v.Tables[0], 5) }),
		bad("directory of other length", "", func(v *vmdkforge.Stream) { v.U64(v.Directory, 1<<40) }),
		bad("footer of other length", "footer", func(v *vmdkforge.Stream) { v.U64(v.Footer, 2) }),
		bad("two directories", "footer", func(v *vmdkforge.Stream) { v.U32(v.Footer+12, 2) }),
		bad("no directory", "", func(v *vmdkforge.Stream) { v.U32(v.Directory+12, 3) }),
		bad("no table", "grain directory offset", func(v *vmdkforge.Stream) {
			at := v.Tables[0]
			v.Bytes = slices.Delete(v.Bytes, int(at), int(at)+5*512)
		}),
		bad("a grain behind the directory", "footer", func(v *vmdkforge.Stream) { v.U32(v.Footer+8, 77) }),
		bad("a table that names another place", "entry 5", func(v *vmdkforge.Stream) { v.U32(v.Tables[0]+512+4, 5) }),
		bad("a table that leaves a grain out", "", func(v *vmdkforge.Stream) { v.U32(v.Tables[0]+512+4, 0) }),
		bad("a table that names a grain more", "", func(v *vmdkforge.Stream) { v.U32(v.Tables[0]+512+16, 130) }),
		bad("two entries to one grain", "lba 0, want 128",
			func(v *vmdkforge.Stream) { v.Put(v.Tables[0]+512+4, v.Bytes[v.Tables[0]+512:][:4]) }),
		bad("a directory that names another place", "vmdk grain",
			func(v *vmdkforge.Stream) { v.U32(v.Directory+512, 129) }),
		bad("a directory that names no table", "", func(v *vmdkforge.Stream) { v.U32(v.Directory+512, 0) }),
		bad("zeros behind the end", "footer",
			func(v *vmdkforge.Stream) { v.Bytes = append(v.Bytes, make([]byte, 512)...) }),
		bad("data behind the end", "file size", func(v *vmdkforge.Stream) { v.Bytes = append(v.Bytes, 1) }),
	})
}

// The footer.
func TestHostileFooters(t *testing.T) {
	foot := func(field int64) func(v uint64) func(v *vmdkforge.Stream) {
		return func(n uint64) func(v *vmdkforge.Stream) {
			return func(v *vmdkforge.Stream) { v.U64(v.Footer+512+field, n) }
		}
	}
	runStreamCases(t, []streamCase{
		bad("gdOffset 2^64-1", "grain directory offset 18446744073709551615", foot(vmdkforge.GDOffset)(1<<64-1)),
		bad("other capacity", "capacity 1000, want 385, as in the header", foot(vmdkforge.Capacity)(1000)),
		bad("other grain", "grain size 64, want 128, as in the header", foot(vmdkforge.GrainSize)(64)),
		bad("other table size", "numGTEsPerGT 256",
			func(v *vmdkforge.Stream) { v.U32(v.Footer+512+vmdkforge.NumGTEs, 256) }),
		bad("other version", "version 1, want 3",
			func(v *vmdkforge.Stream) { v.U32(v.Footer+512+vmdkforge.Version, 1) }),
		bad("other flags", `flags 0x1, want 0x30001`,
			func(v *vmdkforge.Stream) { v.U32(v.Footer+512+vmdkforge.Flags, 1) }),
		bad("other compression", "compressAlgorithm 0",
			func(v *vmdkforge.Stream) { v.U16(v.Footer+512+vmdkforge.Compress, 0) }),
		bad("other magic", "magic", func(v *vmdkforge.Stream) { v.Text(v.Footer+512, "vmdk") }),
		bad("missing", "marker",
			func(v *vmdkforge.Stream) { v.Bytes = append(v.Bytes[:v.Footer], v.Bytes[v.End:]...) }),
		bad("last sector is not the end", "end of stream", func(v *vmdkforge.Stream) { v.U32(v.End+12, 1) }),
		bad("gdOffset past the end", "grain directory offset 1099511627776", foot(vmdkforge.GDOffset)(1<<40)),
		bad("gdOffset 0", "grain directory offset 0", foot(vmdkforge.GDOffset)(0)),
		bad("gdOffset in the descriptor", "apart from the descriptor", foot(vmdkforge.GDOffset)(2)),
	})
}

// Versions and flags of the header. A footer must agree, if there is one.
func TestHostileHeadersOfStreams(t *testing.T) {
	for _, front := range []bool{false, true} {
		l := vmdkforge.StreamLayout{Front: front}
		set := func(name, says string, class error, put func(f forge.Bytes)) streamCase {
			return streamCase{
				name: fmt.Sprintf("%s, tables in front: %v", name, front), layout: l, class: class,
				seek: says, forge: func(v *vmdkforge.Stream) {
					put(v.Bytes)
					if !front {
						put(v.Bytes[v.Footer+512:])
					}
				},
			}
		}
		flags := func(n uint32) func(f forge.Bytes) {
			return func(f forge.Bytes) { f.U32(vmdkforge.Flags, n) }
		}
		number := func(at int64, n uint64) func(f forge.Bytes) {
			return func(f forge.Bytes) { f.U64(at, n) }
		}
		cases := []streamCase{
			set("no compression algorithm", "compressAlgorithm 0", nil,
				func(f forge.Bytes) { f.U16(vmdkforge.Compress, 0) }),
			set("unknown algorithm", "compressAlgorithm 2", nil, func(f forge.Bytes) { f.U16(vmdkforge.Compress, 2) }),
			set("no markers", "no markers", ondisk.ErrUnsupported, flags(1|1<<16)),
			set("unknown flag", "flags 0x30009", ondisk.ErrUnsupported, flags(9|3<<16)),
			set("capacity 2^64-1", "capacity 18446744073709551615", nil, number(vmdkforge.Capacity, 1<<64-1)),
			set("grain of 2^22 sectors", "grain size 4194304", nil, number(vmdkforge.GrainSize, 1<<22)),
			set("tables of 1024", "numGTEsPerGT 1024", nil, func(f forge.Bytes) { f.U32(vmdkforge.NumGTEs, 1024) }),
			set("damaged in transfer", "text mode", nil, func(f forge.Bytes) { f.U8(vmdkforge.NewLine, '\r') }),
		}
		for _, version := range []uint32{0, 4, 9} {
			cases = append(cases,
				set(fmt.Sprintf("version %d", version), fmt.Sprintf("version %d", version), nil,
					func(f forge.Bytes) { f.U32(vmdkforge.Version, version) }))
		}
		runStreamCases(t, cases)
	}
	text := func(old, new string) func(v *vmdkforge.Stream) {
		return func(v *vmdkforge.Stream) {
			copy(v.Bytes[512:], bytes.Replace(v.Bytes[512:21*512], []byte(old), []byte(new), 1)[:20*512])
		}
	}
	runStreamCases(t, []streamCase{
		{
			name: "algorithm without the flag", layout: vmdkforge.StreamLayout{Front: true},
			forge: func(v *vmdkforge.Stream) {
				v.U32(vmdkforge.Flags, 1)
			}, seek: "compressAlgorithm 1, want 0",
		},
		{
			name: "markers without compression", layout: vmdkforge.StreamLayout{Front: true},
			forge: func(v *vmdkforge.Stream) {
				v.U32(vmdkforge.Flags, 1|1<<17)
				v.U16(vmdkforge.Compress, 0)
			}, seek: "beside that of markers",
		},
		bad("directory at the end without the flags", "only a file of compressed grains",
			func(v *vmdkforge.Stream) {
				v.U32(vmdkforge.Flags, 1)
				v.U16(vmdkforge.Compress, 0)
			}),
		bad("other createType", "want streamOptimized", text("streamOptimized", "monolithicSparse")),
		bad("other size", "extent of 386 sectors", text("RW 385 ", "RW 386 ")),
		{
			name: "no descriptor", layout: vmdkforge.StreamLayout{Front: true},
			forge: func(v *vmdkforge.Stream) {
				v.U64(vmdkforge.DescriptorOffset, 0)
			}, seek: "no descriptor", class: ondisk.ErrUnsupported,
		},
	})
}

// TestHostileStreamsWithTablesInFront reads damaged streams with their tables at the start of the file.
func TestHostileStreamsWithTablesInFront(t *testing.T) {
	runStreamCases(t, []streamCase{
		badInFront("zeros behind the end", "",
			func(v *vmdkforge.Stream) { v.Bytes = append(v.Bytes, make([]byte, 100000)...) }),
		badInFront("more zeros than a grain behind the end", "",
			func(v *vmdkforge.Stream) { v.Bytes = append(v.Bytes, make([]byte, 2<<20)...) }),
		badInFront("data behind the end", "", func(v *vmdkforge.Stream) { v.Bytes = append(v.Bytes, 0, 7) }),
		badInFront("a table among the grains", "", func(v *vmdkforge.Stream) { v.U32(v.End+12, 1) }),
		badInFront("a grain that no table names", "", func(v *vmdkforge.Stream) { v.U32(v.Tables[0]+4, 0) }),
		badInFront("a grain that is missing", "vmdk grain table",
			func(v *vmdkforge.Stream) { v.Bytes = v.Bytes[:v.Grains[3]] }),
		badInFront("a table that names another place", "vmdk marker",
			func(v *vmdkforge.Stream) { v.U32(v.Tables[0]+4, uint32(v.Grains[2]/512)) }),
		badInFront("a table behind the first grain", "vmdk grain",
			func(v *vmdkforge.Stream) { v.U32(v.Directory, uint32(v.Grains[0]/512)) }),
		badInFront("a table in front of the directory", "vmdk grain",
			func(v *vmdkforge.Stream) { v.U32(v.Directory, 1) }),
	})
}

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

// A stream that is truncated anywhere is an error. Only a file with its tables at the start may lack the end marker.
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
					continue // everything in the tables exists
				}
				require.Error(t, seekError(t, file), "%d bytes, front %v", n, front)
			}
		}
		if front {
			require.NoError(t, seekError(t, v.Bytes[:v.End]))
		}
	}
}

// A descriptor with streamOptimized must be in the file that it describes.
func TestDescriptorOfAStreamOutsideOfIt(t *testing.T) {
	text := vmdkforge.Descriptor(streamOptimized, `RW 8 SPARSE "x-flat.vmdk"`)
	_, err := open(folder(disktest.NewMemFile("disk.vmdk", []byte(text), int64(len(text)))))
	require.ErrorIs(t, err, ondisk.ErrFormat)
	require.ErrorContains(t, err, "open the extent file itself")
}

// A table need not follow its grains in a file.
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
