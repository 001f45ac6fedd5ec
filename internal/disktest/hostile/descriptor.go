//go:build linux || windows

package hostile

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
)

// flatImage writes a descriptor and its flat file.
func flatImage(text string) Writer {
	return func(t testing.TB, dir string) string {
		t.Helper()
		Disk().Write(t, filepath.Join(dir, "x-flat.vmdk"))
		return writeText("disk.vmdk", text)(t, dir)
	}
}

const goodLine = `RW 4096 FLAT "x-flat.vmdk" 0`

// goodFlat is the descriptor that the cases change.
func goodFlat() string { return vmdkforge.Descriptor("monolithicFlat", goodLine) }

// changed is the good descriptor with one text replaced.
func changed(old, new string) string { return strings.Replace(goodFlat(), old, new, 1) }

// VMDK returns descriptors and hosted sparse extents with a wrong field or name.
func VMDK() []Row {
	return slices.Concat(absoluteNames(), escapingNames(), selfExtents(), parents(),
		otherLines(), bigTexts(), contradictions(), extentSums(), grainSizes(), capacities(), directories(), overlaps(),
		entries(), twoCopies(), damaged())
}

// parents are names that cannot be parents. A refusal is exit code 4, also for inspect, since the disk is not complete.
func parents() []Row {
	sparse := func(text string) Writer {
		return func(t testing.TB, dir string) string {
			t.Helper()
			v := vmdkforge.NewSparse(Disk())
			v.SetDescriptor(text)
			return writeForged("disk.vmdk", v.Bytes)(t, dir)
		}
	}
	good := vmdkforge.Descriptor("monolithicSparse", `RW 4096 SPARSE "disk.vmdk"`)
	const cid = "parentCID=ffffffff"
	hintOnly := strings.Replace(good, cid, cid+"\nparentFileNameHint=\"/x\"", 1)
	cidOnly := strings.Replace(good, cid, "parentCID=12345678", 1)
	child := func(cid, name string) string {
		return changed("parentCID=ffffffff", "parentCID="+cid+"\nparentFileNameHint=\""+name+"\"")
	}
	sparseChild := func(name string) Writer {
		return sparse(strings.Replace(good, cid, "parentCID=4a5b6c7d\nparentFileNameHint=\""+name+"\"", 1))
	}
	return []Row{
		refused("T08 parentFileNameHint without parentCID", sparse(hintOnly), "refused", "line 6",
			`"/x"`, "parentCID"),
		refused("T08 parentCID without parentFileNameHint", sparse(cidOnly), "refused", "line 5",
			"12345678", "parentFileNameHint"),
		refused("T08 the same in a flat disk", flatImage(child("ffffffff", "../x")), "refused",
			"line 6", `"../x"`),
		refused("T09 parent is missing", sparseChild("base.vmdk"), "refused", `"base.vmdk"`, "missing"),
		refused("T09 parent elsewhere", sparseChild("../base.vmdk"), "refused", `"base.vmdk"`, "missing"),
		unread("T09 child that is its own parent", "format", sparseChild("disk.vmdk"), `"disk.vmdk"`,
			"not in the chain already"),
		unread("T09 flat child", "format", flatImage(child("12345678", "base.vmdk")), "line 6", `"base.vmdk"`,
			"monolithicFlat"),
		unread("T09 cycle of two", "format", chain(2, sparseChild), `"disk0.vmdk"`, "not in the chain already"),
		unread("T09 chain of 18", "limit", chain(18, sparseChild), "16 parents"),
	}
}

// chain writes n disks, each with the next as its parent, and the last with the first.
func chain(n int, child func(name string) Writer) Writer {
	return func(t testing.TB, dir string) string {
		t.Helper()
		for i := range n {
			path := child(fmt.Sprintf("disk%d.vmdk", (i+1)%n))(t, dir)
			require.NoError(t, os.Rename(path, filepath.Join(dir, fmt.Sprintf("disk%d.vmdk", i))))
		}
		return filepath.Join(dir, "disk0.vmdk")
	}
}

