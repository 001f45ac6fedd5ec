// Package opinion asks other programs about a copy: qemu-img, which reads its container and compares every byte with
// the planned disk, and libguestfs, which reads the files of source and copy. They judge beside the proof of trueup
// itself, and share no code with it.
//
// A process that reads images is confined and can start no program. So the programs are run by a clerk: this program,
// started once more before that, unconfined, which decodes nothing of an image. The confined process serves the disks
// by NBD, on sockets that were opened before it confined itself.
package opinion

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/ondisk"
)

// Names of the judges.
const (
	QemuImg    = "qemu-img"
	Libguestfs = "libguestfs"
	All        = "all" // of them that are installed
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
	Absent    Verdict = "absent"        // the judge is not installed
	Failed    Verdict = "failed"        // the judge did not come to an end
)

// Row is one thing that a judge was asked. The words of a judge are untrusted.
type Row struct {
	Judge   string  `json:"judge"` // with its version
	Asked   string  `json:"asked"`
	Said    string  `json:"said"`
	Verdict Verdict `json:"verdict"`
}

// Table is what all judges said.
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

// DifferenceError is the error of a copy in which a judge found a difference.
type DifferenceError struct{ Table Table }

func (d *DifferenceError) Error() string {
	return "the second opinion differs: " + d.Table.of(Differs).words()
}

// Err returns nil if at least one judge looked at the copy, and all that were asked agree.
func (t Table) Err() error {
	if t.Differs() {
		return &DifferenceError{t}
	}
	if failed := t.of(Failed); len(failed) > 0 {
		other := map[bool]string{true: Libguestfs, false: QemuImg}[strings.HasPrefix(failed[0].Judge, QemuImg)]
		return ondisk.In(ondisk.ErrUnsupported, "no second opinion: %s; --second-opinion=%s asks the other judge alone",
			failed.words(), other)
	}
	if len(t.of(Agrees)) == 0 {
		return ondisk.In(ondisk.ErrUnsupported, "no second opinion, since no judge looked at anything: %s",
			cmp.Or(t.words(), "none was asked"))
	}
	return nil
}

// absent returns the row of a judge that is not installed.
func absent(judge, program, debian string) Row {
	return Row{
		judge, "the copy", fmt.Sprintf("%s is not installed; on Debian: apt install %s", program, debian), Absent,
	}
}
