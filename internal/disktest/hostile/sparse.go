//go:build linux || windows

package hostile

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
)

// sparseImage is a valid sparse disk with one change.
func sparseImage(change func(v *vmdkforge.Sparse)) Writer {
	return func(t testing.TB, dir string) string {
		t.Helper()
		v := vmdkforge.NewSparse(Disk())
		change(v)
		return writeForged("disk.vmdk", v.Bytes)(t, dir)
	}
}

// sparseOf is sparseImage of a larger disk with two grain tables.
func sparseOf2Tables(change func(v *vmdkforge.Sparse)) Writer {
	return func(t testing.TB, dir string) string {
		t.Helper()
		disk := make(forge.Bytes, 33<<20)
		disk.Put(0, Disk())
		disk.Text(32<<20, "in the second table")
		v := vmdkforge.NewSparse(disk)
		change(v)
		return writeForged("disk.vmdk", v.Bytes)(t, dir)
	}
}

// field64 changes a field of the header and expects the message to name it.
func field64(name string, at int64, v uint64, says ...string) Row {
	return unread(name, "format", sparseImage(func(s *vmdkforge.Sparse) { s.U64(at, v) }),
		append(says, "vmdk sparse header")...)
}

func grainSizes() []Row {
	var out []Row
	for _, n := range []uint64{0, 3, 4, 129, 4096, 1 << 22, 1<<64 - 1} {
		out = append(out, field64(fmt.Sprintf("T14 grain size %d", n), vmdkforge.GrainSize, n,
			"at 0x14", fmt.Sprintf("grain size %d", n), "want a power of two from 8 to 2048"))
	}
	for _, n := range []uint32{0, 1, 511, 1024, 1<<32 - 1} {
		out = append(out, unread(fmt.Sprintf("T15 numGTEsPerGT %d", n), "format",
			sparseImage(func(s *vmdkforge.Sparse) { s.U32(vmdkforge.NumGTEs, n) }), "vmdk sparse header at 0x2c",
			fmt.Sprintf("numGTEsPerGT %d", n), "want 512"))
	}
	return out
}

// capacities are refused capacities.
func capacities() []Row {
	want := "want 1 to 18014398509481983 sectors"
	tooBig := []string{"at 0x30", "redundant grain directory offset 21", "bytes fit into the file of"}
	grain1 := func(s *vmdkforge.Sparse) {
		s.U64(vmdkforge.Capacity, 1<<25)
		s.U64(vmdkforge.GrainSize, 1)
		s.U32(vmdkforge.NumGTEs, 1)
	}
	other := []string{"vmdk descriptor line 9", "4096 sectors", "capacity in the header is 4097"}
	return []Row{
		field64("T16 capacity 2^64-1", vmdkforge.Capacity, 1<<64-1, "at 0xc", "capacity 18446744073709551615", want),
		field64("T16 capacity 2^63", vmdkforge.Capacity, 1<<63, "at 0xc", "capacity 9223372036854775808", want),
		field64("T16 capacity of 2^63 bytes", vmdkforge.Capacity, 1<<54, "at 0xc", "capacity 18014398509481984", want),
		// The directory of 64 TiB has 8 MiB, more than the file.
		field64("T16 64 TiB in a small file", vmdkforge.Capacity, 1<<37, append(tooBig, "8388608 bytes")...),
		unread("T16 capacity other than the extent's", "format",
			sparseImage(func(s *vmdkforge.Sparse) { s.U64(vmdkforge.Capacity, 4097) }), other...),
		unread("T17 directory of 128 MiB", "format", sparseImage(grain1), "at 0x14", "grain size 1", "want"),
		field64("T17 directory beyond the file", vmdkforge.Capacity, 1<<50, append(tooBig, "68719476736 bytes")...),
	}
}

