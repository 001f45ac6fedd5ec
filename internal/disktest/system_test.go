package disktest

import (
	"encoding/json"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// openers may touch the file system, and starters may start goroutines. Those of cli wait for a signal and for standard
// input, read files that flags name, and make the folder of pictures; progress prints once a second; sandbox reads what
// /proc says about its workers, tries what a worker may not open, and waits for processes; nbd listens, and serves each
// client; unpack makes the file into which images are unpacked; trial makes temporary files of QEMU and waits for it;
// handover makes and removes DEST, and makes a folder for the monitor of QEMU;
// self starts programs, and opinion looks for them, starts them, two of them side by side, and makes a folder for them;
// in a fleet, engine reads keys, locks its store and waits for its server, queue keeps small files, work starts trueup
// and waits for it, fleetcmd reads worklists and keeps a report, and web reads its token, listens and follows the
// queue; bench makes its scratch file, starts fio, and reads what /proc and /sys say about the storage; disktest is for
// tests.
var (
	openers = []string{
		"internal/sys", "internal/image/store", "internal/image/gate",
		"internal/image/unpack", "internal/scan",
		"internal/scan/sandbox", "internal/bench", "internal/cli",
		"internal/nbd", "internal/self", "internal/trial", "internal/opinion", "internal/handover",
		"fleet/engine", "fleet/fleetcmd", "fleet/queue", "fleet/web",
		"fleet/work",
		"internal/disktest", "internal/disktest/filetest", "internal/disktest/forge", "internal/disktest/imagetest",
		"internal/disktest/pagetest", "internal/disktest/oddfs", "internal/disktest/mutants",
		"internal/disktest/hostile", "internal/disktest/outcome",
	}
	starters = []string{
		"internal/diskcopy", "internal/scan", "internal/scan/sandbox", "internal/progress", "internal/cli",
		"internal/nbd", "internal/self", "internal/trial", "internal/opinion", "internal/disktest",
		"fleet/engine", "fleet/queue", "fleet/web", "fleet/work",
	}
)

// opens are the functions that open or change a file by its name, by package.
var opens = map[string][]string{
	"os": {
		"Open", "OpenFile", "OpenInRoot", "OpenRoot", "Create", "CreateTemp", "ReadFile", "WriteFile", "ReadDir",
		"Mkdir", "MkdirAll", "MkdirTemp", "Remove", "RemoveAll", "Rename", "Link", "Symlink", "Truncate", "DirFS",
		"Chtimes", "Chmod", "CopyFS",
	},
	"golang.org/x/sys/unix": {
		"Open", "Openat", "Openat2", "Creat", "Link", "Linkat", "Rename", "Renameat", "Renameat2", "Unlink", "Unlinkat",
		"Mkdir", "Mkdirat", "Symlink", "Symlinkat", "Truncate", "Mknod", "Mknodat", "Mkfifo", "Mkfifoat",
	},
	"syscall": {
		"Open", "Openat", "Creat", "Link", "Rename", "Renameat", "Unlink", "Unlinkat", "Mkdir",
		"Truncate",
	},
	module + "internal/sys": {"OpenFolder", "OpenDirect"},
	"path/filepath":         {"Walk", "WalkDir", "Glob"},
	"net":                   {"Dial", "DialTimeout", "Listen"},
	"os/exec":               {"Command", "CommandContext"},
}

// interruptible are calls on open files and on what stands beside them that a signal can interrupt, as it can those
// that open. Only sys makes them: it repeats them.
var interruptible = []string{
	"Access", "Chmod", "Chown", "Close", "CopyFileRange", "Dup", "Dup2", "Dup3", "Faccessat", "Faccessat2", "Fallocate",
	"Fchmod", "Fchmodat", "Fchown", "FcntlFlock", "FcntlInt", "Fdatasync", "Fgetxattr", "Flock", "Fstat", "Fstatat",
	"Fstatfs", "Fsync", "Ftruncate", "Futimes", "Getdents", "IoctlGetInt", "IoctlSetInt", "Lseek", "Lstat", "Pread",
	"Preadv", "Pwrite", "Pwritev", "Read", "ReadDirent", "Readlinkat", "Readv", "Seek", "Sendfile", "Stat", "Statfs",
	"Statx", "SyncFileRange", "Syncfs", "Utimes", "UtimesNanoAt", "Write", "Writev",
}

// forbidden lists what a package does that only few may do: "opens os.Open", "starts a goroutine".
func forbidden(t *testing.T, fset *token.FileSet, file *ast.File) map[string]token.Position {
	t.Helper()
	names := map[string]string{} // of imports in this file -> path
	for _, i := range file.Imports {
		path, err := strconv.Unquote(i.Path.Value)
		require.NoError(t, err)
		name := path[strings.LastIndex(path, "/")+1:]
		if i.Name != nil {
			name = i.Name.Name
		}
		require.NotEqual(t, ".", name, "a dot import hides what is called")
		names[name] = path
	}
	found := map[string]token.Position{}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			found["goroutine"] = fset.Position(n.Pos())
		case *ast.SelectorExpr:
			pkg, ok := n.X.(*ast.Ident)
			if n.Sel.Name == "Go" { // sync.WaitGroup.Go, errgroup.Group.Go
				found["goroutine"] = fset.Position(n.Pos())
			}
			if !ok || pkg.Obj != nil {
				break
			}
			path := names[pkg.Name]
			opening := slices.Contains(opens[path], n.Sel.Name)
			if opening {
				found["file"] = fset.Position(n.Pos())
			}
			kernel := path == "golang.org/x/sys/unix" || path == "syscall" // sys stands in for it
			if kernel && (opening || slices.Contains(interruptible, n.Sel.Name)) {
				found["interruptible"] = fset.Position(n.Pos())
			}
		}
		return true
	})
	return found
}

