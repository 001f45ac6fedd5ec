// Package work runs the jobs of a fleet on one host: it takes jobs of the datastores on this host, and runs each as a
// trueup process. It decodes no images.
package work

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/trueup/trueup/fleet"
	"github.com/trueup/trueup/fleet/queue"
	"github.com/trueup/trueup/internal/sys"
)

// Datastore is a folder of images on this host.
type Datastore struct {
	Name string
	Root string // absolute path
	id   sys.ID // of the root at the start of the worker
}

// Worker takes jobs and runs them.
type Worker struct {
	Queue      *queue.Queue
	Datastores []Datastore
	Program    string        // path of trueup
	Version    string        // required version of the program
	ID         string        // of this process, unique over time
	Folder     string        // for large results
	Slots      int           // concurrent jobs of a datastore in this process
	AtOnce     int           // concurrent jobs of a datastore in all workers; 0 keeps the current limit
	Confined   bool          // fail runs that the kernel cannot confine
	Once       bool          // return when no job is waiting
	Every      time.Duration // interval of checkpoints; 5 s or a third of AckWait if 0
	Delay      time.Duration // before a failed job is tried again
	Stall      time.Duration // after which a run without progress is ended; half an hour if 0
	Waits      int           // consecutive tries that may find the files of a job in use; 100 if 0
	Window     Window        // hours in which jobs may start
	Log        *slog.Logger
	Counts     Counts
}

// idle is the time that a worker waits for a job before it checks for other changes.
const idle = 5 * time.Second

// Run works until the context is cancelled, or with Once until no job is waiting.
func (w *Worker) Run(ctx context.Context) error {
	if w.Stall == 0 {
		w.Stall = 30 * time.Minute
	}
	w.Waits = cmp.Or(w.Waits, 100)
	if err := w.checkProgram(ctx); err != nil {
		return err
	}
	for i := range w.Datastores {
		if _, err := w.Datastores[i].root(); err != nil {
			return err
		}
	}
	defer w.announce(ctx)()
	group, ctx := errgroup.WithContext(ctx)
	for _, d := range w.Datastores {
		group.Go(func() error { return w.serveAll(ctx, d) })
	}
	if !w.Once {
		group.Go(func() error { return w.mend(ctx) })
	}
	err := group.Wait()
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// checkProgram refuses a program of another version, because its flags may differ.
func (w *Worker) checkProgram(ctx context.Context) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	e, err := ask(ctx, w.Program, "version", "--json")
	var v struct {
		Version string `json:"version"`
	}
	if err == nil {
		err = cmp.Or(e.err, json.Unmarshal(e.output, &v))
	}
	switch {
	case err != nil:
		return fmt.Errorf("version of %s: %w", w.Program, err)
	case v.Version != w.Version:
		return fmt.Errorf("%s has version %s, but this worker has version %s; install the same version of both, "+
			"then restart the worker",
			w.Program, fleet.Plain(v.Version), w.Version)
	}
	return nil
}

// serveAll runs the jobs of one datastore in all slots. It waits for an unreachable server.
func (w *Worker) serveAll(ctx context.Context, d Datastore) error {
	source, err := w.Queue.Source(ctx, d.Name, w.AtOnce)
	for ; err != nil; source, err = w.Queue.Source(ctx, d.Name, w.AtOnce) {
		if w.Once || ctx.Err() != nil {
			return err
		}
		w.Log.Warn("jobs cannot be taken now", "datastore", d.Name, "error", err)
		pause(ctx, time.Second)
	}
	group, ctx := errgroup.WithContext(ctx)
	for range max(w.Slots, 1) {
		group.Go(func() error { return w.serve(ctx, d, source) })
	}
	return group.Wait()
}

// serve runs the jobs of one datastore, one after the other.
func (w *Worker) serve(ctx context.Context, d Datastore, source *queue.Source) error {
	said := false
	for ctx.Err() == nil {
		l, err := w.next(ctx, d, source)
		absent := errors.Is(err, errGone)
		switch {
		case errors.Is(err, context.Canceled):
		case absent && !w.Once:
			if !said {
				w.Log.Error("jobs are not taken", "datastore", d.Name, "error", err)
			}
			pause(ctx, idle)
		case err != nil && w.Once:
			return err
		case err != nil:
			w.Log.Warn("jobs cannot be taken now", "datastore", d.Name, "error", err)
			pause(ctx, time.Second)
		case l != nil:
			err := w.do(ctx, d, l)
			l.Leave()
			if err != nil {
				return err
			}
		case w.Once:
			return nil
		}
		said = absent
	}
	return nil
}

