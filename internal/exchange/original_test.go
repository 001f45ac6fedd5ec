package exchange_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/exchange"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/ondisk"
)

// The source of an exchange is recognized as an original as long as it is whole, and the journal and another disk
// exist.
func TestOriginalBeside(t *testing.T) {
	t.Parallel()
	for name, k := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, _ := k.fresh(t)
			d, err := gate.OpenFolder(dir)
			require.NoError(t, err)
			defer d.Close()
			orig := exchange.OriginalOf(k.main, k.main)
			kept := func(base string) bool {
				t.Helper()
				w, err := exchange.OriginalBeside(d, base)
				require.NoError(t, err)
				return w != nil && w.Path == k.main && w.Phase == journal.Kept
			}
			require.False(t, kept(orig))
			k.published(t, dir)
			require.True(t, kept(orig))
			require.False(t, kept(k.main))
			require.False(t, kept("other.orig.vmdk"))
			written := func() bool {
				t.Helper()
				w, err := exchange.OriginalBeside(d, orig)
				require.NoError(t, err)
				return w.Written
			}
			require.False(t, written())
			data := filepath.Join(dir, k.kept(k.old[len(k.old)-1]))
			st := disktest.Stat(t, data)
			require.NoError(t, os.Chtimes(data, time.Unix(1e9, 0), time.Unix(1e9, 0)))
			require.True(t, written())
			require.NoError(t, os.Chtimes(data, st.ModTime(), st.ModTime()))
			require.False(t, written())

			away := func(file string) {
				t.Helper()
				there, gone := filepath.Join(dir, file), filepath.Join(t.TempDir(), "gone")
				require.NoError(t, os.Rename(there, gone))
				require.False(t, kept(orig), "%s is gone", file)
				b := disktest.ReadFile(t, gone)
				imagetest.Write(t, dir, file, append(b, 0))
				require.Equal(t, file == k.main, kept(orig), "%s is another file", file)
				require.NoError(t, os.Rename(gone, there))
				require.True(t, kept(orig))
			}
			for _, n := range k.old {
				away(k.kept(n))
			}
			away(k.main)
			require.NoError(t, os.Remove(filepath.Join(dir, k.main+journal.Suffix)))
			require.False(t, kept(orig))
		})
	}
}

// A kept original is not exchanged itself, nor is a disk of which it is a part.
func TestOriginalIsNotExchanged(t *testing.T) {
	t.Parallel()
	for name, k := range kinds {
		dir, _ := k.fresh(t)
		_, err := k.publish(dir)
		require.NoError(t, err, name)
		before := sums(t, dir)
		_, done, err := k.source(filepath.Join(dir, exchange.OriginalOf(k.main, k.main)))
		if done != nil {
			require.NoError(t, done())
		}
		require.ErrorContains(t, err, "it is the kept original of", name)
		require.Equal(t, before, sums(t, dir), name)
	}
}

// overlayOf makes an overlay with qemu-img.
func overlayOf(t *testing.T, at, base string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(at), 0o755))
	disktest.Run(t, "qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", base, at)
}

// TestOverlaysOfBothDisks makes overlays of the copy and of the kept original, in their folder, below it and in
// --allow-folder. No command removes the base of one.
func TestOverlaysOfBothDisks(t *testing.T) {
	t.Parallel()
	m := made["raw"]
	orig := m.kept(m.main)
	for name, c := range map[string]struct {
		base    string
		refused []string // commands
	}{
		"of the copy":           {m.main, []string{"undo"}},
		"of the original":       {orig, []string{"undo", "finish"}},
		"of neither of the two": {"other.img", nil},
	} {
		for where, up := range map[string]string{"ov.qcow2": "", "sub/deep/ov.qcow2": "../../", "../ov.qcow2": "vm/"} {
			for _, command := range []string{"undo", "finish"} {
				dir := filepath.Join(t.TempDir(), "vm")
				require.NoError(t, os.Rename(exchanged(t, "raw"), dir))
				require.NoError(t, os.WriteFile(filepath.Join(dir, "other.img"), make([]byte, 1<<20), 0o600))
				overlayOf(t, filepath.Join(dir, where), up+c.base)
				o := exchange.Options{}
				if where == "../ov.qcow2" {
					o.Search = []string{filepath.Dir(dir)}
				}
				before := look(t, dir)
				d, err := m.goOn(dir, command, o)
				if !slices.Contains(c.refused, command) {
					require.NoError(t, err, "%s %s %s", command, name, where)
					require.Len(t, d.Notes, 1)
					require.Equal(t, "overlays-elsewhere", d.Notes[0].Code)
					require.Equal(t, ondisk.Warn, d.Notes[0].Effect)
					continue
				}
				require.ErrorContains(t, err, "needs the disk \""+c.base+"\"", "%s %s %s", command, name, where)
				require.ErrorContains(t, err, filepath.Base(where))
				require.Equal(t, before, look(t, dir), "%s %s %s", command, name, where)
				o.Force = true
				_, err = m.goOn(dir, command, o)
				require.Equal(t, up == "", err != nil, "%s --force %s %s", command, name, where)
			}
		}
	}
}

