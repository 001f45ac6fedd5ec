package handover

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/report"
)

func TestMain(m *testing.M) { disktest.LeakTestMain(m) }

// The journal of other work is closed again.
func TestJournalOfOtherWork(t *testing.T) {
	disktest.OnUnix(t, "open files")
	disktest.Tool(t, "qemu-img")
	h := Handover{Dest: filepath.Join(t.TempDir(), "disk.qcow2")}
	d, err := gate.OpenFolder(filepath.Dir(h.Dest))
	require.NoError(t, err)
	other, err := journal.Begin(d, filepath.Base(h.Dest), h.Dest, journal.Exchange, []byte("{}"), 0)
	require.NoError(t, errors.Join(err, other.Close(), d.Close()))
	before := disktest.OpenFiles(t)
	_, err = h.Resume(t.Context())
	require.ErrorContains(t, err, "exchange")
	_, _, err = h.Undo(t.Context(), false)
	require.ErrorContains(t, err, "exchange")
	require.Equal(t, before, disktest.OpenFiles(t))
}

// TestTwoHandoversAtOnce begins a second handover of a disk that was planned before the first one had its journals. The
// second is refused, and leaves no journal.
func TestTwoHandoversAtOnce(t *testing.T) {
	for first := range 2 {
		for second := range 2 {
			dir := t.TempDir()
			source := filepath.Join(dir, "source.img")
			require.NoError(t, os.WriteFile(source, make([]byte, 512), 0o600))
			require.NoError(t, os.Mkdir(filepath.Join(dir, "other"), 0o700))
			var runs []*Handover
			for n, elsewhere := range []int{first, second} {
				h := &Handover{Dest: filepath.Join(dir, []string{"", "other"}[elsewhere], fmt.Sprintf("%d.qcow2", n))}
				h.image.overlay, h.plan.Source = h.Dest, source
				var served report.Serve
				err := json.Unmarshal(fmt.Appendf(nil, `{"image": {"files": [{"name": %q}]}}`, source), &served)
				require.NoError(t, err)
				h.plan.Handed, err = h.handed(&served)
				require.NoError(t, err)
				runs = append(runs, h)
			}
			require.NoError(t, runs[0].begin())
			names := func() []string {
				return append(disktest.Names(t, dir), disktest.Names(t, filepath.Join(dir, "other"))...)
			}
			before := names()
			err := runs[1].begin()
			require.Error(t, err, "%d, %d", first, second)
			require.NoError(t, runs[1].held.Close())
			require.Equal(t, before, names(), "%d, %d: %v", first, second, err)
			require.NoError(t, runs[0].held.Close())
		}
	}
}

// An event behind the last answer does not keep the reader of the monitor.
func TestEventBehindTheLastAnswer(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "qmp")
	l, err := net.Listen("unix", socket)
	require.NoError(t, err)
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		fmt.Fprintln(c, `{"QMP": {}}`)
		for calls := bufio.NewScanner(c); calls.Scan(); {
			var call struct{ ID int }
			_ = json.Unmarshal(calls.Bytes(), &call)
			fmt.Fprintf(c, "{\"return\": [], \"id\": %d}\n{\"event\": \"RESUME\"}\n", call.ID)
		}
	}()
	_, err = (&Pull{Monitor: socket}).stepMonitor(context.WithoutCancel(t.Context()), "disk.qcow2")
	require.ErrorContains(t, err, "does not have disk.qcow2 open")
}
