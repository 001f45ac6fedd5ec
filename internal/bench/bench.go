// Package bench measures storage with fio: I/O that starts on the blocks of the storage against I/O that does not. It
// decodes no image. The output of fio is limited and checked.
package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/trueup/trueup/internal/bench/measured"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/sys"
	"github.com/trueup/trueup/internal/units"
)

// Options configure a benchmark.
type Options struct {
	Folder   string
	Buffered bool // through the page cache, for storage that refuses direct I/O
	Size     int64
	Starts   []int64
	Runtime  time.Duration // of each round
	Rounds   int
	Program  string // fio; empty for the one in PATH
	Now      func() time.Time
	Say      func(text string) // receives the description of the benchmark before the first write, and each round
}

// DefaultStarts are the starts of published tests, the aligned one first.
var DefaultStarts = []int64{64 * units.KiB, 127 * units.SectorSize, 129 * units.SectorSize}

// More defaults, and limits. With 5 rounds, the results of equal storage do not overlap in one of 126 comparisons, by
// chance alone.
const (
	DefaultSize    = 2 * units.GiB
	DefaultRuntime = 3 * time.Second
	DefaultRounds  = 5

	minSize, maxSize = 16 * units.MiB, 1 << 44
	minIO            = 4 * units.KiB
	minRuntime       = 100 * time.Millisecond
	maxRuntime       = time.Hour
)

// overhead estimates fio's extra time per run: it starts threads, and checks the clock twice a second.
const overhead = 700 * time.Millisecond

// Check rejects invalid options.
func (o *Options) Check() error {
	usage := func(format string, args ...any) error { return ondisk.In(ondisk.ErrUsage, format, args...) }
	switch {
	case o.Size < minSize || o.Size > maxSize:
		return usage("--size %s: must be %s to %s", units.Format(o.Size), units.Format(minSize), units.Format(maxSize))
	case o.Runtime < minRuntime || o.Runtime > maxRuntime:
		return usage("--runtime %v: must be %v to %v", o.Runtime, minRuntime, maxRuntime)
	}
	return nil
}

// length returns the bytes of the scratch file: every start has the same space after it.
func (o *Options) length() int64 {
	return units.AlignDown(o.Size, units.MiB) + units.AlignUp(slices.Max(o.Starts), units.MiB)
}

// describe describes the scratch file and the planned measurements, with their approximate duration.
func (o *Options) describe() string {
	runs := len(measured.Loads()) * len(o.Starts) * o.Rounds
	return fmt.Sprintf("writes a scratch file of %s without a name in %s, then runs %d measurements of %v: about %v "+
		"and the time to write the file", units.Format(o.length()), o.Folder, runs, o.Runtime,
		(time.Duration(runs) * (o.Runtime + overhead)).Round(time.Second))
}

// Run runs the benchmark and returns its result. It leaves no scratch file behind, even on an error.
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
	o.Say(o.describe())
	if err := t.fill(ctx, o); err != nil {
		return nil, err
	}
	r := &measured.Result{
		Date: o.Now().UTC().Truncate(time.Second), Kernel: kernel(), Tool: f.version, Storage: t.storage,
		Direct: !o.Buffered, Size: units.AlignDown(o.Size, units.MiB), Seconds: o.Runtime.Seconds(), Notes: t.notes,
		Skipped: []int64{}, Starts: o.Starts, Loads: measured.Loads(),
	}
	if err := t.possible(o); err != nil {
		return nil, err
	}
	for l := range r.Loads {
		for _, s := range r.Starts {
			r.Loads[l].Points = append(r.Loads[l].Points, measured.Point{Start: s})
		}
	}
	if err := o.measure(ctx, f, t, r); err != nil {
		return nil, err
	}
	r.Summarize()
	return r, nil
}

