package vmdk

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
)

// esxi is the descriptor of an ESXi disk with everything that a copy must keep or change; the two ddb lines outside the
// specification represent unknown lines.
const esxi = `# Disk DescriptorFile
version=3
encoding="UTF-8"
CID=a1b2c3d4
parentCID=ffffffff
createType="vmfs"
isNativeSnapshot="no"

# Extent description
RW 16777216 VMFS "old-flat.vmdk"

# Change Tracking File
changeTrackPath="old-ctk.vmdk"

# The Disk Data Base
#DDB

ddb.adapterType = "buslogic"
ddb.geometry.cylinders = "1044"
ddb.geometry.heads = "255"
ddb.geometry.sectors = "63"
ddb.longContentID = "0123456789abcdef01234567a1b2c3d4"
ddb.thinProvisioned = "1"
ddb.toolsInstallType = "1"
ddb.toolsVersion = "8384"
ddb.uuid = "60 00 C2 9a 1d 7b 49 44-dc 53 e6 d3 e5 89 7b 0d"
ddb.virtualHWVersion = "8"
ddb.somethingNew.x = "kept as it is"
`

const newSize = 16779264 * 512 // 1 MiB more

func parsed(t *testing.T, text string) *descriptor {
	t.Helper()
	d, err := parseDescriptor([]byte(text))
	require.NoError(t, err)
	return d
}

// copied returns the text of a copy by a job.
func copied(t *testing.T, text, job string) string {
	t.Helper()
	lines := []string{`RW 16779264 VMFS "new-flat.vmdk"`}
	return string(parsed(t, text).copyFor(vmfs, newSize, lines, []byte(job), driver.Geometry{}))
}

func edited(t *testing.T, text string) string {
	t.Helper()
	return copied(t, text, "seed")
}

// TestCopyOfADescriptor lists each line that a copy changes. Every other line stays unchanged, in its place.
func TestCopyOfADescriptor(t *testing.T) {
	got := strings.Split(edited(t, esxi), "\n")
	var want []string
	for l := range strings.SplitSeq(esxi, "\n") {
		switch {
		case strings.HasPrefix(l, "CID="), strings.HasPrefix(l, "ddb.longContentID"), strings.HasPrefix(l, "ddb.uuid"):
			want = append(want, "")
		case strings.HasPrefix(l, "RW "):
			want = append(want, `RW 16779264 VMFS "new-flat.vmdk"`)
		case strings.HasPrefix(l, "changeTrackPath"): // gone
		case strings.HasPrefix(l, "ddb.geometry.cylinders"):
			want = append(want, `ddb.geometry.cylinders = "1044"`) // 16779264 / (255 * 63) = 1044.46
		default:
			want = append(want, l)
		}
	}
	require.Len(t, got, len(want))
	for i := range want {
		if want[i] != "" || got[i] == "" {
			require.Equal(t, want[i], got[i], "line %d", i+1)
		}
	}
}

// A copy is in UTF-8, like the names of its extents, for any encoding of its source.
func TestCopyInUTF8(t *testing.T) {
	for name, tc := range map[string]struct{ encoding, comment, want string }{
		"windows-1252": {"windows-1252", "B\xfcro \x80", "Büro €"},
		"Shift_JIS":    {"Shift_JIS", "\x95\x5c\x8e\xa6", "表示"},
		"GBK":          {"GBK", "\xcf\xb5\xcd\xb3", "系统"}, // whose bytes are UTF-8, too
		"wrong":        {"UTF-8", "B\xfcro", "B?ro"},
		"unknown":      {"klingon", "B\xfcro", "B?ro"},
	} {
		t.Run(name, func(t *testing.T) {
			text := strings.Replace(esxi, `"UTF-8"`, `"`+tc.encoding+`"`, 1) + `ddb.comment = "` + tc.comment + "\"\n"
			got := edited(t, text)
			require.Contains(t, got, "\nencoding=\"UTF-8\"\n")
			require.Contains(t, got, `ddb.comment = "`+tc.want+`"`)
		})
	}
}

