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
	err := scriptTemplate().Execute(b, newScript(s, images))
	if err == nil {
		err = b.Flush()
	}
	if err == nil {
		_, err = fmt.Fprintf(w, "%s%x\n", digestLine, sum.Sum(nil))
	}
	if err != nil {
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

// scriptTemplate lays out a script. It escapes all texts in comments.
var scriptTemplate = parsed("scan.script.tmpl")

// script holds the values of a script. Its sums are of the images to realign.
type script struct {
	*Summary
	Run                 *Summary // the scan
	Relative            bool     // at least one path is relative
	Copy, Exchange, End string   // the functions and the account of all scripts
	All                 iter.Seq[*Image]

	dests map[string]int // ranks of the copies, by their names
}

func newScript(run *Summary, images iter.Seq[*Image]) script {
	s := script{
		Summary: NewSummary(), Run: run, Copy: scriptStart, Exchange: scriptReplace, End: scriptEnd, All: images,
		dests: map[string]int{},
	}
	for i := range images {
		if i.Priority != nil && i.Copied == "" {
			s.Add(i)
			s.Relative = s.Relative || !strings.HasPrefix(i.ExactPath(), "/")
		}
	}
	return s
}

// Taken returns the rank of the earlier image whose copy has the name of the copy of i, or 0 and notes that name.
func (s script) Taken(i *Image) int {
	dest := i.CopyName()
	if before, taken := s.dests[dest]; taken {
		return before
	}
	s.dests[dest] = i.Priority.Rank
	return 0
}
