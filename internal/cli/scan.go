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
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/scan/results"
	"github.com/trueup/trueup/internal/scan/sandbox"
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

func newScan(version string, c *common) *cobra.Command {
	f := scanFlags{common: c, version: version, boundary: boundary(align.DefaultBoundary)}
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
	fs.Var(&f.storage, "storage", "storage below the images, for the costs: "+strings.Join(align.StorageNames(), ", "))
	complete(cmd, "storage", align.StorageNames()...)
	fs.StringArrayVar(&f.include, "include", nil, "inspect only files in folders that match `GLOB` (repeatable)")
	fs.StringArrayVar(&f.exclude, "exclude", nil, "skip files in folders that match `GLOB` (repeatable)")
	fs.StringVar(&f.filesFrom, "files-from", "", "read more PATHs from `FILE`, or - for standard input")
	jobs := fmt.Sprintf("inspect `N` images at once, 1 to %d", maxJobs)
	fs.IntVarP(&f.jobs, "jobs", "j", min(runtime.NumCPU(), maxJobs), jobs)
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
	fs.StringVar(&f.ignore, "ignore", "", "accept the images listed in `FILE`")
	fs.StringVar(&f.script, "script", "", "write a shell script of the align commands to `FILE`")
	fs.BoolVar(&f.force, "force", false, "replace a --script that was edited")
	fs.StringVar(&f.progress, "progress", "auto", "show progress as `KIND`: auto (a bar on terminals), json or none")
	complete(cmd, "progress", "auto", "json", "none")
	fs.BoolVar(&f.noProgress, "no-progress", false, "same as --progress none")
}

// check refuses flags that cannot be right.
func (f *scanFlags) check() (results.FailOn, error) {
	switch {
	case f.asJSON && f.output != "text" && f.output != "json":
		return "", ondisk.In(errUsage, "--json and --output %s ask for two formats; give one of them", f.output)
	case !slices.Contains(results.FormatNames(), f.output):
		return "", ondisk.In(errUsage, "--output %q, want one of %s", f.output, strings.Join(results.FormatNames(), ", "))
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
		return results.Default, f.spare()
	}
	level, err := results.ParseFailOn(f.failOn)
	if err != nil {
		return "", ondisk.In(errUsage, "--fail-on %w", err)
	}
	return level, f.spare()
}

// globs parses the globs of a flag.
func globs(flag string, texts []string) (out []*results.Glob, err error) {
	for _, text := range texts {
		g, err := results.ParseGlob(text)
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
	matches := func(gs []*results.Glob, names []string) bool {
		return slices.ContainsFunc(gs, func(g *results.Glob) bool { return g.MatchAny(names) })
	}
	return func(rel, shown string) bool {
		names := []string{rel, shown}
		return (len(in) == 0 || matches(in, names)) && !matches(ex, names)
	}, nil
}

// readIgnore reads the list of accepted images.
func (f *scanFlags) readIgnore() (*results.Ignore, error) {
	if f.ignore == "" {
		return results.ParseIgnore(nil)
	}
	in, err := os.Open(f.ignore)
	if err != nil {
		return nil, ondisk.In(errUsage, "--ignore: %w", err)
	}
	defer in.Close()
	text, err := io.ReadAll(io.LimitReader(in, results.MaxIgnore+1))
	if err != nil {
		return nil, fmt.Errorf("--ignore %s: %w", f.ignore, err)
	}
	list, err := results.ParseIgnore(text)
	if _, wrong := errors.AsType[*results.IgnoreError](err); wrong {
		return nil, ondisk.In(errUsage, "--ignore %s: %w", f.ignore, err)
	}
	return list, err
}
