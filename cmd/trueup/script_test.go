package main

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/scan/results"
	"github.com/trueup/trueup/internal/units"
)

// scriptCommands are our commands of scripts, in addition to testscript's.
var scriptCommands = map[string]func(s *script, args []string){
	"trueup":  func(s *script, args []string) { s.run(0, args) },
	"code":    (*script).code,
	"refused": (*script).refused,
	"json":    (*script).json,
	"schema":  (*script).schema,
	"disk":    (*script).disk,
	"noise":   (*script).noise,
	"fixture": (*script).fixture,
	"corpus":  (*script).corpus,
	"package": (*script).packageOf,
	"machine": (*script).machine,
	"files":   (*script).files,
	"keep":    (*script).keep,
	"same":    (*script).same,
	"settle":  func(s *script, _ []string) { disktest.WaitSettled(s.t, s.MkAbs(".")) },
	"tool":    (*script).tool,
	"wrong":   (*script).wrong,
	"put":     (*script).put,
	"kinds":   (*script).kinds,
	"rows":    (*script).rows,
	"read":    (*script).read,
	"agrees":  func(s *script, args []string) { sameAsInspect(s.t, s.MkAbs("."), args...) },
}

// TestScripts runs testdata/script; CONTRIBUTING.md lists the commands.
func TestScripts(t *testing.T) {
	t.Parallel()
	bin := t.TempDir()
	require.NoError(t, os.Link(builtPath, filepath.Join(bin, "trueup")))
	commands := map[string]func(ts *testscript.TestScript, neg bool, args []string){}
	for name, run := range scriptCommands {
		commands[name] = func(ts *testscript.TestScript, neg bool, args []string) {
			if neg {
				ts.Fatalf("%s cannot be negated", name)
			}
			s := ts.Value(scriptKey{}).(*script)
			s.TestScript = ts
			run(s, args)
		}
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script", RequireUniqueNames: true, Cmds: commands,
		Condition: func(name string) (bool, error) {
			if name != "landlock" {
				return false, fmt.Errorf("no condition %q", name)
			}
			return hasLandlock() == nil, nil
		},
		Setup: func(env *testscript.Env) error {
			env.Setenv("PATH", bin+string(filepath.ListSeparator)+env.Getenv("PATH"))
			env.Setenv("BIN", bin)                                                  // the folder of trueup alone
			for _, name := range []string{"TRUEUP_MUTANT", "TRUEUP_MUTANT_TRACE"} { // of internal/disktest/mutants
				if value, set := os.LookupEnv(name); set {
					env.Setenv(name, value)
				}
			}
			env.Values[scriptKey{}] = &script{t: env.T().(testing.TB), kept: map[string]map[string]string{}}
			return nil
		},
	})
}

type scriptKey struct{}

// script is our state of a script, in addition to testscript's.
type script struct {
	*testscript.TestScript
	t    testing.TB
	kept map[string]map[string]string // by folder, as hashFolder
}

// run runs trueup, requires an exit code, and compares JSON with its schema.
func (s *script) run(want int, args []string) {
	err := s.Exec("trueup", args...)
	code := 0
	if exit, ended := errors.AsType[*exec.ExitError](err); ended {
		code = exit.ExitCode()
	} else if err != nil {
		s.Fatalf("%v", err)
	}
	if code != want {
		s.Fatalf("exit code %d, want %d", code, want)
	}
	if wantsJSON(args) {
		validateOutput(s.t, args, s.ReadFile("stdout"))
		requireStrict(s.t, code, s.ReadFile("stdout"))
	}
}

// wrong ARG…: trueup refuses a command line, without and with --json at either end.
func (s *script) wrong(args []string) {
	s.run(64, args)
	s.refused([]string{""})
	for _, where := range []int{len(args), 0} {
		s.run(64, slices.Insert(slices.Clone(args), where, "--json"))
		s.json([]string{"/error/code", "usage"})
		if stderr := s.ReadFile("stderr"); stderr != "" {
			requireOneLine(s.t, stderr)
		}
	}
}

