package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/opinion"
)

// opinionCase is a machine with some of the programs that judge, and a folder for temporary files.
type opinionCase struct{ path, temporary string }

// fakes makes a machine with programs that are scripts. Another process writes these: files that this one had open to
// write might be busy.
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
		"LIBGUESTFS_APPEND=mitigations=off", "LIBGUESTFS_CACHEDIR=/var/tmp") // where it keeps its appliance
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	require.NoError(t, cmd.Start())
	return cmd, &stdout, &stderr
}

// run runs it to its end, at which nothing is left of what the judges had.
func (o opinionCase) run(t *testing.T, args ...string) result {
	t.Helper()
	cmd, stdout, stderr := o.start(t, args...)
	_ = cmd.Wait() // its exit code says it
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

// Scripts of qemu-img.
const (
	asVersion = "case $1 in --version) echo 'qemu-img version 9.9.9'; exit;; check) echo '{\"check-errors\": 0}'; " +
		"exit;; esac\n"
	agrees      = asVersion + "echo Images are identical."
	contradicts = asVersion + "echo 'Content mismatch at offset 7!'; exit 1"
)

// judgedAs returns what the judges said, by judge and question.
func judgedAs(rows opinion.Table) map[string]opinion.Verdict {
	all := map[string]opinion.Verdict{}
	for _, r := range rows {
		judge, _, _ := strings.Cut(r.Judge, " ")
		all[judge+": "+r.Asked] = r.Verdict
	}
	return all
}

const byBytes = "every byte against the planned disk"

// opinionOf are the rows in the object of a command.
type opinionOf struct {
	Equal         bool          `json:"equal"`
	SecondOpinion opinion.Table `json:"second_opinion"`
}

// The files of a copy have other names until it was judged, so that each format shows whether qemu-img finds them.
func TestSecondOpinionOnEveryFormat(t *testing.T) {
	t.Parallel()
	disktest.Tool(t, "qemu-img")
	source := sampleDisk(t)
	for _, format := range []string{
		"raw", "vmdk:monolithicSparse", "vmdk:monolithicFlat", "vmdk:twoGbMaxExtentSparse", "vmdk:twoGbMaxExtentFlat",
		"vmdk:streamOptimized", "vhd:fixed", "vhd:dynamic", "vhdx", "qcow2",
	} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			kind, _, _ := strings.Cut(format, ":")
			dest := filepath.Join(t.TempDir(), "copy of, it=all."+kind)
			wrote := trueupJSON[opinionOf](t, 0, "align", "--second-opinion=qemu-img", "--to", format, source, dest)
			want := map[string]opinion.Verdict{
				"trueup: " + byBytes: opinion.Agrees, "qemu-img: " + byBytes: opinion.Agrees,
				"qemu-img: check of the container": opinion.Agrees,
			}
			if kind == "raw" || kind == "vhd" {
				want["qemu-img: check of the container"] = opinion.NotLooked
			}
			require.Equal(t, want, judgedAs(wrote.SecondOpinion))
			again := trueupJSON[opinionOf](t, 0, "verify", "--second-opinion=qemu-img", source, dest)
			require.Equal(t, want, judgedAs(again.SecondOpinion))
		})
	}
}

// A judge that contradicts keeps a copy from its name, and makes a proof of trueup alone no success.
func TestSecondOpinionThatDiffers(t *testing.T) {
	t.Parallel()
	source := sampleDisk(t)
	dest, fresh := sampleDisk(t), filepath.Join(t.TempDir(), "fresh.vmdk")
	require.Equal(t, 0, trueup(t, "align", "--force", source, dest).code)
	o := fakes(t, map[string]string{"qemu-img": contradicts})
	r := o.run(t, "verify", "--json", "--second-opinion", source, dest)
	require.Equal(t, 5, r.code, r.stderr)
	require.Contains(t, r.stdout, `"equal": true`)
	require.Contains(t, r.stdout, "Content mismatch at offset 7!")
	require.Contains(t, r.stdout, "guestfish is not installed; on Debian: apt install libguestfs-tools")
	r = o.run(t, "verify", "--second-opinion", source, dest)
	require.Equal(t, 5, r.code, r.stderr)
	for _, line := range []string{
		"agrees         trueup, " + byBytes + ": identical", "differs        qemu-img 9.9.9, " + byBytes,
		"not installed  libguestfs, the copy",
	} {
		require.Contains(t, r.stdout, line)
	}
	for _, job := range []string{"align", "convert"} {
		r = o.run(t, job, "--json", "--second-opinion", source, fresh)
		require.Equal(t, 5, r.code, r.stderr)
		require.Equal(t, "verify", errorCode(t, r))
		require.Contains(t, r.stderr,
			"the second opinion differs: qemu-img 9.9.9, "+byBytes+": Content mismatch at offset 7!; "+
				"nothing was published")
		left, err := os.ReadDir(filepath.Dir(fresh))
		require.NoError(t, err)
		require.Empty(t, left)
	}
}

