package main

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/trueup/trueup/internal/disktest"
)

// confinedCommands are all that read images, with IMAGE for one of them, COPY for a copy beside it, and DEST for the
// file that is written.
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
	// strace divides a call in two lines where another thread calls in between.
	opensImage = regexp.MustCompile(`open[a-z0-9]*\(.*"(?:[^"]*/)?xp\.vmdk", [^P]*( = \d|<unfinished)`)
	restricts  = regexp.MustCompile(`(landlock_restrict_self|seccomp)(\(| resumed>).*= 0`)
)

// needsLandlock skips a test where the kernel has none. The kernel is asked, not the program: a command that does not
// confine itself must not pass for an old kernel.
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

// Where the kernel lacks something, a command goes on with a warning and says so in JSON, or refuses with
// --require-sandbox.
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
			continue // which was told to go without
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

// A scan whose workers have less than they should warns too, or refuses.
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
