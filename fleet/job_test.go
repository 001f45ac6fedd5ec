package fleet_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/fleet"
	"github.com/trueup/trueup/internal/cli"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/shell"
)

func good() fleet.Job {
	return fleet.Job{
		Kind: fleet.Align, Datastore: "ds1", Path: "a/b.vmdk", Options: fleet.Options{Suffix: fleet.DefaultSuffix},
	}
}

// A queue is untrusted: a job refers to nothing outside its datastore, and contains no flag.
func TestHostileJobs(t *testing.T) {
	t.Parallel()
	require.NoError(t, new(good()).Check())
	for name, change := range map[string]func(j *fleet.Job){
		"another kind":            func(j *fleet.Job) { j.Kind = "undo" },
		"a wildcard":              func(j *fleet.Job) { j.Datastore = "*" },
		"two tokens":              func(j *fleet.Job) { j.Datastore = "a.b" },
		"no datastore":            func(j *fleet.Job) { j.Datastore = "" },
		"an absolute path":        func(j *fleet.Job) { j.Path = "/etc/passwd" },
		"a path that climbs":      func(j *fleet.Job) { j.Path = "../x.img" },
		"a path that climbs late": func(j *fleet.Job) { j.Path = "a/../../x.img" },
		"a path with a detour":    func(j *fleet.Job) { j.Path = "a//b.vmdk" },
		"no path":                 func(j *fleet.Job) { j.Path = "" },
		"the whole datastore":     func(j *fleet.Job) { j.Path = "." },
		"a zero byte":             func(j *fleet.Job) { j.Path = "a\x00b" },
		"no UTF-8":                func(j *fleet.Job) { j.Path = "a\xffb" },
		"a long path":             func(j *fleet.Job) { j.Path = strings.Repeat("a", 5000) },
		"a flag as a boundary":    func(j *fleet.Job) { j.Boundary = "--out=/x" },
		"a folder in the suffix":  func(j *fleet.Job) { j.Suffix = "/../x" },
		"no suffix":               func(j *fleet.Job) { j.Suffix = "" },
		"a shard of an image":     func(j *fleet.Job) { j.Shard = "1/2" },
		"an exchange with suffix": func(j *fleet.Job) { j.Kind = fleet.Exchange },
		"a flag as a shard":       func(j *fleet.Job) { j.Kind, j.Suffix, j.Shard = fleet.Scan, "", "--force" },
		"a file elsewhere":        func(j *fleet.Job) { j.Files = []fleet.File{{Name: "../x"}} },
		"a folder as a file":      func(j *fleet.Job) { j.Files = []fleet.File{{Name: "."}} },
		"too many files":          func(j *fleet.Job) { j.Files = make([]fleet.File, 1000) },
		"a long identity":         func(j *fleet.Job) { j.Identity = strings.Repeat("1", 100) },
	} {
		j := good()
		change(&j)
		require.Error(t, j.Check(), name)
		b, err := json.Marshal(fleet.Record{Job: j, State: fleet.Queued})
		require.NoError(t, err)
		if _, err := fleet.ParseRecord(b); name != "no UTF-8" { // impossible in JSON
			require.Error(t, err, name)
		}
	}
}

// A record refers to no other file, and has only words of a fixed list where they belong.
func TestHostileRecords(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(r *fleet.Record){
		"":                    func(r *fleet.Record) { r.Code, r.ResultFile = "below_boundary", r.Key()+".json" },
		"no state":            func(r *fleet.Record) { r.State = "" },
		"an escape in state":  func(r *fleet.Record) { r.State = "\x1b[31m" },
		"an escape in code":   func(r *fleet.Record) { r.Code = "\x1b[31m" },
		"a file elsewhere":    func(r *fleet.Record) { r.ResultFile = "/etc/passwd" },
		"a file above":        func(r *fleet.Record) { r.ResultFile = "../" + r.Key() + ".json" },
		"a flag":              func(r *fleet.Record) { r.ResultFile = "--out=x" },
		"that of another job": func(r *fleet.Record) { r.ResultFile = "ds1.0.json" },
	} {
		r := fleet.Record{Job: good(), State: fleet.Queued}
		change(&r)
		b, err := json.Marshal(r)
		require.NoError(t, err)
		if _, err = fleet.ParseRecord(b); name == "" {
			require.NoError(t, err)
		} else {
			require.Error(t, err, name)
		}
	}
}