// TestOverlaysOfAnUnrecordedExchange makes an overlay of the original of an exchange that was killed before its end was
// recorded. An undo does not remove the name of its base.
func TestOverlaysOfAnUnrecordedExchange(t *testing.T) {
	t.Parallel()
	m, dir := made["raw"], exchanged(t, "raw")
	path := filepath.Join(dir, m.main)
	h, err := journal.Hold(path, "")
	require.NoError(t, err)
	plan := slices.Clone(h.Plan())
	require.NoError(t, h.Remove())
	again, err := journal.Begin(h.Dir, m.main, path, journal.Exchange, plan, 0)
	require.NoError(t, err)
	require.NoError(t, errors.Join(again.Close(), h.Close()))
	overlayOf(t, filepath.Join(dir, "sub", "ov.qcow2"), "../"+m.kept(m.main))
	before := look(t, dir)
	_, err = m.goOn(dir, "undo", exchange.Options{})
	require.ErrorContains(t, err, "needs the disk \""+m.kept(m.main)+"\"")
	require.Equal(t, before, look(t, dir))
}

// A guest can be started from a disk in the middle of an exchange, which is complete at every moment. Its writes are
// not replaced by a copy without them.
func TestGuestWroteInTheMiddle(t *testing.T) {
	t.Parallel()
	strace := disktest.Tool(t, "strace")
	disktest.Tool(t, "qemu-img")
	for _, c := range []struct {
		kind, step string
		at         point
		command    string
		do         func(t *testing.T, dir string)
		says       string
	}{
		{"raw", "publish", point{"linkat", 1}, "resume", guestWrites("vm.img"), "trueup undo"},
		{"raw", "publish", point{"renameat", 1}, "resume", guestWrites("vm.img"), "trueup undo"},
		{"flat", "publish", point{"linkat", 1}, "resume", guestWrites("vm-flat.vmdk"), "trueup undo"},
		{"split", "publish", point{"renameat", 3}, "resume", guestWrites("vm.orig-f003.vmdk"), "trueup undo"},
		{"flat", "publish", point{"linkat", 1}, "resume", snapshotOf("vm.vmdk"), `"vm-000001.vmdk" needs the disk`},
		{"flat", "publish", point{"linkat", 1}, "resume", machineRuns("vm.vmdk"), "has the disk open"},
		{"raw", "undo", point{"renameat", 1}, "undo", guestWrites("vm.img"), "--force"},
		{"flat", "undo", point{"renameat", 1}, "undo", guestWrites("vm-flat.vmdk"), "--force"},
		{"flat", "undo", point{"renameat", 1}, "undo", snapshotOf("vm.vmdk"), `"vm-000001.vmdk" needs the disk`},
	} {
		k := kinds[c.kind]
		dir, _ := k.fresh(t)
		if c.step == "undo" {
			k.published(t, dir)
		}
		killAt(t, strace, c.step, c.kind, dir, c.at)
		c.do(t, dir)
		before := disktest.Names(t, dir)
		err := k.command(dir, c.command, false)
		require.ErrorContains(t, err, c.says, "%s of %s at %v", c.step, c.kind, c.at)
		require.Equal(t, before, disktest.Names(t, dir), "%s of %s at %v", c.step, c.kind, c.at)
	}
}