// A move in place keeps the text byte for byte except for its changes, and the names.
func TestOtherCharsetsInPlace(t *testing.T) {
	text := strings.NewReplacer(`"UTF-8"`, `"windows-1252"`, "old-flat", "B\xfcro-flat").Replace(esxi)
	resized := string(parsed(t, text).resized(newSize, driver.Geometry{}))
	require.Contains(t, resized, "encoding=\"windows-1252\"\n")
	require.Contains(t, resized, "VMFS \"B\xfcro-flat.vmdk\"\n")
	_, err := rename([]byte(text), func(n string) string { return n + "x" })
	require.ErrorIs(t, err, ondisk.ErrUnsupported)
	require.ErrorContains(t, err, `"Büro-flat.vmdk" is in the encoding windows-1252`)
}

// The content is new, so its identifiers are too, in the old format.
func TestIdentityOfACopy(t *testing.T) {
	text := edited(t, esxi)
	value := func(pattern string) string {
		m := regexp.MustCompile(`(?m)^` + pattern + `$`).FindStringSubmatch(text)
		require.NotNil(t, m, "%s in\n%s", pattern, text)
		return m[1]
	}
	cid := value(`CID=([0-9a-f]{8})`)
	require.NotEqual(t, "a1b2c3d4", cid)
	require.Equal(t, cid, value(`ddb\.longContentID = "[0-9a-f]{24}([0-9a-f]{8})"`), "its last 8 digits are the CID")
	require.NotContains(t, text, "0123456789abcdef01234567")
	uuid := value(
		`ddb\.uuid = "(60 00 C2 9a [0-9a-f]{2} [0-9a-f]{2} [0-9a-f]{2} [0-9a-f]{2}-(?:[0-9a-f]{2} ){7}[0-9a-f]{2})"`)
	require.NotEqual(t, "60 00 C2 9a 1d 7b 49 44-dc 53 e6 d3 e5 89 7b 0d", uuid)
	require.Contains(t, text, "parentCID=ffffffff")
}

// VirtualBox refuses a second image with the same UUID, and a complete image has no parent. The lines are in
// VirtualBox's format.
func TestIdentityForVirtualBox(t *testing.T) {
	const old, none = "6f9a4e0c-52c1-4f31-9c2c-0f2d0c9d1a11", "00000000-0000-0000-0000-000000000000"
	lines := func(image, modification, parent string) string {
		return esxi + "ddb.uuid.image=\"" + image + "\"\nddb.uuid.modification=\"" + modification +
			"\"\nddb.uuid.parent=\"" + parent + "\"\nddb.uuid.parentmodification=\"" + parent + "\"\n"
	}
	uuids := func(text string) []string {
		var out []string
		for _, m := range regexp.MustCompile(`(?m)^ddb\.uuid\.\w+="(.*)"$`).FindAllStringSubmatch(text, -1) {
			out = append(out, m[1])
		}
		return out
	}
	got := uuids(copied(t, lines(old, old, old), "a"))
	require.Len(t, got, 4)
	// RFC 9562, 5.8
	custom := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	require.Regexp(t, custom, got[0])
	require.Regexp(t, custom, got[1])
	require.NotEqual(t, got[0], got[1])
	require.Equal(t, []string{none, none}, got[2:])
	require.Equal(t, got, uuids(copied(t, lines(old, old, old), "a")))
	require.NotEqual(t, got[0], uuids(copied(t, lines(old, old, old), "b"))[0])
	require.Equal(t, []string{none, none}, uuids(copied(t, lines(old, none, none), "a"))[1:3], "never modified")
	require.Equal(t, "{odd}", uuids(copied(t, lines("{odd}", none, none), "a"))[0], "an unknown form is left")
	same := string(parsed(t, lines(old, old, none)).resized(newSize, driver.Geometry{}))
	require.Equal(t, []string{old, old, none, none}, uuids(same), "the same disk, in its place")
}

// The same job gives the same content ID, and another job gives a different one.
func TestIdentityFollowsFromTheJob(t *testing.T) {
	cid := func(text, seed string) string {
		d := parsed(t, copied(t, text, seed))
		v, _ := d.get("cid")
		return v
	}
	first := cid(esxi, "a")
	require.Equal(t, first, cid(esxi, "a"))
	require.NotEqual(t, first, cid(esxi, "b"))
	require.NotEqual(t, first, cid(strings.Replace(esxi, "a1b2c3d4", "a1b2c3d5", 1), "a"))
	require.NotEqual(t, "ffffffff", first)
}

