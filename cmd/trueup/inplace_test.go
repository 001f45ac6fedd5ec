package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/hiveforge"
)

// These tests move partitions within a disk. The result must equal the copy of align.

// Formats of disks that can be moved in place.
var (
	formatSplit = diskFormat{name: "split vmdk", container: "vmdk", subformat: "twoGbMaxExtentFlat", ext: ".vmdk"}
	formatFixed = diskFormat{name: "fixed vhd", container: "vpc", subformat: "fixed", ext: ".vhd"}
)

// twoNTFS is the disk of a Windows with two NTFS whose registry has the letters of both.
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

// moveCase is a disk that is moved in place repeatedly: in files, or on a loop device.
type moveCase struct {
	made, folder string // folder of its files
	path         string // of the disk, for commands
	device       bool
	journal      string
	flags        []string // flags that name the journal
	format       diskFormat
	old          map[string]string // SHA-256 of its files
	want         string            // SHA-256 of the disk of the copy
}

// newMove converts a raw disk to a format, in a new folder.
func newMove(t testing.TB, f diskFormat, raw string) *moveCase {
	t.Helper()
	c := &moveCase{made: t.TempDir(), folder: t.TempDir(), format: f}
	c.path = filepath.Join(c.folder, "disk"+f.ext)
	c.journal = c.path + ".trueup"
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
	return c.prepare(t, raw)
}

// newDeviceMove puts a raw disk on a loop device with these options. The journal is beside the backing file.
func newDeviceMove(t testing.TB, raw string, options ...string) *moveCase {
	t.Helper()
	c := &moveCase{made: t.TempDir(), folder: t.TempDir(), format: formatRaw, device: true}
	c.journal = filepath.Join(c.folder, "journal")
	c.flags = []string{"--journal", c.journal}
	for _, folder := range []string{c.made, c.folder} {
		disktest.Run(t, "cp", "--sparse=always", raw, filepath.Join(folder, "device"))
	}
	c.path = disktest.LoopDevice(t, filepath.Join(c.folder, "device"), options...)
	return c.prepare(t, c.path)
}

// prepare records the disk before the move, and the expected disk: the copy of source.
func (c *moveCase) prepare(t testing.TB, source string) *moveCase {
	t.Helper()
	dest := filepath.Join(t.TempDir(), "copy.raw")
	r := trueup(t, "align", "--to", "raw", source, dest)
	require.Equal(t, 0, r.code, r.stderr)
	c.old, c.want = sumsOf(t, c.folder), sha256Of(t, dest)
	require.NotEqual(t, c.want, c.disk(t))
	return c
}

// reset restores the disk to its state before the move.
func (c *moveCase) reset(t testing.TB) {
	t.Helper()
	for _, name := range folderNames(t, c.folder) {
		if !c.device || name != "device" {
			require.NoError(t, os.Remove(filepath.Join(c.folder, name)))
		}
	}
	if !c.device {
		c.restore(t)
		return
	}
	disktest.Run(t, "dd", "if="+filepath.Join(c.made, "device"), "of="+c.path, "bs=1M", "oflag=direct", "conv=fsync",
		"status=none")
	c.requireOld(t)
}

// restore restores the files of the disk from a backup.
func (c *moveCase) restore(t testing.TB) {
	t.Helper()
	disktest.Run(t, "cp", "-r", "--sparse=always", c.made+"/.", c.folder)
}

// disk returns the SHA-256 of the disk as QEMU reads it.
func (c *moveCase) disk(t testing.TB) string {
	t.Helper()
	switch {
	case c.device:
		return sha256Of(t, filepath.Join(c.folder, "device"))
	case c.format == formatRaw:
		return sha256Of(t, c.path)
	}
	return sha256Of(t, c.format.rawOf(t, c.path))
}

// requireMoved requires that the disk equals the copy, and that nothing is beside it.
func (c *moveCase) requireMoved(t testing.TB) {
	t.Helper()
	require.Equal(t, c.want, c.disk(t), "the disk is not the copy")
	require.Len(t, folderNames(t, c.folder), len(c.old))
}

// requireOld requires that every file is unchanged.
func (c *moveCase) requireOld(t testing.TB) {
	t.Helper()
	require.Equal(t, c.old, sumsOf(t, c.folder), "the disk is not what it was")
}

// args returns the command line of a command for the disk.
func (c *moveCase) args(command ...string) []string {
	return slices.Concat(command, []string{c.path}, c.flags)
}

