package catalog

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/scan/results"
	"github.com/trueup/trueup/internal/sys"
)

// The test binary is a scan of its own when these are set.
const (
	asChild   = "TRUEUP_CATALOG_CHILD" // what to do: a key of children
	childFile = "TRUEUP_CATALOG_FILE"
	childName = "TRUEUP_CATALOG_NAME"
)

var children = map[string]func(path, name string) error{"endless": endless, "crowd": crowd, "fill": fill}

func TestMain(m *testing.M) {
	if what := os.Getenv(asChild); what != "" {
		if err := children[what](os.Getenv(childFile), os.Getenv(childName)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func child(t *testing.T, what, path, name string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asChild+"="+what, childFile+"="+path, childName+"="+name)
	return cmd
}

// endless saves results, and prints the number of each with the time at which Save returned, until it is killed.
func endless(path, _ string) error {
	c, err := Open(path, v1)
	if err != nil {
		return err
	}
	r, err := c.Begin([]string{"/lib"}, time.Now())
	if err != nil {
		return err
	}
	for n := 0; ; n++ {
		p := fmt.Sprintf("/lib/%d", n)
		if _, err := r.Save(p, file("x", uint64(n)), Known{Image: image(p, 65536, file("x", uint64(n)))}); err != nil {
			return err
		}
		fmt.Fprintln(os.Stdout, n, time.Now().UnixMilli())
		time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond) // the lanes share the processors
	}
}

// TestKilledScansLoseNothing kills scans at random moments, fifteen times, again and again on the same catalogues: what
// one had finished a while before is there, and the file is sound for a second reader.
func TestKilledScansLoseNothing(t *testing.T) {
	disktest.Tool(t, "sqlite3")
	const lanes = 5
	rounds := 3
	if testing.Short() {
		rounds = 1
	}
	folder := t.TempDir()
	for range rounds {
		var ends [lanes]end
		var all sync.WaitGroup
		for lane := range lanes {
			path := filepath.Join(folder, strconv.Itoa(lane))
			cmd := child(t, "endless", path, "")
			all.Go(func() { ends[lane] = kill(cmd, path) })
		}
		all.Wait()
		found := 0
		for _, e := range ends {
			found += afterKill(t, e)
		}
		require.Positive(t, found)
	}
}

// end is what a scan had done when it was killed.
type end struct {
	path  string
	saved []int64 // when each result was saved, in milliseconds
	at    int64   // of the kill
	err   string  // what the scan said
}

// promised is how old a result must be to survive: a second, and some more for a machine on which nothing moves for a
// while.
const promised = 4 * time.Second

// kill runs a scan for a random while longer than that, from its first result on.
func kill(cmd *exec.Cmd, path string) (e end) {
	e.path = path
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		e.err = err.Error()
		return e
	}
	at := make(chan int64, 1)
	var clock sync.Once
	for lines := bufio.NewScanner(out); lines.Scan(); {
		number, saved, ok := strings.Cut(lines.Text(), " ")
		ms, err := strconv.ParseInt(saved, 10, 64)
		if !ok || err != nil || number != strconv.Itoa(len(e.saved)) || len(saved) != len("1795000000000") {
			break // the last line may be cut
		}
		e.saved = append(e.saved, ms)
		clock.Do(func() {
			time.AfterFunc(promised+time.Duration(100+rand.IntN(400))*time.Millisecond, func() {
				at <- time.Now().UnixMilli()
				_ = cmd.Process.Kill()
			})
		})
	}
	if len(e.saved) == 0 {
		_ = cmd.Wait()
		e.err = "it saved nothing: " + errs.String()
		return e
	}
	_, _ = io.Copy(io.Discard, out)
	_ = cmd.Wait() // it was killed
	e.at, e.err = <-at, errs.String()
	return e
}

// afterKill counts the results that it finds again.
func afterKill(t *testing.T, e end) (found int) {
	t.Helper()
	require.Empty(t, e.err)
	c, err := Open(e.path, v1)
	require.NoError(t, err)
	r := begin(t, c)
	for n, at := range e.saved {
		if at > e.at-promised.Milliseconds() {
			break
		}
		_, ok, err := r.Lookup(fmt.Sprintf("/lib/%d", n), file("x", uint64(n)))
		require.NoError(t, err)
		require.True(t, ok, "result %d, saved %d ms before the end", n, e.at-at)
		found++
	}
	require.Equal(t, "ok", query(t, c, "PRAGMA integrity_check"))
	require.Empty(t, query(t, c, "PRAGMA foreign_key_check"))
	// The next round begins with nothing, so that what it finds is its own.
	require.NoError(t, c.transaction(t.Context(), func() error {
		for _, table := range []string{"result", "partition", "image", "file"} {
			if _, err := c.conn.ExecContext(t.Context(), "DELETE FROM "+table); err != nil {
				return err
			}
		}
		return nil
	}))
	require.NoError(t, c.Close())
	return found
}

