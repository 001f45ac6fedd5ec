package scan

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/scan/results"
	"github.com/trueup/trueup/internal/scan/sandbox"
	"github.com/trueup/trueup/internal/shell"
	"github.com/trueup/trueup/internal/sys"
	"github.com/trueup/trueup/internal/units"
)

// Choices holds the flags of a scan.
type Choices struct {
	Include, Exclude []string
	FilesFrom        string
	Isolation        string // one of Isolations
	Since            string
	Changed          bool
	FailOn           string
	Ignore           string
	Script           string
	Replace          bool // the script exchanges images for their copies
	Unknown, Empty   bool // --allow-unknown, --allow-empty
	Tables           bool // check all tables of every container
	Shard            string
	Label            []string // KEY=VALUE, for all rows

	First bool // set by Prepare: --out names the file of Since, which may not exist yet

	fail   results.FailOn
	shard  Shard
	labels results.Labels
}

// Isolations lists the values of --isolation. The last one is the default.
var Isolations = []string{string(sandbox.None), string(sandbox.Process), string(sandbox.Sandbox)}

// Consistent returns an error for flags that contradict each other or that the operating system does not support. whole
// is --require-sandbox.
func (c *Choices) Consistent(whole bool) error {
	if whole && c.Isolation != string(sandbox.Sandbox) {
		return ondisk.In(ondisk.ErrUsage, "--require-sandbox and --isolation %s contradict each other; give one of "+
			"them", c.Isolation)
	}
	return c.scriptOn(runtime.GOOS)
}

// scriptOn returns an error for --script on an operating system whose file names are not quoted for bash.
func (c *Choices) scriptOn(system string) error {
	if c.Script != "" && !shell.ForBash(system) {
		return ondisk.In(ondisk.ErrUsage, "--script writes a script for bash, and Windows has other shells; "+
			"--output json has the command of each image")
	}
	return nil
}

// Prepare checks the output files and parses --fail-on, --shard and --label. It returns an error if an output would
// replace an image or a file that the run itself needs, or cannot be written. out is the report; rows is true if the
// report consists of JSON rows.
func (c *Choices) Prepare(out string, rows bool) (err error) {
	if c.shard, err = ParseShard(c.Shard); err != nil {
		return err
	}
	if c.labels, err = results.ParseLabels(c.Label); err != nil {
		return ondisk.In(ondisk.ErrUsage, "--label %w", err)
	}
	if err := errors.Join(c.apart(out), c.checkSince(out, rows)); err != nil {
		return err
	}
	if c.Script != "" {
		script := store.Place{Flag: "--script", Path: c.Script, Mine: results.IsScript}
		if c.Script, err = script.Resolve(); err != nil {
			return err
		}
		if err := store.TryFolder("--script", c.Script); err != nil {
			return err
		}
	}
	c.fail, err = results.ParseFailOn(c.FailOn)
	return err
}

// checkSince returns an error if the results of --since cannot be read, or if --out would replace them with a report
// that the next scan cannot read.
func (c *Choices) checkSince(out string, rows bool) error {
	if c.Since == "" {
		return nil
	}
	c.First = out != "" && store.SameFile(out, c.Since)
	switch {
	case c.First && !rows:
		return ondisk.In(ondisk.ErrUsage, "--out %s would replace the results of --since by a report that no scan "+
			"reads; add -o json, or name another file", out)
	case c.First && c.Changed:
		return ondisk.In(ondisk.ErrUsage, "--changed would leave unchanged images out of %s, and the next scan would "+
			"take them for new; name another file for --out", out)
	}
	st, err := os.Stat(c.Since)
	switch {
	case errors.Is(err, fs.ErrNotExist) && c.First:
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return ondisk.In(ondisk.ErrUsage, "--since %s: %w; for the first scan, run trueup scan -o json --since FILE "+
			"--out FILE with the same FILE twice", c.Since, sys.Cause(err))
	case err != nil:
		return fmt.Errorf("--since %s: %w", c.Since, sys.Cause(err))
	case !st.Mode().IsRegular():
		return ondisk.In(ondisk.ErrUsage, "--since %s is not a regular file; name a file written by trueup scan -o "+
			"json", c.Since)
	}
	return nil
}

