package exchange_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/exchange"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/ondisk"
)

const (
	sectorSize    = 512
	diskSectors   = 16384
	volumeSectors = 8192
)

// partitioned returns a disk with one FAT16 at a sector, made by mkfs.fat.
func partitioned(t *testing.T, start uint32) []byte {
	t.Helper()
	v := disktest.Blank(t, "volume", volumeSectors*sectorSize)
	disktest.Run(t, "mkfs.fat", "-F", "16", "-s", "1", v)
	d := tableforge.NewMBR(diskSectors, tableforge.Slot{Type: 6, Start: start, Sectors: volumeSectors})
	d.Put(int64(start)*sectorSize, disktest.ReadFile(t, v))
	d.Put(int64(start+volumeSectors-1)*sectorSize, []byte("a cluster that no inspection reads"))
	return d
}

// made lists formats of real disks, written by qemu-img.
var made = map[string]struct {
	kind
	format string
	flags  []string
}{
	"raw":    {kind{main: "vm.img", old: []string{"vm.img"}, new: []string{"vm.img"}}, "raw", nil},
	"qcow2":  {kind{main: "vm.qcow2", old: []string{"vm.qcow2"}, new: []string{"vm.qcow2"}}, "qcow2", nil},
	"sparse": {kind{main: "vm.vmdk", old: []string{"vm.vmdk"}, new: []string{"vm.vmdk"}}, "vmdk", nil},
	"stream": {
		kind{main: "vm.vmdk", old: []string{"vm.vmdk"}, new: []string{"vm.vmdk"}},
		"vmdk",
		[]string{"subformat=streamOptimized"},
	},
	"fixed": {
		kind{main: "vm.vhd", old: []string{"vm.vhd"}, new: []string{"vm.vhd"}},
		"vpc",
		[]string{"subformat=fixed,force_size=on"},
	},
	"flat": {
		kind{main: "vm.vmdk", old: []string{"vm.vmdk", "vm-flat.vmdk"}, new: []string{"vm.vmdk", "vm-flat.vmdk"}},
		"vmdk",
		[]string{"subformat=monolithicFlat"},
	},
}

// images caches the files of made disks by format.
var images sync.Map

// putImage puts the files of a disk with one partition into a folder.
func putImage(t *testing.T, dir, format string, start uint32) {
	t.Helper()
	disktest.Tool(t, "qemu-img")
	disktest.Tool(t, "mkfs.fat")
	m := made[format]
	files := sync.OnceValue(func() map[string][]byte {
		in, raw := t.TempDir(), filepath.Join(t.TempDir(), "raw")
		require.NoError(t, os.WriteFile(raw, partitioned(t, start), 0o600))
		args := []string{"convert", "-q", "-f", "raw", "-O", m.format}
		for _, f := range m.flags {
			args = append(args, "-o", f)
		}
		disktest.Run(t, "qemu-img", append(args, raw, filepath.Join(in, m.main))...)
		out := map[string][]byte{}
		for _, n := range m.old {
			out[n] = disktest.ReadFile(t, filepath.Join(in, n))
		}
		return out
	})
	kept, _ := images.LoadOrStore(fmt.Sprint(format, start), files)
	for n, b := range kept.(func() map[string][]byte)() {
		require.NoError(t, os.WriteFile(filepath.Join(dir, n), b, 0o600))
	}
}

// exchanged returns the folder of a disk that was exchanged for its aligned copy.
func exchanged(t *testing.T, format string) (dir string) {
	t.Helper()
	m := made[format]
	dir = t.TempDir()
	putImage(t, dir, format, 63)
	other := filepath.Join(dir, "other")
	require.NoError(t, os.Mkdir(other, 0o700))
	putImage(t, other, format, 2048)
	for _, n := range m.new {
		require.NoError(t, os.Rename(filepath.Join(other, n), filepath.Join(dir, partial(n))))
	}
	require.NoError(t, os.Remove(other))
	m.published(t, dir)
	return dir
}

// overwrite changes the bytes of a file, in place.
func overwrite(t *testing.T, path string, b []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, b, 0o600))
	require.NoError(t, os.Chtimes(path, time.Unix(1e9, 0), time.Unix(1e9, 0)))
}

func zero(t *testing.T, path string, off, n int) {
	t.Helper()
	b := disktest.ReadFile(t, path)
	copy(b[off:], make([]byte, min(n, len(b)-off)))
	overwrite(t, path, b)
}

// sparse reports whether the disk is not stored byte for byte in its file.
func sparse(format string) bool { return !slices.Contains([]string{"raw", "fixed", "flat"}, format) }

