package library

import (
	"slices"
	"strings"
)

// Names are the ways to write a path that globs are held against: as it is, and as it is below each of the roots that it lies in. An empty
// root has none.
func Names(path string, roots []string) []string {
	out := []string{path}
	for _, root := range roots {
		if root == "" {
			continue
		}
		root = strings.TrimRight(root, "/") + "/"
		if below, ok := strings.CutPrefix(path, root); ok && below != "" && !slices.Contains(out, below) {
			out = append(out, below)
		}
	}
	return out
}

// MatchAny tells whether the glob is about one of the names of a path, as Names gives them.
func (g *Glob) MatchAny(names []string) bool {
	if g.name { // the last name is the same in all
		return g.Match(names[0])
	}
	return slices.ContainsFunc(names, g.Match)
}
