package cli

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/scan/results"
	"github.com/trueup/trueup/internal/shell"
)

// Completion shows the texts of flags without the marks that help reads.
func TestCompletionShowsPlainTexts(t *testing.T) {
	root := newRoot("test", &Base{})
	root.SetArgs([]string{"__complete", "scan", "--"})
	plainUsages(root)
	var out strings.Builder
	root.SetOut(&out)
	require.NoError(t, root.Execute())
	require.Contains(t, out.String(), "--out\twrite the result to FILE")
	require.Contains(t, out.String(), "--output\tprint the result as FORMAT")
	require.NotContains(t, out.String(), "`")
}

// No line of help is longer than the default width of a terminal.
func TestHelpWithinItsWidth(t *testing.T) {
	for _, name := range []string{
		"inspect", "plan", "align", "convert", "verify", "serve", "boot", "bench", "scan", "report", "version",
	} {
		text := trueup(t, name, "--help").stdout
		for line := range strings.Lines(text) {
			require.LessOrEqual(t, len(line), helpWidth+1, line)
		}
		require.NotContains(t, text, "(default [])", name)
		require.Less(t, strings.Index(text, "\nUsage:"), strings.Index(text, "\nExit codes:"))
	}
}

// The texts of help are made for help alone, since each run starts with the tree of all commands.
func TestStartIsLight(t *testing.T) {
	require.Less(t, testing.AllocsPerRun(10, func() { newRoot("test", &Base{}) }), 3000.0)
}

// No command has more flags than a reader can take in.
func TestFewFlags(t *testing.T) {
	for _, cmd := range newRoot("test", &Base{}).Commands() {
		flags := 0
		for _, set := range grouped(cmd) {
			set.VisitAll(func(f *pflag.Flag) {
				if !f.Hidden && f.Name != "help" {
					flags++
				}
			})
		}
		require.LessOrEqual(t, flags, 24, cmd.Name())
	}
}

// Each row of the table of flags is a flag of a command.
func TestNoFlagIsUnused(t *testing.T) {
	root := newRoot("test", &Base{})
	for _, g := range flagGroups() {
		for _, r := range g.Rows {
			require.True(t, slices.ContainsFunc(append(root.Commands(), root), func(cmd *cobra.Command) bool {
				return r.isOf(cmd.Name()) && cmd.Flag(r.Name) != nil
			}), "--%s of %q", r.Name, r.Of)
		}
	}
}

// Shell completion directives. Spec: cobra's ShellCompDirective.
const (
	files   = ":0\n"
	nothing = ":4\n"
)

// The shells complete files for each argument that is a path, and no path for other arguments.
func TestCompletion(t *testing.T) {
	for _, c := range []struct {
		line []string
		want string
	}{
		{[]string{"inspect", ""}, files},
		{[]string{"inspect", "two.img", ""}, files},
		{[]string{"plan", "two.img", ""}, nothing},
		{[]string{"align", "two.img", ""}, files},
		{[]string{"align", "two.img", "dest.img", ""}, nothing},
		{[]string{"version", ""}, nothing},
		{[]string{"help", "inspect", ""}, nothing},
		{[]string{"undo", ""}, files},
		{[]string{"bench", ""}, files},
		{[]string{"bench", "--size", ""}, nothing},
		{[]string{"scan", "--exclude", ""}, files},
		{[]string{"scan", "--since", ""}, files},
		{[]string{"plan", "--out", ""}, files},
		{[]string{"plan", "--allow-folder", ""}, files},
		{[]string{"plan", "--color", ""}, "always\nnever\nauto\n" + nothing},
		{[]string{"inspect", "vm.ova!"}, files},
		{[]string{"plan", "two.img", "--with", ""}, files},
		{[]string{"plan", "two.img", "--partition", ""}, nothing},
	} {
		r := trueup(t, append([]string{"__complete"}, c.line...)...)
		require.Equal(t, 0, r.code, c.line)
		require.Equal(t, c.want, r.stdout, c.line)
		require.Regexp(t, "^Completion ended with directive: .*\n$", r.stderr, c.line)
	}
	root := Commands("test")
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		r := trueup(t, "__complete", cmd.Name(), "")
		require.Equal(t, 0, r.code, cmd.Name())
		require.NotEmpty(t, r.stdout, cmd.Name())
	}
}

