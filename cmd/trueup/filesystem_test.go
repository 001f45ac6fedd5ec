package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/disktest/oddfs"
)

// filesystemCase is a file system that DEST goes to, and the codes of the notes that follow from it: for a DEST of one
// file, of two files, and with --force.
type filesystemCase struct {
	manners           oddfs.Manners
	one, two, replace []string
}

var filesystemCases = map[string]filesystemCase{
	"as usual":                             {},
	"locks bar others from what is locked": {manners: oddfs.Manners{Mandatory: true}},
	"locks bar others from the file": {
		manners: oddfs.Manners{Mandatory: true, LocksWhole: true},
		one:     []string{"dest-no-locks"}, two: []string{"dest-no-locks"}, replace: []string{"dest-no-locks"},
	},
	"no lock daemon": {
		manners: failing("lock", syscall.ENOLCK),
		one:     []string{"dest-no-locks"}, two: []string{"dest-no-locks"}, replace: []string{"dest-no-locks"},
	},
	"no locks": {
		manners: failing("lock", syscall.ENOSYS),
		one:     []string{"dest-no-locks"}, two: []string{"dest-no-locks"}, replace: []string{"dest-no-locks"},
	},
	"no links":                {manners: failing("link", syscall.EPERM), two: noLinks},
	"no flags of rename":      {manners: failing("rename2", syscall.EINVAL)},
	"no flags of rename, NFS": {manners: failing("rename2", syscall.ENOSYS)},
	"no sync of folders": {
		manners: failing("fsyncdir", syscall.EINVAL), one: notSynced, two: notSynced,
		replace: notSynced,
	},
	"no permissions": {
		manners: failing("chmod", syscall.EPERM), one: noModes, two: noModes,
		replace: noModes,
	},
	"numbers of free space: no": {
		manners: failing("statfs", syscall.ENOSYS), one: noRoom, two: noRoom,
		replace: noRoom,
	},
	"links and flags of rename: no": {
		manners: oddfs.Manners{Fail: map[string]syscall.Errno{"link": syscall.EOPNOTSUPP, "rename2": syscall.EINVAL}},
		one:     []string{"dest-look-and-rename"}, two: []string{"dest-look-and-rename", "dest-no-links"},
	},
	"leases are for one name":  {manners: oddfs.Manners{Leases: true}},
	"locks cannot be upgraded": {manners: oddfs.Manners{NoUpgrade: true}},
	"calls are interrupted":    {manners: oddfs.Manners{Interrupted: true}},
	"short transfers":          {manners: oddfs.Manners{Short: true}},
	"case does not count":      {manners: oddfs.Manners{Caseless: true}},
	"answers are lost": {manners: oddfs.Manners{Lost: map[string]syscall.Errno{
		"rename2 out.vmdk": syscall.EEXIST, "link out-flat.vmdk": syscall.EIO, "rename out.vmdk": syscall.EIO,
	}}},
	"nothing of it all": {
		manners: oddfs.Manners{Short: true, Interrupted: true, Caseless: true, Fail: map[string]syscall.Errno{
			"lock": syscall.ENOSYS, "link": syscall.EPERM, "rename2": syscall.EINVAL, "fsyncdir": syscall.EINVAL,
			"statfs": syscall.ENOSYS,
		}},
		one: []string{"dest-folder-not-synced", "dest-look-and-rename", "dest-no-locks", "dest-room-unknown"},
		two: []string{
			"dest-folder-not-synced", "dest-look-and-rename", "dest-no-links", "dest-no-locks", "dest-room-unknown",
		},
		replace: []string{"dest-folder-not-synced", "dest-no-locks", "dest-room-unknown"},
	},
}

var (
	notSynced = []string{"dest-folder-not-synced"}
	noModes   = []string{"dest-permissions"}
	noRoom    = []string{"dest-room-unknown"}
	noLinks   = []string{"dest-no-links"}
)

func failing(op string, errno syscall.Errno) oddfs.Manners {
	return oddfs.Manners{Fail: map[string]syscall.Errno{op: errno}}
}

