package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/bench/measured"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// watcher counts, and calls a function with each count.
type watcher struct {
	total, done map[string]int64
	phase       string
	each        func()
}

func (w *watcher) Begin(phase string, total int64) {
	w.phase, w.total[phase] = phase, total
}

func (w *watcher) Add(n int64) {
	w.done[w.phase] += n
	if w.each != nil {
		w.each()
	}
}

// short are options of a run of a few seconds.
func short(t *testing.T, folder string) *Options {
	t.Helper()
	o := &Options{
		Target: folder, Size: minSize, Starts: slices.Clone(DefaultStarts[:2]), Sizes: []int64{8 * units.KiB},
		Jobs:    []int{1},
		Runtime: minRuntime, Rounds: 1, Now: func() time.Time { return time.Date(2026, 11, 23, 1, 2, 3, 4, time.UTC) },
		Watch: &watcher{total: map[string]int64{}, done: map[string]int64{}},
	}
	require.NoError(t, o.check())
	return o
}

// fake makes a program of a script. Another process writes it: a file that this one had open to write might be busy.
func fake(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), program)
	script = "#!/bin/sh\n[ \"$1\" = --version ] && { echo fio-3.33; exit; }\n" + script + "\n"
	disktest.RunInput(t, script, "sh", "-c", `cat > "$0" && chmod 755 "$0"`, path)
	return path
}

// onStorage returns a folder that is on storage.
func onStorage(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	f, err := os.CreateTemp(dir, "")
	require.NoError(t, err)
	defer f.Close()
	defer os.Remove(f.Name())
	m, err := mountOf(f)
	require.NoError(t, err)
	if m.kind == "tmpfs" {
		t.Skipf("%s is memory; set TMPDIR", dir)
	}
	return dir
}

// What fio reads and writes is taken from its system calls.
func TestFioStartsWhereItShould(t *testing.T) {
	t.Parallel()
	real, strace, dir, trace := disktest.Fio(t), disktest.Tool(t, "strace"), onStorage(t),
		filepath.Join(t.TempDir(), "trace")
	o := short(t, dir)
	o.Starts, o.Runtime = DefaultStarts, 5*time.Minute // which bounds a run that hangs
	target, err := o.open()
	require.NoError(t, err)
	defer target.file.Close()
	require.NoError(t, target.fill(t.Context(), o))
	require.Empty(t, disktest.Names(t, dir), "the scratch file has a name")
	f, err := newFio(t.Context(), fake(t, fmt.Sprintf(`exec %s -f -e trace=pread64,pwrite64,openat -o %s %s "$@"`,
		strace, trace, real)))
	require.NoError(t, err)
	call := regexp.MustCompile(`(?m)^([0-9]+) .*(pread64|pwrite64)\(.*, 8192, ([0-9]+)(\) +=.*| <unfinished.*)$`)
	var seen []map[int64]bool
	for seed, tc := range []struct {
		access, op string
		jobs       int
		start      int64
	}{
		{measured.Random, measured.Write, 4, DefaultStarts[0]},
		{measured.Random, measured.Read, 1, DefaultStarts[0]},
		{measured.Sequential, measured.Read, 1, DefaultStarts[2]},
		{measured.Sequential, measured.Write, 1, DefaultStarts[1]},
	} {
		load := measured.Load{Access: tc.access, Op: tc.op, Size: 8192, Jobs: tc.jobs}
		_, err := f.run(t.Context(), target.file, o.job(&load, tc.start, target.covered(o), seed+1), o.Runtime)
		require.NoError(t, err)
		text := disktest.ReadFile(t, trace)
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, "O_DIRECT") && !strings.Contains(line, "O_DIRECTORY") {
				require.Contains(t, line, `"/proc/self/fd/3", O_R`)
			}
		}
		threads, offsets := map[string]bool{}, map[int64]bool{}
		for _, m := range call.FindAllStringSubmatch(string(text), -1) {
			off, err := strconv.ParseInt(m[3], 10, 64)
			require.NoError(t, err)
			require.Equal(t, map[string]string{measured.Read: "pread64", measured.Write: "pwrite64"}[tc.op], m[2])
			require.Zero(t, (off-tc.start)%8192, off)
			require.GreaterOrEqual(t, off, tc.start)
			require.LessOrEqual(t, off+8192, tc.start+minSize)
			threads[m[1]], offsets[off-tc.start] = true, true
		}
		require.Len(t, threads, tc.jobs)
		require.Equal(t, tc.access == measured.Sequential, offsets[0] && offsets[8192] && offsets[16384])
		seen = append(seen, offsets)
	}
	require.NotEqual(t, seen[0], seen[1], "both seeds give the same blocks")
}

