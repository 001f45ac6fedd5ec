package results

import (
	"encoding/json"
	"io"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/report"
)

// readCases is what Python's parser finds: class, name, outcome and message of each case. It checks the counts on its
// way.
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

// What a CI system shows of a case is one line that says enough.
func TestJUnitMessages(t *testing.T) {
	s, images := smallLibrary()
	got := map[string]string{}
	for _, c := range cases(t, s, images, Default) {
		require.Equal(t, "/t", c[0])
		got[c[1]] = c[3]
	}
	require.Equal(t, "partition 1 starts at byte 32256 (LBA 63), off 4K", got["data.vmdk"])
	require.Equal(t, "a.vmdk: partition 2 starts at byte 1073745920 (LBA 2097160), off 64K", got["two.ova"])
	require.Equal(t, "accepted until 2027-01-31: is replaced", got["retired.vmdk"])
	require.Equal(t, "permission denied", got["secret"])
}

// A run that was interrupted is not a success, whatever it has seen.
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

// A case names the path of its image, and a disk with many partitions does not make it long.
func TestHostileTextsInJUnit(t *testing.T) {
	s, images := hostiles()
	s.Unreadable = nil
	got := cases(t, s, images, Default)
	require.Len(t, got, len(images))
	for n, i := range images {
		at := newCase(i.ExactPath())
		require.Equal(t, [2]string{report.Escape(at.Class), report.Escape(at.Name)}, [2]string(got[n][:2]))
	}
	var parts []report.Partition
	for n := range 1000 {
		parts = append(parts, part(n+1, int64(63+n*64), "ntfs"))
	}
	lines := judged("many", "raw", diskOf(align.DataDisk, parts...)).offLines()
	require.Len(t, lines, maxOffLines+1)
	require.Equal(t, "and 980 more", lines[maxOffLines])
}

func TestSplit(t *testing.T) {
	for path, want := range map[string][2]string{
		"a.vmdk": {".", "a.vmdk"}, "/a.vmdk": {"/", "a.vmdk"}, "/t/a.vmdk": {"/t", "a.vmdk"}, "t/u/a": {"t/u", "a"},
	} {
		at := newCase(path)
		require.Equal(t, want, [2]string{at.Class, at.Name})
	}
}