// refused requires that a command ends with this code and one line with the reason.
func (c *moveCase) refused(t testing.TB, code int, says string, args ...string) {
	t.Helper()
	r := trueup(t, args...)
	require.Equal(t, code, r.code, "%q: %s%s", args, r.stdout, r.stderr)
	require.Contains(t, r.stderr, says)
	requireOneLine(t, r.stderr)
}

// requireAfter requires the right disk after a successful command.
func (c *moveCase) requireAfter(t testing.TB, command string, r result) {
	t.Helper()
	require.Equal(t, 0, r.code, "%s: %s%s", command, r.stdout, r.stderr)
	if command == "undo" || strings.Contains(strings.Join(strings.Fields(r.stdout), " "), "is unchanged") {
		c.requireOld(t)
	} else {
		c.requireMoved(t)
	}
}

// moveCalls lists the system calls by which a move changes something.
const moveCalls = "pwrite64,ftruncate,fallocate,fsync,renameat2,unlinkat,openat,close"

// points returns the calls of a successful command: for each name, the highest number in one thread. A move calls from
// one thread, and strace counts per thread.
func points(t testing.TB, calls string, command []string) []callPoint {
	t.Helper()
	log := filepath.Join(t.TempDir(), "all")
	text, err := underStrace(t, log, []string{"-e", "trace=" + calls}, command).CombinedOutput()
	require.NoError(t, err, "%s", text)
	return spread(callsIn(t, log), 1<<20)
}

// injected returns a run with an injection at a call.
func (p callPoint) injected(t testing.TB, log, does string, command []string) *exec.Cmd {
	t.Helper()
	args := []string{"-e", "trace=" + p.call, "-e", fmt.Sprintf("inject=%s:%s:when=%d", p.call, does, p.number)}
	if p.path != "" {
		args = append(args, "-P", p.path)
	}
	return underStrace(t, log, args, command)
}

// kill kills the move before a call and reports whether the call was reached.
func (c *moveCase) kill(t testing.TB, p callPoint) bool {
	t.Helper()
	cmd := p.injected(t, os.DevNull, "signal=KILL", c.args("move", "-q"))
	_ = cmd.Run() // strace ends with the signal of its tracee
	return cmd.ProcessState.Sys().(syscall.WaitStatus).Signaled()
}

// middle resets the disk, and kills a move of it at a flush in the middle of its stretches.
func (c *moveCase) middle(t testing.TB) {
	t.Helper()
	c.reset(t)
	c.kill(t, callPoint{call: "fsync", number: 8})
	r := trueup(t, "inspect", c.path)
	require.Equal(t, 4, r.code, "the move did not begin: %s%s", r.stdout, r.stderr)
	require.FileExists(t, c.journal)
}

// printedCommand matches the command lines of a refusal.
var printedCommand = regexp.MustCompile(`trueup (resume|undo) (\S+) --journal (\S+)`)

// goesOn completes or reverses an ended move with the next run, by the command that inspect prints if the disk is in
// the middle of the move. It reports whether it was.
func (c *moveCase) goesOn(t testing.TB, command, at string) (middle bool) {
	t.Helper()
	if _, err := os.Stat(c.journal); err != nil { // it had not begun, or was complete
		if _, err := os.Stat(c.path); err != nil || c.disk(t) != c.want {
			c.requireOld(t)
		}
		return false
	}
	args := c.args(command)
	r := trueup(t, "inspect", c.path)
	if middle = r.code == 4; middle {
		require.Contains(t, r.stderr, "trueup resume", at)
		for _, x := range printedCommand.FindAllStringSubmatch(r.stderr, -1) {
			if x[1] == command {
				args = []string{command, x[2], "--journal", x[3]}
			}
		}
		if c.device {
			require.Equal(t, 4, trueup(t, command, c.path).code, "without the journal, the same words")
		}
	}
	r = trueup(t, args...)
	if r.code == 4 { // complete or not begun, according to the message
		args[0] = map[string]string{"undo": "resume", "resume": "undo"}[command]
		r = trueup(t, args...)
	}
	c.requireAfter(t, args[0], r)
	return middle
}

// moveDisks lists an MBR with two NTFS and a hive, a GPT, and a disk that grows.
var moveDisks = map[string]func(t testing.TB) string{
	"two ntfs and a hive": twoNTFS,
	"gpt":                 gptDisk,
	"grows":               func(t testing.TB) string { t.Helper(); return noisyDisk(t, 5) },
}

