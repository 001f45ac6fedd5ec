package main

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
)

// The hostile_*_test.go files go through the threats that this program's parsers can meet; T numbers are those of the
// threat list. Every image is forged by code, valid but for the field that its case names.

// hostile is an image from a stranger and how the commands must end on it.
type hostile struct {
	name  string
	image func(t testing.TB, dir string) string // writes the image into dir and returns its path
	args  []string                              // flags for all commands
	code  string                                // of the JSON error
	// Exit codes of inspect, and of plan and align. 0 stands for 1: malformed.
	inspect, copy int
	report        bool     // inspect prints its report all the same
	says          []string // in the line on stderr, and in a finding of a report
	finds         []string // in a finding, when that says other things than the line
}

func runHostile(t *testing.T, groups ...[]hostile) {
	t.Helper()
	for _, h := range slices.Concat(groups...) {
		t.Run(h.name, h.run)
	}
}

// run requires the ends that the case names, one line on stderr each, and that nothing is written anywhere.
func (h hostile) run(t *testing.T) {
	t.Helper()
	h.copy = max(h.copy, 1)
	if h.inspect == 0 {
		h.inspect = h.copy
	}
	dir, out := t.TempDir(), t.TempDir()
	path := h.image(t, dir)
	before := folderState(t, dir)
	with := func(args ...string) []string { return append(args, h.args...) }
	runs := [][]string{with("inspect", "--json", path), with("align", path, filepath.Join(out, "dest.vmdk"))}
	// else all commands end before they differ, where the image is opened
	differ := h.inspect != 1 || h.report || h.copy != 1
	if differ || disktest.Share(t.Name()) {
		runs = append(runs, with("inspect", path), with("plan", "--json", path))
	}
	if differ && disktest.Share(t.Name()) {
		runs = append(runs, with("align", "--json", path, filepath.Join(out, "dest.vmdk")))
	}
	ends := measure(t, runs...)
	h.checkInspect(t, ends[0])
	h.checkLine(t, path, ends[1])
	require.Equal(t, h.copy, ends[1].code)
	require.Empty(t, ends[1].stdout, "align has no result")
	if len(ends) > 2 {
		h.checkText(t, path, ends[2])
	}
	for _, end := range ends[min(len(ends), 3):] {
		h.checkCopy(t, path, end)
	}
	require.Equal(t, before, folderState(t, dir))
	require.Empty(t, folderNames(t, out), "neither DEST nor a part of it")
}

// sound is an image that looks odd and is moved.
type sound struct {
	image func(t testing.TB, dir string) string
	kind  string // of its volume
	says  string // in a finding
}

func runSound(t *testing.T, cases map[string]sound) {
	t.Helper()
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			path := c.image(t, t.TempDir())
			ends := measure(t, []string{"inspect", "--json", path}, []string{"inspect", path},
				[]string{"align", path, filepath.Join(t.TempDir(), "dest.raw")})
			require.Equal(t, 3, ends[0].code, ends[0].stderr)
			var report jsonInspect
			unmarshal(t, ends[0], &report)
			require.Equal(t, c.kind, report.Partitions[0].Volume.Kind)
			if c.says != "" {
				(hostile{says: []string{c.says}}).checkFindings(t, report.Findings)
			}
			requireClean(t, ends[1].stdout)
			require.Less(t, strings.Count(ends[1].stdout, "\n"), 150)
			require.Equal(t, 0, ends[2].code, ends[2].stderr)
		})
	}
}

// failure is the part of a JSON answer that says why a command failed.
type failure struct {
	jsonHead
	Image *jsonImage `json:"image"`
	Error *struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
	Findings []jsonFinding `json:"findings"`
}

func parseFailure(t testing.TB, r result) failure {
	t.Helper()
	var f failure
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &f), r.stdout)
	require.Equal(t, "trueup/1", f.Schema)
	require.Equal(t, r.code, f.ExitCode, "the JSON object and the process")
	return f
}

// findsOnly reports whether inspect ends without an error.
func (h hostile) findsOnly() bool { return h.inspect == 2 || h.inspect == 3 }

