package unpack

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"hash/crc64"
	"io"
	"math"

	"github.com/ulikunitz/xz/lzma"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// This file reads the .xz container; a library decodes LZMA2. The library allocates as much memory as a block header
// requests, so each header is checked first. Spec: The .xz File Format 1.2.1.
const (
	xzMagic    = "\xfd7zXZ\x00"
	xzFooter   = "YZ"
	xzHeader   = 12 // size of the header of a stream, and of its footer, in bytes
	xzFilter   = 0x21
	maxDict    = 64 * units.MiB // dictionary size of xz -9
	maxPadding = 64 * units.KiB // after a stream
)

// xzReader unpacks the streams of a file.
type xzReader struct {
	in     *counted
	check  byte          // check type of the stream
	block  *lzma.Reader2 // nil between blocks
	header blockHeader
	began  int64 // offset of the block header
	data   int64 // offset of the block data
	sum    hash.Hash
	size   int64 // unpacked bytes of the block

	blocks          uint64
	records         hash.Hash // hash of the block sizes, encoded as in the index
	recorded        int64     // length of the hashed records, in bytes
	dicts, unpacked int64     // total size of dictionaries and unpacked data, in bytes
}

// counted counts the bytes read.
type counted struct {
	*bufio.Reader
	at int64
}

// Read follows the contract of io.Reader.
func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.at += int64(n)
	return n, err
}

// ReadByte follows the contract of io.ByteReader.
func (c *counted) ReadByte() (byte, error) {
	b, err := c.Reader.ReadByte()
	if err == nil {
		c.at++
	}
	return b, err
}

func openXZ(in *bufio.Reader) (io.Reader, error) {
	r := &xzReader{in: &counted{Reader: in}}
	return r, noEOF(r.stream())
}

// xzSum returns the hash for a check type of the stream header, or nil for check type 0.
func xzSum(check byte) hash.Hash {
	switch check {
	case 0:
		return nil
	case 1:
		return crc32.NewIEEE()
	case 4:
		return crc64.New(crc64.MakeTable(crc64.ECMA))
	default:
		return sha256.New()
	}
}

// bad returns the error of an invalid field.
func bad(what string) error { return errors.New(what + " is wrong") }

// take reads n bytes. n must be small, because it allocates them.
func (r *xzReader) take(n int) ([]byte, error) {
	b := make([]byte, n)
	_, err := io.ReadFull(r.in, b)
	return b, noEOF(err)
}

// stream reads a stream header. The end of the file is an error.
func (r *xzReader) stream() error {
	b, err := r.take(xzHeader)
	if err != nil {
		return err
	}
	if !bytes.HasPrefix(b, []byte(xzMagic)) {
		return errBehind
	}
	if binary.LittleEndian.Uint32(b[8:]) != crc32.ChecksumIEEE(b[6:8]) {
		return bad("the checksum of the header")
	}
	r.check = b[7]
	if b[6] != 0 || r.check != 0 && r.check != 1 && r.check != 4 && r.check != 10 {
		return fmt.Errorf("it has a check of type %d: %w; unpack it first: unxz -k", r.check,
			ondisk.ErrUnsupported)
	}
	r.blocks, r.records, r.recorded = 0, sha256.New(), 0
	return nil
}

