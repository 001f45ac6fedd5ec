package cli

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/qcow2forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/nbd"
	"github.com/trueup/trueup/internal/scan"
	"github.com/trueup/trueup/internal/scan/results"
)

// putSeveral makes one image for each exit code of inspect: 0, 2, 3, and 4 for an interrupted move.
func putSeveral(t *testing.T) {
	t.Helper()
	t.Chdir(t.TempDir())
	for name, start := range map[string]uint32{"0.img": 128, "2.img": 8, "3.img": 63, "4.img": 63} {
		put(t, name, tableforge.NewMBR(2560, tableforge.Slot{Type: 0x83, Start: start, Sectors: 512}))
	}
	var out, errs bytes.Buffer
	require.Equal(t, 130, Run(moving{t.Context(), "4.img.trueup"}, "test",
		[]string{"move", "--allow-unbootable", "4.img"}, &out, &errs), errs.String())
}

// Several images are each shown as if inspected alone, and the worst exit code counts, as for scan: an error, then a
// refusal, which is an error of scan.
func TestInspectSeveral(t *testing.T) {
	putSeveral(t)
	for _, c := range []struct {
		images string
		code   int
	}{
		{"0.img 0.img", 0},
		{"2.img 0.img", 2},
		{"0.img 3.img 2.img", 3},
		{"3.img 4.img 0.img", 4},
		{"4.img absent.img 3.img", 1},
		{"absent.img 4.img 0.img", 1},
	} {
		images := strings.Fields(c.images)
		var texts []string
		var lines, said string
		for _, image := range images {
			text, object := trueup(t, "inspect", image), trueup(t, "inspect", "--json", image)
			if text.stdout != "" {
				texts = append(texts, text.stdout)
			}
			said += text.stderr
			lines += oneLine(t, object.stdout)
		}
		r := trueup(t, append([]string{"inspect"}, images...)...)
		require.Equal(t, ended{c.code, strings.Join(texts, "\n"), said}, r, c.images)
		r = trueup(t, append([]string{"inspect", "--json"}, images...)...)
		require.Equal(t, ended{c.code, lines, said}, r, c.images)
		r = trueup(t, append([]string{"inspect", "--json", "--out", "report"}, images...)...)
		require.Equal(t, ended{c.code, "", said}, r, c.images)
		require.Equal(t, lines, string(disktest.ReadFile(t, "report")), c.images)

		scan := trueup(t, append([]string{"scan", "--isolation", "none", "-q"}, images...)...)
		if c.code == 4 {
			c.code = 1
		}
		require.Equal(t, c.code, scan.code, c.images)
	}
}

// oneLine removes the indentation of an object.
func oneLine(t *testing.T, object string) string {
	t.Helper()
	var b bytes.Buffer
	for line := range strings.Lines(object) {
		line = strings.TrimSpace(line)
		if name, value, ok := strings.Cut(line, `": `); ok {
			line = name + `":` + value
		}
		b.WriteString(line)
	}
	return b.String() + "\n"
}

// stopper is an output that interrupts the run or fails when it is written to.
type stopper struct {
	bytes.Buffer
	err error
}

func (s *stopper) Write(p []byte) (int, error) {
	s.Buffer.Write(p)
	return len(p), errors.Join(s.err, os.WriteFile("stop", nil, 0o600))
}

// A signal ends the run before the next image, and so does an output that cannot be written.
func TestInspectSeveralEnds(t *testing.T) {
	putSeveral(t)
	run := func(ctx context.Context, out *stopper, args ...string) (int, string) {
		var errs bytes.Buffer
		return Run(ctx, "test", append([]string{"inspect", "-l"}, args...), out, &errs), errs.String()
	}
	first := trueup(t, "inspect", "-l", "3.img").stdout
	var out stopper
	code, said := run(moving{t.Context(), "stop"}, &out, "3.img", "0.img", "2.img")
	require.Equal(t, 130, code)
	require.Equal(t, "trueup: interrupted; 2 of 3 images were not inspected\n", said)
	require.Equal(t, first, out.String())

	code, said = run(moving{t.Context(), "stop"}, &out, "3.img", "0.img", "--out", "report")
	require.Equal(t, 130, code)
	require.Contains(t, said, "2 of 2 images were not inspected")
	require.NoFileExists(t, "report")

	full := stopper{err: errors.New("no space left")}
	code, said = run(t.Context(), &full, "3.img", "0.img")
	require.Equal(t, 1, code)
	require.Contains(t, said, "no space left")
	require.Equal(t, first, full.String())
}