// next returns the next job, or nil if none is waiting.
func (w *Worker) next(ctx context.Context, d Datastore, source *queue.Source) (*queue.Lease, error) {
	if _, err := d.root(); err != nil {
		return nil, err
	}
	off, err := w.Queue.Drained(ctx, d.Name)
	if err != nil {
		return nil, err
	}
	wait := idle
	if w.Once {
		wait = 0
	}
	if off || !w.Window.Contains(time.Now()) {
		pause(ctx, wait)
		return nil, nil //nolint:nilnil // none is to be taken
	}
	return source.Next(ctx, w.ID, wait, func(key string, err error) {
		w.Log.Warn("a message was rejected", "datastore", d.Name, "key", fleet.Plain(key), "error", err)
	})
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// mend queues jobs with lost messages again, and drops results that no report uses.
func (w *Worker) mend(ctx context.Context) error {
	for ; ctx.Err() == nil; pause(ctx, time.Hour) {
		for _, d := range w.Datastores {
			n, err := w.Queue.Mend(ctx, d.Name)
			if n > 0 {
				w.Log.Warn("jobs without a message were queued again", "datastore", d.Name, "jobs", n)
			}
			if err == nil {
				err = w.Queue.DropRows(ctx, d.Name)
			}
			if err != nil && ctx.Err() == nil {
				w.Log.Warn("the queue cannot be repaired now", "datastore", d.Name, "error", err)
			}
		}
	}
	return nil
}

// root returns the folder of the datastore. It fails if the folder is not the one at the start, for example an empty
// mount point.
func (d *Datastore) root() (string, error) {
	root, err := filepath.EvalSymlinks(d.Root)
	var now sys.Info
	if err == nil {
		now, err = sys.Stat(root)
	}
	switch {
	case err != nil:
		return "", fmt.Errorf("%w: %w", errGone, err)
	case d.id == sys.ID{}:
		d.id = now.ID
	case d.id != now.ID:
		return "", fmt.Errorf("%w: %s is not the folder it was when the worker started; mount the datastore again, "+
			"or if the folder is right, restart the worker", errGone, d.Root)
	}
	return root, nil
}

// place returns the absolute path of a job. Links must not lead out of the datastore.
func (d *Datastore) place(path string) (string, error) {
	root, err := d.root()
	if err != nil {
		return "", err
	}
	at := filepath.Join(root, path)
	final, err := filepath.EvalSymlinks(at)
	if err != nil {
		return "", err
	}
	if final != root && !strings.HasPrefix(final, strings.TrimSuffix(root, "/")+"/") {
		return "", errOutside
	}
	return at, nil
}

var (
	errOutside = errors.New("a link leads out of the datastore")
	errGone    = errors.New("the datastore is missing")
)

// task is the work of a job: runs that must all succeed, and a last step after the fence.
type task struct {
	runs [][]string
	copy string   // temporary path of the copy; empty for tasks without a copy, which have no fence
	dest string   // final path of the result
	last []string // arguments of the last run; if nil, the files of the copy are renamed
}

// prepare returns the task of a job, or a verdict against running it.
func (w *Worker) prepare(d Datastore, r *fleet.Record) (t task, v verdict) {
	at, err := d.place(r.Path)
	switch {
	case errors.Is(err, errOutside):
		return t, verdict{fleet.Refused, "reference", err.Error()}
	case errors.Is(err, errGone):
		return t, verdict{fleet.Queued, gone, err.Error()}
	case err != nil:
		return t, verdict{fleet.Queued, "io", err.Error()}
	}
	open := r.Kind == fleet.Exchange && exists(at+journal)
	exchanged := open && r.Named != "" // by an earlier delivery
	if open && !exchanged {
		return t, verdict{fleet.Refused, unfinished, "an exchange of it is unfinished: trueup inspect shows what " +
			"to do"}
	}
	if !exchanged && changed(at, &r.Job) {
		return t, verdict{
			fleet.Refused, "changed",
			"the image has changed since the scan; scan it again, then submit the new result",
		}
	}
	common := []string{"--json", "--progress", "json"}
	if w.Confined {
		common = append(common, "--require-sandbox")
	}
	if r.Kind == fleet.Scan {
		if err := os.Remove(w.results(r)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return t, verdict{fleet.Queued, "io", err.Error()}
		}
		label := []string{"--label", "datastore=" + d.Name, "--out", w.results(r)}
		t.runs = [][]string{slices.Concat([]string{"scan"}, common, label, r.Flags(), []string{at})}
		return t, v
	}
	return copying(at, r, common, exchanged)
}

// copying returns the task of a copy, without runs that an earlier delivery has completed. exchanged means that an
// exchange has begun. common holds the flags of all runs.
func copying(at string, r *fleet.Record, common []string, exchanged bool) (t task, v verdict) {
	t.dest, t.copy = target(at, r), copyOf(at, r)
	run := func(command string, more ...[]string) []string {
		return slices.Concat(append([][]string{{command}, common}, more...)...)
	}
	named := func(path string) bool { return r.Named != "" && identityOf(path) == r.Named }
	flags, o := []string(nil), r.Options
	if r.SkipFree {
		flags = []string{"--skip-free"}
	}
	write := []string{"--force", "--verify", "structure"}
	if r.Kind == fleet.Exchange {
		o.Flatten = false // an exchange cannot merge snapshots
		write = append(write, "--skip-aligned")
	}
	switch {
	case r.Kind == fleet.Align && named(t.dest): // an earlier delivery was complete
		t.copy, t.runs = "", [][]string{run("verify", flags, []string{at, t.dest})}
		return t, v
	case r.Kind == fleet.Align && exists(t.dest):
		return t, verdict{
			fleet.Refused, "exists", filepath.Base(t.dest) + " exists: rename it and run trueup-fleet retry, or " +
				"submit the image with another --suffix",
		}
	case exchanged:
		t.last = run("replace", o.Flags(), []string{at})
		return t, v
	case r.Kind == fleet.Exchange:
		t.last = run("replace", o.Flags(), []string{"--verify", "structure", "--by", t.copy, at})
	}
	if named(t.copy) { // an earlier delivery has passed the fence
		return t, v
	}
	if r.Kind == fleet.Align {
		if err := os.Mkdir(filepath.Dir(t.copy), 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return t, verdict{fleet.Queued, "io", err.Error()}
		}
	}
	t.runs = [][]string{
		run("align", write, o.Flags(), []string{at, t.copy}), run("verify", flags, []string{at, t.copy}),
	}
	return t, v
}

// target returns the final path of the result of a job, given the path of its image.
func target(at string, r *fleet.Record) string {
	if r.Kind == fleet.Align {
		return filepath.Join(filepath.Dir(at), filepath.Base(r.Dest()))
	}
	return at
}

// ownName is the prefix of the temporary files and folders of a job, which a scan skips.
func ownName(r *fleet.Record) string { return ".trueup-" + r.ID() }

// roundName adds the round to ownName, because a worker of an earlier round may still remove its own files.
func roundName(r *fleet.Record) string { return fmt.Sprintf("%s-%d", ownName(r), r.Round) }

// roundOf returns the round of a temporary name of a job, or -1 for any other name.
func roundOf(name string, r *fleet.Record) int {
	if strings.HasPrefix(name, "..") {
		name = name[1:] // trueup prefixes partial files with a dot
	}
	rest, own := strings.CutPrefix(name, ownName(r)+"-")
	digits, _, _ := strings.Cut(rest, ".")
	digits, _, _ = strings.Cut(digits, "-") // of a further file of the copy
	round, err := strconv.Atoi(digits)
	if !own || err != nil {
		return -1
	}
	return round
}

// copyOf returns the temporary path of the copy of an image. For align, the files have their final names in a temporary
// folder. For an exchange, the copy is beside the image, as trueup replace --by requires.
func copyOf(at string, r *fleet.Record) string {
	if r.Kind == fleet.Align {
		return filepath.Join(filepath.Dir(at), roundName(r), filepath.Base(r.Dest()))
	}
	return filepath.Join(filepath.Dir(at), roundName(r)+filepath.Ext(at))
}

// partialExt is the extension of partial files of trueup.
const partialExt = ".partial"

// partialOf returns the path of a file while trueup writes it.
func partialOf(path string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+partialExt)
}