// measure runs all rounds. Each round runs every load, and all starts of a load in turn. Each round begins with another
// start, so that slow changes of the storage affect all starts equally.
func (o *Options) measure(ctx context.Context, f *fio, t *target, r *measured.Result) error {
	seed := 0
	for round := range o.Rounds {
		o.Say(fmt.Sprintf("measures, round %d of %d", round+1, o.Rounds))
		for l := range r.Loads {
			load := &r.Loads[l]
			for n := range load.Points {
				n = (n + round) % len(load.Points)
				seed++ // other blocks in each run, so that the previous run caches none
				p := &load.Points[n]
				one, err := f.run(ctx, t.file, o.job(load, p.Start, r.Size, seed), o.Runtime)
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				if err != nil {
					return fmt.Errorf("%s, start %s: %w", load.Name, units.Format(p.Start), err)
				}
				p.Rounds = append(p.Rounds, one)
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

// Size is a flag value: a number of bytes.
type Size int64

func (n *Size) String() string { return units.Short(int64(*n)) }

// Set parses a flag argument.
func (n *Size) Set(arg string) error {
	x, err := units.Parse(arg)
	*n = Size(x)
	return err
}

// Type returns the word for the argument in help texts.
func (n *Size) Type() string { return "SIZE" }

// Bench is the result of bench.
type Bench struct {
	report.Head
	measured.Result
	ExitCode int `json:"exit_code"`
}

// Text prints the gain of alignment for the typical loads, the place and the method of the measurement, and all points.
func (b *Bench) Text(t *report.Text) {
	t.Say("bench", b)
	b.table(t)
	t.Say("method of a bench", b)
}

// Typical returns the gains of the typical loads measured at exactly this start.
func (b *Bench) Typical(start int64) []measured.Gain {
	return measured.Typical(slices.DeleteFunc(b.Gains(start), func(g measured.Gain) bool { return g.Start != start }))
}

// Fewest returns the minimum number of rounds that can show a difference.
func (*Bench) Fewest() int { return measured.Fewest }

// table prints all points, each below the name of its load.
func (b *Bench) table(t *report.Text) {
	var rows [][]string
	ms := func(ns int64) string { return fmt.Sprintf("%.2f ms", float64(ns)/1e6) }
	for _, l := range b.Loads {
		rows = append(rows, []string{report.Safe(l.Name)})
		for _, p := range l.Points {
			against := "(aligned)"
			if p.Against != nil {
				against = p.Against.Text()
			}
			rows = append(rows, []string{
				"  " + units.Format(p.Start), fmt.Sprintf("%.0f", p.IOPS.Median),
				fmt.Sprintf("%.0f to %.0f", p.IOPS.Min, p.IOPS.Max),
				ms(p.Latency(func(r measured.Round) int64 { return r.P50 })),
				ms(p.Latency(func(r measured.Round) int64 { return r.P99 })), against,
			})
		}
	}
	t.Table(slices.Values(rows), "start", ">I/O a second", ">least to most", ">50 %", ">99 %",
		"aligned does ... as many")
}

// program is the benchmark program, and the Debian package that contains it.
const program = "fio"

// fio runs that program.
type fio struct{ path, version string }

var isVersion = ondisk.LazyPattern(`^fio-[0-9][0-9A-Za-z.+-]{0,40}$`)

// newFio finds the program. An empty name searches PATH.
func newFio(ctx context.Context, name string) (*fio, error) {
	debian := ""
	if name == "" {
		name, debian = program, program
	}
	path, err := sys.Tool(name, debian)
	if err != nil {
		return nil, err
	}
	f := &fio{path: path}
	out, err := f.output(ctx, dying, nil, "--version")
	if f.version = strings.TrimSpace(string(out)); err == nil && !isVersion().MatchString(f.version) {
		err = fmt.Errorf("%s --version printed %.60q, not fio-NUMBER", path, f.version)
	}
	return f, err
}

// targetFD is the descriptor of the target in fio, which opens no path of the user.
const targetFD = 3

// Extra time for fio besides its runtime. It is generous: storage may hang for a while.
const (
	grace = 2 * time.Minute
	dying = 10 * time.Second
)

// maxOutput limits the output of fio in bytes. A result has 20 KB.
const maxOutput = 1 << 20

// job returns the arguments of one run. Random I/O lies at multiples of its size after the start.
func (o *Options) job(l *measured.Load, start, size int64, seed int) []string {
	pattern := map[string]string{measured.Random: "rand", measured.Sequential: ""}[l.Access] + l.Op
	args := []string{
		"--output-format=json", "--eta=never", "--name=trueup", "--ioengine=psync", "--rw=" + pattern,
		"--bs=" + strconv.FormatInt(l.Size, 10), "--numjobs=" + strconv.Itoa(l.Jobs), "--thread=1",
		"--filename=" + sys.Inherited(targetFD), "--allow_file_create=0", "--offset=" + strconv.FormatInt(start, 10),
		"--size=" + strconv.FormatInt(size, 10), "--time_based=1",
		"--runtime=" + strconv.FormatInt(o.Runtime.Milliseconds(), 10) + "ms", "--randseed=" + strconv.Itoa(seed),
		"--norandommap=1", "--invalidate=1", "--group_reporting=1", "--lat_percentiles=1", "--clat_percentiles=0",
		"--percentile_list=50:95:99:99.9", "--unified_rw_reporting=1",
	}
	if o.Buffered {
		return append(args, "--direct=0", "--fsync=1")
	}
	return append(args, "--direct=1")
}

// run runs one measurement.
func (f *fio) run(ctx context.Context, file *os.File, args []string, runtime time.Duration) (measured.Round, error) {
	out, err := f.output(ctx, 2*runtime+grace, file, args...)
	if err != nil {
		return measured.Round{}, err
	}
	r, err := parse(out, runtime)
	if err != nil {
		return r, fmt.Errorf("%s: %w", f.path, err)
	}
	return r, nil
}

// output runs the program, in its own process group that dies with this process, and returns its output.
func (f *fio) output(ctx context.Context, limit time.Duration, file *os.File, args ...string) ([]byte, error) {
	within, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("%s did not end within %v", f.path, limit))
	defer cancel()
	cmd := exec.CommandContext(within, f.path, args...)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "LC_ALL=C", "HOME=/nonexistent"}
	cmd.Dir = "/"
	if file != nil {
		cmd.ExtraFiles = []*os.File{file}
	}
	out, said, err := sys.Output(within, cmd, maxOutput)
	switch {
	case within.Err() != nil:
		return nil, context.Cause(within)
	case err != nil:
		words := strings.Join(strings.Fields(string(said)+" "+string(out)), " ")
		return nil, fmt.Errorf("%s: %w: %.300q", f.path, err, words)
	}
	return out, nil
}

// printed is the output of fio with --output-format=json. Spec: fio, HOWTO, "JSON output".
type printed struct {
	Jobs []struct {
		Error int `json:"error"`
		Mixed struct {
			IOPS    float64 `json:"iops"`
			Bytes   float64 `json:"bw_bytes"`
			Runtime float64 `json:"runtime"` // ms
			Latency struct {
				Mean       float64          `json:"mean"`
				Percentile map[string]int64 `json:"percentile"`
			} `json:"lat_ns"`
		} `json:"mixed"`
	} `json:"jobs"`
}

// shortest is the minimum share of the requested runtime.
const shortest = 0.8

// parse decodes the output of fio. Warnings may precede the JSON.
func parse(out []byte, runtime time.Duration) (r measured.Round, err error) {
	at := max(bytes.IndexByte(out, '{'), 0)
	var p printed
	if err := json.Unmarshal(out[at:], &p); err != nil {
		return r, fmt.Errorf("it printed no JSON that is understood: %w: %.200q", err, out)
	}
	if len(p.Jobs) != 1 {
		return r, fmt.Errorf("it reported %d groups of jobs, want 1", len(p.Jobs))
	}
	j := p.Jobs[0]
	if j.Error != 0 {
		return r, fmt.Errorf("it reported error %d", j.Error)
	}
	m := j.Mixed
	if want := float64(runtime.Milliseconds()); m.Runtime < shortest*want {
		return r, fmt.Errorf("it ran for %v ms, want %v", m.Runtime, want)
	}
	percentile := m.Latency.Percentile
	r = measured.Round{
		IOPS: math.Round(10*m.IOPS) / 10, Bytes: m.Bytes, Mean: int64(m.Latency.Mean), P50: percentile["50.000000"],
		P95: percentile["95.000000"], P99: percentile["99.000000"], P999: percentile["99.900000"],
	}
	return r, r.Check()
}
