package scan

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/scan/results"
	"github.com/trueup/trueup/internal/shell"
)

// liar answers as a worker that a hostile image has taken over: with any JSON.
type liar struct{ identity, row string }

func (l liar) Call(_ context.Context, r Request) (a Answer, err error) {
	text := l.identity
	if r.Judge {
		text = l.row
	}
	return a, json.Unmarshal([]byte(text), &a)
}

func (liar) Close() error { return nil }

// lied has a worker lie about one file and gives the rows of the run, and the sum of them.
func lied(t *testing.T, l liar) (rows []*results.Image, sum *results.Summary) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "a.vmdk")
	require.NoError(t, os.WriteFile(path, make([]byte, 512), 0o600))
	sum, err := searched(t.Context(), &Task{Paths: []string{path}, Row: func(i *results.Image) error {
		rows = append(rows, i)
		return nil
	}}, NewPool(1, func(context.Context) (Worker, error) { return l, nil }))
	require.NoError(t, err)
	for _, i := range rows {
		require.Equal(t, path, i.Path, "where an image is only the parent says")
	}
	return rows, sum
}

// honest is a row as a worker gives it.
func honest() *results.Image {
	i := results.NewImage("a.vmdk")
	i.State, i.Format, i.Size, i.Files = results.Judged, "vmdk", 1<<20, []results.File{{Name: "a.vmdk", Size: 512}}
	d := results.NewDisk(1<<20, align.DefaultBoundary)
	d.Verdict = align.Misaligned
	d.Partitions = []report.Partition{{
		Number: 1, Kind: "primary", StartLBA: 63, Start: 63 * 512, Size: 4096,
		Alignment: 512, Verdict: align.Misaligned,
	}}
	d.Fix = &results.Fix{
		Boundary: align.Kept, OldSize: 1 << 20, NewSize: 2 << 20, Moves: []report.Move{},
		Refusals: []align.Finding{},
	}
	i.Disks = []results.Disk{d}
	return i
}

const disk = `{"identity":{"kind":"disk","format":"vmdk"}}`

func answer(t *testing.T, i *results.Image) string {
	t.Helper()
	text, err := json.Marshal(Answer{Image: i})
	require.NoError(t, err)
	return string(text)
}

func TestAnHonestWorker(t *testing.T) {
	rows, sum := lied(t, liar{disk, answer(t, honest())})
	require.Len(t, rows, 1)
	require.Equal(t, results.Judged, rows[0].State)
	require.Equal(t, 1, sum.Misaligned)
	require.Equal(t, int64(1<<20), sum.Fix.Grows)
}

// What the row of a worker that lies may not change is where it is, what an earlier scan has of it and what the user
// has accepted.
func TestWhatAWorkerMayNotSay(t *testing.T) {
	i := honest()
	i.Path, i.PathBytes = "/etc/shadow", "L2V0Yy9zaGFkb3c="
	i.Accepted, i.Change = &results.Accepted{Reason: "trust me"}, "none"
	i.Priority = &results.Priority{Class: -1, Command: "rm -rf /"}
	i.Files[0].Name = "b.vmdk"
	rows, _ := lied(t, liar{disk, answer(t, i)})
	require.Len(t, rows, 1)
	require.Equal(t, results.Judged, rows[0].State)
	require.Nil(t, rows[0].Accepted)
	require.Empty(t, rows[0].Change)
	require.Contains(t, rows[0].Priority.Command, "trueup align "+shell.Quote(rows[0].Path))
	require.Equal(t, 3, rows[0].Priority.Class, "off 4 KiB, on a disk that does not show what it is for")
	require.Equal(t, "a.vmdk", rows[0].Files[0].Name)
}

