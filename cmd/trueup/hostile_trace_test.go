package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/hostile"
)

// nameCall matches a system call that takes a file name or makes a connection, in the output of strace.
type nameCall struct {
	name  string
	paths []string // every quoted argument
	line  string
}

var (
	callLine   = regexp.MustCompile(`^(?:\[pid +\d+\] |\d+ +)?([a-z0-9_]+)\((.*)`)
	quotedText = regexp.MustCompile(`"((?:[^"\\]|\\.)*)"`)
)

// openFiles matches places where a program looks for other programs with an open file, before it confines itself:
// folders of descriptors, their details, and the list of block devices.
var openFiles = regexp.MustCompile(`^(/proc(/\d+/(fd|fdinfo/\d+|comm))?|/sys/class/block)$`)

// openFile matches a descriptor of another program, which may be examined but not opened.
var openFile = regexp.MustCompile(`^/proc/\d+/fd/\d+$`)

// traced runs trueup under strace and returns the calls that take file names or use the network. The command sees no
// block devices: otherwise it would query each loop device of the machine, also of other tests.
func traced(t *testing.T, args ...string) []nameCall {
	t.Helper()
	log := filepath.Join(t.TempDir(), "calls")
	command := []string{
		disktest.Tool(t, "strace"), "-f", "-qq", "-s", "8192", "-o", log,
		"-e", "trace=%file,%network,execve", builtPath,
	}
	privateMount(t, "size=1m", "/sys/class/block", append(command, args...)...) // the exit code is tested elsewhere
	text := disktest.ReadFile(t, log)
	var calls []nameCall
	for line := range strings.Lines(string(text)) {
		m := callLine.FindStringSubmatch(line)
		if m == nil {
			continue // the end of a call that another thread or a signal interrupted
		}
		c := nameCall{name: m[1], line: strings.TrimSpace(line)}
		for _, q := range quotedText.FindAllStringSubmatch(m[2], -1) {
			c.paths = append(c.paths, q[1])
		}
		if strings.HasPrefix(c.name, "readlink") && len(c.paths) > 1 {
			c.paths = c.paths[:1] // the second is the result
		}
		calls = append(calls, c)
	}
	require.NotEmpty(t, calls, "strace cannot trace here")
	require.Equal(t, "execve", calls[0].name)
	return calls[1:]
}

// startup holds the names that any Go program opens at its start: those of `trueup version`.
func startup(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	for _, c := range traced(t, "version") {
		for _, p := range c.paths {
			names[p] = true
		}
	}
	return names
}

// watch lists what a command may examine and open beside the image and its folder.
type watch struct {
	usual map[string]bool // names opened at the start
	seen  []string        // names in the folder that may be examined
	open  []string        // and opened
}

// check runs inspect and align under strace and requires that they examine no other name, open no other file, start no
// program and make no socket.
func (w watch) check(t *testing.T, path string) {
	t.Helper()
	dest := filepath.Join(t.TempDir(), "dest.vmdk")
	for _, args := range [][]string{{"inspect", path}, {"align", path, dest}} {
		for _, c := range traced(t, args...) {
			for _, bad := range []string{"socket", "connect", "execve", "sendto", "bind"} {
				require.NotEqual(t, bad, c.name, c.line)
			}
			opens := strings.HasPrefix(c.name, "open")
			for _, p := range c.paths {
				folder := strings.HasPrefix(path, p+"/") || p == "."
				allowed := w.usual[p] || folder || p == path || p == filepath.Base(path)
				// the command confines itself to the folder of DEST
				allowed = allowed || ownFiles.MatchString(p) || strings.HasPrefix(dest, p)
				// of unfinished work
				for _, name := range []string{
					"%s.trueup", ".%s.partial", ".%s.replaced", ".%s.exchange", ".%s.trial", ".%s.moved",
				} {
					allowed = allowed || !opens && p == fmt.Sprintf(name, filepath.Base(path))
				}
				for _, name := range w.open {
					allowed = allowed || p == name
				}
				for _, name := range w.seen {
					allowed = allowed || (p == name && !opens)
				}
				allowed = allowed || openFiles.MatchString(p) || !opens && openFile.MatchString(p)
				require.True(t, allowed, "touches %q: %s", p, c.line)
			}
		}
	}
}

