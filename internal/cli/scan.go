package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/library"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sandbox"
)

type scanFlags struct {
	*common
	version          string
	boundary         boundary
	storage          storage
	include, exclude []string
	filesFrom        string
	jobs             int
	isolation        string
	catalog          string
	changed          bool
	failOn           string
	ignore           string
	script           string
	force            bool
	progress         string
	noProgress       bool
	unknown, empty   bool // accepted
	tables           bool // are checked of every container
}

// scanOutputs are the ways in which scan can print.
var scanOutputs = []string{"text", "json", "csv", "html", "junit", "prometheus"}

func newScan(version string, c *common) *cobra.Command {
	f := scanFlags{common: c, version: version, boundary: boundary(align.DefaultBoundary)}
	cmd := &cobra.Command{
		Use:   "scan PATH...",
		Short: "Check a whole library of images, worst first",
		Long: `Looks at every image below the PATHs, one row each, worst first. A PATH is a file or a folder; folders are walked with all that is in
them, links are not followed, and each file is looked at once however many names it has. Images are found by content. A descriptor and its
extents are one image, an OVF and its disks are one; extents that no descriptor names are reported as orphans.
Nothing is written but the report, and the files that --catalog and --script name.

Images are read by processes of their own, which may read below the PATHs and do nothing else: one that is broken, malicious or endless
fails its own row alone (--isolation).

The rank of an image says what to realign first: what is off 4 KiB before what is off --boundary, data disks before boot disks, what can be
realigned before what would be refused, and what costs --storage more before what costs it less. --script writes the commands.

The verdict on what is aligned is of what was read: header, partition table and volumes. --check reads all tables of the container too, and
the data where there are at most 128 MiB, as inspect does.

With --catalog results are kept in a file: images that have not changed are not read again, and --changed shows only what is new,
which the exit code tells of then.

--fail-on says what makes the exit code 1, 2 or 3: each of error, 4K, 64K and 1M has those before it. Errors are 1, whatever else there is.`,
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
	fs.StringVarP(&f.output, "output", "o", "text", "how to print the result, as `FORMAT`: "+strings.Join(scanOutputs, ", "))
	complete(cmd, "output", scanOutputs...)
	boundaryFlag(cmd, &f.boundary, "partitions are to start on multiples of this, 4K to 1G")
	fs.Var(&f.storage, "storage", "what lies below the images, for the costs: "+strings.Join(align.StorageNames(), ", "))
	complete(cmd, "storage", align.StorageNames()...)
	fs.StringArrayVar(&f.include, "include", nil, "in folders, look only at files that match this `GLOB` (repeatable; * ? [a-z] within a name, ** for any folders)")
	fs.StringArrayVar(&f.exclude, "exclude", nil, "in folders, leave out files that match this `GLOB` (repeatable)")
	fs.StringVar(&f.filesFrom, "files-from", "", "read more PATHs from this `FILE`, - for standard input; each ends with a NUL or a line end")
	fs.IntVarP(&f.jobs, "jobs", "j", min(runtime.NumCPU(), maxJobs), fmt.Sprintf("look at `N` images at once, 1 to %d", maxJobs))
	fs.StringVar(&f.isolation, "isolation", isolations[len(isolations)-1], "how images are kept away from the machine, as `LEVEL`: "+strings.Join(isolations, ", ")+"; the report says what was achieved")
	complete(cmd, "isolation", isolations...)
	f.addSandbox(cmd)
	fs.StringVar(&f.catalog, "catalog", "", "keep results in this `FILE`, and do not read again what has not changed")
	fs.BoolVar(&f.changed, "changed", false, "show only what is new, changed or gone since the last run with the same --catalog; the exit code is that of what is shown")
	fs.StringVar(&f.failOn, "fail-on", "", "what the exit code tells of, as `LEVEL`: "+strings.Join(library.FailOns(), ", ")+" (default: errors, and what is off --boundary)")
	complete(cmd, "fail-on", library.FailOns()...)
	unknownFlag(cmd, &f.unknown)
	fs.BoolVar(&f.empty, "allow-empty", false, "exit 0 where no image was judged")
	fs.BoolVar(&f.tables, "check", false, "check all tables of every container, as inspect does, also of what is aligned")
	fs.StringVar(&f.ignore, "ignore", "", "accept the images that this `FILE` lists with reasons, and until which day")
	fs.StringVar(&f.script, "script", "", "write a shell script of the trueup align commands to this `FILE`, to be reviewed and run")
	fs.BoolVar(&f.force, "force", false, "replace a --script that was edited")
	fs.StringVar(&f.progress, "progress", "auto", "how progress is shown on standard error, as `KIND`: auto (a bar on a terminal), json (a line a second), none")
	complete(cmd, "progress", "auto", "json", "none")
	fs.BoolVar(&f.noProgress, "no-progress", false, "the same as --progress none")
}

// check refuses flags that cannot be right.
func (f *scanFlags) check() (library.FailOn, error) {
	switch {
	case f.asJSON && f.output != "text" && f.output != "json":
		return "", ondisk.In(errUsage, "--json and --output %s ask for two formats; give one of them", f.output)
	case !slices.Contains(scanOutputs, f.output):
		return "", ondisk.In(errUsage, "--output %q, want one of %s", f.output, strings.Join(scanOutputs, ", "))
	case f.jobs < 1 || f.jobs > maxJobs:
		return "", ondisk.In(errUsage, "--jobs %d, want 1 to %d", f.jobs, maxJobs)
	case !slices.Contains(isolations, f.isolation):
		return "", ondisk.In(errUsage, "--isolation %q, want one of %s", f.isolation, strings.Join(isolations, ", "))
	case !slices.Contains([]string{"auto", "json", "none"}, f.progress):
		return "", ondisk.In(errUsage, "--progress %q, want auto, json or none", f.progress)
	case f.requireSandbox && f.isolation != string(sandbox.Sandbox):
		return "", ondisk.In(errUsage, "--require-sandbox and --isolation %s contradict each other; give one of them", f.isolation)
	case f.changed && f.catalog == "":
		return "", ondisk.In(errUsage, "--changed needs --catalog FILE, which knows the last run")
	}
	if f.noProgress {
		f.progress = "none"
	}
	if err := f.settlePlaces(); err != nil {
		return "", err
	}
	if f.failOn == "" {
		return library.Default, f.spare()
	}
	level, err := library.ParseFailOn(f.failOn)
	if err != nil {
		return "", ondisk.In(errUsage, "--fail-on %w", err)
	}
	return level, f.spare()
}

// globs parses the globs of a flag.
func globs(flag string, texts []string) (out []*library.Glob, err error) {
	for _, text := range texts {
		g, err := library.ParseGlob(text)
		if err != nil {
			return nil, ondisk.In(errUsage, "%s %q, %w", flag, text, err)
		}
		out = append(out, g)
	}
	return out, nil
}

// wanted tells which files --include and --exclude leave.
func (f *scanFlags) wanted() (func(rel, shown string) bool, error) {
	in, err := globs("--include", f.include)
	if err != nil {
		return nil, err
	}
	ex, err := globs("--exclude", f.exclude)
	if err != nil {
		return nil, err
	}
	matches := func(gs []*library.Glob, names []string) bool {
		return slices.ContainsFunc(gs, func(g *library.Glob) bool { return g.MatchAny(names) })
	}
	return func(rel, shown string) bool {
		names := []string{rel, shown}
		return (len(in) == 0 || matches(in, names)) && !matches(ex, names)
	}, nil
}

// readIgnore reads the list of accepted images.
func (f *scanFlags) readIgnore() (*library.Ignore, error) {
	if f.ignore == "" {
		return library.ParseIgnore(nil)
	}
	in, err := os.Open(f.ignore)
	if err != nil {
		return nil, ondisk.In(errUsage, "--ignore: %w", err)
	}
	defer in.Close()
	text, err := io.ReadAll(io.LimitReader(in, library.MaxIgnore+1))
	if err != nil {
		return nil, fmt.Errorf("--ignore %s: %w", f.ignore, err)
	}
	list, err := library.ParseIgnore(text)
	if _, wrong := errors.AsType[*library.IgnoreError](err); wrong {
		return nil, ondisk.In(errUsage, "--ignore %s: %w", f.ignore, err)
	}
	return list, err
}
