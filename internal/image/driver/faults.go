package driver

import (
	"fmt"

	"github.com/trueup/trueup/internal/ondisk"
)

// Faults counts the faults in the tables of an image by kind, and keeps the first of each kind. A kind completes a
// number: "blocks at a place in use". The zero value has none.
type Faults struct {
	File   string // name of the file in work, of an image in several
	counts map[string]int64
	firsts map[string]string
}

// Add counts a fault.
func (f *Faults) Add(kind, format string, args ...any) {
	if f.counts == nil {
		f.counts, f.firsts = map[string]int64{}, map[string]string{}
	}
	if f.counts[kind]++; f.counts[kind] == 1 {
		f.firsts[kind] = f.Where() + fmt.Sprintf(format, args...)
	}
}

// Where names the file in work at the start of a message.
func (f *Faults) Where() string {
	if f.File == "" {
		return ""
	}
	return fmt.Sprintf("%.256q: ", f.File)
}

// Count returns how many faults of a kind there are.
func (f *Faults) Count(kind string) int64 { return f.counts[kind] }

// Any reports whether there are faults.
func (f *Faults) Any() bool { return len(f.counts) > 0 }

// Reset forgets the faults of a kind.
func (f *Faults) Reset(kind string) { delete(f.counts, kind) }

// Issues returns an issue for each of some kinds of which there are faults, with code, effect and remedy of like. table
// begins the error of a broken image.
func (f *Faults) Issues(like ondisk.Issue, table string, kinds ...string) (out []ondisk.Issue) {
	for _, kind := range kinds {
		n := f.counts[kind]
		if n == 0 {
			continue
		}
		i := like
		i.Text = fmt.Sprintf("%d %s; first: %s", n, kind, f.firsts[kind])
		if i.Effect == ondisk.Broken {
			i.Err = fmt.Errorf("%s: %w: %s", table, ondisk.ErrFormat, i.Text)
		}
		out = append(out, i)
	}
	return out
}

// Unchecked returns the issue of an image with too many blocks or grains to compare their places.
func Unchecked(code, units string) ondisk.Issue {
	return ondisk.Issue{
		Code: code,
		Text: "the image is too large to look for " + units + " that share a place; every byte is compared after a " +
			"copy all the same",
	}
}
