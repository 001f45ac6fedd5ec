//go:build linux || windows

package hostile

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest/forge/qcow2forge"
)

const qcow2Bits = 16

// qcow2Image is a valid qcow2 with one change.
func qcow2Image(change func(q *qcow2forge.File)) Writer {
	return func(t testing.TB, dir string) string {
		t.Helper()
		q := qcow2forge.New(Disk(), qcow2Bits)
		change(q)
		return writeForged("disk.qcow2", q.Bytes)(t, dir)
	}
}

func qcow2Case(name, code string, change func(q *qcow2forge.File), says ...string) Row {
	return unread(name, code, qcow2Image(change), says...)
}

// Qcow2 returns images with wrong references, headers, tables or compressed clusters.
func Qcow2() []Row {
	return slices.Concat(qcow2References(), qcow2Names(), qcow2Numbers(), qcow2Tables(), qcow2Features(),
		qcow2Snapshots(), qcow2Entries(), qcow2Packed(), qcow2Bombs(), qcow2Floods())
}

// qcow2References refer to other files.
func qcow2References() []Row {
	dataFile := func(q *qcow2forge.File) {
		q.BE64(qcow2forge.Incompatible, 4)
		q.AddExtension(0x44415441, []byte("/etc/shadow"))
	}
	refusal := func(r Row) Row {
		r.End = Refused
		return r
	}
	return []Row{
		qcow2Case("T37 external data file", "reference", dataFile, "external data file", `"/etc/shadow"`),
		refusal(qcow2Case("T37 external data file without a name", "reference",
			func(q *qcow2forge.File) { q.BE64(qcow2forge.Incompatible, 4) }, "external data file")),
		refusal(qcow2Case("T37 name of a data file alone", "reference",
			func(q *qcow2forge.File) { q.AddExtension(0x44415441, []byte("x.raw")) }, "external data file", `"x.raw"`)),
		refusal(qcow2Case("T37 missing parent", "reference",
			func(q *qcow2forge.File) { q.SetBacking("base.raw", "raw") }, `there is no "base.raw" in its folder`)),
		qcow2Case("T37 its own parent", "format", func(q *qcow2forge.File) { q.SetBacking("disk.qcow2", "qcow2") },
			"in the chain already"),
		qcow2Case("T37 parent of a format that is not read", "unsupported",
			func(q *qcow2forge.File) { q.SetBacking("base.qed", "qed") }, `"base.qed"`, `"qed"`),
		qcow2Case("T37 name behind the first cluster", "format",
			func(q *qcow2forge.File) { q.BE64(qcow2forge.Backing, 1<<40) }, "backing_file_offset 1099511627776"),
		qcow2Case("T37 name inside the header", "format", func(q *qcow2forge.File) { q.BE64(qcow2forge.Backing, 8) },
			"backing_file_offset 8, want 0, or from 112"),
		qcow2Case("T37 name of 1024 bytes", "format", func(q *qcow2forge.File) {
			q.SetBacking(strings.Repeat("x", 1024), "")
		}, "at 0x10", "backing_file_size 1024"),
		qcow2Case("T37 name that leaves the cluster", "format", func(q *qcow2forge.File) {
			q.SetBacking("base.raw", "")
			q.BE32(qcow2forge.BackingSize, 9)
		}, "backing_file_size 9"),
	}
}

// qcow2Names are names outside the folder.
func qcow2Names() []Row {
	var out []Row
	for _, name := range []string{
		"/etc/shadow", "../x", `..\x`, `C:\x`, "nbd://127.0.0.1/x", "nbd:127.0.0.1:1",
		`json:{"driver":"file","filename":"/etc/shadow"}`, "json:{}",
		"..", "", "x\x1b[2Jy", "x\x00y", strings.Repeat("x", 600),
	} {
		out = append(out, qcow2Case(fmt.Sprintf("T37 name %.20q", name), "reference",
			func(q *qcow2forge.File) { q.SetBacking(name, "raw") },
			fmt.Sprintf("%.256q", name), "reference not allowed", "must be a plain name"))
	}
	return out
}

func qcow2Field32(name string, at int64, v uint32, says ...string) Row {
	return qcow2Case("T38 "+name, "format", func(q *qcow2forge.File) { q.BE32(at, v) },
		append(says, "qcow2 header at "+fmt.Sprintf("%#x", at))...)
}

