package cli

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/units"
)

// maxList is the most that a list of paths has, in bytes: a million paths of usual length.
const maxList = 256 * units.MiB

// readList reads a list of paths from a file, or from standard input for "-".
func readList(name string, stdin io.Reader) ([]string, error) {
	in := stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, ondisk.In(errUsage, "--files-from: %w", err)
		}
		defer f.Close()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, maxList+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("--files-from %s: %w", name, err)
	case int64(len(text)) > maxList:
		return nil, fmt.Errorf("--files-from %s: %w of %d bytes; give the folders instead", name, ondisk.ErrLimit, maxList)
	}
	return splitList(text), nil
}

// splitList divides a list at its NULs where it has any, else at line ends. A NUL is in no path, a line end can be. A list in which all
// lines end in CR LF was written on Windows; where only some do, the CRs are of the names.
func splitList(text []byte) []string {
	sep := []byte{'\n'}
	if bytes.IndexByte(text, 0) >= 0 {
		sep[0] = 0
	}
	if lines := bytes.Count(text, sep); sep[0] == '\n' && lines > 0 && lines == bytes.Count(text, []byte("\r\n")) {
		sep = []byte("\r\n")
	}
	var out []string
	for part := range bytes.SplitSeq(text, sep) {
		if len(part) > 0 {
			out = append(out, string(part))
		}
	}
	return out
}

// spareOwn refuses to write over an image, over a file that the run itself needs, and where nothing can be written.
func (f *scanFlags) spareOwn() error {
	written := []ownFile{{"--out", f.out}, {"--script", f.script}}
	for n, w := range written {
		if w.path == "" {
			continue
		}
		if err := spareImage(w.flag, w.path); err != nil {
			return err
		}
		for _, other := range append(slices.Clone(written[:n]), ownFile{"--catalog", f.catalog}, ownFile{"--ignore", f.ignore}, ownFile{"--files-from", f.filesFrom}) {
			if sameFile(w.path, other.path) {
				return ondisk.In(errUsage, "%s and %s are one file, %s; name two", other.flag, w.flag, w.path)
			}
		}
	}
	if f.script == "" {
		return nil
	}
	return writable("--script", f.script)
}

// ownFile is the file that a flag names.
type ownFile struct{ flag, path string }

// sameFile tells whether two names lead to one file, or would.
func sameFile(a, b string) bool {
	if a == "" || b == "" {
		return false
	}
	here, err1 := os.Stat(a)
	there, err2 := os.Stat(b)
	if err1 == nil && err2 == nil {
		return os.SameFile(here, there)
	}
	here, err1 = os.Stat(filepath.Dir(a))
	there, err2 = os.Stat(filepath.Dir(b))
	return err1 == nil && err2 == nil && os.SameFile(here, there) && filepath.Base(a) == filepath.Base(b)
}

// again are the flags that make another run choose and accept the same images, for the commands that come next.
func (f *scanFlags) again() string {
	var out []string
	add := func(flag string, values ...string) {
		for _, v := range values {
			if v != "" {
				out = append(out, flag+" "+report.ShellQuote(v))
			}
		}
	}
	add("--include", f.include...)
	add("--exclude", f.exclude...)
	add("--ignore", f.ignore)
	add("--catalog", f.catalog)
	return strings.Join(out, " ")
}

// spareImage refuses to write a report over what is an image, or has the name of one.
func spareImage(flag, path string) error {
	st, err := os.Stat(path)
	switch {
	case path == "" || err != nil:
		return nil //nolint:nilerr // there is nothing to overwrite
	case !st.Mode().IsRegular():
		return ondisk.In(errUsage, "%s %s is no regular file; name another", flag, path)
	}
	id, err := image.Identify(path, nil)
	if err != nil {
		return fmt.Errorf("%s %s: %w", flag, path, err)
	}
	if (id.Kind != image.Other && id.Kind != image.Bare) || (image.Named(path, st.Size()) && st.Size() > 0) {
		return ondisk.In(errUsage, "%s %s would overwrite an image; name another file", flag, path)
	}
	return nil
}
