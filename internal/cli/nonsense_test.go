package cli

import (
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// foreignWords are terms of Go's libraries, which mean nothing to a user.
var foreignWords = regexp.MustCompile(`strconv|parsing|invalid (argument|syntax|duration)|shorthand|exec: |: (open|` +
	`stat|lstat|listen unix) |time: |pflag|cobra|%!|0x[0-9a-f]{8}|: :|\?[;:.]`)

// isNonsense requires that a wrong command line has an exit code and an error of one line, as text and as JSON.
func isNonsense(t *testing.T, codes []int, want string, args ...string) {
	t.Helper()
	text := trueup(t, args...)
	assert.Contains(t, codes, text.code, "%q: %s", args, text.stderr)
	assert.Empty(t, text.stdout, "%q", args)
	assert.Regexp(t, `^trueup: [^\n]+\n$`, text.stderr, "%q", args)
	assert.NotRegexp(t, foreignWords, text.stderr, "%q", args)
	assert.Contains(t, text.stderr, want, "%q", args)

	r := trueup(t, slices.Insert(slices.Clone(args), 1, "--json")...)
	assert.Equal(t, text.code, r.code, "%q", args)
	assert.Equal(t, text.stderr, r.stderr, "%q", args)
	var failure struct {
		Schema, Command string
		Error           struct{ Code, Message string }
		ExitCode        int `json:"exit_code"`
	}
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &failure), "%q: %s", args, r.stdout)
	assert.Equal(t, args[0], failure.Command, "%q", args)
	assert.Equal(t, text.code, failure.ExitCode, "%q", args)
	assert.Equal(t, "trueup: "+failure.Error.Message+"\n", text.stderr, "%q", args)
	assert.Equal(t, text.code == 64, failure.Error.Code == "usage", "%q: %s", args, failure.Error.Code)
	if slices.Contains([]string{"scan", "report", "serve"}, args[0]) {
		assert.Equal(t, 1, strings.Count(r.stdout, "\n"), "%q prints objects of one line", args)
	}
}

// nonsense makes a folder with an image, a text, a folder and an unreadable file.
func nonsense(t *testing.T) {
	t.Helper()
	own(t)
	put(t, "text", []byte("hello\n"))
	put(t, "empty", nil)
	require.NoError(t, os.Mkdir("dir", 0o700))
	require.NoError(t, os.Symlink("absent", "dangling"))
	require.NoError(t, os.Symlink("src.img", "link.img"))
	require.NoError(t, os.Link("src.img", "hard.img"))
}

// usual returns valid arguments of a command.
func usual(cmd *cobra.Command) (args []string) {
	for _, name := range strings.Fields(cmd.Use)[1:] {
		switch strings.TrimSuffix(name, "...") {
		case "DEST":
			args = append(args, "dest.img")
		case "DIR":
			args = append(args, "dir")
		case "[COMMAND]", "[DEST]":
		default:
			args = append(args, "src.img")
		}
	}
	return args
}

// each calls a function for each flag of each command that users run.
func eachFlag(t *testing.T, use func(cmd *cobra.Command, f *pflag.Flag)) {
	t.Helper()
	for _, cmd := range Commands("test").Commands() {
		if cmd.Hidden || aboutUse(cmd) {
			continue
		}
		cmd.InheritedFlags()
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden && f.Name != "help" {
				use(cmd, f)
			}
		})
	}
}

