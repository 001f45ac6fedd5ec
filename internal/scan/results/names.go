package results

import (
	"slices"
	"strings"
)

// Roots are the paths that a scan was given, to be asked for each row: there can be as many of them as rows.
type Roots map[string]bool // without slashes at their ends

// NewRoots takes paths as the user wrote them. Empty ones are dropped.
func NewRoots(paths []string) Roots {
	r := Roots{}
	for _, p := range paths {
		if p != "" {
			r[strings.TrimRight(p, "/")] = true
		}
	}
	return r
}

// Has reports whether a path is one of them, or lies below one.
func (r Roots) Has(path string) bool {
	if r[path] {
		return true
	}
	for n := range len(path) {
		if path[n] == '/' && r[path[:n]] {
			return true
		}
	}
	return false
}

// pathNames returns the ways to write a path that globs are matched against: as it is, and as it is below each of the
// roots that it lies in.
func pathNames(path string, roots Roots) []string {
	out := []string{path}
	for n := range len(path) {
		if path[n] != '/' || !roots[path[:n]] {
			continue
		}
		if below := path[n+1:]; below != "" && !slices.Contains(out, below) {
			out = append(out, below)
		}
	}
	return out
}
