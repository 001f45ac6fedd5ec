package main

import (
	"bufio"
	"io"
	"maps"
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

// commands are all that do something with images, and version.
var commands = []string{
	"inspect", "plan", "align", "verify", "convert", "replace", "move", "view", "serve", "scan", "report", "boot",
	"judge", "version",
}

// interrupts are the exit codes of all commands that take some time.
const interrupts = "129, 130, 143"

// helpCodes are the exit codes that the help of each command lists: those with which it can end.
var (
	exitLine  = regexp.MustCompile(`(?m)^  ([0-9]+(?:, [0-9]+)*) +\w`)
	helpCodes = map[string][]string{
		"":        {"0", "1", "2", "3", "4", "5", "64", interrupts},
		"inspect": {"0", "1", "2", "3", "64", interrupts},
		"scan":    {"0", "1", "2", "3", "64", interrupts},
		"report":  {"0", "1", "2", "3", "64", interrupts},
		"plan":    {"0", "1", "4", "64", interrupts},
		"align":   {"0", "1", "4", "64", interrupts},
		"convert": {"0", "1", "4", "64", interrupts},
		"replace": {"0", "1", "4", "64", interrupts},
		"move":    {"0", "1", "4", "64", interrupts},
		"view":    {"0", "1", "4", "64", interrupts},
		"verify":  {"0", "1", "5", "64", interrupts},
		"serve":   {"0", "1", "4", "64", interrupts},
		"boot":    {"0", "1", "4", "5", "64", interrupts},
		"judge":   {"0", "1", "5", "64", interrupts},
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

// TestExamples runs what the help texts show: an example that is wrong is worse than none.
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
					exampleResults(t, dir)
				case "inspect", "plan", "replace", "move":
					makeExampleDisk(t, filepath.Join(dir, args[len(args)-1]))
				case "align", "verify", "convert", "view":
					for _, arg := range args[1 : len(args)-1] {
						if filepath.Ext(arg) != "" {
							makeExampleDisk(t, filepath.Join(dir, arg))
						}
					}
				}
				// these do not end, or take long: the command line is right, and SOURCE is absent
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

// exampleResults makes the results of scans that examples name.
func exampleResults(t *testing.T, dir string) {
	t.Helper()
	source := filepath.Join(dir, "xp.vmdk")
	makeExampleDisk(t, source)
	for _, name := range []string{"esx1.ndjson", "esx2.ndjson"} {
		r := trueup(t, "scan", "-o", "json", source)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(r.stdout), 0o600))
	}
}