// An invalid value of a flag is named, with the valid ones.
func TestNonsenseValues(t *testing.T) {
	nonsense(t)
	free := map[string]bool{} // flags whose values are any text
	for name := range strings.FieldsSeq("title label include exclude socket overwrite-content except-bitmap domain") {
		free[name] = true
	}
	n := 0
	eachFlag(t, func(cmd *cobra.Command, f *pflag.Flag) {
		name, _ := pflag.UnquoteUsage(f)
		path := slices.Contains([]string{"FILE", "DIR", "PATH", "PROGRAM", "DISK"}, name)
		switch {
		case f.Value.Type() == "bool":
			args := append([]string{cmd.Name(), "--" + f.Name + "=maybe"}, usual(cmd)...)
			isNonsense(t, []int{64}, "--"+f.Name+` "maybe": must be true or false; see trueup `+cmd.Name()+" --help",
				args...)
			n++
			return
		case !path && !free[f.Name]:
			isNonsense(t, []int{64}, "bogus", append([]string{cmd.Name(), "--" + f.Name + "=bogus"}, usual(cmd)...)...)
			n++
		}
		isNonsense(t, []int{64}, "--"+f.Name+` "": the value is empty`,
			append([]string{cmd.Name(), "--" + f.Name + "="}, usual(cmd)...)...)
		if f.NoOptDefVal == "" {
			isNonsense(t, []int{64}, "--"+f.Name+" needs a value",
				append(append([]string{cmd.Name()}, usual(cmd)...), "--"+f.Name)...)
		}
	})
	require.Greater(t, n, 100)
}

// A value that is nearly right gets a suggestion.
func TestNearlyRightValues(t *testing.T) {
	nonsense(t)
	for line, want := range map[string]string{
		"scan -o jsn src.img":                       "did you mean json?",
		"report -o htm src.img":                     "did you mean html?",
		"inspect -o JSON src.img":                   "did you mean json?",
		"scan --fail-on eror src.img":               "did you mean error?",
		"scan --isolation sandbx src.img":           "did you mean sandbox?",
		"scan --storage netap src.img":              "did you mean netapp?",
		"inspect --format vmdkk src.img":            "did you mean vmdk?",
		"align --to qcow src.img d":                 "did you mean qcow2?",
		"align --to vmdk:streamOptimised src.img d": "did you mean streamOptimized?",
		"align --verify struct src.img d":           "did you mean structure?",
		"replace --keep noe src.img":                "did you mean none?",
		"align --progress jso src.img d":            "did you mean json?",
		"judge --by qemu-im src.img d":              "did you mean qemu-img?",
		"boot --firmware efi src.img":               "did you mean uefi?",
		"boot --bus sat src.img":                    "did you mean sata?",
		"boot -o html src.img":                      "--output \"html\", must be text or json",
		"bench -o html .":                           "--output \"html\", must be text or json",
		"version --color nevr":                      "did you mean never?",
		"scan -f json src.img":                      "did you mean -o FORMAT, such as -o json?",
		"scan --format json src.img":                "did you mean -o FORMAT, such as -o json?",
		"inspect --format json src.img":             "the format of the result is -o json",
		"serve -O raw src.img":                      "did you mean -o FORMAT, such as -o json?",
	} {
		isNonsense(t, []int{64}, want, strings.Fields(line)...)
	}
}

