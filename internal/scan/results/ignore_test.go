package results

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/report"
)

const ignoreText = "\uFEFF# accepted images\r\n" +
	"\n" +
	"old-*.vmdk 2026-06-30 replaced in summer\n" +
	"\t\"iso/my disk*.raw\"\tnever\t installers # never run \r\n" +
	`a\ b"c.raw 2027-01-31 quoted` + "\n" +
	`"say \"x\".raw" never quotes` + "\n" +
	"**/golden/** 2026-01-01 was fine once\n" +
	"/srv/golden/** never fine again\n" +
	"nothing.raw never not there"

func TestIgnore(t *testing.T) {
	i, err := ParseIgnore([]byte(ignoreText))
	require.NoError(t, err)
	for _, tc := range []struct {
		path, today string
		want        *Accepted
	}{
		{"lib/old-1.vmdk", "2026-06-30", &Accepted{"replaced in summer", "2026-06-30"}},
		{"lib/old-1.vmdk", "2026-07-01", nil},
		{"/srv/iso/my disk 1.raw", "2030-01-01", &Accepted{Reason: "installers # never run"}},
		{"x/iso/my disk 1.raw", "2030-01-01", nil},
		{`z/a b"c.raw`, "2027-01-31", &Accepted{"quoted", "2027-01-31"}},
		{`say "x".raw`, "2027-01-31", &Accepted{Reason: "quotes"}},
		{"/srv/golden/x.raw", "2026-01-01", &Accepted{"was fine once", "2026-01-01"}},
		{"/srv/golden/x.raw", "2026-01-02", &Accepted{Reason: "fine again"}},
	} {
		require.Equal(t, tc.want, i.match(pathNames(tc.path, NewRoots([]string{"/srv", "lib"})), tc.today),
			tc.path)
	}
}

func TestIgnoreErrors(t *testing.T) {
	const parts = ": must be a glob, its last day (2027-01-31 or never), and a reason"
	const date = ": must be the last day"
	for text, want := range map[string]string{
		"a.raw":                       `line 1: "a.raw"` + parts,
		"\n# x\na.raw soon because":   `line 3: "soon"` + date,
		"a.raw 2027-02-30 because":    `line 1: "2027-02-30"` + date,
		"a.raw 27-2-3 because":        `line 1: "27-2-3"` + date,
		"a.raw 2027-01-31":            `line 1: "a.raw 2027-01-31"` + parts,
		"a.raw never \t ":             `line 1: "a.raw never"` + parts,
		"  \"a b[.raw\" never x":      "line 1: the glob is malformed",
		"  \"a b.raw never x":         `line 1: "\"a b.raw never x"` + parts,
		"\"a.raw never x":             `line 1: "\"a.raw never x"` + parts,
		"\"a.raw\"x never y":          `line 1: "\"a.raw\"x never y"` + parts,
		"a.raw never \xff":            "line 1: the reason is not UTF-8",
		"a\x00.raw never x":           "line 1: a NUL byte; an ignore file is text",
		`"" never x`:                  "line 1: the glob is empty",
		strings.Repeat("a 0 b\n", 2):  `line 1: "0"` + date,
		strings.Repeat("\n", 9) + "a": `line 10: "a"` + parts,
	} {
		_, err := ParseIgnore([]byte(text))
		require.ErrorContains(t, err, want)
	}
	_, err := ParseIgnore([]byte(strings.Repeat("a never b\n", 100_000)))
	require.NoError(t, err)
	_, err = ParseIgnore([]byte(strings.Repeat("a never b\n", 100_001)))
	require.EqualError(t, err, "line 100001: more than 100000 entries")
}

// Images without a problem need not be accepted, and an entry for these only is useless.
func TestAccept(t *testing.T) {
	i, err := ParseIgnore([]byte("*.raw never known\nfine* never was off\n64K* never small\n"))
	require.NoError(t, err)
	failed := NewImage("x.raw")
	failed.Fail("format", "broken")
	on64 := row("64K.vhd", align.Aligned, "", 0, false)
	on64.Disks[0].Partitions = []report.Partition{{Verdict: align.Aligned, Start: 65536}}
	gone := NewImage("gone.raw")
	gone.State = Gone
	for img, want := range map[*Image]*Accepted{
		row("off.raw", align.Misaligned, align.DataDisk, 1, false):     {Reason: "known"},
		row("below.raw", align.BelowBoundary, align.DataDisk, 1, true): {Reason: "known"},
		row("off.vhd", align.Misaligned, align.DataDisk, 1, false):     nil,
		row("fine.raw", align.Aligned, "", 0, false):                   nil,
		failed: {Reason: "known"}, on64: nil, gone: nil,
	} {
		i.Accept(img, nil, "2027-01-01", Default)
		require.Equal(t, want, img.Accepted, img.Path)
	}
}

