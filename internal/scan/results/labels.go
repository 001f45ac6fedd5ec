package results

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// Labels are keys with values that a user gives rows, such as the host or the datastore. A row that several hosts have
// seen has the values of all.
type Labels map[string][]string

// Limits of labels.
const (
	maxLabels = 16
	maxKey    = 64   // bytes
	maxValue  = 256  // bytes
	maxValues = 4096 // of one label, in a row of many hosts
)

// ParseLabel divides KEY=VALUE.
func ParseLabel(s string) (key, value string, err error) {
	key, value, ok := strings.Cut(s, "=")
	if !ok {
		return "", "", fmt.Errorf("%.64q, want KEY=VALUE, such as host=esx1", s)
	}
	return key, value, Labels{key: {value}}.Check()
}

// ParseLabels makes labels of a list of KEY=VALUE.
func ParseLabels(list []string) (Labels, error) {
	out := Labels{}
	for _, s := range list {
		key, value, err := ParseLabel(s)
		if err != nil {
			return nil, err
		}
		if _, again := out[key]; again {
			return nil, fmt.Errorf("%.64q is given twice", key)
		}
		out[key] = []string{value}
	}
	return out, out.Check()
}

// Check returns what is wrong with labels.
func (l Labels) Check() error {
	if len(l) > maxLabels {
		return fmt.Errorf("%d labels, want at most %d", len(l), maxLabels)
	}
	for key, values := range l {
		odd := func(r rune) bool {
			return r != '_' && r != '-' && r != '.' && (r < 'a' || r > 'z') && (r < '0' || r > '9')
		}
		if key == "" || len(key) > maxKey || strings.ContainsFunc(key, odd) {
			return fmt.Errorf("the key %.80q, want 1 to %d of a-z, 0-9, dot, dash and underscore", key, maxKey)
		}
		if len(values) == 0 || len(values) > maxValues {
			return fmt.Errorf("%d values of %q, want 1 to %d", len(values), key, maxValues)
		}
		for _, v := range values {
			if v == "" || len(v) > maxValue || !utf8.ValidString(v) {
				return fmt.Errorf("the value %.80q of %q, want 1 to %d bytes of UTF-8", v, key, maxValue)
			}
		}
	}
	return nil
}

// Merge returns the labels of a row that two runs have seen.
func (l Labels) Merge(other Labels) Labels {
	out := maps.Clone(l)
	if out == nil {
		out = Labels{}
	}
	for key, values := range other {
		all := slices.Concat(out[key], values)
		slices.Sort(all)
		all = slices.Compact(all)
		out[key] = all[:min(len(all), maxValues)]
	}
	return out
}

// String lists the labels, sorted.
func (l Labels) String() string {
	var out []string
	for _, key := range slices.Sorted(maps.Keys(l)) {
		for _, v := range l[key] {
			out = append(out, key+"="+v)
		}
	}
	return strings.Join(out, " ")
}

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
