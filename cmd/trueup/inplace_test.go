package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/hiveforge"
)

// The tests here move partitions inside of a disk. What the disk must be then is the copy that align makes of it.

// formats of disks that are moved in place.
var (
	formatSplit = diskFormat{name: "split vmdk", container: "vmdk", subformat: "twoGbMaxExtentFlat", ext: ".vmdk"}
	formatFixed = diskFormat{name: "fixed vhd", container: "vpc", subformat: "fixed", ext: ".vhd"}
)

// twoNTFS is the disk of a Windows with two NTFS, whose registry knows the letters of both.
func twoNTFS(t testing.TB) string {
	t.Helper()
	empty := filepath.Join(t.TempDir(), "empty")
	hive := hiveforge.New(3, hiveforge.Key{Name: "SYSTEM", Keys: []hiveforge.Key{{Name: "Select"}}})
	require.NoError(t, os.WriteFile(empty, hive, 0o600))
	text := reg(`\MountedDevices`, `\\DosDevices\\C:`, hexBytes(mountedValue(sysSignature, 63*sectorSize)),
		`\\DosDevices\\D:`, hexBytes(mountedValue(sysSignature, 20063*sectorSize)))
	raw := windowsDisk{signature: sysSignature, sectors: 40960, volumes: []windowsVolume{
		{
			number: 1, kind: "ntfs", typ: "7", start: 63, sectors: 20000, loads: "NTLDR",
			files: map[string]string{lettersFile: mergeHive(t, empty, text)},
		},
		{number: 2, kind: "ntfs", typ: "7", start: 20063, sectors: 20000},
	}}.make(t)
	disktest.WriteAt(t, raw, 8<<20, noise("two", 1<<20))
	return raw
}

// moveCase is a disk that is moved in its place, again and again.
type moveCase struct {
	made, path string // the folder in which it was made, and where it is moved
	format     diskFormat
	old        map[string]string // sums of its files
	want       string            // sum of the disk of the copy
}

// newMove makes the disk of a format from a raw one, in a folder of its own.
func newMove(t testing.TB, f diskFormat, raw string) *moveCase {
	t.Helper()
	c := &moveCase{made: t.TempDir(), format: f, path: filepath.Join(t.TempDir(), "disk"+f.ext)}
	dest := filepath.Join(t.TempDir(), "copy.raw")
	r := trueup(t, "align", "--to", "raw", raw, dest)
	require.Equal(t, 0, r.code, r.stderr)
	c.want = sha256Of(t, dest)
	if made := filepath.Join(c.made, "disk"+f.ext); f == formatRaw {
		disktest.Run(t, "cp", "--sparse=always", raw, made)
	} else {
		subformat := f.subformat
		if f == formatFixed {
			subformat += ",force_size=on"
		}
		disktest.Run(t, "qemu-img", "convert", "-f", "raw", "-O", f.container, "-o", "subformat="+subformat, raw, made)
	}
	c.reset(t)
	c.old = c.sums(t)
	return c
}

// reset makes the disk what it was before.
func (c *moveCase) reset(t testing.TB) {
	t.Helper()
	for _, name := range folderNames(t, filepath.Dir(c.path)) {
		require.NoError(t, os.Remove(filepath.Join(filepath.Dir(c.path), name)))
	}
	disktest.Run(t, "cp", "-r", "--sparse=always", c.made+"/.", filepath.Dir(c.path))
}

// sums returns the SHA-256 of each file of the folder.
func (c *moveCase) sums(t testing.TB) map[string]string {
	t.Helper()
	sums := map[string]string{}
	for _, name := range folderNames(t, filepath.Dir(c.path)) {
		sums[name] = sha256Of(t, filepath.Join(filepath.Dir(c.path), name))
	}
	return sums
}

// disk returns the SHA-256 of the disk as QEMU reads it.
func (c *moveCase) disk(t testing.TB) string {
	t.Helper()
	if c.format == formatRaw {
		return sha256Of(t, c.path)
	}
	return sha256Of(t, c.format.rawOf(t, c.path))
}

