package image

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// What an archive can have at most. OVAs have some five members, each with one header.
const (
	maxMembers  = 4096
	maxExtended = 64 << 10 // bytes of one extended header
	maxName     = 1024     // bytes
	maxFolders  = 16
)

// tarBlock is the unit of a tar, in bytes. Spec: POSIX pax, "ustar Interchange Format".
const tarBlock = 512

// Fields of a header block, and the type flags that have a meaning here.
var (
	tarName   = [2]int{0, 100}
	tarSize   = [2]int{124, 136}
	tarSum    = [2]int{148, 156}
	tarMagic  = [2]int{257, 265}
	tarPrefix = [2]int{345, 500}
)

const (
	tarType      = 156
	tarPAX       = 'x'
	tarPAXGlobal = 'g'
	tarGNUName   = 'L'
	tarGNULink   = 'K'
	tarGNUSparse = 'S'
)

// entry is one member of a tar archive.
type entry struct {
	name string
	kind byte  // type flag, '0' for a file
	head int64 // where its headers begin: extended ones come before its own
	off  int64 // where its bytes begin
	size int64
}

// end is where the next member begins.
func (e entry) end() int64 { return e.off + units.AlignUp(e.size, tarBlock) }

// regular reports whether a member is a file with bytes of its own.
func (e entry) regular() bool { return e.kind == '0' }

var tarKinds = map[byte]string{
	'1': "a hard link", '2': "a symbolic link", '3': "a character device", '4': "a block device", '5': "a folder", '6': "a FIFO",
}

// tarIndex walks the headers of an archive.
func tarIndex(f ondisk.Source) ([]entry, error) {
	w := &tarWalk{f: f}
	kinds := map[string]byte{}
	var out []entry
	for {
		e, more, err := w.next()
		if err != nil {
			return nil, err
		}
		if !more {
			return out, nil
		}
		if kind, twice := kinds[e.name]; twice && (kind != '5' || e.kind != '5') { // folders may be named again
			return nil, fmt.Errorf("member %.256q of the archive stands there twice: %w, want one of each name", e.name, ondisk.ErrReference)
		}
		kinds[e.name] = e.kind
		if len(out) == maxMembers {
			return nil, fmt.Errorf("archive: %w of %d members", ondisk.ErrLimit, maxMembers)
		}
		out = append(out, e)
	}
}

// tarWalk stands between two members.
type tarWalk struct {
	f  ondisk.Source
	at int64
	// What extended headers say of the member that follows.
	name     string
	size     int64
	extended int
}

// next reads the headers of one member. An archive ends with blocks of zeros; one that ends without them is complete too.
func (w *tarWalk) next() (e entry, more bool, err error) {
	e.head, w.name, w.size, w.extended = w.at, "", -1, 0
	for {
		if w.at == w.f.Size() && w.at == e.head {
			return e, false, nil
		}
		h, err := w.header()
		if err != nil {
			return e, false, err
		}
		if h == nil {
			if w.at != e.head {
				return e, false, w.bad("header", "zeros", "the member that an extended header speaks of")
			}
			return e, false, nil
		}
		done, err := w.take(h, &e)
		if err != nil || done {
			return e, done, err
		}
	}
}

func (w *tarWalk) bad(field string, got, want any) error {
	return &ondisk.FormatError{What: "tar header", Off: w.at, Field: field, Got: got, Want: want}
}

// header reads and checks one block, nil when it is zero.
func (w *tarWalk) header() ([]byte, error) {
	h, err := ondisk.Bytes(w.f, w.at, tarBlock)
	if err != nil {
		return nil, err
	}
	if ondisk.IsZero(h) {
		return nil, nil
	}
	want, ok := tarNumber(h[tarSum[0]:tarSum[1]])
	unsigned, signed := tarChecksum(h)
	if !ok || (want != unsigned && want != signed) {
		return nil, w.bad("checksum", string(bytes.TrimRight(h[tarSum[0]:tarSum[1]], "\x00 ")), fmt.Sprintf("%o", unsigned))
	}
	return h, nil
}

