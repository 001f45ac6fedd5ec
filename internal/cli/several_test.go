package cli

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/nbd"
)

// putSeveral makes images that inspect ends with their codes: 0, 2, 3, and 4 for a move that was interrupted.
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

// Several images are shown as each alone, and the worst exit code counts, as for scan: an error, then a refusal, which
// is an error of scan.
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

// stopper is output that has a run interrupted, or fails, when it is written to.
type stopper struct {
	bytes.Buffer
	err error
}

func (s *stopper) Write(p []byte) (int, error) {
	s.Buffer.Write(p)
	return len(p), errors.Join(s.err, os.WriteFile("stop", nil, 0o600))
}

// A signal ends the run before the next image, and so does output that cannot be written.
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
		ended <- (&nbd.Server{Export: nbd.Export{Disk: d}, Once: true}).Serve(t.Context(), l)
	}()
	r := trueup(t, "verify", "absent.img", "nbd+unix:///?socket=socket")
	require.Equal(t, 1, r.code, r.stderr)
	require.Contains(t, r.stderr, "absent.img")
	require.NoError(t, <-ended, "its only client has left")
}
