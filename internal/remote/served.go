package remote

import (
	"fmt"
	"io"
	"sync"

	"github.com/trueup/trueup/internal/disk"
)

// Info describes a file as its server does when it is opened.
type Info struct {
	Name     string // without folders
	Size     int64  // bytes
	Device   bool   // as of a File
	Modified int64  // ns since 1970; 0: not known
	Tag      []byte // strong ETag, or else Last-Modified, of any bytes; empty: nothing shows a change
}

// Served is a file of a server for a process that decodes it, and asks another one for its bytes. Safe for concurrent
// use.
type Served struct {
	info  Info
	id    string
	ask   func(question []byte) (answer []byte, err error)
	mu    sync.Mutex // held while it is asked
	pages pages
}

// NewServed returns the file that something has opened which answers questions, see Opened. id tells it from others.
func NewServed(info Info, id string, ask func(question []byte) (answer []byte, err error)) *Served {
	s := &Served{info: info, id: id, ask: ask}
	s.pages = pages{of: asking{s}, size: info.Size}
	return s
}

// Size returns the size in bytes.
func (s *Served) Size() int64 { return s.info.Size }

// Name returns the name of the file.
func (s *Served) Name() string { return s.info.Name }

// ID tells the file from others.
func (s *Served) ID() string { return s.id }

// Device reports whether the bytes are those of a device, see File.
func (s *Served) Device() bool { return s.info.Device }

// Forget has what was read before be read again.
func (s *Served) Forget() { s.pages.forget() }

// Close does nothing: what has opened the file closes it.
func (*Served) Close() error { return nil }

// Unchanged is as that of a File.
func (s *Served) Unchanged() error {
	_, err := s.question([]byte{asksUnchanged})
	return err
}

// Extent takes all for data: few places are read.
func (*Served) Extent(off, limit int64) (disk.Extent, error) {
	return disk.Extent{Range: disk.Range{Off: off, Len: limit}}, nil
}

// ReadAt follows the contract of io.ReaderAt.
func (s *Served) ReadAt(p []byte, off int64) (int, error) { return s.pages.ReadAt(p, off) }

func (s *Served) question(q []byte) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	answer, err := s.ask(q)
	if err != nil {
		return nil, err
	}
	return dataOf(answer)
}

// asking reads the file by questions.
type asking struct{ *Served }

// ReadAt follows the contract of io.ReaderAt.
func (s asking) ReadAt(p []byte, off int64) (n int, err error) {
	if off < 0 || off >= s.info.Size {
		return 0, io.EOF
	}
	if int64(len(p)) > s.info.Size-off {
		p, err = p[:s.info.Size-off], io.EOF
	}
	for n < len(p) {
		most := min(len(p)-n, maxAsk)
		data, bad := s.question(readQuestion(off+int64(n), most))
		if bad == nil && len(data) != most {
			bad = fmt.Errorf("%d bytes of a file, want %d", len(data), most)
		}
		if bad != nil {
			return n, bad
		}
		n += copy(p[n:], data)
	}
	return n, err
}