// apart returns an error if two flags name the same file.
func (c *Choices) apart(out string) error {
	script := store.Use{Flag: "--script", Path: c.Script}
	read := []store.Use{
		{Flag: "--ignore", Path: c.Ignore},
		{Flag: "--files-from", Path: c.FilesFrom},
	}
	if err := store.Apart(store.Use{Flag: "--out", Path: out}, append(read, script)...); err != nil {
		return err
	}
	return store.Apart(script, append(read, store.Use{Flag: "--since", Path: c.Since})...)
}

// Task returns the task for the flags and the paths. The caller sets its criteria, workers and the files of the
// command.
func (c *Choices) Task(stdin io.Reader, paths []string) (*Task, error) {
	t := &Task{Choices: *c, Paths: slices.Clone(paths), Spare: []string{c.Script, c.Ignore, c.FilesFrom}}
	var err error
	if t.Wanted, err = Wanted(c.Include, c.Exclude); err != nil {
		return nil, err
	}
	if t.ignored, err = ReadIgnore(c.Ignore); err != nil {
		return nil, err
	}
	if c.FilesFrom != "" {
		more, err := ReadList(c.FilesFrom, stdin)
		if err != nil {
			return nil, err
		}
		t.Paths = append(t.Paths, more...)
	}
	switch {
	case slices.Contains(paths, ""):
		return nil, ondisk.In(ondisk.ErrUsage,
			"a PATH is empty, maybe from a variable that is not set; . is the folder that you are in")
	case len(paths) == 0 && c.FilesFrom == "":
		return nil, ondisk.In(ondisk.ErrUsage, "scan takes a PATH, none given; see trueup scan --help")
	}
	return t, checkPaths(t.Paths)
}

// WriteScript writes the align commands of a report to the file of --script, if given. Its permissions are 0777 before
// the umask.
func (c *Choices) WriteScript(r *results.Report) error {
	if c.Script == "" {
		return nil
	}
	file, err := store.CreateReport(c.Script, 0o777)
	if err != nil {
		return err
	}
	return file.End(results.Script(file, r.Summary, r.Images))
}

// maxList bounds a list of paths, in bytes. It has room for a million paths of usual length.
const maxList = 256 * units.MiB

// ReadList reads the paths of --files-from from a file, or from stdin for "-".
func ReadList(name string, stdin io.Reader) ([]string, error) {
	text, err := readFile("--files-from", name, stdin, maxList)
	return splitList(bytes.TrimPrefix(text, []byte("\ufeff"))), err
}

// readFile reads the file of a flag, or stdin for "-" unless stdin is nil. A file of more than most bytes is an error.
func readFile(flag, name string, stdin io.Reader, most int64) ([]byte, error) {
	in := stdin
	if name != "-" || stdin == nil {
		f, err := os.Open(name)
		if err != nil {
			return nil, ondisk.In(ondisk.ErrUsage, flag+": %w", err)
		}
		defer f.Close()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, most+1))
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", flag, name, err)
	}
	if int64(len(text)) > most {
		return nil, ondisk.In(ondisk.ErrUsage, "%s %s has more than %s, the most that is read", flag, name,
			units.Format(most))
	}
	return text, nil
}

// checkPaths returns an error for a path that is an address and no file. An address may contain secrets, so a message
// shows it only if it can hide them.
func checkPaths(paths []string) error {
	if err := realign.CheckAddresses(paths); err != nil {
		return err
	}
	for n, p := range paths {
		low := strings.ToLower(p)
		if err := realign.Local(p, "trueup "+results.Command); err != nil {
			return err
		}
		if !strings.Contains(low, "://") && !strings.Contains(low, "http:/") && !strings.Contains(low, "https:/") {
			continue
		}
		if _, err := os.Lstat(p); err != nil {
			return ondisk.In(ondisk.ErrUsage, "PATH %d, of arguments and list, is an address; scan reads files and "+
				"folders", n+1)
		}
	}
	return nil
}

