package main

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// commands lists all commands for images, and version.
var commands = []string{
	"inspect", "plan", "align", "verify", "convert", "replace", "move", "view", "serve", "scan", "report", "boot",
	"judge", "version",
}

// interrupts are exit codes of all commands that take some time.
const interrupts = "129, 130, 143"

// helpCodes maps commands to the exit codes in their help texts.
var (
	exitLine  = regexp.MustCompile(`(?m)^  ([0-9]+(?:, [0-9]+)*) +\w`)
	helpCodes = map[string][]string{
		"":        {"0", "1", "2", "3", "4", "5", "64", interrupts},
		"inspect": {"0", "1", "2", "3", "4", "64", interrupts},
		"scan":    {"0", "1", "2", "3", "4", "64", interrupts},
		"report":  {"0", "1", "2", "3", "64", interrupts},
		"plan":    {"0", "1", "4", "64", interrupts},
		"align":   {"0", "1", "4", "64", interrupts},
		"convert": {"0", "1", "4", "64", interrupts},
		"replace": {"0", "1", "4", "64", interrupts},
		"move":    {"0", "1", "4", "64", interrupts},
		"view":    {"0", "1", "4", "64", interrupts},
		"verify":  {"0", "1", "4", "5", "64", interrupts},
		"serve":   {"0", "1", "4", "64", interrupts},
		"boot":    {"0", "1", "4", "5", "64", interrupts},
		"judge":   {"0", "1", "4", "5", "64", interrupts},
		"version": {"0", "1", "64", interrupts},
	}
)

func TestHelp(t *testing.T) {
	t.Parallel()
	overview := trueup(t, "--help")
	for _, name := range append([]string{""}, commands...) {
		t.Run("trueup "+name, func(t *testing.T) {
			args := strings.Fields(name)
			r := trueup(t, append(args, "--help")...)
			require.Equal(t, 0, r.code, r.stderr)
			require.Empty(t, r.stderr)
			require.Regexp(t, `(?m)^Examples:\n  trueup `+name, r.stdout)
			_, codes, found := strings.Cut(r.stdout, "\nExit codes:\n")
			require.True(t, found, "they stand at the end")
			var listed []string
			for _, m := range exitLine.FindAllStringSubmatch(codes, -1) {
				listed = append(listed, m[1])
			}
			require.Equal(t, helpCodes[name], listed)
			for line := range strings.Lines(r.stdout) {
				require.LessOrEqual(t, utf8.RuneCountInString(line), 81, "where no terminal says otherwise: %s", line)
			}
			require.Contains(t, overview.stdout, name)
			require.LessOrEqual(t, len(strings.Fields(r.stdout)), 600)
			whole := trueup(t, append([]string{"help"}, args...)...).stdout
			require.GreaterOrEqual(t, len(whole), len(r.stdout)-len("More: trueup help "+name+"\n\n"))
			_, usage, found := strings.Cut(r.stdout, "Usage:\n")
			require.True(t, found && strings.HasSuffix(whole, "Usage:\n"+usage))
			screen := trueup(t, append(args, "-h")...).stdout
			if name != "" {
				require.LessOrEqual(t, strings.Count(screen, "\n"), 24, screen)
				require.Contains(t, screen, "trueup "+name+" --help")
			}
		})
	}
	require.Equal(t, overview.stdout, trueup(t).stdout, "without a command there is nothing to do but to help")
}

// TestExamples runs the examples of the help texts: a wrong example is worse than none.
func TestExamples(t *testing.T) {
	t.Parallel()
	example := regexp.MustCompile(`(?m)^  (trueup .*)$`)
	for _, name := range commands {
		help := trueup(t, name, "--help").stdout
		_, examples, _ := strings.Cut(help, "\nExamples:\n")
		examples, _, _ = strings.Cut(examples, "\n\n")
		found := example.FindAllStringSubmatch(examples, -1)
		require.NotEmpty(t, found)
		for _, m := range found {
			t.Run(m[1], func(t *testing.T) {
				dir := t.TempDir()
				args := strings.Fields(strings.ReplaceAll(m[1], "'", ""))[1:]
				switch name {
				case "scan":
					disktest.Run(t, "mkdir", filepath.Join(dir, "templates"))
					makeExampleDisk(t, filepath.Join(dir, "templates", "xp.vmdk"))
					require.NoError(t, os.WriteFile(filepath.Join(dir, "accepted.txt"),
						[]byte("retired/**  never  nobody starts them\n"), 0o600))
				case "report":
					source := filepath.Join(dir, "xp.vmdk")
					makeExampleDisk(t, source)
					for _, name := range []string{"esx1.ndjson", "esx2.ndjson"} {
						r := trueup(t, "scan", "-o", "json", source)
						require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(r.stdout), 0o600))
					}
				case "inspect", "plan", "replace", "move":
					makeExampleDisk(t, filepath.Join(dir, args[len(args)-1]))
				case "align", "verify", "convert", "view":
					for _, arg := range args[1 : len(args)-1] {
						if filepath.Ext(arg) != "" {
							makeExampleDisk(t, filepath.Join(dir, arg))
						}
					}
				}
				// these do not end, or take long: the command line is valid, and SOURCE is absent
				if name == "serve" || name == "boot" || name == "judge" {
					exampleRun(t, dir, 1, args...)
					return
				}
				if name == "verify" {
					exampleRun(t, dir, 0, append([]string{"align"}, args[1:]...)...)
				}
				if slices.Contains(args, "--by") { // COPY and DISK
					exampleRun(t, dir, 0, "align", args[3], args[2])
				}
				// the disk is misaligned
				exampleRun(t, dir, map[string]int{"inspect": 3, "scan": 3, "report": 3}[name], args...)
			})
		}
	}
}