// destAnswer holds the findings of an align about the place where DEST went.
type destAnswer struct {
	Findings []struct{ Code, Subject string }
}

// ofDest are the codes of the findings about the place.
func (a destAnswer) ofDest() (codes []string) {
	for _, f := range a.Findings {
		if f.Subject == "dest" {
			codes = append(codes, f.Code)
		}
	}
	return codes
}

// requireNotes aligns and requires the notes on DEST.
func requireNotes(t *testing.T, want []string, args ...string) {
	t.Helper()
	answer := trueupJSON[destAnswer](t, 0, append([]string{"align"}, args...)...)
	require.ElementsMatch(t, want, answer.ofDest(), "%q", args)
}

// TestDestOnOddFileSystems aligns to file systems that can less than a disk's own, and has qemu-img compare the result.
func TestDestOnOddFileSystems(t *testing.T) {
	t.Parallel()
	source := sampleDisk(t)
	require.NoError(t, os.Chmod(source, 0o640)) // so that permissions have to be set
	plain := filepath.Join(t.TempDir(), "plain.raw")
	require.Equal(t, 0, trueup(t, "align", "--to", "raw", source, plain).code)
	for _, name := range slices.Sorted(maps.Keys(filesystemCases)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := filesystemCases[name]
			behind := t.TempDir()
			mounted := oddfs.Mount(t, behind, c.manners)
			dest := filepath.Join(mounted, "out.vmdk")
			for _, step := range []struct {
				notes, flags, files []string
			}{
				{c.one, nil, []string{"out.vmdk"}},
				{c.replace, []string{"--force"}, []string{"out.vmdk"}},
				{c.two, append([]string{"--force"}, toFlat...), []string{"out-flat.vmdk", "out.vmdk"}},
				{nil, nil, nil}, // the user takes all away
				{c.two, toFlat, []string{"out-flat.vmdk", "out.vmdk"}},
			} {
				if step.files == nil {
					require.NoError(t, removeAll(behind))
					continue
				}
				requireNotes(t, step.notes, append([]string{source, dest}, step.flags...)...)
				require.ElementsMatch(t, step.files, folderNames(t, behind))
				disktest.Run(t, "qemu-img", "compare", plain, filepath.Join(behind, "out.vmdk"))
			}
		})
	}
}

// TestRoomThatTheCopyHasAlready is about FAT and exFAT, where a file of zeros takes room: that of the copy counts as
// free.
func TestRoomThatTheCopyHasAlready(t *testing.T) {
	t.Parallel()
	source := noisyDisk(t, 3)
	for capacity, code := range map[int64]int{6 << 20: 0, 4<<20 + 64<<10: 0, 2 << 20: 1} {
		dest := filepath.Join(oddfs.Mount(t, t.TempDir(), oddfs.Manners{Capacity: capacity}), "out.raw")
		r := trueup(t, "align", source, dest)
		require.Equal(t, code, r.code, "%d bytes: %s", capacity, r.stderr)
		if code != 0 {
			require.Contains(t, r.stderr, "no space left on device")
		}
	}
}

// TestStaleReportWithoutFlock is about NFS, where a lock of flock(2) for writing needs a file that is open for writing.
func TestStaleReportWithoutFlock(t *testing.T) {
	t.Parallel()
	behind := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(behind, ".report.4194305.partial"), []byte("half a rep"), 0o600))
	report := filepath.Join(oddfs.Mount(t, behind, oddfs.Manners{}), "report")
	r := trueup(t, "inspect", sampleDisk(t), "--out", report)
	require.Equal(t, 3, r.code, r.stderr)
	require.Equal(t, []string{"report"}, folderNames(t, behind))
}

