package unpack

import (
	"bufio"
	"errors"
	"io"

	"github.com/klauspost/compress/gzip"
)

// members reads the members of a gzip file, one behind the other. Zeros behind the last one are padding, as of a tape.
// Spec: RFC 1952, 2.2.
type members struct {
	in *bufio.Reader
	z  *gzip.Reader
}

func openGzip(in *bufio.Reader) (io.Reader, error) {
	z, err := gzip.NewReader(in)
	if err != nil {
		return nil, err
	}
	z.Multistream(false)
	return &members{in, z}, nil
}

// Read follows the contract of io.Reader.
func (m *members) Read(p []byte) (int, error) {
	for {
		n, err := m.z.Read(p)
		if n > 0 || err == nil {
			if errors.Is(err, io.EOF) {
				err = nil // of the member: the next call meets it again
			}
			return n, err
		}
		if !errors.Is(err, io.EOF) {
			return 0, err
		}
		if err := m.next(); err != nil {
			return 0, err
		}
	}
}

// errBehind marks bytes behind the end of a stream that are neither another one nor padding.
var errBehind = errors.New("other bytes stand behind its end")

// next begins the next member; io.EOF behind the last one.
func (m *members) next() error {
	padded := false
	for {
		b, err := m.in.ReadByte()
		switch {
		case err != nil:
			return err
		case b == 0:
			padded = true
			continue
		case padded:
			return errBehind
		}
		if err := m.in.UnreadByte(); err != nil {
			return err
		}
		if err := m.z.Reset(m.in); err != nil {
			if errors.Is(err, gzip.ErrHeader) {
				err = errBehind
			}
			return noEOF(err)
		}
		m.z.Multistream(false)
		return nil
	}
}

// noEOF returns the error of an input that ends where it must not.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