func qcow2Field64(name string, at int64, v uint64, says ...string) Row {
	return qcow2Case("T38 "+name, "format", func(q *qcow2forge.File) { q.BE64(at, v) },
		append(says, "qcow2 header at "+fmt.Sprintf("%#x", at))...)
}

func qcow2Numbers() []Row {
	var out []Row
	for _, n := range []uint32{0, 8, 22, 63, 1<<32 - 1} {
		out = append(out, qcow2Field32(fmt.Sprintf("cluster_bits %d", n), qcow2forge.ClusterBits, n,
			fmt.Sprintf("cluster_bits %d, want 9 to 21", n)))
	}
	for _, n := range []uint32{0, 8, 96, 103, 105, 1 << 16 * 2, 1<<32 - 1} {
		out = append(out, qcow2Field32(fmt.Sprintf("header_length %d", n), qcow2forge.Length, n,
			fmt.Sprintf("header_length %d, want a multiple of 8 from 104", n)))
	}
	for _, n := range []uint64{0, 513, 1 << 63, 1<<64 - 512} {
		out = append(out, qcow2Field64(fmt.Sprintf("size %d", n), qcow2forge.Size, n,
			fmt.Sprintf("size %d, want a multiple of 512", n)))
	}
	for _, n := range []uint32{7, 64, 1<<32 - 1} {
		out = append(out, qcow2Field32(fmt.Sprintf("refcount_order %d", n), qcow2forge.Order, n,
			fmt.Sprintf("refcount_order %d, want 0 to 6", n)))
	}
	return append(out,
		qcow2Case("T38 version 1", "unsupported", func(q *qcow2forge.File) { q.BE32(qcow2forge.Version, 1) },
			"qcow: recognised, not supported", "qemu-img convert"),
		qcow2Case("T38 version 4", "unsupported", func(q *qcow2forge.File) { q.BE32(qcow2forge.Version, 4) },
			"qcow2 header at 0x4", "version 4"),
		qcow2Case("T38 cut in the header", "format", func(q *qcow2forge.File) { q.Bytes = q.Bytes[:71] },
			"file size 71, want at least 72"),
		qcow2Case("T38 cut in the header of version 3", "format", func(q *qcow2forge.File) { q.Bytes = q.Bytes[:103] },
			"file size 103, want at least 104"),
		qcow2Case("T38 cut in front of the L1 table", "format", func(q *qcow2forge.File) { q.Bytes = q.Bytes[:q.L1] },
			"l1_table_offset"),
		qcow2Case("T38 extension that leaves the cluster", "format", func(q *qcow2forge.File) {
			q.AddExtension(1, make([]byte, 8))
			q.BE32(116, 1<<32-1)
		}, "qcow2 header extension at 0x74", "length 4294967295"),
	)
}

// qcow2Tables are impossible table offsets.
func qcow2Tables() []Row {
	var out []Row
	for _, n := range []uint64{0, 512, 3<<16 + 512, 1 << 40, 1<<64 - 1<<16} {
		says := "a multiple of 65536 above 0 from which"
		out = append(out,
			qcow2Field64(fmt.Sprintf("L1 table at %#x", n), qcow2forge.L1, n, "l1_table_offset", says),
			qcow2Field64(fmt.Sprintf("refcount table at %#x", n), qcow2forge.RefTable, n, "refcount_table_offset",
				says))
	}
	return append(out,
		qcow2Field32("L1 table that is too short", qcow2forge.L1Size, 0, "l1_size 0, want at least 1 entries"),
		qcow2Case("T38 disk that is too large for the L1 table", "format",
			func(q *qcow2forge.File) { q.BE64(qcow2forge.Size, 1<<60) },
			"qcow2 header at 0x24", "want at least 2147483648 entries"),
		qcow2Case("T38 l1_size of 2^32-1", "format", func(q *qcow2forge.File) { q.BE32(qcow2forge.L1Size, 1<<32-1) },
			"34359738360 bytes fit into the file"),
		qcow2Case("T38 refcount table of 2^32-1 clusters", "format",
			func(q *qcow2forge.File) { q.BE32(qcow2forge.RefClusters, 1<<32-1) }, "refcount_table_offset",
			"fit into the file"),
		qcow2Case("T38 refcount table over the L1 table", "format",
			func(q *qcow2forge.File) { q.BE64(qcow2forge.RefTable, uint64(q.L1)) }, "a place apart from the L1 table"),
		unread("T38 L1 table of 128 MiB", "limit", hugeL1, "L1 table of 16777216 entries"),
	)
}