// flip changes bytes of a file without a visible change of its time.
func flip(t *testing.T, path string, off int) {
	t.Helper()
	was := disktest.Stat(t, path).ModTime()
	b := disktest.ReadFile(t, path)
	for i := range 8 {
		b[off+i] ^= 0xff
	}
	overwrite(t, path, b)
	require.NoError(t, os.Chtimes(path, was, was))
}

// Possible changes of a side of an exchange, and whether --force may continue.
var damages = map[string]struct {
	do     func(t *testing.T, path string)
	forced bool
	flat   bool // only if the file holds the disk byte for byte
}{
	"truncated to nothing": {do: func(t *testing.T, path string) {
		t.Helper()
		require.NoError(t, os.Truncate(path, 0))
	}},
	"cut in the middle": {do: func(t *testing.T, path string) {
		t.Helper()
		require.NoError(t, os.Truncate(path, disktest.Stat(t, path).Size()/2))
	}},
	"zeroed": {do: func(t *testing.T, path string) {
		t.Helper()
		zero(t, path, 0, 1<<30)
	}},
	"its first sectors zeroed": {do: func(t *testing.T, path string) {
		t.Helper()
		zero(t, path, 0, 16*sectorSize)
	}},
	"its volume zeroed": {do: func(t *testing.T, path string) {
		t.Helper()
		zero(t, path, 16*sectorSize, 1<<30)
	}},
	"another disk": {do: func(t *testing.T, path string) {
		t.Helper()
		b := disktest.ReadFile(t, path)
		copy(b, partitioned(t, 4096))
		overwrite(t, path, b)
	}, forced: true, flat: true},
	"another format": {do: func(t *testing.T, path string) {
		t.Helper()
		other := filepath.Join(t.TempDir(), "other")
		disktest.Run(t, "qemu-img", "create", "-q", "-f", "vdi", other, "8M")
		overwrite(t, path, disktest.ReadFile(t, other))
	}},
	"a text": {do: func(t *testing.T, path string) {
		t.Helper()
		overwrite(t, path, []byte(strings.Repeat("this is no disk\n", 1<<20)))
	}},
	"a link to it": {do: func(t *testing.T, path string) {
		t.Helper()
		there := filepath.Join(t.TempDir(), "elsewhere")
		require.NoError(t, os.Rename(path, there))
		require.NoError(t, os.Symlink(there, path))
	}},
	"moved away": {do: func(t *testing.T, path string) {
		t.Helper()
		require.NoError(t, os.Rename(path, filepath.Join(t.TempDir(), "elsewhere")))
	}},
	"the mark of an unfinished copy": {do: func(t *testing.T, path string) {
		t.Helper()
		b := disktest.ReadFile(t, path)
		copy(b, bytes.Repeat([]byte{0}, sectorSize))
		copy(b, "trueup: unfinished copy\nA copy of a disk was being written to this device and did not come to "+
			"its end.\nWhat stood here before is gone. Run the same trueup command again.\n")
		overwrite(t, path, b)
	}, flat: true},
}

// TestWayBackProvesWhatStays damages each file of the side that is to stay: neither command then removes the other
// side, and --force continues only if the remaining disk is sound.
func TestWayBackProvesWhatStays(t *testing.T) {
	t.Parallel()
	for format, m := range made {
		for what, x := range damages {
			if x.flat && sparse(format) {
				continue
			}
			t.Run(format+", "+what, func(t *testing.T) {
				t.Parallel()
				for command, files := range map[string][]string{"undo": m.old, "finish": m.new} {
					path := files[len(files)-1]
					if command == "undo" {
						path = m.kept(path)
					}
					for _, force := range []bool{false, true} {
						dir := exchanged(t, format)
						x.do(t, filepath.Join(dir, path))
						before := look(t, dir)
						err := m.command(dir, command, force)
						if force && x.forced {
							require.NoError(t, err, command)
							continue
						}
						require.Error(t, err, "%s %v", command, force)
						require.Equal(t, before, look(t, dir), "%s %v", command, force)
					}
				}
			})
		}
	}
}

// look returns names and sizes of the files of a folder, and their bytes.
func look(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, n := range disktest.Names(t, dir) {
		if st, err := os.Lstat(filepath.Join(dir, n)); err == nil && st.Mode().IsRegular() {
			out[n] = string(disktest.ReadFile(t, filepath.Join(dir, n)))
			continue
		}
		out[n] = "a link"
	}
	return out
}

