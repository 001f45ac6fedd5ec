package disktest

import (
	"encoding/json"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// boundaryNumbers are the functions outside of package align that use a boundary as a number, each with its reason.
var boundaryNumbers = map[string]string{
	"internal/scan/results.jsonValue": "the number in the JSON",
	"internal/scan/results.lenses":    "the scale of a picture",
}

// All arithmetic with boundaries is in package align: no other one makes a boundary of a number, or a number of one.
func TestArithmeticWithBoundaries(t *testing.T) {
	exports, users := exported(t)
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
				ast.Inspect(d, func(n ast.Node) bool {
					id, ok := n.(*ast.Ident)
					if use, isFunc := info.Uses[id].(*types.Func); ok && isFunc && asNumber(use) {
						found[strings.TrimPrefix(p.ImportPath, module)+"."+declared(d)] = true
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

// asNumber reports whether a function makes a boundary of a number, or a number of one.
func asNumber(f *types.Func) bool {
	name := strings.TrimPrefix(f.FullName(), "("+module+"internal/align.Boundary)")
	return name == ".Bytes" || name == module+"internal/align.BoundaryOf"
}

// declared returns the name of a function, or "" of another declaration.
func declared(d ast.Decl) string {
	if f, ok := d.(*ast.FuncDecl); ok {
		return f.Name.Name
	}
	return ""
}

// exported returns the files of types of all packages that the program is made of, by import path, and the packages
// that import align.
func exported(t *testing.T) (files map[string]string, users []listed) {
	t.Helper()
	cmd := exec.Command("go", "list", "-export", "-deps", "-json=ImportPath,Dir,Imports,GoFiles,Export",
		"./cmd/trueup")
	cmd.Dir, cmd.Stderr = moduleRoot(t), os.Stderr
	out, err := cmd.Output()
	require.NoError(t, err)
	files = map[string]string{}
	for d := json.NewDecoder(strings.NewReader(string(out))); d.More(); {
		var p struct {
			listed
			Export string
		}
		require.NoError(t, d.Decode(&p))
		files[p.ImportPath] = p.Export
		for _, to := range p.Imports {
			if to == module+"internal/align" {
				users = append(users, p.listed)
			}
		}
	}
	return files, users
}
