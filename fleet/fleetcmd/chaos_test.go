package fleetcmd_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/fleet"
	"github.com/trueup/trueup/fleet/queue"
	"github.com/trueup/trueup/internal/cli"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/disktest/oddfs"
)

// clockVariable names the file with the clock of programs, if scripts/chaos.sh has built them.
const clockVariable = "TRUEUP_CHAOS_CLOCK="

// chaosWait is the time after which a silent worker counts as lost.
const chaosWait = time.Second

// chaos is a fleet under faults: a server, two datastores, and three workers that see both.
type chaos struct {
	*site
	rnd     *rand.Rand
	roots   map[string]string // of datastores, by name
	behind  map[string]string // their folders
	full    atomic.Bool       // the second datastore
	clock   string            // file with the seconds by which clocks are ahead; may be empty
	members []*member
	kinds   map[string]fleet.Kind // of jobs, by datastore and path
	calm    time.Duration         // between two faults, at most
	writers writers
	records history
}

// member is a worker after its own network.
type member struct {
	*process
	*proxy // nil without one
	url    string
	folder string
}

// writers records the processes that have written each file, in order.
type writers struct {
	mu  sync.Mutex
	all map[uint64][]int
}

func (w *writers) note(inode uint64, pid int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if last := w.all[inode]; len(last) == 0 || last[len(last)-1] != pid {
		w.all[inode] = append(last, pid)
	}
}

// history records the outcomes of jobs.
type history struct {
	mu      sync.Mutex
	now     map[string]*fleet.Record
	changed []string // of jobs that had ended
	jumped  bool     // a change had the time of a wrong clock
	ended   int
	done    chan struct{} // closed when all have ended
}

func (h *history) note(r *fleet.Record, all int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	old := h.now[r.Key()]
	h.now[r.Key()] = r
	h.jumped = h.jumped || time.Until(r.Updated).Abs() > clockJump/2*time.Second
	switch {
	case old != nil && old.State.Ended():
		if old.State != r.State || !old.Updated.Equal(r.Updated) {
			h.changed = append(h.changed, fmt.Sprintf("%s: %s, then %s", r.Path, old.State, r.State))
		}
	case r.State.Ended():
		if h.ended++; h.ended == all {
			close(h.done)
		}
	}
}

// count returns the number of ended jobs.
func (h *history) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ended
}

func newChaos(t *testing.T, seed uint64) *chaos {
	t.Helper()
	c := &chaos{
		site: &site{store: t.TempDir()}, rnd: rand.New(rand.NewPCG(seed, 0)),
		calm: chaosWait, roots: map[string]string{}, behind: map[string]string{}, kinds: map[string]fleet.Kind{},
	}
	c.writers.all = map[uint64][]int{}
	c.records = history{now: map[string]*fleet.Record{}, done: make(chan struct{})}
	if os.Getenv("TRUEUP_CHAOS_CLOCKS") != "" {
		c.clock = filepath.Join(t.TempDir(), "clock")
		c.env = []string{clockVariable + c.clock}
		c.jump(t, 0)
	}
	for _, name := range []string{"ds1", "ds2"} {
		m := oddfs.Manners{Wrote: c.writers.note}
		if name == "ds2" {
			m.Full = &c.full
		}
		c.behind[name] = t.TempDir()
		c.roots[name] = oddfs.Mount(t, c.behind[name], m)
	}
	return c
}

// jump sets the clocks of all processes ahead by a number of seconds.
func (c *chaos) jump(t *testing.T, seconds int64) {
	t.Helper()
	f, err := os.OpenFile(c.clock, os.O_WRONLY|os.O_CREATE, 0o600)
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, binary.Write(f, binary.NativeEndian, seconds)) // programs see it at once
}

// fill gives each datastore its images: small disks whose partition starts at LBA 63.
func (c *chaos) fill(t *testing.T, images int) {
	t.Helper()
	const sectors = 4 << 11
	mbr := tableforge.NewMBR(sectors, tableforge.Slot{Type: 0x83, Start: 63, Sectors: sectors - 63})
	noise := make([]byte, 1<<20)
	for n := range images {
		name, kind := fmt.Sprintf("ds%d", n%2+1), fleet.Align
		if n%5 == 0 {
			kind = fleet.Exchange
		}
		path := filepath.Join(c.behind[name], fmt.Sprintf("%03d.img", n))
		mbr.Write(t, path)
		_, _ = rand.NewChaCha8([32]byte{byte(n), byte(n >> 8)}).Read(noise)
		disktest.WriteAt(t, path, 2<<20, noise)
		c.kinds[name+"/"+filepath.Base(path)] = kind
	}
}

