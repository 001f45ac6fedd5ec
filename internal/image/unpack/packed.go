// This part of the package decodes compressed streams and lists archives. It bounds the cost of untrusted files, and is
// independent of images.

package unpack

import (
	"archive/zip"
	"bufio"
	"bytes"
	"cmp"
	"compress/bzip2"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"math"
	"slices"
	"unicode/utf8"

	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// Compression formats, as users write them.
const (
	Gzip  = "gzip"
	XZ    = "xz"
	Zstd  = "zstd"
	Bzip2 = "bzip2"
)

// formats maps a compression format to its decoder. stated returns the unpacked size that the file states, or -1 if it
// states none.
var formats = map[string]struct {
	open   func(in *bufio.Reader) (io.Reader, error)
	stated func(f ondisk.Source) int64
}{
	Gzip:  {openGzip, unknown},
	XZ:    {openXZ, statedXZ},
	Zstd:  {openZstd, statedZstd},
	Bzip2: {func(in *bufio.Reader) (io.Reader, error) { return bzip2.NewReader(in), nil }, unknown},
}

// unknown is the stated size of formats without one.
func unknown(ondisk.Source) int64 { return -1 }

// maxIdle bounds the number of successive packed bytes that unpack to nothing, such as empty gzip members.
const maxIdle = 16 * units.MiB

// Limits of the unpacked size, in bytes: maxGrowth for each packed byte, plus maxSpare. Only bzip2 exceeds maxGrowth:
// its blocks hold 45 MB of zeros in 40 bytes. Zeros take no room in a spool, so nothing else would end the work. Spec:
// RFC 8878, 3.1.1.2.2: 128 KiB in a block of 4 bytes.
const (
	maxGrowth = 128 * units.KiB / 4
	maxSpare  = units.GiB
)

// Reader unpacks a stream or a member of an archive from front to back. Its errors have a class, except for read errors
// of the file.
type Reader struct {
	// Stated is the unpacked size that the file states, or -1. It can be wrong.
	Stated int64
	what   string // for errors
	in     input
	ahead  *bufio.Reader // of in
	out    io.Reader
	err    error
}

// OpenStream begins to unpack a compressed file.
func OpenStream(stream string, f ondisk.Source) (*Reader, error) {
	format := formats[stream]
	if format.open == nil {
		return nil, fmt.Errorf("%s: %w", stream, ondisk.ErrUnsupported)
	}
	r := &Reader{
		what: stream + " stream", Stated: format.stated(f), in: input{r: io.NewSectionReader(f, 0, f.Size())},
	}
	var err error
	r.ahead = bufio.NewReaderSize(&r.in, buffer)
	if r.out, err = format.open(r.ahead); err != nil {
		return nil, r.because(noEOF(err))
	}
	return r, nil
}

// buffer is the number of packed bytes that are read at once.
const buffer = 256 << 10

// Read follows the contract of io.Reader.
func (r *Reader) Read(p []byte) (int, error) {
	if r.err != nil {
		return 0, r.err
	}
	n, err := r.out.Read(p[:min(len(p), buffer)]) // a larger read would count its packed bytes as idle
	if grown := r.in.grow(n, r.ahead.Buffered()); grown != nil {
		n, err = 0, grown
	}
	if err != nil {
		r.err = r.because(err)
	}
	return n, r.err
}

// Taken returns the number of packed bytes read so far.
func (r *Reader) Taken() int64 { return r.in.read }

// because adds the class to an error of a stream.
func (r *Reader) because(err error) error {
	switch {
	case r.in.err != nil:
		return r.in.err
	case errors.Is(err, io.EOF):
		return io.EOF
	case errors.Is(err, io.ErrUnexpectedEOF):
		return ondisk.In(ondisk.ErrFormat, "%s: incomplete, or followed by other data: the file is truncated or "+
			"damaged, get it again", r.what)
	case errors.Is(err, zstd.ErrWindowSizeExceeded), errors.Is(err, zstd.ErrDecoderSizeExceeded):
		return fmt.Errorf("%s: %w of %d MiB for its window; unpack it first: zstd -d --long=31", r.what,
			ondisk.ErrLimit, maxWindow/units.MiB)
	case errors.Is(err, ondisk.ErrLimit), errors.Is(err, ondisk.ErrUnsupported):
		return fmt.Errorf("%s: %w", r.what, err)
	}
	return ondisk.In(ondisk.ErrFormat, "%s: %w: the file is damaged, get it again", r.what, err)
}

// input counts the bytes read from a file, and fails if too many of them unpack to nothing.
type input struct {
	r          io.Reader
	read, idle int64
	out        int64 // bytes unpacked from them
	err        error // read error or exceeded limit
}

// grow adds n unpacked bytes. ahead is the number of packed bytes read but not yet unpacked. It returns ErrLimit if the
// growth exceeds the bound.
func (in *input) grow(n, ahead int) error {
	if n > 0 {
		in.idle = 0
	}
	in.out += int64(n)
	return checkGrowth(in.read-int64(ahead), in.out)
}

// checkGrowth returns ErrLimit if the packed bytes unpack to too many bytes.
func checkGrowth(packed, unpacked int64) error {
	if (unpacked-maxSpare)/maxGrowth <= packed {
		return nil
	}
	return fmt.Errorf("%d bytes of the file unpack to %s: %w of %s and %d times as many; nearly all of it is "+
		"zeros; unpack it to a sparse file first: bzip2 -dc FILE | dd bs=1M conv=sparse of=IMAGE", packed,
		units.Format(unpacked), ondisk.ErrLimit, units.Format(maxSpare), maxGrowth)
}

// Read follows the contract of io.Reader.
func (in *input) Read(p []byte) (int, error) {
	if in.idle > maxIdle {
		in.err = fmt.Errorf("%w: %d bytes of the file unpack to nothing", ondisk.ErrLimit, in.idle)
		return 0, in.err
	}
	n, err := in.r.Read(p)
	in.read, in.idle = in.read+int64(n), in.idle+int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		in.err = err
	}
	return n, err
}