// hugeL1 is an image whose L1 table is within its file, in a hole.
func hugeL1(t testing.TB, dir string) string {
	t.Helper()
	path := qcow2Image(func(q *qcow2forge.File) { q.BE32(qcow2forge.L1Size, 1<<24) })(t, dir)
	require.NoError(t, os.Truncate(path, 1<<40))
	return path
}

// garbageL1 is an image whose L1 table of 32 MiB is garbage after its first entry, and one whose 32 MiB point to one L2
// table.
func garbageL1(entry uint64) Writer {
	return func(t testing.TB, dir string) string {
		t.Helper()
		return qcow2Image(func(q *qcow2forge.File) {
			table := make([]byte, 32<<20)
			for i := range len(table) / 8 {
				binary.BigEndian.PutUint64(table[8*i:], entry)
			}
			binary.BigEndian.PutUint64(table, uint64(q.L2)|qcow2forge.Copied)
			at := int64(len(q.Bytes))
			q.Bytes = append(q.Bytes, table...)
			q.BE64(qcow2forge.L1, uint64(at))
			q.BE32(qcow2forge.L1Size, 1<<22)
		})(t, dir)
	}
}

func qcow2Floods() []Row {
	return []Row{
		broken("T38 garbage in a large L1 table", "format", garbageL1(0x1234567),
			"65536 invalid entries in L1 and L2 tables"),
		broken("T38 a large L1 table that leads to one L2 table", "format", garbageL1(4<<16),
			"clusters with more references", "the cluster at 0x40000"),
	}
}

func qcow2Features() []Row {
	bits := func(v uint64) func(q *qcow2forge.File) {
		return func(q *qcow2forge.File) { q.BE64(qcow2forge.Incompatible, v) }
	}
	packing := func(v uint64, kind uint8) func(q *qcow2forge.File) {
		return func(q *qcow2forge.File) {
			q.BE64(qcow2forge.Incompatible, v)
			q.U8(qcow2forge.Compression, kind)
		}
	}
	named := func(q *qcow2forge.File) {
		q.BE64(qcow2forge.Incompatible, 1<<5)
		q.AddExtension(0x6803f857, append([]byte{0, 5}, append([]byte("new\x1bthing"), make([]byte, 37)...)...))
	}
	crypt := func(n uint32) func(q *qcow2forge.File) {
		return func(q *qcow2forge.File) { q.BE32(qcow2forge.Crypt, n) }
	}
	marked := func(name, code string, bit uint64, says string) Row {
		return kept("T38 "+name, code, qcow2Image(bits(bit)), "incompatible feature bit", says)
	}
	return []Row{
		qcow2Case("T38 unknown feature", "unsupported", bits(1<<5), "qcow2 header at 0x48", "feature bit 5"),
		qcow2Case("T38 unknown feature 63", "unsupported", bits(1<<63), "qcow2 header at 0x48", "feature bit 63"),
		qcow2Case("T38 unknown feature with a name", "unsupported", named, `feature bit 5 ("new\x1bthing")`),
		marked("dirty", "busy", 1, "not closed cleanly"),
		marked("corrupt", "format", 2, "marked as corrupt"),
		qcow2Case("T38 encryption 1", "unsupported", crypt(1), "qcow2 header at 0x20", "encryption AES"),
		qcow2Case("T38 encryption 2", "unsupported", crypt(2), "encryption LUKS"),
		qcow2Case("T38 encryption 3", "unsupported", crypt(3), "encryption method 3"),
		qcow2Case("T38 compression without its bit", "format", packing(0, 1), "qcow2 header at 0x68",
			"compression_type 1"),
		qcow2Case("T38 bit without its compression", "format", packing(8, 0), "compression_type 0"),
		qcow2Case("T38 unknown compression", "unsupported", packing(8, 2), "compression type 2"),
		unread("T38 extended L2 in small clusters", "format", smallExtended, "cluster_bits 12, want 14 to 21"),
	}
}

func smallExtended(t testing.TB, dir string) string {
	t.Helper()
	q := qcow2forge.New(make([]byte, 1<<20), 12)
	q.BE64(qcow2forge.Incompatible, 1<<4)
	return writeForged("disk.qcow2", q.Bytes)(t, dir)
}

