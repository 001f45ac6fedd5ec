package realign

import (
	"context"
	"errors"
	"fmt"

	"github.com/trueup/trueup/internal/exchange"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/ondisk"
)

// Undo, Resume and Finish are the commands that go on with open work.
const (
	Undo   = "undo"
	Resume = "resume"
	Finish = "finish"
)

// GoOn says how to go on with open work, which is locked.
type GoOn struct {
	Command  string
	KeepNone bool // resume an exchange of which no original is to stay
	Judge    bool // change nothing: the error says why the command would be refused
	// Allow are folders in which, and below, overlays of the disks of an exchange are looked for.
	Allow []string
}

// GoOn goes on with open work, which is locked. It refuses a command that does not apply.
func (j *Job) GoOn(ctx context.Context, w *journal.Held, g GoOn) (journal.Done, error) {
	not := map[string]string{Undo: w.Work.Undo, Resume: w.Work.Resume, Finish: w.Work.Finish}[g.Command]
	drops := g.Command == Undo && j.Force && w.Work.Drops
	switch {
	case not != "" && !drops:
		return journal.Done{}, &ondisk.Refusal{Code: "unfinished", Reason: w.Work.Text, Remedy: not}
	case g.Judge && w.Work.Kind != journal.Exchange:
		return journal.Done{}, nil // looked at when its turn comes
	case w.Journal == nil: // and the command is undo
		return journal.Done{Text: "nothing was begun; the journal is removed"}, w.Remove()
	}
	switch kind := w.Work.Kind; {
	case kind == journal.Exchange:
		return j.goOnExchange(ctx, w, g)
	case kind == journal.InPlace && g.Command != Finish:
		return j.goOnInPlace(ctx, w, g.Command == Undo)
	}
	return journal.Done{}, fmt.Errorf("no %s of %q", g.Command, w.Work.Kind) // our own bug
}

// goOnExchange completes an exchange, takes it back, or removes the original.
func (j *Job) goOnExchange(ctx context.Context, w *journal.Held, g GoOn) (journal.Done, error) {
	files, err := exchange.Files(w)
	if err != nil {
		return journal.Done{}, err
	}
	for _, name := range files {
		if st, err := w.Dir.At.Lstat(name); err == nil {
			if err := j.Looped.apart(st.ID, name); err != nil {
				return journal.Done{}, err
			}
		}
	}
	w.Writers = j.Writers
	j.watch()
	allowed, err := Reading{Allow: g.Allow}.Options()
	if err != nil {
		return journal.Done{}, err
	}
	o := journal.Options{Force: j.Force, Judge: g.Judge, Search: allowed.Search, Progress: j.progress}
	switch g.Command {
	case Undo:
		return exchange.Undo(ctx, w, o)
	case Finish:
		return exchange.Finish(ctx, w, o)
	}
	done, err := exchange.Resume(ctx, w, o)
	if err != nil || !g.KeepNone {
		return done, err
	}
	return exchange.Finish(ctx, w, o)
}

// FinishExchange removes the original of the disk at path, which was exchanged. allow are folders as those of GoOn.
func (j *Job) FinishExchange(ctx context.Context, path string, allow []string) error {
	w, err := journal.Hold(path, "")
	if err == nil {
		_, err = j.goOnExchange(ctx, w, GoOn{Command: Finish, Allow: allow})
		err = errors.Join(err, w.Close())
	}
	return err
}