// code N trueup ARG…
func (s *script) code(args []string) {
	if len(args) < 2 || args[1] != "trueup" {
		s.Fatalf("usage: code N trueup ARG…")
	}
	want, err := strconv.Atoi(args[0])
	s.Check(err)
	s.run(want, args[2:])
}

// refused PATTERN: the last run printed only one line of error, which matches the pattern.
func (s *script) refused(args []string) {
	if len(args) != 1 {
		s.Fatalf("usage: refused PATTERN")
	}
	stdout, stderr := s.ReadFile("stdout"), s.ReadFile("stderr")
	if stdout != "" {
		s.Fatalf("standard output is not empty")
	}
	if !regexp.MustCompile(`^trueup: [^\n]+\n$`).MatchString(stderr) {
		s.Fatalf("standard error is not one line of trueup")
	}
	if !regexp.MustCompile(args[0]).MatchString(stderr) {
		s.Fatalf("no match for %q", args[0])
	}
}

// json [ROW] POINTER VALUE: the last run printed JSON with a value at a JSON Pointer (RFC 6901), null if it does not
// exist. ROW is the base name of the path of a row of a scan, or summary.
func (s *script) json(args []string) {
	if len(args) < 2 {
		s.Fatalf("usage: json [ROW] POINTER VALUE")
	}
	v, want := s.at(args[:len(args)-1]), args[len(args)-1]
	got, isText := v.(string)
	if !isText {
		b, err := json.Marshal(v)
		s.Check(err)
		got = string(b)
	}
	if got != want {
		s.Fatalf("it is %s, want %s", got, want)
	}
}

// object returns the JSON object that the last run printed, or the one of a row.
func (s *script) object(row string) map[string]any {
	var found []map[string]any
	for all := json.NewDecoder(strings.NewReader(s.ReadFile("stdout"))); ; {
		all.UseNumber()
		object := map[string]any{}
		err := all.Decode(&object)
		if errors.Is(err, io.EOF) {
			break
		}
		s.Check(err)
		path, _ := object["path"].(string)
		if row == "" || object["event"] == row || path != "" && filepath.Base(path) == row {
			found = append(found, object)
		}
	}
	if len(found) != 1 {
		s.Fatalf("%d objects of JSON fit, want 1", len(found))
	}
	return found[0]
}

// at returns the value at [ROW] POINTER, or nil.
func (s *script) at(place []string) (v any) {
	row := ""
	if len(place) == 2 {
		row, place = place[0], place[1:]
	}
	if len(place) != 1 || !strings.HasPrefix(place[0], "/") {
		s.Fatalf("want [ROW] POINTER")
	}
	v = s.object(row)
	for name := range strings.SplitSeq(place[0][1:], "/") {
		switch of := v.(type) {
		case map[string]any:
			v = of[name]
		case []any:
			n, err := strconv.Atoi(name)
			if err != nil || n < 0 || n >= len(of) {
				return nil
			}
			v = of[n]
		default:
			return nil
		}
	}
	return v
}

// schema FILE…: each line of the files is an object that fits its schema.
func (s *script) schema(args []string) {
	for _, name := range args {
		for line := range strings.Lines(s.ReadFile(name)) {
			validate(s.t, line)
		}
	}
}

// place returns the path of a file that a script makes, and makes its folder.
func (s *script) place(name string) string {
	path := s.MkAbs(name)
	s.Check(os.MkdirAll(filepath.Dir(path), 0o755))
	return path
}