// guestWrites writes to a file of a disk.
func guestWrites(name string) func(t *testing.T, dir string) {
	return func(t *testing.T, dir string) {
		t.Helper()
		path := filepath.Join(dir, name)
		disktest.WriteAt(t, path, 1, []byte("guest"))
		require.NoError(t, os.Chtimes(path, time.Unix(1e9, 0), time.Unix(1e9, 0)))
	}
}

// snapshotOf makes a snapshot of a disk.
func snapshotOf(name string) func(t *testing.T, dir string) {
	return func(t *testing.T, dir string) {
		t.Helper()
		disktest.Run(t, "qemu-img", "create", "-q", "-f", "vmdk", "-F", "vmdk", "-b", filepath.Join(dir, name),
			filepath.Join(dir, "vm-000001.vmdk"))
	}
}

// machineRuns leaves the lock file of a running machine.
func machineRuns(name string) func(t *testing.T, dir string) {
	return func(t *testing.T, dir string) {
		t.Helper()
		require.NoError(t, os.Mkdir(filepath.Join(dir, name+".lck"), 0o700))
	}
}

// If the user has removed the original, an undo could never end and is refused. A forced finish removes the journal.
func TestOriginalWasRemoved(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"raw", "flat", "ova", "ovf"} {
		k := kinds[name]
		dir, _ := k.fresh(t)
		k.published(t, dir)
		for _, n := range k.old {
			require.NoError(t, os.Remove(filepath.Join(dir, k.kept(n))))
		}
		err := k.command(dir, "undo", false)
		require.ErrorContains(t, err, "trueup finish --force")
		err = k.command(dir, "finish", false)
		require.ErrorContains(t, err, "is missing")
		h, err := journal.Hold(filepath.Join(dir, k.main), "")
		require.NoError(t, err)
		require.Equal(t, journal.Kept, h.Work.Phase)
		done, err := exchange.Finish(t.Context(), h, exchange.Options{Force: true})
		require.NoError(t, err)
		require.NoError(t, h.Close())
		require.Empty(t, done.Removed)
		require.Contains(t, done.Text, "no file of the original was left")
		require.ElementsMatch(t, k.new, disktest.Names(t, dir))
	}
}

// A removed or moved disk has nothing that an undo could lose.
func TestCopyWasRemoved(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"raw", "flat", "ova", "ovf"} {
		k := kinds[name]
		dir, before := k.fresh(t)
		k.published(t, dir)
		for _, n := range k.new {
			require.NoError(t, os.Remove(filepath.Join(dir, n)))
		}
		err := k.command(dir, "finish", false)
		require.ErrorContains(t, err, "the original is the only copy", name)
		err = k.command(dir, "undo", false)
		require.NoError(t, err, name)
		require.Equal(t, before, sums(t, dir), name)
	}
}

// A finish removes only the kept descriptor, not another one.
func TestKeptDescriptorWasReplaced(t *testing.T) {
	t.Parallel()
	k := kinds["flat"]
	dir, _ := k.fresh(t)
	k.published(t, dir)
	imagetest.Write(t, dir, "vm.orig.vmdk", []byte("a file of the user's"))
	err := k.command(dir, "finish", false)
	require.ErrorContains(t, err, "was written after the exchange")
	require.FileExists(t, filepath.Join(dir, "vm.orig.vmdk"))
}

// A journal that was copied with its folder identifies no file there by inode. A forced finish removes only the
// journal.
func TestFinishOfAnotherDisk(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"raw", "flat", "ova", "ovf"} {
		k := kinds[name]
		from, _ := k.fresh(t)
		k.published(t, from)
		dir := filepath.Join(t.TempDir(), "copy")
		require.NoError(t, os.CopyFS(dir, os.DirFS(from)))
		before := sums(t, dir)
		err := k.command(dir, "undo", false)
		require.ErrorContains(t, err, "is not the file that was kept", name)
		err = k.command(dir, "finish", false)
		require.ErrorContains(t, err, "is not the file that was kept; add --force", name)
		h, err := journal.Hold(filepath.Join(dir, k.main), "")
		require.NoError(t, err)
		done, err := exchange.Finish(t.Context(), h, exchange.Options{Force: true})
		require.NoError(t, err, name)
		require.NoError(t, h.Close())
		require.Empty(t, done.Removed, name)
		require.NotContains(t, done.Text, "the original is removed", name)
		require.Len(t, done.Notes, len(k.old), name)
		delete(before, journal.PathOf(k.main))
		require.Equal(t, before, sums(t, dir), name)
	}
}