// Missing, surplus or wrong arguments are an error of one line, whose class is the exit code: 64 for a wrong command
// line, 1 for the content of the disk, 4 for a refusal.
func TestNonsenseArguments(t *testing.T) {
	nonsense(t)
	_, noFio := exec.LookPath("fio")
	for _, c := range []struct {
		code int
		want string
		args []string
	}{
		{64, "inspect takes IMAGE..., 0 given", []string{"inspect"}},
		{64, "inspect: argument 2 is empty, perhaps an unset variable", []string{"inspect", "src.img", ""}},
		{64, "align: argument 2 is empty", []string{"align", "src.img", ""}},
		{64, "scan: argument 1 is empty", []string{"scan", ""}},
		{64, "finish: argument 1 is empty", []string{"finish", ""}},
		{64, "bench: argument 1 is empty", []string{"bench", ""}},
		{64, "report: argument 1 is empty", []string{"report", ""}},
		{64, "plan takes IMAGE, 2 given", []string{"plan", "a", "b"}},
		{64, "align takes SOURCE DEST, 3 given", []string{"align", "a", "b", "c"}},
		{64, "a: nothing to undo, resume or finish", []string{"finish", "a", "b"}},
		{64, "a is given twice; give it once", []string{"undo", "a", "a"}},
		{64, "--journal is for 1 PATH, 2 given; give one", []string{"resume", "--journal", "j", "a", "b"}},
		{64, "--checksums is for 1 DISK, 2 given; give one", []string{
			"replace", "--checksums", "s", "src.img", "copy.img",
		}},
		{64, "absent: no such file; name existing disks", []string{"replace", "src.img", "absent"}},
		{64, "move takes DISK, 2 given", []string{"move", "a", "b"}},
		{64, "serve takes SOURCE, 2 given", []string{"serve", "a", "b"}},
		{64, "bench takes DIR, 2 given", []string{"bench", "a", "b"}},
		{64, "version takes no argument, 1 given", []string{"version", "x"}},
		{1, "absent: no such file or directory", []string{"inspect", "absent"}},
		{1, "dangling: no such file or directory", []string{"plan", "dangling"}},
		{1, "absent: no such file or directory", []string{"serve", "absent"}},
		{1, "src.img/x: not a directory", []string{"verify", "src.img/x", "src.img"}},
		{1, "dir is a folder, not an image", []string{"align", "dir", "d"}},
		{1, "empty: no disk image: the file is empty", []string{"convert", "empty", "d"}},
		{1, "text: no disk image", []string{"plan", "text"}},
		{64, "an image cannot be read from a pipe", []string{"inspect", "-"}},
		{64, "DEST dir is a folder: name the file", []string{"align", "src.img", "dir"}},
		{
			1, "folder of DEST absent/d: no such file or directory; create it first",
			[]string{"convert", "src.img", "absent/d"},
		},
		{64, "is never written", []string{"convert", "src.img", "src.img"}},
		{64, "absent: nothing to undo, resume or finish", []string{"finish", "absent"}},
		{64, "SOURCE src.img and DEST src.img are the same file", []string{"verify", "src.img", "src.img"}},
		{64, "SOURCE src.img and DEST link.img are the same file", []string{"verify", "src.img", "link.img"}},
		{64, "SOURCE hard.img and DEST src.img are the same file", []string{"verify", "hard.img", "src.img"}},
		{64, "trueup: absent: no such file or directory", []string{"report", "absent"}},
		{64, "dir is not a regular file", []string{"report", "dir"}},
		{1, "trueup: absent: no such file or directory", []string{"bench", "absent"}},
		{64, "src.img is no folder", []string{"bench", "src.img"}},
		{64, "--log: absent/x: no such file or directory", []string{"inspect", "--log", "absent/x", "src.img"}},
		{64, "--log: dir: is a directory", []string{"inspect", "--log", "dir", "src.img"}},
		{64, "--ignore: absent: no such file", []string{"scan", "--ignore", "absent", "src.img"}},
		{64, "--files-from: absent: no such file", []string{"scan", "--files-from", "absent"}},
		{1, "--files-from dir: is a directory", []string{"scan", "--files-from", "dir"}},
		{1, "--bench: absent: no such file", []string{"inspect", "--bench", "absent", "src.img"}},
		{64, "exists; name another path", []string{"serve", "--socket", "dir", "src.img"}},
		{1, "no such file or directory; create it first", []string{"serve", "--socket", "absent/x", "src.img"}},
		{64, "must be HOST:PORT", []string{"serve", "--listen", "x", "src.img"}},
		{64, "a server listens in one place", []string{"serve", "--socket", "s", "--listen", "127.0.0.1:0", "src.img"}},
		{64, "--json and --output csv are two formats", []string{"scan", "--json", "-o", "csv", "src.img"}},
	} {
		if c.args[0] == "scan" && slices.Contains(c.args, "--json") {
			r := trueup(t, c.args...)
			assert.Equal(t, c.code, r.code)
			assert.Contains(t, r.stderr, c.want)
			continue
		}
		if noFio != nil && c.args[0] == "bench" && !strings.HasPrefix(c.want, "bench") {
			continue // which is first run with --version
		}
		isNonsense(t, []int{c.code}, c.want, c.args...)
	}
}