// requireMoved requires that the disk is the copy, and that nothing lies beside it.
func (c *moveCase) requireMoved(t testing.TB) {
	t.Helper()
	require.Equal(t, c.want, c.disk(t), "the disk is not the copy")
	require.Len(t, folderNames(t, filepath.Dir(c.path)), len(c.old))
}

// requireOld requires that every file is what it was.
func (c *moveCase) requireOld(t testing.TB) {
	t.Helper()
	require.Equal(t, c.old, c.sums(t), "the disk is not what it was")
}

// moveDisks are an MBR with two NTFS and a hive, a GPT, and a disk that grows.
var moveDisks = map[string]func(t testing.TB) string{
	"two ntfs and a hive": twoNTFS,
	"gpt":                 func(t testing.TB) string { t.Helper(); return gptDisk(t) },
	"grows":               func(t testing.TB) string { t.Helper(); return noisyDisk(t, 5) },
}

// TestInPlaceIsTheCopy moves disks of all formats in their place.
func TestInPlaceIsTheCopy(t *testing.T) {
	t.Parallel()
	for name, build := range moveDisks {
		raw := build(t)
		for _, f := range []diskFormat{formatRaw, formatFlat, formatSplit, formatFixed} {
			t.Run(name+", "+f.name, func(t *testing.T) {
				t.Parallel()
				c := newMove(t, f, raw)
				r := trueup(t, "move", "--json", c.path)
				require.Equal(t, 0, r.code, r.stderr)
				validate(t, r.stdout)
				c.requireMoved(t)
				if f == formatFixed { // what needs the old disk does not take the new one for it
					require.NotEqual(t, vhdID(t, filepath.Join(c.made, "disk.vhd")), vhdID(t, c.path))
				}
				r = trueup(t, "inspect", c.path)
				require.Equal(t, 0, r.code, "%s%s", r.stdout, r.stderr)
				r = trueup(t, "move", c.path)
				require.Equal(t, 0, r.code, r.stderr)
				require.Contains(t, strings.Join(strings.Fields(r.stdout), " "), "nothing was written")
				for _, command := range []string{"resume", "undo"} {
					require.Equal(t, 64, trueup(t, command, c.path).code)
				}
			})
		}
	}
}

// vhdID returns the identifier of a VHD.
func vhdID(t testing.TB, path string) string {
	t.Helper()
	b := disktest.ReadFile(t, path)
	return fmt.Sprintf("%x", b[len(b)-512+68:len(b)-512+84])
}

// TestDescriptorGivenBack has the user rename the descriptor in the middle of a move. The disk that grew has its
// new size there all the same.
func TestDescriptorGivenBack(t *testing.T) {
	t.Parallel()
	c := newMove(t, formatFlat, moveDisks["grows"](t))
	last := 0
	for _, p := range c.points(t) {
		if p.call == "fsync" {
			last = max(last, p.number)
		}
	}
	for n := 6; n <= last; n++ {
		c.reset(t)
		_ = c.traced(t, os.DevNull, "-e", "trace=fsync", "-e", fmt.Sprintf("inject=fsync:signal=KILL:when=%d", n)).Run()
		if os.Rename(c.path+".moving", c.path) != nil {
			continue // it has its name
		}
		r := trueup(t, "resume", c.path)
		require.Equal(t, 0, r.code, "fsync %d: %s%s", n, r.stdout, r.stderr)
		if strings.Contains(strings.Join(strings.Fields(r.stdout), " "), "is as it was") {
			c.requireOld(t)
		} else {
			c.requireMoved(t)
		}
	}
}

// TestMoveBesideMove begins a second move of a disk whose descriptor is hidden: under the hidden name, and of the file
// that only the hidden descriptor names.
func TestMoveBesideMove(t *testing.T) {
	t.Parallel()
	c := newMove(t, formatFlat, noisyDisk(t, 4))
	_ = c.traced(t, os.DevNull, "-e", "trace=fsync", "-e", "inject=fsync:signal=KILL:when=4").Run()
	require.FileExists(t, c.path+".moving")
	require.FileExists(t, c.path+".trueup")
	for path, says := range map[string]string{
		c.path + ".moving": fmt.Sprintf("trueup resume %s goes on", c.path),
		flatName(c.path):   `it is a file of the disk "disk.vmdk": a move of the partitions inside of the disk was`,
	} {
		r := trueup(t, "move", path)
		require.Equal(t, 4, r.code, "%s%s", r.stdout, r.stderr)
		require.Contains(t, r.stderr, says)
		requireOneLine(t, r.stderr)
	}
	require.Equal(t, 0, trueup(t, "undo", c.path).code)
	c.requireOld(t)
}