// makeExampleDisk makes the source that an example names: two misaligned partitions, in the format of the name. A
// package is that of twoDisks.
func makeExampleDisk(t *testing.T, path string) {
	t.Helper()
	if filepath.Ext(path) == ".ova" {
		disktest.Run(t, "cp", twoDisks(t).ova(t), path)
		return
	}
	raw := formatSparse.rawOf(t, sampleDisk(t))
	// the disk signature: no two disks of a machine have the same
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

func TestWrongCommandLines(t *testing.T) {
	t.Parallel()
	source := sampleDisk(t)
	before := hashFolder(t, filepath.Dir(source))
	dest := filepath.Join(t.TempDir(), "aligned.vmdk")
	all := wrongCommands(source, dest)
	maps.Copy(all, wrongValues(source, dest))
	for name, args := range all {
		t.Run(name, func(t *testing.T) {
			text := trueup(t, args...)
			require.Equal(t, 64, text.code, text.stderr)
			require.Empty(t, text.stdout)
			requireOneLine(t, text.stderr)
			for _, where := range []int{0, len(args)} {
				withJSON := append(append(append([]string{}, args[:where]...), "--json"), args[where:]...)
				if name == "a flag without its value" && where > 0 {
					continue // --json would be the value
				}
				r := run(t, builtPath, withJSON...)
				require.Equal(t, 64, r.code, r.stderr)
				require.Equal(t, "usage", errorCode(t, r))
				requireOneLine(t, r.stderr)
			}
			require.Equal(t, before, hashFolder(t, filepath.Dir(source)))
			require.Empty(t, folderNames(t, filepath.Dir(dest)))
		})
	}
}

// wrongCommands are command lines without what they need, or with what their commands do not have.
func wrongCommands(source, dest string) map[string][]string {
	return map[string][]string{
		"unknown command":               {"frobnicate"},
		"a command that is cut":         {"inspec", source},
		"unknown flag":                  {"inspect", "--frobnicate", source},
		"unknown short flag":            {"inspect", "-x", source},
		"a flag of another command":     {"inspect", "--force", source},
		"no image":                      {"inspect"},
		"two images to plan":            {"plan", source, source},
		"no image to plan":              {"plan"},
		"no dest":                       {"align", source},
		"three files":                   {"align", source, dest, dest},
		"nothing to verify against":     {"verify", source},
		"nothing to convert to":         {"convert", source},
		"version takes nothing":         {"version", "x"},
		"help for no command":           {"help", "frobnicate"},
		"a flag without its value":      {"inspect", source, "--boundary"},
		"no such output":                {"inspect", "-o", "yaml", source},
		"no such output of version":     {"version", "-o", "yaml"},
		"no such format":                {"inspect", "--format", "floppy", source},
		"sectors of 1024 bytes":         {"inspect", "--sector-size", "1024", source},
		"sectors of 0 bytes":            {"plan", "--sector-size", "0", source},
		"negative sectors":              {"align", "--sector-size=-512", source, dest},
		"sectors of nothing":            {"verify", "--sector-size", "", source, dest},
		"sectors of sectors":            {"convert", "--sector-size", "8x", source, dest},
		"no such target":                {"align", "--to", "floppy", source, dest},
		"no such subformat":             {"align", "--to", "vmdk:streamOptimised", source, dest},
		"a subformat of raw":            {"convert", "--to", "raw:sparse", source, dest},
		"no such proof":                 {"align", "--verify", "none", source, dest},
		"no such progress":              {"align", "--progress", "loud", source, dest},
		"no such progress of verify":    {"verify", "--progress", "loud", source, dest},
		"no jobs":                       {"align", "--jobs", "0", source, dest},
		"negative jobs":                 {"convert", "--jobs", "-1", source, dest},
		"too many jobs":                 {"verify", "--jobs", "65", source, dest},
		"a partition that is no number": {"plan", "--partition", "one", source},
		"a partition that is not there": {"plan", "--partition", "2", source},
		"two choices of partitions":     {"plan", "--data-only", "--partition", "1", source},
		"two choices, align":            {"align", "--partition", "1", "--data-only", source, dest},
		"data only, of inspect":         {"inspect", "--data-only", source},
		"partition 0":                   {"align", "--partition", "0", source, dest},
		"dest is the source":            {"align", source, source},
		"dest is a folder":              {"align", source, filepath.Dir(dest) + "/"},
		"dest has no name":              {"align", source, ""},
		"a journal without a name":      {"move", "--journal", "", source},
		"undo by a journal of no name":  {"undo", "--journal", "", source},
		"the disk as its journal":       {"move", "--journal", source, source},
		"resume by the disk":            {"resume", "--journal", source, source},
		"a folder as the journal":       {"move", "--journal", filepath.Dir(dest), source},
		"undo by a device":              {"undo", "--journal", "/dev/null", source},
		"a report of nothing":           {"report"},
		"a report of labels":            {"report", "host=esx1"},
		"a report of a label of odd":    {"report", "Host=esx1", source},
		"a report of a file twice":      {"report", source, source},
		"a report of what is not there": {"report", source + ".ndjson"},
		"a report of a folder":          {"report", filepath.Dir(source)},
		"no such format of a report":    {"report", "-o", "yaml", source},
		"no such level of a report":     {"report", "--fail-on", "soon", source},
		"a level that is a boundary":    {"scan", "--fail-on", "1M", source},
		"little memory":                 {"boot", "--memory", "15", source},
		"a shard beyond the last":       {"scan", "--shard", "5/4", source},
		"a label without a value":       {"scan", "--label", "host", source},
		"a label of an odd key":         {"scan", "--label", "Host=x", source},
		"a label of nothing":            {"scan", "--label", "host=", source},
		"a label twice":                 {"scan", "--label", "host=x", "--label", "host=y", source},
		"a shard of nothing":            {"scan", "--shard", "", source},
		"an exchange in a shard": {
			"scan", "--shard", "1/4", "--replace", "--script", filepath.Join(filepath.Dir(dest), "s.sh"), source,
		},
	}
}

// wrongValues are boundaries, storages and arguments of scan that cannot be.
func wrongValues(source, dest string) map[string][]string {
	return map[string][]string{
		"boundary 3K, no power of two":    {"inspect", "--boundary", "3K", source},
		"boundary 2K, below the least":    {"inspect", "--boundary", "2K", source},
		"boundary 2G, above the greatest": {"plan", "--boundary", "2G", source},
		"boundary 65537":                  {"plan", "--boundary", "65537", source},
		"boundary 63s, 32256 bytes":       {"align", "--boundary", "63s", source, dest},
		"boundary 0":                      {"align", "--boundary", "0", source, dest},
		"boundary -4K":                    {"inspect", "--boundary=-4K", source},
		"boundary 4.5K":                   {"inspect", "--boundary", "4.5K", source},
		"boundary 64X":                    {"inspect", "--boundary", "64X", source},
		"boundary of nothing":             {"inspect", "--boundary", "", source},
		"boundary beyond 64 bits":         {"inspect", "--boundary", "99999999999999999999", source},
		"no such storage":                 {"inspect", "--storage", "emc", source},
		"a storage of odd blocks":         {"inspect", "--storage", "3K", source},
		"storage of nothing":              {"inspect", "--storage", "", source},
		"a storage of plan":               {"plan", "--storage", "4K", source},
		"boundary that wraps at 64 bits":  {"inspect", "--boundary", "16777216T", source},
		"nothing to scan":                 {"scan"},
		"no such output of scan":          {"scan", "-o", "xml", source},
		"no such level":                   {"scan", "--fail-on", "2M", source},
		"no such isolation":               {"scan", "--isolation", "vm", source},
		"scan without workers":            {"scan", "--jobs", "0", source},
		"changed since when":              {"scan", "--changed", source},
		"a glob that does not end":        {"scan", "--include", "[a", source},
		"no list":                         {"scan", "--files-from", source + ".absent"},
		"no list of accepted ones":        {"scan", "--ignore", source + ".absent", source},
		"an image is no list":             {"scan", "--ignore", source, source},
		"a report over an image":          {"scan", "--out", source, source},
		"a script over an image":          {"scan", "--script", source, source},
		"a report over the script":        {"scan", "--out", dest, "--script", dest, source},
		"a table over results":            {"scan", "--since", dest, "--out", dest, source},
		"changes over results":            {"scan", "--since", dest, "--out", dest, "--changed", source},
		"since no scan":                   {"scan", "--since", dest, source},
		"since a folder":                  {"scan", "--since", filepath.Dir(dest), source},
	}
}

// TestBoundaries compares what is accepted with its number of bytes.
func TestBoundaries(t *testing.T) {
	t.Parallel()
	source := sampleDisk(t)
	for text, want := range map[string]int64{
		"4K": 4096, "8s": 4096, "4096": 4096, "64K": 65536, "64k": 65536, "64KiB": 65536, "128s": 65536,
		"1M": 1 << 20, "1G": 1 << 30, "1024M": 1 << 30,
	} {
		answer := trueupJSON[jsonInspect](t, 3, "inspect", "--boundary", text, source)
		require.Equal(t, want, answer.BoundaryBytes, text)
	}
	require.Equal(t, int64(65536), trueupJSON[jsonInspect](t, 3, "inspect", source).BoundaryBytes)
	for _, size := range []int64{4096, 65536, 1 << 20, 16 << 20} {
		plan := trueupJSON[jsonPlan](t, 0, "plan", "--boundary", strconv.FormatInt(size, 10), source)
		require.Equal(t, size, plan.BoundaryBytes)
		require.Len(t, plan.Moves, 1)
		require.Zero(t, plan.Moves[0].ToBytes%size)
	}
}

// TestReportFile requires that --out changes where a report goes, and nothing else.
func TestReportFile(t *testing.T) {
	t.Parallel()
	source := sampleDisk(t)
	for _, args := range [][]string{
		{"inspect", source}, {"plan", source}, {"inspect", source, "--json"}, {"plan", source, "--json"}, {"version"},
	} {
		out := filepath.Join(t.TempDir(), "report")
		require.NoError(t, os.WriteFile(out, []byte(strings.Repeat("an older and longer report\n", 1000)), 0o644))
		want := trueup(t, args...)
		for _, flags := range [][]string{{"--out", out}, {"--out=" + out, "-q"}} {
			r := trueup(t, append(args, flags...)...)
			require.Equal(t, want.code, r.code)
			require.Empty(t, r.stdout)
			require.Empty(t, r.stderr)
			got := disktest.ReadFile(t, out)
			require.Equal(t, want.stdout, string(got))
		}
	}
	missing := trueup(t, "inspect", source, "--out", filepath.Join(t.TempDir(), "missing", "report"))
	require.Equal(t, 1, missing.code)
	requireOneLine(t, missing.stderr)
}

// TestColors requires escape codes on a terminal and nowhere else. script gives the program a terminal.
func TestColors(t *testing.T) {
	t.Parallel()
	source := sampleDisk(t)
	for _, args := range [][]string{{"inspect", source}, {"plan", source}} {
		r := trueup(t, args...)
		require.NotContains(t, r.stdout+r.stderr, "\x1b", "a pipe")
	}
	script := disktest.Tool(t, "script")
	onTerminal := func(env ...string) string {
		command := strings.Join(append(append([]string{"env", "TERM=xterm"}, env...), builtPath, "inspect", source),
			" ")
		return run(t, script, "--quiet", "--return", "--command", command, "/dev/null").stdout
	}
	require.Contains(t, onTerminal(), "\x1b[31m", "red, for a disk that is misaligned")
	require.NotContains(t, onTerminal("NO_COLOR=1"), "\x1b")
	require.Contains(t, onTerminal("NO_COLOR="), "\x1b", "an empty NO_COLOR says nothing")
	require.NotContains(t, onTerminal("TERM=dumb"), "\x1b")
	for _, flag := range []string{"--no-color", "--color=never"} {
		command := builtPath + " " + flag + " inspect " + source
		require.NotContains(t, run(t, script, "--quiet", "--return", "--command", command, "/dev/null").stdout, "\x1b")
	}
	require.Contains(t, trueup(t, "--color", "always", "inspect", source).stdout, "\x1b[31m", "a pipe of who wants it")
	for _, name := range []string{"inspect", "scan"} {
		require.Equal(t, 64, trueup(t, name, "--color", "sometimes", source).code)
	}
}

// TestStartup keeps packages from doing work before main: a script calls trueup thousands of times. Work is counted by
// what it allocates, since time says more of the machine.
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

// Help texts name every format and subformat that completion offers: what is read and written changes.
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

// unwrapped returns a help text in one line.
func unwrapped(help string) string {
	return strings.Join(strings.Fields(help), " ")
}

// A run that a signal ends before it has begun anything has both lines of its log, and each once.
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
	require.Contains(t, string(rest), `"exit_code":143,"error":"interrupted; there is no result"`)
}