func TestLineEndsAreKept(t *testing.T) {
	crlf := edited(t, strings.ReplaceAll(esxi, "\n", "\r\n"))
	require.Equal(t, strings.Count(crlf, "\n"), strings.Count(crlf, "\r\n"), "every line ends in CRLF")
	require.Greater(t, strings.Count(crlf, "\r\n"), 20)
	require.True(t, strings.HasSuffix(crlf, "\r\n"))
	// The CID depends on the source's lines without line ends.
	require.Equal(t, edited(t, esxi), strings.ReplaceAll(crlf, "\r\n", "\n"))
	require.NotContains(t, edited(t, esxi), "\r")
}

// IDE geometries end at 16383 cylinders, whatever the size: VMware writes 16383/16/63 for every larger disk.
func TestCylinders(t *testing.T) {
	for _, tc := range []struct {
		name, cyl, heads, sectors string
		size                      int64 // sectors
		want                      string
	}{
		{"recomputed", "1044", "255", "63", 16779264, "1044"},
		{"grows with the disk", "16", "16", "63", 20 * 1008, "20"},
		{"a part of a cylinder does not count", "16", "16", "63", 20*1008 + 1007, "20"},
		{"capped stays capped", "16383", "16", "63", 1 << 32, "16383"},
		{"capped, but now below", "16383", "16", "63", 1008 * 1000, "1000"},
		{"never was capped", "522", "255", "63", 1 << 32, "267349"},
		{"no heads: left alone", "77", "0", "63", 1 << 20, "77"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := parsed(t, "# Disk DescriptorFile\nCID=1\nddb.geometry.cylinders = "+
				"\""+tc.cyl+"\"\nddb.geometry.heads = \""+tc.heads+
				"\"\nddb.geometry.sectors = \""+tc.sectors+"\"\n")
			text := string(d.copyFor(monolithicFlat, tc.size*512, nil, nil, driver.Geometry{}))
			require.Contains(t, text, "ddb.geometry.cylinders = \""+tc.want+"\"\n")
		})
	}
}

// Observed: qemu-img 7.2 counts an extent after a blank line twice.
func TestNoBlankLineInFrontOfAnExtent(t *testing.T) {
	text := strings.Replace(esxi, "# Extent description\n", "", 1)
	require.Contains(t, text, "\n\nRW ")
	got := edited(t, text)
	require.Contains(t, got, "\n# Extent description\nRW 16779264 VMFS \"new-flat.vmdk\"\n")
	require.Equal(t, 1, strings.Count(edited(t, esxi), "# Extent description"))
}

// Several extents become one in the copy, in the place of the first.
func TestExtentsBecomeOne(t *testing.T) {
	text := strings.Replace(esxi, `RW 16777216 VMFS "old-flat.vmdk"`,
		"RW 63 FLAT \"head.vmdk\" 0\nRW 16777152 FLAT \"old-flat.vmdk\" 63\nRW 1 ZERO", 1)
	identity := regexp.MustCompile(`(?m)^(CID|ddb\.longContentID|ddb\.uuid).*$`)
	require.Equal(t, identity.ReplaceAllString(edited(t, esxi), "$1"), identity.ReplaceAllString(edited(t, text), "$1"))
}

func TestUUIDsOfOtherForms(t *testing.T) {
	sum := []byte{0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1a, 0x1b}
	require.Equal(t, "60 00 C2 9f 10 11 12 13-14 15 16 17 18 19 1a 1b",
		newUUID("60 00 C2 9f b3 e8 5b 4b-4f 42 7f 9c fc 8d 66 4a", sum))
	for _, odd := range []string{
		"", "60 00", "not a uuid at all, but sixteen words a b c d e f g h i j",
		"60 00 C2 9f b3 e8 5b 4b-4f 42 7f 9c fc 8d 66 4", "{guid}",
	} {
		require.Equal(t, odd, newUUID(odd, sum), "an unknown form is left")
	}
}