func TestFewOpenFilesOrStartGoroutines(t *testing.T) {
	counts := map[string]int{}
	for _, p := range packages(t) {
		for _, name := range p.GoFiles {
			fset := token.NewFileSet()
			file, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, 0)
			require.NoError(t, err)
			found := forbidden(t, fset, file)
			for what, may := range map[string][]string{
				"file": openers, "goroutine": starters,
				"interruptible": {"internal/sys", "internal/disktest/oddfs", "internal/disktest/hostile"},
			} {
				at, ok := found[what]
				if !ok {
					continue
				}
				counts[what+" "+p.ImportPath]++
				require.Contains(t, may, p.ImportPath,
					"%s: only these packages may open files, start goroutines or make calls that a signal "+
						"can interrupt", at)
			}
		}
	}
	// The search finds what is known to be there.
	for _, known := range []string{
		"file internal/image/gate", "file internal/image/store", "goroutine internal/diskcopy",
		"goroutine internal/cli", "goroutine internal/scan/sandbox", "interruptible internal/sys",
	} {
		require.Positive(t, counts[known], "%s in %v", known, slices.Collect(maps.Keys(counts)))
	}
}

// A further system is one more file of sys. The files that this system omits count too.
func TestOnlySysAsksTheSystem(t *testing.T) {
	found := map[string]int{}
	for _, p := range packages(t) {
		names, err := filepath.Glob(filepath.Join(p.Dir, "*.go"))
		require.NoError(t, err)
		for _, name := range names {
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
			require.NoError(t, err)
			for _, i := range file.Imports {
				path, err := strconv.Unquote(i.Path.Value)
				require.NoError(t, err)
				if strings.HasSuffix(name, "_test.go") ||
					path != "syscall" && !strings.HasPrefix(path, "golang.org/x/sys/") {
					continue
				}
				found[p.ImportPath]++
				// Package sys has a file for each system, a sandbox has the layers of one system, and disktest
				// is for tests.
				asks := p.ImportPath == "internal/sys" || strings.HasPrefix(p.ImportPath, "internal/disktest") ||
					p.ImportPath == "internal/scan/sandbox" && strings.HasSuffix(name, "_linux.go")
				require.True(t, asks, "%s imports %s: ask package sys", name, path)
			}
		}
	}
	for _, known := range []string{"internal/sys", "internal/scan/sandbox"} {
		require.Positive(t, found[known])
	}
}

// The Makefile names the packages that the race detector watches in full.
func TestRaceDetectorWatchesStarters(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(moduleRoot(t), "Makefile"))
	require.NoError(t, err)
	raced := func(list string) []string {
		_, rest, found := strings.Cut(string(text), "\n"+list+" := ")
		require.True(t, found)
		line, _, _ := strings.Cut(rest, "\n")
		return strings.Fields(line)
	}
	for _, p := range starters {
		if name, ofFleet := strings.CutPrefix(p, "fleet/"); ofFleet {
			require.Contains(t, raced("RACED_FLEET"), name)
			continue
		}
		require.Contains(t, raced("RACED"), strings.TrimPrefix(p, "internal/"))
	}
}