// submit queues a job for each image.
func (c *chaos) submit(t *testing.T) {
	t.Helper()
	for _, kind := range []fleet.Kind{fleet.Align, fleet.Exchange} {
		for name := range c.roots {
			args := []string{"submit", string(kind), "--datastore", name}
			for at, is := range c.kinds {
				if path, found := strings.CutPrefix(at, name+"/"); found && is == kind {
					args = append(args, path)
				}
			}
			c.run(t, "", args...)
		}
	}
}

// watch records each change of a job until the test ends.
func (c *chaos) watch(t *testing.T) {
	t.Helper()
	q, err := queue.Open(t.Context(), queue.Options{URL: c.url})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil { // a server that is missing ends a list, or leaves it without end
			within, cancel := context.WithTimeout(ctx, time.Second)
			_ = q.Watch(within, "", func(r *fleet.Record) { c.records.note(r, len(c.kinds)) })
			cancel()
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
		q.Close()
	})
}

// enlist starts a worker, or starts it again.
func (c *chaos) enlist(t *testing.T, m *member) {
	t.Helper()
	args := append([]string{
		"worker", "--nats", m.url, "--folder", m.folder, "--ack-wait", chaosWait.String(),
		"--retry-delay", "1s", "--at-once", "4", "--jobs", "2", "--deliveries", "100",
	}, slow(t)...)
	for name, root := range c.roots {
		args = append(args, "--datastore", name+"="+root)
	}
	m.process = start(t, args...)
	m.Env = append(m.Env, c.env...)
	require.NoError(t, m.Start())
}

// fault starts a fault, which ends when the returned function is called.
type fault struct {
	name  string
	lasts time.Duration
	begin func(t *testing.T, c *chaos, m *member) (end func())
}

var faults = []fault{
	{"a worker is killed", 0, func(t *testing.T, c *chaos, m *member) func() {
		t.Helper()
		m.kill()
		return func() { c.enlist(t, m) }
	}},
	{"the server is killed", 0, func(t *testing.T, c *chaos, _ *member) func() {
		t.Helper()
		c.server.kill()
		return func() { c.serveAgain(t) }
	}},
	{"server and worker are killed", chaosWait, func(t *testing.T, c *chaos, m *member) func() {
		t.Helper()
		c.server.kill()
		m.kill()
		return func() {
			c.serveAgain(t)
			c.enlist(t, m)
		}
	}},
	{"a worker is frozen, and its runs go on", 2 * chaosWait, func(t *testing.T, _ *chaos, m *member) func() {
		t.Helper()
		require.NoError(t, m.Process.Signal(syscall.SIGSTOP))
		return func() { require.NoError(t, m.Process.Signal(syscall.SIGCONT)) }
	}},
	{"a worker is frozen with its runs", 2 * chaosWait, func(t *testing.T, _ *chaos, m *member) func() {
		t.Helper()
		all := append(children(t, m.Process.Pid), m.Process.Pid)
		signal := func(s syscall.Signal) {
			for _, pid := range all {
				_ = syscall.Kill(pid, s) // a run may have ended
			}
		}
		signal(syscall.SIGSTOP)
		return func() { signal(syscall.SIGCONT) }
	}},
	{"a worker is asked to end", 0, func(t *testing.T, c *chaos, m *member) func() {
		t.Helper()
		m.waitFor(t, "the worker starts") // it is connected
		require.NoError(t, m.Process.Signal(syscall.SIGTERM))
		require.NoError(t, m.Wait(), m.said.String())
		return func() { c.enlist(t, m) }
	}},
	{"nothing passes between a worker and the server", 3 * chaosWait, func(_ *testing.T, _ *chaos, m *member) func() {
		m.set(true, false)
		return func() { m.set(false, false) }
	}},
	{"a worker has no connection", 2 * chaosWait, func(_ *testing.T, _ *chaos, m *member) func() {
		m.set(false, true)
		return func() { m.set(false, false) }
	}},
	{"a datastore is full", chaosWait, func(_ *testing.T, c *chaos, _ *member) func() {
		c.full.Store(true)
		return func() { c.full.Store(false) }
	}},
}

