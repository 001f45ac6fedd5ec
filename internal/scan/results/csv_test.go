package results

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/report"
)

// records returns the result of Python's strict CSV parser. Any texts are compared with the paths and labels of the
// rows.
func records(t *testing.T, images []*Image, texts []string) [][]string {
	t.Helper()
	args := []string{
		disktest.DataFile(t, filepath.Join("testdata", "cells.py")),
		saved(t, "scan.csv", written(t, func(w io.Writer) error { return write(w, csvFormat, NewSummary(), images) })),
	}
	if texts != nil {
		var lines strings.Builder
		for _, text := range texts {
			lines.WriteString(base64.StdEncoding.EncodeToString([]byte(text)) + "\n")
		}
		args = append(args, saved(t, "texts", lines.String()))
	}
	var out [][]string
	require.NoError(t, json.Unmarshal([]byte(disktest.Output(t, disktest.DataFile(t, "/usr/bin/python3"), args...)),
		&out))
	return out
}

// labelled is an image with a text as path and label.
func labelled(text string) *Image {
	d := diskOf(align.DataDisk, part(1, 63, "ntfs"))
	d.Partitions[0].Volume.Label = text
	return judged(text, "raw", d)
}

// The table in the documentation is the header, in its order.
func TestColumnsAreDocumented(t *testing.T) {
	doc := disktest.ReadFile(t, filepath.Join("..", "..", "..", "docs", "scan.md"))
	_, section, _ := strings.Cut(string(doc), "\n### CSV\n")
	var documented []string
	for _, row := range regexp.MustCompile("(?m)^\\| (`[^|]+)\\|").FindAllStringSubmatch(section, -1) {
		for _, name := range regexp.MustCompile("`([a-z0-9_]+)`").FindAllStringSubmatch(row[1], -1) {
			documented = append(documented, name[1])
		}
	}
	require.Equal(t, documented, records(t, nil, nil)[0], "the table in docs/scan.md, section CSV, and the header")
}

// Each image and each partition has a row, and a line is as long as the header.
func TestNoImageIsLostInCSV(t *testing.T) {
	_, images := smallLibrary()
	rows := records(t, images, nil)
	at := func(r []string, name string) string { return r[slices.Index(rows[0], name)] }
	counts := map[string]int{}
	for _, r := range rows[1:] {
		require.Len(t, r, len(rows[0]))
		counts[at(r, "path")]++
		for n, name := range rows[0] {
			if r[n] != "" && (strings.HasSuffix(name, "_bytes") ||
				slices.Contains([]string{"rank", "class", "start_lba", "partition"}, name)) {
				_, err := strconv.ParseInt(r[n], 10, 64)
				require.NoError(t, err, "%s of %s", name, at(r, "path"))
			}
		}
	}
	require.Equal(t, map[string]int{
		"/t/fine.qcow2": 2, "/t/two.ova": 2, "/t/half.ova": 3, "/t/data.vmdk": 1, "/t/my boot.vmdk": 1,
		"/t/lilo.vmdk": 1, "/t/many.vmdk": 1, "/t/floppy.img": 1, "/t/retired.vmdk": 1, "/t/broken.vhd": 1,
		"/t/lone-s002.vmdk": 1, "/t/gone.vhdx": 1, "/t/blank.vhd": 1, "/t/old.vmdk.gz": 1, "/t/firmware.img": 1,
	}, counts)
}

func TestHostileTextsInCSV(t *testing.T) {
	var images []*Image
	for _, text := range hostile {
		images = append(images, labelled(text))
	}
	records(t, images, hostile)
	_, all := hostiles()
	rows := records(t, all, nil)
	for _, r := range rows[1:] {
		require.Len(t, r, len(rows[0]))
		for _, c := range r {
			require.NotContains(t, c, "\n")
			require.Equal(t, report.Escape(c), c)
		}
	}
}