// A source of another format gets a descriptor that qemu-img and our own reader accept.
func TestPlainDescriptor(t *testing.T) {
	text := string(plainDescriptor(driver.Geometry{}).copyFor(monolithicSparse, 10<<30,
		[]string{`RW 20971520 SPARSE "x.vmdk"`}, nil, driver.Geometry{}))
	d := parsed(t, text)
	require.Len(t, d.extents, 1)
	require.Equal(t, int64(10<<30), d.extents[0].size)
	ref, err := d.parentRef()
	require.NoError(t, err)
	require.Nil(t, ref)
	for key, want := range map[string]string{
		"version": "1", "createtype": "monolithicSparse", "ddb.adaptertype": "lsilogic",
		// 20971520 / 16065 = 1305.4
		"ddb.geometry.cylinders": "1305", "ddb.geometry.heads": "255", "ddb.geometry.sectors": "63",
	} {
		got, _ := d.get(key)
		require.Equal(t, want, got, key)
	}
}

// A descriptor without identifiers can be read, and its copy has them; without parentCID there is a warning.
func TestDescriptorsWithoutIdentifiers(t *testing.T) {
	for name, gone := range map[string][]string{
		"no CID": {"CID=a1b2c3d4\n"}, "no parentCID": {"parentCID=ffffffff\n"}, "neither": {
			"CID=a1b2c3d4\n",
			"parentCID=ffffffff\n",
		},
		"only an extent": {
			"version=3\n", "encoding=\"UTF-8\"\n", "CID=a1b2c3d4\n", "parentCID=ffffffff\n",
			"createType=\"vmfs\"\n", "isNativeSnapshot=\"no\"\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			text := esxi
			for _, l := range gone {
				text = strings.Replace(text, "\n"+l, "\n", 1)
			}
			img, err := image(parsed(t, text), vmfs, disktest.Memory(make([]byte, 512)))
			require.NoError(t, err)
			require.Equal(t, !strings.Contains(text, "parentCID"), len(img.Issues) == 1, img.Issues)
			got := edited(t, text)
			require.Regexp(t, `(?m)^CID=[0-9a-f]{8}$`, got)
			require.Contains(t, got, "\nparentCID=ffffffff\n")
			require.Equal(t, 2, strings.Count(got, "CID="))
			require.Less(t, strings.Index(got, "parentCID"), strings.Index(got, "RW "))
		})
	}
}

// memWriter is a file in memory that keeps nonzero bytes by offset.
type memWriter struct {
	size int64
	kept map[int64]byte
}

func (w *memWriter) WriteAt(p []byte, off int64) (int, error) {
	for i, b := range p {
		if at := off + int64(i); b != 0 {
			w.kept[at] = b
		}
	}
	return len(p), nil
}

func (w *memWriter) Truncate(size int64) error { w.size = size; return nil }
func (w *memWriter) Sync() error               { return nil }

// A target may be given a range that crosses from one extent into the next, although the copier's chunks never do.
func TestRangeAcrossExtents(t *testing.T) {
	var extents []*memWriter
	o := driver.Options{Name: "disk.vmdk", Beside: func(suffix string) (driver.WriteFile, string, error) {
		w := &memWriter{kept: map[int64]byte{}}
		extents = append(extents, w)
		return w, "disk" + suffix + ".vmdk", nil
	}}
	text := &memWriter{kept: map[int64]byte{}}
	x, err := newSplitTarget(text, splitFlat, 2*splitSize+512, defaultGrain, plainDescriptor(driver.Geometry{}), o)
	require.NoError(t, err)
	require.Len(t, extents, 3)
	require.Equal(t, []int64{splitSize, splitSize, 512}, []int64{extents[0].size, extents[1].size, extents[2].size})
	p := bytes.Repeat([]byte{1}, 8192)
	p[4095], p[4096] = 2, 3
	require.NoError(t, x.Reserve(splitSize-4096, 8192))
	n, err := x.WriteAt(p, splitSize-4096)
	require.NoError(t, err)
	require.Equal(t, 8192, n)
	require.Len(t, extents[0].kept, 4096)
	require.Len(t, extents[1].kept, 4096)
	require.Equal(t, byte(2), extents[0].kept[splitSize-1])
	require.Equal(t, byte(3), extents[1].kept[0])
	require.Empty(t, text.kept, "the descriptor comes last")
	require.NoError(t, x.Finish())
	require.NotEmpty(t, text.kept)
}

