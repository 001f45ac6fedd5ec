package results

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	_ "embed"
	"fmt"
	"io"
	"iter"
	"strings"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/units"
)

// scriptStart and scriptEnd are common to all scripts: the function that makes one copy, and the final account.
var (
	//go:embed script_start.sh
	scriptStart string
	//go:embed script_replace.sh
	scriptReplace string
	//go:embed script_end.sh
	scriptEnd string
)

// Script writes a bash script that makes the aligned copies, in the order of images, sorted by Rank. Users read it
// first: it lists accepted images and images that cannot be copied in comments, with the reason. See
// docs/scan.md.
func Script(w io.Writer, s *Summary, images iter.Seq[*Image]) error {
	sum := sha256.New()
	b := bufio.NewWriter(io.MultiWriter(w, sum))
	sc := &script{w: b, dests: map[string]int{}, replace: s.Replace}
	if err := scriptTemplate(b, newScriptHead(s, images)); err != nil {
		return err
	}
	fmt.Fprint(b, scriptStart)
	if s.Replace {
		fmt.Fprint(b, scriptReplace)
	}
	for i := range images {
		if i.Priority != nil {
			sc.image(i)
		}
	}
	fmt.Fprint(b, scriptEnd)
	if err := b.Flush(); err != nil { // returns any earlier error
		return fmt.Errorf("script: %w", err)
	}
	if _, err := fmt.Fprintf(w, "%s%x\n", digestLine, sum.Sum(nil)); err != nil {
		return fmt.Errorf("script: %w", err)
	}
	return nil
}

// digestLine begins the last line of a script, and the SHA-256 of all lines before ends it.
const digestLine = "# As trueup wrote it, SHA-256 "

// maxScript bounds a script, in bytes: a million images of usual length.
const maxScript = 1 << 30

// IsScript reports whether a text is a script that Script wrote and nobody has edited since.
func IsScript(r io.Reader) (bool, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxScript))
	if err != nil {
		return false, err
	}
	at := bytes.LastIndex(text, []byte(digestLine))
	if at < 0 {
		return false, nil
	}
	return string(text[at:]) == fmt.Sprintf("%s%x\n", digestLine, sha256.Sum256(text[:at])), nil
}

type script struct {
	w     *bufio.Writer
	dests map[string]int // ranks of the copies, by their names

	replace bool // exchange images if possible
}

// comment writes one line; the text is escaped.
func (s *script) comment(format string, args ...any) {
	fmt.Fprintf(s.w, "# %s\n", report.Escape(fmt.Sprintf(format, args...)))
}

// scriptTemplate lays out the head of a script.
var scriptTemplate = builtIn("scan.script.tmpl")

// scriptHead holds the sums of the images of a script.
type scriptHead struct {
	*Summary
	Run      *Summary // the scan
	Relative bool     // at least one path is relative
}

func newScriptHead(run *Summary, images iter.Seq[*Image]) scriptHead {
	h := scriptHead{Summary: NewSummary(), Run: run}
	for i := range images {
		if i.Priority != nil && i.Copied == "" {
			h.Add(i)
			h.Relative = h.Relative || !strings.HasPrefix(i.ExactPath(), "/")
		}
	}
	return h
}

// image writes the block of one image.
func (s *script) image(i *Image) {
	fmt.Fprintln(s.w)
	path, why := i.ExactPath(), ""
	switch {
	case i.Accepted != nil:
		why = ", " + i.Accepted.text()
	case i.Copied != "":
		why = ": a file has the name of its copy, which trueup verify proves: " + i.Copied
	case i.Priority.Class == classStays:
		why = ": " + i.Priority.Reason
	}
	if why != "" {
		s.comment("%s", path)
		s.comment("  not realigned%s", why)
		return
	}
	rank := i.Priority.Rank
	s.comment("%d. %s", rank, path)
	s.comment("  %s", i.Priority.Reason)
	if g := i.guest(); g != "" {
		s.comment("  guest %s", g)
	}
	if hindrances := i.hindrances(); len(hindrances) > 0 {
		s.refused(hindrances)
		return
	}
	if s.replace && i.NoExchange == "" {
		s.comment("  %s to copy, the disks grow by %s", units.Format(i.copies()), units.Format(i.Grows()))
		fmt.Fprintf(s.w, "exchange %d %s\n", rank, strings.TrimPrefix(i.exchange, "trueup "))
		return
	}
	command, dest := strings.TrimPrefix(i.Priority.Command, "trueup "), i.CopyName()
	if before, taken := s.dests[dest]; taken {
		s.comment("  not realigned: the copy would have the name of that of number %d. Choose another name:", before)
		s.comment("  %s", i.Priority.Command)
		return
	}
	s.dests[dest] = rank
	if s.replace {
		s.comment("  a copy, not an exchange: %s", i.NoExchange)
	}
	s.comment("  %s to copy, the disks grow by %s", units.Format(i.copies()), units.Format(i.Grows()))
	fmt.Fprintf(s.w, "copy %d %s\n", rank, command)
}

func (s *script) refused(hindrances []align.Finding) {
	for _, f := range hindrances {
		s.comment("  not realigned: %s", findingText(f))
		if f.Remedy != "" {
			s.comment("    %s", f.Remedy)
		}
	}
}
