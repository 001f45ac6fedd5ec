package main

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/disktest/oddfs"
)

// filesystemCase is a file system for DEST, and the codes of the notes about it: for a DEST of one file, of two files,
// and with --force.
type filesystemCase struct {
	manners           oddfs.Manners
	one, two, replace []string
}

// filesystemCases has the cases that TestEveryCallOfAnOutputFails does not have.
var filesystemCases = map[string]filesystemCase{
	"as usual":                             {},
	"locks bar others from what is locked": {manners: oddfs.Manners{Mandatory: true}},
	"no flags of rename, NFS":              {manners: oddfs.Failing("rename2", syscall.ENOSYS)},
	"numbers of free space: no": {
		manners: oddfs.Failing("statfs", syscall.ENOSYS), one: noRoom, two: noRoom,
		replace: noRoom,
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
	noRoom  = []string{"dest-room-unknown"}
	noLinks = []string{"dest-no-links"}
)

// destAnswer holds the findings of an align about the place of DEST.
type destAnswer struct {
	Findings []struct{ Code, Subject string }
}

// ofDest returns the codes of findings about DEST.
func (a destAnswer) ofDest() (codes []string) {
	for _, f := range a.Findings {
		if f.Subject == "dest" {
			codes = append(codes, f.Code)
		}
	}
	return codes
}

// requireNotes runs align and requires these notes on DEST.
func requireNotes(t *testing.T, want []string, args ...string) {
	t.Helper()
	answer := trueupJSON[destAnswer](t, 0, append([]string{"align"}, args...)...)
	require.ElementsMatch(t, want, answer.ofDest(), "%q", args)
}

// TestDestOnOddFileSystems aligns to file systems with fewer functions than usual, and compares the results with
// qemu-img.
func TestDestOnOddFileSystems(t *testing.T) {
	t.Parallel()
	source := sampleDisk(t)
	require.NoError(t, os.Chmod(source, 0o640)) // so that permissions must be set
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
				{nil, nil, nil}, // the umask removes all
				{c.two, toFlat, []string{"out-flat.vmdk", "out.vmdk"}},
			} {
				if step.files == nil {
					list, err := os.ReadDir(behind)
					for _, e := range list {
						if err == nil {
							err = os.Remove(filepath.Join(behind, e.Name()))
						}
					}
					require.NoError(t, err)
					continue
				}
				requireNotes(t, step.notes, append([]string{source, dest}, step.flags...)...)
				require.ElementsMatch(t, step.files, folderNames(t, behind))
				disktest.Run(t, "qemu-img", "compare", plain, filepath.Join(behind, "out.vmdk"))
			}
		})
	}
}

// TestRoomThatTheCopyHasAlready writes to FAT and exFAT, where zeros take room: room of the existing copy counts as
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

// TestPartialNameStays has a temporary name that cannot be removed after DEST got its name by a link: DEST is complete.
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

// These tests are about the containers that align writes, not the disks in them.

// TestRoomForZeros copies a disk full of zeros to a place without room for them: a sparse VMDK stores none.
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

// TestFlushedWhileCopied requires that the storage receives data before the final flush.
func TestFlushedWhileCopied(t *testing.T) {
	t.Parallel()
	f := newFault(t, noisyDisk(t, 80))
	r := run(t, disktest.Tool(t, "strace"), "-f", "-qq", "-o", "/dev/stdout", "-e",
		"trace=pwrite64,sync_file_range,fsync",
		builtPath, "convert", "-q", "--to", "raw", "--verify", "structure", f.source, f.dest)
	require.Equal(t, 0, r.code, r.stderr)
	require.Regexp(t, `(?s)(pwrite64.*sync_file_range\(\d+, 0, \d+, SYNC_FILE_RANGE_WRITE.*){2}fsync`, r.stdout)
}
