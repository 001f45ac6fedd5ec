package fleetcmd

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/fleet"
	"github.com/trueup/trueup/fleet/queue"
	"github.com/trueup/trueup/internal/shell"
	"github.com/trueup/trueup/internal/units"
)

type submitFlags struct {
	*base
	fleet.Worklist
	datastore string
	lists     []string
	match     string
	shards    int
}

// submitted is the result of the command submit.
type submitted struct {
	Jobs    int             `json:"jobs"`
	Known   int             `json:"known"` // already known, in any state
	Refused []fleet.Refusal `json:"refused"`
	Skipped map[string]int  `json:"skipped"`
}

func newSubmit(b *base) *cobra.Command {
	cmd := &cobra.Command{
		Use: "submit scan|align|exchange", Short: "Queue jobs",
		Args: func(_ *cobra.Command, args []string) error {
			return usage("submit %q: must be scan, align or exchange", strings.Join(args, " "))
		},
		RunE: func(*cobra.Command, []string) error { return nil },
	}
	cmd.AddCommand(newSubmitScan(b), newSubmitImages(b, fleet.Align), newSubmitImages(b, fleet.Exchange))
	return cmd
}

func newSubmitScan(b *base) *cobra.Command {
	f := submitFlags{base: b}
	f.Kind = fleet.Scan
	cmd := &cobra.Command{
		Use:   "scan --datastore NAME [FOLDER]...",
		Short: "Queue scans of folders of a datastore",
		Long: `Queues a scan of each FOLDER below the datastore, or of the whole datastore. Each call queues new
scans. With --shards N, each of N jobs judges a share of the images.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				args = []string{"."}
			}
			f.Options.Again = time.Now().UTC().Format(time.RFC3339Nano)
			return f.run(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), args)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&f.datastore, "datastore", "", "`NAME` of the datastore")
	fs.StringVar(&f.Options.Boundary, "boundary", "", "judge by a boundary of `SIZE`")
	fs.IntVar(&f.shards, "shards", 1, "split the scan into `N` jobs")
	return cmd
}

func newSubmitImages(b *base, kind fleet.Kind) *cobra.Command {
	f := submitFlags{base: b, shards: 1}
	f.Kind = kind
	what := "Queue aligned copies of images, written beside them"
	if kind == fleet.Exchange {
		what = "Queue the exchange of images for their aligned copies"
	}
	cmd := &cobra.Command{
		Use:   string(kind) + " --datastore NAME[=DIR] [--worklist FILE]... [PATH]...",
		Short: what,
		Long: what + `. Images are named by PATHs below the datastore, or by a worklist:
results of trueup scan -o json, with the datastore at DIR. Images of a worklist that are refused, aligned or accepted,
and packages, are not queued. A known job is not queued again, whatever its state: use trueup-fleet retry.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), args)
		},
	}
	fs, o := cmd.Flags(), &f.Options
	fs.StringVar(&f.datastore, "datastore", "", "`NAME[=DIR]` of the datastore; DIR is its folder in the scan")
	fs.StringArrayVar(&f.lists, "worklist", nil, "read results of trueup scan -o json from `FILE`, or - "+
		"(repeatable)")
	fs.StringVar(&f.match, "match", "", "queue only images of a worklist that match `GLOB`, such as *.vmdk")
	fs.BoolVar(&f.Below, "below", false, "also queue images of a worklist that are below the boundary")
	if kind == fleet.Align {
		fs.StringVar(&o.Suffix, "suffix", fleet.DefaultSuffix,
			"append `TEXT` to the names of copies, before the extension")
	}
	fs.StringVar(&o.Boundary, "boundary", "", "move partitions to a boundary of `SIZE`")
	fs.BoolVar(&o.SkipFree, "skip-free", false, "write zeros in place of space that NTFS, ext and FAT call free")
	fs.BoolVar(&o.DataOnly, "data-only", false, "do not move partitions that take part in the boot")
	fs.BoolVar(&o.AllowUnbootable, "allow-unbootable", false, "proceed although a copy may not boot")
	fs.BoolVar(&o.Flatten, "flatten", false, "merge a snapshot and its parents into one disk")
	return cmd
}

