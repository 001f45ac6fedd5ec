package cli

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
)

// putReplaced replaces disks, whose originals stay.
func putReplaced(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		put(t, name, tableforge.NewMBR(2560, tableforge.Slot{Type: 0x83, Start: 63, Sectors: 512}))
	}
	r := trueup(t, append([]string{"replace", "--allow-unbootable"}, names...)...)
	require.Zero(t, r.code, r.stderr)
	for _, name := range names {
		require.Contains(t, r.stdout, name+": raw, 1 partition moved")
	}
}

// Several disks are replaced, and several exchanges taken back. A disk that is not there changes none.
func TestReplaceSeveral(t *testing.T) {
	t.Chdir(t.TempDir())
	putReplaced(t, "a.img", "b.img")
	all := []string{
		"a.img", "a.img.trueup", "a.orig.img", "b.img", "b.img.trueup", "b.orig.img",
	}
	require.Equal(t, all, disktest.Names(t, "."))
	r := trueup(t, "undo", "a.img", "absent.img")
	require.Equal(t, 64, r.code)
	require.Contains(t, r.stderr, "absent.img: nothing is open here")
	require.Equal(t, all, disktest.Names(t, "."), "nothing was undone")
	r = trueup(t, "undo", "--json", "a.img", "b.img")
	require.Zero(t, r.code, r.stderr)
	require.Equal(t, 2, strings.Count(r.stdout, "\n"), "an object of one line for each")
	require.Equal(t, []string{"a.img", "b.img"}, disktest.Names(t, "."))
}

// finish --below judges all disks first, removes the originals of those that are sound, and leaves the others.
func TestFinishBelow(t *testing.T) {
	t.Chdir(t.TempDir())
	require.NoError(t, os.MkdirAll("lib/deep", 0o700))
	require.NoError(t, os.Mkdir("away", 0o700))
	putReplaced(t, "lib/a.img", "lib/deep/b.img", "lib/c.img", "away/d.img")
	require.NoError(t, os.Symlink("../away", "lib/link"))
	put(t, "lib/e.img.trueup", []byte("text"))
	require.NoError(t, os.Truncate("lib/c.img", 512)) // the original is all there is
	lib, deep := disktest.Names(t, "lib"), disktest.Names(t, "lib/deep")

	r := trueup(t, "finish", "--below", "lib", "--dry-run")
	require.Equal(t, 4, r.code)
	require.Equal(t, "2 of 4 apply:\n  leave   lib/c.img\n  leave   lib/e.img\n  finish  lib/a.img\n"+
		"  finish  lib/deep/b.img\n\n", r.stdout)
	require.Contains(t, r.stderr, "lib/c.img: ")
	require.Contains(t, r.stderr, "and the original is all there is")
	require.Contains(t, r.stderr, `"e.img.trueup" should be a journal of trueup`)
	require.Equal(t, lib, disktest.Names(t, "lib"))
	require.Equal(t, deep, disktest.Names(t, "lib/deep"))

	r = trueup(t, "finish", "--below", "lib", "--json")
	require.Equal(t, 4, r.code)
	var ends []int
	for line := range strings.Lines(r.stdout) {
		var object struct {
			Exit int `json:"exit_code"`
		}
		require.NoError(t, json.Unmarshal([]byte(line), &object))
		ends = append(ends, object.Exit)
	}
	require.Equal(t, []int{4, 4, 0, 0}, ends)
	require.Equal(t, []string{"b.img"}, disktest.Names(t, "lib/deep"))
	require.Equal(t, []string{"a.img", "c.img", "c.img.trueup", "c.orig.img", "deep", "e.img.trueup", "link"},
		disktest.Names(t, "lib"))
	require.Equal(t, []string{"d.img", "d.img.trueup", "d.orig.img"}, disktest.Names(t, "away"),
		"links are not followed")

	require.Equal(t, 64, trueup(t, "finish", "--below", "lib", "lib/c.img").code)
	require.Equal(t, 64, trueup(t, "finish", "--dry-run", "lib/c.img").code)
	require.Equal(t, 1, trueup(t, "finish", "--below", "lib/c.img").code, "it is no folder")
	r = trueup(t, "undo", "--below", "lib", "--force")
	require.Equal(t, 4, r.code, r.stdout)
	require.Contains(t, r.stdout, "1 of 2 apply")
	require.NoFileExists(t, "lib/c.orig.img")
	require.Zero(t, trueup(t, "finish", "--below", "lib/deep").code, "there is none")
}