// TestSchemasNameTheCommands requires every command in the schema of errors, and every command with --progress in the
// schema of its lines.
func TestSchemasNameTheCommands(t *testing.T) {
	type properties struct {
		Properties struct {
			Command struct {
				Const string
				Enum  []string
			}
		}
	}
	var failed properties
	var progress struct {
		Kinds map[string]properties `json:"$defs"`
	}
	for name, schema := range map[string]any{"error.json": &failed, "progress.json": &progress} {
		require.NoError(t, json.Unmarshal(disktest.ReadFile(t, filepath.Join("../../docs/schema", name)), schema))
	}
	var shown []string
	for _, kind := range progress.Kinds {
		shown = append(append(shown, kind.Properties.Command.Enum...), kind.Properties.Command.Const)
	}
	root := Commands("test")
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		require.True(t, cmd.Hidden || slices.Contains(failed.Properties.Command.Enum, cmd.Name()), cmd.Name())
		require.Equal(t, cmd.Flags().Lookup("progress") != nil, slices.Contains(shown, cmd.Name()), cmd.Name())
	}
}

// A command line that is nearly right, or right for another tool, gets a suggestion.
func TestDidYouMean(t *testing.T) {
	own(t)
	require.NoError(t, os.Mkdir("lib", 0o700))
	for line, want := range map[string]string{
		"inspct src.img":                  "did you mean trueup inspect?",
		"help inspct":                     "did you mean trueup inspect?",
		"info src.img":                    "did you mean trueup inspect?",
		"check src.img":                   "did you mean trueup inspect?",
		"compare src.img b":               "did you mean trueup verify?",
		"src.img":                         `to inspect the file: trueup inspect src.img`,
		"frobnicate":                      `unknown command "frobnicate"; see trueup --help`,
		"align --dry-run src.img b":       "did you mean trueup plan, which writes nothing?",
		"convert -O vmdk src.img b":       "did you mean --to?",
		"convert -f raw src.img b":        "did you mean --format for the image format, or -o FORMAT",
		"inspect -f json src.img":         "did you mean --format for the image format, or -o FORMAT",
		"inspect --output-format json x":  "did you mean -o FORMAT, such as -o json?",
		"inspect -f csv src.img":          "did you mean --format for the image format, or -o FORMAT",
		"scan -f csv src.img":             "did you mean -o FORMAT, such as -o json?",
		"-V":                              "did you mean --version?",
		"inspect --boundaryy 1M src.img":  "did you mean --boundary?",
		"align --after true src.img b":    "--after, which was removed; append && COMMAND to the trueup command; see",
		"plan --dynamic-disks src.img":    "--dynamic-disks, which was removed; convert the disk",
		"align --resumable a b":           "--resumable, which was removed; run the copy again; trueup resume",
		"align --replace src.img":         "--replace, which was removed; use trueup replace DISK; see",
		"align --in-place src.img":        "--in-place, which was removed; use trueup move DISK; see",
		"align --view src.img b.vmdk":     "--view, which was removed; use trueup view SOURCE DEST; see",
		"convert --device src.img b":      "--device, which was removed; name the block device as DEST",
		"inspect --bogus src.img":         "unknown flag: --bogus; see trueup inspect --help",
		"inspect":                         "inspect takes IMAGE..., 0 given; see trueup inspect --help",
		"inspect --with c a b":            "--with is for 1 IMAGE, 2 given; give one",
		"plan a.img b.img":                "plan takes IMAGE, 2 given; see trueup plan --help",
		"inspect lib":                     "lib is a folder, not an image; for all images in it: trueup scan lib",
		"plan lib":                        "lib is a folder, not an image; for all images in it: trueup scan lib",
		"inspect s3://bucket/x.vmdk":      "mount it, or serve it by NBD with nbdkit",
		"inspect [datastore1]/vm/vm.vmdk": "mount it, or serve it by NBD with nbdkit",
		"inspect lib/*.vmdk":              "no such file or directory; if it is a pattern, give it without quotes",
		"inspect --boundary 65 src.img":   "65 is 65 bytes; did you mean 64K?",
		"inspect --boundary 1 src.img":    "boundary of 1 bytes: must be",
	} {
		r := trueup(t, strings.Fields(line)...)
		require.NotZero(t, r.code, line)
		require.Contains(t, r.stderr, want, line)
		require.Equal(t, 1, strings.Count(r.stderr, "\n"), line)
	}
}

