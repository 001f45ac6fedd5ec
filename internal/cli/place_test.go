package cli

import (
	"bytes"
	"context"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/qcow2forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/disktest/forge/tarforge"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
)

// ended is what one run of a command left behind.
type ended struct {
	code           int
	stdout, stderr string
}

// trueup runs a command in this process.
func trueup(t *testing.T, args ...string) ended {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code := Run(context.Background(), "test", args, &stdout, &stderr)
	return ended{code, stdout.String(), stderr.String()}
}

// writing is one file that a command writes: the command line with PLACE where its name goes.
type writing struct {
	name, role string // role: report, script, catalog, copy, force
	args       []string
}

var writings = []writing{
	{"inspect", "report", []string{"inspect", "src.img", "--out", "PLACE"}},
	{"plan", "report", []string{"plan", "src.img", "--out", "PLACE"}},
	{"verify", "report", []string{"verify", "src.img", "src.img", "--out", "PLACE"}},
	{"version", "report", []string{"version", "--out", "PLACE"}},
	{"align, report", "report", []string{"align", "src.img", "new.img", "--out", "PLACE"}},
	{"convert, report", "report", []string{"convert", "src.img", "new.img", "--out", "PLACE"}},
	{"package, report", "report", []string{"align", "src.ova", "new.ova", "--out", "PLACE"}},
	{"scan", "report", []string{"scan", "--isolation", "none", "src.img", "--out", "PLACE"}},
	{"scan, json", "report", []string{"scan", "--isolation", "none", "src.img", "--json", "--out", "PLACE"}},
	{"scan, script", "script", []string{"scan", "--isolation", "none", "src.img", "--script", "PLACE"}},
	{"scan, catalogue", "catalog", []string{"scan", "--isolation", "none", "src.img", "--catalog", "PLACE"}},
	{"align", "copy", []string{"align", "src.img", "PLACE", "--to", "raw"}},
	{"convert", "copy", []string{"convert", "src.img", "PLACE", "--to", "raw"}},
	{"align --force", "force", []string{"align", "--force", "src.img", "PLACE", "--to", "raw"}},
	{"convert --force", "force", []string{"convert", "--force", "src.img", "PLACE", "--to", "raw"}},
}

// standing is what stands under a name already. want has for each role the exit code and what the message says, in
// front of which stands the name; "0" for a file that is written.
type standing struct {
	name string
	make func(t *testing.T)
	want map[string]string
	// through is the file that is written when the name is a link.
	through string
}

// every gives all roles one answer, but for those that differ.
func every(text string, differ ...string) map[string]string {
	m := map[string]string{"report": text, "script": text, "catalog": text, "copy": text, "force": text}
	for i := 0; i < len(differ); i += 2 {
		m[differ[i]] = differ[i+1]
	}
	return m
}

func put(t *testing.T, name string, content []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(name, content, 0o640))
}

// node makes a file that holds nothing. A block device needs a right that most users have not.
func node(t *testing.T, name string, kind uint32) {
	t.Helper()
	if err := unix.Mknod(name, kind|0o600, int(unix.Mkdev(1, 3))); err != nil {
		t.Skipf("no right to make such a node: %v", err)
	}
}

func link(t *testing.T, to, name string) {
	t.Helper()
	require.NoError(t, os.Symlink(to, name))
}

// tiny is an aligned disk.
func tiny() forge.Bytes {
	return tableforge.NewMBR(2560, tableforge.Slot{Type: 0x83, Start: 2048, Sectors: 512})
}

func putImage(t *testing.T, name string) {
	t.Helper()
	put(t, name, qcow2forge.New(tiny(), 16).Bytes)
}

func putFlat(t *testing.T, extent string) {
	t.Helper()
	put(t, "flat.vmdk", []byte(vmdkforge.Descriptor("monolithicFlat", `RW 2 FLAT "`+extent+`" 0`)))
	put(t, extent, bytes.Repeat([]byte("text"), 256))
}

const (
	overImage = "64 would overwrite an image"
	imageName = "64 has the name of an image"
	machine   = "64 has the name of a virtual machine's own file"
	exists    = "1 exists; choose another name, or --force to replace it"
	aFolder   = "64 is a folder: name the file, such as "
	aLink     = "64 is a link to "
)