// A disk is not replaced, moved or bereft of its original where an overlay in a folder below needs it.
func TestOverlaysBelowTheDisk(t *testing.T) {
	t.Chdir(t.TempDir())
	require.NoError(t, os.Mkdir("vm", 0o700))
	disk := tableforge.NewMBR(2560, tableforge.Slot{Type: 0x83, Start: 63, Sectors: 512})
	put(t, "base.img", disk)
	disktest.Run(t, "qemu-img", "create", "-q", "-f", "qcow2", "-b", "../base.img", "-F", "raw", "vm/over.qcow2")
	for _, command := range []string{"replace", "move"} {
		r := trueup(t, command, "--allow-unbootable", "base.img")
		require.Equal(t, 4, r.code, r.stdout)
		require.Contains(t, r.stderr, `vm/over.qcow2" is a snapshot of this disk`)
		require.Equal(t, []byte(disk), disktest.ReadFile(t, "base.img"))
		require.Equal(t, []string{"base.img", "vm"}, disktest.Names(t, "."))
	}
	require.Zero(t, trueup(t, "align", "--allow-unbootable", "base.img", "copy.img").code, "a copy hurts none")
}

// An overlay beside another disk of the folder keeps an original, and a folder without journals is no silent success.
func TestFinishBelowKeepsWhatAnOverlayNeeds(t *testing.T) {
	t.Chdir(t.TempDir())
	require.NoError(t, os.MkdirAll("lib/base", 0o700))
	require.NoError(t, os.MkdirAll("lib/machine", 0o700))
	putReplaced(t, "lib/base/a.img", "lib/machine/b.img")
	disktest.Run(t, "qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", "../base/a.orig.img",
		"lib/machine/snapshot.qcow2")
	for _, args := range [][]string{{"--dry-run"}, nil} {
		r := trueup(t, append([]string{"finish", "--below", "lib"}, args...)...)
		require.Equal(t, 4, r.code)
		require.Contains(t, r.stdout, "1 of 2 apply:\n  leave   lib/base/a.img\n  finish  lib/machine/b.img\n")
		require.Contains(t, r.stderr, "snapshot.qcow2")
	}
	require.Equal(t, []string{"a.img", "a.img.trueup", "a.orig.img"}, disktest.Names(t, "lib/base"))
	require.Equal(t, []string{"b.img", "snapshot.qcow2"}, disktest.Names(t, "lib/machine"))
	r := trueup(t, "finish", "--below", "lib/machine")
	require.Zero(t, r.code, r.stderr)
	require.Equal(t, "no disk in lib/machine or below has a journal\n", r.stdout)
}

