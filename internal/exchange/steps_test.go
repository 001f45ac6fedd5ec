package exchange

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
)

// stepped is an exchange that has begun, step by step, in a new folder. It has a disk of three files, "vm", "data" and
// a manifest, or of one file, "vm".
type stepped struct {
	*run
	t   *testing.T
	dir string
}

func begin(t *testing.T, several bool) *stepped {
	t.Helper()
	return beginIn(t, t.TempDir(), several)
}

func beginIn(t *testing.T, dir string, several bool) *stepped {
	t.Helper()
	s := &stepped{t: t, dir: dir}
	p := &plan{Old: []file{{Name: name("vm")}}, New: []file{{Name: name("vm")}}}
	if several {
		p.Old[0].Was, p.Old[0].Kept = []byte("old vm"), []byte("names kept data")
		p.Old = append(p.Old, file{Name: name("data")}, file{
			Name: name("mf"), Was: []byte("old mf"), Kept: []byte("kept mf"), Seal: true,
		}, file{Name: name("more")})
		p.New = append(p.New, file{Name: name("data")}, file{Name: name("mf"), Seal: true})
	}
	for i := range p.Old {
		f := &p.Old[i]
		f.Other = name(string(f.Name) + ".orig")
		s.put(string(f.Name), "old "+string(f.Name))
		if !f.text() {
			*f = fileOf(string(f.Name), string(f.Other), s.info(string(f.Name)))
		}
	}
	for i := range p.New {
		f, seal := &p.New[i], p.New[i].Seal
		partial := "." + string(f.Name) + ".partial"
		s.put(partial, "new "+string(f.Name))
		*f = fileOf(string(f.Name), partial, s.info(partial))
		f.Seal = seal
	}
	d, err := gate.OpenFolder(s.dir)
	require.NoError(t, err)
	t.Cleanup(func() { d.Close() })
	h, err := p.start(&folder{Folder: d}, filepath.Join(s.dir, "vm"))
	require.NoError(t, err)
	t.Cleanup(func() { h.Close() })
	s.run = &run{plan: p, Held: h, d: &folder{Folder: h.Dir}}
	return s
}

func (s *stepped) put(name, text string) {
	s.t.Helper()
	require.NoError(s.t, os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o600))
}

// foreignFile puts another file in place of one.
func (s *stepped) foreignFile(name string) {
	s.t.Helper()
	s.put("tmp", "foreign")
	require.NoError(s.t, os.Rename(filepath.Join(s.dir, "tmp"), filepath.Join(s.dir, name)))
}

func (s *stepped) remove(name string) {
	s.t.Helper()
	require.NoError(s.t, os.Remove(filepath.Join(s.dir, name)))
}

func (s *stepped) mkdir(name string) {
	s.t.Helper()
	require.NoError(s.t, os.Mkdir(filepath.Join(s.dir, name), 0o700))
}

func (s *stepped) info(name string) sys.Info {
	s.t.Helper()
	st, err := sys.Lstat(filepath.Join(s.dir, name))
	require.NoError(s.t, err)
	return st
}

// files returns the names of the folder with the contents of the files.
func (s *stepped) files() map[string]string {
	s.t.Helper()
	entries, err := os.ReadDir(s.dir)
	require.NoError(s.t, err)
	out := map[string]string{}
	for _, e := range entries {
		if e.Type().IsRegular() && e.Name() != "vm"+journal.Suffix {
			b := disktest.ReadFile(s.t, filepath.Join(s.dir, e.Name()))
			out[e.Name()] = string(b)
		}
	}
	return out
}

// exchanged completes the exchange.
func (s *stepped) exchanged() {
	s.t.Helper()
	require.NoError(s.t, s.forward())
	require.Equal(s.t, "new vm", s.files()["vm"])
}

// does returns the step of a name, and undoes its inverse.
func does(name string) func(s *stepped) error {
	return func(s *stepped) error { return s.durably(stepOf(name), stepOf(name).do) }
}

