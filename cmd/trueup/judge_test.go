package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/opinion"
)

// opinionCase is a machine with some of the judges' programs, and a folder for temporary files.
type opinionCase struct{ path, temporary string }

// fakes makes a machine with scripts as programs. Another process writes them, because files that this process had open
// for writing could be busy.
func fakes(t *testing.T, scripts map[string]string) opinionCase {
	t.Helper()
	temporary, err := os.MkdirTemp("", "judges") //nolint:usetesting // short enough for a socket
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(temporary) })
	o := opinionCase{t.TempDir(), temporary}
	for name, script := range scripts {
		disktest.RunInput(t, "#!/bin/sh\nPATH=/bin:/usr/bin\n"+script+"\n", "sh", "-c", `cat > "$0" && chmod 755 "$0"`,
			filepath.Join(o.path, name))
	}
	return o
}

// start starts the program on that machine.
func (o opinionCase) start(t *testing.T, args ...string) (*exec.Cmd, *bytes.Buffer, *bytes.Buffer) {
	t.Helper()
	cmd := exec.Command(builtPath, args...)
	cmd.Env = append(os.Environ(), "PATH="+o.path, "TMPDIR="+o.temporary, "LIBGUESTFS_BACKEND_SETTINGS=force_tcg",
		"LIBGUESTFS_APPEND=mitigations=off", "LIBGUESTFS_CACHEDIR=/var/tmp") // folder of its appliance
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	require.NoError(t, cmd.Start())
	return cmd, &stdout, &stderr
}

// run runs a command until it ends, and requires that nothing of the judges is left.
func (o opinionCase) run(t *testing.T, args ...string) result {
	t.Helper()
	cmd, stdout, stderr := o.start(t, args...)
	_ = cmd.Wait() // the exit code includes it
	if wantsJSON(args) {
		validateOutput(t, args, stdout.String())
	}
	o.requireGone(t)
	return result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

func (o opinionCase) requireGone(t *testing.T) {
	t.Helper()
	left, err := os.ReadDir(o.temporary)
	require.NoError(t, err)
	require.Empty(t, left)
}

// judgedAs returns the answers of the judges, by judge and question.
func judgedAs(rows opinion.Table) map[string]opinion.Verdict {
	all := map[string]opinion.Verdict{}
	for _, r := range rows {
		judge, _, _ := strings.Cut(r.Judge, " ")
		all[judge+": "+r.Asked] = r.Verdict
	}
	return all
}

const (
	byBytes = "every byte against the planned disk"
	asRead  = "every byte against the disk that trueup reads"
)

// judgement holds the fields of a report of judge that these tests examine.
type judgement struct {
	Agree   bool
	Answers opinion.Table
}

// A judge that hangs ends together with the command.
func TestJudgeIsInterrupted(t *testing.T) {
	t.Parallel()
	source := sampleDisk(t)
	dest := filepath.Join(t.TempDir(), "dest.raw")
	require.Equal(t, 0, trueup(t, "align", "--to", "raw", source, dest).code)
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			pids := filepath.Join(t.TempDir(), "pid")
			o := fakes(t, map[string]string{"guestfish": "case $1 in --version) echo guestfish 9.9; exit;; esac; " +
				"echo $$ > '" + pids + ".new'; mv '" + pids + ".new' '" + pids + "'; while read line; do :; done"})
			cmd, stdout, stderr := o.start(t, "judge", "--json", "--by", "libguestfs", source, dest)
			disktest.WaitFor(t, "the judge", func() bool {
				_, err := os.Stat(pids)
				return err == nil
			})
			children := descendants(cmd.Process.Pid)
			require.NoError(t, cmd.Process.Signal(s))
			_ = cmd.Wait()
			if s == syscall.SIGTERM {
				r := result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
				require.Equal(t, 143, r.code, r.stderr)
				require.Equal(t, "interrupted", errorCode(t, r))
				o.requireGone(t)
			}
			requireGone(t, slices.Collect(maps.Keys(children)))
		})
	}
}

// judgesSay runs trueup judge on a copy with the judges of this machine, and returns its result and the answers.
func judgesSay(t *testing.T, by, source, dest string) (result, opinion.Table) {
	t.Helper()
	disktest.Tool(t, "qemu-img")
	o := fakes(t, nil)
	o.path = os.Getenv("PATH")
	r := o.run(t, "judge", "--json", "--by", by, source, dest)
	var found judgement
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &found), r.stderr)
	return r, found.Answers
}

// ofLibguestfs returns the answers of libguestfs, by question.
func ofLibguestfs(rows opinion.Table) map[string]opinion.Verdict {
	all := map[string]opinion.Verdict{}
	for judged, v := range judgedAs(rows) {
		if asked, found := strings.CutPrefix(judged, opinion.Libguestfs+": "); found {
			all[asked] = v
		}
	}
	return all
}