// Extents that are contiguous in their files from the start make a disk of its own, not a view.
func TestViewed(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		extents string
		want    []string
	}{
		{"one file", `RW 100 FLAT "a" 0`, nil},
		{"one file of ESXi", `RW 100 VMFS "a"`, nil},
		{"a file for each extent", "RW 100 FLAT \"a\" 0\nRW 100 FLAT \"b\" 0", nil},
		{"one file in pieces", "RW 100 FLAT \"a\" 0\nRW 50 FLAT \"a\" 100\nRW 7 ZERO\nRW 8 FLAT \"a\" 150", nil},
		{"from the inside", `RW 100 FLAT "a" 63`, []string{"a"}},
		{
			"over a head", "RW 8 FLAT \"h\" 0\nRW 100 FLAT \"a\" 63\nRW 8 FLAT \"h\" 8\nRW 100 FLAT \"a\" 163",
			[]string{"a"},
		},
		{"a patched sector", "RW 100 FLAT \"a\" 0\nRW 1 FLAT \"h\" 0\nRW 100 FLAT \"a\" 101", []string{"a"}},
		{"pieces in another order", "RW 8 FLAT \"a\" 8\nRW 8 FLAT \"a\" 0\nRW 8 FLAT \"b\" 1", []string{"a", "b"}},
		{"sparse extents have no offset", `RW 100 SPARSE "a" 63`, nil},
		{"the name of a flat file", `RW 100 FLAT "a-flat.vmdk" 63`, []string{"a-flat.vmdk"}},
		{"shifted", "RW 9 FLAT \"a\" 65\nRW 9 FLAT \"b\" 65\nddb.trueup.offset = \"33280\"", nil},
		{"shifted otherwise", "RW 9 FLAT \"a\" 63\nddb.trueup.offset = \"33280\"", []string{"a"}},
		{"shifted in part", "RW 9 FLAT \"a\" 65\nRW 9 FLAT \"a\" 0\nddb.trueup.offset = \"33280\"", []string{"a"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			d, err := parseDescriptor([]byte("# Disk DescriptorFile\ncreateType=\"twoGbMaxExtentFlat\"\n" + tc.extents +
				"\n"))
			require.NoError(t, err)
			require.Equal(t, tc.want, viewFiles(d.extents, d.ddbInt(offsetKey)))
			require.Equal(t, tc.want, scanNames(tc.extents).Views)
			require.Len(t, d.viewIssue(), min(len(tc.want), 1))
		})
	}
	d, err := parseDescriptor([]byte("RW 8 FLAT \"h\" 0\nRW 100 FLAT \"a\" 63\nRW 8 FLAT \"b\" 7\n"))
	require.NoError(t, err)
	require.Contains(t, d.viewIssue()[0].Text, `55296 of its 59392 bytes are in "a" and 1 more of its files`)
	// A text that no reader recognizes as a disk is read anyway, in limited time.
	require.Len(t, scanNames(strings.Repeat("RW 1 FLAT \"a\" 1\nRW 1 FLAT \"b\" 1\nRW x FLAT \"c\" 1\n", 20_000)).Views,
		2)
}

// A descriptor of 4096 extents is opened, with each of its files once. A disk that is malformed regardless of its
// extents is refused before they are searched.
func TestExtentsOpenTheirFilesOnce(t *testing.T) {
	for kind, c := range map[string]struct {
		line   string
		opened int
		want   error
	}{
		splitFlat:        {`RW 8 FLAT "part%d.vmdk" 0`, maxExtents, nil},
		splitSparse:      {`RW 8 SPARSE "part%d.vmdk"`, 1, ondisk.ErrFormat},
		monolithicSparse: {`RW 8 SPARSE "part%d.vmdk"`, 1, ondisk.ErrFormat},
	} {
		t.Run(kind, func(t *testing.T) {
			var lines strings.Builder
			for i := range maxExtents {
				fmt.Fprintf(&lines, c.line+"\n", i)
			}
			text := vmdkforge.Descriptor(kind, lines.String())
			opened := 0
			_, err := open(&driver.Source{
				File: disktest.NewMemFile("disk.vmdk", []byte(text), int64(len(text))),
				Open: func(name string) (driver.File, error) {
					opened++
					return disktest.NewMemFile(name, nil, 4096), nil
				},
			})
			require.ErrorIs(t, err, c.want)
			require.Equal(t, c.opened, opened)
		})
	}
}

