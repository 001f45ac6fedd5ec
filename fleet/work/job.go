package work

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/trueup/trueup/fleet"
	"github.com/trueup/trueup/fleet/queue"
	"github.com/trueup/trueup/internal/sys"
)

// attempt is a running delivery of a job.
type attempt struct {
	*Worker
	*run
	at    Datastore
	task  task
	files []string // of the copy, at the start of its verification; nil if an earlier delivery verified it
	lease *queue.Lease
	log   *slog.Logger

	now      fleet.Progress
	advanced time.Time // time of the last progress
	heard    time.Time // time of the last successful checkpoint
	unlocked bool      // the file system has no locks, so other runs may write the copy
}

// bounded returns a context with a deadline for a request to the server, which the end of the worker does not cancel.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
}

// do runs a job and records its result. It returns an error if this worker cannot run further jobs.
func (w *Worker) do(ctx context.Context, d Datastore, l *queue.Lease) error {
	r := &l.Record
	log := w.Log.With("job", r.Key(), "kind", r.Kind, "image", fleet.Plain(filepath.Join(d.Root, r.Path)),
		"delivery", r.Delivery)
	j := &attempt{Worker: w, at: d, lease: l, log: log, now: r.Progress, advanced: time.Now(), heard: time.Now()}
	if r.State == fleet.Cancelled {
		j.cancelled(ctx)
		return nil
	}
	w.Counts.add(d.Name, 1)
	defer w.Counts.add(d.Name, -1)
	var v verdict
	var e end
	if j.task, v = w.prepare(d, r); v.state == "" {
		log.Info("the job starts")
		var err error
		if e, v, err = j.work(ctx); err != nil {
			j.fenced(ctx, err)
			return nil
		}
	}
	var other error
	if v.code == "usage" { // the program may have been replaced by another version
		if other = w.checkProgram(ctx); other != nil {
			v.state = fleet.Queued
		}
	}
	// After the fence, the next delivery uses the copy. It also waits for a run of an earlier delivery.
	if v.state != fleet.Queued || j.lease.Record.Named == "" && v.code != busy {
		err := j.checkpoint(ctx) // files of another worker's job must stay
		if errors.Is(err, queue.ErrFenced) {
			j.fenced(ctx, err)
			return nil
		}
		if err == nil {
			err = j.clear()
		}
		if err != nil {
			log.Warn("files written by the job could not be removed", "error", err)
		}
	}
	if err := j.settle(ctx, e, v, other != nil); err != nil {
		j.fenced(ctx, err)
	} else {
		w.Counts.settled(&l.Record, w.Once)
	}
	return other
}

// work performs the runs of a job, passes the fence, and renames or exchanges the copy. It returns queue.ErrFenced if
// the job belongs to another worker.
func (j *attempt) work(ctx context.Context) (e end, v verdict, err error) {
	v = verdict{state: fleet.Done}
	var result []byte
	for i, args := range j.task.runs {
		if i == 1 && j.lease.Record.Kind == fleet.Align {
			if j.files, err = filesIn(filepath.Dir(j.task.copy)); err != nil {
				return e, verdict{fleet.Queued, "io", err.Error()}, nil //nolint:nilerr // the verdict says it
			}
		}
		if e, v, err = j.runOne(ctx, args); err != nil || v.state != fleet.Done {
			return e, v, err
		}
		if i == 0 {
			result = e.output
		}
		switch {
		case j.task.copy == "" || exists(j.task.copy):
		case i == 0 && j.lease.Record.Kind == fleet.Exchange: // aligned already
			e.output = merged(result, nil, j.task.dest)
			return e, v, nil
		default:
			return e, verdict{fleet.Queued, "io", "the copy is missing: " + j.task.copy}, nil
		}
	}
	if j.task.copy != "" {
		if err := j.fence(ctx); err != nil {
			return e, v, err
		}
		if j.task.last == nil {
			v = j.publish()
		} else if e, v, err = j.runOne(ctx, j.task.last); err != nil {
			return e, v, err
		}
		result = merged(result, e.output, j.task.dest)
	}
	e.output = result
	return e, v, nil
}

