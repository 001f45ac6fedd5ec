package bench

import (
	"cmp"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/bench/measured"
	"github.com/trueup/trueup/internal/disktest"
)

const database = `# a database
[global]
ioengine=psync
bs = 8k

[data]
rw=randrw
rwmixread=70
numjobs=2
; its log
[log]
rw=write
bs=4k
fdatasync=1
`

func TestWorkload(t *testing.T) {
	t.Parallel()
	w, err := parseWorkload("/x/db.fio", []byte(database))
	require.NoError(t, err)
	require.Equal(t, &Workload{Name: "job file db.fio", jobs: []userJob{
		{"data", []string{"--ioengine=psync", "--bs=8k", "--rw=randrw", "--rwmixread=70", "--numjobs=2"}},
		{"log", []string{"--ioengine=psync", "--bs=8k", "--rw=write", "--bs=4k", "--fdatasync=1"}},
	}}, w)
	for text, want := range map[string]string{
		"[a]\nrw=read\nfilename=/etc/passwd": "job file line 3: option filename: the benchmark sets it itself",
		"[a]\nrw=read\nexec_prerun=id":       `line 3: option "exec_prerun" is not allowed here`,
		"[a]\nrw=read\nexec_postrun=id":      "is not allowed here",
		"[a]\nrw=read\nwrite_bw_log=/x":      "is not allowed here",
		"[a]\nrw=read\nunlink=1":             "is not allowed here",
		"[a]\nrw=read\nbs=$(id)":             "want letters, digits and",
		"[a]\nrw=read\nbs=${HOME}":           "want letters, digits and",
		"[a]\nrw=read\nbs=`id`":              "want letters, digits and",
		"[a]\nrw=read\nbs=":                  "want letters, digits and",
		"[a]\nrw=trim":                       "rw=trim, want read,",
		"[a]\nioengine=external:/x.so":       "ioengine=external:/x.so, want one of",
		"[a]\nioengine=exec":                 "want one of",
		"[a]\nbs=8k":                         `job "a" has no rw=`,
		"rw=read":                            "an option before the first section",
		"[a]\nrw=read\n[global]\nbs=4k":      "[global] behind a job",
		"[a b;c]\nrw=read":                   "want a name of letters",
		"include x.fio":                      "is not allowed here",
		"":                                   "no job;",
		strings.Repeat("[a]\nrw=read\n", 65): "and 64 jobs at most",
		strings.Repeat("#", maxWorkload+1):   "more than 65536 bytes",
	} {
		_, err := parseWorkload("x", []byte(text))
		require.ErrorContains(t, err, want, text)
	}
}

// fio takes all options that a job file may have.
func TestWorkloadInFio(t *testing.T) {
	t.Parallel()
	disktest.Tool(t, program)
	values := map[string]string{
		"rw": "randrw", "readwrite": "randread", "ioengine": "libaio", "bsrange": "4k-8k", "blocksize_range": "4k-8k",
		"bssplit": "4k/50:8k/50", "rw_sequencer": "sequential", "random_distribution": "zipf:1.2",
		"description": "x", "sync": "dsync", "refill_buffers": "1",
	}
	text := "[x]\n"
	for _, option := range allowed {
		text += option + "=" + cmp.Or(values[option], "4") + "\n"
	}
	every, err := parseWorkload("x", []byte(text))
	require.NoError(t, err)
	disktest.Run(t, program, append([]string{"--parse-only", "--name=x"}, every.jobs[0].options...)...)

	w, err := parseWorkload("db.fio", []byte(database))
	require.NoError(t, err)
	o := short(t, onStorage(t))
	o.Workload, o.Program = w, disktest.Fio(t)
	r, err := Run(t.Context(), o)
	require.NoError(t, err)
	require.Len(t, r.Loads, 1)
	require.Equal(t, measured.JobFile, r.Loads[0].Access)
	require.Len(t, r.Loads[0].Points, 2)
	total := map[string]int64{Fill: o.length(), Measure: 2 * (minRuntime + overhead).Milliseconds()}
	require.Equal(t, total, o.Watch.(*watcher).total)
	require.Equal(t, total, o.Watch.(*watcher).done)
	require.Empty(t, disktest.Names(t, o.Target))
}

func FuzzWorkload(f *testing.F) {
	f.Add([]byte(database))
	f.Add([]byte("[global]\nrw=randread\n[x]\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		w, err := parseWorkload("x", text)
		if err != nil {
			return
		}
		for _, j := range w.jobs {
			require.True(t, plain(j.name))
			for _, option := range j.options {
				key, value, _ := strings.Cut(strings.TrimPrefix(option, "--"), "=")
				require.Contains(t, allowed, key)
				require.True(t, value == "" || plain(value))
			}
		}
	})
}

func FuzzAnswer(f *testing.F) {
	f.Add([]byte(answer))
	if real, err := os.ReadFile(filepath.Join("testdata", "fio-3.33.json")); err == nil {
		f.Add(real)
	}
	f.Fuzz(func(t *testing.T, out []byte) {
		if r, err := parse(out, minRuntime); err == nil {
			require.NoError(t, r.Check())
			require.Positive(t, r.IOPS)
		}
	})
}
