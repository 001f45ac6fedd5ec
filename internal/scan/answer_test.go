package scan

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/disktest/forge/vhdforge"
	"github.com/trueup/trueup/internal/disktest/forge/vhdxforge"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/scan/results"
	"github.com/trueup/trueup/internal/scan/sandbox"
	"github.com/trueup/trueup/internal/shell"
)

// liar answers like a worker compromised by a hostile image: with any JSON.
type liar struct{ identity, row string }

func (l liar) Call(_ context.Context, r ...Request) (a Answer, err error) {
	text := l.identity
	if r[0].Judge {
		text = l.row
	}
	return a, json.Unmarshal([]byte(text), &a)
}

func (liar) Close() error { return nil }

// lied lets a worker lie about one file and returns the rows of the run, and their totals.
func lied(t *testing.T, l liar) (rows []*results.Image, sum *results.Summary) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "a.vmdk")
	require.NoError(t, os.WriteFile(path, make([]byte, 512), 0o600))
	sum, err := searched(t.Context(), &Task{Paths: []string{path}, Row: func(i *results.Image) error {
		rows = append(rows, i)
		return nil
	}}, newPool(1, 1, nil, func(context.Context) (Worker, error) { return l, nil }))
	require.NoError(t, err)
	for _, i := range rows {
		require.Equal(t, path, i.Path, "where an image is only the parent says")
	}
	return rows, sum
}

// honest is a row of an honest worker.
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

// A lying worker cannot change its row's path, data of an earlier scan, or acceptance by the user.
func TestForgedFieldsOfAWorker(t *testing.T) {
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

// A doubt is the only request that need not have a row.
func TestADoubtThatCameToNothing(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "firmware.bin"), make([]byte, 512), 0o600))
	task := &Task{Paths: []string{dir}, Row: func(i *results.Image) error { return errors.New("a row: " + i.Path) }}
	sum, err := searched(t.Context(), task, newPool(1, 1, nil, func(context.Context) (Worker, error) {
		return liar{`{"identity":{"kind":"` + string(image.Bare) + `"}}`, `{"image":null}`}, nil
	}))
	require.NoError(t, err)
	require.Equal(t, 1, sum.Skipped)
	require.Zero(t, sum.Found)
	require.Empty(t, sum.Unreadable)
}

// quiet is an unused Progress.
type quiet struct{}

func (quiet) Found(int)           {}
func (quiet) Walked()             {}
func (quiet) Done(*results.Image) {}

// searched runs a task with the workers of a pool, which it closes, and returns the totals.
func searched(ctx context.Context, t *Task, p *Pool) (*results.Summary, error) {
	t.Jobs, t.Boundary, t.Progress = 1, align.DefaultBoundary, quiet{}
	r := t.begin()
	r.pool = p
	return r.summary, errors.Join(r.look(ctx), p.Close())
}

// willing reports every file as a disk.
type willing struct{}

func (willing) Call(context.Context, ...Request) (Answer, error) {
	return Answer{Identity: image.Identity{Kind: image.Disk, Format: "raw"}}, nil
}
func (willing) Close() error { return nil }

// occupied is a worker that answers once all others were tried.
type occupied struct {
	willing
	tried chan struct{}
}

func (o occupied) Call(ctx context.Context, r ...Request) (Answer, error) {
	<-o.tried
	return o.willing.Call(ctx, r...)
}

// On a machine without room for more workers, the existing ones continue.
func TestWorkersThatCannotBeStarted(t *testing.T) {
	var started atomic.Int32
	tried := make(chan struct{})
	p := newPool(8, 1, nil, func(context.Context) (Worker, error) {
		switch started.Add(1) {
		case 1:
			return occupied{tried: tried}, nil
		case 8:
			close(tried)
		}
		return nil, lostError{errors.New("no memory"), triesUnasked}
	})
	require.NoError(t, atOnce(t.Context(), 20, make([]Request, 20), func(ctx context.Context, r Request) error {
		_, err := p.do(ctx, r)
		return err
	}))
	require.EqualValues(t, 8, started.Load(), "each place is tried once")
	require.NoError(t, p.Close())
}