// runOne performs one run, if the job still belongs to this worker.
func (j *attempt) runOne(ctx context.Context, args []string) (e end, v verdict, err error) {
	if err := j.checkpoint(ctx); errors.Is(err, queue.ErrFenced) {
		return e, v, err
	}
	if j.run, err = start(j.Program, args, func(line string) { j.log.Info("trueup", "text", line) }); err != nil {
		return e, verdict{fleet.Queued, "io", err.Error()}, nil //nolint:nilerr // the verdict says it
	}
	j.advanced = time.Now()
	return j.attend(ctx)
}

// merged returns the JSON of the last run with the size of the copy from the first run, and with final names.
func merged(first, last []byte, dest string) []byte {
	var copied, named map[string]json.RawMessage
	if json.Unmarshal(first, &copied) != nil || copied == nil {
		return last // an earlier delivery has written the copy
	}
	if json.Unmarshal(last, &named) == nil && named["replaced"] != nil {
		named["copied_bytes"] = copied["copied_bytes"]
		if out, err := json.Marshal(named); err == nil {
			return out // contains the final names
		}
		return last
	}
	var r struct {
		Dest  string                       `json:"dest"`
		Files []string                     `json:"files"`
		Disks []map[string]json.RawMessage `json:"disks"`
	}
	if json.Unmarshal(first, &r) != nil {
		return first
	}
	final := func(path string) string {
		if rest, ok := strings.CutPrefix(path, r.Dest); ok && (rest == "" || rest[0] == '!') { // of a package
			return dest + rest
		}
		return filepath.Join(filepath.Dir(dest), filepath.Base(path))
	}
	for i, f := range r.Files {
		r.Files[i] = final(f)
	}
	for _, d := range r.Disks {
		var path string
		_ = json.Unmarshal(d["dest"], &path) // always a string
		d["dest"], _ = json.Marshal(final(path))
	}
	copied["dest"], _ = json.Marshal(dest)
	copied["files"], _ = json.Marshal(r.Files)
	copied["disks"], _ = json.Marshal(r.Disks)
	out, err := json.Marshal(copied)
	if err != nil {
		return first
	}
	return out
}

// fence records the verified copy in the job, and retries while the server is unreachable. After it, the copy may get
// its final names, and no other worker starts again.
func (j *attempt) fence(ctx context.Context) error {
	identity := identityOf(j.task.copy)
	if identity == "" {
		identity = j.lease.Record.Named // the exchange has begun to rename
	}
	for {
		within, cancel := bounded(ctx)
		err := j.lease.Prove(within, identity)
		cancel()
		switch {
		case err == nil || errors.Is(err, queue.ErrFenced):
			return err
		case ctx.Err() != nil || j.isCutOff():
			return err
		}
		j.log.Warn("the server does not answer; the copy waits for its final names", "error", err)
		pause(ctx, j.every())
	}
}

// publish renames the files of a copy to their final names, the descriptor last, if no file has these names.
func (j *attempt) publish() verdict {
	dir, to := filepath.Dir(j.task.copy), filepath.Dir(j.task.dest)
	names := j.files
	if names == nil { // the ones not yet renamed
		var err error
		if names, err = filesIn(dir); err != nil {
			return verdict{fleet.Queued, "io", err.Error()}
		}
	}
	main := filepath.Base(j.task.copy)
	names = append(slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == main }), main)
	for _, give := range []func(from, to string) error{mayRename, rename} {
		for _, name := range names {
			err := give(filepath.Join(dir, name), filepath.Join(to, name))
			switch {
			case errors.Is(err, os.ErrExist):
				return verdict{fleet.Refused, "exists", name + " exists: rename it, then run trueup-fleet retry"}
			case err != nil:
				return verdict{fleet.Queued, "output", err.Error()}
			}
		}
	}
	if err := flush(to); err != nil {
		j.log.Warn("the folder of the copy cannot be flushed", "error", err)
	}
	return verdict{state: fleet.Done}
}

// filesIn lists the files of a copy in its folder.
func filesIn(dir string) (names []string, err error) {
	list, err := os.ReadDir(dir)
	for _, e := range list {
		if filepath.Ext(e.Name()) != partialExt {
			names = append(names, e.Name())
		}
	}
	return names, err
}

// mayRename returns os.ErrExist if another file has the new name.
func mayRename(from, to string) error {
	was, err := os.Lstat(from)
	if err != nil {
		return err
	}
	is, err := os.Lstat(to)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !os.SameFile(was, is) { // the same file: an earlier delivery ended between link and removal
		return os.ErrExist
	}
	return nil
}