func (f *submitFlags) run(ctx context.Context, in io.Reader, out io.Writer, paths []string) error {
	var seen bool
	f.Datastore, f.Prefix, seen = strings.Cut(f.datastore, "=")
	switch err := fleet.CheckName(f.Datastore); {
	case f.datastore == "":
		return usage("submit takes --datastore NAME, none given")
	case err != nil:
		return usage("--datastore: %w", err)
	case f.Kind != fleet.Scan && len(paths)+len(f.lists) == 0:
		return usage("submit %s takes a PATH or a --worklist, none given", f.Kind)
	case len(f.lists) > 0 && (!seen || f.Prefix == ""):
		return usage("--worklist needs --datastore NAME=DIR, where DIR is the folder of the datastore in the scan")
	case f.shards < 1:
		return usage("--shards %d: must be 1 or more", f.shards)
	}
	s := submitted{Refused: []fleet.Refusal{}}
	var err error
	if f.match != "" {
		if f.Match, err = shell.ParseGlob(f.match); err != nil {
			return usage("--match %q: %w", f.match, err)
		}
	}
	err = f.with(ctx, func(q *queue.Queue) error {
		var err error
		s.Jobs, s.Known, err = q.SubmitAll(ctx, func(take func(fleet.Job) error) error {
			return f.each(in, paths, take)
		})
		return err
	})
	if err != nil {
		return err
	}
	s.Refused, s.Skipped = append(s.Refused, f.Refused...), f.Skipped
	if n := f.Skipped[f.NotBelow()]; n > 0 && s.Jobs+s.Known+len(s.Refused) == 0 {
		return fmt.Errorf("--worklist: %s, none below %s: scan the datastore by its absolute path, and give that "+
			"path as --datastore %s=DIR", units.Counted(n, "image"), f.Prefix, f.Datastore)
	}
	return f.print(out, s, s.show)
}

// each calls take for all jobs.
func (f *submitFlags) each(in io.Reader, paths []string, take func(fleet.Job) error) error {
	for _, j := range f.named(paths) {
		if err := j.Check(); err != nil {
			return usage("%w", err)
		}
		if err := take(j); err != nil {
			return err
		}
	}
	for _, list := range f.lists {
		if err := f.read(in, list, take); err != nil {
			return fmt.Errorf("--worklist %s: %w", list, err)
		}
	}
	return nil
}

// named returns the jobs for paths on the command line.
func (f *submitFlags) named(paths []string) (out []fleet.Job) {
	for _, path := range paths {
		for k := range f.shards {
			j := fleet.Job{Kind: f.Kind, Datastore: f.Datastore, Path: path, Options: f.Options}
			if f.shards > 1 {
				j.Shard = fmt.Sprintf("%d/%d", k+1, f.shards)
			}
			out = append(out, j)
		}
	}
	return out
}

func (f *submitFlags) read(in io.Reader, list string, take func(fleet.Job) error) error {
	if list == "-" {
		return f.Read(in, take)
	}
	file, err := os.Open(list)
	if err != nil {
		return err
	}
	defer file.Close()
	return f.Read(file, take)
}

func (s submitted) show(w io.Writer) {
	fmt.Fprint(w, units.Counted(s.Jobs, "job"), " queued")
	if s.Known > 0 {
		fmt.Fprintf(w, ", %d already known", s.Known)
	}
	fmt.Fprintln(w)
	for _, why := range slices.Sorted(maps.Keys(s.Skipped)) {
		fmt.Fprintf(w, "%s skipped: %s\n", units.Counted(s.Skipped[why], "image"), why)
	}
	for _, r := range s.Refused {
		line := fleet.Plain(r.Path) + ": " + r.Reason
		if r.Remedy != "" {
			line += "; " + r.Remedy
		}
		fmt.Fprintln(w, "refused:", line)
	}
}