// Texts of all kinds of characters are read back as the documentation says.
func TestCSVReadsBack(t *testing.T) {
	piece := rapid.OneOf(
		rapid.SampledFrom([]string{
			"=", "+", "-", "@", ";", ",", `"`, "'", " ", "\n", "\r\n", "\t", `\`, "\uff1d",
			"\u202e", "\ufffd", "é", "\xe2\x80", "\u2029", `\.`,
		}),
		rapid.Map(rapid.Byte(), func(b byte) string { return string([]byte{b}) }),
	)
	rapid.Check(t, func(r *rapid.T) {
		var images []*Image
		var texts []string
		for _, pieces := range rapid.SliceOfN(rapid.SliceOfN(piece, 0, 12), 20, 60).Draw(r, "texts") {
			texts = append(texts, strings.Join(pieces, ""))
			images = append(images, labelled(texts[len(texts)-1]))
		}
		records(t, images, texts)
	})
}

// A spreadsheet that splits at commas or at semicolons finds no formula.
func TestNoCellIsAFormula(t *testing.T) {
	for text, want := range map[string]string{
		"=cmd": "'=cmd", "+1": "'+1", "-1": "'-1", "@x": "'@x", "\t=1": `\u0009=1`, "\r=1": `\u000d=1`,
		"\uff1d1": "'\uff1d1", "\uff0b": "'\uff0b", "\uff0d": "'\uff0d", "\uff20": "'\uff20", "a;=1": "a;'=1",
		`a; "=1`: `a; "'=1`, "a=1": "a=1", "1-2": "1-2", "'=1": "'=1", "": "", "--": "'--",
	} {
		require.Equal(t, want, cell(text), "%q", text)
	}
	_, images := hostiles()
	formula := regexp.MustCompile("(?m)(^|[,;])[ \"]*[=+@\uff1d\uff0b\uff0d\uff20-]")
	for _, r := range records(t, images, nil) {
		for _, c := range r {
			require.NotRegexp(t, formula, strings.ReplaceAll(c, ",", "_"))
		}
	}
}

// A command is pasted from a cell into a shell, so nothing in it may be changed.
func TestCommandsInCSVAreExact(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		path := rapid.StringOf(rapid.SampledFrom([]rune("a;=+-@'\"\\ \n\u202e!$"))).Draw(r, "path")
		command := labelled(path).Priority.Command
		require.Equal(r, command, cell(command))
	})
	for _, text := range hostile {
		command := labelled(text).Priority.Command
		require.Equal(t, command, cell(command))
	}
}

// Labels of the command line and of a file are escaped for a terminal and for a spreadsheet.
func TestLabelsAreEscaped(t *testing.T) {
	t.Parallel()
	i := NewImage("/x")
	i.State, i.Labels = Orphan, Labels{"host": {"=cmd\x1b[31m"}}
	require.NoError(t, i.Check())
	csv := written(t, func(w io.Writer) error { return write(w, csvFormat, NewSummary(), []*Image{i}) })
	require.Contains(t, csv, `,host==cmd\u001b[31m`)
	i.Labels = Labels{"=x": {"v"}}
	require.ErrorContains(t, i.Check(), `key "=x"`)
}

func TestLabels(t *testing.T) {
	t.Parallel()
	l, err := ParseLabels([]string{"host=esx1", "site=a=b"})
	require.NoError(t, err)
	require.Equal(t, Labels{"host": {"esx1"}, "site": {"a=b"}}, l)
	both := l.Merge(Labels{"host": {"esx0", "esx1"}})
	require.Equal(t, "host=esx0 host=esx1 site=a=b", both.String())
	require.Equal(t, "host=esx1 site=a=b", l.String(), "the row of one host stays")
	var many []string
	for n := range maxLabels + 1 {
		many = append(many, fmt.Sprintf("k%d=v", n))
	}
	for _, list := range [][]string{
		{"host"},
		{"=x"},
		{"Host=x"},
		{"a b=x"},
		{"host="},
		{"host=\xff"},
		{"host=a", "host=b"},
		{strings.Repeat("k", maxKey+1) + "=v"},
		{"k=" + strings.Repeat("v", maxValue+1)},
		many,
	} {
		_, err := ParseLabels(list)
		require.Error(t, err, "%q", list)
	}
	_, err = ParseLabels(many[:maxLabels])
	require.NoError(t, err)
}

// metricsOf are the series of each of several runs.
func metricsOf(t *testing.T, runs ...*Summary) [][]disktest.Series {
	t.Helper()
	var texts []string
	for _, s := range runs {
		texts = append(texts, written(t, func(w io.Writer) error { return write(w, metricsFormat, s, nil) }))
	}
	return disktest.ReadMetrics(t, texts...)
}