// gptDisk makes a disk of 40 MiB with sgdisk, with misaligned partitions: numbers with a gap, out of disk order, with
// attributes and names.
func gptDisk(t testing.TB) string {
	t.Helper()
	path := disktest.Blank(t, "gpt.raw", 40<<20)
	disktest.Run(t, "sgdisk", "-a", "1", "-n", "2:20000:40000", "-n", "1:100:10000", "-n", "5:10001:15000", "-n",
		"7:50000:0", "-t", "2:0700", "-t", "5:ef00", "-c", "1:first ☃", "-c", "7:to the end", "-A", "1:set:2", "-A",
		"7:set:63", path)
	for _, lba := range []int64{100, 10001, 20000, 50000} {
		disktest.WriteAt(t, path, lba*sectorSize, noise(fmt.Sprintf("partition at %d", lba), 64<<10))
	}
	return path
}

// TestInPlaceIsTheCopy requires that a move in place gives the same disk as a copy, in all formats. make test runs each
// disk in two formats.
func TestInPlaceIsTheCopy(t *testing.T) {
	t.Parallel()
	for i, name := range slices.Sorted(maps.Keys(moveDisks)) {
		raw := moveDisks[name](t)
		for k, f := range []diskFormat{formatRaw, formatFlat, formatSplit, formatFixed} {
			if (i+k)%2 != 0 && !disktest.Exhaustive {
				continue
			}
			t.Run(name+", "+f.name, func(t *testing.T) {
				t.Parallel()
				c := newMove(t, f, raw)
				c.requireAfter(t, "move", trueup(t, "move", "--json", c.path))
				if f == formatFixed { // an image that needs the old disk rejects the new one
					id := func(folder string) []byte {
						b := disktest.ReadFile(t, filepath.Join(folder, "disk.vhd"))
						return b[len(b)-512+68 : len(b)-512+84]
					}
					require.NotEqual(t, id(c.made), id(c.folder))
				}
				r := trueup(t, "inspect", c.path)
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

// TestMoveBesideMove starts a second move of a disk whose descriptor is hidden: by the hidden name, and by the file
// that only the hidden descriptor names.
func TestMoveBesideMove(t *testing.T) {
	t.Parallel()
	c := newMove(t, formatFlat, noisyDisk(t, 4))
	c.kill(t, callPoint{call: "fsync", number: 4})
	require.FileExists(t, c.path+".moving")
	require.FileExists(t, c.journal)
	c.refused(t, 4, fmt.Sprintf("trueup resume %s completes it", c.path), "move", c.path+".moving")
	c.refused(t, 4, `it is a file of the disk "disk.vmdk": a move inside the disk was`, "move",
		flatName(c.path))
	c.requireAfter(t, "undo", trueup(t, "undo", c.path))
}

// TestDiskBroughtBack restores a disk from a backup in the middle and at the end of a move. The journal stays until
// undo --force removes it; internal/inplace tests other files at the path.
func TestDiskBroughtBack(t *testing.T) {
	t.Parallel()
	for _, f := range []diskFormat{formatRaw, formatFlat} {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			c := newMove(t, f, moveDisks["two ntfs and a hive"](t))
			dropped := func() {
				r := trueup(t, "undo", "--force", c.path)
				require.Contains(t, strings.Join(strings.Fields(r.stdout), " "), "the journal held ")
				c.requireAfter(t, "undo", r)
				require.Equal(t, 3, trueup(t, "inspect", c.path).code)
			}
			c.middle(t)
			c.restore(t)
			for _, command := range []string{"resume", "undo"} {
				c.refused(t, 4, "trueup undo "+c.path+" --force leaves the disk as it is and removes the journal, ",
					command, c.path)
			}
			dropped()

			data := c.path // as another file, with the old one beside it
			if f == formatFlat {
				data = flatName(c.path)
			}
			c.middle(t)
			require.NoError(t, os.Rename(data, data+".aside"))
			c.restore(t)
			says := fmt.Sprintf("%q is in the middle of a move", filepath.Base(data)+".aside")
			c.refused(t, 4, says, "undo", "--force", c.path)
			require.FileExists(t, c.journal)
			require.NoError(t, os.Remove(data+".aside"))
			dropped()

			c.middle(t)
			r := trueup(t, "undo", "--force", c.path)
			require.NotContains(t, r.stdout, "journal went", "the flag changes nothing in the middle of the move")
			c.requireAfter(t, "undo", r)

			ends := points(t, "unlinkat", c.args("move", "-q")) // after the first sector
			c.reset(t)
			c.kill(t, ends[len(ends)-1])
			c.restore(t)
			c.refused(t, 4, "all data are in their new places already", "undo", c.path)
			c.refused(t, 4, "--force leaves the disk as it is", "resume", c.path)
			c.requireAfter(t, "undo", trueup(t, "undo", "--force", c.path))
		})
	}
}

// killed kills the move with SIGKILL before system calls that change something: the next run completes it, or reverses
// it byte for byte. With TRUEUP_KILLS it tries all these calls.
func (c *moveCase) killed(t *testing.T, calls string, some func(p callPoint) bool) {
	t.Helper()
	all, kills, middle := points(t, calls, c.args("move", "-q")), 0, 0
	commands := []string{"resume", "undo"}
	if os.Getenv("TRUEUP_KILLS") == "" {
		all = slices.DeleteFunc(all, func(p callPoint) bool { return !some(p) })
		commands = commands[:1]
	}
	for i, p := range all {
		for k := range commands {
			c.reset(t)
			if c.kill(t, p) {
				kills++
			}
			at, journal := fmt.Sprintf("%+v", p), filepath.Base(c.journal)
			if text, err := os.ReadFile(c.journal); err == nil && c.device && len(bytes.Trim(text, "\x00")) == 0 {
				require.Equal(t, 4, trueup(t, c.args("move")...).code, "%s: a file of anybody's", at)
				require.NoError(t, os.Remove(c.journal)) // like a user
			}
			before := sumsOf(t, c.folder)
			_, begun := before[journal]
			if c.goesOn(t, []string{"resume", "undo"}[(i+k)%2], at) {
				middle++
			} else if begun && !c.device { // it was usable: nothing was written to it
				delete(before, journal)
				require.Equal(t, c.old, before, at)
			}
		}
	}
	t.Logf("%d points, %d runs killed, %d of them in the middle", len(all), kills, middle)
	require.Positive(t, middle)
}

func TestKilledMoves(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]diskFormat{"two ntfs and a hive": formatFlat, "gpt": formatRaw} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			newMove(t, f, moveDisks[name](t)).killed(t, moveCalls, func(p callPoint) bool {
				return (p.call == "pwrite64" || p.call == "fsync") && p.number%8 == 2
			})
		})
	}
}

