package unpack

import (
	"bytes"
	"hash"
	"io"
	"math"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// vints decodes numbers of variable length. Spec: The .xz File Format 1.2.1, section 1.2.
type vints struct {
	b   []byte
	bad bool
}

// maxVint is how many bytes a number takes at most.
const maxVint = 9

func (p *vints) next() int64 {
	r := &vintReader{in: bytes.NewReader(p.b)}
	n := r.next()
	if p.bad = p.bad || r.err != nil; p.bad {
		return 0
	}
	p.b = p.b[r.read:]
	return n
}

// vintReader decodes numbers of variable length from a stream.
type vintReader struct {
	in   io.ByteReader
	sum  hash.Hash // of what is read; nil: none
	read int
	err  error
}

func (r *vintReader) next() int64 {
	var n uint64
	for i := range maxVint {
		if r.err != nil {
			return 0
		}
		var b byte
		if b, r.err = r.in.ReadByte(); r.err != nil {
			r.err = noEOF(r.err)
			return 0
		}
		r.read++
		if r.sum != nil {
			r.sum.Write([]byte{b})
		}
		n |= uint64(b&0x7f) << (7 * i)
		if b < 0x80 {
			if b == 0 && i > 0 {
				break
			}
			return ondisk.I64(n)
		}
	}
	r.err = bad("a number")
	return 0
}

// Bounds of the walk over the indexes of a file.
const (
	maxStreams = 4096
	maxIndexes = 16 * units.MiB
)

// statedXZ sums up what the indexes of all streams say, from the end of the file to its start. -1: the walk met what it
// does not understand.
func statedXZ(f ondisk.Source) (total int64) {
	read := int64(0)
	for end, streams := f.Size(), 0; end > 0; streams++ {
		var padding int64
		if end, padding = skipPadding(f, end); padding < 0 || end < 2*xzHeader || streams == maxStreams {
			return -1
		}
		footer, err := ondisk.Bytes(f, end-xzHeader, xzHeader)
		if err != nil {
			return -1
		}
		index, _, ok := parseFooter(footer)
		at := end - xzHeader - index
		if read += index; !ok || read > maxIndexes || at < xzHeader {
			return -1
		}
		b, err := ondisk.Bytes(f, at, index)
		if err != nil {
			return -1
		}
		packed, size := sumIndex(b)
		if packed < 0 || size > math.MaxInt64-total || packed > at-xzHeader {
			return -1
		}
		total += size
		end = at - packed - xzHeader
	}
	return total
}

// skipPadding returns where the stream before end ends, and how much padding stands between; -1: too much.
func skipPadding(f ondisk.Source, end int64) (at, padding int64) {
	b, err := ondisk.Bytes(f, max(0, end-maxPadding), min(end, maxPadding))
	if err != nil {
		return end, -1
	}
	kept := bytes.TrimRight(b, "\x00")
	n := int64(len(b)-len(kept)) &^ 3
	if len(kept) == 0 {
		return end, -1
	}
	return end - n, n
}

// sumIndex returns how many bytes the blocks of an index take, and unpack to; -1: it is no index.
func sumIndex(b []byte) (packed, size int64) {
	p := vints{b: b[1:]}
	n := p.next()
	if b[0] != 0 || p.bad || n > int64(len(b)) {
		return -1, -1
	}
	for range n {
		unpadded, unpacked := p.next(), p.next()
		if p.bad || unpadded > math.MaxInt64/4-packed || unpacked > math.MaxInt64/4-size {
			return -1, -1
		}
		packed, size = packed+units.AlignUp(unpadded, 4), size+unpacked
	}
	return packed, size
}