func TestMetricsAreTheSums(t *testing.T) {
	s, _ := smallLibrary()
	s.Read = 1 << 40
	got := map[string]float64{}
	for _, m := range metricsOf(t, s)[0] {
		key := m.Name
		for _, name := range []string{"verdict", "content", "format", "code", "change", "outcome"} {
			if v, ok := m.Labels[name]; ok {
				key += " " + v
			}
		}
		require.Equal(t, "/t", m.Labels["library"])
		got[key] = m.Value
	}
	require.Equal(t, map[string]float64{
		"trueup_images aligned": 2, "trueup_images below_boundary": 2, "trueup_images misaligned": 5,
		"trueup_images nothing_to_judge": 2, "trueup_images packed": 1, "trueup_images_with_nothing_to_judge blank": 1,
		"trueup_images_with_nothing_to_judge unknown_content": 1, "trueup_images failed": 1, "trueup_images orphan": 1,
		"trueup_images original": 0, "trueup_images_by_head": 0, "trueup_images_accepted": 1, "trueup_errors format": 1,
		"trueup_unreadable_places": 1, "trueup_skipped_files": 4, "trueup_images_by_format vmdk": 5,
		"trueup_images_by_format ova": 2, "trueup_images_by_format raw": 3, "trueup_images_by_format gzip": 1,
		"trueup_images_by_format qcow2": 1, "trueup_changes new": 0, "trueup_changes changed": 0,
		"trueup_changes same": 14, "trueup_changes removed": 1, "trueup_fix_images possible": 3,
		"trueup_fix_images copied": 0, "trueup_fix_images refused": 3, "trueup_fix_images stays": 0,
		"trueup_fix_copy_bytes":   9 << 30,
		"trueup_fix_growth_bytes": 3 << 20, "trueup_last_run_timestamp_seconds": 1795291290,
		"trueup_last_run_duration_seconds": 90.3, "trueup_last_run_complete": 1, "trueup_last_run_exit_code": 1,
		"trueup_last_run_read_bytes": 1 << 40, "trueup_scan_info": 1,
	}, got)
}

// A library without an earlier scan and without errors has no series of them, and an interrupted run reports it.
func TestMetricsOfNothing(t *testing.T) {
	s := NewSummary()
	s.Started, s.Finished = "2026-11-21T20:00:00Z", "2026-11-21T20:00:00.5Z"
	for _, m := range metricsOf(t, s)[0] {
		require.NotContains(t, []string{"trueup_changes", "trueup_errors", "trueup_images_by_format"}, m.Name)
		if m.Name == "trueup_last_run_complete" {
			require.Zero(t, m.Value)
		}
	}
}

func TestHostileTextsInMetrics(t *testing.T) {
	var runs []*Summary
	for _, text := range hostile {
		s, _ := smallLibrary()
		s.Paths, s.Version, s.Errors = []string{text}, text, map[string]int{text: 3}
		runs = append(runs, s)
	}
	for n, all := range metricsOf(t, runs...) {
		require.Equal(t, report.Safe(hostile[n]), all[0].Labels["library"])
		require.Equal(t, report.Safe(hostile[n]), all[len(all)-1].Labels["version"])
	}
}

// An invalid time is our own fault, and no metric is better than a wrong one.
func TestMetricsNeedTimes(t *testing.T) {
	s, _ := smallLibrary()
	s.Finished = ""
	require.ErrorContains(t, write(&strings.Builder{}, metricsFormat, s, nil), "end of the run")
}

// readCases returns the result of Python's parser: class, name, outcome and message of each case. It also checks the
// counts.
const readCases = `
import json, sys, xml.etree.ElementTree as tree
root = tree.parse(sys.argv[1]).getroot()
suite = root.find("testsuite")
cases, counts = [], {"failure": 0, "error": 0, "skipped": 0}
for case in suite.iter("testcase"):
    outcome = next((c for c in case if c.tag in counts), None)
    if outcome is not None:
        counts[outcome.tag] += 1
    result = ["", ""] if outcome is None else [outcome.tag, outcome.get("message")]
    cases.append([case.get("classname"), case.get("name")] + result)
told = {"failure": suite.get("failures"), "error": suite.get("errors"), "skipped": suite.get("skipped")}
assert {k: str(v) for k, v in counts.items()} == told, (counts, told)
assert suite.get("tests") == root.get("tests") == str(len(cases)), (suite.get("tests"), len(cases))
assert (root.get("failures"), root.get("errors")) == (told["failure"], told["error"])
json.dump(cases, sys.stdout)`

// cases validates a report by the schema, then reads it with a second parser.
func cases(t *testing.T, s *Summary, images []*Image, fail FailOn) (out [][4]string) {
	t.Helper()
	path := saved(t, "junit.xml", written(t, func(w io.Writer) error {
		return junitFormat.Write(w, &Report{Summary: s, Images: slices.Values(images), Fail: fail})
	}))
	disktest.Run(t, "xmllint", "--noout", "--nonet", "--huge", "--schema", filepath.Join("testdata", "junit.xsd"), path)
	require.NoError(t, json.Unmarshal([]byte(python(t, readCases, path)), &out))
	return out
}