// A byte of a file in the copy is changed: verify and libguestfs find it. libguestfs starts two guests, so only make
// exhaustive runs it. TestOpinions covers the other file systems.
func TestJudgeOfLibguestfs(t *testing.T) {
	t.Parallel()
	judges := opinion.QemuImg
	want := map[string]opinion.Verdict{
		"trueup: " + byBytes:               opinion.Differs,
		"qemu-img: " + asRead:              opinion.Agrees,
		"qemu-img: check of the container": opinion.NotLooked,
	}
	if disktest.Exhaustive {
		requireKernel(t)
		judges = opinion.All
		want["libguestfs: /dev/sda1: fsck.fat -n"] = opinion.Agrees
		want["libguestfs: /dev/sda1: files of vfat"] = opinion.Differs
	}
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	const content = "the very words of a file"
	require.NoError(t, os.WriteFile(path("words.txt"), []byte(content), 0o600))
	for name, size := range map[string]int64{"fat": 4 << 20, "disk": 8 << 20} {
		disktest.MakeBlank(t, path(name), size)
	}
	disktest.Run(t, "mkfs.fat", path("fat"))
	disktest.Run(t, "mcopy", "-i", path("fat"), path("words.txt"), "::words.txt")
	disktest.RunInput(t, "label: dos\nstart=63, size=8192, type=c\n", "sfdisk", "-q", path("disk"))
	placeVolume(t, path("fat"), path("disk"), 63*sectorSize)
	require.Equal(t, 0, trueup(t, "align", path("disk"), path("fresh")).code)
	b := disktest.ReadFile(t, path("fresh"))
	at := bytes.Index(b, []byte(content))
	require.Positive(t, at)
	disktest.WriteAt(t, path("fresh"), int64(at), []byte("T"))
	r, rows := judgesSay(t, judges, path("disk"), path("fresh"))
	require.Equal(t, 5, r.code, r.stderr)
	require.Equal(t, want, judgedAs(rows), "%v", rows)
	for _, r := range rows {
		if r.Asked == "/dev/sda1: files of vfat" {
			require.Regexp(t, "^SOURCE: [0-9]+ names with SHA-256 .*; DEST: [0-9]+ names", r.Said)
		}
	}
}