func undoes(name string) func(s *stepped) error {
	return func(s *stepped) error { return s.durably(stepOf(name), stepOf(name).undo) }
}

func stepOf(name string) step {
	return steps[slices.IndexFunc(steps, func(s step) bool { return s.name == name })]
}

const (
	isForeign = "is not a file of the exchange"
	isGone    = "has neither that name nor"
)

// Each step checks that a file belongs to the exchange, and that its calls succeed: it ends before the first name that
// it would take from another file.
func TestStepsRefuse(t *testing.T) {
	disktest.OnUnix(t, "names of open files")
	t.Parallel()
	for name, c := range map[string]struct {
		several bool
		do      func(s *stepped)
		step    func(s *stepped) error
		says    string
		moves   bool // steps before the refused one change names
	}{
		"another disk has the path": {
			true, func(s *stepped) { s.foreignFile("vm") },
			(*stepped).forward, `"vm" ` + isForeign, false,
		},
		"the copy is gone": {
			true, func(s *stepped) { s.remove(".data.partial") },
			(*stepped).forward, isGone, false,
		},
		"a kept name is taken": {
			true, func(s *stepped) { s.foreignFile("vm.orig") }, does("second texts"), isForeign,
			false,
		},
		"a kept name cannot be written": {
			true, func(s *stepped) { s.mkdir(".vm.orig.exchange") }, does("second texts"), "remove", false,
		},
		"another manifest": {
			true, func(s *stepped) { s.foreignFile("mf") },
			does("seals of the source"), isForeign, false,
		},
		"a name that cannot be looked at": {true, func(*stepped) {}, func(s *stepped) error {
			return s.breakSeal(file{Seal: true, Name: []byte("a\x00")})
		}, "look at", false},
		"another manifest at the end": {
			true, func(s *stepped) { s.foreignFile("mf") }, does("seals of the copy"), isForeign, false,
		},
		"keep: a taken name": {
			true, func(s *stepped) { s.foreignFile("data.orig") },
			does("second names"), isForeign, false,
		},
		"keep: another file": {
			true, func(s *stepped) { s.foreignFile("data") },
			does("second names"), isGone, false,
		},
		"take: another file": {
			true, func(s *stepped) { s.foreignFile(".data.partial") },
			does("other files of the copy"), isGone, false,
		},
		"swap: another disk": {false, func(s *stepped) { s.foreignFile("vm") }, (*stepped).forward, isForeign, false},
		"swap: no copy":      {false, func(s *stepped) { s.remove(".vm.partial") }, (*stepped).forward, isGone, false},
		"swap: a taken name": {
			false, func(s *stepped) { s.foreignFile("vm.orig") },
			(*stepped).forward, `"vm.orig" ` + isForeign, false,
		},
		"swap: no original": {false, func(s *stepped) { s.remove("vm") }, (*stepped).forward, isGone, false},
		"write: its first name is taken": {
			true, func(s *stepped) { s.mkdir(".vm.exchange") }, does("path to the second names"), "remove", false,
		},
		"write: nothing to be like": {
			true, func(*stepped) {}, func(s *stepped) error {
				return s.d.write(s.Old[0].Name, []byte("x"),
					[]byte("absent"))
			},
			"attributes of", false,
		},
		"write: no folder": {true, func(*stepped) {}, func(s *stepped) error {
			require.NoError(s.t, s.Remove())
			require.NoError(s.t, os.RemoveAll(s.dir))
			return does("path to the second names")(s)
		}, "create", true},
		"back: no room in the journal": {true, func(s *stepped) { s.exchanged() }, func(s *stepped) (err error) {
			b := disktest.ReadFile(s.t, filepath.Join(s.dir, "vm"+journal.Suffix))
			s.Journal, err = journal.Read(bytes.NewReader(b), journal.MaxPlan)
			require.NoError(s.t, err)
			_, err = s.back()
			return err
		}, "vm.trueup", false},
		"back: a taken first name": {
			true, func(s *stepped) { s.exchanged(); s.mkdir(".data.exchange") },
			undoes("other files of the source"), "remove", false,
		},
		"back: nothing to link": {
			true, func(s *stepped) { s.exchanged(); s.remove("data.orig") },
			undoes("other files of the source"), "link or rename to", false,
		},
		"back: another manifest": {
			true, func(s *stepped) { s.exchanged(); s.foreignFile("mf") },
			undoes("seals of the copy"), isForeign, false,
		},
		"back: a manifest unwritten": {
			true, func(s *stepped) { s.exchanged(); s.mkdir(".mf.exchange") },
			undoes("seals of the source"), "remove", false,
		},
		"back: a file is gone where the path leads to the source": {
			true, func(s *stepped) { s.remove("data") }, undoes("path to the copy"), isGone, false,
		},
		"back: a file is gone": {
			true, func(s *stepped) { s.exchanged(); s.remove("data.orig") },
			func(s *stepped) error {
				_, err := s.back()
				return err
			}, isGone, true,
		},
		"back: a taken name": {
			true, func(s *stepped) { require.NoError(s.t, s.showSecond(s.Old[0])); s.foreignFile("data.orig") },
			undoes("path to the copy"), isForeign, false,
		},
		"back: a name of a step stays": {
			true, func(s *stepped) { s.mkdir(".data.orig.exchange") }, undoes("second names"), "remove", true,
		},
		"a folder that cannot be listed": {
			true, func(s *stepped) { require.NoError(s.t, os.RemoveAll(s.dir)); s.mkdir("") },
			func(s *stepped) error { return s.free(name("vm"), nil, Options{}, "") }, "no such file", true,
		},
		"undo: a name that cannot be looked at": {
			true, func(s *stepped) { s.exchanged(); s.New = append(s.New, file{Name: name("a\x00")}) },
			func(s *stepped) error { return s.mayUndo(t.Context(), Options{}) }, "look at", false,
		},
		"undo: a name of a step stays": {
			true, func(s *stepped) { s.exchanged(); s.mkdir(".data.orig.exchange") },
			func(s *stepped) error {
				_, err := Undo(t.Context(), s.Held, Options{Force: true})
				return err
			}, "remove", true,
		},
	} {
		s := begin(t, c.several)
		c.do(s)
		before := s.files()
		require.ErrorContains(t, c.step(s), c.says, name)
		if !c.moves {
			require.Equal(t, before, s.files(), name)
		}
	}
}