// clocks is a fault of the clocks of all hosts.
var clocks = fault{"the clocks jump", 2 * chaosWait, func(t *testing.T, c *chaos, _ *member) func() {
	t.Helper()
	c.jump(t, []int64{-clockJump, clockJump}[c.rnd.IntN(2)])
	return func() { c.jump(t, 0) }
}}

const clockJump = 7200

// serveAgain starts the server again, on its store and port.
func (c *chaos) serveAgain(t *testing.T) {
	t.Helper()
	at, err := url.Parse(c.url)
	require.NoError(t, err)
	c.serve(t, at.Host)
}

// children returns the processes that a process has started.
func children(t *testing.T, pid int) (out []int) {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	require.NoError(t, err)
	for _, task := range tasks {
		b, _ := os.ReadFile(task)
		for text := range strings.FieldsSeq(string(b)) {
			child, err := strconv.Atoi(text)
			require.NoError(t, err)
			out = append(out, child)
		}
	}
	return out
}

// pause waits, unless all jobs have ended.
func (c *chaos) pause(d time.Duration) {
	select {
	case <-c.records.done:
	case <-time.After(d):
	}
}

func none(*testing.T, *chaos, *member) func() { return func() {} }

// reign causes faults, one after the other, until all jobs have ended. Each kind comes once before any repeats. Some
// only come without a given number of images.
func (c *chaos) reign(t *testing.T, faults []fault) {
	t.Helper()
	most := math.MaxInt
	if os.Getenv("TRUEUP_CHAOS") == "" {
		most = 5
	}
	if c.clock != "" {
		faults = append(slices.Clone(faults), clocks)
	}
	n := 0
	for order := []int{}; ; n++ {
		if n == most {
			faults, most, order = []fault{{"nothing", time.Second, none}}, math.MaxInt, nil
		}
		if len(order) == 0 {
			order = c.rnd.Perm(len(faults))
			order = order[:min(len(order), most)]
		}
		f, m := faults[order[0]], c.members[c.rnd.IntN(len(c.members))]
		order = order[1:]
		c.pause(time.Duration(c.rnd.Int64N(int64(c.calm))))
		select {
		case <-c.records.done:
			t.Logf("%d faults", n)
			return
		default:
			t.Logf("%d jobs have ended; %s", c.records.count(), f.name)
		}
		end := f.begin(t, c, m)
		c.pause(f.lasts)
		end()
	}
}

// requireSound checks the final state.
func (c *chaos) requireSound(t *testing.T) {
	t.Helper()
	c.records.mu.Lock()
	defer c.records.mu.Unlock()
	again, back := 0, 0
	for _, r := range c.records.now {
		again, back = again+r.Delivery-1, back+r.Round
	}
	t.Logf("%d jobs: %d further tries, given back %d times", len(c.kinds), again, back)
	require.Equal(t, c.clock != "", c.records.jumped, "clocks jump if they can")
	require.Empty(t, c.records.changed, "a job ends once")
	require.Len(t, c.records.now, len(c.kinds))
	for _, r := range c.records.now {
		require.Equal(t, fleet.Done, r.State, "%s: %s %s", r.Path, r.Code, r.Message)
	}
	want := map[string][]string{}
	var pairs [][2]string
	for at, kind := range c.kinds {
		name, image, _ := strings.Cut(at, "/")
		base := strings.TrimSuffix(image, ".img")
		pair := [2]string{base + ".orig.img", image}
		if kind == fleet.Align {
			pair = [2]string{image, base + "-aligned.img"}
		}
		want[name] = append(want[name], pair[:]...)
		if kind == fleet.Exchange {
			want[name] = append(want[name], image+".trueup") // for its undo
		}
		pairs = append(pairs, [2]string{filepath.Join(c.behind[name], pair[0]), filepath.Join(c.behind[name], pair[1])})
	}
	for name, names := range want {
		// A run that has lost its job removes its copy when it notices.
		disktest.WaitFor(t, "the end of lost runs", func() bool {
			return len(disktest.Names(t, c.behind[name])) <= len(names)
		})
		require.ElementsMatch(t, names, disktest.Names(t, c.behind[name]), "nothing else is left")
	}
	for _, pair := range pairs {
		var out bytes.Buffer
		code := cli.Run(t.Context(), "test", []string{"verify", "--no-progress", pair[0], pair[1]}, &out, &out)
		require.Zero(t, code, out.String())
	}
	c.writers.mu.Lock()
	defer c.writers.mu.Unlock()
	for inode, pids := range c.writers.all {
		require.NotContains(t, pids, 0, "each writer is known")
		seen := slices.Clone(pids)
		slices.Sort(seen)
		require.Len(t, slices.Compact(seen), len(pids), "two runs wrote file %d by turns: %v", inode, pids)
	}
	require.GreaterOrEqual(t, len(c.writers.all), len(c.kinds))
}