// TestGuestsOfTheCopyAreNormal has a guest write to the copy, grow its partition and add another: a finish continues
// without --force. An undo needs it.
func TestGuestsOfTheCopyAreNormal(t *testing.T) {
	t.Parallel()
	m := made["raw"]
	guest := func() (dir string) {
		dir = exchanged(t, "raw")
		path := filepath.Join(dir, m.main)
		b := forge.Bytes(disktest.ReadFile(t, path))
		tableforge.PutSlot(b, 0, 0, tableforge.Slot{Type: 0xe, Start: 2048, Sectors: volumeSectors + 100})
		tableforge.PutSlot(b, 0, 1, tableforge.Slot{Type: 0x83, Start: 12288, Sectors: 1000})
		overwrite(t, path, b)
		return dir
	}
	dir := guest()
	require.NoError(t, m.command(dir, "finish", false))
	require.Equal(t, []string{m.main}, disktest.Names(t, dir))
	dir = guest()
	require.ErrorContains(t, m.command(dir, "undo", false), "add --force")
	require.NoError(t, m.command(dir, "undo", true))
	require.True(t, bytes.Equal(partitioned(t, 63)[:512], disktest.ReadFile(t, filepath.Join(dir, m.main))[:512]))
}

// TestGuestOfTheOriginal has a guest write to the kept original: a finish would lose these changes, and an undo the
// aligned disk. Both need --force.
func TestGuestOfTheOriginal(t *testing.T) {
	t.Parallel()
	m := made["raw"]
	dir := exchanged(t, "raw")
	path := filepath.Join(dir, m.kept(m.main))
	disktest.WriteAt(t, path, 5<<20, []byte("guest"))
	require.NoError(t, os.Chtimes(path, time.Unix(1e9, 0), time.Unix(1e9, 0)))
	before := look(t, dir)
	for _, command := range []string{"finish", "undo"} {
		require.ErrorContains(t, m.command(dir, command, false), "was written after the exchange", command)
		require.Equal(t, before, look(t, dir), command)
	}
	require.NoError(t, m.command(dir, "finish", true))
	require.Equal(t, []string{m.main}, disktest.Names(t, dir))
}

// TestSwappedSides swaps the names of the two disks: neither command mistakes one for the other.
func TestSwappedSides(t *testing.T) {
	t.Parallel()
	m := made["raw"]
	for _, command := range []string{"undo", "finish"} {
		dir := exchanged(t, "raw")
		a, b := filepath.Join(dir, m.main), filepath.Join(dir, m.kept(m.main))
		require.NoError(t, os.Rename(a, a+".tmp"))
		require.NoError(t, os.Rename(b, a))
		require.NoError(t, os.Rename(a+".tmp", b))
		before := look(t, dir)
		require.Error(t, m.command(dir, command, false), command)
		require.Equal(t, before, look(t, dir), command)
	}
}

// TestPackagesProveWhatStays damages members of packages.
func TestPackagesProveWhatStays(t *testing.T) {
	t.Parallel()
	for name, members := range map[string][2]string{
		"ova": {"vm.orig.ova", "vm.ova"}, "ovf": {"vm.orig-disk1.img", "vm-disk1.img"},
	} {
		k := kinds[name]
		for what, do := range map[string]func(path string) error{
			"empty": func(path string) error { return os.Truncate(path, 0) },
			"short": func(path string) error { return os.Truncate(path, disktest.Stat(t, path).Size()/2) },
			"gone":  os.Remove,
			"one bit": func(path string) error {
				if name == "ova" {
					return os.Truncate(path, 0) // it has no manifest
				}
				flip(t, path, 1000)
				return nil
			},
			"zeros": func(path string) error {
				return os.WriteFile(path, make([]byte, disktest.Stat(t, path).Size()), 0o600)
			},
		} {
			for i, command := range []string{"undo", "finish"} {
				for _, force := range []bool{false, true} {
					dir, _ := k.fresh(t)
					k.published(t, dir)
					require.NoError(t, do(filepath.Join(dir, members[i])))
					before := look(t, dir)
					require.Error(t, k.command(dir, command, force), "%s of %s, %s, %v", command, name, what, force)
					require.Equal(t, before, look(t, dir), "%s of %s, %s", command, name, what)
				}
			}
		}
	}
}

// TestDamagedGrains damages the compressed data of one grain, which neither map nor table nor times of the file show.
func TestDamagedGrains(t *testing.T) {
	t.Parallel()
	m := made["stream"]
	for command, path := range map[string]string{"undo": m.kept(m.main), "finish": m.main} {
		for _, force := range []bool{false, true} {
			dir := exchanged(t, "stream")
			requireSpoiled(t, filepath.Join(dir, path))
			before := look(t, dir)
			require.ErrorContains(t, m.command(dir, command, force), "is damaged", "%s %v", command, force)
			require.Equal(t, before, look(t, dir), command)
		}
	}
}

// requireSpoiled damages the last grain with data of an image, located by qemu-img.
func requireSpoiled(t *testing.T, path string) {
	t.Helper()
	b := disktest.ReadFile(t, path)
	at := bytes.LastIndex(b[:len(b)-1024], []byte{0x78, 0x9c}) // of a zlib stream, RFC 1950
	require.Positive(t, at)
	flip(t, path, at+4)
	_, err := exec.Command("qemu-img", "convert", "-O", "raw", path, filepath.Join(t.TempDir(), "raw")).Output()
	require.Error(t, err)
}

