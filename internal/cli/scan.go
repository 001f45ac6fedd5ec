package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/progress"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/scan"
	"github.com/trueup/trueup/internal/scan/results"
	"github.com/trueup/trueup/internal/scan/sandbox"
)

type scanFlags struct {
	*common
	work
	version          string
	boundary         align.Boundary
	storage          storage
	bench            benchFile
	include, exclude []string
	filesFrom        string
	isolation        string
	catalog          string
	changed          bool
	failOn           string
	ignore           string
	script           string
	force            bool
	unknown, empty   bool // accepted
	tables           bool // are checked of every container
	pieces           bool // of files are counted
}

// isolations are the values of --isolation, the last one the default.
var isolations = []string{string(sandbox.None), string(sandbox.Process), string(sandbox.Sandbox)}

// workerCommand is the argument that makes the program a worker.
const workerCommand = "scan-worker"

// newScanWorker returns the command of a worker, which is of no use to people.
func newScanWorker() *cobra.Command {
	return &cobra.Command{
		Use:    workerCommand,
		Short:  "Answer the questions of trueup scan",
		Hidden: true,
		Args:   arguments(),
		RunE:   func(*cobra.Command, []string) error { return scan.Serve(os.Stdin, os.Stdout) },
	}
}

func newScan(version string, c *common) *cobra.Command {
	f := scanFlags{common: c, version: version, boundary: align.Boundary(align.DefaultBoundary)}
	cmd := &cobra.Command{
		Use:   "scan PATH...",
		Short: "Check a whole library of images, worst first",
		Long: `Inspects every image below the PATHs and prints one row each, worst first. A PATH is a file or a
folder. Folders are searched recursively, links are not followed, and a file with several names is inspected once.
Images are recognised by their content. A VMDK descriptor and its extents are one image, an OVF and its disks are one
image; an extent that no descriptor names is reported as an orphan. Nothing is written but the report and the files of
--catalog and --script.

Worker processes read the images. They can read below the PATHs and do nothing else, so a broken or malicious image
can only fail its own row (--isolation).

The rank of an image tells what to realign first: starts off 4 KiB before starts off --boundary, data disks before
boot disks, images that can be realigned before images that would be refused, and a higher cost on --storage before a
lower one. --script writes the align commands in this order.

An aligned image is judged by its header, partition table and volumes. --check also reads all tables of its container,
and the data if there are at most 128 MiB, as inspect does.

--fragmentation counts in how many pieces the files of NTFS, FAT and ext lie, as inspect does, and adds columns.

--catalog keeps the results in a file, and images that have not changed are not read again. --changed limits report
and exit code to new, changed and removed images.

--fail-on sets what makes the exit code 1, 2 or 3. Each of error, 4K, 64K and 1M includes those before it. An error
ends with 1, whatever else is found.

A GLOB has * and ? within a name, [a-z], {a,b}, and ** for any number of folders. --files-from separates PATHs by NUL
bytes or line ends.`,
		Example: `  trueup scan templates
  trueup scan -o html --out report.html --catalog templates.db templates
  trueup scan --include '*.vmdk' --exclude '**/archive/**' templates
  trueup scan --script fix.sh --storage netapp templates
  trueup scan -o junit --out j.xml --fail-on 4K --ignore accepted.txt templates`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return runScan(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr(), f, args)
		},
	}
	f.add(cmd)
	return cmd
}

func (f *scanFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	formats := results.FormatNames()
	fs.StringVarP(&f.output, "output", "o", formats[0], "print the result as `FORMAT`: "+strings.Join(formats, ", "))
	complete(cmd, "output", formats...)
	boundaryFlag(cmd, &f.boundary, "required alignment of partition starts, 4K to 1G")
	f.storage.add(cmd)
	f.bench.add(cmd)
	fs.StringArrayVar(&f.include, "include", nil, "inspect only files in folders that match `GLOB` (repeatable)")
	fs.StringArrayVar(&f.exclude, "exclude", nil, "skip files in folders that match `GLOB` (repeatable)")
	fs.StringVar(&f.filesFrom, "files-from", "", "read more PATHs from `FILE`, or - for standard input")
	fs.StringVar(&f.isolation, "isolation", isolations[len(isolations)-1],
		"isolation of the workers, by `LEVEL`: "+strings.Join(isolations, ", "))
	complete(cmd, "isolation", isolations...)
	f.addSandbox(cmd)
	fs.StringVar(&f.catalog, "catalog", "", "keep results in `FILE` and skip unchanged images")
	fs.BoolVar(&f.changed, "changed", false, "report only new, changed and removed images")
	levels := strings.Join(results.FailOns(), ", ")
	fs.StringVar(&f.failOn, "fail-on", "", "fail for `LEVEL`: "+levels+" (default: errors and starts off --boundary)")
	complete(cmd, "fail-on", results.FailOns()...)
	unknownFlag(cmd, &f.unknown)
	fs.BoolVar(&f.empty, "allow-empty", false, "exit with 0 if no image was judged")
	fs.BoolVar(&f.tables, "check", false, "check all tables of every container, as inspect does")
	fs.BoolVar(&f.pieces, "fragmentation", false, "count the pieces of files and of free space")
	fs.StringVar(&f.ignore, "ignore", "", "accept the images listed in `FILE`")
	fs.StringVar(&f.script, "script", "", "write a shell script of the align commands to `FILE`")
	fs.BoolVar(&f.force, "force", false, "replace a --script that was edited")
	f.addWork(cmd, min(runtime.NumCPU(), maxJobs), fmt.Sprintf("inspect `N` images at once, 1 to %d", maxJobs))
}

