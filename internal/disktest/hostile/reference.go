//go:build linux || windows

package hostile

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
)

func flatOf(name string) string {
	return vmdkforge.Descriptor("monolithicFlat", fmt.Sprintf(`RW 2048 FLAT "%s" 0`, name))
}

// hidden makes an image whose descriptor is the text in a sparse header without data.
func hidden(text string) Writer {
	return func(t testing.TB, dir string) string {
		t.Helper()
		path := filepath.Join(dir, "disk.vmdk")
		vmdkforge.NewHiddenDescriptor(text).Write(t, path)
		return path
	}
}

func absoluteNames() []Row {
	says := []string{"line 9", `"/etc/shadow"`, "reference not allowed", "must be a plain name in the same folder"}
	vmfs := vmdkforge.Descriptor("vmfs", `RW 2048 VMFS "/etc/shadow"`)
	return []Row{
		unread("T01 absolute path", "reference", writeText("disk.vmdk", flatOf("/etc/shadow")), says...),
		unread("T01 absolute path, vmfs", "reference", writeText("disk.vmdk", vmfs), says...),
		unread("T05 hidden descriptor", "reference", hidden(flatOf("/etc/shadow")), says...),
	}
}

func escapingNames() []Row {
	long := strings.Repeat("x", 600)
	var out []Row
	for _, name := range []string{
		"../x", "a/../../x", `..\x`, `C:\x`, "C:x", `\\host\s`, "/proc/self/fd/0", "nbd://127.0.0.1/x", "json:{}",
		"sub/x", "..", ".", "x\x1b[2Jy", long, "",
	} {
		says := []string{"line 9", fmt.Sprintf("%.256q", name), "reference not allowed", "must be a plain name"}
		out = append(out, unread(fmt.Sprintf("T02 name %.20q", name), "reference",
			writeText("disk.vmdk", flatOf(name)), says...))
	}
	noName := vmdkforge.Descriptor("monolithicFlat", "RW 2048 FLAT")
	return append(out,
		// Names are bytes here.
		unread("T02 name that is no UTF-8", "io", writeText("disk.vmdk", flatOf("x\xffy")), "line 9", `"x\xffy"`,
			"no such file"),
		unread("T02 no name at all", "reference", writeText("disk.vmdk", noName), "line 9", `file name "" is empty`),
		// The name is never used: a zero byte does not end a text, so the text is malformed.
		unread("T02 name with a zero byte", "format", writeText("disk.vmdk", flatOf("x\x00y")), "no zero byte"))
}

// selfExtents are descriptors that refer to descriptors.
func selfExtents() []Row {
	self := func(createType, kind, name string) string {
		return vmdkforge.Descriptor(createType, fmt.Sprintf(`RW 2048 %s "%s"`, kind, name))
	}
	says := []string{"line 9", "extent 0 is the same file"}
	var out []Row
	for _, c := range []struct{ createType, kind string }{
		{"monolithicFlat", "FLAT"}, {"monolithicFlat", "SPARSE"}, {"monolithicSparse", "SPARSE"}, {"vmfs", "VMFS"},
	} {
		text := self(c.createType, c.kind, "disk.vmdk")
		out = append(out,
			unread("T06 own name, descriptor file, "+c.createType+" "+c.kind, "format",
				writeText("disk.vmdk", text), says...),
			unread("T06 own name, hidden descriptor, "+c.createType+" "+c.kind, "format", hidden(text), says...))
	}
	twin := func(t testing.TB, dir string) string {
		t.Helper()
		path := hidden(self("monolithicFlat", "SPARSE", "twin.vmdk"))(t, dir)
		require.NoError(t, os.Link(path, filepath.Join(dir, "twin.vmdk")))
		return path
	}
	return append(out,
		unread("T06 hard link to itself", "format", twin, says...),
		fanOut("monolithicFlat", "extent 0 is SPARSE, want FLAT, VMFS or ZERO"),
		fanOut("monolithicSparse", "want the descriptor inside its extent"),
		fanOut("twoGbMaxExtentSparse", "is a descriptor, must be"),
	)
}

// fanOut returns twelve files of ten sparse extents, each of which refers to the next file.
func fanOut(createType, says string) Row {
	return unread("T07 fan-out, "+createType, "format", func(t testing.TB, dir string) string {
		t.Helper()
		for i := range 12 {
			line := fmt.Sprintf("RW 2048 SPARSE \"disk%d.vmdk\"\n", (i+1)%12)
			text := vmdkforge.Descriptor(createType, strings.Repeat(line, 10))
			writeText(fmt.Sprintf("disk%d.vmdk", i), text)(t, dir)
		}
		return filepath.Join(dir, "disk0.vmdk")
	}, says)
}