// The geometry for the BIOS stays that of the source, over the new size, or becomes the one by which the disk boots. If
// the lines are right already, none is added.
func TestGeometryForABIOS(t *testing.T) {
	chs := func(h, s int64) driver.Geometry { return driver.Geometry{Heads: h, Sectors: s} }
	lines := func(adapter, disk, bios string) *descriptor {
		text := "# Disk DescriptorFile\nCID=1\nddb.adapterType = \"" + adapter + "\"\n"
		for i, all := range []string{disk, bios} {
			names := [2][3]string{
				{"cylinders", "heads", "sectors"}, {"biosCylinders", "biosHeads", "biosSectors"},
			}[i]
			for n, v := range strings.Fields(all) {
				text += "ddb.geometry." + names[n] + " = \"" + v + "\"\n"
			}
		}
		return parsed(t, text)
	}
	for _, tc := range []struct {
		name    string
		d       *descriptor
		sectors int64
		bios    driver.Geometry
		want    string
	}{
		{
			"scsi: as it is", lines("lsilogic", "522 255 63", ""), 8390656, chs(255, 63),
			"cylinders=522 heads=255 sectors=63",
		},
		{
			"ide: the same translation", lines("ide", "8322 16 63", ""), 8390656, chs(255, 63),
			"cylinders=8324 heads=16 sectors=63",
		},
		{
			"ide: 1024 cylinders of 4 heads are left behind", lines("ide", "1023 4 17", ""), 71612, chs(4, 17),
			"cylinders=1053 heads=4 sectors=17 biosCylinders=1024 biosHeads=4 biosSectors=17",
		},
		{
			"ide: nothing depends on it", lines("ide", "1023 4 17", ""), 71612, chs(0, 0),
			"cylinders=1053 heads=4 sectors=17",
		},
		{
			"ide: the next translation", lines("ide", "2080 16 63", ""), 2099664, chs(16, 63),
			"cylinders=2083 heads=16 sectors=63 biosCylinders=1024 biosHeads=16 biosSectors=63",
		},
		{
			"pinned: over the new size", lines("ide", "600 16 63", "300 32 63"), 606816, chs(32, 63),
			"cylinders=602 heads=16 sectors=63 biosCylinders=301 biosHeads=32 biosSectors=63",
		},
		{
			"pinned: all that can be addressed", lines("ide", "83220 16 63", "1024 255 63"), 83887808, chs(255, 63),
			"cylinders=83222 heads=16 sectors=63 biosCylinders=1024 biosHeads=255 biosSectors=63",
		},
		{
			"pinned: a writer that counts them all", lines("ide", "83220 16 63", "5221 255 63"), 83903872, chs(255, 63),
			"cylinders=83237 heads=16 sectors=63 biosCylinders=5222 biosHeads=255 biosSectors=63",
		},
		{
			"zeros of VirtualBox say nothing", lines("ide", "600 16 63", "0 0 0"), 606816, chs(16, 63),
			"cylinders=602 heads=16 sectors=63 biosCylinders=0 biosHeads=0 biosSectors=0",
		},
		{
			"was no vmdk", plainDescriptor(chs(4, 17)), 71612, chs(4, 17), "cylinders=1053 heads=4 sectors=17",
		},
		{
			"was no vmdk, and nothing depends on it", plainDescriptor(chs(0, 0)), 71612, chs(0, 0),
			"cylinders=4 heads=255 sectors=63",
		},
	} {
		var got []string
		for l := range strings.SplitSeq(string(tc.d.copyFor(monolithicFlat, 512*tc.sectors, nil, nil, tc.bios)), "\n") {
			if rest, ok := strings.CutPrefix(l, "ddb.geometry."); ok {
				got = append(got, strings.NewReplacer(`"`, "", " ", "").Replace(rest))
			}
		}
		require.Equal(t, tc.want, strings.Join(got, " "), tc.name)
	}
}

// A disk that is moved in place keeps the geometry for its BIOS too.
func TestGeometryInPlace(t *testing.T) {
	text := strings.NewReplacer(`"buslogic"`, `"ide"`, `"1044"`, `"1023"`, `"255"`, `"4"`, `"63"`, `"17"`,
		"16777216", "69564").Replace(esxi)
	d := parsed(t, text)
	around, err := d.around(512*71612, driver.Geometry{Heads: 4, Sectors: 17})
	require.NoError(t, err)
	for _, line := range []string{
		`cylinders = "1053"`, `biosCylinders = "1024"`, `biosHeads = "4"`, `biosSectors = "17"`,
	} {
		require.Contains(t, string(around.Text), "ddb.geometry."+line)
	}
}

