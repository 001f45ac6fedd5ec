package main

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// mutant is one deletion.
type mutant struct {
	id       int
	room     string // path of the package below internal
	in       string // function
	kind     string
	text     string // deleted source, on one line
	code     string // digest of the source of the function
	path     string
	from, to int // lines
}

// key identifies a mutant while its source stays the same, even if its lines move.
func (m mutant) key() string { return fmt.Sprintf("%s %s %s: %s", m.room, m.in, m.kind, m.text) }

// The kinds of mutants.
const (
	kindCheck   = "check"   // a condition before the return of a new error is false
	kindPassed  = "passed"  // a returned error is dropped
	kindCall    = "call"    // a flush, lock or step of the publication is not made
	kindAppend  = "append"  // an element of a list is omitted
	kindBranch  = "branch"  // another condition is false
	kindOperand = "operand" // an operand of && or || is omitted
)

// ordered lists calls of which only the effect counts.
var ordered = []string{
	"Adopt", "Chmod", "Discard", "Enter", "Exchange", "Fchmod", "FcntlFlock", "Finish", "Flush", "Fsync", "Hold",
	"Link", "Linkat", "Lock", "LockByte", "LockWaiting", "Publish", "Punch", "Put", "Remove", "Rename", "RenameNew",
	"Renameat", "Renameat2", "Reread", "RereadTable", "Sync", "SyncFolder", "Truncate", "Unlinkat", "WriteAt", "Zero",
	"drop", "flush", "keep", "leave", "link", "lock", "permit", "removeReplaced", "rename", "retract", "syncFolder",
	"take", "unlink", "unpublish",
}

// roomIDs separates the numbers of the rooms, so that a change in one does not rebuild the others.
const roomIDs = 10000

// edit is an insertion into a source file.
type edit struct {
	off  int
	text string
}

// source is a file with its mutants.
type source struct {
	path  string
	text  string
	edits []edit
	skip  map[string]bool // keys of mutants that do not compile

	fset  *token.FileSet
	room  room
	base  int // offset of the room's first mutant
	in    string
	code  string
	found *[]mutant
	names map[string]int    // number of uses of a key
	inner map[ast.Expr]bool // parts of a chain of operands
}

// find reads the files of the room with number n and appends their mutants to found.
func find(root string, n int, r room, skip map[string]bool, found *[]mutant) ([]*source, error) {
	dir := filepath.Join(root, "internal", r.path)
	pkg, err := build.ImportDir(dir, 0)
	if err != nil {
		return nil, err
	}
	var out []*source
	before := len(*found)
	names, base := map[string]int{}, n*roomIDs-before
	for _, name := range pkg.GoFiles {
		if fits, err := filepath.Match(cmp.Or(r.files, "*"), name); err != nil || !fits {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		s := &source{
			path: filepath.Join(dir, name), text: string(text), skip: skip, room: r, base: base, found: found,
			names: names, inner: map[ast.Expr]bool{}, fset: token.NewFileSet(),
		}
		if err := s.parse(); err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	if len(*found) == before {
		return nil, fmt.Errorf("room %q of main.go has no mutants in its files %q", r.path, cmp.Or(r.files, "*"))
	}
	return out, nil
}

// parse finds the mutants of a file.
func (s *source) parse() error {
	file, err := parser.ParseFile(s.fset, s.path, s.text, 0)
	if err != nil {
		return err
	}
	for _, d := range file.Decls {
		if d, ok := d.(*ast.FuncDecl); ok && d.Body != nil {
			s.in = d.Name.Name
			if d.Recv != nil {
				s.in = strings.TrimLeft(s.source(d.Recv.List[0].Type), "*") + "." + s.in
			}
			s.code = fmt.Sprintf("%x", sha256.Sum256([]byte(s.source(d))))[:16]
			s.function(d.Type, d.Body)
		}
	}
	if len(s.edits) > 0 {
		s.edits = append(s.edits, edit{s.offset(file.Name.End()), "; import mutant \"" + switchPath + "\""})
	}
	return nil
}

// function finds the mutants of a function or a literal of one.
func (s *source) function(t *ast.FuncType, body *ast.BlockStmt) {
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			s.function(n.Type, n.Body)
			return false
		case *ast.IfStmt:
			s.condition(t, n.Cond, n.Body.List)
		case *ast.SwitchStmt:
			if n.Tag == nil { // the cases of others are values
				s.cases(t, n)
			}
		case *ast.BinaryExpr:
			if s.room.logic {
				s.operands(n)
			}
		case *ast.CallExpr:
			s.call(n)
		}
		return true
	})
}

