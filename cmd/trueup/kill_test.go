package main

import (
	"bytes"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// defaultKills is the number of kills in TestKill; TRUEUP_KILLS replaces it.
const defaultKills = 32

// killSeed makes two runs of the test kill at the same moments, as far as timing allows.
const killSeed = 20260101

// killCase is an align that is killed repeatedly.
type killCase struct {
	format       diskFormat
	source, dest string
	sourceSums   map[string]string
	want         string        // digest of the result of an undisturbed align
	usual        time.Duration // duration of such an align
	killed       int           // runs that were killed
	killedLate   int           // killed runs that left a DEST
}

// TestKill kills an align with SIGKILL at many points: at moments over its whole run time, and before system calls that
// change something. At every point, DEST is absent or complete, SOURCE is unchanged, and the next run succeeds and
// leaves nothing behind.
func TestKill(t *testing.T) {
	t.Parallel()
	kills := killCount(t)
	// A small disk with 8 MiB of data, so that an align takes long enough for kills at all moments.
	raw := madeDisks[2].make(t, t.TempDir())
	disktest.WriteAt(t, raw, 6<<20, noise("kill", 8<<20))
	cases := []*killCase{newKillCase(t, formatSparse, raw), newKillCase(t, formatFlat, raw)}
	moments := rand.New(rand.NewPCG(killSeed, killSeed))
	timed := kills / 2
	for i := range timed {
		c := cases[i%len(cases)]
		// One moment in each of timed slices of the run, the last ones a little after its usual end.
		part := (float64(i) + moments.Float64()) / float64(timed)
		replace := i%8 >= 6
		c.trial(t, replace, func() {
			after := time.Duration(part * 1.1 * float64(c.usual))
			// Kill earlier if the run ended before the kill: on a busy machine the usual time is a poor estimate.
			for range 5 {
				before := c.killed
				cmd := exec.Command(builtPath, c.align()...)
				require.NoError(t, cmd.Start())
				timer := time.AfterFunc(after, func() { _ = cmd.Process.Kill() }) // it may have ended
				err := cmd.Wait()
				timer.Stop()
				if c.count(t, cmd, err); c.killed > before {
					return
				}
				if !replace {
					c.clear(t)
				}
				after = after * 2 / 3
			}
		})
	}
	for _, c := range cases {
		log, folder := filepath.Join(t.TempDir(), "strace"), filepath.Dir(c.dest)
		watched := underStrace(t, log, []string{"-e", "trace=" + changingCalls}, c.align())
		out, err := watched.CombinedOutput()
		require.NoError(t, err, "%s", out)
		// The last syncs of a run can come from any thread, but they are syncs of the folder.
		points := append([]callPoint{{"fsync", 1, folder}, {"fsync", 2, folder}},
			spread(callsIn(t, log), (kills-timed)/len(cases)/2-2)...)
		for _, p := range points {
			c.trial(t, false, func() { c.killAtCall(t, p) })
			c.trial(t, true, func() { c.killAtCall(t, p) })
		}
		t.Logf("%s: %d killed in the middle, %d of them with DEST complete; an align takes %v",
			c.format.name, c.killed, c.killedLate, c.usual)
		require.Greater(t, c.killed, kills/len(cases)/2, "too few of the kills hit: the test proves little")
	}
}

func killCount(t *testing.T) int {
	t.Helper()
	text := os.Getenv("TRUEUP_KILLS")
	if text == "" {
		return defaultKills
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n
}

func newKillCase(t *testing.T, f diskFormat, raw string) *killCase {
	t.Helper()
	c := &killCase{format: f}
	c.source = f.convert(t, raw, t.TempDir(), "victim", "ide")
	c.dest = filepath.Join(t.TempDir(), "aligned"+f.ext)
	c.sourceSums = f.hashFiles(t, c.source)
	var times []time.Duration
	for range 5 {
		c.clear(t)
		start := time.Now()
		r := trueup(t, "align", c.source, c.dest)
		times = append(times, time.Since(start))
		require.Equal(t, 0, r.code, r.stderr)
	}
	slices.Sort(times)
	c.usual = times[len(times)/2]
	c.want = c.sum(t)
	return c
}

// trial kills one align, checks the remains, then runs the next one to its end. With replace, DEST exists from the
// trial before: the old or the new one must exist at every moment.
func (c *killCase) trial(t *testing.T, replace bool, kill func()) {
	t.Helper()
	if !replace {
		c.clear(t)
	}
	kill()
	require.Equal(t, c.sourceSums, c.format.hashFiles(t, c.source), "SOURCE changed")
	left := folderNames(t, filepath.Dir(c.dest))
	if c.published() {
		r := trueup(t, "verify", c.source, c.dest)
		require.Equal(t, 0, r.code, "DEST is there and not complete: %q\n%s%s", left, r.stdout, r.stderr)
		require.Equal(t, c.want, c.sum(t))
	}
	require.True(t, c.published() || !replace, "the old DEST is gone and the new one is not there: %q", left)

	r := trueup(t, c.align()...)
	require.Equal(t, 0, r.code, "the run after the kill, which left %q\n%s", left, r.stderr)
	require.Equal(t, c.want, c.sum(t))
	now := folderNames(t, filepath.Dir(c.dest))
	require.Len(t, now, len(c.sourceSums), "the run after the kill, which left %q, has to leave DEST alone", left)
	require.Equal(t, c.sourceSums, c.format.hashFiles(t, c.source), "SOURCE changed")
}

// flatExtent matches the name of the extent in a descriptor: a flat file of another DEST is not overwritten.
var flatExtent = regexp.MustCompile(`FLAT "(.+)" 0`)

// sum returns the SHA-256 of the file with the disk of DEST.
func (c *killCase) sum(t *testing.T) string {
	t.Helper()
	if c.format != formatFlat {
		return sha256Of(t, c.dest)
	}
	text := disktest.ReadFile(t, c.dest)
	name := flatExtent.FindSubmatch(text)
	require.NotNil(t, name, "%s", text)
	return sha256Of(t, filepath.Join(filepath.Dir(c.dest), string(name[1])))
}

// align returns the command line of an align, which replaces an existing DEST.
func (c *killCase) align() []string {
	args := []string{"align", c.source, c.dest}
	if c.published() {
		args = append(args, "--force")
	}
	return args
}

func (c *killCase) published() bool {
	_, err := os.Stat(c.dest)
	return err == nil
}

// clear empties the folder of DEST.
func (c *killCase) clear(t *testing.T) {
	t.Helper()
	for _, name := range folderNames(t, filepath.Dir(c.dest)) {
		require.NoError(t, os.Remove(filepath.Join(filepath.Dir(c.dest), name)))
	}
}

// killAtCall runs an align that is killed before a call. Threads share the work differently in each run, so some runs
// end.
func (c *killCase) killAtCall(t *testing.T, p callPoint) {
	t.Helper()
	cmd := p.injected(t, filepath.Join(t.TempDir(), "strace"), "signal=KILL", c.align())
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	err := cmd.Run()
	if err != nil && stderr.Len() > 0 {
		t.Logf("%+v: %s", p, &stderr)
	}
	c.count(t, cmd, err) // strace ends with the signal of its tracee
}

// count counts a run that was killed. It requires that any other run was successful.
func (c *killCase) count(t *testing.T, cmd *exec.Cmd, err error) {
	t.Helper()
	if !cmd.ProcessState.Sys().(syscall.WaitStatus).Signaled() {
		require.NoError(t, err)
		return
	}
	c.killed++
	if c.published() {
		c.killedLate++
	}
}

// callPoint is the number of a system call among those of its name and thread, or of those on one path.
type callPoint struct {
	call   string
	number int
	path   string
}

// changingCalls matches the system calls by which a copy changes something, as a pattern of strace.
const changingCalls = "/^(openat|pwrite64|write|writev|pwritev|ftruncate|fallocate|copy_file_range|fsync|fdatasync|" +
	"rename|renameat|renameat2|link|linkat|unlink|unlinkat|close)$"

var tracedCall = regexp.MustCompile(`(?m)^(\d+) +(\w+)\(`)

// callsIn returns the calls in a log of strace: for each name, the highest number in one thread.
func callsIn(t testing.TB, log string) map[string]int {
	t.Helper()
	seen, most := map[string]int{}, map[string]int{}
	for _, m := range tracedCall.FindAllStringSubmatch(string(disktest.ReadFile(t, log)), -1) {
		seen[m[1]+m[2]]++
		most[m[2]] = max(most[m[2]], seen[m[1]+m[2]])
	}
	require.NotEmpty(t, most)
	return most
}

// spread picks n points of the calls: the first of each name, then the second of each, and so on, because the rare
// calls matter most.
func spread(found map[string]int, n int) []callPoint {
	var points []callPoint
	n = max(n, 0)
	for number := 1; len(points) < n; number++ {
		before := len(points)
		for call, most := range found {
			if number <= most {
				points = append(points, callPoint{call: call, number: number})
			}
		}
		if len(points) == before {
			break
		}
		slices.SortFunc(points[before:], func(a, b callPoint) int { return strings.Compare(a.call, b.call) })
	}
	return points[:min(n, len(points))]
}