// makeExampleDisk makes the source of an example in the format of its name: two misaligned partitions, or for a package
// the disks of twoDisks.
func makeExampleDisk(t *testing.T, path string) {
	t.Helper()
	if filepath.Ext(path) == ".ova" {
		disktest.Run(t, "cp", twoDisks(t).ova(t), path)
		return
	}
	raw := formatSparse.rawOf(t, sampleDisk(t))
	// unique disk signatures
	disktest.WriteAt(t, raw, 440, []byte(filepath.Base(path))[:4])
	// The second entry: type 83h, LBA 9000, 4000 sectors.
	disktest.WriteAt(t, raw, mbrEntryAt+mbrEntrySize, []byte{
		0, 0xfe, 0xff, 0xff, 0x83, 0xfe, 0xff, 0xff, 0x28, 0x23, 0, 0, 0xa0,
		0x0f, 0, 0,
	})
	format := map[string]string{".vmdk": "vmdk", ".img": "raw"}[filepath.Ext(path)]
	disktest.Run(t, "qemu-img", "convert", "-f", "raw", "-O", format, raw, path)
}

func exampleRun(t *testing.T, dir string, want int, args ...string) {
	t.Helper()
	cmd := exec.Command(builtPath, args...)
	cmd.Dir = dir
	out, _ := cmd.CombinedOutput()
	require.Equal(t, want, cmd.ProcessState.ExitCode(), "%q: %s", args, out)
}

// TestStartup keeps packages from working before main, since a script calls trueup thousands of times. It counts
// allocations, since time depends on the machine.
func TestStartup(t *testing.T) {
	t.Parallel()
	const limit = 4000 // allocations of one package
	cmd := exec.Command(builtPath, "--help")
	cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	var trace strings.Builder
	cmd.Stderr = &trace
	require.NoError(t, cmd.Run())
	found := regexp.MustCompile(`(?m)^init (\S+) @.* bytes, (\d+) allocs$`).FindAllStringSubmatch(trace.String(), -1)
	require.NotEmpty(t, found, trace.String())
	for _, m := range found {
		allocations, err := strconv.Atoi(m[2])
		require.NoError(t, err)
		require.LessOrEqual(t, allocations, limit, "package %s", m[1])
	}
}

// Help texts list every format and subformat that completion offers.
func TestHelpNamesAllFormats(t *testing.T) {
	t.Parallel()
	offered := func(command, flag string) []string {
		r := trueup(t, "__complete", command, flag, "")
		require.Equal(t, 0, r.code, r.stderr)
		names, _, found := strings.Cut(r.stdout, "\n:")
		require.True(t, found, r.stdout)
		return strings.Split(names, "\n")
	}
	for _, command := range []string{"inspect", "plan", "align", "verify", "convert"} {
		formats := offered(command, "--format")
		require.Subset(t, formats, []string{"raw", "vmdk", "vhd", "vhdx", "qcow2"})
		help := unwrapped(trueup(t, command, "--help").stdout)
		require.Contains(t, help, "require this image FORMAT: "+strings.Join(formats, ", "))
	}
	for _, command := range []string{"align", "convert"} {
		_, help, found := strings.Cut(unwrapped(trueup(t, "help", command).stdout), "--to FORMAT[:SUBFORMAT] ")
		require.True(t, found)
		help, _, _ = strings.Cut(help, " Usage:")
		for _, name := range offered(command, "--to") {
			format, subformat, _ := strings.Cut(name, ":")
			require.Regexp(t, `\b`+format+`(:\S*\b`+subformat+`\b)?`, help)
			require.Regexp(t, `\b`+subformat+`\b`, help)
		}
	}
}

// unwrapped returns a help text as one line.
func unwrapped(help string) string {
	return strings.Join(strings.Fields(help), " ")
}

// A run that a signal ends at its start logs both lines, each once.
func TestLogOfAnInterruptedRun(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(builtPath, "scan", "--files-from", "-", "--log", "-")
	in, err := cmd.StdinPipe() // stays open: the run waits for paths
	require.NoError(t, err)
	defer in.Close()
	out, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewReader(out)
	begins, err := lines.ReadString('\n')
	require.NoError(t, err)
	require.Contains(t, begins, `"msg":"begins"`)
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	rest, err := io.ReadAll(lines)
	require.NoError(t, err)
	require.Error(t, cmd.Wait())
	require.Equal(t, 143, cmd.ProcessState.ExitCode())
	require.Equal(t, 1, strings.Count(string(rest), `"msg":"ended"`), string(rest))
	require.Contains(t, string(rest), `"exit_code":143,"error":"interrupted; no result"`)
}
