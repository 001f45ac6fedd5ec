package scan

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/scan/results"
)

// judgedRow makes a row of a disk with one partition at an LBA.
func judgedRow(path string, lba int64) *results.Image {
	i := results.NewImage(path)
	i.State, i.Format, i.Stored = results.Judged, "raw", 1<<20
	d := results.NewDisk(1<<30, align.DefaultBoundary)
	d.Verdict = align.Aligned
	if lba%8 != 0 {
		d.Verdict = align.Misaligned
	}
	d.Partitions = append(d.Partitions, report.Partition{
		Number: 1, Kind: "primary", Type: "0x07", StartLBA: lba, Start: lba * 512, Size: 1 << 20, Verdict: d.Verdict,
	})
	i.Disks, i.Files = append(i.Disks, d), append(i.Files, results.File{Name: filepath.Base(path), Inode: 7, Size: 9})
	i.Assess(nil)
	return i
}

// scanned is the file of a scan of /lib that ended at a minute, or of /mnt, if the first row is there.
func scanned(t testing.TB, minute int, rows ...*results.Image) string {
	t.Helper()
	root := "/lib"
	if strings.HasPrefix(rows[0].Path, "/mnt/") {
		root = "/mnt"
	}
	var b bytes.Buffer
	s := results.NewSummary()
	for _, i := range rows {
		require.NoError(t, report.Line(&b, i))
		s.Add(i)
	}
	s.Paths, s.Complete, s.Storage, s.Boundary = []string{root}, true, "generic", align.DefaultBoundary
	s.Started, s.Finished = "2026-01-02T03:00:00Z", fmt.Sprintf("2026-01-02T03:%02d:00Z", minute)
	require.NoError(t, report.Line(&b, s))
	return b.String()
}

// merged makes a report from the texts of files, each with labels.
func merged(t testing.TB, task MergeTask, texts ...string) (*results.Report, []*results.Image, error) {
	t.Helper()
	for n, text := range texts {
		path := filepath.Join(t.TempDir(), fmt.Sprintf("%d.ndjson", n))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		if n == len(task.Files) {
			task.Files = append(task.Files, ReportFile{})
		}
		task.Files[n].Path = path
	}
	m, err := task.Run(t.Context())
	if err != nil {
		return nil, nil, err
	}
	defer func() { require.NoError(t, m.Close()) }()
	list := slices.Collect(m.Images)
	require.Equal(t, list, slices.Collect(m.Images), "a report goes through its rows several times")
	require.NoError(t, m.Err())
	return m.Report, list, nil
}

func on(host string) ReportFile { return ReportFile{Labels: results.Labels{"host": {host}}} }

func TestTwoHostsThatSeeOneImage(t *testing.T) {
	t.Parallel()
	row := func(path string, lba int64, system string, marks results.Labels) *results.Image {
		i := judgedRow(path, lba)
		i.FileSystem, i.Labels = system, marks
		return i
	}
	ds := results.Labels{"datastore": {"d1"}}
	other, moved := row("/lib/a.raw", 2048, "u1", nil), row("/mnt/a.raw", 2048, "", ds)
	other.Files[0].Changed, moved.Files[0].Changed = 1, 1
	for _, c := range []struct {
		name          string
		first, second *results.Image
		by            string // empty: two rows
	}{
		{"one datastore, one path", row("/lib/a.raw", 63, "", ds), row("/lib/a.raw", 2048, "", ds), "datastore"},
		{"one datastore, elsewhere", row("/lib/a.raw", 63, "", ds), row("/mnt/a.raw", 2048, "", ds), "datastore"},
		{"one datastore, another file elsewhere", row("/lib/a.raw", 63, "", ds), moved, ""},
		{"one datastore, two paths", row("/lib/a.raw", 63, "", ds), row("/lib/b.raw", 2048, "", ds), ""},
		{"one file system", row("/lib/a.raw", 63, "u1", nil), row("/lib/b.raw", 2048, "u1", nil), "file_system"},
		{"two file systems", row("/lib/a.raw", 63, "u1", nil), row("/lib/a.raw", 2048, "u2", nil), ""},
		{"an inode of a clone that was written to", row("/lib/a.raw", 63, "u1", nil), other, ""},
		{"nothing but a path", row("/lib/a.raw", 63, "", nil), row("/lib/a.raw", 2048, "", nil), ""},
		{"outside of the scanned path", row("/x/a.raw", 63, "", ds), row("/x/a.raw", 2048, "", ds), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, later := range []int{1, 9} { // the first scan ends at 5
				r, rows, err := merged(t, MergeTask{Files: []ReportFile{on("a"), on("b")}},
					scanned(t, 5, c.first), scanned(t, later, c.second))
				require.NoError(t, err)
				require.Equal(t, 2, r.Summary.Merged.Rows)
				if c.by == "" {
					require.Len(t, rows, 2)
					require.Nil(t, rows[0].Joined)
					require.Equal(t, 3, r.Summary.ExitCode)
					continue
				}
				require.Len(t, rows, 1)
				require.Equal(t, &results.Joined{By: c.by, Rows: 2}, rows[0].Joined)
				require.Equal(t, []string{"a", "b"}, rows[0].Labels["host"])
				want := map[int]align.Verdict{1: align.Misaligned, 9: align.Aligned}[later]
				require.Equal(t, want, rows[0].Verdict, "the scan that ended last counts")
				for _, l := range r.Summary.Merged.Labels {
					require.Equal(t, 1, l.Images, "it counts for both hosts: %v", l)
				}
			}
		})
	}
}