// checkText wants the end of inspect in text.
func (h hostile) checkText(t testing.TB, path string, r result) {
	t.Helper()
	require.Equal(t, h.inspect, r.code, r.stderr)
	require.Equal(t, h.report, r.stdout != "", "inspect prints a report:\n%s", r.stdout)
	requireClean(t, r.stdout)
	if h.findsOnly() {
		require.Empty(t, r.stderr)
		return
	}
	h.checkLine(t, path, r)
}

// checkInspect wants the end of inspect in JSON.
func (h hostile) checkInspect(t testing.TB, asJSON result) {
	t.Helper()
	require.Equal(t, h.inspect, asJSON.code, asJSON.stderr)
	requireClean(t, asJSON.stdout, asJSON.stderr)
	f := parseFailure(t, asJSON)
	require.Equal(t, h.report, f.Image != nil, asJSON.stdout)
	if h.findsOnly() {
		require.Nil(t, f.Error)
		h.checkFindings(t, f.Findings)
		return
	}
	require.NotNil(t, f.Error, asJSON.stdout)
	require.Equal(t, h.code, f.Error.Code, f.Error.Message)
	if h.report {
		h.checkFindings(t, f.Findings)
	}
}

// checkFindings wants everything that the case is about in one finding.
func (h hostile) checkFindings(t testing.TB, findings []jsonFinding) {
	t.Helper()
	says := h.says
	if h.finds != nil {
		says = h.finds
	}
	for _, f := range findings {
		if containsAll(f.Text, says) {
			return
		}
	}
	require.Failf(t, "no finding", "of %q has all of %q", findings, says)
}

func containsAll(s string, parts []string) bool {
	for _, part := range parts {
		if !strings.Contains(s, part) {
			return false
		}
	}
	return true
}

func (h hostile) checkCopy(t testing.TB, path string, r result) {
	t.Helper()
	require.Equal(t, h.copy, r.code, r.stderr)
	h.checkLine(t, path, r)
	requireClean(t, r.stdout)
	f := parseFailure(t, r)
	require.NotNil(t, f.Error, r.stdout)
	require.Equal(t, h.code, f.Error.Code, f.Error.Message)
}

// checkLine wants one line on stderr that names the image and everything that the case is about.
func (h hostile) checkLine(t testing.TB, path string, r result) {
	t.Helper()
	line, rest, ended := strings.Cut(r.stderr, "\n")
	require.True(t, ended && rest == "", "one line:\n%s", r.stderr)
	require.True(t, strings.HasPrefix(line, "trueup: "), line)
	require.Contains(t, line, filepath.Base(path))
	for _, part := range h.says {
		require.Contains(t, line, part)
	}
	requireClean(t, r.stderr)
}

// requireClean refuses what a terminal would obey: control characters of both sets, but for the ends of lines, and
// those that reverse the direction of text. Bytes that are no UTF-8 can be controls of the second set.
func requireClean(t testing.TB, texts ...string) {
	t.Helper()
	for _, s := range texts {
		require.True(t, utf8.ValidString(s), "%q", s)
		bad := strings.IndexFunc(s, func(r rune) bool {
			return (unicode.IsControl(r) && r != '\n') || r == '\u202e'
		})
		if bad >= 0 {
			require.Failf(t, "control character", "%q", s[bad:min(len(s), bad+40)])
		}
	}
}

// folderState is what a stranger's folder looks like; contents are compared where they can be read.
func folderState(t testing.TB, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	state := map[string]string{}
	for _, entry := range entries {
		info, err := entry.Info()
		require.NoError(t, err)
		state[entry.Name()] = fmt.Sprint(info.Mode(), info.Size(), info.ModTime())
		if info.Mode().Type() == fs.FileMode(0) && info.Size() < 64<<20 {
			state[entry.Name()] += sha256Of(t, filepath.Join(dir, entry.Name()))
		}
	}
	return state
}

// writeText makes a text file, such as a descriptor, the image.
func writeText(name, text string) func(testing.TB, string) string {
	return func(t testing.TB, dir string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
		return path
	}
}

// writeForged makes a forged image the file.
func writeForged(name string, image forge.Bytes) func(testing.TB, string) string {
	return func(t testing.TB, dir string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		image.Write(t, path)
		return path
	}
}

func unmarshal(t testing.TB, r result, v any) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(r.stdout), v), r.stdout)
}