// A flag with its default value excludes and requires no other flag.
func TestFlagsThatDoNotGoTogether(t *testing.T) {
	t.Parallel()
	for line, refused := range map[string]string{
		"plan --data-only --partition 1":       "leave out one of them",
		"plan --data-only=false --partition 1": "",
		"plan --partition 1":                   "",
		"plan --with a --partition 1":          "leave out one of them",
		"plan --with a --data-only":            "",
		"plan --boundary 1M --data-only":       "",
		"verify --flatten a b":                 "--flatten needs --with DISK",
		"verify --flatten --with c a b":        "",
		"verify --flatten=false a b":           "",
		"finish --dry-run a":                   "--dry-run needs --below DIR",
		"scan --changed a":                     "--changed needs --since FILE",
		"scan --replace a":                     "--replace needs --script FILE",
		"scan --replace --script s a":          "",
		"scan --template t -o csv a":           "leave out one of them",
		"scan --template t -o text a":          "",
		"inspect --with c a b":                 "--with is for 1 IMAGE, 2 given; give one",
		"inspect --with c a":                   "",
		"undo --journal j a b":                 "--journal is for 1 PATH, 2 given; give one",
		"undo --journal j --below d":           "a journal belongs to one disk",
		"replace --by c a b":                   "--by is for 1 DISK, 2 given; give one",
		"replace --checksums s a b":            "--checksums is for 1 DISK, 2 given; give one",
		"align --checksums s a b":              "",
	} {
		words := strings.Fields(line)
		cmd, args, err := newRoot("test", &Base{}).Find(words)
		require.NoError(t, err, line)
		require.NoError(t, cmd.ParseFlags(args), line)
		err = checkFlags(cmd, cmd.Flags().Args())
		if refused == "" {
			require.NoError(t, err, line)
		} else {
			require.ErrorContains(t, err, refused, line)
		}
	}
}

var (
	// joinedText matches the join of two lines of a text in Go.
	joinedText = regexp.MustCompile(`" ?\+\n\s*"`)
	// suggestion matches a command in a text, or in a call that builds one, up to the next sentence or program.
	suggestion = regexp.MustCompile(`(?:\btrueup |(?:shell|Work)\.Command\(")([a-z]+)\b([^.;:&|()\n]*)`)
	// flagIn matches a flag after a command.
	flagIn = regexp.MustCompile(`[ /"'](--[a-z][a-z-]+|-[a-z])\b`)
)

// unknownIn adds the commands in a text with their flags to found, and returns those that the table of flags lacks.
func unknownIn(text string, found map[string]bool) (unknown []string) {
	root := Commands("test")
	for _, m := range suggestion.FindAllStringSubmatch(joinedText.ReplaceAllString(text, ""), -1) {
		cmd, _, err := root.Find(m[1:2])
		cmd.InitDefaultHelpFlag()
		behind, _, _ := strings.Cut(m[2], "trueup ")
		for _, f := range flagIn.FindAllStringSubmatch(behind, -1) {
			line, name := m[1]+" "+f[1], strings.TrimLeft(f[1], "-")
			found[line] = true
			if err != nil || cmd.Flag(name) == nil && (len(name) > 1 || cmd.Flags().ShorthandLookup(name) == nil &&
				cmd.InheritedFlags().ShorthandLookup(name) == nil) {
				unknown = append(unknown, line)
			}
		}
	}
	return unknown
}

// Each command line in a text of the program fits the table of flags.
func TestSuggestionsAreOfTheTable(t *testing.T) {
	found := map[string]bool{}
	require.NoError(t, filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "disktest" || d.Name() == "testdata"):
			return fs.SkipDir
		case d.IsDir() || strings.HasSuffix(path, "_test.go") ||
			!slices.Contains([]string{".go", ".sh", ".tmpl", ".txt"}, filepath.Ext(path)):
			return nil
		}
		text, err := os.ReadFile(path)
		require.Empty(t, unknownIn(string(text), found), path)
		return err
	}))
	flags := results.BoundaryFlags(align.Kept)
	for _, built := range []string{
		report.AlignCommand("a.vhd", "raw", flags), report.AlignPackageCommand("a.ovf", flags),
		shell.Command("replace", flags, "a.img"),
	} {
		require.Empty(t, unknownIn(built, found))
	}
	for _, known := range []string{
		"finish --force", "undo --force", "inspect --spool", "align --flatten", "scan -o", "bench --json",
		"align --to", "align --boundary", "replace --boundary",
	} {
		require.True(t, found[known], known)
	}
	require.Equal(t, []string{"finish --flatten", "undo --to", "mend --force", "plan -z"},
		unknownIn("trueup finish --flatten D; trueup undo --to raw; trueup mend --force; trueup plan -z", found))
}