// A file that cannot be removed from the folder is an error.
func TestFolderKeepsItsFiles(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root for chattr")
	}
	chattr := disktest.Tool(t, "chattr")
	for name, step := range map[string]func(s *stepped) error{
		"names that the copy has no files for": does("names of no file"),
		"the original":                         func(s *stepped) error { return s.dropOriginal(&journal.Done{}) },
		"a text of the original": func(s *stepped) error {
			s.Old = s.Old[:1]
			return s.dropOriginal(&journal.Done{})
		},
		"the copy": undoes("copy"),
	} {
		s := begin(t, true)
		s.exchanged()
		s.put("tmp", "old more")
		require.NoError(t, os.Link(filepath.Join(s.dir, "more.orig"), filepath.Join(s.dir, "more")))
		require.NoError(t, os.Link(filepath.Join(s.dir, "vm"), filepath.Join(s.dir, ".vm.partial")))
		if out, err := exec.Command(chattr, "+a", s.dir).CombinedOutput(); err != nil {
			t.Skipf("the file system has no such attributes: %s", out)
		}
		t.Cleanup(func() { _ = exec.Command(chattr, "-a", s.dir).Run() })
		require.ErrorContains(t, step(s), "remove", name)
	}
}

// An exchange has names for all its files, and a journal of another plan has none.
func TestFilesOfAnExchange(t *testing.T) {
	t.Parallel()
	s := begin(t, false)
	names, err := Files(s.Held)
	require.NoError(t, err)
	require.Equal(t, []string{"vm", "vm.orig", "vm", ".vm.partial"}, names)
	h, err := journal.Begin(s.Dir, "other", filepath.Join(s.dir, "other"), journal.Exchange, []byte("{"), 0)
	require.NoError(t, err)
	defer h.Close()
	_, err = Files(h)
	require.ErrorIs(t, err, ondisk.ErrFormat)
}