// maxWindow is the largest supported window of a zstd frame, in bytes: the same as the largest dictionary of xz.
const maxWindow = maxDict

func openZstd(in *bufio.Reader) (io.Reader, error) {
	return zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxWindow(uint64(maxWindow)))
}

// statedZstd returns the content size in the header of the first frame. Most files have only one frame.
func statedZstd(f ondisk.Source) int64 {
	b, err := ondisk.Bytes(f, 0, min(f.Size(), zstd.HeaderMaxSize))
	var h zstd.Header
	if err != nil || h.Decode(b) != nil || !h.HasFCS || h.Skippable || h.FrameContentSize > math.MaxInt64 {
		return -1
	}
	return ondisk.I64(h.FrameContentSize)
}

// members reads the members of a gzip file one after the other. Zeros after the last member are padding, for example
// from a tape. Spec: RFC 1952, 2.2.
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
				err = nil // of the member: the next call returns it again
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

// errBehind reports bytes after the end of a stream that are neither another stream nor padding.
var errBehind = errors.New("it is followed by other data")

// next begins the next member. It returns io.EOF after the last one.
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

// noEOF turns io.EOF into io.ErrUnexpectedEOF.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// glance is the number of bytes unpacked from each member of a zip archive to find the images.
const glance = 64 * units.KiB

// head returns a member of an archive for reading its first bytes.
func (b *box) head(f *file) (*open, error) {
	if f.zip == nil {
		return b.opened(part{b.base, f.at}, f.name), nil
	}
	h := &head{size: f.size()}
	r, err := b.zip.open(f.zip)
	if err == nil {
		h.known, err = io.ReadAll(io.LimitReader(r, glance))
	}
	if err != nil && (!ondisk.Understood(err) || errors.Is(err, ondisk.ErrLimit)) {
		return nil, err // a limit for one member holds for all
	}
	return b.opened(h, f.name), nil
}

// HeadSize is the number of bytes unpacked from an image that is judged by its head.
const HeadSize = 32 * units.MiB

// ErrBeyond is the error of a read beyond the unpacked head.
var ErrBeyond = fmt.Errorf("it is past the first %s, the part that is unpacked: %w", units.Format(HeadSize),
	ondisk.ErrLimit)

// UnknownSize is the size of a file of unknown unpacked size.
const UnknownSize = 1 << 60

