package store

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"unicode/utf8"

	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/units"
)

// textSample is how much of a file shows whether it is a text, in bytes.
const textSample = 64 * units.KiB

// spareText refuses to write over what is no text, and over a script that is not as trueup wrote it.
func (p Place) spareText(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("%s %s: %w", p.Flag, p.Path, gate.PlainError(err))
	}
	defer f.Close()
	head, err := sample(f)
	switch {
	case err != nil:
		return fmt.Errorf("%s %s: %w", p.Flag, p.Path, gate.PlainError(err))
	case len(head) == 0:
		return nil
	case !isText(head):
		return p.refuse("would overwrite what is no text, maybe an image; name another file")
	case p.Role == Report && bytes.HasPrefix(head, []byte("#!")):
		return p.refuse("would overwrite a program; name another file")
	case p.Role == Script && !p.Force:
		return p.spareEdited(io.MultiReader(bytes.NewReader(head), f))
	}
	return nil
}

func sample(r io.Reader) ([]byte, error) { return io.ReadAll(io.LimitReader(r, textSample)) }

// spareEdited refuses to write over what a person may have worked on.
func (p Place) spareEdited(text io.Reader) error {
	mine, err := p.Mine(text)
	if err != nil {
		return fmt.Errorf("%s %s: %w", p.Flag, p.Path, gate.PlainError(err))
	}
	if !mine {
		return p.refuse("is not as trueup wrote it: it was edited, or is another's; name another file, or --force to " +
			"replace it")
	}
	return nil
}

// isText reports whether a file begins as texts do. A disk begins with code, or with zeros.
func isText(head []byte) bool {
	for cut := range utf8.UTFMax { // the sample may end within a character
		if cut <= len(head) && utf8.Valid(head[:len(head)-cut]) {
			return bytes.IndexByte(head, 0) < 0
		}
	}
	return false
}

// maxLinks is how many links a path leads through at most, as for the kernel.
const maxLinks = 40

var (
	ownDescriptor = map[string]int{"/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2}
	descriptorOf  = regexp.MustCompile(`^(?:/dev|/proc/(self|thread-self|[0-9]+)(?:/task/[0-9]+)?)/fd/([0-9]{1,6})$`)
)

// foreignDescriptor stands for any descriptor of another process.
const foreignDescriptor = 1 << 20

// descriptor returns which open file of this process a path stands for, such as 1 for /dev/stdout, through all links;
// -1 for none. Such a name is no place for a file, and what it leads to is not where the user writes to.
func descriptor(path string) int {
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	for range maxLinks {
		if n := namedDescriptor(path); n >= 0 {
			return n
		}
		dir, err := filepath.EvalSymlinks(filepath.Dir(path))
		if err != nil {
			return -1
		}
		path = filepath.Join(dir, filepath.Base(path))
		if n := namedDescriptor(path); n >= 0 {
			return n
		}
		to, err := os.Readlink(path)
		if err != nil {
			return -1
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(dir, to)
		}
		path = filepath.Clean(to)
	}
	return -1
}

func namedDescriptor(path string) int {
	if n, ok := ownDescriptor[path]; ok {
		return n
	}
	m := descriptorOf.FindStringSubmatch(path)
	if m == nil {
		return -1
	}
	if n, err := strconv.Atoi(m[2]); err == nil &&
		(m[1] == "" || m[1] == "self" || m[1] == "thread-self" || m[1] == strconv.Itoa(os.Getpid())) {
		return n
	}
	return foreignDescriptor
}

// Standard reports whether a name means standard output: -, /dev/stdout, /proc/self/fd/1 and whatever leads there.
func Standard(path string) bool { return path == "-" || descriptor(path) == 1 }
