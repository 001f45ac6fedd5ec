package bench

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/ondisk"
)

// Workload is a job file of the user.
type Workload struct {
	Name  string
	jobs  []userJob
	reads bool // and writes nothing
}

type userJob struct {
	name    string
	options []string // as arguments
}

// maxWorkload bounds a job file, in bytes.
const maxWorkload = 64 << 10

const maxUserJobs = 64

// allowed are the options that a job file may have: they say what kind of I/O there is, and how much at once. fio can
// run programs, read and write any file and replace its target by others; an option that is not known here does
// nothing. Spec: fio, HOWTO, "Job file parameters".
var allowed = []string{
	"rw", "readwrite", "bs", "blocksize", "bsrange", "blocksize_range", "bssplit", "rwmixread", "rwmixwrite",
	"rw_sequencer",
	"ioengine", "iodepth", "iodepth_batch", "iodepth_batch_submit", "iodepth_batch_complete", "iodepth_low", "numjobs",
	"random_distribution", "percentage_random", "thinktime", "thinktime_blocks", "rate", "rate_iops", "fsync",
	"fdatasync", "sync", "buffer_compress_percentage", "dedupe_percentage", "refill_buffers", "description",
}

// ours are the options that a benchmark sets itself.
var ours = []string{
	"filename", "offset", "size", "filesize", "io_size", "runtime", "time_based", "direct", "buffered", "thread",
	"group_reporting", "randseed", "norandommap", "invalidate", "ramp_time", "name", "readonly", "directory",
}

// engines are those that do I/O to the file and nothing else.
var engines = []string{"psync", "sync", "pvsync", "pvsync2", "libaio", "io_uring", "posixaio", "vsync"}

// parseWorkload reads a job file. Its jobs run at the same time, each from every start.
func parseWorkload(path string, text []byte) (*Workload, error) {
	w := &Workload{Name: "job file " + filepath.Base(path), reads: true}
	if len(text) > maxWorkload {
		return nil, ondisk.In(ondisk.ErrLimit, "job file: more than %d bytes", maxWorkload)
	}
	var global []string
	section, at := "", -1
	for n, line := range strings.Split(string(text), "\n") {
		line = strings.TrimSpace(line)
		switch {
		case line == "" || line[0] == '#' || line[0] == ';':
		case line[0] == '[' && strings.HasSuffix(line, "]"):
			section = line[1 : len(line)-1]
			if section == "global" {
				if at >= 0 {
					return nil, badLine(n, "[global] behind a job; it must be the first section")
				}
				continue
			}
			if len(w.jobs) == maxUserJobs || !plain(section) {
				return nil, badLine(n, "section %.40q, want a name of letters and digits, and %d jobs at most", section,
					maxUserJobs)
			}
			at++
			w.jobs = append(w.jobs, userJob{name: section, options: slices.Clone(global)})
		default:
			option, err := w.option(line)
			switch {
			case err != nil:
				return nil, badLine(n, "%v", err)
			case section == "":
				return nil, badLine(n, "an option before the first section; put [global] in front")
			case section == "global":
				global = append(global, option)
			default:
				w.jobs[at].options = append(w.jobs[at].options, option)
			}
		}
	}
	return w, w.complete()
}

// complete returns an error where there is no job, or one that does not say what it does.
func (w *Workload) complete() error {
	if len(w.jobs) == 0 {
		return badLine(0, "no job; a section such as [database] begins one")
	}
	for _, j := range w.jobs {
		if !slices.ContainsFunc(j.options, isDirection) {
			return badLine(0, "job %q has no rw=; fio would only read from front to end", j.name)
		}
	}
	return nil
}

// badLine returns the error of a line, which counts from 0.
func badLine(n int, format string, args ...any) error {
	return &ondisk.TextError{
		What: "job file", Line: n + 1, Msg: fmt.Sprintf(format, args...), Kind: ondisk.ErrUnsupported,
	}
}

func isDirection(option string) bool {
	return strings.HasPrefix(option, "--rw=") || strings.HasPrefix(option, "--readwrite=")
}

// option returns an option as an argument. fio replaces $words in values, and runs a program for that.
func (w *Workload) option(line string) (string, error) {
	key, value, hasValue := strings.Cut(line, "=")
	key, value = strings.TrimSpace(key), strings.TrimSpace(value)
	switch {
	case slices.Contains(ours, key):
		return "", fmt.Errorf("option %s: the benchmark sets it itself; leave it out", key)
	case !slices.Contains(allowed, key):
		return "", fmt.Errorf("option %.40q is not allowed here; these are: %s", key, strings.Join(allowed, ", "))
	case key == "ioengine" && !slices.Contains(engines, value):
		return "", fmt.Errorf("ioengine=%.40s, want one of %s", value, strings.Join(engines, ", "))
	case !hasValue:
		return "--" + key, nil
	case !plain(value):
		return "", fmt.Errorf("%s=%.40q, want letters, digits and . , : / %% - _", key, value)
	}
	if key == "rw" || key == "readwrite" {
		verb, _, _ := strings.Cut(value, ":")
		if !slices.Contains([]string{"read", "write", "randread", "randwrite", "rw", "readwrite", "randrw"}, verb) {
			return "", fmt.Errorf("%s=%.40s, want read, write, rw, randread, randwrite or randrw", key, value)
		}
		w.reads = w.reads && (verb == "read" || verb == "randread")
	}
	return "--" + key + "=" + value, nil
}

// plain reports whether a text has only characters that fio takes as they are.
func plain(s string) bool {
	fine := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' ||
			strings.ContainsRune(".,:/%-_ ", r)
	}
	return s != "" && len(s) < 256 && strings.TrimFunc(s, fine) == ""
}
