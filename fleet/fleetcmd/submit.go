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

// submitted is the result of submit.
type submitted struct {
	Jobs    int             `json:"jobs"`
	Known   int             `json:"known"` // already, in whatever state
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
		Short: "Have the images below folders of a datastore judged",
		Long: `Queues a scan of each FOLDER below the datastore, or of the whole datastore. A scan is wanted each time,
and is queued each time. With --shards, each of so many jobs judges a share of the images.`,
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
	fs.IntVar(&f.shards, "shards", 1, "divide the scan into `N` jobs")
	return cmd
}

func newSubmitImages(b *base, kind fleet.Kind) *cobra.Command {
	f := submitFlags{base: b, shards: 1}
	f.Kind = kind
	what := "Have aligned copies of images written beside them"
	if kind == fleet.Exchange {
		what = "Have images exchanged for their aligned copies"
	}
	cmd := &cobra.Command{
		Use:   string(kind) + " --datastore NAME[=DIR] [--worklist FILE]... [PATH]...",
		Short: what,
		Long: what + `. Images come from results of trueup scan -o json, in which the
datastore was seen at DIR, or are named by PATHs below the datastore. Images of a worklist that are refused, aligned or
accepted are no jobs. A job that is known already, in whatever state, is not queued again: trueup-fleet retry does
that.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), args)
		},
	}
	fs, o := cmd.Flags(), &f.Options
	fs.StringVar(&f.datastore, "datastore", "", "`NAME[=DIR]` of the datastore, and where the scan saw it")
	fs.StringArrayVar(&f.lists, "worklist", nil, "results of trueup scan -o json in `FILE`, or - (repeatable)")
	fs.StringVar(&f.match, "match", "", "of a worklist, only paths or names that match `GLOB`, such as *.vmdk")
	fs.BoolVar(&f.Below, "below", false, "of a worklist, also images that are off the boundary, but on 4 KiB")
	if kind == fleet.Align {
		fs.StringVar(&o.Suffix, "suffix", fleet.DefaultSuffix,
			"end the names of copies with `TEXT`, before the extension")
	}
	fs.StringVar(&o.Boundary, "boundary", "", "move partitions to a boundary of `SIZE`")
	fs.BoolVar(&o.SkipFree, "skip-free", false, "leave out what NTFS, ext and FAT call free: zeros are there instead")
	fs.BoolVar(&o.DataOnly, "data-only", false, "leave partitions that the boot needs in place")
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
		return usage("--worklist needs --datastore NAME=DIR, with the DIR where the scan saw the datastore")
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
		return fmt.Errorf("--worklist: %s, none below %s: scan the datastore by its absolute path, and name that in "+
			"--datastore %s=DIR", units.Counted(n, "image"), f.Prefix, f.Datastore)
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

// named returns the jobs of paths.
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
		fmt.Fprintf(w, ", %d known already", s.Known)
	}
	for _, why := range slices.Sorted(maps.Keys(s.Skipped)) {
		fmt.Fprintf(w, ", %d %s", s.Skipped[why], why)
	}
	fmt.Fprintln(w, ".")
	for _, r := range s.Refused {
		fmt.Fprintf(w, "refused: %s: %s\n", fleet.Plain(r.Path), r.Reason)
	}
}