// crowd is a scan of 1,500 images: a third is its own, the rest is that of all.
func crowd(path, name string) error {
	c, err := Open(path, v1)
	if err != nil {
		return err
	}
	err = crowdRun(c, name)
	return firstOf(err, c.Close())
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func crowdRun(c *Catalog, name string) error {
	r, err := c.Begin([]string{"/lib/" + name, "/lib/all"}, noon)
	if err != nil {
		return err
	}
	s := results.NewSummary()
	s.Complete, s.Changes = true, &results.Changes{}
	for n := range 1500 {
		p := fmt.Sprintf("/lib/all/%d", n)
		if n%3 == 0 {
			p = fmt.Sprintf("/lib/%s/%d", name, n)
		}
		f := file("x", uint64(n))
		k, ok, err := r.Lookup(p, f)
		if err != nil {
			return err
		}
		if ok {
			_, err = r.Reuse(p, k)
		} else {
			k = Known{Image: image(p, 65536, f)}
			_, err = r.Save(p, f, k)
		}
		if err != nil {
			return err
		}
		s.Add(k.Image)
	}
	for i, err := range r.Removed(func(string) bool { return false }) {
		return fmt.Errorf("%s: %v was removed, %w", name, i, err)
	}
	return r.Finish(s)
}

// soundCrowd holds a catalogue against what so many runs of crowd must leave.
func soundCrowd(t *testing.T, path string, runs int) {
	t.Helper()
	c := catalogue(t, path, v1)
	require.Equal(t, "ok", query(t, c, "PRAGMA integrity_check"))
	require.Empty(t, query(t, c, "PRAGMA foreign_key_check"))
	require.Equal(t, fmt.Sprint(1000+500*runs), query(t, c, "SELECT count(*) FROM images WHERE state = 'judged'"))
	require.Equal(t, fmt.Sprint(2*(1000+500*runs)), query(t, c, "SELECT count(*) FROM partitions"))
	require.Equal(t, fmt.Sprintf("%d|1500|1500", runs),
		query(t, c, "SELECT count(*), min(images), max(images) FROM runs WHERE complete AND finished IS NOT NULL AND "+
			"changed + removed = 0 AND new + same = images"))
}

func TestScansInTwoProcesses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c")
	reader := disktest.Tool(t, "sqlite3")
	var errs [2]strings.Builder
	var cmds [2]*exec.Cmd
	for n := range cmds {
		cmds[n] = child(t, "crowd", path, strconv.Itoa(n))
		cmds[n].Stderr = &errs[n]
		require.NoError(t, cmds[n].Start())
	}
	done := make(chan struct{})
	reads := make(chan int)
	go func() { // a third program that only reads
		n := 0
		for ; ; n++ {
			select {
			case <-done:
				reads <- n
				return
			default:
			}
			if _, err := os.Stat(path); err != nil {
				continue
			}
			// Until the tables are there its answer is an error of its own.
			_ = exec.Command(reader, path, "SELECT count(*) FROM images JOIN partitions USING (path)").Run()
		}
	}()
	for n := range cmds {
		require.NoError(t, cmds[n].Wait(), errs[n].String())
	}
	close(done)
	require.Positive(t, <-reads)
	soundCrowd(t, path, 2)
}

// The same within one process, for the race detector: two catalogues of one file, and two runs in each.
func TestScansInOneProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c")
	first, second := catalogue(t, path, v1), catalogue(t, path, v1)
	errs := make([]error, 4)
	var all sync.WaitGroup
	for n, c := range []*Catalog{first, first, second, second} {
		all.Go(func() { errs[n] = crowdRun(c, strconv.Itoa(n)) })
	}
	all.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	soundCrowd(t, path, 4)
}

// A run may be used from all workers at once.
func TestWorkersShareARun(t *testing.T) {
	c := fresh(t)
	r := begin(t, c)
	errs := make([]error, 8)
	var all sync.WaitGroup
	for w := range errs {
		all.Go(func() {
			for n := range 200 {
				p := fmt.Sprintf("/lib/%d/%d", w, n)
				_, err := r.Save(p, file("x", uint64(n)), Known{Image: image(p, 65536, file("x", uint64(n)))})
				_, ok, again := r.Lookup(p, file("x", uint64(n)))
				if !ok {
					again = fmt.Errorf("%s is not known", p)
				}
				if errs[w] = firstOf(err, again); errs[w] != nil {
					return
				}
			}
		})
	}
	all.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	finish(t, r)
	require.Equal(t, "1600", query(t, c, "SELECT count(*) FROM images"))
}

// A lock that does not go away ends in an error that says what to do, after the time that it was given.
func TestALockThatStays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c")
	holder := catalogue(t, path, v1)
	c, err := open(path, v1, sys.SharesMemory, 50*time.Millisecond)
	require.NoError(t, err)
	r := begin(t, c)
	require.NoError(t, holder.transaction(t.Context(), func() error {
		_, err := r.Save("/lib/a", file("a", 1), Known{})
		require.NoError(t, err)
		const text = "another program holds it all the time: end that program or its transaction, then scan again"
		require.ErrorContains(t, r.Finish(results.NewSummary()), text)
		_, err = r.Save("/lib/b", file("b", 1), Known{})
		require.ErrorContains(t, err, text, "a run that could not write does not pretend to")
		return nil
	}))
	require.ErrorContains(t, c.Close(), "another program holds it")
}
