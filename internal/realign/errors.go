package realign

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/image/ova"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/sys"
	"github.com/trueup/trueup/internal/verify"
)

// ErrUnknown marks a disk of which nothing is known.
var ErrUnknown = errors.New("unknown content")

// classes map errors to their codes. The first that matches counts.
var classes = []struct {
	err  error
	code string
}{
	{ondisk.ErrUsage, "usage"},
	{ErrUnknown, "unsupported"},
	{plan.ErrSelection, "usage"},
	{ondisk.ErrBusy, "busy"},
	{ondisk.ErrChanged, "changed"},
	{verify.ErrDifferent, "verify"},
	{ova.ErrDigest, "verify"},
	{ondisk.ErrOutput, "output"},
	{ondisk.ErrReference, "reference"},
	{ondisk.ErrLimit, "limit"},
	{ondisk.ErrUnsupported, "unsupported"},
	{ondisk.ErrFormat, "format"},
}

// Code returns the class of an error, as JSON has it.
func Code(err error) string {
	if r, ok := errors.AsType[*ondisk.Refusal](err); ok {
		return r.Code
	}
	for _, c := range classes {
		if errors.Is(err, c.err) {
			return c.code
		}
	}
	if sys.FromSystem(err) || errors.Is(err, io.ErrUnexpectedEOF) {
		return "io"
	}
	return "internal"
}

// Broken returns the error of the first finding that is malformed.
func Broken(fs []align.Finding) error {
	for _, f := range fs {
		if f.Effect == ondisk.Broken || f.Effect == ondisk.BadVolume {
			return f.Err
		}
	}
	return nil
}

// Refusal makes one error of the findings that keep a copy from being made.
func Refusal(fs []align.Finding) error {
	if len(fs) == 0 {
		return nil
	}
	f := fs[0]
	if f.Effect == ondisk.Broken || f.Effect == ondisk.BadVolume {
		return fmt.Errorf("%w; %s", f.Err, f.Remedy)
	}
	r := &ondisk.Refusal{Code: "unsupported", Reason: f.Subject + ": " + f.Text, Remedy: f.Remedy}
	if f.Err != nil {
		r.Code = Code(f.Err)
	}
	if len(fs) > 1 {
		r.Remedy += fmt.Sprintf(" (and %d more; see trueup plan)", len(fs)-1)
	}
	return r
}

// readBack returns the error of a copy that cannot be read: if it is malformed, other bytes stand there than were
// written.
func readBack(err error) error {
	if errors.Is(err, ondisk.ErrFormat) || errors.Is(err, ondisk.ErrUnsupported) ||
		errors.Is(err, ondisk.ErrReference) {
		return fmt.Errorf("%w from what was written: %w", verify.ErrDifferent, err)
	}
	return fmt.Errorf("read back what was written: %w", err)
}

// cause returns what made a copy fail: a source that changed under it can look like anything.
func cause(err error, unchanged func() error) error {
	if unchanged == nil || errors.Is(err, context.Canceled) {
		return err
	}
	if changed := unchanged(); changed != nil {
		return changed
	}
	return err
}
