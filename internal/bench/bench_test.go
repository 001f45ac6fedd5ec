package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/bench/measured"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/units"
)

// short are options of a run of a few seconds.
func short(t *testing.T, folder string) *Options {
	t.Helper()
	o := &Options{
		Folder: folder, Size: minSize, Starts: DefaultStarts[:2],
		Runtime: minRuntime, Rounds: 1, Now: func() time.Time { return time.Date(2026, 11, 23, 1, 2, 3, 4, time.UTC) },
		Say: func(string) {},
	}
	require.NoError(t, o.Check())
	return o
}

// fake writes a shell script that acts as fio, and returns its path. It answers --version before script runs.
func fake(t *testing.T, script string) string {
	t.Helper()
	return disktest.Program(t, program, "[ \"$1\" = --version ] && { echo fio-3.33; exit; }\n"+script)
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

// The offsets that fio reads and writes are taken from its system calls.
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
		{measured.Random, measured.Write, 4, DefaultStarts[1]},
		{measured.Random, measured.Read, 1, DefaultStarts[1]},
		{measured.Sequential, measured.Read, 1, DefaultStarts[2]},
		{measured.Sequential, measured.Write, 1, DefaultStarts[0]},
	} {
		load := measured.Load{Access: tc.access, Op: tc.op, Size: 8192, Jobs: tc.jobs}
		_, err := f.run(t.Context(), target.file, o.job(&load, tc.start, minSize, seed+1), o.Runtime)
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

// answer is the part of fio's output that is read.
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
	require.ErrorContains(t, err, "no such file or directory")
	_, err = newFio(t.Context(), disktest.Tool(t, "true"))
	require.ErrorContains(t, err, "not fio-NUMBER")
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
		began := func() bool {
			_, err := os.Stat(filepath.Join(dir, "pid"))
			return err == nil
		}
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
	o.Starts, o.Rounds, o.Runtime = DefaultStarts, DefaultRounds, DefaultRuntime
	require.NoError(t, o.Check())
	require.Equal(t, []int64{65536, 65024, 66048}, DefaultStarts, "the aligned one is the first")
	var all []string
	for _, l := range measured.Loads() {
		all = append(all, l.Name)
	}
	require.Equal(t, []string{
		"random read of 8 KiB, 1 job", "random read of 8 KiB, 8 jobs", "sequential read of 64 KiB, 1 job",
		"random write of 8 KiB, 1 job", "random write of 8 KiB, 8 jobs", "sequential write of 64 KiB, 1 job",
	}, all)
	require.Contains(t, o.describe(), "17 MiB without a name in ")
	require.Contains(t, o.describe(), "then runs 90 measurements of 3s: about 5m33s and ")

	for want, change := range map[string]func(o *Options){
		"--size 15 MiB":  func(o *Options) { o.Size = 15 << 20 },
		"--runtime 99ms": func(o *Options) { o.Runtime = 99 * time.Millisecond },
	} {
		o := short(t, t.TempDir())
		change(o)
		err := o.Check()
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
	for _, tc := range []struct {
		name   string
		change func(o *Options)
		class  error
		want   string
	}{
		{"no folder", func(o *Options) { o.Folder = "/nonexistent" }, os.ErrNotExist, "/nonexistent"},
		{"an image", func(o *Options) { o.Folder = file }, ondisk.ErrUsage, "is no folder"},
		{"a device", func(o *Options) { o.Folder = "/dev/null" }, ondisk.ErrUsage, "is no folder"},
		{"no room", func(o *Options) { o.Size = maxSize }, ondisk.ErrOutput, "the scratch file takes 16 TiB, and "},
		{
			"memory", func(o *Options) { o.Folder = "/dev/shm" }, ondisk.ErrUnsupported,
			"the file system is tmpfs: that is memory and no storage",
		},
		{"kernel", func(o *Options) { o.Folder = "/proc" }, ondisk.ErrOutput, "no scratch file can be made"},
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

// A run has all loads at all starts, reports its rounds, and leaves nothing.
func TestRun(t *testing.T) {
	t.Parallel()
	o := short(t, onStorage(t))
	o.Program, o.Rounds = disktest.Fio(t), 2
	var said []string
	o.Say = func(text string) { said = append(said, text) }
	r, err := Run(t.Context(), o)
	require.NoError(t, err)
	require.Len(t, r.Loads, len(measured.Loads()))
	for _, l := range r.Loads {
		require.Len(t, l.Points, 2)
		require.Len(t, l.Points[1].Rounds, 2)
	}
	require.Equal(t, minSize, r.Size)
	require.Equal(t, []string{o.describe(), "measures, round 1 of 2", "measures, round 2 of 2"}, said)
	require.Empty(t, disktest.Names(t, o.Folder))
}

func TestSize(t *testing.T) {
	t.Parallel()
	n := Size(DefaultSize)
	require.Equal(t, "2G", n.String())
	require.NoError(t, n.Set("512M"))
	require.Equal(t, Size(512<<20), n)
	require.Error(t, n.Set("x"))
}

var update = flag.Bool("update", false, "write the golden files again")

// sample is a full result of a storage that reads and writes blocks of 4 KiB.
func sample() *Bench {
	random := rand.New(rand.NewPCG(1, 2))
	r := &measured.Result{
		Date: time.Date(2026, 11, 23, 4, 5, 6, 0, time.UTC), Kernel: "Linux 6.1.0", Tool: "fio-3.33", Direct: true,
		Size: 2 * units.GiB, Seconds: 5, Starts: []int64{65536, 65024, 66048}, Notes: []string{}, Skipped: []int64{},
		Storage: measured.Storage{
			Path: "/srv/images", FileSystem: "ext4", Source: "/dev/sdb1",
		},
	}
	for _, l := range measured.Loads() {
		for n, start := range r.Starts {
			p := measured.Point{Start: start}
			for range 3 {
				x := 400 * float64(l.Jobs) / float64(l.Jobs+12) * 40 / (1 + float64(l.Size)/65536)
				if n > 0 {
					x /= map[string]float64{measured.Read: 1.1, measured.Write: 2.1}[l.Op]
				}
				x *= 1 + random.Float64()/8
				each := 1e9 / x * float64(l.Jobs)
				p.Rounds = append(p.Rounds, measured.Round{
					IOPS: x, Bytes: x * float64(l.Size), Mean: int64(each), P50: int64(each * .9),
					P95: int64(each * 1.8), P99: int64(each * 4), P999: int64(each * 9),
				})
			}
			l.Points = append(l.Points, p)
		}
		r.Loads = append(r.Loads, l)
	}
	r.Summarize()
	return &Bench{Head: report.Head{Origin: report.Origin{Schema: report.Schema, Command: "bench"}}, Result: *r}
}

// brief is a result of one round, through the page cache, with notes.
func brief() *Bench {
	b := sample()
	b.Direct, b.Notes, b.Skipped = false, []string{"nfs is a network file system"}, []int64{}
	b.Loads = b.Loads[1:2]
	for n := range b.Loads[0].Points {
		b.Loads[0].Points[n].Rounds = b.Loads[0].Points[n].Rounds[:1]
	}
	b.Summarize()
	return b
}

func shown(b *Bench) string {
	var s strings.Builder
	b.Text(&report.Text{W: &s, Width: 100})
	return s.String()
}

// golden compares a text with a file.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(got), 0o600))
	}
	want := disktest.ReadFile(t, path)
	require.Equal(t, string(want), got)
}

func TestTextOfABench(t *testing.T) {
	t.Parallel()
	golden(t, "full.txt", shown(sample()))
	golden(t, "brief.txt", shown(brief()))
}

func TestSchemaOfABench(t *testing.T) {
	t.Parallel()
	schema, err := jsonschema.NewCompiler().Compile("../../docs/schema/bench.json")
	require.NoError(t, err)
	for _, b := range []*Bench{sample(), brief()} {
		var out bytes.Buffer
		require.NoError(t, report.JSON(&out, b))
		back, err := measured.Decode(out.Bytes())
		require.NoError(t, err)
		require.Equal(t, &b.Result, back, "what is written can be read")
		object, err := jsonschema.UnmarshalJSON(&out)
		require.NoError(t, err)
		require.NoError(t, schema.Validate(object))
		object.(map[string]any)["exit_code"] = json.Number("2")
		require.Error(t, schema.Validate(object))
	}
}

// Texts that a terminal or a reader of JSON would obey.
var hostile = []string{
	`<script>alert(1)</script>`, `"><svg onload=alert(1)>`, "\x1b[2J\x1b]0;x\a", "\xff\xfe", "exe.\u202egnp",
	"{{.Policy}}", "\u2028",
}

func TestHostileNames(t *testing.T) {
	t.Parallel()
	for _, text := range hostile {
		b := brief()
		b.Kernel, b.Tool, b.Notes, b.Loads[0].Name = text, text, []string{text}, text
		b.Storage = measured.Storage{Path: text, FileSystem: text, Source: text}
		require.True(t, utf8.ValidString(shown(b)))
		require.Equal(t, -1, strings.IndexFunc(shown(b), func(r rune) bool {
			return r != '\n' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == '\u2028')
		}), "%q", text)
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add([]byte(answer))
	f.Fuzz(func(t *testing.T, out []byte) {
		if r, err := parse(out, minRuntime); err == nil {
			require.NoError(t, r.Check())
			require.Positive(t, r.IOPS)
		}
	})
}