// take reads what one header says. done tells that it was the member's own.
func (w *tarWalk) take(h []byte, e *entry) (done bool, err error) {
	size, ok := tarNumber(h[tarSize[0]:tarSize[1]])
	if !ok {
		return false, w.bad("size", fmt.Sprintf("% x", h[tarSize[0]:tarSize[1]]), "a number of bytes below 2^63")
	}
	kind := h[tarType]
	switch kind {
	case 0, '7':
		kind = '0'
	case tarGNUSparse:
		return false, fmt.Errorf("member at %#x of the archive is sparse: %w in an OVA; pack it with tar and no --sparse", w.at, ondisk.ErrUnsupported)
	case tarPAX, tarPAXGlobal, tarGNUName, tarGNULink:
		return false, w.extend(kind, size)
	}
	e.kind, e.name, e.size, e.off = kind, w.name, size, w.at+tarBlock
	if e.name == "" {
		e.name = headerName(h)
	}
	if w.size >= 0 {
		e.size = w.size
	}
	if tarKinds[kind] != "" && e.size != 0 {
		return false, w.bad("size", e.size, "0 for "+tarKinds[kind])
	}
	if e.size > w.f.Size()-e.off || e.off > w.f.Size() {
		return false, w.bad("size", e.size, fmt.Sprintf("an end within the %d bytes of the archive", w.f.Size()))
	}
	if e.name, err = memberName(e.name); err != nil {
		return false, err
	}
	w.at = min(e.end(), w.f.Size()) // the padding of the last member may be missing
	return true, nil
}

// extend reads an extended header, which says more about the member behind it.
func (w *tarWalk) extend(kind byte, size int64) error {
	if size > maxExtended {
		return fmt.Errorf("extended tar header of %d bytes at %#x: %w of %d bytes", size, w.at, ondisk.ErrLimit, maxExtended)
	}
	if w.extended++; w.extended > 4 {
		return fmt.Errorf("tar headers at %#x: %w of 4 extended ones for a member", w.at, ondisk.ErrLimit)
	}
	b, err := ondisk.Bytes(w.f, w.at+tarBlock, size)
	if err != nil {
		return err
	}
	switch kind {
	case tarGNUName:
		w.name = string(bytes.TrimRight(b, "\x00"))
	case tarPAX, tarPAXGlobal:
		err = eachPAX(b, func(key, value string) error { return w.record(kind, key, value) })
		if err != nil {
			return err
		}
	}
	w.at += tarBlock + units.AlignUp(size, tarBlock)
	return nil
}

// record takes one record of a PAX header.
func (w *tarWalk) record(kind byte, key, value string) error {
	switch {
	case strings.HasPrefix(key, "GNU.sparse."):
		return fmt.Errorf("member at %#x of the archive is sparse: %w in an OVA; pack it with tar and no --sparse", w.at, ondisk.ErrUnsupported)
	case kind == tarPAXGlobal && (key == "path" || key == "size"):
		return fmt.Errorf("global tar header at %#x gives all members one %s: %w", w.at, key, ondisk.ErrUnsupported)
	case key == "path":
		w.name = value
	case key == "size":
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil || n < 0 {
			return w.bad("PAX size", value, "a number of bytes below 2^63")
		}
		w.size = n
	}
	return nil
}

// eachPAX calls f for each record, "18 path=disk1.vmdk\n".
func eachPAX(b []byte, f func(key, value string) error) error {
	bad := func(off int) error {
		return &ondisk.FormatError{What: "PAX header", Off: int64(off), Field: "record", Got: b[off:], Want: `"LENGTH KEY=VALUE" and a newline`}
	}
	for off := 0; off < len(b); {
		digits, _, found := bytes.Cut(b[off:], []byte(" "))
		if len(digits) > 7 {
			return bad(off)
		}
		n, err := strconv.Atoi(string(digits))
		if err != nil || !found || n <= len(digits)+2 || n > len(b)-off || b[off+n-1] != '\n' {
			return bad(off)
		}
		key, value, ok := strings.Cut(string(b[off+len(digits)+1:off+n-1]), "=")
		if !ok {
			return bad(off)
		}
		if err := f(key, value); err != nil {
			return err
		}
		off += n
	}
	return nil
}
