package scan

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/scan/results"
	"github.com/trueup/trueup/internal/scan/sandbox"
	"github.com/trueup/trueup/internal/shell"
	"github.com/trueup/trueup/internal/sys"
)

// Choices are a scan as a command line asks for it. Its fields are flags.
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
	Force            bool
	Unknown, Empty   bool // accepted
	Tables           bool // are checked of every container
	Shard            string
	Label            []string // of all rows, KEY=VALUE

	fail   results.FailOn
	shard  Shard
	first  bool // --out is --since, which need not be there yet
	labels results.Labels
}

// Isolations are the values of --isolation, the last one the default.
var Isolations = []string{string(sandbox.None), string(sandbox.Process), string(sandbox.Sandbox)}

// Consistent refuses flags that cannot be right. whole is --require-sandbox.
func (c *Choices) Consistent(whole bool) error {
	switch {
	case !slices.Contains(Isolations, c.Isolation):
		return ondisk.NoChoice("--isolation", c.Isolation, Isolations...)
	case whole && c.Isolation != string(sandbox.Sandbox):
		return ondisk.In(ondisk.ErrUsage, "--require-sandbox and --isolation %s contradict each other; "+
			"give one of them",
			c.Isolation)
	case c.Replace && c.Script == "":
		return ondisk.In(ondisk.ErrUsage, "--replace is for the commands of --script FILE: a scan changes no image")
	case c.Replace && c.Shard != "":
		return ondisk.In(ondisk.ErrUsage, "--replace and --shard contradict each other: an image of another shard "+
			"may need the one that is exchanged")
	case c.Changed && c.Since == "":
		return ondisk.In(ondisk.ErrUsage, "--changed needs --since FILE, the results of the scan to compare with")
	}
	return c.scriptOn(runtime.GOOS)
}

// scriptOn refuses a script on a system whose names are not quoted for bash.
func (c *Choices) scriptOn(system string) error {
	if c.Script != "" && !shell.ForBash(system) {
		return ondisk.In(ondisk.ErrUsage, "--script writes a script for bash, and Windows has other shells; "+
			"--output json has the command of each image")
	}
	return nil
}

// Settle refuses to write over an image, over a file that the run itself needs, and where nothing can be written. out
// and profiles are files of the command; rows is set if out gets rows of JSON. It also reads --fail-on, --shard and
// --label.
func (c *Choices) Settle(out, profiles string, rows bool) (err error) {
	if c.shard, err = ParseShard(c.Shard); err != nil {
		return err
	}
	if c.labels, err = results.ParseLabels(c.Label); err != nil {
		return ondisk.In(ondisk.ErrUsage, "--label %w", err)
	}
	if err := errors.Join(c.apart(out, profiles), c.settleSince(out, rows)); err != nil {
		return err
	}
	if c.Script != "" {
		script := store.Place{
			Flag: "--script", Path: c.Script, Role: store.Script, Force: c.Force, Mine: results.IsScript,
		}
		if c.Script, err = script.Settle(); err != nil {
			return err
		}
		if err := store.TryFolder("--script", c.Script); err != nil {
			return err
		}
	}
	c.fail, err = results.ParseFailOn(c.FailOn)
	return err
}

// settleSince refuses results of an earlier scan that cannot be read, and to replace them by what the next scan cannot
// read.
func (c *Choices) settleSince(out string, rows bool) error {
	if c.Since == "" {
		return nil
	}
	c.first = out != "" && store.SameFile(out, c.Since)
	switch {
	case c.first && !rows:
		return ondisk.In(ondisk.ErrUsage, "--out %s would replace the results of --since by a report that no scan "+
			"reads; add -o json, or name another file", out)
	case c.first && c.Changed:
		return ondisk.In(ondisk.ErrUsage, "--changed would leave unchanged images out of %s, and the next scan would "+
			"take them for new; name another file for --out", out)
	}
	st, err := os.Stat(c.Since)
	switch {
	case errors.Is(err, fs.ErrNotExist) && c.first:
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return ondisk.In(ondisk.ErrUsage, "--since %s: %w; it is what trueup scan -o json --out FILE has written, and "+
			"the first scan has --out with the same FILE", c.Since, sys.Cause(err))
	case err != nil:
		return fmt.Errorf("--since %s: %w", c.Since, sys.Cause(err))
	case !st.Mode().IsRegular():
		return ondisk.In(ondisk.ErrUsage, "--since %s is not a regular file, want one with results of trueup scan "+
			"-o json", c.Since)
	}
	return nil
}

// apart refuses one file for two purposes.
func (c *Choices) apart(out, profiles string) error {
	script := store.Use{Flag: "--script", Path: c.Script}
	read := []store.Use{
		{Flag: "--ignore", Path: c.Ignore},
		{Flag: "--files-from", Path: c.FilesFrom},
		{Flag: "--profiles", Path: profiles},
	}
	if err := store.Apart(store.Use{Flag: "--out", Path: out}, append(read, script)...); err != nil {
		return err
	}
	return store.Apart(script, append(read, store.Use{Flag: "--since", Path: c.Since})...)
}

// Task returns what is to be done. Criteria, workers and the files of the command are its caller's.
func (c *Choices) Task(stdin io.Reader, paths []string) (*Task, error) {
	t := &Task{
		Paths: slices.Clone(paths), Check: c.Tables, Level: sandbox.Level(c.Isolation),
		Since: c.Since, First: c.first, ChangedOnly: c.Changed,
		Fail: c.fail, AllowUnknown: c.Unknown, AllowEmpty: c.Empty,
		Shard: c.shard, Labels: c.labels, KeepRanked: c.Script != "", Replace: c.Replace,
		Spare: []string{c.Script, c.Ignore, c.FilesFrom},
	}
	var err error
	if t.Wanted, err = Wanted(c.Include, c.Exclude); err != nil {
		return nil, err
	}
	if t.Ignore, err = ReadIgnore(c.Ignore); err != nil {
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

// Again returns the flags that make another run choose and accept the same images, for the commands that come next.
func (c *Choices) Again(profiles string) string {
	var out []string
	add := func(flag string, values ...string) {
		for _, v := range values {
			if v != "" {
				out = append(out, flag+" "+shell.Quote(v))
			}
		}
	}
	add("--include", c.Include...)
	add("--exclude", c.Exclude...)
	add("--ignore", c.Ignore)
	add("--profiles", profiles)
	add("--since", c.Since)
	add("--shard", c.Shard)
	add("--label", c.Label...)
	return strings.Join(out, " ")
}

// WriteScript writes the align commands of a report, if they are wanted. The permissions are those before the umask.
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