// TestFoldersOfOneDatastore scans folders with images of the same name: they are different images.
func TestFoldersOfOneDatastore(t *testing.T) {
	t.Parallel()
	for why, c := range map[string]struct {
		paths []string // of the scan
		rows  []string
		want  int
	}{
		"two folders":       {[]string{"/ds/a", "/ds/b"}, []string{"/ds/a/x.raw", "/ds/b/x.raw"}, 2},
		"images themselves": {[]string{"/ds/a/x.raw"}, []string{"/ds/a/x.raw", "/ds/b/x.raw"}, 2},
		"one folder":        {[]string{"/ds/"}, []string{"/ds/a/x.raw", "/ds/a/x.raw"}, 1},
		"where it runs":     {[]string{"."}, []string{"a/x.raw", "a/x.raw"}, 1},
	} {
		var b bytes.Buffer
		s := results.NewSummary()
		for n, path := range c.rows {
			i := judgedRow(path, int64(63+n))
			i.Labels = results.Labels{"datastore": {"d1"}}
			require.NoError(t, report.Line(&b, i))
			s.Add(i)
		}
		s.Paths, s.Complete = c.paths, true
		s.Started, s.Finished = "2026-01-02T03:00:00Z", "2026-01-02T04:00:00+01:00"
		require.NoError(t, report.Line(&b, s))
		r, rows, err := merged(t, MergeTask{}, b.String())
		require.NoError(t, err)
		require.Len(t, rows, c.want, why)
		require.Equal(t, "2026-01-02T03:00:00Z", r.Summary.Finished)
	}
}

// TestMissingShards reads only some shards of a library.
func TestMissingShards(t *testing.T) {
	t.Parallel()
	shard := func(k string) string {
		s := results.NewSummary()
		s.Paths, s.Complete, s.Shard = []string{"/lib"}, true, k
		s.Started, s.Finished = "2026-01-02T03:00:00Z", "2026-01-02T03:00:00Z"
		var b bytes.Buffer
		i := judgedRow("/lib/"+k[:1], 2048)
		s.Add(i)
		require.NoError(t, report.Line(&b, i))
		require.NoError(t, report.Line(&b, s))
		return b.String()
	}
	for _, c := range []struct {
		shards []string
		says   string
	}{
		{[]string{"2/2", "1/2"}, ""},
		{[]string{"1/2", "2/2", "2/2", "1/2"}, ""},
		{[]string{"3/3"}, "2 of 3 shards, such as 1/3"},
		{[]string{"1/2", "2/2", "1/2"}, "1 of 2 shards, such as 2/2"},
		{[]string{"1/65536"}, "65535 of 65536 shards, such as 2/65536"},
		{[]string{"3/2"}, `shard "3/2"`},
		{[]string{"x"}, `shard "x"`},
	} {
		var texts []string
		for _, k := range c.shards {
			texts = append(texts, shard(k))
		}
		r, _, err := merged(t, MergeTask{}, texts...)
		require.NoError(t, err)
		if c.says == "" {
			require.Empty(t, r.Summary.Unreadable)
			require.Zero(t, r.Summary.ExitCode)
			continue
		}
		require.Len(t, r.Summary.Unreadable, 1, c.shards)
		require.Contains(t, r.Summary.Unreadable[0].Error.Message, c.says)
		require.Equal(t, 1, r.Summary.ExitCode)
	}
}

