// Package opinion asks other programs about a copy: qemu-img reads its container and compares the disk there with the
// one that trueup reads, and libguestfs compares the files in source and copy. They share no code with trueup. It
// decodes no image: trueup serve and trueup verify do, each a process of its own.
package opinion

import (
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/ondisk"
)

// Names of the judges.
const (
	QemuImg    = "qemu-img"
	Libguestfs = "libguestfs"
	All        = "all"
)

// Judges returns the values that name judges.
func Judges() []string { return []string{All, QemuImg, Libguestfs} }

// Verdict is the result of a judge on one thing.
type Verdict string

// Verdicts.
const (
	Agrees    Verdict = "agrees"
	Differs   Verdict = "differs"
	NotLooked Verdict = "not_looked_at" // the judge cannot read it
	Failed    Verdict = "failed"        // the judge did not come to an end
)

// Row is one thing that a judge was asked. The words of a judge are untrusted.
type Row struct {
	Judge   string  `json:"judge"` // with its version
	Asked   string  `json:"asked"`
	Said    string  `json:"said"`
	Verdict Verdict `json:"verdict"`
}

// Table has all answers, the one of trueup first.
type Table []Row

// of returns the rows with a verdict.
func (t Table) of(v Verdict) Table {
	return slices.DeleteFunc(slices.Clone(t), func(r Row) bool { return r.Verdict != v })
}

// Differs reports whether a judge found a difference.
func (t Table) Differs() bool { return len(t.of(Differs)) > 0 }

// words returns the rows as one text.
func (t Table) words() string {
	all := make([]string, 0, len(t))
	for _, r := range t {
		all = append(all, r.Judge+", "+r.Asked+": "+r.Said)
	}
	return strings.Join(all, "; ")
}

// Err returns the error of a table without a verdict: a judge failed, or none but trueup looked at the copy.
func (t Table) Err() error {
	if failed := t.of(Failed); len(failed) > 0 && !t.Differs() {
		judge, _, _ := strings.Cut(failed[0].Judge, " ")
		return ondisk.In(ondisk.ErrUnsupported, "no second opinion: %s; --by %s asks the other judge alone",
			failed.words(), other(judge))
	}
	looked := slices.ContainsFunc(t, func(r Row) bool {
		return r.Judge != "trueup" && (r.Verdict == Agrees || r.Verdict == Differs)
	})
	if !looked && !t.Differs() {
		return ondisk.In(ondisk.ErrUnsupported, "no second opinion, since no judge looked at anything: %s", t.words())
	}
	return nil
}