// TestReplaceBy exchanges a disk for a finished copy, and refuses copies of other flags and copies in use.
func TestReplaceBy(t *testing.T) {
	misaligned := func(t *testing.T) {
		t.Helper()
		t.Chdir(t.TempDir())
		put(t, "d.img", tableforge.NewMBR(2560, tableforge.Slot{Type: 0x83, Start: 63, Sectors: 512}))
		require.Equal(t, 0, trueup(t, "align", "--allow-unbootable", "d.img", "c.img").code)
	}
	replace := func(t *testing.T, flags ...string) ended {
		t.Helper()
		return trueup(t, append([]string{"replace", "--allow-unbootable", "--by"}, flags...)...)
	}
	t.Run("exchanged, and back", func(t *testing.T) {
		misaligned(t)
		old, aligned := disktest.ReadFile(t, "d.img"), disktest.ReadFile(t, "c.img")
		for _, flags := range [][]string{nil, {"--verify", "structure"}} {
			r := replace(t, append([]string{"c.img", "d.img"}, flags...)...)
			require.Equal(t, 0, r.code, r.stderr)
			require.Equal(t, aligned, disktest.ReadFile(t, "d.img"))
			require.Equal(t, old, disktest.ReadFile(t, "d.orig.img"))
			require.NoFileExists(t, "c.img")
			require.Equal(t, 0, trueup(t, "undo", "d.img").code)
			require.Equal(t, old, disktest.ReadFile(t, "d.img"))
			require.ElementsMatch(t, []string{"d.img"}, disktest.Names(t, "."))
			require.Equal(t, 0, trueup(t, "align", "--allow-unbootable", "d.img", "c.img").code)
		}
	})
	for name, c := range map[string]struct {
		change func(t *testing.T)
		flags  string
		code   int
		says   string
	}{
		"other flags": {nil, "c.img d.img --boundary 4K", 4, "is not what these flags make of d.img"},
		"a field that the move changed": {func(t *testing.T) {
			t.Helper()
			disktest.WriteAt(t, "c.img", 446+8, []byte{64})
		}, "c.img d.img --verify structure", 4, "is not what these flags make of d.img"},
		"a larger copy": {func(t *testing.T) {
			t.Helper()
			require.NoError(t, os.Truncate("c.img", 4<<20))
		}, "c.img d.img --verify structure", 4, "is not what these flags make of d.img"},
		"a shorter copy": {func(t *testing.T) {
			t.Helper()
			st := disktest.Stat(t, "c.img")
			require.NoError(t, os.Truncate("c.img", st.Size()-512))
		}, "c.img d.img", 4, "is not what these flags make of d.img"},
		"a byte of the data": {func(t *testing.T) {
			t.Helper()
			disktest.WriteAt(t, "c.img", 200*512, []byte("other"))
		}, "c.img d.img", 4, "is not what these flags make of d.img"},
		"a disk that was written after it": {func(t *testing.T) {
			t.Helper()
			require.NoError(t, os.Chtimes("c.img", time.Time{}, time.Unix(1, 0)))
		}, "c.img d.img --verify structure", 4, `"d.img" was written after it`},
		"a link": {func(t *testing.T) {
			t.Helper()
			require.NoError(t, os.Symlink("c.img", "l.img"))
		}, "l.img d.img", 4, "it is a link"},
		"two names": {func(t *testing.T) {
			t.Helper()
			require.NoError(t, os.Link("c.img", "l.img"))
		}, "c.img d.img", 4, "2 hard links"},
		"another folder": {func(t *testing.T) {
			t.Helper()
			require.NoError(t, os.Mkdir("sub", 0o755))
			require.NoError(t, os.Rename("c.img", "sub/c.img"))
		}, "sub/c.img d.img", 4, "another folder"},
		"another format": {func(t *testing.T) {
			t.Helper()
			require.Equal(t, 0, trueup(t, "convert", "c.img", "c.vmdk", "--to", "vmdk").code)
		}, "c.vmdk d.img", 4, "vmdk"},
		"an overlay of it": {func(t *testing.T) {
			t.Helper()
			disktest.Run(t, "qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", "c.img", "o.qcow2")
		}, "c.img d.img", 4, `"o.qcow2" needs it`},
		"an overlay of it below": {func(t *testing.T) {
			t.Helper()
			require.NoError(t, os.Mkdir("sub", 0o755))
			disktest.Run(t, "qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", "../c.img", "sub/o.qcow2")
		}, "c.img d.img", 4, "o.qcow2"},
		"an overlay of the disk": {func(t *testing.T) {
			t.Helper()
			disktest.Run(t, "qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", "d.img", "o.qcow2")
		}, "c.img d.img", 4, "o.qcow2"},
		"an original of another exchange": {func(t *testing.T) {
			t.Helper()
			require.NoError(t, os.WriteFile("x.img", disktest.ReadFile(t, "d.img"), 0o600))
			require.Equal(t, 0, trueup(t, "replace", "--allow-unbootable", "x.img").code)
		}, "x.orig.img d.img", 4, "x.img"},
		"a disk with an open exchange": {func(t *testing.T) {
			t.Helper()
			require.Equal(t, 0, trueup(t, "replace", "--allow-unbootable", "d.img").code)
		}, "c.img d.img --keep none", 4, "trueup finish"},
		"names of the original": {func(t *testing.T) {
			t.Helper()
			for _, name := range []string{"d", "c"} {
				require.Equal(t, 0, trueup(t, "convert", name+".img", name+".vmdk", "--to", "vmdk:monolithicFlat").code)
			}
			text := strings.ReplaceAll(string(disktest.ReadFile(t, "c.vmdk")), "c-flat", "c.orig-flat")
			require.NoError(t, os.WriteFile("c.vmdk", []byte(text), 0o600))
			require.NoError(t, os.Rename("c-flat.vmdk", "c.orig-flat.vmdk"))
		}, "c.vmdk d.vmdk", 4, "which another file has or gets"},
		"a name that is taken": {func(t *testing.T) {
			t.Helper()
			require.Equal(t, 0, trueup(t, "convert", "d.img", "d.vmdk", "--to", "vmdk:monolithicFlat").code)
			require.NoError(t, os.Rename("d-flat.vmdk", "data.vmdk"))
			text := strings.ReplaceAll(string(disktest.ReadFile(t, "d.vmdk")), "d-flat", "data")
			require.NoError(t, os.WriteFile("d.vmdk", []byte(text), 0o600))
			require.NoError(t, os.WriteFile("d-flat.vmdk", []byte("mine"), 0o600))
			require.Equal(t, 0, trueup(t, "convert", "c.img", "c.vmdk", "--to", "vmdk:monolithicFlat").code)
		}, "c.vmdk d.vmdk", 4, "which another file has or gets"},
		"the disk itself": {nil, "d.img d.img", 4, "a file of the disk"},
		"a package":       {nil, "c.ova d.img", 64, "leave out"},
		"digests":         {nil, "c.img d.img --checksums s", 64, "leave out one of them"},
		"several disks":   {nil, "c.img d.img c.img", 64, "--by is for one DISK"},
		"a web address":   {nil, "nbd://localhost d.img", 4, "nbd"},
		"an absent copy":  {nil, "absent.img d.img", 1, "absent.img"},
		"an aligned disk": {nil, "d.img c.img", 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			misaligned(t)
			if c.change != nil {
				c.change(t)
			}
			before := sumsHere(t)
			r := replace(t, strings.Fields(c.flags)...)
			require.Equal(t, c.code, r.code, r.stdout+r.stderr)
			require.Contains(t, r.stderr, c.says)
			require.Equal(t, before, sumsHere(t))
		})
	}
}

// sumsHere returns the bytes of the files of the working folder.
func sumsHere(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, name := range disktest.Names(t, ".") {
		if st := disktest.Stat(t, name); st.Mode().IsRegular() {
			out[name] = string(disktest.ReadFile(t, name))
		}
	}
	return out
}
