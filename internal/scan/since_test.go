package scan

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/ondisk"
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
// is judged again.
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

// TestRemovedSince has files that are missing, files that are images no more, and files that were omitted.
func TestRemovedSince(t *testing.T) {
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

// TestShardsAreAllOfAScan shares out images of several files, such that a broken one names, links, and paths that lead
// nowhere.
func TestShardsAreAllOfAScan(t *testing.T) {
	tr := newTrial(t)
	files := map[string]string{
		"two/a-broken": "disk\nhas flat\nhas disk2", "two/b-broken": "pack\nhas disk2\nhas disk3", "two/flat": "bare",
		"two/disk2": "disk\nhas e2", "two/e2": "extent", "two/disk3": "disk", "two/lost": "extent",
		"ring/x": "pack\nhas y", "ring/y": "pack\nhas x",
	}
	for n := range 40 {
		files[fmt.Sprintf("many/%d.vmdk", n)] = fmt.Sprintf("disk\nhas %d-s1\nhas %d-s2\nof %d.vmdk", n, n, n/2)
		files[fmt.Sprintf("many/%d-s1", n)], files[fmt.Sprintf("many/%d-s2", n)] = "extent", "extent"
	}
	tr.put(files)
	tr.link("many/3.vmdk", "away/linked")
	tr.link("many/5.vmdk", "more/linked")
	paths := []string{tr.dir, tr.path("no1"), tr.path("no2"), tr.path("no3")}
	tr.scanned(paths...)
	whole := tr.shown()
	require.Greater(t, len(whole), 45)
	for _, n := range []int{1, 2, 3, 16} {
		var union []string
		for k := range n {
			tr.shard = Shard{k + 1, n}
			res := tr.scanned(paths...)
			require.Equal(t, n > 1, res.Others > 0, "shard %s", tr.shard)
			mine := tr.shown()
			union = append(union, mine...)
			require.Equal(t, res.Others, tr.scanned(paths...).Others)
			require.Equal(t, mine, tr.shown(), "shard %s has the same images each time", tr.shard)
		}
		slices.Sort(union)
		require.Equal(t, whole, union, "%d shards", n)
	}
}

func TestShardsAreParsed(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"1/1", "3/16", "65536/65536"} {
		got, err := ParseShard(s)
		require.NoError(t, err)
		require.Equal(t, s, got.String())
	}
	for _, s := range []string{
		"0/4", "5/4", "4", "/", "1/", "/4", "-1/4", "1/4/4", "1/65537", "1/4294967297", "a/b", " 1/4", "1.5/4", "1/0",
	} {
		_, err := ParseShard(s)
		require.ErrorIs(t, err, ondisk.ErrUsage)
		require.ErrorContains(t, err, "must be K/N, such as 3/16")
	}
}

// The share of an image is part of the contract. printf %s /library/xp.vmdk | sha256sum begins with 041884714170afdc,
// which is 12 modulo 16.
func TestShareOfAPath(t *testing.T) {
	t.Parallel()
	for k := range 16 {
		require.Equal(t, k == 12, Shard{k + 1, 16}.Has("/library/xp.vmdk"))
	}
	require.True(t, Shard{}.Has("/library/xp.vmdk"))
}

// A script is for sh, and names are quoted for other shells on Windows.
func TestNoScriptOnWindows(t *testing.T) {
	c := Choices{Script: "fix.sh"}
	for system, refused := range map[string]bool{"linux": false, "darwin": false, "freebsd": false, "windows": true} {
		require.NoError(t, (&Choices{}).scriptOn(system))
		err := c.scriptOn(system)
		require.Equal(t, refused, err != nil, system)
		if refused {
			require.ErrorIs(t, err, ondisk.ErrUsage)
			require.ErrorContains(t, err, "--script writes a script for bash")
		}
	}
}

func TestListsOfPaths(t *testing.T) {
	for text, want := range map[string][]string{
		"":                    nil,
		"\n\n":                nil,
		"a":                   {"a"},
		"a\nb c\n":            {"a", "b c"},
		"a\nb\r\n":            {"a", "b\r"}, // a name may end in CR
		"a\r\nb\r\n":          {"a", "b"},   // a list of Windows
		"a\r\n\r\nb c":        {"a", "b c"},
		"a\x00b\nc\x00":       {"a", "b\nc"},
		"a\r\n\x00b\r\n\x00c": {"a\r\n", "b\r\n", "c"},
	} {
		require.Equal(t, want, splitList([]byte(text)), "%q", text)
	}
}

// The byte order mark of Windows is not part of an address. Addresses are refused, unless a file has that name, and
// secrets in them are not shown.
func TestListsOfAddresses(t *testing.T) {
	paths, err := ReadList("-", strings.NewReader("\ufeffhttps://h/a?secret\nnbd://h/\n"))
	require.NoError(t, err)
	require.Equal(t, []string{"https://h/a?secret", "nbd://h/"}, paths)
	t.Chdir(t.TempDir())
	require.NoError(t, checkPaths([]string{"a b", ""}))
	require.ErrorContains(t, checkPaths(paths[:1]), `https://h/a?...: refused`)
	require.ErrorContains(t, checkPaths(paths[1:]), "run trueup inspect on it")
	for _, word := range []string{
		" https://h/a?secret", "http:/h/a?secret", "s3://h/a?secret", `"https://h/a?secret"`,
	} {
		err := checkPaths([]string{"a", word})
		require.ErrorContains(t, err, "PATH 2, of arguments and list, is an address", word)
		require.NotContains(t, err.Error(), "secret")
	}
	require.NoError(t, os.MkdirAll("s3:/h", 0o755))
	require.NoError(t, checkPaths([]string{"s3://h"}))
}

// Programs of other sources have other identities, with a build ID and without one.
func TestProgramID(t *testing.T) {
	dir := t.TempDir()
	seen := map[string]string{}
	for _, flags := range []string{"", "-buildid="} {
		for _, text := range []string{"a", "b", "a"} {
			source, program := filepath.Join(dir, "main.go"), filepath.Join(dir, "program")
			code := fmt.Sprintf("package main\n\nfunc main() { println(%q) }\n", text)
			require.NoError(t, os.WriteFile(source, []byte(code), 0o600))
			build := exec.Command(disktest.Tool(t, "go"), "build", "-ldflags="+flags, "-o", program, source)
			out, err := build.CombinedOutput()
			require.NoError(t, err, string(out))
			id, err := programID(program)
			require.NoError(t, err)
			if was := seen[id]; was != "" {
				require.Equal(t, was, flags+text)
			}
			seen[id] = flags + text
		}
	}
	require.Len(t, seen, 4, "the same sources have the same identity")
}
