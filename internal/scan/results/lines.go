package results

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"

	jsonv2 "github.com/go-json-experiment/json"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/report"
)

// MaxLine bounds a line, in bytes: a row has at most 1024 partitions and findings of each kind, and a summary the PATHs
// of its scan.
const MaxLine = 64 << 20

// Line is one line of a file with results.
type Line struct {
	Number int    // from 1
	Offset int64  // of its first byte in the file
	Text   []byte // without the line end; valid until the next line is read
	Open   bool   // the file ends without a line end
	Err    error  // the line is too long, and has no Text
}

// Lines passes on the lines of r that are not empty. most bounds the bytes of one.
func Lines(r io.Reader, most int, use func(Line) error) error {
	in := bufio.NewReaderSize(r, 64<<10)
	var text []byte
	offset := int64(0)
	for n := 1; ; n++ {
		text = text[:0]
		long, size := false, int64(0)
		var err error
		for more := true; more; {
			var part []byte
			part, err = in.ReadSlice('\n')
			more = errors.Is(err, bufio.ErrBufferFull)
			size += int64(len(part))
			if long = long || len(text)+len(part) > most; !long {
				text = append(text, part...)
			}
		}
		ended := errors.Is(err, io.EOF)
		if err != nil && !ended {
			return err
		}
		l := Line{Number: n, Offset: offset, Text: bytes.TrimRight(text, "\r\n"), Open: ended}
		offset += size
		if long {
			l.Text, l.Err = nil, fmt.Errorf("%w of %d bytes", ondisk.ErrLimit, most)
		}
		if l.Err != nil || len(l.Text) > 0 {
			if err := use(l); err != nil {
				return err
			}
		}
		if ended {
			return nil
		}
	}
}

// head is what all lines have.
type head struct {
	Schema  string `json:"schema"`
	Command string `json:"command"`
	Event   string `json:"event"`
}

// rowBegins begins the rows that scan prints, which need not be parsed twice.
const rowBegins = `{"schema":"` + report.Schema + `","command":"` + Command + `","event":"` + imageEvent + `",`

// Kind returns the event of a line, image or summary. unknown: the line is one of another version or command.
func (l Line) Kind() (event string, unknown, err error) {
	if l.Err != nil {
		return "", nil, l.Err
	}
	if bytes.HasPrefix(l.Text, []byte(rowBegins)) {
		return imageEvent, nil, nil
	}
	var h head
	if err := jsonv2.Unmarshal(l.Text, &h); err != nil {
		return "", nil, errors.New("no object of JSON: the line is damaged")
	}
	switch {
	case h.Schema == "":
		return "", nil, errors.New("no result of trueup scan")
	case h.Schema != report.Schema:
		return "", ondisk.In(ondisk.ErrUnsupported, "schema %.40q, want %q; use the trueup that wrote it", h.Schema,
			report.Schema), nil
	case h.Command != Command && h.Command != ReportCommand:
		return "", ondisk.In(ondisk.ErrUnsupported, "a result of trueup %.40q, want one of scan -o json",
			h.Command), nil
	case h.Event != "image" && h.Event != "summary":
		return "", nil, fmt.Errorf("the event %.40q, want image or summary", h.Event)
	}
	return h.Event, nil, nil
}

// Image returns the row of a line, whose Kind was image.
func (l Line) Image(options ...jsonv2.Options) (*Image, error) {
	i := NewImage("")
	if err := jsonv2.Unmarshal(l.Text, i, options...); err != nil {
		return nil, errors.New("no row of an image: the line is damaged")
	}
	if i.Path == "" {
		return nil, errors.New("a row without a path")
	}
	i.Command = Command // also in a row of a report
	return i, nil
}

// Summary returns the sums of a line, whose Kind was summary, as far as a report needs them.
func (l Line) Summary() (*Summary, error) {
	s := NewSummary()
	if err := jsonv2.Unmarshal(l.Text, s); err != nil {
		return nil, errors.New("no summary: the line is damaged")
	}
	for _, at := range []*string{&s.Started, &s.Finished} { // they are compared as texts
		parsed, err := time.Parse(time.RFC3339, *at)
		if err != nil {
			return nil, fmt.Errorf("a summary with the time %.40q", *at)
		}
		*at = parsed.UTC().Format(time.RFC3339)
	}
	if min(s.Skipped, s.Temporary, s.Links) < 0 || s.UnreadableCount < len(s.Unreadable) ||
		s.UnreadableCount > MaxCount {
		return nil, errors.New("a summary with impossible counts")
	}
	for n := range s.Unreadable {
		if err := CheckError(&s.Unreadable[n].Error); err != nil {
			return nil, err
		}
	}
	if err := s.Labels.Check(); err != nil {
		return nil, err
	}
	return s, nil
}

// MaxCount bounds the places that a summary counts, so that no sum overflows.
const MaxCount = 1 << 30