// The same work is the same job, and different work is a different job.
func TestIDs(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for name, change := range map[string]func(j *fleet.Job){
		"good":     func(*fleet.Job) {},
		"path":     func(j *fleet.Job) { j.Path = "c.vmdk" },
		"kind":     func(j *fleet.Job) { j.Kind = fleet.Exchange },
		"store":    func(j *fleet.Job) { j.Datastore = "ds2" },
		"boundary": func(j *fleet.Job) { j.Boundary = "1M" },
		"changed":  func(j *fleet.Job) { j.Identity = "1@2" },
		"extent":   func(j *fleet.Job) { j.Files = []fleet.File{{Name: "b-flat.vmdk", Identity: "1@2"}} },
	} {
		j, again := good(), good()
		change(&j)
		change(&again)
		require.Equal(t, j.Key(), again.Key())
		require.NotContains(t, seen, j.ID(), name)
		seen[j.ID()] = name
	}
	require.Equal(t, "a/b-aligned.vmdk", new(good()).Dest())
}

// FuzzRecord decodes any bytes as a record. A valid record is a job that can be run.
func FuzzRecord(f *testing.F) {
	b, err := json.Marshal(fleet.Record{Job: good(), State: fleet.Queued})
	require.NoError(f, err)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := fleet.ParseRecord(b)
		if err != nil {
			return
		}
		require.True(t, filepath.IsLocal(r.Path))
		require.True(t, filepath.IsLocal(r.Dest()))
		require.NoError(t, fleet.CheckName(r.Datastore))
		for _, flag := range r.Flags() {
			require.NotContains(t, flag, "=")
		}
	})
}

// scan returns the results of a scan of a folder.
func scan(t *testing.T, root string) []byte {
	t.Helper()
	var out, errOut bytes.Buffer
	args := []string{"scan", "-o", "json", "--no-progress", "--isolation", "none", root}
	code := cli.Run(t.Context(), "test", args, &out, &errOut)
	require.Equal(t, 1, code, errOut.String(), "one image is broken")
	return out.Bytes()
}

// Images of a scan are jobs if a copy is due and possible. Refused ones are listed.
func TestWorklist(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	put := func(name string, b []byte) {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(root, name), b, 0o600))
	}
	const sectors = 8 << 11
	disk := tableforge.NewMBR(sectors, tableforge.Slot{Type: 0x83, Start: 63, Sectors: sectors - 63})
	put("sub/off.img", disk)
	put("other.img", disk)
	put("aligned.img", tableforge.NewMBR(sectors, tableforge.Slot{Type: 0x83, Start: 2048, Sectors: sectors - 2048}))
	put("below.img", tableforge.NewMBR(sectors, tableforge.Slot{Type: 0x83, Start: 8, Sectors: sectors - 8}))
	strange := bytes.Clone(disk)
	copy(strange, "\xfa\x33\xc0strange code")
	put("strange.img", strange)
	put("broken.vmdk", []byte("KDMV"+strings.Repeat("x", 2000)))
	list := scan(t, root)
	read := func(w fleet.Worklist) (jobs []string, _ fleet.Worklist) {
		w.Kind, w.Datastore, w.Options.Suffix = fleet.Align, "ds1", "-aligned"
		require.NoError(t, w.Read(bytes.NewReader(list), func(j fleet.Job) error {
			require.NoError(t, j.Check())
			st, err := os.Stat(filepath.Join(w.Prefix, j.Path))
			require.NoError(t, err)
			require.Equal(t, fmt.Sprintf("%d@%d", st.Size(), st.ModTime().UnixNano()), j.Identity)
			jobs = append(jobs, j.Path)
			return nil
		}))
		return jobs, w
	}
	pattern := func(s string) *shell.Glob {
		p, err := shell.ParseGlob(s)
		require.NoError(t, err)
		return p
	}
	jobs, w := read(fleet.Worklist{Prefix: root})
	require.ElementsMatch(t, []string{"sub/off.img", "other.img"}, jobs)
	require.Len(t, w.Refused, 1)
	require.Equal(t, "strange.img", w.Refused[0].Path)
	require.Contains(t, w.Refused[0].Reason, "boot code")
	require.Equal(t, map[string]int{"not judged": 1, "nothing to be done": 2}, w.Skipped)

	jobs, _ = read(fleet.Worklist{Prefix: root, Below: true})
	require.ElementsMatch(t, []string{"sub/off.img", "other.img", "below.img"}, jobs)
	jobs, _ = read(fleet.Worklist{Prefix: root, Match: pattern("o*.img")})
	require.ElementsMatch(t, []string{"sub/off.img", "other.img"}, jobs)
	jobs, _ = read(fleet.Worklist{Prefix: root, Match: pattern("sub/*")})
	require.Equal(t, []string{"sub/off.img"}, jobs)
	jobs, w = read(fleet.Worklist{Prefix: filepath.Join(root, "sub")})
	require.Equal(t, []string{"off.img"}, jobs)
	require.Equal(t, 4, w.Skipped["not below "+filepath.Join(root, "sub")])
	jobs, _ = read(fleet.Worklist{Prefix: root, Options: fleet.Options{AllowUnbootable: true}})
	require.Contains(t, jobs, "strange.img")
}