// A signal ends a report between its rows.
func TestReportEnds(t *testing.T) {
	putSeveral(t)
	rows := trueup(t, "scan", "--isolation", "none", "-o", "json", "0.img", "2.img", "--out", "rows.ndjson")
	require.Equal(t, 2, rows.code, rows.stderr)
	var out stopper
	var errs bytes.Buffer
	code := Run(moving{t.Context(), "stop"}, "test", []string{"report", "-o", "json", "rows.ndjson"}, &out, &errs)
	require.Equal(t, 130, code, errs.String())
	require.Equal(t, "trueup: interrupted; no result\n", errs.String())
	require.Equal(t, 1, strings.Count(out.String(), `"event":"image"`))
}

// A run that fails before it reads an image of a server ends its connection.
func TestConnectionsThatAreNotUsedEnd(t *testing.T) {
	t.Chdir(t.TempDir())
	d := disk.New(4096, 512, func(off int64) (disk.Run, error) { return disk.Run{Len: 4096 - off}, nil })
	l, err := net.Listen("unix", "socket")
	require.NoError(t, err)
	ended := make(chan error)
	go func() {
		ended <- (&nbd.Server{Disk: d, Once: true}).Serve(t.Context(), l)
	}()
	r := trueup(t, "verify", "absent.img", "nbd+unix:///?socket=socket")
	require.Equal(t, 1, r.code, r.stderr)
	require.Contains(t, r.stderr, "absent.img")
	require.NoError(t, <-ended, "its only client has left")
}

// A sound image whose tables exceed the read limit keeps its verdict without --check, also as one of several disks of a
// package.
func TestScanKeepsTheVerdictOfLargeTables(t *testing.T) {
	t.Chdir(t.TempDir())
	misaligned := tableforge.NewMBR(2560, tableforge.Slot{Type: 0x83, Start: 63, Sectors: 512})
	for name, disk := range map[string]forge.Bytes{"web01.qcow2": tiny(), "web02.qcow2": misaligned} {
		data := make([]byte, 8<<20) // 4 MiB of data that only --check reads
		for i := range data[:len(data)/2] {
			data[len(data)/2+i] = 1
		}
		copy(data, disk)
		put(t, name, qcow2forge.New(data, 16).Bytes)
	}
	put(t, "vm.ovf", []byte(strings.Replace(envelope, "d.vmdk", "web01.qcow2", 1)))
	for _, job := range []scan.Job{{Path: "web01.qcow2"}, {Path: "web02.qcow2"}, {Path: "vm.ovf", Package: true}} {
		j := scan.Inspector{Boundary: align.Kept, Storage: align.Generic(), Check: true}
		whole := j.Image(job)
		require.Nil(t, whole.Error)
		require.Equal(t, results.Full, whole.Disks[0].Depth)
		j.Most = 2 << 20
		got := j.Image(job)
		require.Nil(t, got.Error, job.Path)
		require.Equal(t, results.Judged, got.State)
		require.Equal(t, whole.Verdict, got.Verdict)
		require.Equal(t, whole.Disks[0].Fix, got.Disks[0].Fix)
		fs := got.Disks[0].Findings
		f := fs[len(fs)-1]
		require.Equal(t, []any{"unchecked", align.Warning}, []any{f.Code, f.Severity})
		require.Regexp(t,
			"^the tables were not checked as a whole: .*reading: limit exceeded of 2097152 bytes for one "+
				"image$", f.Text)
		require.Equal(t, "look at it alone with trueup inspect "+job.Path, f.Remedy)
		j.Check = false
		require.Equal(t, j.Image(job).Disks[0].Verdict, got.Disks[0].Verdict)
	}
}

