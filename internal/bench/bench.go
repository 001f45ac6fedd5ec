// Package bench measures a storage with fio: I/O that starts on the blocks of the storage against I/O that does not.
// It decodes no image. What fio prints is bounded and checked.
package bench

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/trueup/trueup/internal/bench/measured"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// Options say what is measured, and how.
type Options struct {
	Target   string // a folder; with ReadOnly an image or a device
	ReadOnly bool
	Buffered bool // through the page cache, where direct I/O is refused
	Size     int64
	Starts   []int64
	Sizes    []int64 // of one I/O
	Jobs     []int
	Runtime  time.Duration // of each round
	Rounds   int
	Quick    bool
	JobFile  string    // its name, empty for none
	Workload *Workload // of it, instead of the loads of this package
	Program  string    // fio; empty: of PATH
	Now      func() time.Time
	Ready    func() // called before the first byte is written or measured, if the target fits; may be nil
	Watch    Watch
}

// Watch is told how far the work is.
type Watch interface {
	Begin(phase string, total int64) // bytes to fill, or milliseconds to measure
	Add(n int64)
}

// Defaults of the options, as the published tests have them: 8 KiB random I/O with 1 to 36 threads from 63.5, 64 and
// 64.5 KiB; 4 to 128 KiB random and sequential.
var (
	DefaultStarts = []int64{127 * units.SectorSize, 64 * units.KiB, 129 * units.SectorSize}
	DefaultSizes  = []int64{
		4 * units.KiB, 8 * units.KiB, 16 * units.KiB, 32 * units.KiB, 64 * units.KiB,
		128 * units.KiB,
	}
	DefaultJobs = []int{1, 2, 4, 8, 16, 36}
)

// More defaults, and bounds.
const (
	DefaultSize    = 2 * units.GiB
	DefaultRuntime = 5 * time.Second
	QuickRuntime   = 2 * time.Second
	DefaultRounds  = 3

	minSize, maxSize     = 16 * units.MiB, 1 << 44
	minIO, maxIO         = 4 * units.KiB, 4 * units.MiB
	maxStart             = units.GiB
	maxStarts            = 8
	maxJobs              = 256
	maxRounds            = 50
	minRuntime           = 100 * time.Millisecond
	maxRuntime           = time.Hour
	variedJobs           = 8 * units.KiB // the I/O that runs with each number of jobs
	quickJobs, quickSize = 8, 64 * units.KiB
)

// overhead is what a run of fio takes beside its runtime: threads start, and it looks at the clock twice a second.
const overhead = 700 * time.Millisecond

// check refuses options that cannot be right.
func (o *Options) check() error {
	usage := func(format string, args ...any) error { return ondisk.In(ondisk.ErrUsage, format, args...) }
	switch {
	case o.Size < minSize || o.Size > maxSize:
		return usage("--size %s, want %s to %s", units.Format(o.Size), units.Format(minSize), units.Format(maxSize))
	case o.Runtime < minRuntime || o.Runtime > maxRuntime:
		return usage("--runtime %v, want %v to %v", o.Runtime, minRuntime, maxRuntime)
	case o.Rounds < 1 || o.Rounds > maxRounds:
		return usage("--rounds %d, want 1 to %d", o.Rounds, maxRounds)
	case len(o.Starts) < 2 || len(o.Starts) > maxStarts:
		return usage("--starts has %d, want 2 to %d: an aligned one, and others", len(o.Starts), maxStarts)
	}
	for _, s := range o.Starts {
		if s < 0 || s > maxStart || s%units.SectorSize != 0 {
			return usage("--starts %s, want multiples of 512 bytes up to %s", units.Format(s), units.Format(maxStart))
		}
	}
	o.Starts = measured.Sort(o.Starts)
	if !measured.Aligned(o.Starts[0]) {
		return usage("--starts has no multiple of 4 KiB to compare with; add 64K")
	}
	for _, n := range o.Sizes {
		if !units.IsPowerOfTwo(n) || n < minIO || n > maxIO {
			return usage("--sizes %s, want powers of two from %s to %s", units.Format(n), units.Format(minIO),
				units.Format(maxIO))
		}
	}
	for _, n := range o.Jobs {
		if n < 1 || n > maxJobs {
			return usage("--jobs %d, want 1 to %d", n, maxJobs)
		}
	}
	if len(o.Sizes) == 0 || len(o.Jobs) == 0 {
		return usage("--sizes and --jobs want one number at least")
	}
	if o.Workload != nil && o.ReadOnly && !o.Workload.reads {
		return usage("--read-only, but the job file writes; it may have rw=read or rw=randread")
	}
	return nil
}

