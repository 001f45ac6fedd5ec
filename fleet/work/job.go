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

// attempt is a delivery of a job at work.
type attempt struct {
	*Worker
	*run
	at    Datastore
	task  task
	files []string // of the copy, when its proof began; nil: an earlier delivery has proved it
	lease *queue.Lease
	log   *slog.Logger

	now      fleet.Progress
	advanced time.Time // when work was last seen
	heard    time.Time // when the job was last known to be this worker's
	unlocked bool      // the file system knows no locks: nothing keeps another run from the copy
}

// bounded is a context for an exchange with the server that the end of this worker does not cut off.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
}

// do does a job, and settles it. The error is one after which this worker can do no other.
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
		log.Info("the job begins")
		var err error
		if e, v, err = j.work(ctx); err != nil {
			j.fenced(ctx, err)
			return nil
		}
	}
	var other error
	if v.code == "usage" { // a program that was replaced does not know the flags
		if other = w.checkProgram(ctx); other != nil {
			v.state = fleet.Queued
		}
	}
	// The next delivery goes on from a copy behind the fence, and waits for the run of an earlier one.
	if v.state != fleet.Queued || j.lease.Record.Named == "" && v.code != busy {
		err := j.checkpoint(ctx) // of another worker's job, nothing is removed
		if errors.Is(err, queue.ErrFenced) {
			j.fenced(ctx, err)
			return nil
		}
		if err == nil {
			err = j.clear()
		}
		if err != nil {
			log.Warn("what the job has written is still there", "error", err)
		}
	}
	if err := j.settle(ctx, e, v, other != nil); err != nil {
		j.fenced(ctx, err)
	} else {
		w.Counts.settled(&l.Record, w.Once)
	}
	return other
}

// work does the runs of a job, takes the fence, and renames or exchanges the copy. The error is queue.ErrFenced for a
// job of another worker.
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
			return e, verdict{fleet.Queued, "io", "the copy is gone: " + j.task.copy}, nil
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

// runOne does one run, if the job is this worker's.
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

