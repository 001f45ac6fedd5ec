package cli

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/units"
)

// Kinds of differences.
const (
	badEnding = "end"  // exit code, output or limits
	inPlan    = "plan" // differs from inspect
	inScan    = "scan"
	qemuSays  = "refused" // by qemu-img, and read here
	inSize    = "size"
	inBytes   = "bytes"
	inTable   = "table"
)

// difference is one between what was read and what it should be.
type difference struct {
	kind, text string
	inspect    *jsonAnswer
	other      *jsonAnswer // of plan
	state      string      // of the row of scan
	planned    string      // code of the error that a plan of its disk met, as that row has it
	got, want  differTable
}

// copies reports whether convert would copy the image, as far as the container decides.
func copies(s *realign.Source) bool {
	refuses := func(f align.Finding) bool { return f.Effect >= ondisk.Refuse }
	return !slices.ContainsFunc(align.Relevant(s.Issues(), nil), refuses)
}

// badEnd returns what is wrong with the end of a command.
func badEnd(e ended, a *jsonAnswer) (out []string) {
	if !slices.Contains([]int{0, 1, 2, 3, 4}, e.code) {
		out = append(out, fmt.Sprintf("exit code %d", e.code))
	}
	if lines := strings.Count(e.stderr, "\n"); e.code == ExitError && lines != 1 {
		out = append(out, fmt.Sprintf("%d lines of errors: %q", lines, e.stderr))
	}
	c := a.Error.code()
	// a file that the image names
	missing := c == "io" && strings.Contains(a.Error.Message, "no such file or directory")
	if slices.Contains([]string{"internal", "io", "verify", "changed", "usage"}, c) && !missing {
		out = append(out, fmt.Sprintf("code %q: %s", c, a.Error.Message))
	}
	return out
}

// disagreements returns where plan and scan differ from inspect about a file.
func disagreements(t *testing.T, path string, in ended, a *jsonAnswer) (out []difference) {
	t.Helper()
	p, row := &jsonAnswer{}, &jsonRow{}
	add := func(kind, format string, args ...any) {
		out = append(out, difference{
			kind: kind, text: fmt.Sprintf(format, args...), inspect: a, other: p, state: row.State,
			planned: row.unplanned(),
		})
	}
	end := trueup(t, "plan", "--json", path)
	require.NoError(t, json.Unmarshal([]byte(end.stdout), p), end.stdout)
	for _, text := range badEnd(end, p) {
		add(inPlan, "%s", text)
	}
	want, code := 0, a.Error.code()
	switch {
	case code != "":
		want = in.code
	case len(a.Refusals) > 0:
		want, code = ExitRefused, p.Error.code()
	}
	if end.code != want || p.Error.code() != code {
		add(inPlan, "plan ends with %d (%s), inspect with %d (%s)", end.code, end.stderr, in.code, in.stderr)
	}
	if a.Error == nil && !reflect.DeepEqual(a.Refusals, p.Refusals) {
		add(inPlan, "plan refuses %v, inspect %v", p.Refusals, a.Refusals)
	}
	end = trueup(t, "scan", "--isolation", "none", "--json", path)
	first, _, _ := strings.Cut(end.stdout, "\n")
	require.NoError(t, json.Unmarshal([]byte(first), row), end.stdout)
	if got := row.code(); got != a.Error.code() || got == "" && row.Verdict != a.Verdict {
		add(inScan, "scan says %q (%q), inspect %q (%q): %.400s\n%s",
			got, row.Verdict, a.Error.code(), a.Verdict, first, in.stderr)
	}
	if want = in.code; want == ExitRefused {
		want = ExitError // of a row that failed
	}
	if end.code != want {
		add(inScan, "scan ends with %d (%s), inspect with %d (%s)", end.code, end.stderr, in.code, in.stderr)
	}
	return out
}

// code is that of the error of an image, or of its one disk.
func (r *jsonRow) code() string {
	if r.Error == nil {
		return r.unplanned()
	}
	return r.Error.code()
}

// unplanned is the code of the error that kept the one disk from being planned.
func (r *jsonRow) unplanned() string {
	if len(r.Disks) != 1 {
		return ""
	}
	return r.Disks[0].Unplanned.code()
}

// qemuReading is a disk as qemu-img reads it.
type qemuReading struct {
	size int64
	raw  string
	read int64 // how much of it is in raw
}

// qemuRead has qemu-img read an image: all of it, or the first 64 MiB of what may be large.
func qemuRead(t *testing.T, format, path string, large bool) (q qemuReading, complaint string) {
	t.Helper()
	q.raw = filepath.Join(t.TempDir(), "qemu.raw")
	if !large {
		if _, complaint := qemuImg(t, "convert", "-f", format, "-O", "raw", path, q.raw); complaint != "" {
			return q, complaint
		}
		info := disktest.Stat(t, q.raw)
		q.size, q.read = info.Size(), info.Size()
		return q, ""
	}
	out, complaint := qemuImg(t, "info", "--output=json", "-f", format, path)
	if complaint != "" {
		return q, complaint
	}
	var info struct {
		Size int64 `json:"virtual-size"`
	}
	require.NoError(t, json.Unmarshal(out, &info))
	q.size, q.read = info.Size, 64*units.MiB
	_, complaint = qemuImg(t, "dd", "-f", format, "-O", "raw", "bs=1M", "count=64", "if="+path, "of="+q.raw)
	return q, complaint
}

// What three commands may take of this process: far more than the budgets that other tests hold, so that what explodes
// shows.
const (
	mostMemory    = 512 << 20
	mostProcessor = 30 * time.Second
)