// Programs that are missing are named. At least one must look, and one that was asked for by name must.
func TestSecondOpinionOfAbsentPrograms(t *testing.T) {
	t.Parallel()
	source, fresh := sampleDisk(t), filepath.Join(t.TempDir(), "fresh.vmdk")
	without, with := fakes(t, nil), fakes(t, map[string]string{"qemu-img": agrees})
	for _, c := range []struct {
		on       opinionCase
		flag     string
		code     int
		contains string
	}{
		{without, "--second-opinion", 1, "apt install qemu-utils"},
		{without, "--second-opinion", 1, "apt install libguestfs-tools"},
		{with, "--second-opinion=libguestfs", 1, "no judge looked at anything"},
		{with, "--second-opinion=none", 64, `"none", want one of all, qemu-img, libguestfs`},
		{fakes(t, map[string]string{"qemu-img": "exit 3"}), "--second-opinion", 1, "exit code 3"},
		{
			fakes(t, map[string]string{"qemu-img": agrees, "guestfish": "exit 3"}), "--second-opinion", 1,
			"--second-opinion=qemu-img asks the other judge alone",
		},
		{with, "--second-opinion", 0, ""},
	} {
		r := c.on.run(t, "align", "--json", c.flag, source, fresh)
		require.Equal(t, c.code, r.code, r.stderr)
		require.Contains(t, r.stderr, c.contains)
		if c.code != 0 {
			require.NoFileExists(t, fresh)
		}
	}
	r := without.run(t, "verify", "--json", "--second-opinion", source, fresh)
	require.Equal(t, 1, r.code, r.stderr)
	require.Contains(t, r.stdout, `"exit_code": 1`) // beside the proof of trueup
	require.Contains(t, r.stdout, `"equal": true`)
}

// A judge that hangs ends with the run, however that ends, and its files go.
func TestSecondOpinionIsInterrupted(t *testing.T) {
	t.Parallel()
	source := sampleDisk(t)
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			fresh, pids := filepath.Join(t.TempDir(), "fresh.vmdk"), filepath.Join(t.TempDir(), "pid")
			o := fakes(t, map[string]string{"guestfish": "echo $$ > '" + pids + ".new'; mv '" + pids + ".new' '" +
				pids +
				"'; sleep 1000 & wait"})
			cmd, stdout, stderr := o.start(t, "align", "--json", "--no-progress", "--second-opinion", source, fresh)
			disktest.WaitFor(t, "the judge", func() bool {
				_, err := os.Stat(pids)
				return err == nil
			})
			require.NoError(t, cmd.Process.Signal(s))
			_ = cmd.Wait()
			if s == syscall.SIGTERM {
				r := result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
				require.Equal(t, 143, r.code, r.stderr)
				require.Equal(t, "interrupted", errorCode(t, r))
			}
			disktest.WaitFor(t, "the clerk to end", func() bool {
				left, err := os.ReadDir(o.temporary)
				return err == nil && len(left) == 0
			})
			require.NoFileExists(t, fresh)
			pid := disktest.ReadFile(t, pids)
			require.NoDirExists(t, "/proc/"+strings.TrimSpace(string(pid)))
		})
	}
}

// A clerk that is killed alone leaves nothing either: the confined run removes the sockets and their folder.
func TestClerkIsKilled(t *testing.T) {
	t.Parallel()
	source, fresh := sampleDisk(t), filepath.Join(t.TempDir(), "fresh.vmdk")
	begun := filepath.Join(t.TempDir(), "begun")
	o := fakes(t, map[string]string{"guestfish": "touch '" + begun + "'; exec sleep 1000"})
	cmd, stdout, stderr := o.start(t, "align", "--json", "--no-progress", "--second-opinion", source, fresh)
	disktest.WaitFor(t, "the judge", func() bool {
		_, err := os.Stat(begun)
		return err == nil
	})
	clerks, err := exec.Command("pgrep", "-P", strconv.Itoa(cmd.Process.Pid)).Output()
	require.NoError(t, err)
	clerk, err := strconv.Atoi(strings.TrimSpace(string(clerks)))
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(clerk, syscall.SIGKILL))
	_ = cmd.Wait()
	r := result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
	require.Equal(t, 1, r.code, r.stderr)
	require.Contains(t, r.stderr, "clerk of the second opinion")
	o.requireGone(t)
	require.NoFileExists(t, fresh)
}