// merged adds the size of the copy, which the first run prints, to the JSON of the last run, and the final name.
func merged(first, last []byte, dest string) []byte {
	var copied, named map[string]json.RawMessage
	if json.Unmarshal(first, &copied) != nil || copied == nil {
		return last // an earlier delivery has written the copy
	}
	if json.Unmarshal(last, &named) == nil && named["replaced"] != nil {
		named["copied_bytes"] = copied["copied_bytes"]
		if out, err := json.Marshal(named); err == nil {
			return out // it has the final names
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
		if rest, ok := strings.CutPrefix(path, r.Dest); ok && (rest == "" || rest[0] == '!') { // a member of a package
			return dest + rest
		}
		return filepath.Join(filepath.Dir(dest), filepath.Base(path))
	}
	for i, f := range r.Files {
		r.Files[i] = final(f)
	}
	for _, d := range r.Disks {
		var path string
		_ = json.Unmarshal(d["dest"], &path) // a text
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

// fence records the proved copy in the job, with retries while the server is away. After it the copy may get its names,
// and no other worker begins anew.
func (j *attempt) fence(ctx context.Context) error {
	identity := identityOf(j.task.copy)
	if identity == "" {
		identity = j.lease.Record.Named // the exchange has begun to give names
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
		j.log.Warn("the server does not answer; the copy waits for its names", "error", err)
		pause(ctx, j.every())
	}
}

// publish renames the files of a copy into place, the descriptor last, if all names are free.
func (j *attempt) publish() verdict {
	dir, to := filepath.Dir(j.task.copy), filepath.Dir(j.task.dest)
	names := j.files
	if names == nil { // those that are left
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
				return verdict{fleet.Refused, "exists", name + " exists: rename it, and have the job retried"}
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

// mayRename returns os.ErrExist where another file has the name that a file is to get.
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
	if !os.SameFile(was, is) { // else an earlier delivery was cut off between link and removal
		return os.ErrExist
	}
	return nil
}

// rename gives a file a name in another folder, if no other file has that name.
func rename(from, to string) error {
	err := os.Link(from, to)
	switch {
	case errors.Is(err, os.ErrExist):
		err = mayRename(from, to)
	case errors.Is(err, errors.ErrUnsupported) || errors.Is(err, os.ErrPermission): // a file system without links
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

// flush makes the names of a folder durable, where the system can.
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

// attend waits for the end of the run. The error is that of a job that is not this worker's any more.
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
			j.finish(10 * time.Second) // an exchange removes what it wrote
			return end{}, verdict{}, err
		case errors.Is(err, queue.ErrFenced):
			j.kill()
			return end{}, verdict{}, err
		case err != nil:
			j.log.Warn("the server does not answer; the run goes on", "error", err)
		}
		if j.isCutOff() {
			j.kill()
			return end{}, verdict{}, errCutOff
		}
		if time.Since(j.advanced) > j.Stall {
			e := j.kill()
			return e, verdict{fleet.Queued, "stalled", "the run did nothing for " + j.Stall.String()}, nil
		}
	}
}

// note takes what the run says.
func (j *attempt) note(e event) {
	if e.Advanced(j.now) {
		j.advanced = time.Now()
	}
	j.now = e.Progress
}

// isCutOff reports whether the job may be another worker's soon, and no lock would keep that one from the copy. Half of
// the time of a delivery is left for calls that hang.
func (j *attempt) isCutOff() bool { return j.unlocked && time.Since(j.heard) > j.lease.AckWait()/2 }

var errCutOff = errors.New("the server does not answer, and the file system knows no locks")

// freeByte is one of a file that nothing else locks.
const freeByte = 1 << 40

// unlocked reports whether the file system of a file knows no locks.
func unlocked(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	return sys.NoLocks(sys.FromOS(f).LockByte(sys.Shared, freeByte))
}

// checkpoint tells the server that the job is being worked on, and records how far the run is.
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

// every is the time between checkpoints.
func (j *attempt) every() time.Duration {
	return cmp.Or(j.Every, min(5*time.Second, j.lease.AckWait()/3))
}

// judge says what the end of the run means.
func (j *attempt) judge(e end) verdict {
	r := &j.lease.Record
	if r.Kind == fleet.Scan {
		if _, err := j.at.root(); err != nil { // it may have ended when nothing was mounted any more
			return verdict{fleet.Queued, gone, err.Error()}
		}
		if exists(j.results(r)) { // it is there when it is complete
			return verdict{state: fleet.Done}
		}
		return verdictOf(e)
	}
	v := verdictOf(e, 0)
	// An earlier delivery has taken the fence, and its exchange may be at work.
	if v.code == unfinished && r.Named != "" {
		v.state, v.code = fleet.Queued, busy
	}
	return v
}

// mostResult bounds a result in a record, in bytes: all records are read for a list.
const mostResult = 16 << 10

// settle ends the job, or gives it back if this worker ends. One whose files are in use goes to the end of the queue.
func (j *attempt) settle(ctx context.Context, e end, v verdict, ends bool) error {
	waits := v.code == busy && !j.Once // it does not fail, and is not counted
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
		log.Warn("the image was in use each time")
		return j.lease.End(ctx, fleet.Dead, note)
	case back:
		log.Info("the job is given back")
		return j.lease.Return(ctx, note)
	case v.state == fleet.Queued:
		log.Warn("the job failed, and is tried again")
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

// keep keeps the result of a job: in its record, beside it, or in a file.
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

// fenced ends a job that is not this worker's any more, or that cannot be settled now: it will be delivered again.
func (j *attempt) fenced(ctx context.Context, err error) {
	if errors.Is(err, queue.ErrFenced) && j.lease.Record.State == fleet.Cancelled {
		j.cancelled(ctx)
		return
	}
	j.log.Warn("the job is left to others", "error", err)
}

// cancelled removes what a cancelled job has written, and settles it then.
func (j *attempt) cancelled(ctx context.Context) {
	failed := j.clear()
	ctx, cancel := bounded(ctx)
	defer cancel()
	if failed != nil {
		j.log.Warn("what a cancelled job has written is still there; it is tried again, and cancel has it tried anew",
			"error", failed)
		if err := j.lease.Again(j.Delay); err != nil {
			j.log.Warn("the server does not answer", "error", err)
		}
		return
	}
	if err := j.lease.Drop(ctx); err != nil {
		j.log.Warn("the message of a cancelled job is still there", "error", err)
		return
	}
	j.log.Info("the job was cancelled")
}

// clear removes the temporary files of this round of a job and of earlier ones. It does not undo an exchange that has
// begun: the disk may be in use.
func (j *attempt) clear() error {
	r := &j.lease.Record
	if r.Kind == fleet.Scan {
		return nil
	}
	dir, err := j.at.place(filepath.Dir(r.Path)) // the image need not be there
	if err != nil {
		return err
	}
	if r.Kind == fleet.Exchange && r.Named != "" && exists(filepath.Join(dir, filepath.Base(r.Path))+journal) {
		if r.State == fleet.Cancelled {
			j.log.Warn("an exchange has begun to give names, or is complete: see trueup undo and trueup resume")
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
