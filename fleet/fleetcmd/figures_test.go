package fleetcmd_test

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/fleet"
	"github.com/trueup/trueup/fleet/queue"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
)

// TestFigures measures a queue of TRUEUP_FLEET_JOBS jobs for docs/dev/performance.md.
func TestFigures(t *testing.T) {
	var jobs int
	if _, err := fmt.Sscan(os.Getenv("TRUEUP_FLEET_JOBS"), &jobs); err != nil {
		t.Skip("TRUEUP_FLEET_JOBS is no number; make chaos has one")
	}
	s := newSite(t)
	var list strings.Builder
	for n := range jobs {
		fmt.Fprintf(&list, `{"schema":"trueup/1","event":"image","state":"judged","verdict":"misaligned","path":`+
			`"/ds/%03d/image-%06d.vmdk","files":[{"name":"image-%06d.vmdk","size_bytes":%d,"modified_ns":%d}]}`+"\n",
			n%997, n, n, 1<<30+n, 1<<60+n)
	}
	memory := func(what string) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.server.Process.Pid))
		require.NoError(t, err)
		t.Logf("%s: server %s", what, regexp.MustCompile(`(VmHWM|VmRSS):\s+\d+`).FindAllString(string(b), -1))
	}
	memory("empty")
	timed := func(what string, n int, do func()) {
		begun := time.Now()
		do()
		took := time.Since(begun)
		t.Logf("%s: %v, %v each", what, took, took/time.Duration(n))
	}
	submit := []string{"submit", "align", "--datastore", "ds1=/ds", "--worklist", "-"}
	timed("submit", jobs, func() { s.run(t, list.String(), submit...) })
	memory("submitted")
	timed("submit again", jobs, func() { s.run(t, list.String(), submit...) })
	timed("status", 1, func() { s.run(t, "", "status") })
	timed("look for lost messages", 1, func() {
		n, err := s.q.Mend(t.Context(), "")
		require.NoError(t, err)
		require.Zero(t, n)
	})
	memory("listed")
	source, err := s.q.Source(t.Context(), "ds1", 0)
	require.NoError(t, err)
	const taken = 1000
	var each [3][]time.Duration
	var other *queue.Lease // another worker always has a job
	for range taken {
		step := func(n int, do func() error) {
			begun := time.Now()
			require.NoError(t, do())
			each[n] = append(each[n], time.Since(begun))
		}
		var l *queue.Lease
		step(0, func() (err error) {
			l, err = source.Next(t.Context(), "w", time.Minute, func(string, error) {})
			return err
		})
		if l, other = other, l; l == nil {
			continue
		}
		step(1, func() error { return l.Checkpoint(t.Context(), fleet.Progress{Phase: "copy"}) })
		step(2, func() error { return l.End(t.Context(), fleet.Done, func(*fleet.Record) {}) })
		l.Leave()
	}
	for n, what := range []string{"take a job", "checkpoint", "end a job"} {
		slices.Sort(each[n])
		t.Logf("%s: median %v, 99 of 100 within %v", what, each[n][len(each[n])/2], each[n][len(each[n])*99/100])
	}
	memory("worked")
	s.server.kill()
	timed("start again", 1, func() { s.serve(t, strings.TrimPrefix(s.url, "nats://")) })
	memory("started again")
}

// TestFiguresOfScans compares two workers with one scan of two processes, over TRUEUP_FLEET_IMAGES images.
func TestFiguresOfScans(t *testing.T) {
	var images int
	if _, err := fmt.Sscan(os.Getenv("TRUEUP_FLEET_IMAGES"), &images); err != nil {
		t.Skip("TRUEUP_FLEET_IMAGES is no number; make chaos has one")
	}
	s := newSite(t)
	const sectors = 4 << 11
	mbr := tableforge.NewMBR(sectors, tableforge.Slot{Type: 0x83, Start: 63, Sectors: sectors - 63})
	for n := range images {
		mbr.Write(t, filepath.Join(s.root, fmt.Sprintf("%d.img", n)))
	}
	self, err := os.Executable()
	require.NoError(t, err)
	scan := func() {
		rows := filepath.Join(t.TempDir(), "rows.ndjson")
		cmd := exec.Command(self, "scan", "-j", "2", "--no-progress", "--out", rows, s.root)
		require.Error(t, cmd.Run(), "there is something to be done")
		require.Equal(t, 3, cmd.ProcessState.ExitCode())
	}
	work := func() {
		var workers []*process
		for range 2 {
			workers = append(workers, s.worker(t, "--once"))
		}
		for _, w := range workers {
			require.NoError(t, w.Wait(), w.said.String())
		}
	}
	scan() // caches the images
	for _, shards := range []int{2, 4, 8} {
		took := [2]time.Duration{math.MaxInt64, math.MaxInt64} // minimum, since the machine is shared
		for range 3 {
			s.run(t, "", "submit", "scan", "--datastore", "ds1", "--shards", strconv.Itoa(shards))
			for n, do := range []func(){scan, work} {
				begun := time.Now()
				do()
				took[n] = min(took[n], time.Since(begun))
			}
		}
		t.Logf("%d images, %d shards: one scan %v, two workers %v: %.2f", images, shards, took[0], took[1],
			took[0].Seconds()/took[1].Seconds())
	}
	for _, r := range s.jobs(t) {
		require.Equal(t, fleet.Done, r.State)
	}
}
