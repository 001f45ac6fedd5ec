package work

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/fleet"
	"github.com/trueup/trueup/fleet/queue"
)

// script runs a script as the program of a job, and returns its result, the names of its events, and its log.
func script(t *testing.T, text string) (e end, events, log []string) {
	t.Helper()
	r, err := start("/bin/sh", []string{"-c", text}, func(line string) { log = append(log, line) })
	require.NoError(t, err)
	for said := range r.said {
		events = append(events, said.Event+" "+said.Phase)
	}
	return <-r.ended, events, log
}

// The output of a run is parsed whatever it is, because an image may have compromised it.
func TestOutputOfRuns(t *testing.T) {
	t.Parallel()
	e, events, log := script(t, `
		echo '{"event":"progress","phase":"copy"}' >&2
		echo 'trueup: warning' >&2
		printf '{"event":"progress","phase":"%s"}\n' $(for i in 0 1 2 3 4 5 6 7 8 9; do printf 0123456789; done) >&2
		printf 'a\033[31mb' >&2; head -c 200000 /dev/zero | tr '\0' x >&2; echo >&2
		echo '{"answer":"publish"}'`)
	long := strings.Repeat("0123456789", 10)[:maxCode]
	require.Equal(t, []string{"progress copy", "progress " + long}, events)
	require.JSONEq(t, `{"answer":"publish"}`, string(e.output))
	require.Zero(t, e.exit)
	require.Equal(t, "trueup: warning", log[0])
	require.True(t, strings.HasPrefix(log[1], "a?[31mb"))
	require.LessOrEqual(t, len(e.log), maxLog)
	e, _, _ = script(t, `head -c 20000000 /dev/zero`)
	require.LessOrEqual(t, len(e.output), maxOutput+1)
}

// A killed run is waited for, with its children.
func TestKilledRun(t *testing.T) {
	t.Parallel()
	r, err := start("/bin/sh", []string{"-c", `sleep 600 & echo '{"event":"progress"}' >&2; wait`}, func(string) {})
	require.NoError(t, err)
	<-r.said
	e := r.kill()
	require.Negative(t, e.exit)
	require.Equal(t, fleet.Queued, verdictOf(e, 0).state)
	r.stop() // it has ended, and its number can be reused
	_, err = start("/absent/trueup", nil, nil)
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// The result of a run decides whether another try can help.
func TestVerdicts(t *testing.T) {
	t.Parallel()
	failed := func(exit int, code string) end {
		return end{exit: exit, output: []byte(`{"error":{"code":"` + code + `","message":"why"}}`)}
	}
	for name, tc := range map[string]struct {
		e     end
		state fleet.State
		code  string
	}{
		"done":                       {end{exit: 0}, fleet.Done, ""},
		"an error of the disk":       {failed(1, "io"), fleet.Queued, "io"},
		"a full disk":                {failed(1, "output"), fleet.Queued, "output"},
		"a broken image":             {failed(1, "format"), fleet.Refused, "format"},
		"a refusal":                  {failed(4, "unsupported"), fleet.Refused, "unsupported"},
		"a refusal of another class": {failed(4, "hibernated"), fleet.Refused, "hibernated"},
		"another run is at work":     {failed(4, "busy"), fleet.Queued, "busy"},
		"wrong usage":                {failed(64, "usage"), fleet.Refused, "usage"},
		"a difference":               {failed(5, "verify"), fleet.Queued, "verify"},
		"a crash":                    {end{exit: 134}, fleet.Queued, "crash"},
		"a kill":                     {end{exit: -1, output: failed(1, "format").output}, fleet.Queued, "crash"},
		"an escape":                  {failed(4, `\u001b[31m`), fleet.Queued, "crash"},
		"no JSON":                    {end{exit: 4, output: []byte("{}{")}, fleet.Queued, "crash"},
	} {
		v := verdictOf(tc.e, 0)
		require.Equal(t, tc.state, v.state, name)
		require.Equal(t, tc.code, v.code, name)
	}
}

func TestWindows(t *testing.T) {
	t.Parallel()
	at := func(clock string) time.Time {
		when, err := time.Parse("15:04", clock)
		require.NoError(t, err)
		return when
	}
	for window, tc := range map[string]struct{ in, out []string }{
		"22:00-06:00": {[]string{"22:00", "23:59", "00:00", "05:59"}, []string{"06:00", "12:00", "21:59"}},
		"06:00-22:00": {[]string{"06:00", "21:59"}, []string{"22:00", "00:00", "05:59"}},
		"00:00-00:00": {[]string{"00:00", "12:00"}, nil},
	} {
		w, err := ParseWindow(window)
		require.NoError(t, err)
		for _, clock := range tc.in {
			require.True(t, w.Contains(at(clock)), "%s in %s", clock, window)
		}
		for _, clock := range tc.out {
			require.False(t, w.Contains(at(clock)), "%s in %s", clock, window)
		}
	}
	require.True(t, Window{}.Contains(at("03:00")))
	for _, bad := range []string{"", "22", "22:00", "22:00-", "25:00-06:00", "a-b", "22:00-06:00-07:00"} {
		_, err := ParseWindow(bad)
		require.Error(t, err, bad)
	}
}

// An unmounted datastore has no images, and jobs on them are not judged.
func TestDatastoreIsGone(t *testing.T) {
	t.Parallel()
	d := Datastore{Name: "ds1", Root: filepath.Join(t.TempDir(), "ds1")}
	require.NoError(t, os.Mkdir(d.Root, 0o700))
	_, err := d.place(".")
	require.NoError(t, err)
	scan := fleet.Record{Job: fleet.Job{Kind: fleet.Scan, Datastore: "ds1", Path: "."}}
	w := &Worker{Folder: t.TempDir()}
	require.NoError(t, os.WriteFile(w.results(&scan), nil, 0o600))
	j := &attempt{Worker: w, at: d, lease: &queue.Lease{Record: scan}}
	require.Equal(t, fleet.Done, j.judge(end{}).state)
	j.at.id.Inode++
	require.Equal(t, verdict{fleet.Queued, gone, j.judge(end{}).message}, j.judge(end{}))
	task, v := w.prepare(j.at, &scan)
	require.Empty(t, task.runs)
	require.Equal(t, gone, v.code)
	require.Equal(t, fleet.Queued, v.state)
	require.NoError(t, os.Remove(d.Root))
	_, err = d.place(".")
	require.ErrorIs(t, err, errGone)
}

// A guest that writes to an extent changes the image.
func TestChangedExtent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at, extent := filepath.Join(dir, "a.vmdk"), filepath.Join(dir, "a-flat.vmdk")
	for _, path := range []string{at, extent} {
		require.NoError(t, os.WriteFile(path, []byte("x"), 0o600))
	}
	j := fleet.Job{Identity: identityOf(at), Files: []fleet.File{{Name: "a-flat.vmdk", Identity: identityOf(extent)}}}
	require.False(t, changed(at, &j))
	require.NoError(t, os.WriteFile(extent, []byte("xy"), 0o600))
	require.True(t, changed(at, &j))
}