// startGuestfish starts the guest with a shell command, and returns the output of the script.
func startGuestfish(t *testing.T, command, script string) string {
	t.Helper()
	disktest.Tool(t, "guestfish")
	ctx, cancel := context.WithTimeout(context.Background(), disktest.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", "exec "+command)
	cmd.Env = append(os.Environ(), "LIBGUESTFS_BACKEND=direct", "LIBGUESTFS_BACKEND_SETTINGS=force_tcg",
		"LIBGUESTFS_APPEND=mitigations=off") // saves a sixth of the start
	cmd.Stdin = strings.NewReader(script)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	// QEMU is a child of guestfish and must end with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	require.NoError(t, cmd.Run(), "guestfish\n%s%s", stdout.String(), stderr.String())
	if stderr.Len() > 0 {
		t.Log(stderr.String())
	}
	return stdout.String()
}

// requireKernel skips a test if libguestfs is missing or has no kernel, by the rule of disktest.DataFile.
func requireKernel(t *testing.T) {
	t.Helper()
	disktest.Tool(t, "guestfish")
	kernels, err := filepath.Glob("/boot/vmlinuz-*")
	require.NoError(t, err)
	if len(kernels) == 0 {
		disktest.DataFile(t, "/boot/vmlinuz-*")
	}
}

// judgedVolume is a volume for libguestfs.
type judgedVolume struct {
	kind   string // of soakKinds, or special in makePart
	size   int64
	device string // its device in libguestfs; empty if it has no files
	looks  string // kind in libguestfs
	check  string // check program in libguestfs
}

// judgedVolumes are all on one disk.
var judgedVolumes = []judgedVolume{
	{"ext4", 12 * mib, "/dev/sda1", "ext4", "e2fsck -f -n"},
	{"fat16", 18 * mib, "/dev/sda2", "vfat", "fsck.fat -n"},
	{"ntfs", 8 * mib, "/dev/sda3", "ntfs", "ntfsfix -n"},
	{"xfs", 34 * mib, "/dev/sda4", "xfs", "xfs_repair -n"},
	{"btrfs", 22 * mib, "/dev/sda5", "btrfs", "btrfs check --readonly"},
	{"exfat", 8 * mib, "/dev/sda6", "exfat", "fsck.exfat -n"},
	{"lvm", 12 * mib, "/dev/volumes/data", "ext4", "e2fsck -f -n"},
	{kind: "luks", size: 18 * mib},
	{kind: "swap", size: 1 * mib},
	{kind: "noise", size: 1 * mib},
}

// words returns the bytes of a file on a volume, and of a volume without files.
func (v judgedVolume) words() []byte { return noise("words on "+v.kind, 20_000) }

// makePart makes the volume in its own file.
func (v judgedVolume) makePart(t *testing.T, part string) {
	t.Helper()
	s := soakVolume{
		soakKind: soakKind{name: v.kind}, sector: sectorSize, size: v.size, noise: "words on " + v.kind,
		group: "volumes", files: map[string][]byte{"words": v.words()},
	}
	switch v.kind {
	case "exfat": // the appliance writes its file there
		require.NoError(t, os.WriteFile(part, exfatTools(t, v.size, 0), 0o600))
	case "luks":
		disktest.MakeBlank(t, part, v.size)
		disktest.RunInput(t, "the key", "cryptsetup", "luksFormat", "--batch-mode", "--pbkdf", "pbkdf2",
			"--pbkdf-force-iterations", "1000", "--key-file=-", part)
		disktest.WriteAt(t, part, v.size-mib, v.words())
	default:
		s.make(t, part)
	}
}

// judgedDisk makes a disk of the volumes, each off all boundaries.
func judgedDisk(t *testing.T) string {
	t.Helper()
	raw := disktest.Blank(t, "disk.raw", 160*mib)
	table := "label: gpt\nfirst-lba: 34\n"
	start := int64(trackSectors)
	for _, v := range judgedVolumes {
		part := filepath.Join(t.TempDir(), "part")
		v.makePart(t, part)
		if v.kind == "exfat" {
			path := filepath.Join(t.TempDir(), "words")
			require.NoError(t, os.WriteFile(path, v.words(), 0o600))
			startGuestfish(t, "guestfish", fmt.Sprintf(
				"add-drive %q format:raw\nrun\nmount /dev/sda /\nupload %q /words\numount /\n", part, path))
		}
		placeVolume(t, part, raw, start*sectorSize)
		table += fmt.Sprintf("start=%d, size=%d\n", start, v.size/sectorSize)
		start += v.size/sectorSize + 1
	}
	disktest.RunInput(t, table, "sfdisk", "-q", raw)
	return raw
}

// TestOpinions judges a copy of each kind of volume, and a copy with a changed byte in each, with both judges. `make
// opinions` runs it.
func TestOpinions(t *testing.T) {
	if os.Getenv("TRUEUP_OPINIONS") == "" {
		t.Skip("make opinions runs it: seven appliances of libguestfs")
	}
	requireKernel(t)
	t.Run("each kind", func(t *testing.T) {
		source := judgedDisk(t)
		good, bad := map[string]opinion.Verdict{}, map[string]opinion.Verdict{}
		for i, v := range judgedVolumes {
			partition := fmt.Sprintf("/dev/sda%d", i+1)
			if v.device != partition {
				good[partition] = opinion.NotLooked
			}
			if v.device != "" {
				good[v.device+": "+v.check] = opinion.Agrees
				good[v.device+": files of "+v.looks] = opinion.Agrees
				bad[v.device+": files of "+v.looks] = opinion.Differs
			}
			if v.kind == "xfs" { // Debian packages its check separately (libguestfs-xfs), and the tests do not need it
				good[v.device+": "+v.check] = opinion.NotLooked
			}
		}
		for asked, verdict := range good {
			if bad[asked] == "" {
				bad[asked] = verdict
			}
		}
		dest := requireAgree(t, "align", source, good)

		data := disktest.ReadFile(t, dest)
		for _, v := range judgedVolumes {
			if at := bytes.Index(data, v.words()[:sectorSize]); v.kind != "swap" {
				require.Positive(t, at, v.kind)
				disktest.WriteAt(t, dest, int64(at), []byte{data[at] ^ 1})
			}
		}
		r, rows := judgesSay(t, opinion.All, source, dest)
		require.Equal(t, 5, r.code, r.stderr)
		require.Equal(t, bad, ofLibguestfs(rows), "%v", rows)
	})
	t.Run("no table", func(t *testing.T) {
		source := filepath.Join(t.TempDir(), "disk.raw")
		judgedVolumes[3].makePart(t, source)
		requireAgree(t, "convert", source, map[string]opinion.Verdict{
			"/dev/sda: xfs_repair -n": opinion.NotLooked, "/dev/sda: files of xfs": opinion.Agrees,
		})
	})
	t.Run("BitLocker", func(t *testing.T) {
		source, _ := bitlkDisk(t, bitlkVolumes(t)["bitlk-aes-xts-128-crc"])
		requireAgree(t, "align", source, map[string]opinion.Verdict{
			"/dev/sda1": opinion.NotLooked,
		})
	})
}

// requireAgree makes a copy with the command job, and requires that both judges agree and that libguestfs gives the
// expected answers. It returns the path of the copy.
func requireAgree(t *testing.T, job, source string, want map[string]opinion.Verdict) (dest string) {
	t.Helper()
	dest = filepath.Join(t.TempDir(), "copy.raw")
	require.Equal(t, 0, trueup(t, job, "--to", "raw", source, dest).code)
	r, rows := judgesSay(t, opinion.All, source, dest)
	require.Equal(t, 0, r.code, r.stderr)
	require.Equal(t, want, ofLibguestfs(rows), "%v", rows)
	return dest
}