// changed reports whether a file of an image has changed since the scan.
func changed(at string, j *fleet.Job) bool {
	if now := identityOf(at); now != "" && j.Identity != "" && now != j.Identity {
		return true
	}
	return slices.ContainsFunc(j.Files, func(f fleet.File) bool {
		return identityOf(filepath.Join(filepath.Dir(at), f.Name)) != f.Identity
	})
}

// identityOf returns the identity of a file, or an empty string on an error.
func identityOf(path string) string {
	st, err := os.Stat(path)
	if err != nil {
		return ""
	}
	return fleet.IdentityOf(st.Size(), st.ModTime().UnixNano())
}

// journal is the suffix of the journal of an exchange.
const journal = ".trueup"

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// results returns the path for the results of a scan, or for large results of another job.
func (w *Worker) results(r *fleet.Record) string { return filepath.Join(w.Folder, r.ResultName()) }

// Window is a range of the day, in minutes. The zero value is the whole day.
type Window struct{ From, To int }

// ParseWindow parses a window such as 22:00-06:00.
func ParseWindow(arg string) (out Window, err error) {
	from, to, found := strings.Cut(arg, "-")
	for i, at := range []*int{&out.From, &out.To} {
		var t time.Time
		if t, err = time.Parse("15:04", []string{from, to}[i]); err != nil || !found {
			return out, fmt.Errorf("window %q: must be times of the day such as 22:00-06:00", arg)
		}
		*at = 60*t.Hour() + t.Minute()
	}
	return out, nil
}

// String returns the window in the form of ParseWindow, or an empty string for the whole day.
func (w Window) String() string {
	if w.From == w.To {
		return ""
	}
	return fmt.Sprintf("%02d:%02d-%02d:%02d", w.From/60, w.From%60, w.To/60, w.To%60)
}

// Contains reports whether a time is in the window.
func (w Window) Contains(t time.Time) bool {
	now := 60*t.Hour() + t.Minute()
	if w.From < w.To {
		return w.From <= now && now < w.To
	}
	return w.From == w.To || now >= w.From || now < w.To
}
