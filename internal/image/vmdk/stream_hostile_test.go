package vmdk

import (
	"bytes"
	"encoding/binary"
	"fmt"
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
			requireError(t, seekError(t, v.Bytes), tc.class, tc.seek)
		})
	}
}

func packing(pack func(packed []byte) []byte) vmdkforge.StreamLayout {
	return vmdkforge.StreamLayout{Pack: func(_ int64, data []byte) []byte { return pack(vmdkforge.Deflated(data)) }}
}

// What is in a grain.
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
		// Without a size it is no grain: what stands there may not come now.
		{name: "empty", layout: packing(func([]byte) []byte { return nil }), seek: "size 0"},
		same("the last grain is whole", "", vmdkforge.StreamLayout{}),
		same("the last grain is cut", "", vmdkforge.StreamLayout{Short: true}),
	})
}

// A bomb costs no more than a grain.
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
		{
			name: "size 2^32-1", forge: func(v *vmdkforge.Stream) { v.U32(v.Grains[1]+8, 1<<32-1) },
			seek: "size 4294967295",
		},
		{
			name:  "size beyond the end of the file",
			forge: func(v *vmdkforge.Stream) { v.U32(v.Grains[3]+8, 2*grain64) }, seek: "size 131072",
		},
		{
			name: "lba inside of a grain", forge: lba(1, 192), seek: "lba 192",
		},
		{name: "lba at the capacity", forge: lba(3, 512), seek: "lba 512"},
		{
			name: "lba 2^64-128", forge: lba(3, 1<<64-128), seek: "lba 18446744073709551488",
		},
		{name: "lba going backwards", forge: lba(2, 0), seek: "lba 0"},
		{name: "lba repeated", forge: lba(2, 128), seek: "lba 128"},
		{name: "a grain at another place", forge: lba(2, 384), seek: "lba 384"},
		{name: "unknown type", forge: func(v *vmdkforge.Stream) { v.U32(v.Tables[0]+12, 4) }},
		{
			name: "type 2^32-1", forge: func(v *vmdkforge.Stream) { v.U32(v.Tables[0]+12, 1<<32-1) },
		},
	})
}

// TestHostileEndsOfStreams has what is behind the grains broken: tables, directory, footer and end.
func TestHostileEndsOfStreams(t *testing.T) {
	runStreamCases(t, []streamCase{
		{
			name: "end with a value", forge: func(v *vmdkforge.Stream) { v.U64(v.End, 1) }, seek: "end of stream",
		},
		{
			name:  "end in the middle",
			forge: func(v *vmdkforge.Stream) { clear(v.Bytes[v.Tables[0] : v.Tables[0]+16]) },
		},
		{
			name: "table of other length", forge: func(v *vmdkforge.Stream) { v.U64(v.Tables[0], 5) },
		},
		{
			name: "directory of other length", forge: func(v *vmdkforge.Stream) { v.U64(v.Directory, 1<<40) },
		},
		{
			name: "footer of other length", forge: func(v *vmdkforge.Stream) { v.U64(v.Footer, 2) }, seek: "footer",
		},
		{
			name: "two directories", forge: func(v *vmdkforge.Stream) { v.U32(v.Footer+12, 2) }, seek: "footer",
		},
		{name: "no directory", forge: func(v *vmdkforge.Stream) { v.U32(v.Directory+12, 3) }},
		{name: "no table", forge: func(v *vmdkforge.Stream) {
			at := v.Tables[0]
			v.Bytes = slices.Delete(v.Bytes, int(at), int(at)+5*512)
		}, seek: "grain directory offset"},
		{
			name: "a grain behind the directory", forge: func(v *vmdkforge.Stream) { v.U32(v.Footer+8, 77) },
			seek: "footer",
		},
		{
			name: "a table that names another place", forge: func(v *vmdkforge.Stream) { v.U32(v.Tables[0]+512+4, 5) },
			seek: "entry 5",
		},
		{
			name: "a table that leaves a grain out", forge: func(v *vmdkforge.Stream) { v.U32(v.Tables[0]+512+4, 0) },
		},
		{
			name:  "a table that names a grain more",
			forge: func(v *vmdkforge.Stream) { v.U32(v.Tables[0]+512+16, 130) },
		},
		{
			name: "two entries to one grain",
			forge: func(v *vmdkforge.Stream) {
				v.Put(v.Tables[0]+512+4, v.Bytes[v.Tables[0]+512:][:4])
			}, seek: "lba 0, want 128",
		},
		{
			name:  "a directory that names another place",
			forge: func(v *vmdkforge.Stream) { v.U32(v.Directory+512, 129) }, seek: "vmdk grain",
		},
		{
			name: "a directory that names no table", forge: func(v *vmdkforge.Stream) { v.U32(v.Directory+512, 0) },
		},
		{
			name: "zeros behind the end",
			forge: func(v *vmdkforge.Stream) {
				v.Bytes = append(v.Bytes, make([]byte, 512)...)
			}, seek: "footer",
		},
		{
			name: "data behind the end", forge: func(v *vmdkforge.Stream) { v.Bytes = append(v.Bytes, 1) },
			seek: "file size",
		},
	})
}