// check refuses flags that cannot be right.
func (f *scanFlags) check() (results.FailOn, error) {
	switch {
	case f.asJSON && f.output != "text" && f.output != "json":
		return "", ondisk.In(errUsage, "--json and --output %s ask for two formats; give one of them", f.output)
	case !slices.Contains(results.FormatNames(), f.output):
		return "", ondisk.In(errUsage, "--output %q, want one of %s", f.output, strings.Join(results.FormatNames(), ", "))
	case !slices.Contains(isolations, f.isolation):
		return "", ondisk.In(errUsage, "--isolation %q, want one of %s", f.isolation, strings.Join(isolations, ", "))
	case f.requireSandbox && f.isolation != string(sandbox.Sandbox):
		return "", ondisk.In(errUsage, "--require-sandbox and --isolation %s contradict each other; give one of them",
			f.isolation)
	case f.bench != "" && (f.output != htmlOutput || f.asJSON):
		return "", ondisk.In(errUsage, "--bench is for the page; add -o html, or give it to inspect and plan")
	case f.changed && f.catalog == "":
		return "", ondisk.In(errUsage, "--changed needs --catalog FILE, which knows the last run")
	}
	if f.asJSON {
		f.output = "json"
	}
	if err := f.checkWork(); err != nil {
		return "", err
	}
	if err := errors.Join(f.storage.find(), f.settlePlaces()); err != nil {
		return "", err
	}
	if f.failOn == "" {
		return results.Default, f.spare()
	}
	level, err := results.ParseFailOn(f.failOn)
	if err != nil {
		return "", ondisk.In(errUsage, "--fail-on %w", err)
	}
	return level, f.spare()
}

// task makes the flags a value. It checks all of them before anything is looked at.
func (f *scanFlags) task(stdin io.Reader, paths []string) (*scan.Task, error) {
	fail, err := f.check()
	if err != nil {
		return nil, err
	}
	t := &scan.Task{
		Paths: slices.Clone(paths), Boundary: f.boundary.Criterion(), Storage: f.storage.Storage, Check: f.tables,
		Fragments: f.pieces,
		Jobs:      f.jobs, Version: f.version, Again: f.again(), Level: sandbox.Level(f.isolation),
		Args:    []string{workerCommand},
		Catalog: f.catalog, ChangedOnly: f.changed, Fail: fail, AllowUnknown: f.unknown, AllowEmpty: f.empty,
		KeepRanked: f.script != "", Spare: []string{
			f.out, f.script, f.ignore, f.filesFrom, f.storage.profiles,
			string(f.bench),
		},
	}
	if t.Wanted, err = scan.Wanted(f.include, f.exclude); err != nil {
		return nil, err
	}
	if t.Ignore, err = scan.ReadIgnore(f.ignore); err != nil {
		return nil, err
	}
	if f.filesFrom != "" {
		more, err := scan.ReadList(f.filesFrom, stdin)
		if err != nil {
			return nil, err
		}
		t.Paths = append(t.Paths, more...)
	}
	switch {
	case slices.Contains(paths, ""):
		return nil, ondisk.In(errUsage,
			"a PATH is empty, maybe from a variable that is not set; . is the folder that you are in")
	case len(paths) == 0 && f.filesFrom == "":
		return nil, ondisk.In(errUsage, "scan takes a PATH, none given; see trueup scan --help")
	}
	if f.ownProcess {
		t.Confine = func(a sandbox.Access) {
			if !a.Workers {
				a.Write = store.OutputFolders(f.out, f.script, f.catalog)
			}
			sandbox.Confine(a)
		}
	}
	return t, nil
}