// TestMoveOnAFullFileSystem fills the file system in the middle of a move, before the journal has saved its second
// stretch. Resume and undo fail with the reason, and continue when there is room. The move is by less than 960 KiB,
// since a longer one saves nothing where flushes are quick.
func TestMoveOnAFullFileSystem(t *testing.T) {
	t.Parallel()
	raw, folder := noisyDisk(t, 24), t.TempDir()
	dest := filepath.Join(t.TempDir(), "copy.raw")
	require.Equal(t, 0, trueup(t, "align", "--to", "raw", "--boundary", "64K", raw, dest).code)
	script := `cd "$1" && cp "$3" disk && "$4" -f -qq -o /dev/null -e trace=fsync -e inject=fsync:signal=KILL:when=6 \
			"$2" move -q --boundary 64K disk
		head -c 1G /dev/zero >fill 2>/dev/null; test -e disk.trueup || exit 99
		"$2" resume disk 2>&1; echo "full: $?"; "$2" undo disk 2>&1; echo "full: $?"
		"$2" inspect disk 2>&1; echo "inspect: $?"; rm fill; "$2" $5 disk 2>&1; echo "room: $?"; sha256sum disk`
	for name, on := range smallStorages {
		for end, want := range map[string]string{"resume": sha256Of(t, dest), "undo": sha256Of(t, raw)} {
			r := on(t, 66, folder, "sh", "-c", script, "sh", folder, builtPath, raw, disktest.Tool(t, "strace"), end)
			said := strings.Join(strings.Fields(r.stdout), " ")
			require.Equal(t, 2, strings.Count(said, "no space left on device; the disk is in the middle of the move"),
				"%s: %s%s", name, r.stdout, r.stderr)
			require.Equal(t, 2, strings.Count(said, "full: 1"), r.stdout)
			require.Contains(t, said, "inspect: 4", r.stdout)
			require.Contains(t, said, "room: 0 "+want, r.stdout)
		}
	}
}