var standings = []standing{
	{name: "absent.txt", make: func(*testing.T) {}, want: every("0")},
	{
		name: "web01", make: func(t *testing.T) { t.Helper(); putImage(t, "web01") },
		want: every(overImage, "copy", exists, "force", "0"),
	},
	{
		name: "disk.vmdk", make: func(t *testing.T) { t.Helper(); putImage(t, "disk.vmdk") },
		want: every(imageName, "copy", exists, "force", "0"),
	},
	{
		name: "bare", make: func(t *testing.T) { t.Helper(); put(t, "bare", append(tiny(), make([]byte, 512)...)) },
		want: every("64 would overwrite what is no text", "catalog", "64 no catalogue", "copy", exists, "force", "0"),
	},
	{
		name: "extent", make: func(t *testing.T) { t.Helper(); putFlat(t, "extent") },
		want: every("64 would overwrite a file that flat.vmdk needs",
			"copy", "64 belongs to flat.vmdk", "force", "64 belongs to flat.vmdk"),
	},
	{
		name: "extent of any name", make: func(t *testing.T) {
			t.Helper()
			put(t, "descriptor", []byte(vmdkforge.Descriptor("monolithicFlat", `RW 2 FLAT "extent of any name" 0`)))
			put(t, "extent of any name", bytes.Repeat([]byte("text"), 256))
		},
		want: every("64 would overwrite a file that descriptor needs", "copy", "64 belongs to descriptor", "force",
			"64 belongs to descriptor"),
	},
	{
		name: "disk of a package", make: func(t *testing.T) {
			t.Helper()
			put(t, "vm.ovf", []byte(strings.Replace(envelope, "d.vmdk", "disk%20of%20a%20package", 1)))
			putImage(t, "disk of a package")
		},
		want: every(overImage, "copy", "64 belongs to vm.ovf", "force", "64 belongs to vm.ovf"),
	},
	{
		name: "listed", make: func(t *testing.T) {
			t.Helper()
			put(t, "machine", []byte(strings.Replace(envelope, "d.vmdk", "./listed", 1)))
			put(t, "listed", []byte("text\n"))
		},
		want: every("64 would overwrite a file that machine needs", "copy", "64 belongs to machine", "force",
			"64 belongs to machine"),
	},
	{
		name: "cut-short", make: func(t *testing.T) {
			t.Helper()
			put(t, "vm.ovf", []byte(strings.Replace(envelope, "d.vmdk", "Cut-Short", 1)[:200]))
			put(t, "cut-short", []byte("text\n"))
		},
		want: every("64 would overwrite a file that vm.ovf needs", "copy", "64 belongs to vm.ovf", "force",
			"64 belongs to vm.ovf"),
	},
	{
		name: "elsewhere.vmdk", make: func(t *testing.T) {
			t.Helper()
			put(t, "vm.ovf", []byte(strings.Replace(envelope, "d.vmdk", "disks/elsewhere.vmdk", 1)))
			putImage(t, "elsewhere.vmdk")
		},
		want: every(imageName, "copy", exists, "force", "0"),
	},
	{name: "base", make: func(t *testing.T) {
		t.Helper()
		put(t, "base", []byte("text\n"))
		put(t, "snap.vmdk", []byte(vmdkforge.Descriptor("monolithicFlat",
			`RW 2 FLAT "x-flat.vmdk" 0`)+"parentFileNameHint=\"base\"\n"))
	}, want: every("64 would overwrite a file that snap.vmdk needs", "copy", "4 cannot be replaced", "force",
		"4 cannot be replaced")},
	{
		name: "vm.ova", make: func(t *testing.T) { t.Helper(); put(t, "vm.ova", forgedPackage()) },
		want: every(imageName, "copy", "", "force", ""),
	},
	{
		name: "package", make: func(t *testing.T) { t.Helper(); put(t, "package", forgedPackage()) },
		want: every(overImage, "copy", exists, "force", "0"),
	},
	{
		name: "vm.vmx", make: func(t *testing.T) { t.Helper(); put(t, "vm.vmx", []byte("memsize = 1\n")) },
		want: every(machine),
	},
	{name: "notes", make: func(t *testing.T) { t.Helper(); put(t, "notes", []byte("mine\n")) }, want: every("0",
		"script", "64 is not as trueup wrote it", "catalog", "64 no catalogue", "copy", exists)},
	{
		name: "run.sh", make: func(t *testing.T) { t.Helper(); put(t, "run.sh", []byte("#!/bin/sh\n")) },
		want: every("64 would overwrite a program",
			"script", "64 is not as trueup wrote it", "catalog", "64 no catalogue", "copy", exists, "force", "0"),
	},
	{
		name: "folder", make: func(t *testing.T) { t.Helper(); require.NoError(t, os.Mkdir("folder", 0o700)) },
		want: every(aFolder),
	},
	{
		name: "folder/", make: func(t *testing.T) { t.Helper(); require.NoError(t, os.Mkdir("folder", 0o700)) },
		want: every(aFolder),
	},
	{
		name: "to-image", make: func(t *testing.T) { t.Helper(); putImage(t, "web01"); link(t, "web01", "to-image") },
		want: every(overImage, "copy", aLink, "force", aLink),
	},
	{
		name: "to-text", through: "notes",
		make: func(t *testing.T) { t.Helper(); put(t, "notes", []byte("mine\n")); link(t, "notes", "to-text") },
		want: every("0", "script", "64 is not as trueup wrote it", "catalog", "64 no catalogue", "copy", aLink, "force",
			aLink),
	},
	{
		name: "to-machine", make: func(t *testing.T) {
			t.Helper()
			put(t, "vm.vmx", []byte("memsize = 1\n"))
			link(t, "vm.vmx", "to-machine")
		},
		want: every(machine, "copy", aLink, "force", aLink),
	},
	{
		name: "to-folder", make: func(t *testing.T) {
			t.Helper()
			require.NoError(t, os.Mkdir("folder", 0o700))
			link(t, "folder", "to-folder")
		},
		want: every("64 is a link to the folder "),
	},
	{
		name: "dangling", make: func(t *testing.T) { t.Helper(); link(t, "nowhere", "dangling") },
		want: every("64 is a link to nowhere, which is not there"),
	},
	{
		name: "to-itself", make: func(t *testing.T) { t.Helper(); link(t, "to-itself", "to-itself") },
		want: every("64 is a link to to-itself, which "),
	},
	{
		name: "to-block", make: func(t *testing.T) {
			t.Helper()
			node(t, "dm-3", unix.S_IFBLK)
			link(t, "dm-3", "to-block")
		},
		want: every("64 is a link to the block device "),
	},
	{
		name: "block", make: func(t *testing.T) { t.Helper(); node(t, "block", unix.S_IFBLK) },
		want: every("64 is a block device"),
	},
	{
		name: "character", make: func(t *testing.T) { t.Helper(); node(t, "character", unix.S_IFCHR) },
		want: every("64 is a character device"),
	},
	{name: "fifo", make: func(t *testing.T) { t.Helper(); node(t, "fifo", unix.S_IFIFO) }, want: every("64 is a FIFO")},
	{
		name: "socket", make: func(t *testing.T) { t.Helper(); node(t, "socket", unix.S_IFSOCK) },
		want: every("64 is a socket"),
	},
	{name: "to-fifo", make: func(t *testing.T) {
		t.Helper()
		node(t, "fifo", unix.S_IFIFO)
		link(t, "fifo", "to-fifo")
	}, want: every("64 is a link to the FIFO ")},
	{name: "missing/file", make: func(*testing.T) {}, want: every("1 folder of ")},
	{name: "-", make: func(*testing.T) {}, want: every("64 would be standard output", "report", "stdout")},
	{name: "/dev/stdout", make: func(*testing.T) {}, want: every("64 is an open descriptor", "report", "stdout")},
	{name: "/dev/fd/1", make: func(*testing.T) {}, want: every("64 is an open descriptor", "report", "stdout")},
	{name: "/proc/self/fd/1", make: func(*testing.T) {}, want: every("64 is an open descriptor", "report", "stdout")},
	{
		name: "to-stdout", make: func(t *testing.T) { t.Helper(); link(t, "/dev/stdout", "to-stdout") },
		want: every("64 is an open descriptor", "report", "stdout"),
	},
	{name: "/dev/stderr", make: func(*testing.T) {}, want: every("64 is an open descriptor")},
	{name: "/proc/self/fd/0", make: func(*testing.T) {}, want: every("64 is an open descriptor")},
}