// firstPiece is the initial buffer for an image, in bytes. With HeadSize for each image, a worker whose garbage
// collector gets no processor on a busy machine reaches its memory limit.
const firstPiece = units.MiB

// unpackHead unpacks the first bytes. stated is the stated size of the whole file, or -1.
func unpackHead(r io.Reader, stated int64) (content, error) {
	h := &head{known: make([]byte, firstPiece), strict: true}
	n, err := io.ReadFull(r, h.known)
	if err == nil {
		h.known = append(make([]byte, 0, HeadSize), h.known...)[:HeadSize]
		var more int
		more, err = io.ReadFull(r, h.known[n:])
		n += more
	}
	h.known = h.known[:n]
	switch {
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		h.size = int64(n)
	case err != nil:
		return nil, err
	case stated < int64(n):
		h.size = UnknownSize
	default:
		h.size = stated
	}
	return h, nil
}

// head is a file of which only the first bytes were unpacked. If strict is set, a read beyond them fails. Otherwise the
// rest reads as zeros: the format shows in the first bytes or in the extension.
type head struct {
	known  []byte
	size   int64
	strict bool
}

// ReadAt follows the contract of io.ReaderAt.
func (h *head) ReadAt(p []byte, off int64) (int, error) {
	end := off + int64(len(p))
	if h.strict && end > int64(len(h.known)) && off < h.size {
		return 0, ErrBeyond
	}
	n := min(int64(len(p)), max(0, h.size-off))
	clear(p)
	if off < int64(len(h.known)) {
		copy(p[:n], h.known[off:])
	}
	if n < int64(len(p)) {
		return int(n), io.EOF
	}
	return int(n), nil
}

// Size returns the size of the whole file.
func (h *head) Size() int64 { return h.size }

// Extent returns everything as data.
func (h *head) Extent(off, limit int64) (disk.Extent, error) {
	return disk.Extent{Range: disk.Range{Off: off, Len: limit}}, nil
}

// Limits of an archive.
const (
	maxFiles     = 4096
	maxDirectory = 4 * units.MiB
)

// archive is a zip archive, and the source for archive/zip. That package allocates memory for the number of files that
// the end of a zip64 archive claims, and reads directory entries without a limit. archive bounds both until the central
// directory is read.
type archive struct {
	ondisk.Source
	zip  *zip.Reader // nil until the central directory is read
	left int64       // bytes that may still be read for the central directory
	err  error       // read error or exceeded limit
}

// ReadAt follows the contract of io.ReaderAt.
func (a *archive) ReadAt(p []byte, off int64) (int, error) {
	const zip64End, files = "PK\x06\x06", 32 // APPNOTE.TXT 6.3.10, 4.3.14
	if off < 0 || off > a.Size() {
		return 0, io.ErrUnexpectedEOF
	}
	n, err := a.Source.ReadAt(p, off)
	if err != nil && !errors.Is(err, io.EOF) {
		a.err = err
	}
	if a.zip != nil {
		return n, err
	}
	a.left -= int64(len(p))
	claimed := n >= files+8 && string(p[:4]) == zip64End && binary.LittleEndian.Uint64(p[files:]) > maxFiles
	if a.left < 0 || claimed {
		a.err = tooManyFiles()
		return 0, a.err
	}
	return n, err
}

func tooManyFiles() error {
	return fmt.Errorf("zip archive: %w of %d files and %d bytes of their list", ondisk.ErrLimit, maxFiles, maxDirectory)
}

// because adds the class to an error of the archive.
func (a *archive) because(err error) error {
	if a.err != nil {
		return a.err
	}
	return ondisk.In(ondisk.ErrFormat, "zip archive: %w; the archive is truncated or damaged, get it again", err)
}

// openZip reads the central directory of a zip archive. It converts names to UTF-8.
func openZip(f ondisk.Source) (*archive, error) {
	a := &archive{Source: f, left: maxDirectory}
	z, err := zip.NewReader(a, f.Size())
	switch {
	case err == nil && a.severalParts():
		return nil, fmt.Errorf("zip archive of several parts: %w; join them first: zip -s 0 --out",
			ondisk.ErrUnsupported)
	case err != nil && !errors.Is(err, zip.ErrInsecurePath):
		return nil, a.because(err)
	case len(z.File) > maxFiles:
		return nil, tooManyFiles()
	}
	a.zip = z
	for _, x := range z.File {
		if !utf8.ValidString(x.Name) { // APPNOTE.TXT, appendix D: no UTF-8 flag: IBM PC code page
			x.Name = ondisk.DecodeText("ibm437", x.Name)
		}
	}
	return a, a.apart()
}

