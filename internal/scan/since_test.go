package scan

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/scan/results"
)

// keep writes the rows of the last run as the results of an earlier scan, and has the next one take them over.
func (tr *trial) keep(path string) {
	tr.Helper()
	var text bytes.Buffer
	for _, i := range tr.rows {
		require.NoError(tr, report.Line(&text, i))
	}
	require.NoError(tr, os.WriteFile(path, text.Bytes(), 0o600))
	require.NoError(tr, tr.earlier.close())
	e, err := openEarlier(path, tr.settings, false)
	require.NoError(tr, err)
	tr.earlier = e
}

// again has a trial whose files are older than its runs.
func again(t *testing.T, files map[string]string) (tr *trial, path string) {
	t.Helper()
	tr = newTrial(t)
	tr.put(files)
	disktest.WaitSettled(t, tr.dir)
	tr.settings, tr.started = "v1", time.Now()
	tr.scanned()
	path = t.TempDir() + "/last.ndjson"
	tr.keep(path)
	t.Cleanup(func() { require.NoError(t, tr.earlier.close()) })
	return tr, path
}

// TestAnUnchangedRowIsTakenOver changes one number of the files of an image after the other: with any of them the image
// is judged anew.
func TestAnUnchangedRowIsTakenOver(t *testing.T) {
	tr, path := again(t, map[string]string{"x.vmdk": "disk\nhas x-flat.vmdk", "x-flat.vmdk": "bare"})
	judged := 0
	tr.judge.open = func(string) { judged++ }
	tr.Jobs = 1
	tr.scanned()
	require.Equal(t, results.Same, tr.rows[0].Change)
	require.Zero(t, judged)
	row := *tr.rows[0]
	for name, change := range map[string]func(f *results.File){
		"device": func(f *results.File) { f.Device++ }, "inode": func(f *results.File) { f.Inode++ },
		"size": func(f *results.File) { f.Size++ }, "written": func(f *results.File) { f.Modified-- },
		"changed": func(f *results.File) { f.Changed-- },
	} {
		for n := range row.Files {
			other := row
			other.Files = append([]results.File{}, row.Files...)
			change(&other.Files[n])
			tr.rows, judged = []*results.Image{&other}, 0
			tr.keep(path)
			tr.scanned()
			require.Equal(t, 1, judged, "%s of %s", name, row.Files[n].Name)
		}
	}
	for name, change := range map[string]func(i *results.Image){
		"build or options":   func(i *results.Image) { i.Reuse.Settings = "v2" },
		"what lies beside":   func(i *results.Image) { i.Reuse.Beside = "0123" },
		"nothing to go by":   func(i *results.Image) { i.Reuse = nil },
		"a file elsewhere":   func(i *results.Image) { i.Files = append(i.Files, results.File{Name: "/dev/null"}) },
		"a file that is not": func(i *results.Image) { i.Files = append(i.Files, results.File{Name: "gone"}) },
	} {
		other, reuse := row, *row.Reuse
		other.Reuse, other.Files = &reuse, append([]results.File{}, row.Files...)
		change(&other)
		tr.rows, judged = []*results.Image{&other}, 0
		tr.keep(path)
		tr.scanned()
		require.Equal(t, 1, judged, name)
	}
}

// TestAFreshFileIsNotTakenOver is about files that could be written once more under the same time stamp.
func TestAFreshFileIsNotTakenOver(t *testing.T) {
	tr := newTrial(t)
	tr.settings, tr.started = "v1", time.Now()
	tr.put(map[string]string{"x": "disk"})
	tr.scanned()
	require.Nil(t, tr.rows[0].Reuse)
	second := time.Second.Nanoseconds()
	at := time.Unix(1000, 0)
	for changed, want := range map[int64]bool{
		1000*second - 1: false, 1000*second - 30e6: true, 999 * second: false, 997 * second: true, 1001 * second: false,
	} {
		require.Equal(t, want, settled(results.File{Changed: changed}, at), changed)
	}
}

// TestWhatIsGoneSince has files that are gone, files that are images no more, and files that were left out.
func TestWhatIsGoneSince(t *testing.T) {
	tr, _ := again(t, map[string]string{
		"a/gone": "disk", "a/text": "disk", "a/left": "disk", "a/part.vmdk": "disk", "b/gone": "disk",
	})
	require.NoError(t, os.Remove(tr.path("a/gone")))
	require.NoError(t, os.Remove(tr.path("b/gone")))
	tr.put(map[string]string{"a/text": "text"})
	tr.Wanted = func(_, shown string) bool { return shown != tr.path("a/left") }
	tr.scanned(tr.path("a"))
	gone, err := tr.earlier.removed(tr.Paths, Shard{}.Has)
	require.NoError(t, err)
	var names []string
	for _, i := range gone {
		require.Equal(t, results.Gone, i.State)
		require.Equal(t, results.Removed, i.Change)
		names = append(names, i.Path)
	}
	require.Equal(t, []string{tr.path("a/gone"), tr.path("a/text")}, names)
	none, err := tr.earlier.removed(tr.Paths, func(string) bool { return false })
	require.NoError(t, err)
	require.Empty(t, none, "they are in other shards")
}

// FuzzEarlier reads any bytes as the results of an earlier scan, and all of its rows once more.
func FuzzEarlier(f *testing.F) {
	i := results.NewImage("/lib/a")
	i.State, i.Format, i.Files = results.Orphan, "vmdk", []results.File{{Name: "a"}}
	i.Reuse = &results.Reuse{Settings: "v1", Identity: json.RawMessage(`{"kind":"disk"}`)}
	var row bytes.Buffer
	require.NoError(f, report.Line(&row, i))
	f.Add(row.Bytes())
	f.Add([]byte(fmt.Sprintf("%s%s", row.Bytes(), row.Bytes()[:40])))
	f.Fuzz(func(t *testing.T, text []byte) {
		path := t.TempDir() + "/x"
		require.NoError(t, os.WriteFile(path, text, 0o600))
		e, err := openEarlier(path, "v1", false)
		if err != nil {
			return
		}
		defer e.close()
		for n := range e.places {
			i, id, err := e.read(&e.places[n])
			require.NoError(t, err)
			require.Equal(t, id != nil, i.Reuse != nil && i.Reuse.Settings == "v1")
		}
	})
}
