package realign

import (
	"github.com/trueup/trueup/internal/exchange"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
)

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