func TestArguments(t *testing.T) {
	t.Parallel()
	got, err := ReportFiles([]string{"a", "host=x", "b", "site=s", "./host=c", "host=y", "d"})
	require.NoError(t, err)
	require.Equal(t, []ReportFile{
		{"a", results.Labels{}},
		{"b", results.Labels{"host": {"x"}}},
		{"./host=c", results.Labels{"host": {"x"}, "site": {"s"}}},
		{"d", results.Labels{"host": {"y"}, "site": {"s"}}},
	}, got)
	for _, args := range [][]string{nil, {"host=x"}, {"Host=x", "a"}, {"=", "a"}} {
		_, err := ReportFiles(args)
		require.ErrorIs(t, err, ondisk.ErrUsage)
	}
}

// A label of the row is kept, and one on the command line is added.
func TestLabelsOfFiles(t *testing.T) {
	t.Parallel()
	mine := judgedRow("/lib/a", 63)
	mine.Labels = results.Labels{"host": {"own"}}
	file := ReportFile{Labels: results.Labels{"host": {"x"}, "site": {"north"}}}
	_, rows, err := merged(t, MergeTask{Files: []ReportFile{file}}, scanned(t, 1, mine, judgedRow("/lib/b", 63)))
	require.NoError(t, err)
	require.Equal(t, "host=own site=north", rows[0].Labels.String())
	require.Equal(t, "host=x site=north", rows[1].Labels.String())
}

func TestDamagedLinesAreNamed(t *testing.T) {
	t.Parallel()
	good := scanned(t, 1, judgedRow("/lib/a", 2048))
	odd := judgedRow("/lib/b", 2048)
	odd.Disks[0].Verdict = "fine"
	for _, c := range []struct{ text, want string }{
		{"{\n" + good, "line 1 no object of JSON"},
		{good + `{"schema":"trueup/1","command":"scan","event":"image"}` + "\n", "line 3 a row without a path"},
		{strings.Replace(good, `"state":"judged"`, `"state":"great"`, 1), `line 1 a row that is "great"`},
		{scanned(t, 1, judgedRow("/lib/a", 2048), odd), `line 2 the verdict "fine"`},
		{strings.Replace(good, `"event":"image"`, `"event":"party"`, 1), `line 1 event "party"`},
		{strings.Replace(good, `03:01:00Z`, `later`, 1), "line 2 a summary with the time"},
		{good + "\x00\xff\n", "line 3 no object of JSON"},
		{strings.Replace(good, `"disks":[{`, `"disks":null,"x":[{`, 1), "line 1 list of disks"},
		{good[:strings.IndexByte(good, '\n')+1], " it does not end with a summary"},
		{"", " it does not end with a summary"},
		{strings.Replace(good, `"complete":true`, `"complete":false`, 1), " the scan was interrupted"},
	} {
		r, _, err := merged(t, MergeTask{}, scanned(t, 2, judgedRow("/lib/z", 2048)), c.text)
		require.NoError(t, err, c.text)
		require.Equal(t, 1, r.Summary.ExitCode, c.text)
		u := r.Summary.Unreadable[0]
		_, line, _ := strings.Cut(u.Path, "1.ndjson")
		require.Contains(t, strings.TrimPrefix(line, ": ")+" "+u.Error.Message, c.want)
	}
}

// TestLostRows has files with fewer rows than in their summary, or with others.
func TestLostRows(t *testing.T) {
	t.Parallel()
	whole := scanned(t, 1, judgedRow("/lib/a", 2048), judgedRow("/lib/b", 63), judgedRow("/lib/c", 63))
	rows := strings.SplitAfter(whole, "\n")
	for why, c := range map[string]struct{ text, want string }{
		"whole":       {whole, ""},
		"two scans":   {whole + scanned(t, 2, judgedRow("/lib/d", 2048)), ""},
		"a row less":  {rows[0] + rows[2] + rows[3], "line 3: the summary counts 3 rows, and there are 2"},
		"no row left": {rows[3], "line 1: the summary counts 3 rows, and there are 0"},
		"a row more":  {rows[0] + whole, "line 5: the summary counts 3 rows, and there are 4"},
	} {
		r, _, err := merged(t, MergeTask{}, c.text)
		require.NoError(t, err, why)
		if c.want == "" {
			require.Empty(t, r.Summary.Unreadable, why)
			continue
		}
		require.Equal(t, 1, r.Summary.ExitCode, why)
		require.Len(t, r.Summary.Unreadable, 1, why)
		u := r.Summary.Unreadable[0]
		require.Contains(t, u.Path+": "+u.Error.Message, "0.ndjson: "+c.want, why)
	}
}