// TestPartialNameStays is about a name that cannot be removed when DEST has got its own by a link: DEST is there, and
// stays complete.
func TestPartialNameStays(t *testing.T) {
	t.Parallel()
	source := sampleDisk(t)
	for name, flags := range map[string][]string{"one file": nil, "two files": toFlat} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			behind := t.TempDir()
			mounted := oddfs.Mount(t, behind, oddfs.Manners{Fail: map[string]syscall.Errno{
				"rename2": syscall.EINVAL, "unlink .out.vmdk.partial": syscall.EIO,
			}})
			requireNotes(t, []string{"dest-leftover"}, append([]string{source, filepath.Join(mounted, "out.vmdk")},
				flags...)...)
			require.Equal(t, 0, trueup(t, "verify", source, filepath.Join(behind, "out.vmdk")).code)
		})
	}
}

// TestPublicationFails requires that nothing has the name of DEST when an error is reported, and that an empty file is
// all that was written where the file system would refuse the end of the work.
func TestPublicationFails(t *testing.T) {
	t.Parallel()
	source := sampleDisk(t)
	for op, atOnce := range map[string]bool{
		"rename": true, "rename2": true, "fsyncdir": true, "lock": true, "read": true, "fsync": true,
		"rename2 out.vmdk": false, "rename out.vmdk": false, "link out-flat.vmdk": false,
	} {
		t.Run(op, func(t *testing.T) {
			t.Parallel()
			behind := t.TempDir()
			m := failing(op, syscall.EIO)
			flags := toFlat
			if strings.HasPrefix(op, "rename ") || op == "rename" {
				m.Fail["rename2"] = syscall.EINVAL
				m.Fail["link"] = syscall.EPERM
				flags = nil
			}
			r := trueup(t, append([]string{
				"align", source, filepath.Join(oddfs.Mount(t, behind, m), "out.vmdk"),
				"--progress", "json",
			}, flags...)...)
			require.Equal(t, 1, r.code, r.stderr)
			require.Contains(t, r.stderr, "input/output error")
			require.Empty(t, folderNames(t, behind))
			require.Equal(t, atOnce, !strings.Contains(r.stderr, `"progress"`), r.stderr)
		})
	}
}