// The footer.
func TestHostileFooters(t *testing.T) {
	foot := func(field int64) func(v uint64) func(v *vmdkforge.Stream) {
		return func(n uint64) func(v *vmdkforge.Stream) {
			return func(v *vmdkforge.Stream) { v.U64(v.Footer+512+field, n) }
		}
	}
	both := func(name, says string, forged func(v *vmdkforge.Stream)) streamCase {
		return streamCase{name: name, forge: forged, seek: says}
	}
	runStreamCases(t, []streamCase{
		both("gdOffset 2^64-1", "grain directory offset 18446744073709551615", foot(vmdkforge.GDOffset)(1<<64-1)),
		both("other capacity", "capacity 1000, want 385, as in the header", foot(vmdkforge.Capacity)(1000)),
		both("other grain", "grain size 64, want 128, as in the header", foot(vmdkforge.GrainSize)(64)),
		both("other table size", "numGTEsPerGT 256",
			func(v *vmdkforge.Stream) { v.U32(v.Footer+512+vmdkforge.NumGTEs, 256) }),
		both("other version", "version 1, want 3",
			func(v *vmdkforge.Stream) { v.U32(v.Footer+512+vmdkforge.Version, 1) }),
		both("other flags", `flags 0x1, want 0x30001`,
			func(v *vmdkforge.Stream) { v.U32(v.Footer+512+vmdkforge.Flags, 1) }),
		both("other compression", "compressAlgorithm 0",
			func(v *vmdkforge.Stream) { v.U16(v.Footer+512+vmdkforge.Compress, 0) }),
		both("other magic", "magic", func(v *vmdkforge.Stream) { v.Text(v.Footer+512, "vmdk") }),
		both("missing", "marker",
			func(v *vmdkforge.Stream) { v.Bytes = append(v.Bytes[:v.Footer], v.Bytes[v.End:]...) }),
		{
			name: "last sector is not the end", forge: func(v *vmdkforge.Stream) { v.U32(v.End+12, 1) },
			seek: "end of stream",
		},
		{
			name: "gdOffset past the end", forge: foot(vmdkforge.GDOffset)(1 << 40),
			seek: "grain directory offset 1099511627776",
		},
		{
			name: "gdOffset 0", forge: foot(vmdkforge.GDOffset)(0), seek: "grain directory offset 0",
		},
		{
			name: "gdOffset in the descriptor", forge: foot(vmdkforge.GDOffset)(2), seek: "apart from the descriptor",
		},
	})
}

// Versions and flags of the header. A footer says the same, where there is one.
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
		{name: "directory at the end without the flags", forge: func(v *vmdkforge.Stream) {
			v.U32(vmdkforge.Flags, 1)
			v.U16(vmdkforge.Compress, 0)
		}, seek: "only a file of compressed grains"},
		{
			name: "other createType", forge: text("streamOptimized", "monolithicSparse"), seek: "want streamOptimized",
		},
		{
			name: "other size", forge: text("RW 385 ", "RW 386 "), seek: "extent of 386 sectors",
		},
		{
			name: "no descriptor", layout: vmdkforge.StreamLayout{Front: true},
			forge: func(v *vmdkforge.Stream) {
				v.U64(vmdkforge.DescriptorOffset, 0)
			}, seek: "no descriptor", class: ondisk.ErrUnsupported,
		},
	})
}

// Files with their tables in front.
func TestHostileStreamsWithTablesInFront(t *testing.T) {
	front := vmdkforge.StreamLayout{Front: true}
	runStreamCases(t, []streamCase{
		{
			name: "zeros behind the end", layout: front,
			forge: func(v *vmdkforge.Stream) { v.Bytes = append(v.Bytes, make([]byte, 100000)...) },
		},
		{
			name: "more zeros than a grain behind the end", layout: front,
			forge: func(v *vmdkforge.Stream) {
				v.Bytes = append(v.Bytes, make([]byte, 2<<20)...)
			},
		},
		{
			name: "data behind the end", layout: front,
			forge: func(v *vmdkforge.Stream) { v.Bytes = append(v.Bytes, 0, 7) },
		},
		{
			name: "a table among the grains", layout: front, forge: func(v *vmdkforge.Stream) { v.U32(v.End+12, 1) },
		},
		{
			name: "a grain that no table names", layout: front,
			forge: func(v *vmdkforge.Stream) { v.U32(v.Tables[0]+4, 0) },
		},
		{
			name: "a grain that is missing", layout: front,
			forge: func(v *vmdkforge.Stream) { v.Bytes = v.Bytes[:v.Grains[3]] }, seek: "vmdk grain table",
		},
		{
			name: "a table that names another place", layout: front,
			forge: func(v *vmdkforge.Stream) {
				v.U32(v.Tables[0]+4, uint32(v.Grains[2]/512))
			}, seek: "vmdk marker",
		},
		{
			name: "a table behind the first grain", layout: front,
			forge: func(v *vmdkforge.Stream) {
				v.U32(v.Directory, uint32(v.Grains[0]/512))
			}, seek: "vmdk grain",
		},
		{
			name: "a table in front of the directory", layout: front,
			forge: func(v *vmdkforge.Stream) {
				v.U32(v.Directory, 1)
			}, seek: "vmdk grain",
		},
	})
}
