// Package scan inspects many images: it walks folders, finds which files are images and which are parts of one, has
// workers judge each image, and hands over rows. A bad image can only fail its own row. Task is the whole as a value.
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
	"sync"
	"time"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/scan/results"
	"github.com/trueup/trueup/internal/scan/sandbox"
	"github.com/trueup/trueup/internal/sys"
)

// Task is the inspection of many images as a value: which, how, and by which criteria. Run carries it out once.
type Task struct {
	Choices
	Paths []string // files and folders, as the user wrote them
	// Wanted reports whether a file counts, by its path from the root that it was found under, and as it is shown; nil:
	// all do.
	Wanted   func(rel, shown string) bool
	Spare    []string       // files that the caller itself reads or writes
	Boundary align.Boundary // criterion
	Storage  align.Storage  // below all images
	Jobs     int
	Version  string // of the program

	Args []string // of the program, that make it call Serve
	// Confine restricts this process for good. Nil: the process has other work.
	Confine func(sandbox.Access)
	// Weaker receives an isolation below the one of Choices, again if a later worker has less. An error ends the run.
	Weaker func(sandbox.Isolation) error

	// Reusable has rows say what a later scan needs to take them over.
	Reusable bool
	// Ready is called when the rows of the earlier scan are known, before the first image is looked at. cut is the
	// number of a last line of Since that is incomplete, 0 if there is none.
	Ready func(cut int) error
	// Progress receives how far the scan is, one call at a time.
	Progress Progress
	// Row takes each row as soon as it is finished; an error ends the run. Nil: the report has them all. Rows for the
	// commands of Script are kept for the report, too.
	Row func(*results.Image) error
	// Interrupted returns the exit code of a run that its context has ended.
	Interrupted func() int

	ignored results.Ignore
}

// Progress receives how far a scan is.
type Progress interface {
	Found(n int)           // the walk has met n more images; n is below 0 for files that turn out to be no images
	Walked()               // it will meet no more, but images that turn out not to be parts of another
	Done(i *results.Image) // a row is finished
}

// search is a Task at work.
type search struct {
	*Task
	pool    *Pool
	start   time.Time
	today   string
	roots   results.Roots
	earlier *earlier // nil: no Since
	// settings are the build and the options that results depend on: rows have them, for a later scan that takes rows
	// over. Empty: rows are not for that.
	settings string
	spared   map[sys.ID]bool
	systems  sync.Map // UUIDs of file systems, by the numbers of their devices
	seen     inodes   // files that have a row, or a place in one: those with several names
	turns    *turns

	mu      sync.Mutex // of all below, and of the functions of Task
	summary *results.Summary
	level   sandbox.Level    // the last one that was noted
	pending int              // the walk, and folders whose images were not counted
	images  []*results.Image // of the report
	items   int              // of images
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
	if r.pool, err = r.workers(ctx); err == nil {
		err = r.look(ctx)
		if closing := r.pool.Close(); err == nil {
			err = closing
		}
	}
	if err == nil && r.earlier != nil {
		err = r.removed()
	}
	interrupted := 0
	switch {
	case errors.Is(err, context.Canceled):
		interrupted = t.Interrupted()
	case err != nil:
		return nil, err
	}
	return r.finish(interrupted), nil
}