// The name of a packed file cannot control the terminal. This one claims to unpack to 2^60 bytes.
func TestPackedWarningIsSafe(t *testing.T) {
	t.Chdir(t.TempDir())
	name := "a\x1b[31m\n.img.zst"
	put(t, name, []byte("\x28\xb5\x2f\xfd\xc0\x00\x00\x00\x00\x00\x00\x00\x00\x10\x01\x00\x00"))
	r := trueup(t, "inspect", "--spool", ".", name)
	require.Equal(t, 1, r.code)
	require.Contains(t, r.stderr, "trying anyway")
	require.NotContains(t, r.stderr, "\x1b")
	require.Equal(t, 2, strings.Count(r.stderr, "\n"), r.stderr)
}

// Packed bytes that many files of an archive share would be unpacked for each.
func TestFilesOfZipDoNotOverlap(t *testing.T) {
	t.Chdir(t.TempDir())
	var archive bytes.Buffer
	w := zip.NewWriter(&archive)
	for _, name := range []string{"a.img", "b.img"} {
		f, err := w.Create(name)
		require.NoError(t, err)
		_, err = f.Write(tiny())
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	data := archive.Bytes()
	second := bytes.LastIndex(data, []byte("PK\x01\x02"))
	copy(data[second+42:], []byte{0, 0, 0, 0})
	put(t, "a.zip", data)
	require.Contains(t, trueup(t, "inspect", "--spool", ".", "a.zip!b.img").stderr, "overlap")
}

// logged is a line of a log.
type logged struct {
	Msg, Level, Command, Error string
	Args                       []string
	Exit                       int             `json:"exit_code"`
	Result                     json.RawMessage `json:"result"`
}

// A log has a line for each start and each end, with the result that the command printed.
func TestLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	source := dummyDisk(t, "", "DUMMYVOL")
	dest := filepath.Join(t.TempDir(), "dest.img")
	logs := []string{"--log", path}
	runs := [][]string{
		{"inspect", source},
		{"align", source, dest, "--allow-unbootable"},
		{"align", source, dest},
		{"inspect", "absent"},
		{"scan", source, "--isolation", "none"},
	}
	var ends []ended
	for _, run := range runs {
		ends = append(ends, trueup(t, append(append(run, "--json"), logs...)...))
	}
	lines := strings.SplitAfter(strings.TrimSuffix(string(disktest.ReadFile(t, path)), "\n"), "\n")
	require.Len(t, lines, 2*len(runs))
	for i, run := range runs {
		var begins, end logged
		require.NoError(t, json.Unmarshal([]byte(lines[2*i]), &begins))
		require.NoError(t, json.Unmarshal([]byte(lines[2*i+1]), &end))
		require.Equal(t, []string{"begins", "ended", run[0], run[0]}, []string{
			begins.Msg, end.Msg, begins.Command,
			end.Command,
		})
		require.Contains(t, begins.Args, run[1])
		require.Equal(t, ends[i].code, end.Exit, ends[i].stderr)
		printed := strings.TrimSpace(ends[i].stdout)
		if run[0] == "scan" {
			printed = printed[strings.LastIndex(printed, "\n")+1:] // the summary
		}
		if end.Error != "" {
			require.Equal(t, "ERROR", end.Level)
			require.Equal(t, "trueup: "+end.Error+"\n", ends[i].stderr)
			require.Contains(t, printed, `"error"`)
			continue
		}
		require.JSONEq(t, printed, string(end.Result))
	}
}

// The records of a large report need more memory than the limit of a usual run.
func TestLargeHeapIsSeldomCollected(t *testing.T) {
	percent, limit := debug.SetGCPercent(100), debug.SetMemoryLimit(-1)
	defer func() {
		debug.SetGCPercent(percent)
		debug.SetMemoryLimit(limit)
	}()
	boundHeap(results.ReportCommand)
	for first := debug.SetMemoryLimit(-1); debug.SetMemoryLimit(-1) == first; {
		runtime.GC() // the first collection ends the first limit
	}
	rows := make([]byte, 128<<20)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 2048 {
		rows[0] = make([]byte, 128<<10)[0]
	}
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(rows)
	require.Less(t, after.NumGC-before.NumGC, uint32(10))
}