// middle kills the move when stretches have moved.
func (c *moveCase) middle(t testing.TB) {
	t.Helper()
	c.reset(t)
	_ = c.traced(t, os.DevNull, "-e", "trace=fsync", "-e", "inject=fsync:signal=KILL:when=9").Run()
	r := trueup(t, "inspect", c.path)
	require.Equal(t, 4, r.code, r.stderr)
	require.FileExists(t, c.path+".trueup")
}

// TestDiskBroughtBack brings a disk back from a backup in the middle of a move. The journal stays until undo --force
// removes it, which it does only where the mark of the move is nowhere.
func TestDiskBroughtBack(t *testing.T) {
	t.Parallel()
	refused := func(t *testing.T, c *moveCase, says string, command ...string) {
		t.Helper()
		r := trueup(t, append(command, c.path)...)
		require.Equal(t, 4, r.code, "%q: %s%s", command, r.stdout, r.stderr)
		require.Contains(t, r.stderr, says)
		requireOneLine(t, r.stderr)
		require.FileExists(t, c.path+".trueup")
	}
	dropped := func(t *testing.T, c *moveCase) {
		t.Helper()
		for _, command := range []string{"resume", "undo"} {
			refused(t, c, "trueup undo "+c.path+" --force leaves it as it is and removes the journal, with the ",
				command)
		}
		r := trueup(t, "undo", "--force", c.path)
		require.Equal(t, 0, r.code, r.stderr)
		require.Contains(t, strings.Join(strings.Fields(r.stdout), " "), "with the journal went the ")
		c.requireOld(t)
		require.Equal(t, 3, trueup(t, "inspect", c.path).code)
	}
	for _, f := range []diskFormat{formatRaw, formatFlat} {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			c := newMove(t, f, moveDisks["two ntfs and a hive"](t))
			restore := func() { disktest.Run(t, "cp", "-r", "--sparse=always", c.made+"/.", filepath.Dir(c.path)) }
			data := c.path
			if f == formatFlat {
				data = flatName(c.path)
			}
			c.middle(t)
			restore()
			dropped(t, c)

			c.middle(t) // as another file, with the old one away and then here
			require.NoError(t, os.Rename(data, data+".aside"))
			restore()
			refused(t, c, fmt.Sprintf("%q is in the middle of a move", filepath.Base(data)+".aside"), "undo", "--force")
			require.NoError(t, os.Remove(data+".aside"))
			dropped(t, c)

			c.middle(t)
			r := trueup(t, "undo", "--force", c.path)
			require.Equal(t, 0, r.code, r.stderr)
			require.NotContains(t, r.stdout, "journal went", "the flag changes nothing in the middle of the move")
			c.requireOld(t)

			c.reset(t) // behind the first sector
			last := 0
			for _, p := range c.points(t) {
				if p.call == "unlinkat" {
					last = max(last, p.number)
				}
			}
			c.reset(t)
			_ = c.traced(t, os.DevNull, "-e", "trace=unlinkat", "-e",
				fmt.Sprintf("inject=unlinkat:signal=KILL:when=%d", last)).Run()
			restore()
			refused(t, c, "everything is at its new place already", "undo")
			refused(t, c, "--force leaves it as it is", "resume")
			require.Equal(t, 0, trueup(t, "undo", "--force", c.path).code)
			c.requireOld(t)
		})
	}
}

// traced returns the command of a move under strace, which writes to log. The calls of a move come from one thread, and
// strace counts those of a thread.
func (c *moveCase) traced(t testing.TB, log string, args ...string) *exec.Cmd {
	t.Helper()
	args = append([]string{"-f", "-qq", "-o", log}, args...)
	return exec.Command(disktest.Tool(t, "strace"), append(args, builtPath, "move", "-q", c.path)...)
}