// The files of a copy get their names, the descriptor last. A name of another file is not taken.
func TestPublish(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	own := filepath.Join(dir, ".trueup-1")
	put := func(path string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, path), []byte(path), 0o600))
	}
	j := &attempt{task: task{copy: filepath.Join(own, "a.vmdk"), dest: filepath.Join(dir, "a.vmdk")}}
	require.Equal(t, fleet.Queued, j.publish().state, "there is no copy")
	require.NoError(t, os.Mkdir(own, 0o700))
	for _, name := range []string{"a.vmdk", "a-s001.vmdk", "a-s002.vmdk", ".a-s003.vmdk.partial"} {
		put(".trueup-1/" + name)
	}
	put("a-s002.vmdk")
	v := j.publish()
	require.Equal(t, fleet.Refused, v.state)
	require.Contains(t, v.message, "a-s002.vmdk exists")
	require.NoFileExists(t, filepath.Join(dir, "a-s001.vmdk"), "nothing has got a name")
	require.NoError(t, os.Remove(filepath.Join(dir, "a-s002.vmdk")))
	// An earlier delivery ended after one rename, and between link and removal of another.
	require.NoError(t, os.Rename(filepath.Join(own, "a-s001.vmdk"), filepath.Join(dir, "a-s001.vmdk")))
	require.NoError(t, os.Link(filepath.Join(own, "a-s002.vmdk"), filepath.Join(dir, "a-s002.vmdk")))
	j.files = []string{"a.vmdk", "a-s002.vmdk", "a-s009.vmdk"}
	require.Equal(t, fleet.Queued, j.publish().state, "a file that was proved is gone")
	require.NoFileExists(t, filepath.Join(dir, "a.vmdk"))
	j.files = nil
	require.Equal(t, fleet.Done, j.publish().state)
	for _, name := range []string{"a.vmdk", "a-s001.vmdk", "a-s002.vmdk"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		require.Equal(t, ".trueup-1/"+name, string(b))
		require.NoFileExists(t, filepath.Join(own, name))
	}
	require.NoFileExists(t, filepath.Join(dir, ".a-s003.vmdk.partial"))
}

// The temporary names of a job belong to a round.
func TestRounds(t *testing.T) {
	t.Parallel()
	r := &fleet.Record{Job: fleet.Job{Kind: fleet.Exchange, Datastore: "ds1", Path: "a/b.vmdk"}, Round: 12}
	name := filepath.Base(copyOf("/a/b.vmdk", r))
	for text, round := range map[string]int{
		name: 12, partialOf(name): 12, name[:len(name)-5] + "-flat.vmdk": 12, "b.vmdk": -1, ".trueup-1-12": -1,
		ownName(r): -1, name[1:]: -1, "..": -1,
	} {
		require.Equal(t, round, roundOf(text, r), text)
	}
}

// The result of a job has the final names of files that the first run wrote to another folder.
func TestMergedNamesFinalFiles(t *testing.T) {
	first := `{"command":"align","dest":"/ds/.w/a.ova","copied_bytes":9007199254740993,` +
		`"files":["/ds/.w/a.ova","/ds/.w/a.mf"],"disks":[{"dest":"/ds/.w/a.ova!b.vmdk","moved":1}]}`
	require.JSONEq(t, strings.ReplaceAll(first, "/.w/", "/"), string(merged([]byte(first), nil, "/ds/a.ova")))
	first = strings.ReplaceAll(first, "/.w/a.ova", "/.trueup-1-0.ova")
	require.JSONEq(t, strings.NewReplacer("/.w/", "/", "/.trueup-1-0.ova", "/a.ova").Replace(first),
		string(merged([]byte(first), nil, "/ds/a.ova")))
	last := `{"command":"replace","dest":"/ds/a.ova","files":["/ds/a.ova"],"disks":[],"replaced":{},"copied_bytes":0}`
	require.JSONEq(t, strings.Replace(last, `bytes":0`, `bytes":9007199254740993`, 1),
		string(merged([]byte(first), []byte(last), "/ds/a.ova")))
}
