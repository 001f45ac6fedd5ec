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

// scriptStart and scriptEnd are what all scripts have in common: the function that makes one copy, and the account.
var (
	//go:embed script_start.sh
	scriptStart string
	//go:embed script_replace.sh
	scriptReplace string
	//go:embed script_end.sh
	scriptEnd string
)

// Script writes a program for bash that makes the aligned copies, in the order of images, which Rank has sorted. Users
// read it first: images that cannot be copied, and accepted ones, stand in it as comments, with the reason. See
// docs/scan-reports.md.
func Script(w io.Writer, s *Summary, images iter.Seq[*Image]) error {
	sum := sha256.New()
	b := bufio.NewWriter(io.MultiWriter(w, sum))
	sc := &script{w: b, dests: map[string]int{}, replace: s.Replace}
	sc.head(s, images)
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
	if err := b.Flush(); err != nil { // an earlier error comes again
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

// IsScript reports whether a text is a script as Script wrote it, with nothing edited since.
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

	replace bool // where that is possible
}

// comment writes one line; the text is escaped.
func (s *script) comment(format string, args ...any) {
	fmt.Fprintf(s.w, "# %s\n", report.Escape(fmt.Sprintf(format, args...)))
}

// head writes the purpose of the script and the sums of its images.
func (s *script) head(sum *Summary, images iter.Seq[*Image]) {
	all, relative := NewSummary(), false
	body := &script{w: bufio.NewWriter(io.Discard), dests: map[string]int{}, replace: s.replace}
	for i := range images {
		if i.Priority != nil && i.Copied == "" && !body.image(i) {
			all.Add(i)
			relative = relative || !strings.HasPrefix(i.ExactPath(), "/")
		}
	}
	fmt.Fprintln(s.w, "#!/usr/bin/env bash")
	s.comment("Made by trueup %s from the scan that ended %s. Read it before you run it.", sum.Version, sum.Finished)
	fmt.Fprintln(s.w, "#")
	s.comment("It writes %s, the most urgent first, each beside its original, which is only read and stays.",
		counted(all.Fix.Images, "aligned copy", "aligned copies"))
	if s.replace {
		s.comment("Where nothing is against it, the copy then gets the names of the original, which is kept as " +
			"NAME.orig.EXT:")
		s.comment("shut the machines down first. trueup undo brings an original back, trueup finish removes it.")
	}
	s.comment("To read and to write: %s (%d bytes). The disks grow by %s (%d bytes) together.",
		units.Format(all.Fix.Copies), all.Fix.Copies, units.Format(all.Fix.Grows), all.Fix.Grows)
	s.comment("No copy can be made of %s as they are; %s accepted. They stand below as comments.",
		counted(all.Fix.Refused, "image", "images"),
		counted(all.Accepted, "image was", "images were"))
	if !sum.Complete {
		s.comment("The scan was interrupted, so it has not seen all images.")
	}
	if sum.Shard != "" {
		s.comment("It is of shard %s: %s", sum.Shard, sum.othersText())
	}
	if sum.ChangedOnly {
		s.comment("The scan showed only what is new or changed, so images that were known stand in no line below, " +
			"also those off the boundary.")
	}
	if relative {
		s.comment("Names are relative: run it in the folder where the scan ran.")
	}
}

// image writes the block of one image, and reports whether its command has to be filled in first.
func (s *script) image(i *Image) (unfinished bool) {
	fmt.Fprintln(s.w)
	path := i.ExactPath()
	if i.Accepted != nil {
		s.comment("%s", path)
		s.comment("  not realigned, %s", i.Accepted.text())
		return false
	}
	if i.Copied != "" {
		s.comment("%s", path)
		s.comment("  not realigned: its aligned copy is %s", i.Copied)
		return false
	}
	if i.Priority.Class == classStays {
		s.comment("%s", path)
		s.comment("  not realigned: %s", i.Priority.Reason)
		return false
	}
	rank := i.Priority.Rank
	s.comment("%d. %s", rank, path)
	s.comment("  %s", i.Priority.Reason)
	if g := i.guest(); g != "" {
		s.comment("  guest %s", g)
	}
	if hindrances := i.hindrances(); len(hindrances) > 0 || i.unplanned() {
		s.refused(hindrances)
		return false
	}
	if s.replace && i.NoExchange == "" {
		s.comment("  %s to copy, the disks grow by %s", units.Format(i.copies()), units.Format(i.Grows()))
		fmt.Fprintf(s.w, "exchange %d %s\n", rank, strings.TrimPrefix(i.exchange, "trueup "))
		return false
	}
	command, dest := strings.TrimPrefix(i.Priority.Command, "trueup "), i.alignedName()
	if before, taken := s.dests[dest]; taken {
		s.comment("  not realigned: the copy would have the name of that of number %d. Choose another name:", before)
		s.comment("  %s", i.Priority.Command)
		return true
	}
	s.dests[dest] = rank
	if s.replace {
		s.comment("  a copy, not an exchange: %s", i.NoExchange)
	}
	s.comment("  %s to copy, the disks grow by %s", units.Format(i.copies()), units.Format(i.Grows()))
	fmt.Fprintf(s.w, "copy %d %s\n", rank, command)
	return false
}

func (s *script) refused(hindrances []align.Finding) {
	if len(hindrances) == 0 {
		s.comment("  not realigned: no plan could be made")
	}
	for _, f := range hindrances {
		s.comment("  not realigned: %s", findingText(f))
		if f.Remedy != "" {
			s.comment("    %s", f.Remedy)
		}
	}
}