func TestJUnitOutcomes(t *testing.T) {
	s, images := smallLibrary()
	on64K := judged("on64K.raw", "raw", diskOf("", part(1, 128, "ntfs")))
	images = append(images, on64K)
	const ok = "passed"
	for level, want := range map[FailOn]map[string]string{
		Default: {
			"data.vmdk": "failure", "two.ova": "failure", "broken.vhd": "error", "secret": "error", "on64K.raw": ok,
			"half.ova": "failure",
		},
		Off4K: {
			"data.vmdk": "failure", "two.ova": ok, "broken.vhd": "error", "secret": "error", "on64K.raw": ok,
			"half.ova": "skipped",
		},
		Errors: {
			"data.vmdk": ok, "two.ova": ok, "broken.vhd": "error", "secret": "error", "on64K.raw": ok,
			"half.ova": "skipped",
		},
		Never: {
			"data.vmdk": ok, "two.ova": ok, "broken.vhd": "skipped", "secret": "skipped", "on64K.raw": ok,
			"half.ova": "skipped",
		},
	} {
		want["fine.qcow2"], want["floppy.img"], want["lone-s002.vmdk"], want["retired.vmdk"] = ok, ok, "skipped",
			"skipped"
		want["lilo.vmdk"], want["many.vmdk"], want["my boot.vmdk"] = want["data.vmdk"], want["data.vmdk"],
			want["data.vmdk"]
		want["blank.vhd"], want["old.vmdk.gz"], want["firmware.img"] = "skipped", "error", "error"
		if level == Never {
			want["old.vmdk.gz"], want["firmware.img"] = "skipped", "skipped"
		}
		got := map[string]string{}
		for _, c := range cases(t, s, images, level) {
			if got[c[1]] = c[2]; c[2] == "" {
				got[c[1]] = ok
			}
		}
		require.Equal(t, want, got, "--fail-on %q; what is gone has no case", level)
	}
}

// A CI system shows one informative line per case.
func TestJUnitMessages(t *testing.T) {
	s, images := smallLibrary()
	got := map[string]string{}
	for _, c := range cases(t, s, images, Default) {
		require.Equal(t, "/t", c[0])
		got[c[1]] = c[3]
	}
	require.Contains(t, got["data.vmdk"], "a partition starts off a 4 KiB boundary; ")
	require.Contains(t, got["two.ova"], "a partition is on 4 KiB, but off 64K; ")
	require.Equal(t, "accepted until 2027-01-31: is replaced", got["retired.vmdk"])
	require.Equal(t, "permission denied", got["secret"])
}

// An interrupted run is no success, whatever it has seen.
func TestJUnitOfAnInterruptedRun(t *testing.T) {
	s, _ := smallLibrary()
	s.Complete, s.Unreadable, s.Images = false, nil, 7
	require.Equal(t, [][4]string{{
		"trueup scan", "run", "error",
		"the run was interrupted: 7 images were looked at, and not all",
	}}, cases(t, s, nil, Default))
	require.Equal(t, "skipped", cases(t, s, nil, Never)[0][2])
	s.Complete = true
	require.Empty(t, cases(t, s, nil, Default))
	none := NewSummary()
	none.Complete, none.Started = true, s.Started
	require.Equal(t, [][4]string{{
		"trueup scan", "run", "error",
		"no image was judged; if that is right, give --allow-empty",
	}}, cases(t, none, nil, Default))
	none.AllowEmpty = true
	require.Empty(t, cases(t, none, nil, Default))
}

// A case has the path of its image.
func TestHostileTextsInJUnit(t *testing.T) {
	s, images := hostiles()
	s.Unreadable = nil
	got := cases(t, s, images, Default)
	require.Len(t, got, len(images))
	for n, i := range images {
		at := newCase(i.ExactPath())
		require.Equal(t, [2]string{report.Escape(at.Class), report.Escape(at.Name)}, [2]string(got[n][:2]))
	}
}

func TestSplit(t *testing.T) {
	for path, want := range map[string][2]string{
		"a.vmdk": {".", "a.vmdk"}, "/a.vmdk": {"/", "a.vmdk"}, "/t/a.vmdk": {"/t", "a.vmdk"}, "t/u/a": {"t/u", "a"},
	} {
		at := newCase(path)
		require.Equal(t, want, [2]string{at.Class, at.Name})
	}
}
