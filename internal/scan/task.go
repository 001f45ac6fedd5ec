package scan

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/scan/results"
	"github.com/trueup/trueup/internal/scan/sandbox"
	"github.com/trueup/trueup/internal/sys"
)

// Task is the inspection of many images as a value: which, how, and by which criteria. Run carries it out once.
type Task struct {
	Paths    []string                     // files and folders, as the user wrote them
	Wanted   func(rel, shown string) bool // as in Options
	Spare    []string                     // files that the caller itself reads or writes
	Boundary int64                        // criterion, bytes
	Storage  align.Storage                // below all images
	Check    bool                         // reads all tables of every container
	Shard    Shard
	Labels   results.Labels // of all rows
	Jobs     int
	Version  string // of the program
	Again    string // flags that choose the same images once more

	Level sandbox.Level
	Args  []string // of the program, that make it call Serve
	// Confine restricts this process for good. Nil: the process has other work.
	Confine func(sandbox.Access)
	// Weaker receives an isolation below Level, again if a later worker has less. An error ends the run.
	Weaker func(sandbox.Isolation) error

	Since string // NDJSON of an earlier scan, whose rows are taken over where nothing has changed; empty: none
	// First allows that Since is not there: nothing was scanned yet.
	First bool
	// Reusable has rows say what a later scan needs to take them over.
	Reusable     bool
	ChangedOnly  bool // rows and exit code are those of new, changed and removed images
	Ignore       *results.Ignore
	Fail         results.FailOn
	AllowUnknown bool
	AllowEmpty   bool

	// Ready is called when the rows of the earlier scan are known, before the first image is looked at. cut is the
	// number of a last line of Since that is incomplete, 0 if there is none.
	Ready    func(cut int) error
	Progress Progress
	// Row takes each row as soon as it is finished. Nil: the report has them all.
	Row func(*results.Image) error
	// KeepRanked also keeps the rows with a priority for the report, which Row has taken.
	KeepRanked bool
	// Replace finds out which of these cannot be exchanged for their copies.
	Replace bool
	// Interrupted returns the exit code of a run that its context has ended.
	Interrupted func() int
}

// Progress receives how far a scan is, from any goroutine.
type Progress interface {
	Found(n int)           // the walk has met n more images
	Walked()               // it will meet no more
	Done(i *results.Image) // a row is finished
}

// running is a Task at work.
type running struct {
	*Task
	start   time.Time
	today   string
	roots   results.Roots
	earlier *earlier // nil: no Since
	// settings are as in Options.
	settings string
	summary  *results.Summary
	copies   *results.Copies
	images   []*results.Image // of the report
	items    int              // of images
	// elsewhere are the files that an image in another folder reads, and that image.
	elsewhere map[sys.ID]string
}

// Run looks at all images and returns the report, ranked. One that is not complete was interrupted.
func (t *Task) Run(ctx context.Context) (out *results.Report, err error) {
	r := t.begin()
	if err := r.open(); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.earlier.close()) }()
	if t.Ready != nil {
		if err := t.Ready(r.earlier.cutLine()); err != nil {
			return nil, err
		}
	}
	interrupted := 0
	switch err := r.look(ctx); {
	case errors.Is(err, context.Canceled):
		interrupted = t.Interrupted()
	case err != nil:
		return nil, err
	}
	return r.finish(interrupted), nil
}