// Read follows the contract of io.Reader.
func (r *xzReader) Read(p []byte) (int, error) {
	for {
		if r.block == nil {
			if err := r.next(); err != nil {
				return 0, err
			}
			continue
		}
		n, err := r.block.Read(p)
		if r.sum != nil {
			r.sum.Write(p[:n])
		}
		r.size, r.unpacked = r.size+int64(n), r.unpacked+int64(n)
		switch {
		case errors.Is(err, io.EOF):
			err = r.endBlock()
		case err != nil:
			err = noEOF(err)
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
}

// next begins the next block, possibly of another stream. It returns io.EOF after the last block.
func (r *xzReader) next() error {
	r.began = r.in.at
	size, err := r.in.ReadByte()
	if err != nil {
		return noEOF(err)
	}
	if size != 0 {
		return r.beginBlock(size)
	}
	if err := r.index(); err != nil {
		return err
	}
	for padding := 0; ; padding++ {
		b, err := r.in.Peek(1)
		switch {
		case errors.Is(err, io.EOF) && padding%4 == 0:
			return io.EOF
		case err != nil:
			return noEOF(err)
		case b[0] != 0 && padding%4 == 0:
			return r.stream()
		case b[0] != 0 || int64(padding) > maxPadding:
			return errBehind
		}
		if _, err := r.in.ReadByte(); err != nil {
			return err
		}
	}
}

// blockHeader holds the fields of a block header. Optional sizes are -1 if absent.
type blockHeader struct{ packed, size, dict int64 }

// Block flags.
const (
	xzFilters  = 0x03
	xzReserved = 0x3c
	xzPacked   = 0x40
	xzSize     = 0x80
)

// beginBlock reads the rest of a block header. first is its first byte.
func (r *xzReader) beginBlock(first byte) error {
	rest, err := r.take((int(first)+1)*4 - 1)
	if err != nil {
		return err
	}
	b := append([]byte{first}, rest...)
	if binary.LittleEndian.Uint32(b[len(b)-4:]) != crc32.ChecksumIEEE(b[:len(b)-4]) {
		return bad("the checksum of the header of a block")
	}
	if r.header, err = parseBlock(b[1 : len(b)-4]); err != nil {
		return err
	}
	dict := r.header.dict
	if r.header.size >= 0 {
		dict = min(dict, r.header.size)
	}
	dict = max(dict, lzma.MinDictCap)
	if dict > maxDict {
		return fmt.Errorf("a block needs a dictionary of %s: %w of %s; unpack it first: unxz -k",
			units.Format(dict), ondisk.ErrLimit, units.Format(maxDict))
	}
	// The limit allows for small blocks: xz gives them dictionaries far larger than their data.
	if r.dicts += dict; r.dicts > units.GiB && r.dicts/maxDict > r.unpacked/units.MiB {
		return fmt.Errorf("%w: its blocks need dictionaries of %s, and unpack to %s; unpack it first: unxz -k",
			ondisk.ErrLimit,
			units.Format(r.dicts), units.Format(r.unpacked))
	}
	if r.sum = xzSum(r.check); r.sum != nil {
		r.sum.Reset()
	}
	r.size, r.data = 0, r.in.at
	r.block, err = lzma.Reader2Config{DictCap: int(dict)}.NewReader2(r.in)
	return noEOF(err)
}

// parseBlock decodes a block header without its size and checksum.
func parseBlock(b []byte) (h blockHeader, err error) {
	flags := b[0]
	p := vints{b: b[1:]}
	h = blockHeader{-1, -1, 0}
	if flags&xzReserved != 0 {
		return h, bad("a flag of a block")
	}
	if flags&xzPacked != 0 {
		h.packed = p.next()
	}
	if flags&xzSize != 0 {
		h.size = p.next()
	}
	id, props := p.next(), p.next()
	switch {
	case p.bad:
		return h, bad("the header of a block")
	case flags&xzFilters != 0 || id != xzFilter:
		return h, fmt.Errorf("a block has another filter than LZMA2: %w; unpack it first: unxz -k",
			ondisk.ErrUnsupported)
	case props != 1 || len(p.b) == 0 || p.b[0] > 40 || !ondisk.IsZero(p.b[1:]):
		return h, bad("the header of a block")
	}
	bits := int64(p.b[0])
	if h.dict = (2 | bits&1) << (bits/2 + 11); bits == 40 {
		h.dict = units.GiB*4 - 1
	}
	return h, nil
}

// endBlock reads the padding and the check after the data of a block.
func (r *xzReader) endBlock() error {
	r.block = nil
	packed := r.in.at - r.data
	if h := r.header; h.packed >= 0 && h.packed != packed || h.size >= 0 && h.size != r.size {
		return bad("a size in the header of a block")
	}
	pad, err := r.take(int(-packed & 3))
	if err != nil {
		return err
	}
	if !ondisk.IsZero(pad) {
		return bad("the padding of a block")
	}
	unpadded := r.in.at - r.began - int64(len(pad))
	if r.sum != nil {
		want, err := r.take(r.sum.Size())
		if err != nil {
			return err
		}
		unpadded += int64(len(want))
		if got := r.sum.Sum(nil); !bytes.Equal(littleEndian(r.check, got), want) {
			return errors.New("the checksum does not fit the data")
		}
	}
	r.blocks++
	record := binary.AppendUvarint(binary.AppendUvarint(nil, ondisk.U64(unpadded)), ondisk.U64(r.size))
	r.recorded += int64(len(record))
	_, _ = r.records.Write(record) // never fails
	return nil
}

// littleEndian returns a check in the byte order of .xz.
func littleEndian(check byte, sum []byte) []byte {
	if check == 10 {
		return sum
	}
	out := make([]byte, len(sum))
	for i := range sum {
		out[i] = sum[len(sum)-1-i]
	}
	return out
}

// index reads the rest of an index and the footer of its stream, and compares both with the blocks read. The first byte
// of the index was read already.
func (r *xzReader) index() error {
	begin := binary.AppendUvarint([]byte{0}, r.blocks)
	got, err := r.take(len(begin) - 1)
	if err != nil {
		return err
	}
	fits := bytes.Equal(got, begin[1:])
	crc, records := crc32.NewIEEE(), sha256.New()
	_, _ = crc.Write(begin) // never fails
	if _, err := io.CopyN(io.MultiWriter(crc, records), r.in, r.recorded); err != nil {
		return noEOF(err)
	}
	fits = fits && bytes.Equal(records.Sum(nil), r.records.Sum(nil))
	size := int64(len(begin)) + r.recorded
	end := make([]byte, -size&3)
	_, _ = crc.Write(end)
	size += int64(len(end)) + crc32.Size
	footer := binary.LittleEndian.AppendUint32(nil, uint32(size/4-1)) //nolint:gosec // of 16 GiB at most
	footer = append(footer, 0, r.check)
	end = binary.LittleEndian.AppendUint32(end, crc.Sum32())
	end = append(binary.LittleEndian.AppendUint32(end, crc32.ChecksumIEEE(footer)), footer...)
	if got, err = r.take(len(end) + len(xzFooter)); err == nil && (!fits || string(got) != string(end)+xzFooter) {
		err = bad("the index or the footer")
	}
	return err
}

// vints decodes variable-length integers. Spec: The .xz File Format 1.2.1, section 1.2.
type vints struct {
	b   []byte
	bad bool
}

func (p *vints) next() int64 {
	n, size := binary.Uvarint(p.b)
	if p.bad = p.bad || size <= 0 || n > math.MaxInt64; p.bad {
		return 0
	}
	p.b = p.b[size:]
	return ondisk.I64(n)
}

// maxIndex bounds an index that is read for its stated size, in bytes.
const maxIndex = 16 * units.MiB

// statedXZ returns the sum of the unpacked sizes in the index of the only stream. It returns -1 if the file has more
// streams, padding, or no index at its end.
func statedXZ(f ondisk.Source) (total int64) {
	end := f.Size() - xzHeader
	if end < xzHeader {
		return -1
	}
	footer, err := ondisk.Bytes(f, end, xzHeader)
	if err != nil {
		return -1
	}
	size := (int64(binary.LittleEndian.Uint32(footer[4:])) + 1) * 4
	if string(footer[10:]) != xzFooter || size > min(maxIndex, end-xzHeader) {
		return -1
	}
	b, err := ondisk.Bytes(f, end-size, size)
	if err != nil {
		return -1
	}
	p, packed := vints{b: b[1:]}, int64(xzHeader)
	for n := p.next(); n > 0; n-- {
		unpadded, unpacked := p.next(), p.next()
		if p.bad || unpadded > f.Size() || unpacked > math.MaxInt64/4-total {
			return -1
		}
		packed, total = packed+units.AlignUp(unpadded, 4), total+unpacked
	}
	if packed != end-size {
		return -1
	}
	return total
}
