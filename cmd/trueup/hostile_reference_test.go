package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
)

// reference is an image that names a file it must not name.
type reference struct {
	hostile
	seen, open []string // names in its folder that may be looked up, and opened
}

// TestHostileReferences is about descriptors that name other files.
func TestHostileReferences(t *testing.T) {
	t.Parallel()
	usual := startup(t)
	for _, rows := range [][]reference{absoluteNames(), escapingNames(), linkedExtents(), oddExtents(), selfExtents()} {
		for _, r := range rows {
			t.Run(r.name, func(t *testing.T) {
				r.run(t)
				watch{usual, r.seen, r.open}.check(t, r.image(t, t.TempDir()))
			})
		}
	}
}

// TestHostileParentsOpenNothing covers all formats: whatever the name of a parent is, only its last part is looked for,
// in the image's folder.
func TestHostileParentsOpenNothing(t *testing.T) {
	t.Parallel()
	usual := startup(t)
	w := watch{usual: usual, open: []string{"gone.vhd", "shadow", "sam", "base.raw", "base.vhdx", "base.vmdk"}}
	for _, rows := range [][]hostile{parents()[:5], vhdParents(), vhdxParents(), qcow2References()[:5], qcow2Names()} {
		for _, h := range rows {
			t.Run(h.name, func(t *testing.T) { w.check(t, h.image(t, t.TempDir())) })
		}
	}
}

// TestWatchSeesExtents makes sure that the cases above could fail: an extent that may be opened is seen to be opened.
func TestWatchSeesExtents(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "x-flat.vmdk"), make([]byte, 2048*512), 0o644))
	calls := traced(t, "inspect", writeText("disk.vmdk", flatOf("x-flat.vmdk"))(t, dir))
	opened := slices.ContainsFunc(calls, func(c nameCall) bool {
		return c.name == "openat" &&
			slices.Contains(c.paths, "x-flat.vmdk")
	})
	require.True(t, opened, "%q", calls)
}

func flatOf(name string) string {
	return vmdkforge.Descriptor("monolithicFlat", fmt.Sprintf(`RW 2048 FLAT "%s" 0`, name))
}

// hidden makes an image whose descriptor is the text in a sparse header without data.
func hidden(text string) func(testing.TB, string) string {
	return func(t testing.TB, dir string) string {
		t.Helper()
		path := filepath.Join(dir, "disk.vmdk")
		vmdkforge.NewHiddenDescriptor(text).Write(t, path)
		return path
	}
}

func absoluteNames() []reference {
	says := []string{"line 9", `"/etc/shadow"`, "reference not allowed", "want a plain name in the same folder"}
	vmfs := vmdkforge.Descriptor("vmfs", `RW 2048 VMFS "/etc/shadow"`)
	return []reference{
		{hostile: hostile{
			name: "T01 absolute path", image: writeText("disk.vmdk", flatOf("/etc/shadow")),
			code: "reference", says: says,
		}},
		{hostile: hostile{
			name: "T01 absolute path, vmfs", image: writeText("disk.vmdk", vmfs), code: "reference", says: says,
		}},
		{hostile: hostile{
			name: "T05 hidden descriptor", image: hidden(flatOf("/etc/shadow")), code: "reference", says: says,
		}},
	}
}

func escapingNames() []reference {
	long := strings.Repeat("x", 600)
	var out []reference
	for _, name := range []string{
		"../x", "a/../../x", `..\x`, `C:\x`, "C:x", `\\host\s`, "/proc/self/fd/0", "nbd://127.0.0.1/x", "json:{}",
		"sub/x", "..", ".", "x\x1b[2Jy", long, "",
	} {
		says := []string{"line 9", fmt.Sprintf("%.256q", name), "reference not allowed", "want a plain name"}
		out = append(out, reference{hostile: hostile{
			name: fmt.Sprintf("T02 name %.20q", name), image: writeText("disk.vmdk", flatOf(name)), code: "reference",
			says: says,
		}})
	}
	noName := vmdkforge.Descriptor("monolithicFlat", "RW 2048 FLAT")
	return append(out, reference{hostile{ // names are bytes here
		name: "T02 name that is no UTF-8", image: writeText("disk.vmdk", flatOf("x\xffy")), code: "io",
		says: []string{"line 9", `"x\xffy"`, "no such file"},
	}, []string{`x\377y`}, []string{`x\377y`}}, reference{hostile: hostile{
		name: "T02 no name at all", image: writeText("disk.vmdk", noName), code: "reference",
		says: []string{"line 9", `file name "" is empty`},
	}}, reference{hostile: hostile{
		// The name is never reached: a zero byte ends nothing in a text, so the text is malformed.
		name: "T02 name with a zero byte", image: writeText("disk.vmdk", flatOf("x\x00y")), code: "format",
		says: []string{"no zero byte"},
	}})
}