// A manifest whose name is missing needs no further step.
func TestSealsAreBrokenOnce(t *testing.T) {
	t.Parallel()
	s := begin(t, true)
	for range 2 {
		require.NoError(t, does("seals of the source")(s))
		require.NoFileExists(t, filepath.Join(s.dir, "mf"))
	}
}

// source returns the files of the folder except those of the copy.
func (s *stepped) source() map[string]string {
	s.t.Helper()
	out := s.files()
	maps.DeleteFunc(out, func(n, _ string) bool { return strings.HasSuffix(n, ".partial") })
	return out
}

// An undo lists the removed files of the copy, and the journal of another disk starts nothing.
func TestUndoListsRemovedFiles(t *testing.T) {
	t.Parallel()
	s := begin(t, true)
	before := s.source()
	s.exchanged()
	d, err := Undo(t.Context(), s.Held, Options{})
	require.NoError(t, err)
	require.ElementsMatch(t, []string{".vm.partial"}, d.Removed)
	require.Equal(t, before, s.files())

	s = begin(t, true)
	s.Base = "another"
	_, err = begun(s.Held)
	require.ErrorContains(t, err, "name of the disk")
	s.Dir.Close()
	_, err = s.openToAsk(name("vm"))
	require.Error(t, err)
}

// TestPlansThatAreRefused requires an error for journals that no exchange writes.
func TestPlansThatAreRefused(t *testing.T) {
	t.Parallel()
	f := func(n, other string) file { return file{Name: name(n), Other: name(other), Inode: 1} }
	text := func(n, other string) file {
		x := f(n, other)
		x.Was, x.Kept = []byte{}, []byte{}
		return x
	}
	of := func(old, copied []file) plan { return plan{Old: old, New: copied} }
	sound := of([]file{text("a", "b"), f("c", "d")}, []file{f("a", "e"), f("c", "g")})
	many := plan{New: sound.New}
	many.Old = append(many.Old, sound.Old...)
	for i := range maxFiles {
		many.Old = append(many.Old, f(fmt.Sprint(i), fmt.Sprint(i, "x")))
	}
	long := strings.Repeat("n", journal.MaxName+1)
	for why, p := range map[string]plan{
		"":                           sound,
		"no files of the source":     of(nil, sound.New),
		"no files of the copy":       of(sound.Old, nil),
		"too many files":             many,
		"one file that names others": of([]file{f("a", "b")}, []file{f("a", "e"), f("c", "g")}),
		"another name of the copy":   of(sound.Old, []file{f("c", "e")}),
		"no name":                    of(sound.Old, []file{f("a", "e"), f("", "g")}),
		"the folder":                 of(sound.Old, []file{f("a", "e"), f("c", ".")}),
		"the folder above":           of(sound.Old, []file{f("a", "e"), f("..", "g")}),
		"a file of the disk left":    {Old: sound.Old, New: sound.New, Left: []file{f("d", "")}},
		"a path left":                {Old: sound.Old, New: sound.New, Left: []file{f("../x", "")}},
		"a path":                     of([]file{text("a", "b"), f("c", "/d")}, sound.New),
		"a long name":                of(sound.Old, []file{f("a", "e"), f(long, "g")}),
		"half a text": of(
			[]file{text("a", "b"), {Name: name("c"), Other: name("d"), Was: []byte{}}},
			sound.New,
		),
		"a name twice": of(sound.Old, []file{f("a", "b"), f("c", "g")}),
		"its own name": of(sound.Old, []file{f("a", "e"), f("c", "c")}),
	} {
		b, err := json.Marshal(p)
		require.NoError(t, err)
		got, err := readPlan(b)
		if why == "" {
			require.NoError(t, err)
			require.Len(t, got.New, 2)
			continue
		}
		require.ErrorIs(t, err, ondisk.ErrFormat, why)
	}
	_, err := readPlan([]byte("{"))
	require.ErrorIs(t, err, ondisk.ErrFormat)
	require.ErrorContains(t, err, "unexpected end of JSON")
}