func TestNoWorkerCanBeStarted(t *testing.T) {
	p := newPool(3, 1, nil, func(context.Context) (Worker, error) {
		return nil, lostError{errors.New("no memory"), triesUnasked}
	})
	for range 5 {
		_, err := p.do(t.Context(), Request{})
		require.ErrorContains(t, err, "no memory")
	}
	require.NoError(t, p.Close())
}

// On a machine that lacks threads, fewer workers run, and no image is blamed.
func TestWorkersWithoutThreads(t *testing.T) {
	for _, late := range []int{1, 3, 5, 6} {
		left := late
		p := newPool(4, 1, nil, func(context.Context) (Worker, error) { return stopped{&left, sandbox.Threads}, nil })
		_, err := p.do(t.Context(), Request{})
		if late < 6 {
			require.NoError(t, err, "%d deaths", late)
		} else {
			require.ErrorContains(t, err, "could not start a thread: resource temporarily unavailable; scan again")
			require.Equal(t, "io", classify(err).Code)
		}
		require.Equal(t, max(1, int32(4-late)), p.left.Load())
		require.NoError(t, p.Close())
	}
}

// stopped fails for one cause at the first requests of all its instances.
type stopped struct {
	left  *int
	cause sandbox.Cause
}

func (s stopped) Call(context.Context, ...Request) (Answer, error) {
	if *s.left--; *s.left >= 0 {
		return Answer{}, fromDeath(&sandbox.Death{Cause: s.cause, Text: "no answer within 30s"})
	}
	return willing{}.Call(nil, Request{}) //nolint:staticcheck // which it does not ask
}
func (stopped) Close() error { return nil }

// A worker that does not answer in time may be waiting for a stalled storage, and one without memory may have used it
// before: another is tried, once. A worker that computes for too long does so because of the image.
func TestWorkersThatAreStopped(t *testing.T) {
	for _, c := range []struct {
		cause         sandbox.Cause
		late, started int
		dies          bool
	}{
		{sandbox.Time, 0, 1, false},
		{sandbox.Time, 1, 2, false},
		{sandbox.Time, 2, 2, true},
		{sandbox.Time, 9, 2, true},
		{sandbox.Memory, 1, 2, false},
		{sandbox.Memory, 2, 2, true},
		{sandbox.CPU, 1, 1, true},
		{sandbox.Crash, 1, 1, true},
		{sandbox.Killed, 1, 1, true},
	} {
		started, left := 0, c.late
		p := newPool(2, 1, nil, func(context.Context) (Worker, error) {
			started++
			return stopped{&left, c.cause}, nil
		})
		_, err := p.do(t.Context(), Request{})
		if c.dies {
			require.ErrorContains(t, err, "no answer within 30s")
		} else {
			require.NoError(t, err)
		}
		require.Equal(t, c.started, started, "%s, %d times", c.cause, c.late)
		require.NoError(t, p.Close())
	}
}

// TestFilesWithoutAFormat scans raw disks in a folder. Each row equals that of the file named alone; saved boot tracks
// are not disks.
func TestFilesWithoutAFormat(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	mbr := func(lba uint32) string {
		return string(tableforge.NewMBR(16384, tableforge.Slot{Type: 0x83, Start: lba, Sectors: 8192}))
	}
	gpt := string(tableforge.NewGPT(512, 16384, 128, tableforge.GPTEntry{First: 2048, Last: 10239}))
	dir := t.TempDir()
	want := map[string]string{}
	for name, f := range map[string]struct{ content, want string }{
		"whole.raw":        {mbr(63), "misaligned"},
		"odd.img":          {mbr(63) + "x", "misaligned"},
		"odd":              {mbr(2048) + "x", "aligned"},
		"odd gpt":          {gpt + "x", "aligned"},
		"cut.raw":          {mbr(63)[:3*mib], "format"},
		"cut":              {mbr(2048)[:3*mib], "format"},
		"cut gpt":          {gpt[:3*mib], "format"},
		"cut in sectors":   {mbr(63)[:3*mib+5], "format"},
		"empty.raw":        {"", "format"},
		"empty.img":        {"", "format"},
		"empty":            {"", ""},
		"mbr.bin":          {mbr(63)[:512], ""},
		"track.bin":        {mbr(2048)[:mib], ""},
		"gpt.bin":          {gpt[:34*512], ""},
		"firmware.img":     {strings.Repeat("code", mib/4), ""},
		"odd firmware.img": {strings.Repeat("code", 2*mib) + "x", ""},
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(f.content), 0o600))
		if f.want != "" {
			want[filepath.Join(dir, name)] = f.want
		}
	}
	require.Equal(t, want, judged(t, dir))
	for path, verdict := range want {
		require.Equal(t, map[string]string{path: verdict}, judged(t, path))
	}
}