func TestOtherResultsAreRefused(t *testing.T) {
	t.Parallel()
	good := scanned(t, 1, judgedRow("/lib/a", 2048))
	wide := judgedRow("/lib/b", 2048)
	wide.Disks[0].Boundary = align.Kept
	for _, c := range []struct {
		text, want string
		class      error
	}{
		{
			strings.Replace(good, "trueup/1", "trueup/2", 1), `line 1: schema "trueup/2", not "trueup/1"`,
			ondisk.ErrUnsupported,
		},
		{
			strings.Replace(good, `"command":"scan"`, `"command":"inspect"`, 1),
			`line 1: it is a result of trueup "inspect"`,
			ondisk.ErrUnsupported,
		},
		{"path,verdict\n", "no result of trueup scan -o json", ondisk.ErrUnsupported},
		{scanned(t, 1, wide), "line 1: judged with --boundary 1M, and rows before with 64K", ondisk.ErrUsage},
		{"SQLite format 3\x00" + strings.Repeat("x", 1000), "no result of trueup scan -o json", ondisk.ErrUnsupported},
	} {
		_, _, err := merged(t, MergeTask{}, good, c.text)
		require.ErrorContains(t, err, c.want)
		if c.class != nil {
			require.ErrorIs(t, err, c.class)
		}
	}
}

// TestLinesAreBounded has a line of maximum length, and one that is too long, in any chunks.
func TestLinesAreBounded(t *testing.T) {
	t.Parallel()
	const most = 100_000
	fits := strings.Repeat("a", most-1)
	for _, wrap := range []func(io.Reader) io.Reader{func(r io.Reader) io.Reader { return r }, iotest.OneByteReader} {
		lines := func(text string) (got []string, err error) {
			err = results.Lines(wrap(strings.NewReader(text)), most, func(l results.Line) error {
				got = append(got, fmt.Sprintf("%d %d %d %t", l.Number, l.Offset, len(l.Text), l.Open))
				return nil
			})
			return got, err
		}
		got, err := lines(fits + "\nb\r\n\r\n" + "c")
		require.NoError(t, err)
		require.Equal(t, []string{"1 0 99999 false", "2 100000 1 false", "4 100005 1 true"}, got)
		got, err = lines("x\n" + fits + "bb\nc\n")
		require.ErrorIs(t, err, ondisk.ErrLimit)
		require.ErrorContains(t, err, "line 2: ")
		require.Len(t, got, 1)
	}
	require.ErrorIs(t, results.Lines(iotest.ErrReader(io.ErrClosedPipe), most, nil), io.ErrClosedPipe)
}

// TestOrderOfRows compares the order of the table with that of results.Rank.
func TestOrderOfRows(t *testing.T) {
	t.Parallel()
	var rows []*results.Image
	for n := range 1500 {
		i := judgedRow(fmt.Sprintf("/lib/%d.raw", n*7919%4001), int64(2048-n%3))
		i.Stored = int64(n % 5)
		if n%11 == 0 {
			i.Fail("io", "broken")
		}
		rows = append(rows, i)
	}
	_, got, err := merged(t, MergeTask{}, scanned(t, 1, rows...))
	require.NoError(t, err)
	results.Rank(rows)
	require.Len(t, got, len(rows))
	for n := range rows {
		require.Equal(t, rows[n].Path, got[n].Path)
		require.Equal(t, rows[n].Priority, got[n].Priority)
	}
}

// FuzzLines reads any bytes as lines of results, and prints valid ones.
func FuzzLines(f *testing.F) {
	f.Add([]byte(scanned(f, 1, judgedRow("/lib/a", 63), judgedRow("/lib/b", 2048))))
	f.Add([]byte(`{"schema":"trueup/1","command":"scan","event":"image","path":"x","state":"failed"}` + "\n{}\n"))
	f.Add([]byte("{\"schema\":\"trueup/1\",\"command\":\"report\",\"event\":\"summary\",\"paths\":[]}\n"))
	f.Fuzz(func(t *testing.T, text []byte) { // without the table, which would take all of the time
		var images []*results.Image
		sum := results.NewSummary()
		sum.Finished = "2026-01-02T03:00:00Z"
		require.NoError(t, results.Lines(bytes.NewReader(text), 1<<16, func(l results.Line) error {
			event, unknown, wrong := l.Kind()
			if wrong != nil || unknown != nil {
				return nil //nolint:nilerr // any line may be wrong
			}
			if event == "summary" {
				_, _ = l.Summary()
				return nil
			}
			if i, err := l.Image(); err == nil && i.State != results.Gone && i.Check() == nil {
				i.Change = ""
				i.Assess(nil)
				sum.Add(i)
				images = append(images, i)
			}
			return nil
		}))
		results.Rank(images)
		for _, format := range results.Formats {
			r := &results.Report{
				Summary: sum, Images: slices.Values(images), Rows: len(images), Text: &report.Text{},
			}
			require.NoError(t, format.Write(io.Discard, r), format.Name)
		}
	})
}