// What other programs cannot open, or would take for something else, is refused before anything is written.
func TestSecondOpinionOnPackagesAndSnapshots(t *testing.T) {
	t.Parallel()
	source, packed := sampleDisk(t), twoDisks(t).ova(t)
	o := fakes(t, map[string]string{"qemu-img": agrees})
	r := o.run(t, "align", "--second-opinion", packed, filepath.Join(t.TempDir(), "fresh.ova"))
	require.Equal(t, 64, r.code)
	require.Contains(t, r.stderr, "judges one disk")
	require.Equal(t, 64, o.run(t, "verify", "--second-opinion", packed, packed).code)
	r = o.run(t, "verify", "--second-opinion", source, packed+"!disk1.vmdk")
	require.Equal(t, 64, r.code, r.stderr)
	require.Contains(t, r.stderr, "extract it first")
	fresh := filepath.Join(t.TempDir(), "fresh.raw")
	require.Equal(t, 0, o.run(t, "align", "--second-opinion", "--to", "raw", packed+"!disk1.vmdk", fresh).code)
	require.Equal(t, 0, o.run(t, "verify", "--second-opinion", packed+"!disk1.vmdk", fresh).code)

	top := filepath.Join(filepath.Dir(fresh), "top.qcow2")
	disktest.Run(t, "qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", filepath.Base(fresh), top)
	r = trueup(t, "verify", packed+"!disk1.vmdk", top)
	require.Equal(t, 0, r.code, r.stderr)
	r = o.run(t, "verify", "--second-opinion", packed+"!disk1.vmdk", top)
	require.Equal(t, 64, r.code, r.stderr)
	require.Contains(t, r.stderr, "is a snapshot, which other programs may take for complete; consolidate it first")
}

// judgesSay runs a job with the judges of this machine, and returns what they said.
func judgesSay(t *testing.T, args ...string) (result, opinion.Table) {
	t.Helper()
	disktest.Tool(t, "qemu-img")
	o := fakes(t, nil)
	o.path = os.Getenv("PATH")
	r := o.run(t, args...)
	var found opinionOf
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &found), r.stderr)
	return r, found.SecondOpinion
}

// ofLibguestfs returns what libguestfs said, by question.
func ofLibguestfs(rows opinion.Table) map[string]opinion.Verdict {
	all := map[string]opinion.Verdict{}
	for judged, v := range judgedAs(rows) {
		if asked, found := strings.CutPrefix(judged, opinion.Libguestfs+": "); found {
			all[asked] = v
		}
	}
	return all
}

// Each judge finds, on its own, a byte that is another one in a file of the copy. libguestfs starts two guests, and is
// asked in make exhaustive alone. TestOpinions has the other file systems.
func TestSecondOpinionOfLibguestfs(t *testing.T) {
	t.Parallel()
	judges := "--second-opinion=qemu-img"
	want := map[string]opinion.Verdict{
		"trueup: " + byBytes:               opinion.Differs,
		"qemu-img: " + byBytes:             opinion.Differs,
		"qemu-img: check of the container": opinion.NotLooked,
	}
	if disktest.Exhaustive {
		requireKernel(t)
		judges = "--second-opinion"
		want["libguestfs: /dev/sda1: fsck.fat -n"] = opinion.Agrees
		want["libguestfs: /dev/sda1: files of vfat"] = opinion.Differs
		want["libguestfs: inspect-os"] = opinion.NotLooked
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
	r, rows := judgesSay(t, "verify", "--json", judges, path("disk"), path("fresh"))
	require.Equal(t, 5, r.code, r.stderr)
	require.Contains(t, r.stdout, `"equal": false`)
	require.Equal(t, want, judgedAs(rows), "%v", rows)
	for _, r := range rows {
		if r.Asked == "/dev/sda1: files of vfat" {
			require.Equal(t, `SHA-256 differs: "./words.txt"`, r.Said)
		}
	}
}

// startGuestfish starts the guest by a command of the shell, and returns what the script printed.
func startGuestfish(t *testing.T, command, script string) string {
	t.Helper()
	disktest.Tool(t, "guestfish")
	ctx, cancel := context.WithTimeout(context.Background(), disktest.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", "exec "+command)
	cmd.Env = append(os.Environ(), "LIBGUESTFS_BACKEND=direct", "LIBGUESTFS_BACKEND_SETTINGS=force_tcg",
		"LIBGUESTFS_APPEND=mitigations=off") // against faults of processors; it starts in five sixths of the time
	cmd.Stdin = strings.NewReader(script)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	// QEMU is a child of guestfish and has to go with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	require.NoError(t, cmd.Run(), "guestfish\n%s%s", stdout.String(), stderr.String())
	if stderr.Len() > 0 {
		t.Log(stderr.String())
	}
	return stdout.String()
}

// requireKernel skips where libguestfs is missing or has no kernel to start, by the rule of disktest.DataFile.
func requireKernel(t *testing.T) {
	t.Helper()
	disktest.Tool(t, "guestfish")
	kernels, err := filepath.Glob("/boot/vmlinuz-*")
	require.NoError(t, err)
	if len(kernels) == 0 {
		disktest.DataFile(t, "/boot/vmlinuz-*")
	}
}