func (t *Task) begin() *running {
	r := &running{
		Task: t, start: time.Now(), summary: results.NewSummary(), copies: results.NewCopies(),
		elsewhere: map[sys.ID]string{},
	}
	r.roots = results.NewRoots(t.Paths)
	r.today = r.start.UTC().Format(time.DateOnly)
	s := r.summary
	s.Paths, s.Boundary, s.Storage, s.Version = t.Paths, t.Boundary, t.Storage.Name, t.Version
	s.Replace = t.Replace
	s.Shard, s.Labels = t.Shard.String(), t.Labels
	s.AllowEmpty, s.FailOn, s.ChangedOnly, s.Again = t.AllowEmpty, string(t.Fail), t.ChangedOnly, t.Again
	s.Started = stamp(r.start)
	s.Isolation = results.Isolation{Wanted: string(t.Level), Achieved: string(sandbox.None), Layers: []string{}}
	return r
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// open reads the results of the earlier scan.
func (r *running) open() (err error) {
	if r.Since == "" && !r.Reusable {
		return nil
	}
	build, err := buildOf(r.Version)
	switch {
	case err != nil && r.Since == "":
		return nil // without settings, no later scan takes the rows over
	case err != nil:
		return err
	}
	below := r.Storage
	r.settings = fmt.Sprintf("%s boundary=%d storage=%s:%d+%d:%t", build, r.Boundary, below.Name, below.Block,
		below.Offset, below.Rewrites)
	if r.Check {
		r.settings += " check"
	}
	if r.Since == "" {
		return nil
	}
	r.earlier, err = openEarlier(r.Since, r.settings, r.First)
	if err == nil {
		r.summary.Changes = &results.Changes{Since: r.earlier.ended}
	}
	return err
}

// look has the workers look at all images.
func (r *running) look(ctx context.Context) error {
	pool, err := r.pool(ctx)
	if err != nil {
		return err
	}
	o := Options{
		Paths: r.Paths, Wanted: r.Wanted, Spare: r.spared(), Jobs: r.Jobs, Pool: pool,
		Flags:    results.BoundaryFlags(r.Boundary),
		Exchange: r.Replace, Shard: r.Shard, Settings: r.settings, Started: r.start, earlier: r.earlier,
		Found: r.Progress.Found, Walked: r.Progress.Walked, Row: r.row,
		Unreadable: func(u results.Unreadable) { r.summary.Lose(u, r.Fail) },
	}
	res, err := Scan(ctx, o)
	r.summary.Found, r.summary.Skipped, r.summary.Temporary = res.Found, res.Skipped, res.Temporary
	r.summary.Others, r.summary.Links, r.summary.Leftover = res.Others, res.Links, res.Leftover
	closing := pool.Close()
	if err == nil {
		err = closing
	}
	if err == nil && r.earlier != nil {
		err = r.removed()
	}
	return err
}

// achieved notes the isolation of a worker, of which the least counts.
func (r *running) achieved(got sandbox.Isolation) error {
	if was := r.summary.Isolation; got.Achieved == got.Wanted && len(was.Layers) > 0 && was.Achieved != was.Wanted {
		return nil // other workers have less
	}
	r.summary.Isolation = results.Isolation{
		Wanted: string(got.Wanted), Achieved: string(got.Achieved), Layers: append([]string{}, got.Layers...),
		Note: got.Note,
	}
	if got.Achieved == got.Wanted {
		return nil
	}
	return r.Weaker(got)
}

// spared selects the files of the run itself, which are no images whatever they hold.
func (r *running) spared() func(device, inode uint64) bool {
	ids := map[sys.ID]bool{}
	for _, name := range append(r.Spare, r.Since) {
		if st, err := sys.Stat(name); name != "" && err == nil {
			ids[st.ID] = true
		}
	}
	return func(device, inode uint64) bool { return ids[sys.ID{Device: device, Inode: inode}] }
}

// removed hands over the images of the earlier scan that are not there any more. Those of other shards are not missed.
func (r *running) removed() error {
	images, err := r.earlier.removed(r.Paths, r.Shard.Has)
	if err != nil {
		return err
	}
	for _, i := range images {
		if err := r.row(i); err != nil {
			return err
		}
	}
	return nil
}

// row takes a row that is finished.
func (r *running) row(i *results.Image) error {
	i.Tolerated = r.AllowUnknown
	i.Labels = r.Labels
	r.Ignore.Accept(i, r.roots, r.today, r.Fail)
	r.summary.Add(i)
	r.copies.Add(i)
	for _, f := range i.Files {
		if r.Replace && filepath.IsAbs(f.Name) {
			r.elsewhere[sys.ID{Device: f.Device, Inode: f.Inode}] = i.Path
		}
	}
	r.Progress.Done(i)
	if r.ChangedOnly && i.Change == results.Same {
		return nil
	}
	r.summary.Exit(i, r.Fail)
	if r.Row != nil {
		if err := r.Row(i); err != nil {
			return err
		}
	}
	if r.Row == nil || r.KeepRanked && i.Priority != nil {
		r.keep(i)
	}
	return nil
}

// Limits of the rows that are kept until the report. Rows of few items, as of usual disks, are always kept whole.
const (
	maxKeptItems = 1 << 18 // some 200 MB
	fewItems     = 32
)

// keep keeps a row for the report. Many images of thousands of partitions each must not take all memory.
func (r *running) keep(i *results.Image) {
	if r.items+i.Items() > maxKeptItems {
		i.Trim(fewItems)
	}
	r.items += i.Items()
	r.images = append(r.images, i)
}

// keepParents exchanges no image that one in another folder reads: it would find another disk under the name.
func (r *running) keepParents() {
	for _, i := range r.images {
		for _, f := range i.Files {
			if user := r.elsewhere[sys.ID{Device: f.Device, Inode: f.Inode}]; user != "" && user != i.Path {
				i.NoExchange = fmt.Sprintf("%q needs %q", user, f.Name)
			}
		}
	}
}

// finish completes the sum and ranks the images. interrupted is the exit code of a run that is not complete, else 0.
func (r *running) finish(interrupted int) *results.Report {
	sum := r.summary
	out := &results.Report{Summary: sum, Fail: r.Fail}
	sum.Finished, sum.Took = stamp(time.Now()), realign.Since(r.start)
	sum.Complete, sum.IgnoreNotes = interrupted == 0, r.Ignore.Notes(r.today)
	if out.NoneJudged() {
		sum.ExitCode = r.Fail.Code(&results.Image{State: results.Failed})
	}
	if interrupted != 0 {
		sum.ExitCode = interrupted
	}
	r.copies.Settle(sum)
	for _, i := range r.images {
		r.copies.Mark(i)
	}
	r.keepParents()
	results.Rank(r.images)
	out.Images = slices.Values(r.images)
	return out
}

// buildOf returns the version as rows name it. Builds that share a version with others, since it was
// not set or the sources had changed, differ by the hash of the program.
func buildOf(version string) (string, error) {
	if version != "devel" && version != "unknown" && !strings.HasSuffix(version, "-dirty") {
		return version, nil
	}
	path, err := os.Executable()
	if err != nil {
		return "", err
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s %x", version, h.Sum(nil)[:8]), nil
}