// scriptVolumes are the contents for the partition of the command disk: its type, and its structures or data.
var scriptVolumes = map[string]struct {
	kind byte
	put  func(disk forge.Bytes, lba, sectors int64)
}{
	"":      {0x83, func(forge.Bytes, int64, int64) {}},
	"exfat": {0x07, fsforge.PutExFAT},
	"ext2":  {0x83, fsforge.PutExt},
	"fat16": {0x06, fsforge.PutFAT16},
	"noise": {0x83, func(disk forge.Bytes, lba, sectors int64) {
		disk.Put(lba*sectorSize, noise("partition", int(sectors)*sectorSize))
	}},
	"ntfs": {0x07, fsforge.PutNTFS},
}

// disk FILE LBA [FS]: a raw disk of 8 MiB with a partition of 4 MiB at an LBA, empty without FS.
func (s *script) disk(args []string) {
	const sectors = 8192
	volume, found := scriptVolumes[strings.Join(args[min(2, len(args)):], " ")]
	if len(args) < 2 || !found {
		s.Fatalf("usage: disk FILE LBA [%s]", strings.Join(slices.Sorted(maps.Keys(scriptVolumes)), "|"))
	}
	lba, err := strconv.ParseUint(args[1], 10, 32)
	s.Check(err)
	disk := tableforge.NewMBR(2*sectors, slot(volume.kind, uint32(lba), sectors))
	volume.put(disk, int64(lba), sectors)
	disk.Write(s.t, s.place(args[0]))
}

// noise FILE SIZE: a file that is not an image.
func (s *script) noise(args []string) {
	if len(args) != 2 {
		s.Fatalf("usage: noise FILE SIZE")
	}
	size, err := units.Parse(args[1])
	s.Check(err)
	s.Check(os.WriteFile(s.place(args[0]), noise(args[0], int(size)), 0o644))
}

// put FILE OFFSET HEX: overwrites bytes.
func (s *script) put(args []string) {
	if len(args) != 3 {
		s.Fatalf("usage: put FILE OFFSET HEX")
	}
	off, err := strconv.ParseInt(args[1], 10, 64)
	s.Check(err)
	b, err := hex.DecodeString(args[2])
	s.Check(err)
	disktest.WriteAt(s.t, s.MkAbs(args[0]), off, b)
}

// package FILE: the OVA or, in a folder of its own, the OVF of twoDisks.
func (s *script) packageOf(args []string) {
	if len(args) != 1 {
		s.Fatalf("usage: package FILE")
	}
	path := s.place(args[0])
	if filepath.Ext(path) == ".ova" {
		s.Check(os.Rename(twoDisks(s.t).ova(s.t), path))
		return
	}
	ovf := twoDisks(s.t).folder(s.t)
	s.Check(os.CopyFS(filepath.Dir(path), os.DirFS(filepath.Dir(ovf))))
	s.Check(os.Rename(filepath.Join(filepath.Dir(path), filepath.Base(ovf)), path))
}

// fixture NAME FILE: a copy of an image of testdata, or the raw disk of a text of testdata/corpus.
func (s *script) fixture(args []string) {
	if len(args) != 2 {
		s.Fatalf("usage: fixture NAME FILE")
	}
	from := filepath.Join("../../testdata", args[0])
	if text, ok := disktest.Fixtures(s.t)[args[0]]; ok {
		from = disktest.Materialize(s.t, disktest.Fixture(s.t, text))
	}
	s.Check(os.WriteFile(s.place(args[1]), disktest.ReadFile(s.t, from), 0o644))
}

// corpus NAME FILE: an image of the shared corpus, unpacked, or with a slash after both names a folder of images.
func (s *script) corpus(args []string) {
	if len(args) != 2 {
		s.Fatalf("usage: corpus NAME FILE")
	}
	name, path := args[0], s.place(args[1])
	if dir, ok := strings.CutSuffix(name, "/"); ok {
		s.Check(os.CopyFS(path, os.DirFS(disktest.CorpusSet(s.t, dir))))
		return
	}
	disktest.Run(s.t, "cp", "--sparse=always", disktest.Corpus(s.t, name), path)
}

