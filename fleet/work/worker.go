// Package work does the jobs of a fleet on one host: it takes those of the datastores that the host sees, and has
// trueup do each in a process of its own. It decodes no image.
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

// Datastore is a folder of images that this host sees.
type Datastore struct {
	Name string
	Root string // absolute
	id   sys.ID // of the root when the worker began
}

// Worker takes jobs and does them.
type Worker struct {
	Queue      *queue.Queue
	Datastores []Datastore
	Program    string        // trueup
	Version    string        // that the program has to have
	ID         string        // of this process, among all that there ever were
	Folder     string        // of large results
	Slots      int           // jobs of a datastore that run here at once
	AtOnce     int           // jobs of a datastore that run anywhere at once; 0: as it is
	Confined   bool          // runs fail where the kernel cannot confine them
	Once       bool          // end when no job waits
	Every      time.Duration // between checkpoints; 0: 5 s, or a third of the time that a worker may be silent
	Delay      time.Duration // before a job that failed is tried again
	Stall      time.Duration // after which a run that does nothing is ended; 0: half an hour
	Waits      int           // how often in a row the files of a job may be in use; 0: 100
	Window     Window        // in which jobs are begun
	Log        *slog.Logger
	Counts     Counts
}

// idle is how long a worker waits for a job before it looks around.
const idle = 5 * time.Second

// Run works until the context ends, or with Once until no job waits.
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

// checkProgram refuses a program of another version: it has other flags.
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
		return fmt.Errorf("%s has version %s, and this worker is of %s: have both of one version, and start it again",
			w.Program, fleet.Plain(v.Version), w.Version)
	}
	return nil
}

// serveAll does the jobs of one datastore, as many at once as there are slots. A server that is away at the moment is
// waited for.
func (w *Worker) serveAll(ctx context.Context, d Datastore) error {
	source, err := w.Queue.Source(ctx, d.Name, w.AtOnce)
	for ; err != nil; source, err = w.Queue.Source(ctx, d.Name, w.AtOnce) {
		if w.Once || ctx.Err() != nil {
			return err
		}
		w.Log.Warn("no job can be taken now", "datastore", d.Name, "error", err)
		pause(ctx, time.Second)
	}
	group, ctx := errgroup.WithContext(ctx)
	for range max(w.Slots, 1) {
		group.Go(func() error { return w.serve(ctx, d, source) })
	}
	return group.Wait()
}

// serve does the jobs of one datastore, one after the other.
func (w *Worker) serve(ctx context.Context, d Datastore, source *queue.Source) error {
	said := false
	for ctx.Err() == nil {
		l, err := w.next(ctx, d, source)
		absent := errors.Is(err, errGone)
		switch {
		case errors.Is(err, context.Canceled):
		case absent && !w.Once:
			if !said {
				w.Log.Error("no job is taken", "datastore", d.Name, "error", err)
			}
			pause(ctx, idle)
		case err != nil && w.Once:
			return err
		case err != nil:
			w.Log.Warn("no job can be taken now", "datastore", d.Name, "error", err)
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

// next returns the next job, nil if no job waits.
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
		w.Log.Warn("a message was refused", "datastore", d.Name, "key", fleet.Plain(key), "error", err)
	})
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// mend queues jobs anew whose messages were lost, and drops results that nothing reports any more.
func (w *Worker) mend(ctx context.Context) error {
	for ; ctx.Err() == nil; pause(ctx, time.Hour) {
		for _, d := range w.Datastores {
			n, err := w.Queue.Mend(ctx, d.Name)
			if n > 0 {
				w.Log.Warn("jobs had no message, and are queued anew", "datastore", d.Name, "jobs", n)
			}
			if err == nil {
				err = w.Queue.DropRows(ctx, d.Name)
			}
			if err != nil && ctx.Err() == nil {
				w.Log.Warn("the queue cannot be mended now", "datastore", d.Name, "error", err)
			}
		}
	}
	return nil
}

// root returns the folder of the datastore, and remembers which it is: below a mount point on which nothing is mounted
// any more are no images.
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
		return "", fmt.Errorf("%w: %s is another folder than when the worker began; mount it again, or start the "+
			"worker again if it is right", errGone, d.Root)
	}
	return root, nil
}

// place returns where a path of a job is. A link may not lead out of the datastore.
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
	errGone    = errors.New("the datastore is not there")
)