// TestHostileReferences tests names in images: only their last part is searched, in the image's folder. It runs one of
// each threat, and all with make exhaustive.
func TestHostileReferences(t *testing.T) {
	t.Parallel()
	w := watch{startup(t), []string{"x-flat.vmdk"}, []string{"x.raw", "disk1.vmdk", "twin.vmdk", `x\377y`}}
	child := w // of a parent whose base name is searched
	child.open = append(slices.Clone(w.open), "gone.vhd", "shadow", "sam", "base.raw", "base.vhdx", "base.vmdk")
	threat := regexp.MustCompile(`^T(0[1-8]|31|35|37) |^T09 parent`)
	extent := regexp.MustCompile(`^T0[1-5] `)
	seen := map[string]bool{}
	for _, r := range slices.Concat(hostile.VMDK(), hostile.Nodes(), hostile.VHD(), hostile.VHDX(), hostile.Qcow2()) {
		n := threat.FindString(r.Name)
		if n == "" || seen[n] && !disktest.Exhaustive {
			continue
		}
		seen[n] = true
		allowed := child
		if extent.MatchString(r.Name) {
			allowed = w
		}
		t.Run(r.Name, func(t *testing.T) { allowed.check(t, r.Write(t, t.TempDir())) })
	}
	require.Len(t, seen, 12)
}

// TestWatchSeesExtents verifies that the cases above can fail: it sees that an allowed extent is opened.
func TestWatchSeesExtents(t *testing.T) {
	t.Parallel()
	calls := traced(t, "inspect", flatImage(goodFlat())(t, t.TempDir()))
	require.True(t, slices.ContainsFunc(calls, func(c nameCall) bool {
		return c.name == "openat" && slices.Contains(c.paths, "x-flat.vmdk")
	}), "%q", calls)
}

// Jobs of a process: it decodes images and starts no programs, or it starts programs and decodes nothing.
const (
	decodes      = "decodes"
	orchestrates = "orchestrates"
)

// processes lists the commands that read images or start programs, each with its job and its arguments.
var processes = map[string]struct {
	job  string
	args []string
}{
	"inspect":  {decodes, []string{"source.raw"}},
	"plan":     {decodes, []string{"source.raw"}},
	"align":    {decodes, []string{"source.raw", "copy.raw"}},
	"convert":  {decodes, []string{"--to", "vmdk", "source.raw", "copy.vmdk"}},
	"verify":   {decodes, []string{"source.raw", "source-aligned.raw"}},
	"replace":  {decodes, []string{"source.raw"}},
	"move":     {decodes, []string{"source.raw"}},
	"view":     {decodes, []string{"source.raw", "view.vmdk"}},
	"offset":   {decodes, []string{"source.raw", "shifted.raw"}},
	"serve":    {decodes, []string{"--socket", "socket", "source.raw"}},
	"scan":     {decodes, []string{"."}},
	"undo":     {decodes, []string{"source-replaced.raw"}},
	"resume":   {decodes, []string{"source-replaced.raw"}},
	"finish":   {decodes, []string{"source-replaced.raw"}},
	"handover": {orchestrates, []string{"source.raw", "handed.qcow2"}},
	"boot":     {orchestrates, []string{"source.raw"}},
	"judge":    {orchestrates, []string{"source.raw", "source-aligned.raw"}},
	"bench":    {orchestrates, []string{"."}},
}

// noImages lists the commands that do neither.
var noImages = []string{"completion", "help", "report", "version"}

// TestOneProcessOneJob requires that each command does one job: a command that decodes starts no program except the
// workers of scan, and one that starts programs opens no image in its own process.
func TestOneProcessOneJob(t *testing.T) {
	t.Parallel()
	_, list, _ := strings.Cut(trueup(t, "help").stdout, "Commands:\n")
	list, _, _ = strings.Cut(list, "\n\n")
	commands := regexp.MustCompile(`(?m)^  ([a-z]+) `).FindAllStringSubmatch(list, -1)
	require.Greater(t, len(commands), 10)
	for _, c := range commands {
		_, known := processes[c[1]]
		require.NotEqual(t, slices.Contains(noImages, c[1]), known, "%s has one job, and it stands here", c[1])
	}
	made := t.TempDir()
	for _, args := range [][]string{
		{"convert", "--to", "raw", sampleDisk(t), "source.raw"},
		{"align", "source.raw", "source-aligned.raw"},
	} {
		cmd := exec.Command(builtPath, args...)
		cmd.Dir = made
		require.NoError(t, cmd.Run())
	}
	for name, c := range processes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			disktest.Run(t, "cp", "-a", made+"/.", dir)
			disktest.Run(t, "cp", filepath.Join(dir, "source.raw"), filepath.Join(dir, "source-replaced.raw"))
			require.Equal(t, 0, trueup(t, "replace", filepath.Join(dir, "source-replaced.raw")).code)
			fails := map[string]string{}
			for _, program := range []string{"qemu-img", "qemu-system-x86_64", "guestfish", "fio"} {
				fails[program] = "exit 1"
			}
			o := fakes(t, fails)
			p := tracedProcess(t, dir, o.path, append([]string{name}, c.args...))
			switch c.job {
			case decodes:
				want := []string(nil)
				if name == "scan" { // its workers decode
					want = []string{"/proc/self/exe"}
				}
				require.Equal(t, want, slices.Compact(p.programs))
				if name != "scan" && name != "resume" { // which has nothing to do
					require.Positive(t, p.opened, "it opens the image")
				}
			case orchestrates:
				require.Zero(t, p.opened, "it opens no image")
				require.NotEmpty(t, p.programs)
			}
		})
	}
}