// Loads returns the kinds of I/O that are measured.
func (o *Options) Loads() (out []measured.Load) {
	if o.Workload != nil {
		return []measured.Load{{Name: o.Workload.Name, Access: measured.JobFile, Op: measured.Mixed}}
	}
	add := func(access, op string, size int64, jobs int) {
		l := measured.Load{
			Name: measured.LoadName(access, op, size, jobs), Access: access, Op: op, Size: size, Jobs: jobs,
		}
		same := func(other measured.Load) bool { return other.Name == l.Name }
		if !slices.ContainsFunc(out, same) {
			out = append(out, l)
		}
	}
	ops := []string{measured.Read, measured.Write}
	if o.ReadOnly {
		ops = ops[:1]
	}
	for _, op := range ops {
		if o.Quick {
			add(measured.Random, op, variedJobs, 1)
			add(measured.Random, op, variedJobs, quickJobs)
			add(measured.Sequential, op, quickSize, 1)
			continue
		}
		for _, jobs := range o.Jobs {
			add(measured.Random, op, variedJobs, jobs)
		}
		for _, access := range []string{measured.Random, measured.Sequential} {
			for _, size := range o.Sizes {
				add(access, op, size, 1)
			}
		}
	}
	return out
}

// Runs returns how often fio runs.
func (o *Options) Runs() int { return len(o.Loads()) * len(o.Starts) * o.Rounds }

// Time returns how long that takes, without filling the scratch file.
func (o *Options) Time() time.Duration { return time.Duration(o.Runs()) * (o.Runtime + overhead) }

// length returns the bytes of the scratch file: each start has as much behind it.
func (o *Options) length() int64 {
	return units.AlignDown(o.Size, units.MiB) + units.AlignUp(slices.Max(o.Starts), units.MiB)
}

// Say describes what is about to happen.
func (o *Options) Say() string {
	runs := fmt.Sprintf("%d measurements of %v: about %s", o.Runs(), o.Runtime, minutes(o.Time()))
	if o.ReadOnly {
		return fmt.Sprintf("reads %s in %s; nothing is written", o.Target, runs)
	}
	return fmt.Sprintf("writes a scratch file of %s without a name in %s, then runs %s and the time to write the file",
		units.Format(o.length()), o.Target, runs)
}

func minutes(d time.Duration) string {
	if d < 2*time.Minute {
		return fmt.Sprintf("%d s", int(math.Ceil(d.Seconds())))
	}
	return fmt.Sprintf("%d min", int(math.Round(d.Minutes())))
}

// Phases of a benchmark.
const (
	Fill    = "fill"
	Measure = "measure"
)

// Run measures. Nothing is left of the scratch file, however the run ends.
func Run(ctx context.Context, o *Options) (*measured.Result, error) {
	f, err := newFio(ctx, o.Program)
	if err != nil {
		return nil, err
	}
	t, err := o.open()
	if err != nil {
		return nil, err
	}
	defer t.file.Close()
	if o.Ready != nil {
		o.Ready()
	}
	if !o.ReadOnly {
		if err := t.fill(ctx, o); err != nil {
			return nil, err
		}
	}
	r := &measured.Result{
		Date: o.Now().UTC().Truncate(time.Second), Kernel: kernel(), Tool: f.version, Storage: t.storage,
		Scratch: !o.ReadOnly, Direct: !o.Buffered, Size: t.covered(o), Seconds: o.Runtime.Seconds(), Notes: t.notes,
		Skipped: []int64{}, Loads: o.Loads(),
	}
	starts, err := t.possible(o, r)
	if err != nil {
		return nil, err
	}
	r.Starts = starts
	for l := range r.Loads {
		for _, s := range starts {
			r.Loads[l].Points = append(r.Loads[l].Points, measured.Point{Start: s})
		}
	}
	if err := o.measure(ctx, f, t, r); err != nil {
		return nil, err
	}
	r.Settle()
	return r, nil
}