// otherLines are refused lines; TestDescriptorLines has accepted ones.
func otherLines() []Row {
	return []Row{
		unread("T10 NOACCESS", "unsupported", flatImage(changed("RW 4096", "NOACCESS 4096")), "line 9", "NOACCESS"),
		unread("T10 unknown type", "unsupported", flatImage(changed("FLAT", "ROUND")), "line 9", `"ROUND"`,
			"want FLAT, VMFS or ZERO"),
		unread("T10 unknown access", "format", flatImage(changed("RW 4096", "WO 4096")), "line 9", `"WO"`,
			"want RW, RDONLY or NOACCESS"),
		unread("T10 neither comment, setting nor extent", "format", flatImage(changed("#DDB", "nonsense")),
			"line 12", `"nonsense"`),
		unread("T10 partition of a physical device", "unsupported",
			flatImage(changed(` 0`+"\n", ` 0 "partition"`+"\n")), "line 9", "physical"),
	}
}

// bigTexts are descriptors beyond the limits.
func bigTexts() []Row {
	big := goodFlat() + strings.Repeat("# "+strings.Repeat("x", 1021)+"\n", 2<<10) // 2 MiB
	line := goodFlat() + "# " + strings.Repeat("x", 1<<20-1024) + "\n"
	extents := "# Disk DescriptorFile\ncreateType=\"monolithicFlat\"\n" + strings.Repeat("RW 1 ZERO\n", 100_000)
	size := func(n uint64) Writer {
		return func(t testing.TB, dir string) string {
			t.Helper()
			v := vmdkforge.NewSparse(Disk())
			v.U64(vmdkforge.DescriptorSize, n)
			return writeForged("disk.vmdk", v.Bytes)(t, dir)
		}
	}
	says := []string{"at 0x24", "descriptor size", "limit exceeded"}
	return []Row{
		unread("T11 text of 2 MiB", "limit", flatImage(big), "vmdk descriptor", fmt.Sprint(len(big)), "1048576"),
		unread("T11 line of 1 MiB", "limit", flatImage(line), "line 19", "at most 4096"),
		unread("T11 line of 4097 bytes", "limit", flatImage(goodFlat()+"#"+strings.Repeat("x", 4096)), "line 19",
			"4097", "at most 4096"),
		unread("T11 100,000 extents", "limit", flatImage(extents), "line 4099", "more than 4096 extents"),
		unread("T11 500,000 lines", "limit", flatImage(goodFlat()+strings.Repeat("#\n", 500_000)), "line 8193",
			"more than 8192 lines"),
		unread("T11 descriptorSize of 2^64-1", "limit", size(1<<64-1), append(says, "18446744073709551615")...),
		unread("T11 descriptorSize of 2^55", "limit", size(1<<55), says...),
		unread("T11 descriptorSize of 4 MiB", "limit", size(8192), says...),
	}
}