// OriginalBeside ignores a journal of another original, and returns an error for a damaged journal.
func TestJournalsOfOtherOriginals(t *testing.T) {
	t.Parallel()
	beside := func(plan string, spoil func(path string)) (*journal.Work, error) {
		dir := t.TempDir()
		d, err := gate.OpenFolder(dir)
		require.NoError(t, err)
		defer d.Close()
		h, err := journal.Begin(d, "vm", filepath.Join(dir, "vm"), journal.Exchange, []byte(plan), 0)
		require.NoError(t, err)
		require.NoError(t, h.Close())
		spoil(filepath.Join(dir, "vm"+journal.Suffix))
		return OriginalBeside(d, "vm.orig")
	}
	nothing := func(string) {}
	const sound = `{"Old":[{"Name":"dm0=","Other":"dm0ub3JpZw=="}],"New":[{"Name":"dm0=","Other":"dnA="}]}`
	w, err := beside(sound, nothing)
	require.NoError(t, err)
	require.NotNil(t, w)
	_, err = beside("{", nothing)
	require.ErrorIs(t, err, ondisk.ErrFormat)
	for _, other := range []string{
		strings.ReplaceAll(sound, `"Name":"dm0="`, `"Name":"dm8="`), strings.Replace(sound, "dm0ub3JpZw==", "dm8=", 1),
	} {
		w, err = beside(other, nothing)
		require.NoError(t, err)
		require.Nil(t, w)
	}
	_, err = beside(strings.Repeat(" ", maxPlan)+sound, nothing)
	require.ErrorIs(t, err, ondisk.ErrLimit)
	_, err = beside(sound, func(path string) {
		disktest.WriteAt(t, path, 68<<10, []byte("?"))
	})
	require.ErrorContains(t, err, "SHA-256 of the plan")
}

// At each point of an exchange and of an undo, the names that a step writes belong to the exchange, unless another file
// gets one.
func TestStrangers(t *testing.T) {
	disktest.OnUnix(t, "names of open files")
	t.Parallel()
	require.Equal(t, "second name of the copy", steps[len(steps)-1].name, "an undo must hold the copy first")
	for _, several := range []bool{false, true} {
		for n := range 2 * len(steps) {
			s := begin(t, several)
			for of := range s.files() { // no later file gets the inode of one that is open
				f, err := os.Open(filepath.Join(s.dir, of))
				require.NoError(t, err)
				t.Cleanup(func() { f.Close() })
			}
			for i := range n + 1 {
				way := step.forwards
				if i >= len(steps) {
					way = step.backwards
				}
				require.NoError(t, way(steps[min(i, 2*len(steps)-1-i)], s.run))
			}
			require.NoError(t, s.stranger(), "after %d steps", n+1)
			for _, at := range []string{"vm", "data", "mf", "more", "vm.orig", "mf.orig"} {
				path := filepath.Join(s.dir, at)
				if !several && at != "vm" {
					continue
				}
				require.NoError(t, os.RemoveAll(path+".aside"))
				_ = os.Rename(path, path+".aside") // it may be missing
				s.foreignFile(at)
				require.ErrorContains(t, s.stranger(), fmt.Sprintf("%q %s", at, isForeign), "after %d steps", n+1)
				s.remove(at)
				_ = os.Rename(path+".aside", path)
			}
		}
	}
}

func (s step) forwards(x *run) error  { return x.durably(s, s.do) }
func (s step) backwards(x *run) error { return x.durably(s, s.undo) }
