package work

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
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
	lease *queue.Lease
	log   *slog.Logger

	now      fleet.Progress
	advanced time.Time // when work was last seen
	heard    time.Time // when the job was last known to be this worker's
	unlocked bool      // the file system knows no locks: nothing keeps another run from the copy
	asked    bool      // the run waits for the answer whether its result may get its name
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
	args, v := w.prepare(d, r)
	var e end
	if args != nil {
		log.Info("the job begins")
		var err error
		if j.run, err = start(w.Program, args, func(line string) { log.Info("trueup", "text", line) }); err != nil {
			v = verdict{fleet.Queued, "io", err.Error()}
		} else {
			e, v, err = j.attend(ctx)
			if err != nil {
				j.fenced(ctx, err)
				return nil
			}
		}
	}
	var other error
	if v.code == "usage" { // a program that was replaced does not know the flags
		if other = w.checkProgram(ctx); other != nil {
			v.state = fleet.Queued
		}
	}
	if err := j.settle(ctx, e, v, other != nil); err != nil {
		j.fenced(ctx, err)
	} else {
		w.Counts.settled(&l.Record, w.Once)
	}
	return other
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
			err = j.note(ctx, e)
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
func (j *attempt) note(ctx context.Context, e event) error {
	if e.Event == "proved" {
		j.asked, j.advanced = true, time.Now()
		return j.prove(ctx)
	}
	if e.Advanced(j.now) {
		j.advanced = time.Now()
	}
	j.now = e.Progress
	return nil
}

// prove asks the server whether the job is still this worker's, and has the run publish its result then.
func (j *attempt) prove(ctx context.Context) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	err := j.lease.Prove(ctx, identityOf(j.partial()))
	if err == nil {
		j.asked = false
		_ = j.publish() // a run that is gone has an end to say so
	}
	return err
}

// partial returns the path of the copy that the run writes, empty if it is not known.
func (j *attempt) partial() string {
	r := &j.lease.Record
	at, err := j.at.place(r.Path)
	if err != nil || r.Kind == fleet.Scan {
		return ""
	}
	return partialOf(target(at, r))
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
	return sys.NoLocks(sys.Of(f).LockByte(sys.Shared, freeByte))
}

// checkpoint tells the server that the job is being worked on, and records how far the run is.
func (j *attempt) checkpoint(ctx context.Context) error {
	beat := j.lease.Beat()
	if j.asked {
		j.advanced = time.Now() // it waits for this worker
		if err := j.prove(ctx); err != nil {
			return err
		}
	}
	j.unlocked = j.unlocked || unlocked(j.partial())
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
	return verdictOf(e, 0)
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

// clear removes what a cancelled job has written. What another run has left there is not touched, and an exchange that
// has begun to give names is not taken back: the disk may be in use since.
func (j *attempt) clear() error {
	r := &j.lease.Record
	if r.Kind == fleet.Scan || j.now.Phase == "" {
		return nil
	}
	dir, err := j.at.place(filepath.Dir(r.Path))
	if err != nil {
		return err
	}
	at := filepath.Join(dir, filepath.Base(r.Path)) // the image need not be there
	to := target(at, r)
	if r.Kind == fleet.Exchange && exists(to+journal) {
		j.log.Warn("an exchange has begun to give names, or is complete: see trueup undo and trueup resume")
		return nil
	}
	// A run removes what an earlier one has left before it copies. It is ended then.
	left, args := partialOf(to), runArgs(r, []string{"--json", "--progress", "json"}, at, to)
	if !exists(left) {
		return nil
	}
	e, err := j.tidy(args)
	if err == nil && exists(left) {
		err = errors.New(verdictOf(e, 0).message)
	}
	return err
}

// tidy has the program remove what is left of a job, while that is kept.
func (j *attempt) tidy(args []string) (end, error) {
	r, err := start(j.Program, args, func(line string) { j.log.Info("trueup", "text", line) })
	if err != nil {
		return end{}, err
	}
	tick := time.NewTicker(j.every())
	defer tick.Stop()
	for advanced := time.Now(); ; {
		select {
		case e, more := <-r.said:
			switch {
			case !more:
				return <-r.ended, nil
			case e.Phase == "copy" || e.Event == "proved":
				return r.finish(j.Stall), nil
			}
			advanced = time.Now()
		case <-tick.C:
			if time.Since(advanced) > j.Stall {
				return r.kill(), nil
			}
			if err := j.lease.Beat(); err != nil {
				j.log.Warn("the server does not answer", "error", err)
			}
		}
	}
}