// Tables have 32 bits for a sector.
func TestDataBehind2TiB(t *testing.T) {
	t.Parallel()
	sparse, err := newSparseTarget(&disktest.Blind{}, 1<<42, defaultGrain, []byte("text"))
	require.NoError(t, err)
	sparse.next = math.MaxUint32 - defaultGrain
	require.NoError(t, sparse.Reserve(0, 1<<16))
	require.ErrorIs(t, sparse.Reserve(1<<16, 1<<16), ondisk.ErrLimit)

	stream, err := newStreamTarget(&disktest.Blind{}, 1<<42, []byte("text"))
	require.NoError(t, err)
	stream.next = math.MaxUint32 - 1
	require.NoError(t, stream.Reserve(0, 1))
	require.ErrorIs(t, stream.Reserve(1<<16, 1), ondisk.ErrLimit)
	require.ErrorIs(t, stream.Reserve(1<<25, 1), ondisk.ErrLimit, "the table has no room")
	require.ErrorIs(t, stream.Finish(), ondisk.ErrLimit)
	_, err = newStreamTarget(&disktest.Blind{}, 1<<47+1<<25, nil)
	require.ErrorIs(t, err, ondisk.ErrLimit, "the directory")
	_, err = newSparseTarget(&disktest.Blind{}, 1<<52, 8, nil)
	require.ErrorIs(t, err, ondisk.ErrLimit, "the tables")
}

// A disk over other files needs one more file for the rest of the disk.
func TestViewsHaveAHead(t *testing.T) {
	t.Parallel()
	_, err := create(&disktest.Blind{}, 1<<20, driver.Options{
		Over:   []disk.Piece{},
		Beside: func(string) (driver.WriteFile, string, error) { return nil, "", disktest.ErrFault },
	})
	require.ErrorIs(t, err, disktest.ErrFault)
}

// The compressor of one grain is reused for the next.
func TestPackersAreUsedAgain(t *testing.T) {
	if disktest.Raced {
		t.Skip("the race detector has pools forget some of what they hold")
	}
	stream, err := newStreamTarget(&disktest.Blind{}, 1<<20, nil)
	require.NoError(t, err)
	grain := make([]byte, stream.Unit())
	require.Less(t, disktest.Allocated(func() {
		for range 20 {
			_, err := stream.Pack(grain, 0)
			require.NoError(t, err)
		}
	}), int64(4<<20), "one has 800 KiB")
}

// Expected sizes and offsets are from Virtual Disk Format 1.1, "Hosted Sparse Extents" and "ESX Server Sparse Extents",
// and from QEMU, block/vmdk.c.
func TestStructSizes(t *testing.T) {
	require.Equal(t, 512, binary.Size(seVolatile{}))
	for _, tc := range []struct {
		header any
		size   int
		places map[int]byte
	}{
		{
			sparseHeader{Capacity: 1, GrainSize: 2, NumGTEsPerGT: 3, GDOffset: 4, UncleanShutdown: 5, CompressAlgo: 6},
			512,
			map[int]byte{atCap: 1, atGrain: 2, atGTEs: 3, atGD: 4, 72: 5, 77: 6},
		},
		{
			cowdHeader{GrainSize: 1, GDOffset: 2, NumGDEntries: 3, UncleanShutdown: 4},
			4 * 512,
			map[int]byte{atCOWDGrain: 1, atCOWDGD: 2, atCOWDNumGDE: 3, atCOWDUnclean: 4},
		},
		{
			seHeader{
				Capacity: 1, GrainTableSize: 2, Flags: 3, VolatileHeaderOffset: 4, GrainDirOffset: 5,
				GrainTablesOffset: 6, GrainsOffset: 7,
			},
			512,
			map[int]byte{
				atSECapacity: 1, atSETable: 2, atSEFlags: 3, atSEVolatile: 4, atSEGD: 5, atSEGTs: 6, atSEGrains: 7,
			},
		},
	} {
		b, err := binary.Append(nil, binary.LittleEndian, tc.header)
		require.NoError(t, err)
		require.Len(t, b, tc.size)
		for at, want := range tc.places {
			assert.Equal(t, want, b[at], "%T, byte %d", tc.header, at)
		}
	}
}