// answer is what fio prints, in as much as it is read.
const answer = `{"jobs": [{"error": 0, "mixed": {"iops": %s, "bw_bytes": 1000, "runtime": 100,
"lat_ns": {"mean": 2.5, "percentile": {"50.000000": 1, "95.000000": 2, "99.000000": 3, "99.900000": 4}}}}]}`

func TestFiosThatFail(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, script, want string }{
		{"no JSON", "echo hello", "it printed no JSON that is understood"},
		{"half of it", `echo '{"jobs": [{'`, "it printed no JSON that is understood"},
		{"no jobs", `echo '{"jobs": []}'`, "it reported 0 groups of jobs, want 1"},
		{"an error", `echo '{"jobs": [{"error": 5}]}'`, "it reported error 5"},
		{"too short", `echo '{"jobs": [{"mixed": {"runtime": 79}}]}'`, "it ran for 79 ms, want 100"},
		{
			"no I/O", "cat <<E\n" + fmt.Sprintf(answer, "0") + "\nE",
			"0 I/Os and 1000 bytes a second, want 0.001 to 1e+12",
		},
		{"no number", "cat <<E\n" + fmt.Sprintf(answer, "1e400") + "\nE", "it printed no JSON that is understood"},
		{"dies", "echo 'fio: no \033[2Jspace' >&2; exit 3", `exit status 3: "fio: no \x1b[2Jspace"`},
		{"killed", "kill -9 $$", "signal: killed"},
		{"endless", "yes", "it printed more than 1048576 bytes"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			f, err := newFio(t.Context(), fake(t, tc.script))
			require.NoError(t, err)
			_, err = f.run(t.Context(), nil, nil, minRuntime)
			require.ErrorContains(t, err, tc.want)
		})
	}
	f, err := newFio(t.Context(), fake(t, "echo note: warm; cat <<E\n"+fmt.Sprintf(answer, "12.34")+"\nE"))
	require.NoError(t, err)
	r, err := f.run(t.Context(), nil, nil, minRuntime)
	require.NoError(t, err)
	require.Equal(t, measured.Round{IOPS: 12.3, Bytes: 1000, Mean: 2, P50: 1, P95: 2, P99: 3, P999: 4}, r)

	_, err = newFio(t.Context(), filepath.Join(t.TempDir(), "none"))
	require.ErrorIs(t, err, ondisk.ErrUnsupported)
	require.ErrorContains(t, err, "apt install fio")
	_, err = newFio(t.Context(), disktest.Tool(t, "true"))
	require.ErrorContains(t, err, "want fio-NUMBER")
}

