package qcow2

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/zstd"

	"github.com/trueup/trueup/internal/ondisk"
)

// sector is the unit in which a descriptor counts compressed data, in bytes.
const sector = 512

// inflater fills dst with what src packs. Bytes of src behind that are not looked at; a stream that has more or less
// is refused.
type inflater func(dst []byte, src io.Reader) error

var inflaters = [...]inflater{packingDeflate: inflateDeflate, packingZstd: inflateZstd}

// unpack fills dst with the cluster that a descriptor names.
func (q *qcow) unpack(dst []byte, key int64) error {
	place, size := q.h.packedPlace(ondisk.U64(key))
	src := io.NewSectionReader(q.file, place, min(size, q.file.Size()-place))
	if err := q.inflate(dst, src); err != nil {
		if ours := new(streamError); errors.As(err, &ours) {
			return ondisk.Field("qcow2 compressed cluster", "stream", place, ours.Error(),
				fmt.Sprintf("one that gives %d bytes", len(dst)))
		}
		return err
	}
	return nil
}

// streamError marks errors of the compressed data, as opposed to those of the file.
type streamError struct{ error }

// deflateReaders keeps readers, which have buffers of 32 KiB.
var deflateReaders = sync.Pool{New: func() any {
	return &deflateReader{z: flate.NewReader(nil), b: bufio.NewReaderSize(nil, 4<<10)}
}}

type deflateReader struct {
	z io.ReadCloser
	b *bufio.Reader
}

// inflateDeflate reads a raw deflate stream (RFC 1951).
func inflateDeflate(dst []byte, src io.Reader) error {
	r := deflateReaders.Get().(*deflateReader) // the pool holds nothing else
	defer deflateReaders.Put(r)
	file := &failing{Reader: src}
	r.b.Reset(file)
	if err := r.z.(flate.Resetter).Reset(r.b, nil); err != nil { // promised by flate.NewReader
		return err
	}
	n, err := io.ReadFull(r.z, dst)
	switch {
	case file.err != nil:
		return file.err
	case n < len(dst):
		return &streamError{fmt.Errorf("ends after %d bytes: %w", n, err)}
	}
	// QEMU stops when it has a cluster, and does not ask for the end of the stream. It refuses more data, too.
	var one [1]byte
	if n, _ := r.z.Read(one[:]); n > 0 {
		return &streamError{errors.New("goes on")}
	}
	return nil
}

// failing remembers the error of a reader: a decompressor does not distinguish it from its own.
type failing struct {
	io.Reader
	err error
}

func (f *failing) Read(p []byte) (int, error) {
	n, err := f.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		f.err = err
	}
	return n, err
}

// zstdDecoder decodes single frames into the caller's buffer: then neither window nor output are allocated by it.
var zstdDecoder = sync.OnceValues(func() (*zstd.Decoder, error) {
	return zstd.NewReader(nil, zstd.WithDecodeAllCapLimit(true), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxWindow(maxZstdWindow))
})

// maxZstdWindow is that of the highest common compression level (19), in bytes.
const maxZstdWindow = 8 << 20

// inflateZstd reads zstd frames (RFC 8878) until dst is full.
func inflateZstd(dst []byte, src io.Reader) error {
	d, err := zstdDecoder()
	if err != nil {
		return err
	}
	in, err := io.ReadAll(src)
	if err != nil {
		return err
	}
	out := dst[:0:len(dst)]
	for len(out) < len(dst) {
		n, err := zstdFrame(in)
		if err != nil {
			return &streamError{fmt.Errorf("after %d bytes: %w", len(out), err)}
		}
		before := len(out)
		if out, err = d.DecodeAll(in[:n], out); err != nil {
			return &streamError{fmt.Errorf("after %d bytes: %w", before, err)}
		}
		in = in[n:]
	}
	if &out[0] != &dst[0] {
		return errors.New("zstd decoder left the buffer that it was given")
	}
	return nil
}