// severalParts reports whether the end record of the central directory belongs to a multi-part archive. Spec:
// APPNOTE.TXT, 4.3.16.
func (a *archive) severalParts() bool {
	const size, most = 22, 22 + math.MaxUint16
	n := min(a.Size(), most)
	b, err := ondisk.Bytes(a.Source, a.Size()-n, n)
	at := bytes.LastIndex(b, []byte("PK\x05\x06"))
	return err == nil && at >= 0 && len(b)-at >= size && binary.LittleEndian.Uint32(b[at+4:]) != 0
}

// apart refuses members that share packed bytes: each of them would cost as much as all of those bytes.
func (a *archive) apart() error {
	type packed struct {
		disk.Range
		name string
	}
	var all []packed
	for _, x := range a.zip.File {
		at, err := x.DataOffset()
		if err == nil && (at > a.Size() || x.CompressedSize64 > ondisk.U64(a.Size()-at) ||
			x.UncompressedSize64 > math.MaxInt64) {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return a.because(fmt.Errorf("the file %.256q is in another part of the archive: %w", x.Name, err))
		}
		all = append(all, packed{disk.Range{Off: at, Len: ondisk.I64(x.CompressedSize64)}, x.Name})
	}
	slices.SortFunc(all, func(a, b packed) int { return cmp.Compare(a.Off, b.Off) })
	for i := 1; i < len(all); i++ {
		if all[i-1].End() > all[i].Off || all[i-1].Off == all[i].Off {
			return a.because(fmt.Errorf("the files %.256q and %.256q overlap", all[i-1].name, all[i].name))
		}
	}
	return nil
}

// bzipped is the number of the bzip2 compression method in zip archives. Spec: APPNOTE.TXT 6.3.10, 4.4.5.
const bzipped = 12

// unzippers maps compression methods of zip archives to their decoders.
var unzippers = map[uint16]func(in io.Reader) io.Reader{
	zip.Store:   func(in io.Reader) io.Reader { return in },
	zip.Deflate: func(in io.Reader) io.Reader { return flate.NewReader(in) },
	bzipped:     bzip2.NewReader,
}

// open begins to unpack a member of the archive.
func (a *archive) open(x *zip.File) (*Reader, error) {
	const encrypted, descriptor = 1, 8
	what := fmt.Sprintf("file %.256q of the archive", x.Name)
	unzip := unzippers[x.Method]
	switch {
	case x.Flags&encrypted != 0:
		return nil, fmt.Errorf("%s is encrypted: %w; unpack it first: unzip", what, ondisk.ErrUnsupported)
	case unzip == nil:
		return nil, fmt.Errorf("%s is compressed by method %d: %w, only deflate, bzip2 and stored are; unpack it "+
			"first: 7z x", what, x.Method, ondisk.ErrUnsupported)
	}
	r := &Reader{what: what, Stated: ondisk.I64(x.UncompressedSize64)}
	r.ahead = bufio.NewReader(&r.in)
	if err := checkGrowth(ondisk.I64(x.CompressedSize64), r.Stated); err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	a.zip.RegisterDecompressor(x.Method, func(packed io.Reader) io.ReadCloser {
		r.in.r = packed
		return io.NopCloser(unzip(r.ahead))
	})
	x.Flags &^= descriptor // the central directory has the same checksum
	out, err := x.Open()
	if err != nil {
		return nil, a.because(err)
	}
	r.out = &summed{Reader: out, sum: crc32.NewIEEE(), want: x.CRC32}
	return r, nil
}

// summed verifies the checksum of a member at its end. Package zip treats a checksum of 0 as none.
type summed struct {
	io.Reader
	sum  hash.Hash32
	want uint32
}

// Read follows the contract of io.Reader.
func (s *summed) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	_, _ = s.sum.Write(p[:n]) // never fails
	if err == io.EOF && s.sum.Sum32() != s.want {
		err = zip.ErrChecksum
	}
	return n, err
}