func directories() []Row {
	const gd, rgd = vmdkforge.GDOffset, vmdkforge.RGDOffset
	fits := "want a sector from which 4 bytes fit into the file"
	return []Row{
		field64("T18 gdOffset 0", gd, 0, "at 0x38", "grain directory offset 0", fits),
		field64("T18 gdOffset 1", gd, 1, "at 0x38", "grain directory offset 1",
			"want a place apart from the descriptor"),
		field64("T18 gdOffset inside the descriptor", gd, 20, "at 0x38", "grain directory offset 20",
			"want a place apart from the descriptor"),
		field64("T18 gdOffset 2^40", gd, 1<<40, "at 0x38", "grain directory offset 1099511627776", fits),
		field64("T18 gdOffset that wraps", gd, 1<<55, "at 0x38", "grain directory offset 36028797018963968", fits),
		field64("T18 gdOffset equal to rgdOffset", gd, 21, "at 0x38", "grain directory offset 21",
			"want a place apart from the redundant"),
		field64("T18 rgdOffset 2^40", rgd, 1<<40, "at 0x30", "redundant grain directory offset 1099511627776", fits),
		field64("T18 rgdOffset inside the descriptor", rgd, 2, "at 0x30", "redundant grain directory offset 2",
			"want a place apart from the descriptor"),
		field64("T18 descriptorOffset beyond the file", vmdkforge.DescriptorOffset, 1<<40, "at 0x1c",
			"descriptor offset 1099511627776", "bytes fit into the file"),
		// All ones mean a file of compressed grains, which this is not.
		unread("T18 gdOffset 2^64-1", "format", sparseImage(func(v *vmdkforge.Sparse) { v.U64(gd, 1<<64-1) }),
			"at 0x38", "only a file of compressed grains"),
	}
}

// overlaps are doubly used places: inspect reports all of them, a copy fails.
func overlaps() []Row {
	secondTable := func(at func(v *vmdkforge.Sparse) int64) func(v *vmdkforge.Sparse) {
		return func(v *vmdkforge.Sparse) { v.U32(v.GD+4, uint32(at(v)/512)) }
	}
	table0 := secondTable(func(v *vmdkforge.Sparse) int64 { return v.GT })
	nearTable0 := secondTable(func(v *vmdkforge.Sparse) int64 { return v.GT + 512 })
	inDirectory := secondTable(func(v *vmdkforge.Sparse) int64 { return v.GD })
	grain := func(i int64, sector func(v *vmdkforge.Sparse) uint32) Writer {
		return sparseImage(func(v *vmdkforge.Sparse) { v.SetGrain(i, sector(v)) })
	}
	row := func(name string, image Writer, says ...string) Row {
		return broken("T19 "+name, "format", image, says...)
	}
	return []Row{
		row("two directory entries to one table", sparseOf2Tables(table0), "1 grain tables at a place in use",
			"grain directory entry 1 names sector"),
		row("two tables that overlap", sparseOf2Tables(nearTable0), "1 grain tables at a place in use",
			"grain directory entry 1 names sector"),
		row("table inside the directory", sparseOf2Tables(inDirectory),
			"1 grain tables outside of the file or inside the directory", "vmdk grain directory at 0x3c04",
			"entry 30, want 0, or the sector"),
		row("table beyond the file", sparseOf2Tables(secondTable(func(*vmdkforge.Sparse) int64 { return 1 << 40 })),
			"1 grain tables outside of the file or inside the directory", "vmdk grain directory at 0x3c04",
			"entry 2147483648, want 0, or the sector"),
		row("two grains at one place", grain(5, func(v *vmdkforge.Sparse) uint32 { return v.Grain(4) }),
			"1 grains at a place in use"),
		row("two grains that overlap", grain(5, func(v *vmdkforge.Sparse) uint32 { return v.Grain(4) + 8 }),
			"1 grains at a place in use"),
		row("two million entries to one table", manyEntries, "2097151 grain tables at a place in use"),
	}
}