func runScan(ctx context.Context, in io.Reader, out, errOut io.Writer, f scanFlags, paths []string) (err error) {
	t, err := f.task(in, paths)
	if err != nil {
		return err
	}
	measured, err := f.bench.read(f.out)
	if err != nil {
		return err
	}
	f.ending.hold("completing the report of what was looked at")
	defer func() {
		if closing := t.Close(); closing != nil {
			err = closing // which is worse than any verdict
		}
	}()
	format := results.Formats[slices.Index(results.FormatNames(), f.output)]
	w, end, stop := out, func(err error) error { return err }, func() {}
	t.Ready = func() error {
		if f.out != "" {
			file, err := store.CreateReport(f.out, reportMode)
			if err != nil {
				return err
			}
			t.Spare = append(t.Spare, file.Name())
			w, end = file, file.End
		}
		bar := progress.NewScan(f.progressTo(errOut, f.progress))
		t.Progress, stop = bar, bar.Stop
		return nil
	}
	if format.Row != nil {
		t.Row = func(i *results.Image) error { return wrapStdout(format.Row(w, i)) }
	}
	t.Weaker = func(got sandbox.Isolation) error { return f.confined(errOut, got) }
	t.Interrupted = func() int { return interruptOf(ctx).exit() }
	r, err := t.Run(ctx)
	stop()
	if r == nil {
		return end(err)
	}
	r.Summary.Bench = measured
	err = end(errors.Join(err, wrapStdout(f.print(format, w, out, r))))
	if err := errors.Join(err, f.writeScript(r)); err != nil { // one that cannot be written must not cost the other
		return err
	}
	return concluded(ctx, r)
}

// concluded ends the command as the report does.
func concluded(ctx context.Context, r *results.Report) error {
	switch s := r.Summary; {
	case !s.Complete && s.Images < s.Found:
		return malformed{error: interrupt{interruptOf(ctx).signal, fmt.Sprintf(
			"interrupted: %d of the %d images found so far were looked at, and the report has those", s.Images, s.Found)}}
	case !s.Complete:
		return malformed{error: interrupt{interruptOf(ctx).signal, fmt.Sprintf(
			"interrupted: %d images were looked at, and the report has those; the PATHs may have more", s.Images)}}
	case r.NoneJudged() && s.Failed == 0:
		return malformed{error: ondisk.In(realign.ErrUnknown,
			"scan: no image was judged; if that is right, give --allow-empty")}
	default:
		return exitWith(s.ExitCode)
	}
}

func (f *scanFlags) writeScript(r *results.Report) error {
	if f.script == "" {
		return nil
	}
	file, err := store.CreateReport(f.script, scriptMode)
	if err != nil {
		return err
	}
	return file.End(results.Script(file, r.Summary, r.Images))
}

// print writes the report in the format that is wanted.
func (f *scanFlags) print(format results.Format, w, stdout io.Writer, r *results.Report) error {
	if format.Terminal && f.out == "" && f.quiet {
		return nil
	}
	r.Text = f.layout(stdout)
	return format.Write(w, r)
}

// settlePlaces refuses to write over an image, over a file that the run itself needs, and where nothing can be written.
func (f *scanFlags) settlePlaces() (err error) {
	if err := f.settleOut(); err != nil {
		return err
	}
	if err := f.apart(); err != nil {
		return err
	}
	if f.catalog != "" {
		if _, err := (store.Place{Flag: "--catalog", Path: f.catalog, Role: store.Database}).Settle(); err != nil {
			return err
		}
	}
	if f.script == "" {
		return nil
	}
	script := store.Place{Flag: "--script", Path: f.script, Role: store.Script, Force: f.force, Mine: results.IsScript}
	if f.script, err = script.Settle(); err != nil {
		return err
	}
	return store.TryFolder("--script", f.script)
}

// again are the flags that make another run choose and accept the same images, for the commands that come next.
func (f *scanFlags) again() string {
	var out []string
	add := func(flag string, values ...string) {
		for _, v := range values {
			if v != "" {
				out = append(out, flag+" "+report.ShellQuote(v))
			}
		}
	}
	add("--include", f.include...)
	add("--exclude", f.exclude...)
	add("--ignore", f.ignore)
	add("--profiles", f.storage.profiles)
	add("--catalog", f.catalog)
	return strings.Join(out, " ")
}

// apart refuses one file for two purposes.
func (f *scanFlags) apart() error {
	script := store.Use{Flag: "--script", Path: f.script}
	read := []store.Use{
		{Flag: "--catalog", Path: f.catalog},
		{Flag: "--ignore", Path: f.ignore},
		{Flag: "--files-from", Path: f.filesFrom},
		{Flag: "--profiles", Path: f.storage.profiles},
	}
	for _, suffix := range []string{"-wal", "-shm", "-journal"} {
		if f.catalog != "" {
			read = append(read, store.Use{Flag: "--catalog", Path: f.catalog + suffix}) // SQLite's own
		}
	}
	if err := store.Apart(store.Use{Flag: "--out", Path: f.out}, append(read, script)...); err != nil {
		return err
	}
	return store.Apart(script, read...)
}
