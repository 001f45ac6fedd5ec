package scan

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/scan/results"
	"github.com/trueup/trueup/internal/shell"
	"github.com/trueup/trueup/internal/units"
)

// maxList is the most that a list of paths has, in bytes: a million paths of usual length.
const maxList = 256 * units.MiB

// ReadList reads the paths of --files-from from a file, or from stdin for "-".
func ReadList(name string, stdin io.Reader) ([]string, error) {
	in := stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, ondisk.In(ondisk.ErrUsage, "--files-from: %w", err)
		}
		defer f.Close()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, maxList+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("--files-from %s: %w", name, err)
	case int64(len(text)) > maxList:
		return nil, fmt.Errorf("--files-from %s: %w of %d bytes; give the folders instead", name, ondisk.ErrLimit,
			maxList)
	}
	return splitList(bytes.TrimPrefix(text, []byte("\ufeff"))), nil
}

// checkPaths refuses addresses, which may have secrets, so that a message shows only those whose secrets it knows.
func checkPaths(paths []string) error {
	if err := realign.CheckAddresses(paths); err != nil {
		return err
	}
	for n, p := range paths {
		low := strings.ToLower(p)
		if err := realign.Local(p, "trueup "+results.Command); err != nil {
			return err
		}
		if !strings.Contains(low, "://") && !strings.Contains(low, "http:/") && !strings.Contains(low, "https:/") {
			continue
		}
		if _, err := os.Lstat(p); err != nil {
			return ondisk.In(ondisk.ErrUsage, "PATH %d, of arguments and list, is an address; scan reads files and "+
				"folders", n+1)
		}
	}
	return nil
}

// splitList divides a list at its NULs where it has any, else at line ends. A NUL is in no path, a line end can be. A
// list in which all lines end in CR LF was written on Windows; where only some do, the CRs are of the names.
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

// ReadIgnore reads the list of accepted images of --ignore. An empty name is an empty list.
func ReadIgnore(name string) (*results.Ignore, error) {
	if name == "" {
		return results.ParseIgnore(nil)
	}
	in, err := os.Open(name)
	if err != nil {
		return nil, ondisk.In(ondisk.ErrUsage, "--ignore: %w", err)
	}
	defer in.Close()
	text, err := io.ReadAll(io.LimitReader(in, results.MaxIgnore+1))
	if err != nil {
		return nil, fmt.Errorf("--ignore %s: %w", name, err)
	}
	list, err := results.ParseIgnore(text)
	if _, wrong := errors.AsType[*results.IgnoreError](err); wrong {
		return nil, ondisk.In(ondisk.ErrUsage, "--ignore %s: %w", name, err)
	}
	return list, err
}

// ReadTemplate reads the template of --template, which the user trusts.
func ReadTemplate(name string) (results.Format, error) {
	in, err := os.Open(name)
	if err != nil {
		return results.Format{}, ondisk.In(ondisk.ErrUsage, "--template: %w", err)
	}
	defer in.Close()
	text, err := io.ReadAll(io.LimitReader(in, results.MaxTemplate+1))
	switch {
	case err != nil:
		return results.Format{}, fmt.Errorf("--template: %w", err)
	case len(text) > results.MaxTemplate:
		return results.Format{}, ondisk.In(ondisk.ErrUsage, "--template %s has more than %s, the most that is read",
			name, units.Format(results.MaxTemplate))
	case !utf8.Valid(text):
		return results.Format{}, ondisk.In(ondisk.ErrUsage, "--template %s is no text in UTF-8; name a template", name)
	}
	return results.ParseTemplate(name, string(text))
}

// Wanted returns which files the globs of --include and --exclude leave, for Options; nil: all.
func Wanted(include, exclude []string) (func(rel, shown string) bool, error) {
	in, err := globs("--include", include)
	if err != nil {
		return nil, err
	}
	ex, err := globs("--exclude", exclude)
	if err != nil {
		return nil, err
	}
	if len(in)+len(ex) == 0 {
		return nil, nil
	}
	matches := func(gs []*shell.Glob, names []string) bool {
		return slices.ContainsFunc(gs, func(g *shell.Glob) bool { return g.MatchAny(names) })
	}
	return func(rel, shown string) bool {
		names := []string{rel, shown}
		return (len(in) == 0 || matches(in, names)) && !matches(ex, names)
	}, nil
}

// globs parses the globs of a flag.
func globs(flag string, texts []string) (out []*shell.Glob, err error) {
	for _, text := range texts {
		g, err := shell.ParseGlob(text)
		if err != nil {
			return nil, ondisk.In(ondisk.ErrUsage, "%s %q, %w", flag, text, err)
		}
		out = append(out, g)
	}
	return out, nil
}