// process counts image opens of a process, and lists the programs executed by it and its children.
type process struct {
	opened   int
	programs []string
}

var (
	straceCall   = regexp.MustCompile(`^(\d+) +(?:<\.\.\. )?(\w+)(.*)$`)
	straceChild  = regexp.MustCompile(` = (\d+)$`)
	straceOpen   = regexp.MustCompile(`"([^"]*source[^"]*\.raw)".* = \d+$`)
	straceServes = regexp.MustCompile(`openat\(.*source\.raw".* = \d+`)
	straceStart  = regexp.MustCompile(`^\("([^"]*)"`)
)

// tracedProcess runs trueup in a folder, with fake programs first in PATH. A server is ended when it has opened its
// image.
func tracedProcess(t *testing.T, dir, path string, args []string) (p process) {
	t.Helper()
	log := filepath.Join(t.TempDir(), "calls")
	strace := []string{"-f", "-qq", "-s", "4096", "-o", log, "-e", "trace=/^(execve|open|openat|clone|clone3|v?fork)$"}
	cmd := exec.Command(disktest.Tool(t, "strace"), slices.Concat(strace, []string{builtPath}, args)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+path+":"+os.Getenv("PATH"))
	require.NoError(t, cmd.Start())
	if args[0] == "serve" {
		var calls string
		disktest.WaitFor(t, "an opened image", func() bool {
			b, _ := os.ReadFile(log) // it may not exist yet
			calls = string(b)
			return straceServes.MatchString(calls)
		})
		pid, err := strconv.Atoi(straceCall.FindStringSubmatch(strings.SplitN(calls, "\n", 2)[0])[1])
		require.NoError(t, err)
		require.NoError(t, syscall.Kill(pid, syscall.SIGINT))
	}
	_ = cmd.Wait() // the command itself may fail
	own, begun := map[string]bool{}, map[string]string{}
	lines := strings.Split(string(disktest.ReadFile(t, log)), "\n")
	for _, line := range lines { // threads first: a call of one can precede the end of the call that created it
		m := straceCall.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		if len(own) == 0 {
			own[m[1]] = true
		}
		if !strings.HasPrefix(m[2], "clone") {
			continue
		}
		flags := begun[m[1]] + m[3]
		if begun[m[1]] = flags; !strings.HasSuffix(line, "<unfinished ...>") {
			delete(begun, m[1])
		}
		if child := straceChild.FindStringSubmatch(line); child != nil && strings.Contains(flags, "CLONE_THREAD") {
			own[child[1]] = own[m[1]]
		}
	}
	for i, line := range lines {
		m := straceCall.FindStringSubmatch(line)
		switch {
		case m == nil:
		case m[2] == "execve" && i > 0:
			if program := straceStart.FindStringSubmatch(m[3]); program != nil {
				p.programs = append(p.programs, program[1])
			}
		case own[m[1]] && strings.HasPrefix(m[2], "open") && straceOpen.MatchString(m[3]):
			p.opened++
		}
	}
	return p
}

// confinedCommands lists all commands that read images, with IMAGE for one of them, COPY for a copy beside it, and DEST
// for the output.
var confinedCommands = map[string][]string{
	"inspect":                {"inspect", "IMAGE"},
	"plan":                   {"plan", "IMAGE"},
	"align":                  {"align", "IMAGE", "DEST"},
	"convert":                {"convert", "IMAGE", "DEST"},
	"verify":                 {"verify", "IMAGE", "COPY"},
	"scan without processes": {"scan", "--isolation", "none", "IMAGE"},
}

func copyOf(image string) string { return image + ".copy.vmdk" }

func confinedArgs(args []string, image, dest string) (out []string) {
	for _, a := range args {
		out = append(out, strings.NewReplacer("IMAGE", image, "COPY", copyOf(image), "DEST", dest).Replace(a))
	}
	return out
}

var (
	// strace splits a call into two lines if another thread calls in between.
	opensImage = regexp.MustCompile(`open[a-z0-9]*\(.*"(?:[^"]*/)?xp\.vmdk", [^P]*( = \d|<unfinished)`)
	restricts  = regexp.MustCompile(`(landlock_restrict_self|seccomp)(\(| resumed>).*= 0`)
)

// needsLandlock skips a test if a system call shows that the kernel has no Landlock. The program's own report does not
// count: a command that fails to confine itself would look like one on an old kernel.
func needsLandlock(t *testing.T) {
	t.Helper()
	if err := hasLandlock(); err != nil {
		t.Skipf("this kernel has no Landlock: %v", err)
	}
}

