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
	"slices"
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
	cmd := exec.Command("go", "list", "-export", "-deps", "-json=ImportPath,Dir,Imports,GoFiles,Export",
		"./cmd/trueup")
	cmd.Dir, cmd.Stderr = moduleRoot(t), os.Stderr
	out, err := cmd.Output()
	require.NoError(t, err)
	exports := map[string]string{} // files of types of all packages that the program is made of, by import path
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