// files DIR [NAME…]: the folder has these names and no others.
func (s *script) files(args []string) {
	if len(args) == 0 {
		s.Fatalf("usage: files DIR [NAME…]")
	}
	got, want := disktest.Names(s.t, s.MkAbs(args[0])), slices.Sorted(slices.Values(args[1:]))
	if !slices.Equal(got, want) {
		s.Fatalf("%s has %q, want %q", args[0], got, want)
	}
}

// keep DIR…: records contents and times of the files of folders.
func (s *script) keep(args []string) {
	for _, dir := range args {
		s.kept[dir] = hashFolder(s.t, s.MkAbs(dir))
	}
}

// same DIR…: nothing changed in the folders since keep.
func (s *script) same(args []string) {
	for _, dir := range args {
		if s.kept[dir] == nil {
			s.Fatalf("no keep %s before", dir)
		}
		require.Equal(s.t, s.kept[dir], hashFolder(s.t, s.MkAbs(dir)), dir)
	}
}

// kinds DIR: a folder with images of all kinds, newEveryKind.
func (s *script) kinds(args []string) {
	if len(args) != 1 {
		s.Fatalf("usage: kinds DIR")
	}
	dir := s.place(args[0])
	disktest.Run(s.t, "cp", "-a", newEveryKind(s.t).dir, dir)
	disktest.Run(s.t, "find", dir, "-type", "f", "-exec", "sync", "{}", "+") // so that allocated bytes are unchanged
}

// rows FILE: the last scan has the rows of the lines of FILE, each a path and wordsOf. Paths that are not text are
// quoted.
func (s *script) rows(args []string) {
	if len(args) != 1 {
		s.Fatalf("usage: rows FILE")
	}
	var got []string
	for path, i := range s.scanned() {
		if quoted := strconv.Quote(path); quoted != `"`+path+`"` {
			path = quoted
		}
		got = append(got, path+": "+wordsOf(i))
	}
	s.equal(strings.FieldsFunc(s.ReadFile(args[0]), func(r rune) bool { return r == '\n' }), got)
}

// read [PATH…]: the last scan has read something of these images and of no others.
func (s *script) read(args []string) {
	var got []string
	for path, i := range s.scanned() {
		if i.Read > 0 {
			got = append(got, path)
		}
	}
	s.equal(args, got)
}

// equal compares lists regardless of their order.
func (s *script) equal(want, got []string) {
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(want, got) {
		s.Fatalf("it is\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// scanned returns the rows that the last scan printed.
func (s *script) scanned() map[string]*results.Image {
	return readRows(s.t, s.ReadFile("stdout")).rows
}

// tool NAME…: the script needs outside programs; without them it is skipped or fails like any test.
func (s *script) tool(args []string) {
	for _, name := range args {
		disktest.Tool(s.t, name)
	}
}

// negatedCommand matches a shell command whose failure does not end a script under set -e.
var negatedCommand = regexp.MustCompile(`(?m)^\s*! .*|\|\| ! .*`)

// TestShellOfScriptsCanFail finds negated commands in shell programs of scripts, because they expect nothing.
func TestShellOfScriptsCanFail(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"! cmp a b", "set -e\n\t! grep -q a b\n", "[ -z $1 ] || ! cmp a b"} {
		require.Regexp(t, negatedCommand, bad)
	}
	require.NotRegexp(t, negatedCommand, "#!/bin/sh\nif ! cmp a b; then exit 1; fi\n[ ! -e a ]\n")
	paths, err := filepath.Glob("testdata/script/*.txtar")
	require.NoError(t, err)
	programs := 0
	for _, path := range paths {
		archive, err := txtar.ParseFile(path)
		require.NoError(t, err)
		for _, file := range archive.Files {
			if strings.HasSuffix(file.Name, ".sh") || bytes.HasPrefix(file.Data, []byte("#!")) {
				programs++
				require.NotRegexp(t, negatedCommand, string(file.Data), "%s of %s", file.Name, path)
			}
		}
	}
	require.Greater(t, programs, 40)
}