// forgedPackage is a package with one disk.
var forgedPackage = sync.OnceValue(func() []byte {
	disk := vmdkforge.NewStream(tiny(), vmdkforge.StreamLayout{})
	members := []tarforge.Member{{Name: "vm.ovf", Data: []byte(envelope)}, {Name: "d.vmdk", Data: disk.Bytes}}
	return append(tarforge.New(members...), tarforge.End()...)
})

// envelope is the OVF of a machine with one disk.
const envelope = `<Envelope xmlns="http://schemas.dmtf.org/ovf/envelope/1"
 xmlns:ovf="http://schemas.dmtf.org/ovf/envelope/1">
<References><File ovf:href="d.vmdk" ovf:id="f"/></References>
<DiskSection><Info/><Disk ovf:capacity="1310720" ovf:diskId="d" ovf:fileRef="f"/></DiskSection>
<VirtualSystem ovf:id="v"><Info/><Name>v</Name></VirtualSystem></Envelope>`

// TestPlaces has every command write every file of its own where something stands already. What stands there is hurt by
// none, and a report never takes the place of an image, of what an image needs, or of a node.
func TestPlaces(t *testing.T) {
	for _, s := range standings {
		for _, w := range writings {
			title := s.name + ", " + w.name
			if s.want[w.role] == "" || !disktest.Share(title) {
				continue // a disk cannot be written there at all, or not the share of make test
			}
			t.Run(title, func(t *testing.T) {
				t.Chdir(t.TempDir())
				tiny().Write(t, "src.img")
				put(t, "src.ova", forgedPackage())
				s.make(t)
				requirePlace(t, s, w)
			})
		}
	}
}

