package results

import (
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/units"
)

// FailOn is the level from which a run fails. Each level includes those before it: 64K includes 4K and errors.
type FailOn string

// Levels. Default is that of inspect: errors, and starts off the boundary of the run.
const (
	Default FailOn = ""
	Never   FailOn = "never"
	Errors  FailOn = "error"
	Off4K   FailOn = "4K"
	Off64K  FailOn = "64K"
	Off1M   FailOn = "1M"
)

// levels are the boundaries of those that name one.
var levels = map[FailOn]int64{Off4K: 4 * units.KiB, Off64K: 64 * units.KiB, Off1M: units.MiB}

// FailOns lists the levels that a user can ask for.
func FailOns() []string {
	return []string{string(Off4K), string(Off64K), string(Off1M), string(Errors), string(Never)}
}

// ParseFailOn finds a level by its name. An empty one is Default.
func ParseFailOn(s string) (FailOn, error) {
	if s == "" {
		return Default, nil
	}
	for _, level := range FailOns() {
		if strings.EqualFold(s, level) {
			return FailOn(level), nil
		}
	}
	return "", ondisk.NoChoice("--fail-on", s, FailOns()...)
}

// Exit codes of one image. Codes of verdicts are those of align.
const (
	exitError = 1
	exitBelow = 2
)

// Code returns the exit code for one image, 0 for none. An accepted image asks for none.
func (f FailOn) Code(i *Image) int {
	switch {
	case f == Never || i.Accepted != nil || i.State == Gone:
		return 0
	case i.State == Failed, i.unknown() && !i.Tolerated:
		return exitError
	case i.State != Judged || f == Errors:
		return 0
	case i.Verdict == align.Misaligned:
		return i.Verdict.ExitCode()
	case f == Default:
		return i.Verdict.ExitCode()
	}
	if i.off(levels[f]) {
		return exitBelow
	}
	return 0
}

// off reports whether a partition is off a boundary, as align judges it.
func (i *Image) off(boundary int64) bool {
	for _, d := range i.Disks {
		off := func(p report.Partition) bool { return p.VerdictBy(boundary).Off() }
		if slices.ContainsFunc(d.Partitions, off) {
			return true
		}
	}
	return false
}

// Exit makes the exit code worse if an image asks for it. Of images that are as bad, the one that stands first in the
// report counts, whichever was finished first.
func (s *Summary) Exit(i *Image, fail FailOn) {
	code := fail.Code(i)
	if code == 0 || Worse(s.ExitCode, code) || code == s.ExitCode && s.worst != nil && Compare(s.worst, i) <= 0 {
		return
	}
	s.worst, s.ExitCode, s.Worst = i, code, i.Path
}

// Worse reports whether exit code a is worse than b: an error first, since nothing is known then, and a refusal (4)
// before 3 and 2.
func Worse(a, b int) bool {
	weight := func(code int) int {
		if code == exitError {
			return 5
		}
		return code
	}
	return weight(a) > weight(b)
}