func hasLandlock() error {
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0,
		unix.LANDLOCK_CREATE_RULESET_VERSION); errno != 0 {
		return errno
	}
	return nil
}

// A command restricts itself before it opens an image.
func TestCommandsConfineThemselves(t *testing.T) {
	strace := disktest.Tool(t, "strace")
	image := sampleDisk(t)
	disktest.Run(t, "cp", image, copyOf(image))
	needsLandlock(t)
	for name, args := range confinedCommands {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log := filepath.Join(t.TempDir(), "calls")
			run(t, strace, append([]string{
				"-f", "-qq", "-s", "4096", "-o", log, "-e", "trace=/^(open.*|landlock_restrict_self|seccomp)$",
				builtPath,
			}, confinedArgs(args, image, filepath.Join(t.TempDir(), "dest.vmdk"))...)...)
			text := disktest.ReadFile(t, log)
			requireConfined(t, string(text))
		})
	}
}

// requireConfined requires of the calls of a command that it restricted itself before it opened the image.
func requireConfined(t *testing.T, calls string) {
	t.Helper()
	done := map[string]bool{}
	opened := false
	for line := range strings.Lines(calls) {
		if m := restricts.FindStringSubmatch(line); m != nil {
			done[m[1]] = true
		}
		if opensImage.MatchString(line) {
			opened = true
			require.Len(t, done, 2, "opened before it is restricted: %s", line)
		}
	}
	require.True(t, opened, "%s", calls)
}

// If the kernel lacks a feature, a command continues with a warning and reports the lack in JSON. With
// --require-sandbox, it fails before it reads anything.
func TestCommandsWithoutLandlock(t *testing.T) {
	strace := disktest.Tool(t, "strace")
	image := sampleDisk(t)
	disktest.Run(t, "cp", image, copyOf(image))
	lacking := []string{
		"-f", "-qq", "-o", "/dev/null", "-e", "trace=landlock_create_ruleset", "-e",
		"inject=landlock_create_ruleset:error=ENOSYS", builtPath,
	}
	for name, args := range confinedCommands {
		if strings.HasPrefix(name, "scan") {
			continue // which was told to continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := trueup(t, confinedArgs(args, image, filepath.Join(t.TempDir(), "dest.vmdk"))...)
			dest := filepath.Join(t.TempDir(), "dest.vmdk")
			now := confinedArgs(args, image, dest)
			r := run(t, strace, append(append(lacking, now...), "--require-sandbox")...)
			require.Equal(t, 1, r.code, r.stdout)
			require.Contains(t, r.stderr,
				`--require-sandbox: isolation is "none", not "sandbox" (landlock: the kernel has none); `+
					`nothing was read`)
			require.NoFileExists(t, dest)

			r = run(t, strace, append(append(lacking, now...), "--json")...)
			require.Equal(t, want.code, r.code, r.stderr)
			require.Contains(t, r.stderr,
				`trueup: warning: isolation is "none", not "sandbox" (landlock: the kernel has none); `)
			validateOutput(t, append(now, "--json"), r.stdout)
			var head struct {
				Isolation struct{ Achieved, Note string }
			}
			require.NoError(t, json.Unmarshal([]byte(r.stdout), &head))
			require.Equal(t, "none", head.Isolation.Achieved)
			require.Equal(t, "landlock: the kernel has none", head.Isolation.Note)
		})
	}
}

// A scan with weaker isolation than requested warns, or is refused with --require-sandbox.
func TestScanWithoutLandlock(t *testing.T) {
	t.Parallel()
	strace := disktest.Tool(t, "strace")
	dir := filepath.Dir(sampleDisk(t))
	lacking := []string{
		"-f", "-qq", "-o", "/dev/null", "-e", "trace=landlock_create_ruleset", "-e",
		"inject=landlock_create_ruleset:error=ENOSYS", builtPath, "scan", "-o", "json",
	}
	r := run(t, strace, append(lacking, "--require-sandbox", dir)...)
	require.Equal(t, 1, r.code, r.stdout)
	require.Contains(t, r.stderr,
		`--require-sandbox: isolation is "process", not "sandbox" (landlock: the kernel has none`)

	r = run(t, strace, append(lacking, dir)...)
	require.Equal(t, 3, r.code, r.stderr)
	require.Contains(t, r.stderr,
		`trueup: warning: isolation is "process", not "sandbox" (landlock: the kernel has none`)
	require.Equal(t, "process", readScan(t, r).sum.Isolation.Achieved)

	r = trueup(t, "scan", "--require-sandbox", "--isolation", "process", dir)
	require.Equal(t, 64, r.code)
	require.Contains(t, r.stderr, "--require-sandbox and --isolation process contradict each other")
}