// TestPartsOfOtherPrograms scans differencing disks with their parents, and extents of ESX without their descriptors.
func TestPartsOfOtherPrograms(t *testing.T) {
	t.Parallel()
	off := tableforge.NewMBR(8192, tableforge.Slot{Type: 7, Start: 63, Sectors: 6000})
	fsforge.PutNTFS(off, 63, 6000)
	vhd := func(parent string) []byte {
		return vhdforge.New(make([]byte, len(off)), vhdforge.Layout{
			ID: 0xb1, Stored: func(int64) bool { return false }, Parent: &vhdforge.Parent{ID: 0xb0, Relative: parent},
		}).Bytes
	}
	dir := t.TempDir()
	for name, content := range map[string][]byte{
		"vhd/base.vhd":   vhdforge.New(off, vhdforge.Layout{ID: 0xb0}).Bytes,
		"vhd/top.avhd":   vhd(`.\base.vhd`),
		"case/Base.vhd":  vhdforge.New(off, vhdforge.Layout{ID: 0xb0}).Bytes,
		"case/top.avhd":  vhd(`.\BASE.VHD`),
		"vhdx/base.vhdx": vhdxforge.New(vhdxforge.Layout{Size: int64(len(off))}).Fill(off).Bytes,
		"vhdx/top.avhdx": vhdxforge.New(vhdxforge.Layout{
			Size: int64(len(off)), DataWrite: "00000000-0000-4000-8000-000000000001", Parent: map[string]string{
				"parent_linkage": "{" + strings.ToUpper(vhdxforge.DataWriteGUID) + "}", "relative_path": `.\base.vhdx`,
			},
		}).Bytes,
		"lone/c-s002.vmdk":  vmdkforge.NewCOWD(off, 1, nil).Bytes,
		"lone/d-delta.vmdk": vmdkforge.NewSESparse(off, 0, nil).Bytes,
	} {
		path := filepath.Join(dir, filepath.FromSlash(name))
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, content, 0o600))
	}
	want := map[string]string{}
	for name, says := range map[string]string{
		"vhd/base.vhd":     "misaligned, refused: snapshot-parent",
		"vhd/top.avhd":     "misaligned, refused: snapshot-child",
		"case/Base.vhd":    "misaligned, refused: snapshot-parent", // its child is one, found or not
		"case/top.avhd":    "reference",
		"vhdx/base.vhdx":   "misaligned, refused: snapshot-parent",
		"vhdx/top.avhdx":   "misaligned, refused: snapshot-child",
		"lone/c-s002.vmdk": "orphan", "lone/d-delta.vmdk": "orphan",
	} {
		want[filepath.Join(dir, filepath.FromSlash(name))] = says
	}
	require.Equal(t, want, judged(t, dir))
}

// judged returns the verdict and the refusals of each image below path, or the code of its error, or its state.
func judged(t *testing.T, path string) map[string]string {
	t.Helper()
	inspector := &Inspector{Boundary: align.DefaultBoundary, Storage: align.Generic()}
	pool := newPool(2, 1, nil, func(context.Context) (Worker, error) { return inProcess{inspector}, nil })
	out := map[string]string{}
	sum, err := searched(t.Context(), &Task{Paths: []string{path}, Row: func(i *results.Image) error {
		switch i.State {
		case results.Judged:
			out[i.Path] = string(i.Verdict)
		case results.Failed:
			out[i.Path] = i.Error.Code
		default:
			out[i.Path] = string(i.State)
		}
		for _, f := range i.Refusals() {
			out[i.Path] += ", refused: " + f.Code
		}
		return nil
	}}, pool)
	require.NoError(t, err)
	require.Empty(t, sum.Unreadable)
	return out
}