// A run that is ended, or that hangs, ends fio and all that it started.
func TestFioIsEnded(t *testing.T) {
	t.Parallel()
	for _, late := range []bool{false, true} {
		dir := t.TempDir()
		f, err := newFio(t.Context(), fake(t, fmt.Sprintf("sleep 1000 & echo $! > %[1]s/new && mv %[1]s/new "+
			"%[1]s/pid; wait", dir)))
		require.NoError(t, err)
		ctx, cancel := context.WithCancelCause(t.Context())
		var wait sync.WaitGroup
		began := func() bool { return exists(filepath.Join(dir, "pid")) }
		limit, want := time.Hour, "Ctrl-C"
		if late {
			limit, want = time.Second, "did not end within "
		} else {
			wait.Go(func() {
				disktest.WaitFor(t, "fio", began)
				cancel(errors.New("Ctrl-C"))
			})
		}
		for again := true; again; again = !began() { // on a busy machine it needs a longer time to begin
			_, err = f.output(ctx, limit, nil, "--x")
			require.ErrorContains(t, err, want)
			limit *= 2
		}
		wait.Wait()
		cancel(nil)
		pid := disktest.ReadFile(t, filepath.Join(dir, "pid"))
		disktest.WaitFor(t, "the end of what fio started", func() bool {
			stat, err := os.ReadFile(filepath.Join("/proc", strings.TrimSpace(string(pid)), "stat"))
			return err != nil || strings.Contains(string(stat), ") Z ")
		})
	}
}

func TestOptions(t *testing.T) {
	t.Parallel()
	o := short(t, t.TempDir())
	o.Sizes, o.Jobs, o.Starts, o.Rounds = DefaultSizes, DefaultJobs, slices.Clone(DefaultStarts), 3
	require.NoError(t, o.check())
	require.Equal(t, []int64{65536, 65024, 66048}, o.Starts, "the aligned one is the first")
	var all []string
	for _, l := range o.Loads() {
		all = append(all, l.Name)
	}
	require.Len(t, all, 34) // 6 numbers of jobs, 5 more sizes and 6 sequential sizes, to read and to write
	require.Contains(t, all, "random write of 8 KiB, 36 jobs")
	require.Contains(t, all, "sequential read of 128 KiB, 1 job")
	require.Equal(t, 34*3*3, o.Runs())
	o.Quick = true
	require.Equal(t, 54, o.Runs())
	o.Runtime = QuickRuntime
	require.Contains(t, o.Say(), "17 MiB without a name in ")
	require.Contains(t, o.Say(), "then runs 54 measurements of 2s: about 2 min and ")
	o.ReadOnly = true
	require.Len(t, o.Loads(), 3)

	for want, change := range map[string]func(o *Options){
		"--size 15 MiB":          func(o *Options) { o.Size = 15 << 20 },
		"--starts has 1":         func(o *Options) { o.Starts = []int64{65536} },
		"--starts 1000 B":        func(o *Options) { o.Starts = []int64{65536, 1000} },
		"--starts 2 GiB":         func(o *Options) { o.Starts = []int64{65536, 2 << 30} },
		"no multiple of 4 KiB":   func(o *Options) { o.Starts = []int64{512, 1024} },
		"--sizes 5 KiB":          func(o *Options) { o.Sizes = []int64{5 << 10} },
		"--sizes 2 KiB":          func(o *Options) { o.Sizes = []int64{2 << 10} },
		"--jobs 257":             func(o *Options) { o.Jobs = []int{257} },
		"one number at least":    func(o *Options) { o.Jobs = nil },
		"--rounds 0":             func(o *Options) { o.Rounds = 0 },
		"--runtime 99ms":         func(o *Options) { o.Runtime = 99 * time.Millisecond },
		"but the job file write": func(o *Options) { o.ReadOnly, o.Workload = true, &Workload{} },
	} {
		o := short(t, t.TempDir())
		change(o)
		err := o.check()
		require.ErrorIs(t, err, ondisk.ErrUsage)
		require.ErrorContains(t, err, want)
	}
}