// TestNoGuestWritesToAPackage changes a copy from which no guest runs, and leaves it readable: a finish needs --force.
func TestNoGuestWritesToAPackage(t *testing.T) {
	t.Parallel()
	stream := func() string { return exchanged(t, "stream") }
	pack := func() string {
		dir, _ := kinds["ova"].fresh(t)
		_, err := kinds["ova"].publish(dir)
		require.NoError(t, err)
		return dir
	}
	for _, c := range []struct {
		kind
		fresh func() string
	}{{made["stream"].kind, stream}, {kinds["ova"], pack}} {
		dir := c.fresh()
		path := filepath.Join(dir, c.main)
		overwrite(t, path, disktest.ReadFile(t, path))
		before := look(t, dir)
		require.ErrorContains(t, c.command(dir, "finish", false), "guests do not write to disks of this kind")
		require.Equal(t, before, look(t, dir))
		require.NoError(t, c.command(dir, "finish", true))
		require.Equal(t, []string{c.main}, disktest.Names(t, dir))
	}
}

// TestPackagesOfDisksThatNameThemselves undoes the exchange of a package whose disk, as written by qemu-img, refers to
// its own file: under its kept name, that is no other user of the file.
func TestPackagesOfDisksThatNameThemselves(t *testing.T) {
	t.Parallel()
	k := kinds["ovf"]
	dir, _ := k.fresh(t)
	const member = "vm-disk1.img"
	for of, manifest := range map[string]string{member: "vm.mf", partial(member): partial("vm.mf")} {
		made := filepath.Join(t.TempDir(), member)
		disktest.Run(t, "qemu-img", "create", "-q", "-f", "vmdk", made, "61440")
		b := disktest.ReadFile(t, made)
		require.NoError(t, os.WriteFile(filepath.Join(dir, of), b, 0o600))
		manifest = filepath.Join(dir, manifest)
		text := fmt.Appendf(nil, "SHA256(%s)= %x\n", member, sha256.Sum256(b))
		text = regexp.MustCompile(`(?m)^SHA256\(`+member+`\).*\n`).ReplaceAll(disktest.ReadFile(t, manifest), text)
		require.NoError(t, os.WriteFile(manifest, text, 0o600))
	}
	before := sums(t, dir)
	k.published(t, dir)
	require.NoError(t, k.command(dir, "undo", false))
	require.Equal(t, before[member], sums(t, dir)[member])
}

// TestInternalSnapshotsAreKept keeps an original whose internal snapshots its copy lacks, unless they are given up.
func TestInternalSnapshotsAreKept(t *testing.T) {
	t.Parallel()
	m, dir, other := made["qcow2"], t.TempDir(), t.TempDir()
	putImage(t, dir, "qcow2", 63)
	putImage(t, other, "qcow2", 2048)
	disktest.Run(t, "qemu-img", "snapshot", "-c", "one", filepath.Join(dir, m.main))
	require.NoError(t, os.Rename(filepath.Join(other, m.main), filepath.Join(dir, partial(m.main))))
	m.published(t, dir)
	before := look(t, dir)
	require.ErrorContains(t, m.command(dir, "finish", false), "has 1 internal snapshots")
	require.Equal(t, before, look(t, dir))
	require.NoError(t, m.command(dir, "finish", true))
	require.Equal(t, []string{m.main}, disktest.Names(t, dir))
}

// TestEndedLookIsNoDamage cancels the run while the data of the remaining disk are read: this is not reported as
// damage.
func TestEndedLookIsNoDamage(t *testing.T) {
	t.Parallel()
	m := made["stream"]
	dir := exchanged(t, "stream")
	before := look(t, dir)
	ended, end := context.WithCancel(t.Context())
	end()
	h, err := journal.Hold(filepath.Join(dir, m.main), "")
	require.NoError(t, err)
	defer h.Close()
	for _, force := range []bool{false, true} {
		_, err = exchange.Undo(ended, h, exchange.Options{Force: force})
		require.ErrorIs(t, err, context.Canceled)
		requireNoRefusal(t, err)
		_, err = exchange.Finish(ended, h, exchange.Options{Force: force})
		require.ErrorIs(t, err, context.Canceled)
		requireNoRefusal(t, err)
		require.Equal(t, before, look(t, dir))
	}
}

func requireNoRefusal(t *testing.T, err error) {
	t.Helper()
	_, refused := errors.AsType[*ondisk.Refusal](err)
	require.False(t, refused, "%v", err)
	require.NotContains(t, err.Error(), "damaged")
}