func qcow2Snapshots() []Row {
	table := func(n uint32, change func(q *qcow2forge.File, at int64)) func(q *qcow2forge.File) {
		return func(q *qcow2forge.File) {
			at := q.Append(make([]byte, 1<<16))
			q.BE64(qcow2forge.SnapTable, uint64(at))
			q.BE32(qcow2forge.Snapshots, n)
			change(q, at)
		}
	}
	return []Row{
		qcow2Field32("65,537 snapshots", qcow2forge.Snapshots, 65537, "nb_snapshots 65537, want at most 65536"),
		qcow2Field32("4 billion snapshots", qcow2forge.Snapshots, 1<<32-1, "nb_snapshots 4294967295"),
		qcow2Case("T38 snapshots without a table", "format",
			func(q *qcow2forge.File) { q.BE32(qcow2forge.Snapshots, 1) }, "snapshots_offset 0"),
		qcow2Case("T38 snapshot table past the end", "format",
			table(1, func(q *qcow2forge.File, _ int64) { q.BE64(qcow2forge.SnapTable, 1<<40) }),
			"snapshots_offset 1099511627776"),
		qcow2Case("T38 more snapshots than the file holds", "format", table(65536, func(*qcow2forge.File, int64) {}),
			"snapshots_offset"),
		qcow2Case("T38 snapshot with 4 GiB of extra data", "format",
			table(1, func(q *qcow2forge.File, at int64) { q.BE32(at+36, 1<<32-1) }), "qcow2 snapshot table",
			"extra data size 4294967295"),
		qcow2Case("T38 snapshot whose name leaves the file", "format",
			table(1600, func(q *qcow2forge.File, at int64) { q.BE32(at+1599*40+12, 1<<32-1) }),
			"length of id and name 131110"),
		qcow2Case("T38 L1 table of a snapshot past the end", "format",
			table(1, func(q *qcow2forge.File, at int64) { q.BE64(at, 1<<40) }), "L1 table offset 1099511627776"),
		qcow2Case("T38 huge L1 table of a snapshot", "format",
			table(1, func(q *qcow2forge.File, at int64) { q.BE32(at+8, 1<<32-1) }), "34359738360 bytes fit"),
	}
}

// qcow2Entries are damaged L1 and L2 tables: inspect reports them, a copy fails.
func qcow2Entries() []Row {
	entry := func(name string, v func(q *qcow2forge.File) uint64, says ...string) Row {
		h := qcow2Case("T38 "+name, "format", func(q *qcow2forge.File) { q.SetEntry(5, v(q)) },
			append(says, "1 invalid entries in L1 and L2 tables", "qcow2 L2 table at 0x40028")...)
		h.End = Broken
		return h
	}
	at := func(v uint64) func(q *qcow2forge.File) uint64 { return func(*qcow2forge.File) uint64 { return v } }
	shared := qcow2Case("T38 two entries to one cluster", "format",
		func(q *qcow2forge.File) { q.SetEntry(5, q.Entry(4)) }, "1 clusters with more references", "2 uses")
	shared.End = Broken
	refTable := qcow2Case("T39 data in the refcount block", "format",
		func(q *qcow2forge.File) { q.SetEntry(5, uint64(q.RefBlock)|qcow2forge.Copied) },
		"1 clusters with more references", "as a table and as data")
	refTable.End = Broken
	l1 := func(v uint64) func(q *qcow2forge.File) { return func(q *qcow2forge.File) { q.BE64(q.L1, v) } }
	return []Row{
		entry("cluster past the end", at(1<<40|qcow2forge.Copied), "bytes fit into the file"),
		entry("cluster that is not aligned", at(5<<16+512|qcow2forge.Copied), "a multiple of the cluster size"),
		entry("reserved bit 1", at(6<<16|2|qcow2forge.Copied), "reserved"),
		entry("reserved bit 56", at(6<<16|1<<56|qcow2forge.Copied), "reserved"),
		entry("copied without a cluster", at(qcow2forge.Copied), "bit 63 clear"),
		entry("cluster in the L1 table", at(3<<16|qcow2forge.Copied), "a place apart from L1"),
		entry("cluster in the refcount table", at(1<<16|qcow2forge.Copied), "a place apart from L1"),
		entry("cluster in its own table", func(q *qcow2forge.File) uint64 { return uint64(q.L2) | qcow2forge.Copied },
			"a place apart from L1, L2"),
		shared, refTable,
		qcow2Case("T38 L2 table that is not aligned", "format", l1(4<<16+512), "qcow2 L1 table at 0x30000",
			"entry 0x40200"),
		qcow2Case("T38 L2 table past the end", "format", l1(1<<40), "qcow2 L1 table at 0x30000",
			"entry 0x10000000000"),
		qcow2Case("T38 L2 table in the L1 table", "format", l1(3<<16|qcow2forge.Copied), "qcow2 L1 table at 0x30000"),
		qcow2Case("T38 L2 table with a reserved bit", "format", l1(4<<16|1), "qcow2 L1 table at 0x30000"),
		qcow2Case("T38 last cluster cut", "format", func(q *qcow2forge.File) { q.Bytes = q.Bytes[:5<<16+100] },
			"bytes fit into the file"),
	}
}