func TestPlacesThatAreRefused(t *testing.T) {
	t.Parallel()
	run := func(change func(o *Options)) error {
		o := short(t, t.TempDir())
		o.Program = fake(t, "exit 7") // is not reached
		change(o)
		_, err := Run(t.Context(), o)
		return err
	}
	file := filepath.Join(t.TempDir(), "image")
	require.NoError(t, os.WriteFile(file, make([]byte, 1<<20), 0o600))
	holes := disktest.Blank(t, "holes", 1<<30)
	for _, tc := range []struct {
		name   string
		change func(o *Options)
		class  error
		want   string
	}{
		{"no folder", func(o *Options) { o.Target = "/nonexistent" }, os.ErrNotExist, "/nonexistent"},
		{"an image", func(o *Options) { o.Target = file }, ondisk.ErrUsage, "is no folder"},
		{"a device", func(o *Options) { o.Target = "/dev/null" }, ondisk.ErrUsage, "is no folder"},
		{
			"no device", func(o *Options) { o.Target, o.ReadOnly = "/dev/null", true }, ondisk.ErrUsage,
			"neither an image nor a block device",
		},
		{"a folder", func(o *Options) { o.ReadOnly = true }, ondisk.ErrUsage, "neither an image nor a block device"},
		{
			"too small", func(o *Options) { o.Target, o.ReadOnly = file, true }, ondisk.ErrUsage,
			"has 1 MiB, want 16 MiB behind each start",
		},
		{
			"holes", func(o *Options) { o.Target, o.ReadOnly = holes, true }, ondisk.ErrUnsupported,
			"0 % of it are stored",
		},
		{"no room", func(o *Options) { o.Size = maxSize }, ondisk.ErrOutput, "the scratch file takes 16 TiB, and "},
		{
			"memory", func(o *Options) { o.Target = "/dev/shm" }, ondisk.ErrUnsupported,
			"the file system is tmpfs: that is memory and no storage",
		},
		{"kernel", func(o *Options) { o.Target = "/proc" }, ondisk.ErrOutput, "no scratch file can be made"},
	} {
		if m, err := os.ReadFile("/proc/mounts"); tc.name == "memory" &&
			(err != nil || !strings.Contains(string(m), " /dev/shm tmpfs ")) {
			continue
		}
		err := run(tc.change)
		require.ErrorIs(t, err, tc.class, tc.name)
		require.ErrorContains(t, err, tc.want, tc.name)
	}
}

// An image is opened to read only, and stays as it is.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	fio := disktest.Fio(t)
	image := filepath.Join(onStorage(t), "image")
	disktest.Run(t, "dd", "if=/dev/urandom", "of="+image, "bs=1M", "count=17", "status=none")
	before := disktest.Output(t, "sha256sum", image)
	o := short(t, image)
	o.ReadOnly, o.Program = true, fio
	r, err := Run(t.Context(), o)
	require.NoError(t, err)
	require.Len(t, r.Loads, 2)
	require.Equal(t, "random read of 8 KiB, 1 job", r.Loads[0].Name)
	require.Equal(t, before, disktest.Output(t, "sha256sum", image))
	require.False(t, r.Scratch)
	require.Contains(t, o.Say(), "nothing is written")
	for _, l := range r.Loads {
		require.Contains(t, o.job(&l, 0, 1, 1), "--readonly")
	}
}

func TestSizes(t *testing.T) {
	t.Parallel()
	var s Sizes
	require.NoError(t, s.Set("63.5K, 64K,129s,1M,4096"))
	require.Equal(t, Sizes{65024, 65536, 66048, 1 << 20, 4096}, s)
	require.Equal(t, "63.5K,64K,64.5K,1M,4K", s.String())
	for _, bad := range []string{"", "x", "1.3K", "-1K", "1e30", "64K,", "NaN", "InfK", "1KX"} {
		require.ErrorIs(t, s.Set(bad), ondisk.ErrUsage, bad)
	}
	n := Size(DefaultSize)
	require.Equal(t, "2G", n.String())
	require.NoError(t, n.Set("512M"))
	require.Equal(t, Size(512<<20), n)
	require.Error(t, n.Set("x"))
}