// requireOneReport requires that the report of the fleet equals that of one scan over everything.
func (c *chaos) requireOneReport(t *testing.T) {
	t.Helper()
	for name := range c.roots {
		c.run(t, "", "submit", "scan", "--datastore", name, "--shards", "3")
	}
	disktest.WaitFor(t, "scans", func() bool {
		waits := 0
		require.NoError(t, c.q.Each(t.Context(), "", func(r *fleet.Record) {
			if r.Kind == fleet.Scan && r.State != fleet.Done {
				require.False(t, r.State.Ended(), r.Message)
				waits++
			}
		}))
		return waits == 0
	})
	var one, errOut bytes.Buffer
	args := []string{"scan", "-o", "json", "--no-progress", "--isolation", "none"}
	for _, name := range []string{"ds1", "ds2"} {
		args = append(args, c.roots[name])
	}
	require.Equal(t, 3, cli.Run(t.Context(), "test", args, &one, &errOut), errOut.String())
	self, err := os.Executable()
	require.NoError(t, err)
	require.Equal(t, rowsOf(t, one.String()), rowsOf(t, c.report(t, self)))
}

// rowsOf returns the rows of a report by image.
func rowsOf(t *testing.T, report string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for line := range strings.Lines(report) {
		var r struct {
			Event, Path, State, Verdict string
			Size                        int64 `json:"size_bytes"`
			Images, Aligned, Misaligned int
			Disks                       json.RawMessage
		}
		require.NoError(t, json.Unmarshal([]byte(line), &r))
		require.NotContains(t, out, r.Event+r.Path)
		out[r.Event+r.Path] = fmt.Sprintf("%s %s %d %d %d %d %s", r.State, r.Verdict, r.Size, r.Images, r.Aligned,
			r.Misaligned, r.Disks)
	}
	return out
}

// chaosImages returns the number of images of a chaos test, and the seed of its faults.
func chaosImages(t *testing.T) (images int, seed uint64) {
	t.Helper()
	if text := os.Getenv("TRUEUP_CHAOS"); text != "" {
		_, err := fmt.Sscanf(text, "%d", &images)
		require.NoError(t, err)
	}
	if text := os.Getenv("TRUEUP_CHAOS_SEED"); text != "" {
		_, err := fmt.Sscanf(text, "%d", &seed)
		require.NoError(t, err)
	}
	return cmp.Or(images, 12), cmp.Or(seed, uint64(time.Now().UnixNano()))
}

// Workers and servers are killed, frozen and cut off from each other, and a datastore is full, until all images are
// realigned. Each job ends once, no file is written by two runs alternately, nothing is left, and each copy is
// verified.
func TestChaos(t *testing.T) {
	t.Parallel()
	images, seed := chaosImages(t)
	t.Logf("TRUEUP_CHAOS_SEED=%d", seed)
	c := newChaos(t, seed)
	c.fill(t, images)
	c.serve(t, "127.0.0.1:0")
	at, err := url.Parse(c.url)
	require.NoError(t, err)
	c.q, err = queue.Open(t.Context(), queue.Options{URL: c.url})
	require.NoError(t, err)
	t.Cleanup(c.q.Close)
	c.watch(t)
	c.submit(t)
	for range 3 {
		p := newProxy(t, at.Host)
		m := &member{proxy: p, url: "nats://" + p.Addr().String(), folder: t.TempDir()}
		c.members = append(c.members, m)
		c.enlist(t, m)
	}
	c.reign(t, faults)
	c.requireSound(t)
	c.requireOneReport(t)
}