// moveCalls are the system calls that a move changes something with.
const moveCalls = "pwrite64,ftruncate,fallocate,fsync,renameat2,unlinkat,openat,close"

// points returns the calls of a move: for each name, how many the thread with most of them makes.
func (c *moveCase) points(t testing.TB) (out []callPoint) {
	t.Helper()
	log := filepath.Join(t.TempDir(), "all")
	text, err := c.traced(t, log, "-e", "trace="+moveCalls).CombinedOutput()
	require.NoError(t, err, "%s", text)
	return callsIn(t, log)
}

// callsIn returns the calls in a log of strace: for each name, how many the thread with most of them makes.
func callsIn(t testing.TB, log string) []callPoint {
	t.Helper()
	data := disktest.ReadFile(t, log)
	seen, most := map[string]int{}, map[string]int{}
	for _, m := range tracedCall.FindAllStringSubmatch(string(data), -1) {
		seen[m[1]+m[2]]++
		most[m[2]] = max(most[m[2]], seen[m[1]+m[2]])
	}
	return spread(most, 1<<20)
}

// goesOn lets the next run complete a move that was ended, or take it back.
func (c *moveCase) goesOn(t testing.TB, command, at string) {
	t.Helper()
	if _, err := os.Stat(c.path + ".trueup"); err != nil { // it had not begun, or was complete
		if _, err := os.Stat(c.path); err == nil && c.disk(t) == c.want {
			return
		}
		c.requireOld(t)
		return
	}
	r := trueup(t, command, c.path)
	if r.code == 4 { // of one that is complete or that had not begun, by what is said
		command = map[string]string{"undo": "resume", "resume": "undo"}[command]
		r = trueup(t, command, c.path)
	}
	require.Equal(t, 0, r.code, "%s %s: %s%s", command, at, r.stdout, r.stderr)
	if command == "undo" || strings.Contains(strings.Join(strings.Fields(r.stdout), " "), "is as it was") {
		c.requireOld(t)
	} else {
		c.requireMoved(t)
	}
}

// TestKilledMoves kills moves with SIGKILL in front of system calls that change something: the next run completes them,
// or takes them back byte for byte. With TRUEUP_KILLS it is each of these calls.
func TestKilledMoves(t *testing.T) {
	t.Parallel()
	all := os.Getenv("TRUEUP_KILLS") != ""
	for name, f := range map[string]diskFormat{"two ntfs and a hive": formatFlat, "gpt": formatRaw} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newMove(t, f, moveDisks[name](t))
			points := c.points(t)
			if !all {
				points = slices.DeleteFunc(points,
					func(p callPoint) bool { return p.call != "pwrite64" && p.call != "fsync" || p.number%4 != 2 })
			}
			killed, middle := 0, 0
			for i, p := range points {
				for _, command := range []string{"resume", "undo"} {
					if !all && command == "undo" == (i%2 == 0) {
						continue
					}
					c.reset(t)
					inject := fmt.Sprintf("inject=%s:signal=KILL:when=%d", p.call, p.number)
					cmd := c.traced(t, os.DevNull, "-e", "trace="+p.call, "-e", inject)
					_ = cmd.Run() // strace ends with the signal that ended what it traced
					if cmd.ProcessState.Sys().(syscall.WaitStatus).Signaled() {
						killed++
					}
					if _, err := os.Stat(c.path + ".trueup"); err == nil {
						middle++
						c.refused(t)
					}
					c.goesOn(t, command, fmt.Sprintf("%+v", p))
				}
			}
			t.Logf("%d points, %d runs killed, %d of them with a journal", len(points), killed, middle)
			require.Positive(t, middle)
		})
	}
}

// refused requires that a disk with a journal is not used, unless nothing was written to it yet.
func (c *moveCase) refused(t testing.TB) {
	t.Helper()
	r := trueup(t, "inspect", c.path)
	if r.code == 4 {
		require.Contains(t, r.stderr, "trueup resume")
		return
	}
	now := c.sums(t)
	delete(now, filepath.Base(c.path)+".trueup")
	require.Equal(t, c.old, now, "%s%s", r.stdout, r.stderr)
}