// cases are the branches of a switch.
func (s *source) cases(t *ast.FuncType, n *ast.SwitchStmt) {
	for _, c := range n.Body.List {
		c := c.(*ast.CaseClause)
		for _, cond := range c.List {
			s.condition(t, cond, c.Body)
		}
	}
}

// condition makes the condition of a branch false.
func (s *source) condition(t *ast.FuncType, cond ast.Expr, body []ast.Stmt) {
	fails := refuses(t, body)
	if !fails && !s.room.logic {
		return
	}
	kind := kindBranch
	if fails {
		kind = kindCheck
	}
	if b, ok := cond.(*ast.BinaryExpr); ok && fails && b.Op == token.NEQ && s.source(b.Y) == "nil" {
		kind = kindPassed
	}
	s.wrap(kind, "if "+s.source(cond), cond, "mutant.Never(%d, ")
	if or, ok := cond.(*ast.BinaryExpr); ok && fails && !s.room.logic && or.Op == token.LOR {
		s.operands(or)
	}
}

// operands records a mutant for each operand of a chain of || or &&: the chain without this operand.
func (s *source) operands(b *ast.BinaryExpr) {
	with := map[token.Token]string{token.LOR: "mutant.Never(%d, ", token.LAND: "mutant.Always(%d, "}[b.Op]
	if with == "" || s.inner[b] {
		return
	}
	var each func(e ast.Expr)
	each = func(e ast.Expr) {
		if x, ok := e.(*ast.BinaryExpr); ok && x.Op == b.Op {
			s.inner[x] = true
			each(x.X)
			each(x.Y)
			return
		}
		s.wrap(kindOperand, s.source(e)+" of "+s.source(b), e, with)
	}
	each(b)
}

// call adds a mutant that omits an append, or a call of which only the effect counts.
func (s *source) call(c *ast.CallExpr) {
	name := ""
	switch f := c.Fun.(type) {
	case *ast.Ident:
		if name = f.Name; name == "close" {
			return // of a channel
		}
	case *ast.SelectorExpr:
		name = f.Sel.Name
		if strings.HasSuffix(s.source(f.X), "mu") {
			return // the race detector covers mutexes
		}
	}
	switch {
	case name == "append" && len(c.Args) > 1:
		s.wrap(kindAppend, s.source(c), c, "mutant.Without(%d, "+strings.ReplaceAll(s.source(c.Args[0]), "%",
			"%%")+", ")
	case slices.Contains(ordered, name) && !s.room.pure:
		s.wrap(kindCall, s.source(c), c.Fun, "mutant.Skip(%d, ")
	}
}

// refuses reports whether a branch ends in the return of an error.
func refuses(t *ast.FuncType, body []ast.Stmt) bool {
	if t.Results == nil || len(body) == 0 {
		return false
	}
	last, ok := t.Results.List[len(t.Results.List)-1].Type.(*ast.Ident)
	if !ok || last.Name != "error" {
		return false
	}
	ret, ok := body[len(body)-1].(*ast.ReturnStmt)
	if !ok || len(ret.Results) == 0 {
		return ok
	}
	none, ok := ret.Results[len(ret.Results)-1].(*ast.Ident)
	return !ok || none.Name != "nil"
}

// wrap records a mutant and the edits that make it switchable.
func (s *source) wrap(kind, text string, e ast.Expr, before string) {
	m := mutant{
		id: s.base + len(*s.found) + 1, room: s.room.path, in: s.in, kind: kind, text: text, path: s.path, code: s.code,
		from: s.fset.Position(e.Pos()).Line, to: s.fset.Position(e.End()).Line,
	}
	s.names[m.key()]++
	if n := s.names[m.key()]; n > 1 {
		m.text = fmt.Sprintf("%s (%d)", m.text, n)
	}
	if s.skip[m.key()] {
		return
	}
	*s.found = append(*s.found, m)
	s.edits = append(s.edits, edit{s.offset(e.Pos()), fmt.Sprintf(before, m.id)}, edit{s.offset(e.End()), ")"})
}

func (s *source) offset(p token.Pos) int { return s.fset.Position(p).Offset }

// source is the text of a node on one line.
func (s *source) source(n ast.Node) string {
	return strings.Join(strings.Fields(s.text[s.offset(n.Pos()):s.offset(n.End())]), " ")
}

// mutated is the text of the file with a switch at each mutant.
func (s *source) mutated() string {
	edits := slices.Clone(s.edits)
	// Of two at the same place, the later one is the inner one.
	slices.SortStableFunc(edits, func(a, b edit) int { return cmp.Compare(a.off, b.off) })
	var out strings.Builder
	from := 0
	for _, e := range edits {
		out.WriteString(s.text[from:e.off])
		out.WriteString(e.text)
		from = e.off
	}
	out.WriteString(s.text[from:])
	return out.String()
}