func TestLies(t *testing.T) {
	forged := func(change func(i *results.Image)) liar {
		i := honest()
		change(i)
		return liar{disk, answer(t, i)}
	}
	for name, l := range map[string]liar{
		"no answer":           {`{"identity":{}}`, `{}`},
		"nothing at all":      {disk, `null`},
		"no row":              {disk, `{"image":null}`},
		"an empty row":        {disk, `{"image":{}}`},
		"a list that is null": {disk, strings.Replace(answer(t, honest()), `"parents":[]`, `"parents":null`, 1)},
		"partitions that are null": {
			disk,
			strings.Replace(answer(t, honest()), `"boot_chain":[]`, `"boot_chain":null`, 1),
		},
		"not JSON":              {disk, `<html>`},
		"JSON of another shape": {disk, `{"image":[1]}`},
		"a wrong number": {
			disk,
			strings.Replace(answer(t, honest()), `"size_bytes":1048576`, `"size_bytes":1e400`, 1),
		},
		"a wrong kind":  {`{"identity":{"kind":"gift"}}`, answer(t, honest())},
		"a wrong error": {`{"error":{"code":"<script>"}}`, answer(t, honest())},
		"an endless list of extents": {
			`{"identity":{"kind":"disk","extents":["` + strings.Repeat(`a","`, 1<<17) + `a"]}}`,
			answer(t, honest()),
		},
		"a wrong state":           forged(func(i *results.Image) { i.State = "fine" }),
		"no state":                forged(func(i *results.Image) { i.State = "" }),
		"gone":                    forged(func(i *results.Image) { i.State = results.Gone }),
		"an orphan":               forged(func(i *results.Image) { i.State = results.Orphan }),
		"another event":           forged(func(i *results.Image) { i.Event = "summary" }),
		"another schema":          forged(func(i *results.Image) { i.Schema = "trueup/9" }),
		"failed without a reason": forged(func(i *results.Image) { i.State = results.Failed }),
		"judged and failed":       forged(func(i *results.Image) { i.Error = &report.Error{Code: "io"} }),
		"no format":               forged(func(i *results.Image) { i.Format = "" }),
		"a wrong code":            forged(func(i *results.Image) { i.Fail("ok", "") }),
		"a wrong verdict":         forged(func(i *results.Image) { i.Disks[0].Verdict = "good" }),
		"no verdict":              forged(func(i *results.Image) { i.Disks[0].Verdict = "" }),
		"a partition's verdict":   forged(func(i *results.Image) { i.Disks[0].Partitions[0].Verdict = "good" }),
		"a wrong severity": forged(func(i *results.Image) {
			i.Findings = append(i.Findings,
				align.Finding{Severity: "fun"})
		}),
		"a wrong depth":   forged(func(i *results.Image) { i.Disks[0].Depth = "abyss" }),
		"a boundary of 0": forged(func(i *results.Image) { i.Disks[0].Boundary = align.Boundary{} }),
		"a negative boundary of a copy": forged(func(i *results.Image) {
			i.Disks[0].Fix.Boundary = align.BoundaryOf(-4096)
		}),
		"a boundary of 3 to ask for": forged(func(i *results.Image) {
			i.Disks[0].Advice = &align.Advice{Boundary: align.BoundaryOf(3)}
		}),
		"a negative size":     forged(func(i *results.Image) { i.Size = -1 }),
		"negative reads":      forged(func(i *results.Image) { i.Read = -1 }),
		"a negative start":    forged(func(i *results.Image) { i.Disks[0].Partitions[0].Start = -1 }),
		"a copy that shrinks": forged(func(i *results.Image) { i.Disks[0].Fix.NewSize = 0 }),
		"a file in another folder": forged(func(i *results.Image) {
			i.Files = append(i.Files,
				results.File{Name: "../../etc/shadow"})
		}),
		"a file that is a folder": forged(func(i *results.Image) {
			i.Files = append(i.Files,
				results.File{Name: ".."})
		}),
		"a file without a name":       forged(func(i *results.Image) { i.Files = append(i.Files, results.File{}) }),
		"a text that is far too long": forged(func(i *results.Image) { i.Subformat = strings.Repeat("x", 1<<20) }),
		"a label that is far too long": forged(func(i *results.Image) {
			i.Disks[0].Volume = &report.Volume{Label: strings.Repeat("x", 1<<20)}
		}),
	} {
		t.Run(name, func(t *testing.T) {
			rows, sum := lied(t, l)
			require.Len(t, rows, 1)
			require.Equal(t, results.Failed, rows[0].State)
			require.Equal(t, "internal", rows[0].Error.Code)
			require.Less(t, len(rows[0].Error.Message), 1000)
			require.Equal(t, 1, sum.Failed)
			require.Equal(t, 1, sum.Images)
		})
	}
}

// A doubt is the only question to which there need not be a row.
func TestADoubtThatCameToNothing(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "firmware.bin"), make([]byte, 512), 0o600))
	task := &Task{Paths: []string{dir}, Row: func(i *results.Image) error { return errors.New("a row: " + i.Path) }}
	sum, err := searched(t.Context(), task, NewPool(1, func(context.Context) (Worker, error) {
		return liar{`{"identity":{"kind":"` + string(image.Bare) + `"}}`, `{"image":null}`}, nil
	}))
	require.NoError(t, err)
	require.Equal(t, 1, sum.Skipped)
	require.Zero(t, sum.Found)
	require.Empty(t, sum.Unreadable)
}

// quiet is a Progress that nobody looks at.
type quiet struct{}

func (quiet) Found(int)           {}
func (quiet) Walked()             {}
func (quiet) Done(*results.Image) {}

// searched carries a task out with the workers of a pool, which it closes, and returns the sums.
func searched(ctx context.Context, t *Task, p *Pool) (*results.Summary, error) {
	t.Jobs, t.Boundary, t.Progress = 1, align.DefaultBoundary, quiet{}
	r := t.begin()
	r.pool = p
	return r.summary, errors.Join(r.look(ctx), p.Close())
}
