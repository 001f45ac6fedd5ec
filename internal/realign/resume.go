package realign

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/shell"
	"github.com/trueup/trueup/internal/unfinished"
	"github.com/trueup/trueup/internal/verify"
)

// Order holds all that decides the bytes of a copy that can go on. It is the plan of a journal.
type Order struct {
	Command string
	Source  string // absolute paths
	With    []string
	Reading Reading
	Goal    Goal
	Target  Target
	Force   bool

	Program string          // that began the copy: another one may place blocks elsewhere
	Files   json.RawMessage // of the source: what shows that they are unchanged
	Seed    []byte          // the digest of the plan
}

// NewOrder returns the order of a program for a copy.
func NewOrder(program, command, source string, with []string, r Reading, g Goal, t Target, force bool) (*Order, error) {
	r.Allow = slices.Clone(r.Allow)
	for i, folder := range r.Allow {
		var err error
		if r.Allow[i], err = filepath.Abs(folder); err != nil {
			return nil, err
		}
	}
	o := &Order{Command: command, Reading: r, Goal: g, Target: t, Force: force, Program: programOf(program)}
	paths := append([]string{source}, with...)
	for i, path := range paths {
		var err error
		if paths[i], err = filepath.Abs(path); err != nil {
			return nil, err
		}
	}
	o.Source, o.With = paths[0], paths[1:]
	return o, nil
}

// programOf names a program with its compiler, whose library packs data.
func programOf(version string) string { return version + ", " + runtime.Version() }

// OrderOf returns the order of a copy that was ended.
func OrderOf(w *unfinished.Held) (*Order, error) {
	o, err := parseOrder(w.Plan())
	if err != nil {
		return nil, w.Work.Refused("its journal cannot be understood: "+err.Error(),
			"use the trueup that began the copy")
	}
	return o, nil
}

// parseOrder reads an order, and checks what a command line would.
func parseOrder(b []byte) (o *Order, err error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&o); err != nil {
		return nil, err
	}
	if o == nil || !filepath.IsAbs(o.Source) || o.Command != "align" && o.Command != "convert" {
		return nil, errors.New("no copy of a source")
	}
	target, err := ParseTarget(o.Target.String())
	if err == nil && target != o.Target {
		err = fmt.Errorf("unknown target %q", o.Target)
	}
	if err == nil && o.Goal.Boundary != 0 {
		err = align.CheckBoundary(o.Goal.Boundary)
	}
	if n := o.Reading.SectorSize; err == nil && n != 0 {
		err = new(SectorSize).Set(strconv.FormatInt(n, 10))
	}
	return o, errors.Join(err, o.Goal.Consistent())
}

// Same reports whether two orders were given in the same words. Whether the source is still the same is not asked.
func (o *Order) Same(other *Order) bool {
	words := func(o Order) []byte {
		o.Program, o.Files, o.Seed = "", nil, nil
		b, err := json.Marshal(o)
		if err != nil {
			panic(err) // plain values: our own bug
		}
		return b
	}
	return bytes.Equal(words(*o), words(*other))
}

// complete adds what needs the open source: the state of its files, and the digest of the plan.
func (o *Order) complete(s *Source, p *plan.Plan) (err error) {
	states := s.Image.States()
	for i := range states {
		states[i].Device, states[i].Allocated = 0, 0 // other after a restart or a defragmentation
	}
	o.Seed = seed(s, p)
	o.Files, err = json.Marshal(states)
	return err
}

// agrees checks that a copy that goes on is the one that was begun.
func (o *Order) agrees(begun *Order, w *unfinished.Held) error {
	switch {
	case o.Program != begun.Program:
		return w.Work.Refused(fmt.Sprintf("it was begun by trueup %.100s, and this is %s", begun.Program, o.Program),
			"use that program")
	case !bytes.Equal(o.Files, begun.Files):
		return w.Work.Refused(fmt.Sprintf("a file of SOURCE %.256q has changed since", begun.Source),
			"bring SOURCE back as it was")
	case !bytes.Equal(o.Seed, begun.Seed):
		return w.Work.Refused("its plan is another one now, by the other disks of the machine",
			"bring these back as they were")
	}
	return nil
}

// lasting sets the options of DEST by which a run that is ended leaves its files.
func (j *Job) lasting(s *Source, p *plan.Plan, o *store.CreateOptions) (err error) {
	if j.Order == nil {
		return nil
	}
	if err := j.Order.complete(s, p); err != nil {
		return err
	}
	if j.Going != nil {
		begun, err := OrderOf(j.Going)
		if err != nil {
			return err
		}
		if err := j.Order.agrees(begun, j.Going); err != nil {
			return err
		}
	}
	o.Going = j.Going
	o.Order, err = json.Marshal(j.Order)
	return err
}

// KeptError is the error of a copy that failed and whose files stay.
type KeptError struct {
	err  error
	dest string
}

func (k *KeptError) Error() string { return fmt.Sprintf("%v; %s", k.err, k.Remedy()) }

func (k *KeptError) Unwrap() error { return k.err }

// Remedy returns the commands that go on with the copy or remove it. A byte where the copy writes nothing would differ
// each time.
func (k *KeptError) Remedy() string {
	dest := shell.Quote(k.dest)
	if errors.Is(k.err, verify.ErrDifferent) {
		return fmt.Sprintf("what is written stays: trueup resume %s tries once more; if the copy differs again, "+
			"trueup undo %s removes it", dest, dest)
	}
	return fmt.Sprintf("what is written stays: trueup resume %s goes on, trueup undo %s removes it", dest, dest)
}

// left returns the error of a run that was ended, and has a source that changed spoil what was written.
func (j *Job) left(err error, out any) error {
	o, ok := out.(*store.Output)
	if !ok {
		return err
	}
	if errors.Is(err, ondisk.ErrChanged) && o.Kept() {
		o.Keep(true)
	}
	if !o.Kept() {
		return err
	}
	return &KeptError{err, j.Dest}
}