func TestForbiddenCallsAreFound(t *testing.T) {
	for source, want := range map[string][]string{
		`import "os"; func f() { os.Open("x") }`:                                    {"file"},
		`import "os"; var open = os.OpenFile`:                                       {"file"},
		`import sys "golang.org/x/sys/unix"; func f() { sys.Openat(0, "x", 0, 0) }`: {"file", "interruptible"},
		`import "golang.org/x/sys/unix"; func f() { unix.Fsync(0) }`:                {"interruptible"},
		`import "syscall"; func f() { syscall.Flock(0, 0) }`:                        {"interruptible"},
		`import "` + module + `internal/sys"; func f() { sys.OpenFolder("x") }`:     {"file"},
		`import "` + module + `internal/sys"; func f() { sys.Lstat("x") }`:          nil,
		`import "os/exec"; func f() { exec.Command("x") }`:                          {"file"},
		`func f() { go f() }`: {"goroutine"},
		`import "sync"; func f() { var g sync.WaitGroup; g.Go(f) }`:              {"goroutine"},
		`import "os"; func f() { os.Getenv("x") }`:                               nil,
		`type s struct{}; func (s) Open() {}; func f() { os := s{}; os.Open() }`: nil,
		`import "example.org/os"; func f() { os.Open("x") }`:                     nil,
	} {
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, "x.go", "package x; "+source, 0)
		require.NoError(t, err)
		require.ElementsMatch(t, want, slices.Collect(maps.Keys(forbidden(t, fset, file))), source)
	}
}

// boundaryNumbers lists the functions outside package align that use a boundary as a number, each with its reason.
var boundaryNumbers = map[string]string{
	"internal/scan/results.jsonValue": "the number in the JSON",
	"internal/scan/results.lenses":    "the scale of a picture",
}

// All arithmetic with boundaries is in package align: no other package converts between a boundary and a number.
func TestArithmeticWithBoundaries(t *testing.T) {
	cmd := exec.Command("go", "list", "-export", "-deps", "-json=ImportPath,Dir,Imports,GoFiles,Export",
		"./cmd/trueup")
	cmd.Dir, cmd.Stderr = moduleRoot(t), os.Stderr
	out, err := cmd.Output()
	require.NoError(t, err)
	exports := map[string]string{} // files with types of all packages of the program, by import path
	var users []listed             // packages that import align
	for d := json.NewDecoder(strings.NewReader(string(out))); d.More(); {
		var p struct {
			listed
			Export string
		}
		require.NoError(t, d.Decode(&p))
		exports[p.ImportPath] = p.Export
		if slices.Contains(p.Imports, module+"internal/align") {
			users = append(users, p.listed)
		}
	}
	require.NotEmpty(t, users)
	set := token.NewFileSet()
	imports := importer.ForCompiler(set, "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(exports[path])
	})
	found := map[string]bool{}
	for _, p := range users {
		var files []*ast.File
		for _, name := range p.GoFiles {
			f, err := parser.ParseFile(set, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			require.NoError(t, err)
			files = append(files, f)
		}
		info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
		_, err := (&types.Config{Importer: imports}).Check(p.ImportPath, set, files, info)
		require.NoError(t, err)
		for _, f := range files {
			for _, d := range f.Decls {
				declared := "" // outside of functions
				if f, ok := d.(*ast.FuncDecl); ok {
					declared = f.Name.Name
				}
				ast.Inspect(d, func(n ast.Node) bool {
					id, ok := n.(*ast.Ident)
					use, isFunc := info.Uses[id].(*types.Func)
					if !ok || !isFunc {
						return true
					}
					name := strings.TrimPrefix(use.FullName(), "("+module+"internal/align.Boundary)")
					if name == ".Bytes" || name == module+"internal/align.BoundaryOf" {
						found[strings.TrimPrefix(p.ImportPath, module)+"."+declared] = true
					}
					return true
				})
			}
		}
	}
	for name := range found {
		require.Contains(t, boundaryNumbers, name, "%s uses a boundary as a number", name)
	}
	require.Len(t, found, len(boundaryNumbers), "a row of the table is of no use any more")
}