func TestNames(t *testing.T) {
	require.Equal(t, []string{"/srv/lib/a", "lib/a", "a"},
		pathNames("/srv/lib/a", NewRoots([]string{"/srv", "/srv/lib/", "", "/sr", "/other", "/srv/lib/a"})))
	require.Equal(t, []string{"/a", "a"}, pathNames("/a", NewRoots([]string{"/"})))
}

// manyEntries are globs of all kinds, of which few match.
func manyEntries(t testing.TB, n int) Ignore {
	t.Helper()
	var text strings.Builder
	for k := range n {
		form := []string{
			"template-%d-*.vmdk", "/srv/lib/team%d/**", "**/old%d/*.raw", "*backup-%d*",
			"[a-m]*%d?.vmdk",
		}[k%5]
		fmt.Fprintf(&text, form+" never reason %d\n", k, k)
	}
	i, err := ParseIgnore([]byte(text.String()))
	require.NoError(t, err)
	return i
}

func imagePath(k int) string {
	return fmt.Sprintf("/srv/lib/team%d/release/os%d/template-%d-disk1.vmdk", k%700, k%31, k)
}

// The library of the issue with a long list: the limit is five times the goal for an idle machine.
func TestIgnoreIsFast(t *testing.T) {
	i := manyEntries(t, 1000)
	spent := disktest.Spent()
	const some = 1000 // the 10,000 should take less than a second: machines differ, and the race detector is slow
	for k := range some {
		i.match(pathNames(imagePath(k), NewRoots([]string{"/srv/lib"})), "2027-01-01")
	}
	require.Less(t, spent(), 5*time.Second)
}

func BenchmarkIgnore(b *testing.B) {
	i := manyEntries(b, 1000)
	for k := 0; b.Loop(); k++ {
		i.match(pathNames(imagePath(k), NewRoots([]string{"/srv/lib"})), "2027-01-01")
	}
}

func FuzzIgnore(f *testing.F) {
	f.Add([]byte(ignoreText))
	f.Add([]byte("\"a\\\" never\tb"))
	f.Fuzz(func(t *testing.T, text []byte) {
		i, err := ParseIgnore(text)
		if err != nil {
			require.Regexp(t, "^line [0-9]+: |^the file has more", err.Error())
			return
		}
		for _, e := range i {
			require.NotEmpty(t, e.accepted.Reason)
			require.True(t, e.accepted.Until == "" || len(e.accepted.Until) == len(day))
		}
	})
}

// The example of the documentation is an ignore file with the documented effect.
func TestIgnoreDocumentation(t *testing.T) {
	text := disktest.ReadFile(t, "../../../docs/scan.md")
	_, example, ok := strings.Cut(string(text), "```ignore\n")
	require.True(t, ok)
	example, _, ok = strings.Cut(example, "```")
	require.True(t, ok)
	i, err := ParseIgnore([]byte(example))
	require.NoError(t, err)
	_, table, ok := strings.Cut(string(text), "| image | reason |")
	require.True(t, ok)
	table, _, _ = strings.Cut(table, "\n\n")
	rows := 0
	for l := range strings.Lines(table) { // | path | reason or "not accepted" |
		cells := strings.Split(strings.TrimSpace(l), " | ")
		if len(cells) != 2 || !strings.HasPrefix(l, "| `") {
			continue
		}
		rows++
		want := strings.Trim(cells[1], " |")
		got := "not accepted"
		names := pathNames(strings.Trim(cells[0], "|` "), NewRoots([]string{"/srv/templates"}))
		if a := i.match(names, "2026-12-01"); a != nil {
			got = a.Reason
		}
		require.Equal(t, want, got, l)
	}
	require.Greater(t, rows, 4)
}

// A scan can have as many paths as rows. Compared with each of them, a row would take milliseconds.
func TestNamesBelowManyRoots(t *testing.T) {
	var paths []string
	for k := range 100_000 {
		paths = append(paths, imagePath(k))
	}
	roots := NewRoots(append(paths, "/srv"))
	spent := disktest.Spent()
	for _, p := range paths {
		require.Len(t, pathNames(p, roots), 2)
	}
	require.Less(t, spent(), 20*time.Second)
}
