// Package scan inspects many images: it walks folders, finds which files are images and which are parts of one, has
// workers judge each image, and hands over rows. A bad image can only fail its own row. Task is the whole as a value.
package scan

import (
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
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

// Task describes the inspection of many images: the files, the method and the criteria. Run executes it once.
type Task struct {
	Choices
	Paths []string // files and folders, as the user wrote them
	// Wanted reports whether to scan a file, by its path relative to its root and by its displayed path. If it is nil,
	// all files are scanned.
	Wanted   func(rel, shown string) bool
	Spare    []string       // files that the caller itself reads or writes
	Boundary align.Boundary // criterion
	Storage  align.Storage  // below all images
	Jobs     int
	Version  string // of the program

	Args []string // arguments that make the program call Serve
	// Confine restricts this process permanently. It is nil if the process has other work.
	Confine func(sandbox.Access)
	// Weaker receives an isolation below Choices.Isolation, and again if a later worker has less. An error ends the
	// run.
	Weaker func(sandbox.Isolation) error

	// Reusable adds the data to rows that a later scan needs to reuse them.
	Reusable bool
	// Ready is called after the rows of the earlier scan are read and before the first image. cut is the number of an
	// incomplete last line of Since, or 0.
	Ready func(cut int) error
	// Progress receives the progress of the scan, one call at a time.
	Progress Progress
	// Row receives each row as soon as it is finished; an error ends the run. If it is nil, the report contains all
	// rows. Rows for the commands of Script are always kept for the report.
	Row func(*results.Image) error
	// Interrupted returns the exit code of a run whose context was canceled.
	Interrupted func() int

	ignored results.Ignore
}

// Progress receives the progress of a scan, one call at a time.
type Progress interface {
	Found(n int)           // n more images; negative for files that turn out not to be images
	Walked()               // the walk has ended; only files that prove not to be parts may still be added
	Done(i *results.Image) // a row is finished
}

// search is the state of a running Task.
type search struct {
	*Task
	pool    *Pool
	start   time.Time
	today   string
	roots   results.Roots
	earlier *earlier // nil without Since
	// settings are the build and the options that determine results. Rows store them, so that a later scan can reuse
	// the rows. If empty, rows cannot be reused.
	settings string
	spared   map[sys.ID]bool
	systems  sync.Map // UUIDs of file systems, by device number
	seen     inodes   // named or hard-linked files that have a row, or a place in one
	turns    *turns

	mu      sync.Mutex // protects the fields below and serializes the functions of Task
	summary *results.Summary
	level   sandbox.Level    // the last one recorded
	pending int              // the walk, and folders whose images are not yet counted
	images  []*results.Image // of the report
	items   int              // number of items in images
	// elsewhere maps files to the image in another folder that reads them.
	elsewhere map[sys.ID]string
}

// Run inspects all images and returns the ranked report, which is incomplete after an interruption. With an error it
// returns no report, except for an error of closing the earlier results.
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
	s.Paths, s.Boundary, s.Storage, s.Version = t.Paths, t.Boundary, t.Storage.Name, t.Version
	s.Script, s.Replace = t.Script, t.Replace
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
		return nil // without settings, no later scan reuses the rows
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
		err = ferr // it has ended the walk
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

// left counts a temporary file of an unfinished run.
func (r *search) left(path string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.summary
	if s.Temporary++; s.Leftover == "" || path < s.Leftover {
		s.Leftover = path
	}
}

// more counts images that will have a row. n is negative for a file that turned out not to be an image.
func (r *search) more(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.summary.Found += n
	if n != 0 {
		r.Progress.Found(n)
	}
}

// announce marks a folder as counted, or the walk as ended.
func (r *search) announce() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pending--; r.pending == 0 {
		r.Progress.Walked()
	}
}

// unreadable reports an unreadable file or folder. The scan continues.
func (r *search) unreadable(shown string, err error) {
	r.report(results.Unreadable{Path: shown, Error: classify(err)})
}

func (r *search) report(u results.Unreadable) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.summary.Lose(u, r.fail)
}

// row compares a row with the earlier scan and adds it.
func (r *search) row(i *results.Image) (err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i.Change, err = r.earlier.compare(i); err != nil {
		return err
	}
	return r.addRow(i)
}

// removed adds rows for images of the earlier scan that no longer exist. It ignores images of other shards.
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

// addRow adds a finished row to the sums and passes it on.
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

// Limits of the rows kept for the report. Rows of usual disks, with few items, are always kept whole.
const (
	maxKeptItems = 1 << 18 // some 200 MB
	fewItems     = 32
)

// keep keeps a row for the report. Many images with thousands of partitions each must not exhaust the memory.
func (r *search) keep(i *results.Image) {
	if r.items+i.Items() > maxKeptItems {
		i.Trim(fewItems)
	}
	r.items += i.Items()
	r.images = append(r.images, i)
}

// keepParents forbids the exchange of an image that an image in another folder reads: the latter would find a different
// disk under the same name.
func (r *search) keepParents() {
	for _, i := range r.images {
		for _, f := range i.Files {
			if user := r.elsewhere[sys.ID{Device: f.Device, Inode: f.Inode}]; user != "" && user != i.Path {
				i.NoExchange = fmt.Sprintf("%q needs %q", user, f.Name)
			}
		}
	}
}

// finish completes the sums and ranks the images. interrupted is the exit code of an interrupted run, else 0.
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
	out.Images, out.Rows = slices.Values(r.images), len(r.images)
	return out
}

// buildOf returns the version for rows. If the version is shared by several builds, because it was not set or the
// sources were modified, it includes the identity of the program.
func buildOf(version string) (string, error) {
	if version != "devel" && version != "unknown" && !strings.HasSuffix(version, "-dirty") {
		return version, nil
	}
	path, err := os.Executable()
	if err != nil {
		return "", err
	}
	id, err := programID(path)
	return version + " " + id, err
}

// programID returns a hash of the build ID of a program, which Go's linker makes from all that it links. Without one,
// it returns a hash of the whole program.
func programID(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	var unique io.Reader = f
	if program, err := elf.NewFile(f); err == nil {
		if note := program.Section(".note.go.buildid"); note != nil {
			unique = note.Open()
		}
	}
	h := sha256.New()
	_, err = io.Copy(h, unique)
	return hex.EncodeToString(h.Sum(nil)[:8]), err
}