// deflated and zstandard compress b with QEMU's two compression types.
func deflated(b []byte) []byte {
	var out bytes.Buffer
	w, err := flate.NewWriter(&out, 9)
	if err != nil {
		panic(err)
	}
	if _, err := w.Write(b); err != nil {
		panic(err)
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return out.Bytes()
}

func zstandard(b []byte) []byte {
	w, err := zstd.NewWriter(nil)
	if err != nil {
		panic(err)
	}
	return w.EncodeAll(b, nil)
}

// qcow2Packed are compressed cluster descriptors with invalid targets.
func qcow2Packed() []Row {
	packed := func(name string, change func(q *qcow2forge.File), says ...string) Row {
		h := qcow2Case("T39 "+name, "format", change, append(says, "1 invalid entries in L1 and L2 tables",
			"qcow2 L2 table at 0x40028")...)
		h.End = Broken
		return h
	}
	return []Row{
		packed("descriptor beyond the end", func(q *qcow2forge.File) { q.SetPacked(5, 1<<40, 100) },
			"compressed data inside the file"),
		packed("descriptor whose data passes the end", func(q *qcow2forge.File) { q.SetPacked(5, q.End-512, 1024) },
			"compressed data inside the file"),
		packed("descriptor of the header", func(q *qcow2forge.File) { q.SetPacked(5, 0, 100) }, "apart from header"),
		packed("descriptor of the L1 table", func(q *qcow2forge.File) { q.SetPacked(5, q.L1, 100) },
			"apart from header, L1"),
		packed("compressed and copied", func(q *qcow2forge.File) {
			q.SetPacked(5, q.End-512, 100)
			q.SetEntry(5, q.Entry(5)|qcow2forge.Copied)
		}, "bit 63 clear"),
	}
}

// qcow2Bombs are streams of another length than a cluster, before the partition table: nothing can be shown.
func qcow2Bombs() []Row {
	packed := func(name string, bits uint64, kind uint8, stream []byte, says ...string) Row {
		return qcow2Case("T39 "+name, "format", func(q *qcow2forge.File) {
			q.BE64(qcow2forge.Incompatible, bits)
			q.U8(qcow2forge.Compression, kind)
			at := q.Append(stream)
			q.SetPacked(0, at, int64(len(stream)))
		}, append(says, "qcow2 compressed cluster at 0x", "stream", "want one that gives 65536 bytes")...)
	}
	bomb := make([]byte, 64<<20)
	zbomb := zstandard(bomb)
	garbage := bytes.Repeat([]byte{0xff}, 1000)
	// single segment, content size of 8 bytes
	huge := binary.LittleEndian.AppendUint64([]byte{0x28, 0xb5, 0x2f, 0xfd, 0xe0}, 1<<60)
	huge = append(huge, 0x03, 0x00, 0x10, 0x00)
	return []Row{
		packed("deflate bomb", 0, 0, deflated(bomb), "goes on"),
		packed("deflate of a byte too much", 0, 0, deflated(bomb[:1<<16+1]), "goes on"),
		packed("deflate of a byte too few", 0, 0, deflated(bomb[:1<<16-1]), "ends after 65535 bytes"),
		packed("no deflate", 0, 0, garbage, "ends after 0 bytes"),
		packed("zstd bomb", 8, 1, zbomb, "size"),
		packed("zstd of a byte too much", 8, 1, zstandard(bomb[:1<<16+1]), "after 0 bytes"),
		packed("zstd of a byte too few", 8, 1, zstandard(bomb[:1<<16-1]), "after 65535 bytes"),
		packed("no zstd", 8, 1, garbage, "after 0 bytes"),
		packed("zstd that states 2^60 bytes", 8, 1, huge, "after 0 bytes"),
	}
}
