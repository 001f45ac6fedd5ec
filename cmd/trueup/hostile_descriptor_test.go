package main

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

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
)

// xpSectors is the size of the disk that most forged images hold: one partition at LBA 63, of an unknown kind.
const xpSectors = 4096

func xpDisk() forge.Bytes {
	disk := tableforge.NewMBR(xpSectors, tableforge.Slot{Flag: 0x80, Type: 0x83, Start: 63, Sectors: 2000})
	disk.Put(63*512, noise("partition", 2000*512))
	return disk
}

// flatImage writes a descriptor and the flat file that it names.
func flatImage(text string) func(testing.TB, string) string {
	return func(t testing.TB, dir string) string {
		t.Helper()
		xpDisk().Write(t, filepath.Join(dir, "x-flat.vmdk"))
		return writeText("disk.vmdk", text)(t, dir)
	}
}

const goodLine = `RW 4096 FLAT "x-flat.vmdk" 0`

// goodFlat is the descriptor that the cases change.
func goodFlat() string { return vmdkforge.Descriptor("monolithicFlat", goodLine) }

// changed is the good descriptor with one text replaced.
func changed(old, new string) string { return strings.Replace(goodFlat(), old, new, 1) }

// TestHostileDescriptors tries what a descriptor can say.
func TestHostileDescriptors(t *testing.T) {
	t.Parallel()
	runHostile(t, parents(), otherLines(), bigTexts(), contradictions(), extentSums())
}