// removeAll empties a folder.
func removeAll(dir string) error {
	list, err := os.ReadDir(dir)
	for _, e := range list {
		if err == nil {
			err = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
	return err
}

// The tests here are about the containers that align writes, beside the disks in them.

// TestRoomForZeros copies a disk that is full of zeros to a place that has no room for them: a sparse VMDK stores none.
func TestRoomForZeros(t *testing.T) {
	t.Parallel()
	const size = 200 << 20
	disk := tableforge.NewMBR(size/sectorSize, slot(0x83, trackSectors, size/sectorSize-4096))
	f := newFault(t, writeForged("zeros.raw", disk)(t, t.TempDir()))
	info := disktest.Stat(t, f.source)
	if info.Sys().(*syscall.Stat_t).Blocks*512 < size {
		t.Skip("this file system stores no zeros")
	}
	args := []string{builtPath, "align", "-q", "--to", "vmdk", f.source, f.dest}
	r := privateMount(t, "size=20M", filepath.Dir(f.dest), args...)
	require.Equal(t, 0, r.code, r.stderr)
	require.Equal(t, filepath.Base(f.dest)+"\n", r.stdout)
}

// TestFlushedWhileCopied requires that the storage has work before the flush at the end.
func TestFlushedWhileCopied(t *testing.T) {
	t.Parallel()
	f := newFault(t, noisyDisk(t, 80))
	r := run(t, disktest.Tool(t, "strace"), "-f", "-qq", "-o", "/dev/stdout", "-e",
		"trace=pwrite64,sync_file_range,fsync",
		builtPath, "convert", "-q", "--to", "raw", "--verify", "structure", f.source, f.dest)
	require.Equal(t, 0, r.code, r.stderr)
	require.Regexp(t, `(?s)(pwrite64.*sync_file_range\(\d+, 0, \d+, SYNC_FILE_RANGE_WRITE.*){2}fsync`, r.stdout)
}

// TestOrderOfPublication holds an align to the order in which a loss of power does no harm: bytes are durable before a
// file has its name, the names of second files before that of DEST, and that one before the run ends.
func TestOrderOfPublication(t *testing.T) {
	t.Parallel()
	source := sampleDisk(t)
	var j oddfs.Journal
	mounted := oddfs.Mount(t, t.TempDir(), oddfs.Manners{Journal: &j})
	j.Restart(0)
	r := trueup(t, append([]string{"align", source, filepath.Join(mounted, "out.vmdk")}, toFlat...)...)
	require.Equal(t, 0, r.code, r.stderr)
	done := slices.DeleteFunc(j.Done(), func(op string) bool {
		return !slices.Contains([]string{"write", "fsync", "fsyncdir", "link out-flat.vmdk", "rename2 out.vmdk"}, op)
	})
	done = slices.Compact(done)
	require.Equal(t, []string{"fsync", "fsyncdir"}, done[:2], "the file system is asked before a byte is written")
	end := slices.Index(done, "link out-flat.vmdk")
	require.Equal(t, "fsync", done[end-1])
	require.Equal(t, []string{"link out-flat.vmdk", "fsyncdir", "rename2 out.vmdk", "fsyncdir"}, done[end:])
}

// mustSurface are the operations without which there is no copy, or none that survives a loss of power.
var mustSurface = []string{
	"create .out.vmdk.partial", "create .out-flat.vmdk.partial", "fsync", "fsyncdir", "truncate", "rename2 out.vmdk",
	"rename out.vmdk", "link out-flat.vmdk", "lock",
}

// TestEveryOperationOfDestFails has each operation on the file system of DEST fail in turn. DEST is complete
// afterwards, or what it was, and the run says which.
func TestEveryOperationOfDestFails(t *testing.T) {
	t.Parallel()
	source := sampleDisk(t)
	require.NoError(t, os.Chmod(source, 0o640)) // so that permissions have to be set
	good := t.TempDir()
	for name, flags := range map[string][]string{"flat": toFlat, "sparse": nil} {
		require.NoError(t, os.Mkdir(filepath.Join(good, name), 0o755))
		r := trueup(t, append([]string{"align", source, filepath.Join(good, name, "out.vmdk")}, flags...)...)
		require.Equal(t, 0, r.code, r.stderr)
	}
	// is reports whether the folder has a copy.
	is := func(dir, name string) bool {
		for _, file := range folderNames(t, filepath.Join(good, name)) {
			want := disktest.ReadFile(t, filepath.Join(good, name, file))
			if got, err := os.ReadFile(filepath.Join(dir, file)); err != nil || !bytes.Equal(got, want) {
				return false
			}
		}
		return true
	}
	for name, c := range map[string]struct {
		flags    []string
		old, new string
	}{"two files": {toFlat, "", "flat"}, "a file that is replaced": {[]string{"--force"}, "flat", "sparse"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var j oddfs.Journal
			behind, surfaced := t.TempDir(), 0
			dest := filepath.Join(oddfs.Mount(t, behind, oddfs.Manners{Journal: &j}), "out.vmdk")
			j.EachFails(func(bool) {
				require.NoError(t, removeAll(behind))
				if c.old != "" {
					require.NoError(t, os.CopyFS(behind, os.DirFS(filepath.Join(good, c.old))))
				}
				r := trueup(t, append([]string{"align", source, dest}, c.flags...)...)
				failed := j.Failed()
				said := fmt.Sprintf("%s: %d %s", failed, r.code, r.stderr)
				if r.code == 0 {
					require.True(t, is(behind, c.new), said)
					require.NotContains(t, mustSurface, failed, said)
					return
				}
				// Some of the last calls are the kernel's own, made in some runs only: then none was left to fail.
				require.NotEmpty(t, failed, said)
				require.NotEmpty(t, r.stderr)
				surfaced++
				if c.old != "" {
					require.True(t, is(behind, c.old) || is(behind, c.new), said)
					return
				}
				for _, left := range folderNames(t, behind) {
					require.True(t, strings.HasPrefix(left, "."), "%s: %s is left", said, left)
				}
			})
			require.Positive(t, surfaced)
		})
	}
}