// splitList splits a list at its NULs, if any, else at line ends. A path cannot contain a NUL, but it can contain a
// line end. If all lines end in CR LF, the list was written on Windows; otherwise each CR belongs to a name.
func splitList(text []byte) []string {
	sep := []byte{'\n'}
	if bytes.IndexByte(text, 0) >= 0 {
		sep[0] = 0
	}
	if lines := bytes.Count(text, sep); sep[0] == '\n' && lines > 0 && lines == bytes.Count(text, []byte("\r\n")) {
		sep = []byte("\r\n")
	}
	var out []string
	for part := range bytes.SplitSeq(text, sep) {
		if len(part) > 0 {
			out = append(out, string(part))
		}
	}
	return out
}

// ReadIgnore reads the list of accepted images of --ignore. It returns an empty list for an empty name.
func ReadIgnore(name string) (results.Ignore, error) {
	if name == "" {
		return nil, nil
	}
	text, err := readFile("--ignore", name, nil, results.MaxIgnore)
	if err != nil {
		return nil, err
	}
	list, err := results.ParseIgnore(text)
	if err != nil {
		return nil, ondisk.In(ondisk.ErrUsage, "--ignore %s: %w", name, err)
	}
	return list, nil
}

// ReadTemplate reads the template of --template, which the user trusts.
func ReadTemplate(name string) (results.Format, error) {
	text, err := readFile("--template", name, nil, results.MaxTemplate)
	switch {
	case err != nil:
		return results.Format{}, err
	case !utf8.Valid(text):
		return results.Format{}, ondisk.In(ondisk.ErrUsage, "--template %s is no text in UTF-8; name a template", name)
	}
	return results.ParseTemplate(name, string(text))
}

// Wanted returns a filter of files for the globs of --include and --exclude, see Task.Wanted. It returns nil without
// globs.
func Wanted(include, exclude []string) (func(rel, shown string) bool, error) {
	in, err := globs("--include", include)
	if err != nil {
		return nil, err
	}
	ex, err := globs("--exclude", exclude)
	if err != nil {
		return nil, err
	}
	if len(in)+len(ex) == 0 {
		return nil, nil
	}
	matches := func(gs []*shell.Glob, names []string) bool {
		return slices.ContainsFunc(gs, func(g *shell.Glob) bool { return g.MatchAny(names) })
	}
	return func(rel, shown string) bool {
		names := []string{rel, shown}
		return (len(in) == 0 || matches(in, names)) && !matches(ex, names)
	}, nil
}

// globs parses the globs of a flag.
func globs(flag string, texts []string) (out []*shell.Glob, err error) {
	for _, text := range texts {
		g, err := shell.ParseGlob(text)
		if err != nil {
			return nil, ondisk.In(ondisk.ErrUsage, "%s %q, %w", flag, text, err)
		}
		out = append(out, g)
	}
	return out, nil
}

// NotOpened adds a remedy to the error of a path that cannot be opened as one image.
func NotOpened(path string, err error) error {
	st, statErr := os.Stat(path)
	switch {
	case statErr == nil && st.IsDir():
		if exists(filepath.Join(path, image.BundleDescriptor)) {
			return ondisk.In(ondisk.ErrUnsupported, "%s is the folder of a %s; what to do with it: %s",
				path, image.Parallels, shell.Command("inspect", nil, filepath.Join(path, image.BundleDescriptor)))
		}
		return ondisk.In(ondisk.ErrUnsupported, "%s is a folder, not an image; for all images in it: %s",
			path, shell.Command("scan", nil, path))
	case !errors.Is(err, fs.ErrNotExist) || realign.IsRemote(path):
		return err
	case strings.Contains(path, "://") || strings.HasPrefix(path, "["):
		return fmt.Errorf("%w; trueup reads files and block devices of this machine, and NBD: mount it, or serve it "+
			"by NBD with nbdkit", err)
	}
	return fmt.Errorf("%w%s", err, patternHint(path))
}

// patternHint returns a hint for a missing path that looks like a pattern, and an empty string for any other path.
func patternHint(path string) string {
	if strings.ContainsAny(path, "*?[") {
		return "; if it is a pattern, give it without quotes"
	}
	return ""
}