// parents are named and cannot be parents. A refusal is exit 4, also for inspect, since the disk is not
// complete.
func parents() []hostile {
	sparse := func(text string) func(testing.TB, string) string {
		return func(t testing.TB, dir string) string {
			t.Helper()
			v := vmdkforge.NewSparse(xpDisk())
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
	sparseChild := func(name string) func(testing.TB, string) string {
		return sparse(strings.Replace(good, cid, "parentCID=4a5b6c7d\nparentFileNameHint=\""+name+"\"", 1))
	}
	return []hostile{
		{
			name: "T08 parentFileNameHint without parentCID", image: sparse(hintOnly), code: "reference", copy: 4,
			says: []string{"refused", "line 6", `"/x"`, "parentCID"},
		},
		{
			name: "T08 parentCID without parentFileNameHint", image: sparse(cidOnly), code: "reference", copy: 4,
			says: []string{"refused", "line 5", "12345678", "parentFileNameHint"},
		},
		{
			name: "T08 the same in a flat disk", image: flatImage(child("ffffffff", "../x")), code: "reference",
			copy: 4, says: []string{"refused", "line 6", `"../x"`},
		},
		{
			name: "T09 parent is missing", image: sparseChild("base.vmdk"), code: "reference", copy: 4,
			says: []string{"refused", `"base.vmdk"`, "missing"},
		},
		{
			name: "T09 parent elsewhere", image: sparseChild("../base.vmdk"), code: "reference", copy: 4,
			says: []string{"refused", `"base.vmdk"`, "missing"},
		},
		{
			name: "T09 child that is its own parent", image: sparseChild("disk.vmdk"), code: "format",
			says: []string{`"disk.vmdk"`, "not in the chain already"},
		},
		{
			name: "T09 flat child", image: flatImage(child("12345678", "base.vmdk")), code: "format",
			says: []string{"line 6", `"base.vmdk"`, "monolithicFlat"},
		},
		{
			name: "T09 cycle of two", image: chain(2, sparseChild), code: "format",
			says: []string{`"disk0.vmdk"`, "not in the chain already"},
		},
		{name: "T09 chain of 18", image: chain(18, sparseChild), code: "limit", says: []string{"16 parents"}},
	}
}

// chain writes n disks, each of which names the next as its parent, and the last the first.
func chain(n int, child func(name string) func(testing.TB, string) string) func(testing.TB, string) string {
	return func(t testing.TB, dir string) string {
		t.Helper()
		for i := range n {
			path := child(fmt.Sprintf("disk%d.vmdk", (i+1)%n))(t, dir)
			require.NoError(t, os.Rename(path, filepath.Join(dir, fmt.Sprintf("disk%d.vmdk", i))))
		}
		return filepath.Join(dir, "disk0.vmdk")
	}
}

// otherLines are refused lines; TestDescriptorLines has those that are read.
func otherLines() []hostile {
	return []hostile{
		{
			name: "T10 NOACCESS", image: flatImage(changed("RW 4096", "NOACCESS 4096")), code: "unsupported",
			says: []string{"line 9", "NOACCESS"},
		},
		{
			name: "T10 unknown type", image: flatImage(changed("FLAT", "ROUND")), code: "unsupported",
			says: []string{"line 9", `"ROUND"`, "want FLAT, VMFS or ZERO"},
		},
		{
			name: "T10 unknown access", image: flatImage(changed("RW 4096", "WO 4096")), code: "format",
			says: []string{"line 9", `"WO"`, "want RW, RDONLY or NOACCESS"},
		},
		{
			name: "T10 neither comment, setting nor extent", image: flatImage(changed("#DDB", "nonsense")),
			code: "format", says: []string{"line 12", `"nonsense"`},
		},
		{
			name: "T10 partition of a physical device", image: flatImage(changed(` 0`+"\n", ` 0 "partition"`+"\n")),
			code: "unsupported", says: []string{"line 9", "physical"},
		},
	}
}

// bigTexts are descriptors beyond the bounds.
func bigTexts() []hostile {
	big := goodFlat() + strings.Repeat("# "+strings.Repeat("x", 1021)+"\n", 2<<10) // 2 MiB
	line := goodFlat() + "# " + strings.Repeat("x", 1<<20-1024) + "\n"
	extents := "# Disk DescriptorFile\ncreateType=\"monolithicFlat\"\n" + strings.Repeat("RW 1 ZERO\n", 100_000)
	size := func(n uint64) func(testing.TB, string) string {
		return func(t testing.TB, dir string) string {
			t.Helper()
			v := vmdkforge.NewSparse(xpDisk())
			v.U64(vmdkforge.DescriptorSize, n)
			return writeForged("disk.vmdk", v.Bytes)(t, dir)
		}
	}
	says := []string{"at 0x24", "descriptor size", "limit exceeded"}
	return []hostile{
		{name: "T11 text of 2 MiB", image: flatImage(big), code: "limit", says: []string{
			"vmdk descriptor",
			fmt.Sprint(len(big)), "1048576",
		}},
		{name: "T11 line of 1 MiB", image: flatImage(line), code: "limit", says: []string{"line 19", "at most 4096"}},
		{
			name: "T11 line of 4097 bytes", image: flatImage(goodFlat() + "#" + strings.Repeat("x", 4096)),
			code: "limit", says: []string{"line 19", "4097", "at most 4096"},
		},
		{
			name: "T11 100,000 extents", image: flatImage(extents), code: "limit",
			says: []string{"line 4099", "more than 4096 extents"},
		},
		{
			name: "T11 500,000 lines", image: flatImage(goodFlat() + strings.Repeat("#\n", 500_000)), code: "limit",
			says: []string{"line 8193", "more than 8192 lines"},
		},
		{
			name: "T11 descriptorSize of 2^64-1", image: size(1<<64 - 1), code: "limit",
			says: append(says, "18446744073709551615"),
		},
		{name: "T11 descriptorSize of 2^55", image: size(1 << 55), code: "limit", says: says},
		{name: "T11 descriptorSize of 4 MiB", image: size(8192), code: "limit", says: says},
	}
}

// contradictions are descriptors that contradict themselves.
func contradictions() []hostile {
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
		v := vmdkforge.NewSparse(xpDisk())
		v.SetDescriptor(goodFlat())
		return writeForged("disk.vmdk", v.Bytes)(t, dir)
	}
	sparse := vmdkforge.Descriptor("monolithicSparse", `RW 4096 SPARSE "x-flat.vmdk"`)
	zeroAt := fmt.Sprintf("%#x", strings.Index(goodFlat(), "#DDB")+2)
	return []hostile{
		{
			name: "T12 two createType", image: flatImage(twice(`createType="monolithicFlat"`)), code: "format",
			says: []string{"line 7", "second createtype", "line 6"},
		},
		{
			name: "T12 two CID", image: flatImage(twice("CID=4a5b6c7d")), code: "format",
			says: []string{"line 5", "second cid", "line 4"},
		},
		{
			name: "T12 says sparse, is flat", image: flatImage(sparse), code: "format",
			says: []string{"createType monolithicSparse", "want"},
		},
		{
			name: "T12 SPARSE line in a flat disk", image: flatImage(changed("FLAT", "SPARSE")), code: "format",
			says: []string{"line 9", "is SPARSE", "want FLAT, VMFS or ZERO"},
		},
		{
			name: "T12 says flat, is sparse", image: flatInSparse, code: "format",
			says: []string{"line 6", `"monolithicFlat"`, "want monolithicSparse"},
		},
		{
			name: "T12 createType vsanSparse", image: flatImage(changed("monolithicFlat", "vsanSparse")),
			code: "unsupported", says: []string{"vsanSparse", "not supported"},
		},
		{
			name: "T12 unknown createType", image: flatImage(changed("monolithicFlat", "round")), code: "format",
			says: []string{"line 6", `"round"`, "want monolithicFlat"},
		},
		{
			name: "T12 no createType", image: flatImage(changed(`createType="monolithicFlat"`, "")), code: "format",
			says: []string{"createType", "want"},
		},
		{
			name: "T12 UTF-16, little endian", image: flatImage(utf16Text(little, "\xff\xfe")), code: "format",
			says: []string{"byte order mark", "ff fe", "want UTF-8"},
		},
		{
			name: "T12 UTF-16, big endian", image: flatImage(utf16Text(big, "\xfe\xff")), code: "format",
			says: []string{"byte order mark", "fe ff", "want UTF-8"},
		},
		{
			name: "T12 lines that end with CR", image: flatImage(strings.ReplaceAll(goodFlat(), "\n", "\r")),
			code: "format", says: []string{"line 1", "carriage return", "want lines"},
		},
		{
			name: "T12 zero byte in the middle", image: flatImage(changed("#DDB", "#D\x00B")), code: "format",
			says: []string{"at " + zeroAt, "zero byte"},
		},
		{
			name: "T12 unclosed quote", image: flatImage(changed(`Type="monolithicFlat"`, `Type="monolithicFlat`)),
			code: "format", says: []string{"line 6", "unclosed quote"},
		},
		{
			name: "T12 unclosed quote of a name", image: flatImage(changed(`vmdk" 0`, `vmdk 0`)), code: "format",
			says: []string{"line 9", "unclosed quote"},
		},
		{
			name: "T12 name without quotes", image: flatImage(changed(`"x-flat.vmdk"`, `x-flat.vmdk`)), code: "format",
			says: []string{"line 9", "not quoted"},
		},
		{
			name: "T12 CID that is no number", image: flatImage(changed("CID=4a5b6c7d", "CID=4a5b6c7g")),
			code: "format", says: []string{"line 4", `"4a5b6c7g"`, "want 8 hexadecimal digits"},
		},
	}
}

// extentSums are the numbers of an extent line.
func extentSums() []hostile {
	size := func(s string) string { return changed("RW 4096", "RW "+s) }
	twoLines := func(a, b string) string { return changed(goodLine, a+"\n"+b) }
	const half = "RW 9007199254740992 ZERO" // 2^53 sectors are 2^62 bytes
	beyond := []string{"line 9", "extent 0 takes", "has 2097152 bytes"}
	return []hostile{
		{name: "T13 size 0", image: flatImage(size("0")), code: "format", says: []string{
			"line 9", "extent size 0",
			"want at least 1",
		}},
		{name: "T13 size -1", image: flatImage(size("-1")), code: "format", says: []string{
			"line 9", `extent size "-1"`, "want 0 to",
		}},
		{
			name: "T13 size 2^63", image: flatImage(size("9223372036854775808")), code: "format",
			says: []string{"line 9", `"9223372036854775808"`, "want 0 to"},
		},
		{
			name: "T13 size of more than 2^63 bytes", image: flatImage(size("18014398509481984")), code: "format",
			says: []string{"line 9", `"18014398509481984"`, "want 0 to"},
		},
		{
			name: "T13 sum above 2^63", image: flatImage(twoLines(half, half)), code: "format",
			says: []string{"line 10", "add up to more than"},
		},
		{
			name: "T13 end beyond the file", image: flatImage(size("4097")), code: "format",
			says: append(beyond, "2097664 bytes at offset 0"),
		},
		{
			name: "T13 offset beyond the file", image: flatImage(changed(`vmdk" 0`, `vmdk" 4097`)), code: "format",
			says: append(beyond, "offset 2097664"),
		},
		{
			name: "T13 offset and size beyond the file", image: flatImage(changed(`vmdk" 0`, `vmdk" 1`)),
			code: "format", says: append(beyond, "offset 512"),
		},
		{
			name: "T13 offset that overflows", image: flatImage(changed(`vmdk" 0`, `vmdk" 18014398509481983`)),
			code: "format", says: append(beyond, "offset 9223372036854775296"),
		},
		{
			name: "T13 two extents of one range", image: flatImage(twoLines(`RW 2048 FLAT "x-flat.vmdk" 0`,
				`RW 2048 FLAT "x-flat.vmdk" 2047`)), code: "format",
			says: []string{"line 10", "overlaps that of line 9", "1048064 to 1048576"},
		},
	}
}

// filler is n bytes of comments, in lines of 1 KiB.
func filler(n int) string {
	line := "#" + strings.Repeat("x", 1022) + "\n"
	return strings.Repeat("#", n%1024) + "\n" + strings.Repeat(line, n/1024)[:n/1024*1024-1]
}

// TestDescriptorVariants tries what looks odd and is legal. Nothing may be skipped, because
// what follows would shift (qemu-img 7.2 skips RDONLY and ZERO lines).
func TestDescriptorVariants(t *testing.T) {
	t.Parallel()
	disk := xpDisk()
	part := func(from, to int) []byte { return disk[from*512 : to*512] }
	zeros := func(sectors int) []byte { return make([]byte, sectors*512) }
	whole := []byte(disk)
	lines := func(lines ...string) string { return changed(goodLine, strings.Join(lines, "\n")) }
	for _, c := range []struct {
		name, text string
		want       []byte
	}{
		{"T10 RDONLY", changed("RW 4096", "RDONLY 4096"), whole},
		{"T10 lower case", changed("RW 4096 FLAT", "rw 4096 flat"), whole},
		{
			"T10 ZERO in the middle", lines(`RW 2048 FLAT "x-flat.vmdk" 0`, "RW 1024 ZERO",
				`RDONLY 1024 FLAT "x-flat.vmdk" 3072`),
			slices.Concat(part(0, 2048), zeros(1024), part(3072, 4096)),
		},
		{
			"T10 other order", lines(`RW 2048 FLAT "x-flat.vmdk" 0`, `RW 1024 FLAT "x-flat.vmdk" 3072`,
				`RW 1024 FLAT "x-flat.vmdk" 2048`),
			slices.Concat(part(0, 2048), part(3072, 4096), part(2048, 3072)),
		},
		{"T12 byte order mark of UTF-8", "\xef\xbb\xbf" + goodFlat(), whole},
		{"T12 CRLF", strings.ReplaceAll(goodFlat(), "\n", "\r\n"), whole},
		{"T12 another encoding line", changed("UTF-8", "windows-1252"), whole},
		{"T11 line of 4096 bytes", goodFlat() + "#" + strings.Repeat("x", 4095), whole},
		{"T11 text of 1 MiB", goodFlat() + filler(1<<20-len(goodFlat())), whole},
		{
			"T11 4096 extents", changed(goodLine, strings.Repeat("RW 1 ZERO\n", 4095)+`RW 4096 FLAT "x-flat.vmdk" 0`),
			slices.Concat(zeros(4095), whole),
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			raw := filepath.Join(t.TempDir(), "disk.raw")
			r := measure(t, []string{"convert", "--to", "raw", flatImage(c.text)(t, t.TempDir()), raw})[0]
			require.Equal(t, 0, r.code, r.stderr)
			got := disktest.ReadFile(t, raw)
			require.True(t, bytes.Equal(c.want, got), "the disk has %d bytes, want %d", len(got), len(c.want))
		})
	}
}
