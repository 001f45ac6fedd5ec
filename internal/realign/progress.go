package realign

import (
	"context"
	"math"
	"time"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/diskcopy"
	"github.com/trueup/trueup/internal/exchange"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
)

// Since returns how many seconds have gone by, in tenths.
func Since(start time.Time) float64 { return math.Round(10*time.Since(start).Seconds()) / 10 }

// Progress receives how far the work is, phase by phase.
type Progress = diskcopy.Progress

// watch asks for the progress of long work, once.
func (j *Job) watch() {
	if j.progress == nil && j.Watch != nil {
		j.progress = j.Watch()
	}
}

// begin begins a phase that works on what all these disks hold beside holes, in units of a target or in any (0).
func (j *Job) begin(ctx context.Context, phase string, unit int64, disks ...disk.Disk) error {
	if j.progress == nil {
		return nil
	}
	total, err := diskcopy.Size(ctx, unit, disks...)
	if err == nil {
		j.progress.Begin(phase, total)
	}
	return err
}

// phase returns what begins a phase of total bytes.
func (j *Job) phase(name string) func(total int64) {
	return func(total int64) {
		if j.progress != nil {
			j.progress.Begin(name, total)
		}
	}
}

// finish completes the files and flushes so many bytes. How far that is, no system says.
func (j *Job) finish(o target, copied int64) error {
	j.phase(diskcopy.PhaseFlush)(copied)
	err := o.Finish()
	if err == nil {
		j.add(copied)
	}
	return err
}

// add counts bytes that are done.
func (j *Job) add(n int64) {
	if j.progress != nil {
		j.progress.Add(n)
	}
}

// Written is the result of a Job.
type Written struct {
	Format, Subformat string
	Files             []string // names, the one named DEST first
	Sums              []store.Sum
	Copied            int64   // bytes of data
	Took              float64 // seconds
	Notes             []ondisk.Issue
	Replaced          *exchange.Result // where the copy has the names of SOURCE
}

// begun calls Begin, once.
func (j *Job) begun() {
	if j.Begin != nil {
		j.Begin()
		j.Begin = nil
	}
}