// rename moves a file to a name in another folder, and never replaces another file.
func rename(from, to string) error {
	err := os.Link(from, to)
	switch {
	case errors.Is(err, os.ErrExist):
		err = mayRename(from, to)
	case errors.Is(err, errors.ErrUnsupported) || errors.Is(err, os.ErrPermission): // the file system has no hard links
		if err := mayRename(from, to); err != nil {
			return err
		}
		return os.Rename(from, to)
	}
	if err != nil {
		return err
	}
	return os.Remove(from)
}

// flush makes the names in a folder durable, if the system supports that.
func flush(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Sync(); !sys.Unsupported(err) {
		return err
	}
	return nil
}

// attend waits for the end of the run. It returns queue.ErrFenced if the job no longer belongs to this worker.
func (j *attempt) attend(ctx context.Context) (end, verdict, error) {
	tick := time.NewTicker(j.every())
	defer tick.Stop()
	stopping := ctx.Done()
	for {
		var err error
		select {
		case <-stopping:
			stopping = nil
			j.stop()
		case e := <-j.ended:
			return e, j.judge(e), nil
		case e, more := <-j.said:
			if !more {
				e := <-j.ended
				return e, j.judge(e), nil
			}
			j.note(e)
		case <-tick.C:
			err = j.checkpoint(ctx)
		}
		switch {
		case errors.Is(err, queue.ErrFenced) && j.lease.Record.State == fleet.Cancelled:
			j.finish(10 * time.Second) // an exchange removes its files
			return end{}, verdict{}, err
		case errors.Is(err, queue.ErrFenced):
			j.kill()
			return end{}, verdict{}, err
		case err != nil:
			j.log.Warn("the server does not answer; the run continues", "error", err)
		}
		if j.isCutOff() {
			j.kill()
			return end{}, verdict{}, errCutOff
		}
		if time.Since(j.advanced) > j.Stall {
			e := j.kill()
			return e, verdict{fleet.Queued, "stalled", "the run made no progress for " + j.Stall.String()}, nil
		}
	}
}

// note records an event of the run.
func (j *attempt) note(e event) {
	if e.Advanced(j.now) {
		j.advanced = time.Now()
	}
	j.now = e.Progress
}

// isCutOff reports whether the job may soon belong to another worker, and no lock would protect the copy from it. Half
// of AckWait is left for calls that hang.
func (j *attempt) isCutOff() bool { return j.unlocked && time.Since(j.heard) > j.lease.AckWait()/2 }

var errCutOff = errors.New("the server does not answer, and the file system has no locks")

// freeByte is the offset of a byte that no other program locks.
const freeByte = 1 << 40

// unlocked reports whether the file system of a file has no locks.
func unlocked(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	return sys.NoLocks(sys.FromOS(f).LockByte(sys.Shared, freeByte))
}

// checkpoint extends the delivery and records the progress of the run.
func (j *attempt) checkpoint(ctx context.Context) error {
	beat := j.lease.Beat()
	j.unlocked = j.unlocked || j.task.copy != "" && unlocked(partialOf(j.task.copy))
	ctx, cancel := bounded(ctx)
	defer cancel()
	begun := time.Now()
	if err := j.lease.Checkpoint(ctx, j.now); err != nil {
		return err
	}
	j.heard = begun
	return beat
}

// every returns the interval of checkpoints.
func (j *attempt) every() time.Duration {
	return cmp.Or(j.Every, min(5*time.Second, j.lease.AckWait()/3))
}

// judge returns the verdict of a run.
func (j *attempt) judge(e end) verdict {
	r := &j.lease.Record
	if r.Kind == fleet.Scan {
		if _, err := j.at.root(); err != nil { // the datastore may have been unmounted during the scan
			return verdict{fleet.Queued, gone, err.Error()}
		}
		if exists(j.results(r)) { // it exists only if it is complete
			return verdict{state: fleet.Done}
		}
		return verdictOf(e)
	}
	v := verdictOf(e, 0)
	// An earlier delivery has passed the fence, and its exchange may still be running.
	if v.code == unfinished && r.Named != "" {
		v.state, v.code = fleet.Queued, busy
	}
	return v
}

// mostResult limits a result in a record, in bytes, because a list reads all records.
const mostResult = 16 << 10