// measure does all rounds. Each runs every load, and the starts of one load side by side. Another start is the first in
// each round: what changes slowly on the storage meets all starts alike.
func (o *Options) measure(ctx context.Context, f *fio, t *target, r *measured.Result) error {
	each := (o.Runtime + overhead).Milliseconds()
	o.Watch.Begin(Measure, each*int64(len(r.Loads)*len(r.Starts)*o.Rounds))
	seed := 0
	for round := range o.Rounds {
		for l := range r.Loads {
			load := &r.Loads[l]
			for n := range load.Points {
				n = (n + round) % len(load.Points)
				seed++ // other blocks in each run: none is in a cache because the run before read it
				p := &load.Points[n]
				one, err := f.run(ctx, t.file, o.job(load, p.Start, r.Size, seed), o.Runtime)
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				if err != nil {
					return fmt.Errorf("%s, start %s: %w", load.Name, units.Format(p.Start), err)
				}
				p.Rounds = append(p.Rounds, one)
				o.Watch.Add(each)
			}
		}
	}
	return nil
}

// kernel returns the name and the release of the kernel.
func kernel() string {
	b, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return "unknown"
	}
	return "Linux " + strings.TrimSpace(string(b))
}

// Settle makes the options of a command line whole, and refuses those that cannot be right. changed reports whether a
// flag was given.
func (o *Options) Settle(changed func(flag string) bool) error {
	usage := func(text string) error { return ondisk.In(ondisk.ErrUsage, "%s", text) }
	loads := changed("jobs") || changed("sizes")
	switch {
	case o.Quick && (o.JobFile != "" || loads):
		return usage("--quick chooses the loads itself; leave out --jobs, --sizes and --workload")
	case o.JobFile != "" && loads:
		return usage("--workload has jobs and sizes of its own; leave out --jobs and --sizes")
	case o.Quick && !changed("runtime"):
		o.Runtime = QuickRuntime
	case o.ReadOnly && changed("size"):
		return usage("--size is that of the scratch file, and --read-only makes none")
	}
	if o.JobFile != "" {
		text, err := readBounded(o.JobFile, maxWorkload)
		if err != nil {
			return fmt.Errorf("--workload: %w", err)
		}
		if o.Workload, err = parseWorkload(o.JobFile, text); err != nil {
			return fmt.Errorf("%s: %w", o.JobFile, err)
		}
	}
	return o.check()
}

// readBounded reads a file, and one byte more than a bound at most.
func readBounded(path string, most int64) ([]byte, error) {
	r, err := os.Open(path) //nolint:gosec // the user names it
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(io.LimitReader(r, most+1))
}

// ReadResult reads the result of an earlier benchmark, which --bench names.
func ReadResult(path string) (*measured.Result, error) {
	text, err := readBounded(path, measured.MaxFile)
	if err != nil {
		return nil, fmt.Errorf("--bench: %w", err)
	}
	r, err := measured.Decode(text)
	if err != nil {
		return nil, fmt.Errorf("--bench %s: %w", path, err)
	}
	return r, nil
}

// Size is the value of a flag: a number of bytes.
type Size int64

func (n *Size) String() string { return units.Short(int64(*n)) }

// Set parses a flag argument.
func (n *Size) Set(arg string) error {
	x, err := units.Parse(arg)
	*n = Size(x)
	return err
}

// Type is the word that help texts show for the argument.
func (n *Size) Type() string { return "SIZE" }

// Sizes is the value of a flag: numbers of bytes with commas between them. They may have fractions: "63.5K,64K".
type Sizes []int64

func (s *Sizes) String() string {
	var out []string
	for _, n := range *s {
		if n%units.KiB == 0 {
			out = append(out, units.Short(n))
		} else {
			out = append(out, strconv.FormatFloat(float64(n)/float64(units.KiB), 'f', -1, 64)+"K")
		}
	}
	return strings.Join(out, ",")
}

// Set parses a flag argument.
func (s *Sizes) Set(arg string) error {
	*s = nil
	for one := range strings.SplitSeq(arg, ",") {
		one = strings.TrimSpace(one)
		digits := strings.TrimRight(one, "BbKkMmGgTtIiSs")
		unit, err := units.Parse("1" + one[len(digits):])
		x, errX := strconv.ParseFloat(digits, 64)
		n := x * float64(unit)
		if err != nil || errX != nil || n < 0 || n != math.Trunc(n) || n > math.MaxInt32*float64(units.KiB) {
			return ondisk.In(ondisk.ErrUsage, "size %.40q: want a number with K, M, G or s (512-byte sectors), "+
				"such as 63.5K",
				one)
		}
		*s = append(*s, int64(n))
	}
	return nil
}

// Type is the word that help texts show for the argument.
func (s *Sizes) Type() string { return "SIZES" }