// contradictions are descriptors that contradict themselves.
func contradictions() []Row {
	utf16Text := func(order func(uint16) []byte, bom string) string {
		var b bytes.Buffer
		b.WriteString(bom)
		for _, u := range utf16.Encode([]rune(goodFlat())) {
			b.Write(order(u))
		}
		return b.String()
	}
	little := func(u uint16) []byte { return []byte{byte(u), byte(u >> 8)} }
	big := func(u uint16) []byte { return []byte{byte(u >> 8), byte(u)} }
	twice := func(line string) string { return changed(line, line+"\n"+line) }
	flatInSparse := func(t testing.TB, dir string) string {
		t.Helper()
		v := vmdkforge.NewSparse(Disk())
		v.SetDescriptor(goodFlat())
		return writeForged("disk.vmdk", v.Bytes)(t, dir)
	}
	sparse := vmdkforge.Descriptor("monolithicSparse", `RW 4096 SPARSE "x-flat.vmdk"`)
	zeroAt := fmt.Sprintf("%#x", strings.Index(goodFlat(), "#DDB")+2)
	return []Row{
		unread("T12 two createType", "format", flatImage(twice(`createType="monolithicFlat"`)), "line 7",
			"second createtype", "line 6"),
		unread("T12 two CID", "format", flatImage(twice("CID=4a5b6c7d")), "line 5", "second cid", "line 4"),
		unread("T12 says sparse, is flat", "format", flatImage(sparse), "createType monolithicSparse", "want"),
		unread("T12 SPARSE line in a flat disk", "format", flatImage(changed("FLAT", "SPARSE")), "line 9",
			"is SPARSE", "want FLAT, VMFS or ZERO"),
		unread("T12 says flat, is sparse", "format", flatInSparse, "line 6", `"monolithicFlat"`,
			"want monolithicSparse"),
		unread("T12 createType vsanSparse", "unsupported", flatImage(changed("monolithicFlat", "vsanSparse")),
			"vsanSparse", "not supported"),
		unread("T12 unknown createType", "format", flatImage(changed("monolithicFlat", "round")), "line 6",
			`"round"`, "want monolithicFlat"),
		unread("T12 no createType", "format", flatImage(changed(`createType="monolithicFlat"`, "")), "createType",
			"want"),
		unread("T12 UTF-16, little endian", "format", flatImage(utf16Text(little, "\xff\xfe")), "byte order mark",
			"ff fe", "want UTF-8"),
		unread("T12 UTF-16, big endian", "format", flatImage(utf16Text(big, "\xfe\xff")), "byte order mark",
			"fe ff", "want UTF-8"),
		unread("T12 lines that end with CR", "format", flatImage(strings.ReplaceAll(goodFlat(), "\n", "\r")),
			"line 1", "carriage return", "want lines"),
		unread("T12 zero byte in the middle", "format", flatImage(changed("#DDB", "#D\x00B")), "at "+zeroAt,
			"zero byte"),
		unread("T12 unclosed quote", "format", flatImage(changed(`Type="monolithicFlat"`, `Type="monolithicFlat`)),
			"line 6", "unclosed quote"),
		unread("T12 unclosed quote of a name", "format", flatImage(changed(`vmdk" 0`, `vmdk 0`)), "line 9",
			"unclosed quote"),
		unread("T12 name without quotes", "format", flatImage(changed(`"x-flat.vmdk"`, `x-flat.vmdk`)), "line 9",
			"not quoted"),
		unread("T12 CID that is no number", "format", flatImage(changed("CID=4a5b6c7d", "CID=4a5b6c7g")), "line 4",
			`"4a5b6c7g"`, "want 8 hexadecimal digits"),
	}
}

// extentSums are the numbers of an extent line.
func extentSums() []Row {
	size := func(s string) string { return changed("RW 4096", "RW "+s) }
	twoLines := func(a, b string) string { return changed(goodLine, a+"\n"+b) }
	const half = "RW 9007199254740992 ZERO" // 2^53 sectors are 2^62 bytes
	beyond := []string{"line 9", "extent 0 takes", "has 2097152 bytes"}
	return []Row{
		unread("T13 size 0", "format", flatImage(size("0")), "line 9", "extent size 0", "want at least 1"),
		unread("T13 size -1", "format", flatImage(size("-1")), "line 9", `extent size "-1"`, "want 0 to"),
		unread("T13 size 2^63", "format", flatImage(size("9223372036854775808")), "line 9",
			`"9223372036854775808"`, "want 0 to"),
		unread("T13 size of more than 2^63 bytes", "format", flatImage(size("18014398509481984")), "line 9",
			`"18014398509481984"`, "want 0 to"),
		unread("T13 sum above 2^63", "format", flatImage(twoLines(half, half)), "line 10", "add up to more than"),
		unread("T13 end beyond the file", "format", flatImage(size("4097")),
			append(beyond, "2097664 bytes at offset 0")...),
		unread("T13 offset beyond the file", "format", flatImage(changed(`vmdk" 0`, `vmdk" 4097`)),
			append(beyond, "offset 2097664")...),
		unread("T13 offset and size beyond the file", "format", flatImage(changed(`vmdk" 0`, `vmdk" 1`)),
			append(beyond, "offset 512")...),
		unread("T13 offset that overflows", "format", flatImage(changed(`vmdk" 0`, `vmdk" 18014398509481983`)),
			append(beyond, "offset 9223372036854775296")...),
		unread("T13 two extents of one range", "format",
			flatImage(twoLines(`RW 2048 FLAT "x-flat.vmdk" 0`, `RW 2048 FLAT "x-flat.vmdk" 2047`)), "line 10",
			"overlaps that of line 9", "1048064 to 1048576"),
	}
}