// zstdFrame returns the length of the frame with which b begins: what follows belongs to others, and may look like a
// frame. Spec: RFC 8878, section 3.1.1.
func zstdFrame(b []byte) (int, error) {
	var h zstd.Header
	if err := h.Decode(b); err != nil {
		return 0, err
	}
	if h.Skippable {
		return 0, errors.New("skippable frame")
	}
	at := h.HeaderSize
	for last := false; !last; {
		if at+3 > len(b) {
			return 0, io.ErrUnexpectedEOF
		}
		v := uint32(b[at]) | uint32(b[at+1])<<8 | uint32(b[at+2])<<16
		size := int(v >> 3)
		if v>>1&3 == 1 {
			size = 1 // one byte, repeated
		}
		last = v&1 != 0
		at += 3 + size
	}
	if h.HasCheckSum {
		at += 4
	}
	if at > len(b) {
		return 0, io.ErrUnexpectedEOF
	}
	return at, nil
}

// packedTarget writes compressed clusters, one behind the other without gaps, as qemu-img does. Clusters that deflate
// does not make smaller are stored plainly.
type packedTarget struct {
	*target
	at  int64 // byte offset where the next packed cluster can go, 0 when the last file cluster is full or was left
	end int64 // of that file cluster
}

// deflateWindow is the window with which readers inflate, in bytes: QEMU gives zlib windowBits of 12.
const deflateWindow = 4 << 10

// packer compresses one cluster at a time.
type packer struct {
	z   *flate.Writer
	out bytes.Buffer
}

var packers = sync.Pool{New: func() any {
	w, err := flate.NewWriterWindow(nil, deflateWindow)
	if err != nil {
		panic(err) // of a constant
	}
	return &packer{z: w}
}}

// Pack compresses a cluster. The last one of the disk is packed, or stored, as a whole.
func (t *packedTarget) Pack(unit []byte, _ int64) ([]byte, error) {
	if short := t.h.cluster() - int64(len(unit)); short > 0 {
		unit = append(bytes.Clone(unit), make([]byte, short)...)
	}
	p := packers.Get().(*packer) // the pool holds nothing else
	defer packers.Put(p)
	p.out.Reset()
	p.z.Reset(&p.out)
	if _, err := p.z.Write(unit); err != nil {
		return nil, err
	}
	if err := p.z.Close(); err != nil {
		return nil, err
	}
	if p.out.Len() >= len(unit) {
		return bytes.Clone(unit), nil
	}
	return bytes.Clone(p.out.Bytes()), nil
}

// Reserve places n bytes of a cluster: all of them, or fewer when they are packed.
func (t *packedTarget) Reserve(off, n int64) error {
	if n == t.h.cluster() {
		return t.target.Reserve(off, n)
	}
	guest := off / t.h.cluster()
	if err := t.wantTable(guest); err != nil {
		return err
	}
	place, err := t.allocPacked(n)
	if err != nil {
		return err
	}
	sectors := (place+n-1)/sector - place/sector
	t.setEntry(guest, compressed|ondisk.U64(sectors)<<(62-(t.h.ClusterBits-8))|ondisk.U64(place))
	t.slots.Add(off, n, place)
	return nil
}

// allocPacked returns the place of n bytes, fewer than a cluster: in what is left of the last file cluster, and on into
// the next one where that follows at once. Clusters of a refcount block that was left are not touched again.
func (t *packedTarget) allocPacked(n int64) (int64, error) {
	last := t.end/t.h.cluster() - 1
	here := t.at != 0 && last/t.perBlock() == t.block
	fits := t.end - t.at
	if here && n > fits && (t.next != last+1 || t.next%t.perBlock() == 0) {
		here = false
	}
	if here {
		t.count(last)
	}
	if !here || n > fits {
		place, err := t.alloc()
		if err != nil {
			return 0, err
		}
		if !here {
			t.at = place
		}
		t.end = place + t.h.cluster()
	}
	place := t.at
	if t.at += n; t.at == t.end {
		t.at = 0
	}
	return place, nil
}