// manyEntries is a disk of 64 TiB whose directory of 8 MiB refers to one full table in every entry: 2^30 grains for a
// program that does not notice.
func manyEntries(t testing.TB, dir string) string {
	t.Helper()
	v := vmdkforge.NewSparse(Disk())
	giant(v, len(v.Bytes))
	for i := range int64(512) {
		v.U32(v.GT+4*i, v.Grain(16))
	}
	v.U32(v.GT, v.Grain(1))
	gd := make([]byte, 8<<20)
	for i := range len(gd) / 4 {
		binary.LittleEndian.PutUint32(gd[4*i:], uint32(v.GT/512))
	}
	v.Bytes = append(v.Bytes, gd...)
	return writeForged("disk.vmdk", v.Bytes)(t, dir)
}

// giant turns v into a disk of 64 TiB whose only directory is at the given byte.
func giant(v *vmdkforge.Sparse, gd int) {
	v.U32(vmdkforge.Flags, 1)
	v.U64(vmdkforge.RGDOffset, 0)
	v.U64(vmdkforge.Capacity, 1<<37)
	v.U64(vmdkforge.GDOffset, uint64(gd/512))
	v.SetDescriptor(vmdkforge.Descriptor("monolithicSparse", fmt.Sprintf(`RW %d SPARSE "disk.vmdk"`, int64(1)<<37)))
}

// entries are damaged single entries. Damage at sector 0 leaves nothing to report.
func entries() []Row {
	set := func(i int64, sector uint32) Writer {
		return sparseImage(func(v *vmdkforge.Sparse) { v.SetGrain(i, sector) })
	}
	cut := sparseImage(func(v *vmdkforge.Sparse) { v.Bytes = v.Bytes[:len(v.Bytes)-512] })
	firstTable := sparseImage(func(v *vmdkforge.Sparse) { v.U32(v.GD, uint32(v.GD/512)) })
	outside := []string{"1 grains outside of the file's data area", "vmdk grain table at 0x"}
	return []Row{
		broken("T19 grain below overHead", "format", set(5, 20),
			append(outside, "entry 20, want 0, or at least 128")...),
		broken("T19 grain past the end", "format", set(5, 0xffffff), append(outside, "entry 16777215, want")...),
		broken("T19 last grain cut short", "format", cut,
			append(outside, "want a grain of 65536 bytes that ends inside the file")...),
		unread("T19 grain of sector 0 past the end", "format", set(0, 0xffffffff), "vmdk grain table at 0x3600",
			"entry 4294967295, want"),
		unread("T19 first table inside the directory", "format", firstTable, "vmdk grain directory at 0x3400",
			"entry 26, want"),
	}
}

// twoCopies are different directories. inspect only reports it; a copy would have to choose, and is refused.
func twoCopies() []Row {
	refused := func(name string, change func(v *vmdkforge.Sparse), says ...string) Row {
		return kept("T20 "+name, "format", sparseImage(change),
			append(says, "redundant grain tables differ", "1 places")...)
	}
	return []Row{
		refused("one entry of the second copy differs", func(v *vmdkforge.Sparse) { v.U32(v.RGT+4*9, v.Grain(8)) },
			"copy of table 0 at 0x2c00"),
		refused("second directory lacks a table", func(v *vmdkforge.Sparse) { v.U32(v.RGD, 0) },
			"redundant directory entry 0 is 0"),
		refused("second directory leads out of the file", func(v *vmdkforge.Sparse) { v.U32(v.RGD, 1<<31) },
			"redundant directory entry 0 is 2147483648"),
	}
}

// damaged are flags of an image that was not closed.
func damaged() []Row {
	unclean := sparseImage(func(v *vmdkforge.Sparse) { v.U8(vmdkforge.UncleanShutdown, 1) })
	var out []Row
	for _, line := range []string{"\n \n\n", "\r\n \r", "\n \r\r", "\x00\x00\x00\x00"} {
		out = append(out, unread(fmt.Sprintf("T21 damaged by a transfer in text mode: % x", line), "format",
			sparseImage(func(v *vmdkforge.Sparse) { v.Text(vmdkforge.NewLine, line) }), "vmdk sparse header at 0x49",
			fmt.Sprintf("newline test % x", line), "want 0a 20 0d 0a", "text mode"))
	}
	return append(out, kept("T21 not closed cleanly", "busy", unclean, "uncleanShutdown at 0x48 is 1"))
}
