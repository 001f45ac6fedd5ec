package cli

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
)

// node makes a file that holds nothing. A block device needs a right that most users have not.
func node(t *testing.T, name string, kind uint32) {
	t.Helper()
	if err := unix.Mknod(name, kind|0o600, int(unix.Mkdev(1, 3))); err != nil {
		t.Skipf("no right to make such a node: %v", err)
	}
}

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
		want: every("64 would overwrite what is no text", "copy", exists, "force", "0"),
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
		"script", "64 is not as trueup wrote it", "copy", exists)},
	{
		name: "run.sh", make: func(t *testing.T) { t.Helper(); put(t, "run.sh", []byte("#!/bin/sh\n")) },
		want: every("64 would overwrite a program",
			"script", "64 is not as trueup wrote it", "copy", exists, "force", "0"),
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
		want: every("0", "script", "64 is not as trueup wrote it", "copy", aLink, "force",
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
		want: every("64 is a link to "),
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
		want: every("64 is a link to ", "copy", unlisted, "force", forced),
	},
	{
		name: "block", make: func(t *testing.T) { t.Helper(); node(t, "block", unix.S_IFBLK) },
		want: every(special, "copy", unlisted, "force", forced),
	},
	{
		name: "character", make: func(t *testing.T) { t.Helper(); node(t, "character", unix.S_IFCHR) },
		want: every(special),
	},
	{name: "fifo", make: func(t *testing.T) { t.Helper(); node(t, "fifo", unix.S_IFIFO) }, want: every(special)},
	{
		name: "socket", make: func(t *testing.T) { t.Helper(); node(t, "socket", unix.S_IFSOCK) },
		want: every(special),
	},
	{name: "to-fifo", make: func(t *testing.T) {
		t.Helper()
		node(t, "fifo", unix.S_IFIFO)
		link(t, "fifo", "to-fifo")
	}, want: every("64 is a link to ")},
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
				put(t, "copy.img", tiny())
				put(t, "src.ova", forgedPackage())
				s.make(t)
				requirePlace(t, s, w)
			})
		}
	}
}