// linkedExtents are links: a link is refused wherever it leads.
func linkedExtents() []reference {
	link := func(to string) func(testing.TB, string) string {
		return func(t testing.TB, dir string) string {
			t.Helper()
			require.NoError(t, os.WriteFile(filepath.Join(dir, "inside"), make([]byte, 2048*512), 0o644))
			require.NoError(t, os.Symlink(to, filepath.Join(dir, "x-flat.vmdk")))
			return writeText("disk.vmdk", flatOf("x-flat.vmdk"))(t, dir)
		}
	}
	says := []string{"line 9", `"x-flat.vmdk" is a symbolic link`, "want a regular file"}
	seen := []string{"x-flat.vmdk"}
	return []reference{
		{
			hostile{name: "T03 link to a file of the host", image: link("/etc/passwd"), code: "reference", says: says},
			seen, nil,
		},
		{hostile{name: "T03 link within the folder", image: link("inside"), code: "reference", says: says}, seen, nil},
	}
}

// oddExtents are extents that are no regular files.
func oddExtents() []reference {
	node := func(make func(path string) error) func(testing.TB, string) string {
		return func(t testing.TB, dir string) string {
			t.Helper()
			if err := make(filepath.Join(dir, "x-flat.vmdk")); err != nil {
				t.Skip(err) // device nodes are for root
			}
			return writeText("disk.vmdk", flatOf("x-flat.vmdk"))(t, dir)
		}
	}
	device := func(kind uint32, major, minor uint32) func(string) error {
		return func(path string) error { return unix.Mknod(path, kind|0o644, int(unix.Mkdev(major, minor))) }
	}
	var out []reference
	for what, make := range map[string]func(string) error{
		"a FIFO":             func(path string) error { return unix.Mkfifo(path, 0o644) },
		"a socket":           listenAt,
		"a folder":           func(path string) error { return os.Mkdir(path, 0o755) },
		"a character device": device(unix.S_IFCHR, 1, 5), // the numbers of /dev/zero
		"a block device":     device(unix.S_IFBLK, 7, 0), // and of /dev/loop0
	} {
		out = append(out, reference{hostile{
			name: "T04 extent is " + what, image: node(make), code: "reference",
			says: []string{"line 9", `"x-flat.vmdk" is ` + what, "want a regular file"},
		}, []string{"x-flat.vmdk"}, nil})
	}
	return out
}

// listenAt leaves a socket behind.
func listenAt(path string) error {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return err
	}
	l.SetUnlinkOnClose(false)
	return l.Close()
}

// selfExtents are descriptors that lead to descriptors.
func selfExtents() []reference {
	self := func(createType, kind, name string) string {
		return vmdkforge.Descriptor(createType, fmt.Sprintf(`RW 2048 %s "%s"`, kind, name))
	}
	says := []string{"line 9", "extent 0 is the same file"}
	var out []reference
	for _, c := range []struct{ createType, kind string }{
		{"monolithicFlat", "FLAT"}, {"monolithicFlat", "SPARSE"}, {"monolithicSparse", "SPARSE"}, {"vmfs", "VMFS"},
	} {
		text := self(c.createType, c.kind, "disk.vmdk")
		out = append(out,
			reference{hostile: hostile{
				name:  "T06 own name, descriptor file, " + c.createType + " " + c.kind,
				image: writeText("disk.vmdk", text), code: "format", says: says,
			}},
			reference{hostile: hostile{
				name: "T06 own name, hidden descriptor, " + c.createType + " " + c.kind, image: hidden(text),
				code: "format", says: says,
			}})
	}
	twin := func(t testing.TB, dir string) string {
		t.Helper()
		path := hidden(self("monolithicFlat", "SPARSE", "twin.vmdk"))(t, dir)
		require.NoError(t, os.Link(path, filepath.Join(dir, "twin.vmdk")))
		return path
	}
	twinName := []string{"twin.vmdk"}
	return append(out,
		reference{hostile{name: "T06 hard link to itself", image: twin, code: "format", says: says}, nil, twinName},
		fanOut("monolithicFlat", "extent 0 is SPARSE, want FLAT, VMFS or ZERO"),
		fanOut("monolithicSparse", "want the descriptor inside its extent"),
		fanOut("twoGbMaxExtentSparse", "is a descriptor itself"),
	)
}

// fanOut returns twelve files of ten sparse extents, each of which names the next file.
func fanOut(createType, says string) reference {
	r := reference{open: []string{"disk1.vmdk"}}
	r.hostile = hostile{name: "T07 fan-out, " + createType, code: "format", says: []string{says}}
	r.image = func(t testing.TB, dir string) string {
		t.Helper()
		for i := range 12 {
			var lines []string
			for range 10 {
				lines = append(lines, fmt.Sprintf(`RW 2048 SPARSE "disk%d.vmdk"`, (i+1)%12))
			}
			writeText(fmt.Sprintf("disk%d.vmdk", i), vmdkforge.Descriptor(createType, lines...))(t, dir)
		}
		return filepath.Join(dir, "disk0.vmdk")
	}
	return r
}