func requirePlace(t *testing.T, s standing, w writing) {
	t.Helper()
	before := state(t)
	args := slices.Clone(w.args)
	args[slices.Index(args, "PLACE")] = s.name
	r := trueup(t, args...)
	after := state(t)
	delete(after, "new.img")
	delete(after, "new.ova")
	code, text, _ := strings.Cut(s.want[w.role], " ")
	switch code {
	case "stdout":
		require.Zero(t, r.code, r.stderr)
		require.NotEmpty(t, r.stdout)
		require.Equal(t, before, after)
		return
	case "0":
		require.Zero(t, r.code, r.stderr)
		if w.role == "report" {
			require.Empty(t, r.stdout)
		}
		written := s.name
		if s.through != "" {
			written = s.through
		}
		require.NotEqual(t, before[written], after[written])
		require.True(t, strings.HasPrefix(after[written], "-"), "a plain file: %s", after[written])
		delete(before, written)
		delete(after, written)
		require.Equal(t, before, after, "nothing else has changed")
		return
	}
	require.Equal(t, code, map[int]string{1: "1", 4: "4", 64: "64"}[r.code], r.stderr)
	require.Contains(t, r.stderr, s.name)
	require.Contains(t, r.stderr, text)
	require.Equal(t, 1, strings.Count(r.stderr, "\n"), "one line")
	if code != "1" && w.role != "script" {
		require.NotContains(t, r.stderr, "--force", "it would not help")
	}
	require.Equal(t, before, after)
}

// state is what the folder holds: kinds, sizes, and the first bytes of files.
func state(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	require.NoError(t, filepath.WalkDir(".", func(path string, _ fs.DirEntry, _ error) error {
		st, err := os.Lstat(path)
		if err != nil || path == "." {
			return err
		}
		out[path] = st.Mode().Type().String()
		if st.Mode().IsRegular() {
			b := disktest.ReadFile(t, path)
			out[path] = "-" + string(b)
		}
		return nil
	}))
	return maps.Clone(out)
}