// task is how a job is done: by runs, each of which has to succeed, and by a last step once the fence is taken.
type task struct {
	runs [][]string
	copy string   // path that the runs write, a name of its own; empty: they write none, and there is no fence
	dest string   // path of the result
	last []string // arguments of the last run; nil: the files of the copy get their names
}

// prepare returns how a job is done, or why it is not.
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
		return t, verdict{fleet.Refused, unfinished, "an exchange of it is open: trueup inspect shows what to do"}
	}
	if !exchanged && changed(at, &r.Job) {
		return t, verdict{
			fleet.Refused, "changed",
			"the image is not what it was when it was scanned; scan it again, and submit what is found",
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

// copying returns the runs of a copy, less those that an earlier delivery has completed. exchanged means that one has
// begun to give names. common are the flags of all runs.
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
		o.Flatten = false // an exchange merges no snapshots
		write = append(write, "--skip-aligned")
	}
	switch {
	case r.Kind == fleet.Align && named(t.dest): // an earlier delivery has come to its end
		t.copy, t.runs = "", [][]string{run("verify", flags, []string{at, t.dest})}
		return t, v
	case r.Kind == fleet.Align && exists(t.dest):
		return t, verdict{
			fleet.Refused, "exists", filepath.Base(t.dest) + " exists: rename it, and have the job retried, or " +
				"submit the image with another --suffix",
		}
	case exchanged:
		t.last = run("replace", o.Flags(), []string{at})
		return t, v
	case r.Kind == fleet.Exchange:
		t.last = run("replace", o.Flags(), []string{"--verify", "structure", "--by", t.copy, at})
	}
	if named(t.copy) { // an earlier delivery has taken the fence
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

// target returns where the result of a job gets its name, whose image is at a path.
func target(at string, r *fleet.Record) string {
	if r.Kind == fleet.Align {
		return filepath.Join(filepath.Dir(at), filepath.Base(r.Dest()))
	}
	return at
}

// ownName is the prefix of a job's temporary files and folders, which a scan passes over.
func ownName(r *fleet.Record) string { return ".trueup-" + r.ID() }

// roundName adds the round to ownName: a worker of an earlier round can wake up late and clear its own files.
func roundName(r *fleet.Record) string { return fmt.Sprintf("%s-%d", ownName(r), r.Round) }

// roundOf returns the round of a temporary name of a job, -1 for any other name.
func roundOf(name string, r *fleet.Record) int {
	if strings.HasPrefix(name, "..") {
		name = name[1:] // trueup puts a dot before the name of a file while it is written
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

// copyOf returns the path that the copy of an image is written to. The files of an aligned one have their final names,
// in a folder of their own. That of an exchange lies beside the image, as trueup replace --by wants it.
func copyOf(at string, r *fleet.Record) string {
	if r.Kind == fleet.Align {
		return filepath.Join(filepath.Dir(at), roundName(r), filepath.Base(r.Dest()))
	}
	return filepath.Join(filepath.Dir(at), roundName(r)+filepath.Ext(at))
}

// partialExt ends the name of a file that trueup has not completed.
const partialExt = ".partial"

// partialOf returns the path that a file has while trueup writes it.
func partialOf(path string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+partialExt)
}

// changed reports whether a file of an image is not what it was when the image was scanned.
func changed(at string, j *fleet.Job) bool {
	if now := identityOf(at); now != "" && j.Identity != "" && now != j.Identity {
		return true
	}
	return slices.ContainsFunc(j.Files, func(f fleet.File) bool {
		return identityOf(filepath.Join(filepath.Dir(at), f.Name)) != f.Identity
	})
}

// identityOf returns the identity of a file, empty if it cannot be known.
func identityOf(path string) string {
	st, err := os.Stat(path)
	if err != nil {
		return ""
	}
	return fleet.IdentityOf(st.Size(), st.ModTime().UnixNano())
}

// journal ends the name of the journal of an exchange.
const journal = ".trueup"

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// results returns the file that the results of a scan, or large ones of another job, go to.
func (w *Worker) results(r *fleet.Record) string { return filepath.Join(w.Folder, r.ResultName()) }

// Window is a time of the day, in minutes, from From up to To. The zero value is the whole day.
type Window struct{ From, To int }

// ParseWindow reads a window such as 22:00-06:00.
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

// String returns the window as ParseWindow reads it; empty: the whole day.
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
