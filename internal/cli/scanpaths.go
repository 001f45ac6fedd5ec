package cli

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/scan/results"
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

// settlePlaces refuses to write over an image, over a file that the run itself needs, and where nothing can be written.
func (f *scanFlags) settlePlaces() (err error) {
	if err := f.settleOut(); err != nil {
		return err
	}
	if err := f.apart(); err != nil {
		return err
	}
	if f.catalog != "" {
		if _, err := (store.Place{Flag: "--catalog", Path: f.catalog, Role: store.Database}).Settle(); err != nil {
			return err
		}
	}
	if f.script == "" {
		return nil
	}
	f.script, err = store.Place{Flag: "--script", Path: f.script, Role: store.Script, Force: f.force, Mine: results.IsScript}.Settle()
	if err != nil {
		return err
	}
	return writable("--script", f.script)
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

// apart refuses one file for two purposes: one would overwrite the other.
func (f *scanFlags) apart() error {
	uses := [][2]string{{"--out", f.out}, {"--script", f.script}, {"--catalog", f.catalog}, {"--ignore", f.ignore}, {"--files-from", f.filesFrom}}
	for _, suffix := range []string{"-wal", "-shm", "-journal"} {
		if f.catalog != "" {
			uses = append(uses, [2]string{"--catalog", f.catalog + suffix}) // SQLite's own
		}
	}
	for n, written := range uses[:2] {
		for _, other := range uses[n+1:] {
			if written[1] != "" && other[1] != "" && sameFile(written[1], other[1]) {
				return ondisk.In(errUsage, "%s %s would overwrite %s %s; name another file", written[0], written[1], other[0], other[1])
			}
		}
	}
	return nil
}

// sameFile reports whether two paths lead to one file, or would when it is there.
func sameFile(a, b string) bool {
	there, err := os.Stat(a)
	if other, oerr := os.Stat(b); err == nil && oerr == nil {
		return os.SameFile(there, other)
	}
	here, err := os.Stat(filepath.Dir(a))
	other, oerr := os.Stat(filepath.Dir(b))
	return err == nil && oerr == nil && os.SameFile(here, other) && filepath.Base(a) == filepath.Base(b)
}