// TestMoveIsAlone stops a move halfway, and starts every command that could disturb it: each is refused, and the move
// completes.
func TestMoveIsAlone(t *testing.T) {
	t.Parallel()
	c := newMove(t, formatFlat, moveDisks["grows"](t))
	log := filepath.Join(t.TempDir(), "log")
	cmd := callPoint{call: "fsync", number: 8}.injected(t, log, "signal=STOP", c.args("move", "-q"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	require.NoError(t, cmd.Start())
	disktest.WaitFor(t, "the move to be stopped", func() bool {
		b, err := os.ReadFile(log)
		return err == nil && strings.Contains(string(b), "stopped by SIGSTOP")
	})
	for _, command := range []string{"resume", "undo", "finish", "move", "inspect", "replace"} {
		r := trueup(t, command, c.path)
		require.Contains(t, []int{1, 4}, r.code, "%q: %s%s", command, r.stdout, r.stderr)
		require.Contains(t, r.stderr, "another run of trueup", "%q", command)
	}
	require.NoError(t, syscall.Kill(-cmd.Process.Pid, syscall.SIGCONT))
	require.NoError(t, cmd.Wait())
	c.requireMoved(t)
}

// TestJournalElsewhere keeps the journal in another folder. In the middle of the move, the disk contains the path of
// the journal, and another disk with this journal is refused.
func TestJournalElsewhere(t *testing.T) {
	t.Parallel()
	for _, f := range []diskFormat{formatRaw, formatFlat} {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			c, apart := newMove(t, f, twoNTFS(t)), t.TempDir()
			c.journal = filepath.Join(apart, "journal")
			c.flags = []string{"--journal", c.journal}
			for _, command := range []string{"resume", "undo"} {
				c.reset(t)
				c.kill(t, callPoint{call: "fsync", number: 9})
				shown := c.path
				if f == formatFlat {
					c.refused(t, 4, `a move has left "`+c.path+`.moving"`, command, c.path)
					shown += ".moving"
				}
				c.refused(t, 4, fmt.Sprintf("trueup %s %s --journal %s", command, c.path, c.journal), "inspect", shown)
				require.NotEqual(t, 0, trueup(t, c.args("move")...).code)

				// The journal of an interrupted move is refused for other disks, and no file changes.
				kept, record := sumsOf(t, c.folder), sha256Of(t, c.journal)
				for _, other := range []string{filepath.Join(c.folder, "b"+f.ext), filepath.Join(apart, "disk"+f.ext)} {
					require.NoError(t, os.WriteFile(other, []byte("another disk"), 0o600))
					for _, words := range [][]string{{"resume"}, {"undo"}, {"undo", "--force"}} {
						r := trueup(t, slices.Concat(words, []string{other}, c.flags)...)
						require.Contains(t, []int{4, 64}, r.code, r.stderr)
						require.Regexp(t, "belongs to (a|the) disk|is in the middle", r.stderr)
					}
					require.Equal(t, "another disk", string(disktest.ReadFile(t, other)))
					require.NoError(t, os.Remove(other))
				}
				require.Equal(t, kept, sumsOf(t, c.folder))
				require.Equal(t, record, sha256Of(t, c.journal))

				c.requireAfter(t, command, trueup(t, c.args(command)...))
				require.NoFileExists(t, c.journal)
			}
			c.reset(t)
			c.requireAfter(t, "move", trueup(t, c.args("move", "-q")...))
			require.NoFileExists(t, c.journal)
		})
	}
}

// TestInPlaceByOddNames moves disks with names that no image could refer to, and continues after a kill. A name that
// the journal cannot store is refused.
func TestInPlaceByOddNames(t *testing.T) {
	t.Parallel()
	c := newMove(t, formatRaw, noisyDisk(t, 4))
	path := c.path
	for name, command := range map[string]string{`a\b.img`: "resume", "a:b.img": "undo", "a\nb.img": "resume"} {
		c.path = path
		c.reset(t)
		c.path = filepath.Join(c.folder, name)
		require.NoError(t, os.Rename(path, c.path))
		c.kill(t, callPoint{call: "fsync", number: 6})
		r := trueup(t, "inspect", c.path)
		require.Contains(t, r.stderr, "a move inside the disk was interrupted; trueup resume", name)
		r = trueup(t, command, c.path)
		require.NoError(t, os.Rename(c.path, path))
		c.path = path
		c.requireAfter(t, command, r)
	}
	c.reset(t)
	require.NoError(t, os.Rename(path, path+"\xff"))
	c.refused(t, 4, "is not UTF-8", "move", path+"\xff")
	require.NoError(t, os.Rename(path+"\xff", path))
	c.requireOld(t)
}
