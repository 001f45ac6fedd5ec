package measured

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// MaxFile bounds a file with a result, in bytes. A full run with ten rounds has 300 KB.
const MaxFile = 4 << 20

// Bounds of a result from a file.
const (
	mostLoads  = 500
	mostPoints = 16
	mostRounds = 100
	mostJobs   = 1024
	mostText   = 1024 // bytes
	mostStart  = units.GiB
	mostSize   = 64 * units.MiB
	leastRate  = 1e-3 // of I/Os and bytes in a second: keeps ratios finite
	mostRate   = 1e12
	mostTime   = int64(time.Hour)
)

// Decode reads a result that trueup bench wrote as JSON. What follows from the rounds is computed again.
func Decode(text []byte) (*Result, error) {
	if len(text) > MaxFile {
		return nil, ondisk.In(ondisk.ErrLimit, "result of trueup bench: more than %d bytes", MaxFile)
	}
	var r struct {
		Schema  string `json:"schema"`
		Command string `json:"command"`
		Result
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, ondisk.In(ondisk.ErrFormat, "result of trueup bench: no JSON of it: %w", err)
	}
	if r.Schema != "trueup/1" || r.Command != "bench" {
		return nil, ondisk.In(ondisk.ErrFormat,
			"result of trueup bench: schema %.40q, command %.40q, want \"trueup/1\" and \"bench\"; trueup bench "+
				"--json writes it",
			r.Schema, r.Command)
	}
	if err := r.check(); err != nil {
		return nil, ondisk.In(ondisk.ErrFormat, "result of trueup bench: %w", err)
	}
	r.Settle()
	return &r.Result, nil
}

// check refuses what no run can have measured.
func (r *Result) check() error {
	if y := r.Date.Year(); y < 2000 || y > 9999 {
		return fmt.Errorf("date: year %d, want 2000 or later", y)
	}
	if n := len(r.Loads); n == 0 || n > mostLoads {
		return fmt.Errorf("loads: %d, want 1 to %d", n, mostLoads)
	}
	for _, s := range append([]string{
		r.Kernel, r.Tool, r.Storage.Path, r.Storage.FileSystem, r.Storage.Source, r.Storage.Device, r.Storage.Model,
	}, r.Notes...) {
		if len(s) > 4*mostText {
			return fmt.Errorf("a text of %d bytes, want %d at most", len(s), 4*mostText)
		}
	}
	for n := range r.Loads {
		if err := r.Loads[n].check(); err != nil {
			return fmt.Errorf("load %d: %w", n+1, err)
		}
	}
	return nil
}

func (l *Load) check() error {
	switch {
	case l.Access == JobFile:
	case l.Access != Random && l.Access != Sequential || l.Op != Read && l.Op != Write:
		return fmt.Errorf("access %.40q, direction %.40q; want random or sequential, read or write", l.Access, l.Op)
	case !units.IsPowerOfTwo(l.Size) || l.Size < units.SectorSize || l.Size > mostSize || l.Jobs < 1 ||
		l.Jobs > mostJobs:
		return fmt.Errorf("I/O of %d bytes, %d jobs; want a power of two from 512 and 1 to %d", l.Size, l.Jobs,
			mostJobs)
	}
	if n := len(l.Points); len(l.Name) > mostText || n == 0 || n > mostPoints {
		return fmt.Errorf("%d points, want 1 to %d", n, mostPoints)
	}
	if at := l.Points[0].Start; !Aligned(at) {
		return fmt.Errorf("first start %d, want the aligned one, a multiple of 4096", at)
	}
	for _, p := range l.Points {
		if p.Start < 0 || p.Start > mostStart || p.Start%units.SectorSize != 0 {
			return fmt.Errorf("start %d, want a multiple of 512 up to %d", p.Start, mostStart)
		}
		if n := len(p.Rounds); n == 0 || n > mostRounds {
			return fmt.Errorf("start %d: %d rounds, want 1 to %d", p.Start, n, mostRounds)
		}
		for _, round := range p.Rounds {
			if err := round.Check(); err != nil {
				return fmt.Errorf("start %d: %w", p.Start, err)
			}
		}
	}
	if l.Access == JobFile {
		l.Size, l.Jobs = 0, 0
	}
	return nil
}

// Check refuses numbers that no run can have.
func (r Round) Check() error {
	for _, rate := range []float64{r.IOPS, r.Bytes} {
		if !(rate >= leastRate && rate <= mostRate) {
			return fmt.Errorf("%g I/Os and %g bytes a second, want %g to %g", r.IOPS, r.Bytes, leastRate, mostRate)
		}
	}
	for _, ns := range []int64{r.Mean, r.P50, r.P95, r.P99, r.P999} {
		if ns < 0 || ns > mostTime {
			return fmt.Errorf("latency %d ns, want 0 to %d", ns, mostTime)
		}
	}
	return nil
}