// A file other than a worklist is refused with its line.
func TestNoWorklist(t *testing.T) {
	t.Parallel()
	const row = `{"schema":"trueup/1","event":"image"`
	for text, want := range map[string]string{
		"nothing": "line 1: not a JSON object",
		"\n{}":    "line 2: not written by trueup scan",
		row + "}": "",
		row + `,"state":"judged","verdict":"misaligned","path":"/x/a"}`: "line 1: a judged",
		`{"schema":"trueup/2","event":"image"}`:                         "not written by trueup scan",
	} {
		w := fleet.Worklist{Kind: fleet.Align, Datastore: "ds1", Prefix: "/x"}
		err := w.Read(strings.NewReader(text), func(fleet.Job) error { return nil })
		if want == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, want)
	}
}

// A multi-file image is a different job when any file has changed.
func TestFilesOfRows(t *testing.T) {
	t.Parallel()
	w := fleet.Worklist{Kind: fleet.Exchange, Datastore: "ds1", Prefix: "/x"}
	row := `{"schema":"trueup/1","event":"image","state":"judged","verdict":"misaligned","path":"/x/a.vmdk","files":[` +
		`{"name":"a.vmdk","size_bytes":1,"modified_ns":2},{"name":"a-flat.vmdk","size_bytes":3,"modified_ns":4},` +
		`{"name":"/elsewhere/b.vmdk","size_bytes":5,"modified_ns":6}]}`
	var got []fleet.Job
	require.NoError(t, w.Read(strings.NewReader(row), func(j fleet.Job) error {
		got = append(got, j)
		return nil
	}))
	require.Len(t, got, 1)
	require.Equal(t, "1@2", got[0].Identity)
	require.Equal(t, []fleet.File{{Name: "a-flat.vmdk", Identity: "3@4"}}, got[0].Files)
}

func TestPlain(t *testing.T) {
	t.Parallel()
	require.Equal(t, "a?[31mb?c\u00e9", fleet.Plain("a\x1b[31mb\nc\u00e9"))
	require.Equal(t, "x?y", fleet.Plain("x\u202ey"))
}

// TestRowsThatStayAreNoJobs queues neither a row without a proposed copy nor a package, which the result names.
func TestRowsThatStayAreNoJobs(t *testing.T) {
	const row = `{"schema":"trueup/1","event":"image","path":"/ds/%s","state":"judged","format":"raw",` +
		`"verdict":"misaligned","priority":{%s},"files":[{"name":"x","size_bytes":512,"modified_ns":1}],` +
		`"disks":[]}` + "\n"
	list := fmt.Sprintf(row, "stays.img", `"class":13,"cost_percent":0,"reason":"it stays"`) +
		fmt.Sprintf(row, "off.img", `"class":1,"cost_percent":0,"reason":"off",`+
			`"command":"trueup align off.img x.img"`) +
		strings.Replace(fmt.Sprintf(row, "vm.ova", `"class":1,"command":"trueup align vm.ova x.ova"`), `"disks":[]`,
			`"disks":[{"member":"vm.vmdk"}]`, 1)
	w := fleet.Worklist{Kind: fleet.Align, Datastore: "ds1", Prefix: "/ds", Options: fleet.Options{Suffix: "-aligned"}}
	var jobs []string
	require.NoError(t, w.Read(strings.NewReader(list), func(j fleet.Job) error {
		jobs = append(jobs, j.Path)
		return nil
	}))
	require.Equal(t, []string{"off.img"}, jobs)
	require.Equal(t, map[string]int{"a move would put the data worse": 1}, w.Skipped)
	require.Equal(t, []fleet.Refusal{{"vm.ova", "jobs cannot realign a package", "run trueup align on it"}}, w.Refused)
}