// packageOVF states no sizes, so that the OVFs of the copy and the source are equal.
const packageOVF = `<Envelope xmlns="http://schemas.dmtf.org/ovf/envelope/1" ` +
	`xmlns:ovf="http://schemas.dmtf.org/ovf/envelope/1"><References><File ovf:id="f1" ovf:href="vm-disk1.img"/>` +
	`<File ovf:id="f2" ovf:href="data.bin"/></References>` +
	`<DiskSection><Disk ovf:diskId="d" ovf:fileRef="f1" ovf:capacity="61440"/></DiskSection></Envelope>`

// packed is content for a package.
func packed(disk byte, names []string, i int) []byte {
	if filepath.Ext(names[0]) == ".ova" {
		return archive(disk)
	}
	switch filepath.Ext(names[i]) {
	case ".ovf":
		return []byte(packageOVF)
	case ".cert":
		return []byte("a signature")
	case ".mf":
		text := ""
		for j, n := range names {
			if j != i && filepath.Ext(n) != ".cert" {
				text += fmt.Sprintf("SHA256(%s)= %x\n", n, sha256.Sum256(packed(disk, names, j)))
			}
		}
		return []byte(text)
	case ".bin":
		disk++
	}
	return bytes.Repeat([]byte{disk}, sectors*512)
}

// archive returns the package as an archive.
func archive(disk byte) []byte {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	names := []string{"vm.ovf", "vm-disk1.img", "data.bin"}
	for i, n := range names {
		b := packed(disk, names, i)
		if w.WriteHeader(&tar.Header{Name: n, Mode: 0o644, Size: int64(len(b))}) == nil {
			_, _ = w.Write(b)
		}
	}
	_ = w.Close()
	return out.Bytes()
}

var (
	hrefs  = regexp.MustCompile(`ovf:href="([^"]*)"`)
	digest = regexp.MustCompile(`(?m)^SHA256\((.*)\)= ([0-9a-f]{64})$`)
)

// unpacked requires a complete package at a path and returns the concatenation of its two files.
func unpacked(t *testing.T, path string) string {
	t.Helper()
	dir, base := filepath.Split(path)
	if filepath.Ext(base) == ".ova" {
		dir = t.TempDir()
		disktest.Run(t, "tar", "-xf", path, "-C", dir)
		base = "vm.ovf"
	}
	text := disktest.ReadFile(t, filepath.Join(dir, base))
	var all []byte
	for _, m := range hrefs.FindAllSubmatch(text, -1) {
		b := disktest.ReadFile(t, filepath.Join(dir, string(m[1])))
		all = append(all, b...)
	}
	requireSums(t, dir, strings.TrimSuffix(base, ".ovf"))
	out := filepath.Join(t.TempDir(), "both")
	require.NoError(t, os.WriteFile(out, all, 0o600))
	return out
}

// requireSums requires that a manifest, if any, matches the files, and that a signature accompanies only the signed
// manifest.
func requireSums(t *testing.T, dir, stem string) {
	t.Helper()
	cert, err := os.ReadFile(filepath.Join(dir, stem+".cert"))
	signed := err == nil
	text, err := os.ReadFile(filepath.Join(dir, stem+".mf"))
	if err != nil {
		require.ErrorIs(t, err, os.ErrNotExist)
		return
	}
	old := kinds["ovf"].old
	if signed {
		require.Equal(t, "a signature", string(cert))
		require.Equal(t, string(packed('a', old, slices.Index(old, "vm.mf"))), string(text))
	}
	found := digest.FindAllStringSubmatch(string(text), -1)
	require.Len(t, found, 3)
	for _, m := range found {
		b := disktest.ReadFile(t, filepath.Join(dir, m[1]))
		require.Equal(t, fmt.Sprintf("%x", sha256.Sum256(b)), m[2], m[1])
	}
}
