package bench

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/trueup/trueup/internal/bench/measured"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
)

// program is the one that measures, and Debian's package that has it.
const program = "fio"

// fio runs that program.
type fio struct{ path, version string }

var isVersion = ondisk.LazyPattern(`^fio-[0-9][0-9A-Za-z.+-]{0,40}$`)

// newFio finds the program. An empty name looks in PATH.
func newFio(ctx context.Context, name string) (*fio, error) {
	path, err := sys.Tool(cmp.Or(name, program), program)
	if err != nil {
		return nil, err
	}
	f := &fio{path: path}
	out, err := f.output(ctx, dying, nil, "--version")
	if f.version = strings.TrimSpace(string(out)); err == nil && !isVersion().MatchString(f.version) {
		err = fmt.Errorf("%s --version printed %.60q, want fio-NUMBER", path, f.version)
	}
	return f, err
}

// targetFD is the descriptor of the target in fio. It opens no path of the user.
const targetFD = 3

// Times that a fio may take beside its run, which are generous: a storage may hang for a while.
const (
	grace = 2 * time.Minute
	dying = 10 * time.Second
)

// maxOutput bounds what fio prints. A result has 20 KB.
const maxOutput = 1 << 20

// job returns the arguments of one run. Random I/O lies at multiples of its size behind the start.
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

// run measures once.
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

// output runs the program, in a group of its own that dies with this one, and returns what it prints.
func (f *fio) output(ctx context.Context, limit time.Duration, file *os.File, args ...string) ([]byte, error) {
	within, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("%s did not end within %v", f.path, limit))
	defer cancel()
	cmd := exec.CommandContext(within, f.path, args...)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "LC_ALL=C", "HOME=/nonexistent"}
	cmd.Dir = "/"
	if file != nil {
		cmd.ExtraFiles = []*os.File{file}
	}
	out, said, err := sys.Ask(within, cmd, maxOutput)
	switch {
	case within.Err() != nil:
		return nil, context.Cause(within)
	case err != nil:
		words := strings.Join(strings.Fields(string(said)+" "+string(out)), " ")
		return nil, fmt.Errorf("%s: %w: %.300q", f.path, err, words)
	}
	return out, nil
}

// printed is what fio prints with --output-format=json. Spec: fio, HOWTO, "JSON output".
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

// shortest is the least share of the time that a run must have had.
const shortest = 0.8

// parse reads what fio printed. Warnings may stand in front.
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