func (t *Task) begin() *search {
	r := &search{
		Task: t, start: time.Now(), roots: results.NewRoots(t.Paths), summary: results.NewSummary(),
		elsewhere: map[sys.ID]string{}, spared: map[sys.ID]bool{}, pending: 1,
		turns: newTurns(),
	}
	r.today = r.start.UTC().Format(time.DateOnly)
	s := r.summary
	s.Paths, s.Boundary, s.Storage, s.Version, s.Replace = t.Paths, t.Boundary, t.Storage.Name, t.Version, t.Replace
	s.Shard, s.Labels = t.shard.String(), t.labels
	s.AllowEmpty, s.FailOn, s.ChangedOnly = t.Empty, string(t.fail), t.Changed
	s.Started = stamp(r.start)
	s.Isolation = results.Isolation{Wanted: t.Isolation, Achieved: string(sandbox.None), Layers: []string{}}
	return r
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// open reads the results of the earlier scan.
func (r *search) open() (err error) {
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
	r.settings = fmt.Sprintf("%s boundary=%s storage=%s:%d+%d:%t", build, r.Boundary, below.Name, below.Block,
		below.Offset, below.Rewrites)
	if r.Tables {
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

// look inspects everything below the paths. If ctx ends it returns early, with the error of ctx.
func (r *search) look(ctx context.Context) error {
	for _, name := range append(r.Spare, r.Since) {
		if st, err := sys.Stat(name); name != "" && err == nil {
			r.spared[st.ID] = true
		}
	}
	g := newGroup(ctx, max(1, r.Jobs)+2)
	err := r.walk(g.ctx, func(f *folder) {
		r.mu.Lock()
		r.pending++
		r.mu.Unlock()
		g.Go(func() error { return r.folder(g.ctx, f) })
	})
	if err == nil {
		r.announce()
	}
	if ferr := g.wait(); ferr != nil {
		err = ferr // the walk ended for it
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return err
}

// count adds to a number of the summary.
func (r *search) count(number *int, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	*number += n
}

// left counts a file that a run has not completed.
func (r *search) left(path string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.summary
	if s.Temporary++; s.Leftover == "" || path < s.Leftover {
		s.Leftover = path
	}
}

// more counts images that will have a row; n is below 0 for one that turned out to be none.
func (r *search) more(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.summary.Found += n
	if n != 0 {
		r.Progress.Found(n)
	}
}

// announce ends the count of a folder, or the walk.
func (r *search) announce() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pending--; r.pending == 0 {
		r.Progress.Walked()
	}
}

// unreadable reports a place that could not be looked at, and goes on.
func (r *search) unreadable(shown string, err error) {
	r.report(results.Unreadable{Path: shown, Error: classify(err)})
}

func (r *search) report(u results.Unreadable) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.summary.Lose(u, r.fail)
}

// row compares a row with the one of the earlier scan, and takes it.
func (r *search) row(i *results.Image) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	i.Change = r.earlier.compare(i)
	return r.addRow(i)
}

// removed takes the images of the earlier scan that are not there any more. Those of other shards are not missed.
func (r *search) removed() error {
	images, err := r.earlier.removed(r.Paths, r.shard.Has)
	if err != nil {
		return err
	}
	r.summary.LeftOut = r.earlier.left
	for _, i := range images {
		if err := r.addRow(i); err != nil {
			return err
		}
	}
	return nil
}

// addRow takes a row that is finished.
func (r *search) addRow(i *results.Image) error {
	i.Tolerated = r.Unknown
	i.Labels = r.labels
	if r.ignored.Accept(i, r.roots, r.today, r.fail); i.Accepted != nil {
		i.Copied = ""
	}
	r.summary.Add(i)
	for _, f := range i.Files {
		if r.Replace && filepath.IsAbs(f.Name) {
			r.elsewhere[sys.ID{Device: f.Device, Inode: f.Inode}] = i.Path
		}
	}
	r.Progress.Done(i)
	if r.Changed && i.Change == results.Same {
		return nil
	}
	r.summary.Exit(i, r.fail)
	if r.Row != nil {
		if err := r.Row(i); err != nil {
			return err
		}
	}
	if r.Row == nil || r.Script != "" && i.Priority != nil {
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
func (r *search) keep(i *results.Image) {
	if r.items+i.Items() > maxKeptItems {
		i.Trim(fewItems)
	}
	r.items += i.Items()
	r.images = append(r.images, i)
}

// keepParents exchanges no image that one in another folder reads: it would find another disk under the name.
func (r *search) keepParents() {
	for _, i := range r.images {
		for _, f := range i.Files {
			if user := r.elsewhere[sys.ID{Device: f.Device, Inode: f.Inode}]; user != "" && user != i.Path {
				i.NoExchange = fmt.Sprintf("%q needs %q", user, f.Name)
			}
		}
	}
}

// finish completes the sum and ranks the images. interrupted is the exit code of a run that is not complete, else 0.
func (r *search) finish(interrupted int) *results.Report {
	sum := r.summary
	out := &results.Report{Summary: sum, Fail: r.fail}
	sum.Finished, sum.Took = stamp(time.Now()), realign.Since(r.start)
	sum.Complete = interrupted == 0
	if out.NoneJudged() {
		sum.ExitCode = r.fail.Code(&results.Image{State: results.Failed})
	}
	if interrupted != 0 {
		sum.ExitCode = interrupted
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