// settle ends the job, or returns it to the queue if this worker is ending. A job whose files are in use goes to the
// end of the queue.
func (j *attempt) settle(ctx context.Context, e end, v verdict, ends bool) error {
	waits := v.code == busy && !j.Once // not a failure, so it is not counted
	if waits {
		j.log.Info("the image is in use", "message", v.message)
		if err := j.lease.Beat(); err != nil {
			return err
		}
		pause(ctx, min(j.Delay, j.lease.AckWait()/2))
	}
	back := v.state == fleet.Queued && (waits || ends || v.code == gone || ctx.Err() != nil)
	ctx, cancel := bounded(ctx)
	defer cancel()
	log := j.log.With("state", v.state, "code", v.code, "message", fleet.Plain(v.message))
	note := func(r *fleet.Record) {
		r.Code, r.Message, r.Log, r.Progress = v.code, fleet.Plain(v.message), "", j.now
		if v.state != fleet.Done {
			r.Log = e.log
		}
		if r.Busy++; !waits {
			r.Busy = 0
		}
	}
	switch {
	case waits && j.lease.Record.Busy+1 >= j.Waits:
		log.Warn("the image was in use at every try")
		return j.lease.End(ctx, fleet.Dead, note)
	case back:
		log.Info("the job was returned to the queue")
		return j.lease.Return(ctx, note)
	case v.state == fleet.Queued:
		log.Warn("the job failed, and will be tried again")
		return j.lease.Release(ctx, j.Delay, note)
	}
	r := j.lease.Record
	if v.state == fleet.Done {
		if err := j.keep(ctx, &r, e.output); err != nil {
			return err
		}
	}
	log.Info("the job has ended")
	return j.lease.End(ctx, v.state, func(to *fleet.Record) {
		note(to)
		to.Result, to.ResultFile = r.Result, r.ResultFile
	})
}

// keep stores the result of a job in its record, in the queue, or in a file.
func (j *attempt) keep(ctx context.Context, r *fleet.Record, output []byte) error {
	r.Result, r.ResultFile = nil, ""
	if r.Kind == fleet.Scan {
		r.ResultFile = r.ResultName()
		return j.Queue.KeepRows(ctx, r.Key(), j.results(r))
	}
	if !json.Valid(output) {
		return nil
	}
	if len(output) <= mostResult {
		r.Result = output
		return nil
	}
	r.ResultFile = r.ResultName()
	return os.WriteFile(j.results(r), output, 0o600)
}

// fenced leaves a job that belongs to another worker, or whose end cannot be recorded now. It will be delivered again.
func (j *attempt) fenced(ctx context.Context, err error) {
	if errors.Is(err, queue.ErrFenced) && j.lease.Record.State == fleet.Cancelled {
		j.cancelled(ctx)
		return
	}
	j.log.Warn("the job is left to other workers", "error", err)
}

// cancelled removes the files of a cancelled job, then its message.
func (j *attempt) cancelled(ctx context.Context) {
	failed := j.clear()
	ctx, cancel := bounded(ctx)
	defer cancel()
	if failed != nil {
		j.log.Warn("files written by a cancelled job could not be removed; another try follows, or run "+
			"trueup-fleet cancel again",
			"error", failed)
		if err := j.lease.Again(j.Delay); err != nil {
			j.log.Warn("the server does not answer", "error", err)
		}
		return
	}
	if err := j.lease.Drop(ctx); err != nil {
		j.log.Warn("the message of a cancelled job could not be removed", "error", err)
		return
	}
	j.log.Info("the job was cancelled")
}

// clear removes the temporary files of this and earlier rounds of a job. It does not undo an exchange that has begun,
// because the disk may be in use.
func (j *attempt) clear() error {
	r := &j.lease.Record
	if r.Kind == fleet.Scan {
		return nil
	}
	dir, err := j.at.place(filepath.Dir(r.Path)) // the image may be missing
	if err != nil {
		return err
	}
	if r.Kind == fleet.Exchange && r.Named != "" && exists(filepath.Join(dir, filepath.Base(r.Path))+journal) {
		if r.State == fleet.Cancelled {
			j.log.Warn("an exchange is unfinished or complete: see trueup undo and trueup resume")
		}
		return nil
	}
	list, err := os.ReadDir(dir)
	for _, e := range list {
		if round := roundOf(e.Name(), r); round >= 0 && round <= r.Round {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return err
}
