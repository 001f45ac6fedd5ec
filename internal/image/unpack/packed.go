// This part of the package decodes compressed streams and lists archives, with bounds for what a file of a stranger
// can cost. It knows no images.

package unpack

import (
	"bufio"
	"cmp"
	"compress/bzip2"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// Streams, as users write them.
const (
	Gzip  = "gzip"
	XZ    = "xz"
	Zstd  = "zstd"
	Bzip2 = "bzip2"
)

// formats open a stream, and return how many bytes it says that it unpacks to, -1 where it does not say it.
var formats = map[string]struct {
	open   func(in *bufio.Reader) (io.Reader, error)
	stated func(f ondisk.Source) int64
}{
	Gzip:  {openGzip, unknown},
	XZ:    {openXZ, statedXZ},
	Zstd:  {openZstd, statedZstd},
	Bzip2: {func(in *bufio.Reader) (io.Reader, error) { return bzip2.NewReader(in), nil }, unknown},
}

// Known reports whether a stream can be unpacked.
func Known(stream string) bool { return formats[stream].open != nil }

// unknown is the length of a stream that does not say it.
func unknown(ondisk.Source) int64 { return -1 }

// maxIdle is how many packed bytes in a row may unpack to nothing, such as empty members of gzip.
const maxIdle = 16 * units.MiB

// What packed bytes may unpack to, in bytes: maxGrowth for each of them, and as many more. No stream but bzip2 of zeros
// reaches the former, whose blocks hold 45 MB of them in 40 bytes. Zeros take no room in a spool, so that nothing else
// ends the work. Spec: RFC 8878, 3.1.1.2.2: 128 KiB in a block of 4 bytes.
const (
	maxGrowth = 128 * units.KiB / 4
	maxSpare  = units.GiB
)

// Unpacker reads what a stream or a file of an archive unpacks to, and counts the packed bytes that it has read.
type Unpacker interface {
	io.Reader
	Taken() int64
}

// Reader unpacks a stream, front to back. An error that is not one of reading the file has the class of what is wrong.
type Reader struct {
	// Stated is how many bytes the stream says that it unpacks to, -1 where it does not say it. It can be wrong.
	Stated int64
	stream string
	in     input
	ahead  *bufio.Reader // of in
	out    io.Reader
	err    error
}

// OpenStream begins to unpack a file that holds a stream.
func OpenStream(stream string, f ondisk.Source) (*Reader, error) {
	format := formats[stream]
	if format.open == nil {
		return nil, fmt.Errorf("%s: %w", stream, ondisk.ErrUnsupported)
	}
	r := &Reader{stream: stream, Stated: format.stated(f), in: input{r: io.NewSectionReader(f, 0, f.Size())}}
	var err error
	r.ahead = bufio.NewReaderSize(&r.in, buffer)
	if r.out, err = format.open(r.ahead); err != nil {
		return nil, r.because(noEOF(err))
	}
	return r, nil
}

// buffer is how many packed bytes are read at once.
const buffer = 256 << 10

// Read follows the contract of io.Reader.
func (r *Reader) Read(p []byte) (int, error) {
	if r.err != nil {
		return 0, r.err
	}
	n, err := r.out.Read(p[:min(len(p), buffer)]) // or the packed bytes of all of it would look idle
	if grown := r.in.grow(n, r.ahead.Buffered()); grown != nil {
		n, err = 0, grown
	}
	if err != nil {
		r.err = r.because(err)
	}
	return n, r.err
}

// Taken returns how many packed bytes were read.
func (r *Reader) Taken() int64 { return r.in.read }

// because returns the error of a stream with its class.
func (r *Reader) because(err error) error {
	switch {
	case r.in.err != nil:
		return r.in.err
	case errors.Is(err, io.EOF):
		return io.EOF
	case errors.Is(err, io.ErrUnexpectedEOF) && r.stream == Zstd:
		return ondisk.In(ondisk.ErrFormat, "%s stream: it ends in the middle of a frame, or in bytes that are none: "+
			"the file is truncated, or has other bytes at its end; get it again", r.stream)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return ondisk.In(ondisk.ErrFormat, "%s stream: it ends in the middle: the file is truncated, get it again",
			r.stream)
	case errors.Is(err, zstd.ErrWindowSizeExceeded), errors.Is(err, zstd.ErrDecoderSizeExceeded):
		return fmt.Errorf("%s stream: %w of %d MiB for its window; unpack it where it is: zstd -d --long=31", r.stream,
			ondisk.ErrLimit, maxWindow/units.MiB)
	case errors.Is(err, ondisk.ErrLimit), errors.Is(err, ondisk.ErrUnsupported):
		return fmt.Errorf("%s stream: %w", r.stream, err)
	}
	return ondisk.In(ondisk.ErrFormat, "%s stream: %w: the file is damaged, get it again", r.stream, err)
}

// input counts what is read of a file, and ends where too much of it unpacks to nothing.
type input struct {
	r          io.Reader
	read, idle int64
	out        int64 // bytes that they were unpacked to
	err        error // of reading, or the bound
}

// grow notes that n more bytes were unpacked; ahead were read and are not unpacked yet. Its error is the bound.
func (in *input) grow(n, ahead int) error {
	if n > 0 {
		in.idle = 0
	}
	in.out += int64(n)
	return checkGrowth(in.read-int64(ahead), in.out)
}

// checkGrowth returns the error of some packed bytes that unpack to too many.
func checkGrowth(packed, unpacked int64) error {
	if (unpacked-maxSpare)/maxGrowth <= packed {
		return nil
	}
	return fmt.Errorf("%d bytes of the file unpack to %s: %w of %s and %d times as many; nearly all are zeros: unpack "+
		"it to a sparse file first, as with bzip2 -dc FILE | dd bs=1M conv=sparse of=IMAGE", packed,
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

// maxWindow is the largest window of a zstd frame, in bytes: as large as the largest dictionary of xz.
const maxWindow = maxDict

func openZstd(in *bufio.Reader) (io.Reader, error) {
	return zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxWindow(uint64(maxWindow)))
}

// statedZstd returns the size of content in the header of the first frame, which is all of most files.
func statedZstd(f ondisk.Source) int64 {
	b, err := ondisk.Bytes(f, 0, min(f.Size(), zstd.HeaderMaxSize))
	var h zstd.Header
	if err != nil || h.Decode(b) != nil || !h.HasFCS || h.Skippable {
		return -1
	}
	return ondisk.I64(h.FrameContentSize)
}

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

// glance is how much of each file of a zip archive is unpacked to find out which of them are images, in bytes.
const glance = 64 * units.KiB

// head returns a file of an archive for a look at its first bytes.
func (b *box) head(f *file) (*open, error) {
	if f.zip == nil {
		return b.opened(part{b.base, f.at}, f.name), nil
	}
	h := &head{size: f.zip.Size}
	r, err := f.zip.Open(b.file)
	if err == nil {
		h.known, err = io.ReadAll(io.LimitReader(r, glance))
	}
	if err != nil && (!isFileError(err) || errors.Is(err, ondisk.ErrLimit)) {
		return nil, err // a limit for one holds for all
	}
	return b.opened(h, f.name), nil
}

// HeadSize is how much is unpacked of an image that is judged by its head, in bytes.
const HeadSize = 32 * units.MiB

// ErrBeyond is the error of reading what lies behind a head.
var ErrBeyond = fmt.Errorf("it lies behind the first %s, and no more is unpacked: %w", units.Format(HeadSize),
	ondisk.ErrLimit)

// Unsaid is the size of a file that does not say how much it unpacks to.
const Unsaid = 1 << 60

// firstPiece is the memory that a small image takes, in bytes. With HeadSize for each, a worker whose collector gets no
// processor on a busy machine comes to its limit of memory.
const firstPiece = units.MiB

// unpackHead unpacks the first bytes. stated is how many there should be of all, -1 for unknown.
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
		h.size = Unsaid
	default:
		h.size = stated
	}
	return h, nil
}

// head is a file of which only the first bytes were unpacked. Without strict, the others read as zeros: what a file is
// shows at its start, or it is what its name says.
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

// Extent knows no holes.
func (h *head) Extent(off, limit int64) (disk.Extent, error) {
	return disk.Extent{Range: disk.Range{Off: off, Len: limit}}, nil
}

// isFileError reports whether an error is one of what a file holds, which opening it will say.
func isFileError(err error) bool {
	return errors.Is(err, ondisk.ErrFormat) || errors.Is(err, ondisk.ErrUnsupported) || errors.Is(err, ondisk.ErrLimit)
}

// Structures of a zip archive, in bytes. Spec: APPNOTE.TXT 6.3.10, sections 4.3 and 4.4.
const (
	zipLocal     = "PK\x03\x04"
	zipCentral   = "PK\x01\x02"
	zipEnd       = "PK\x05\x06"
	zipEnd64     = "PK\x06\x06"
	zipLocator64 = "PK\x06\x07"

	zipLocalSize     = 30
	zipCentralSize   = 46
	zipEndSize       = 22
	zipEnd64Size     = 56
	zipLocator64Size = 20
	zipComment       = 0xffff
)

// What an archive can have at most.
const (
	maxFiles     = 4096
	maxDirectory = 4 * units.MiB
)

// File is a file in a zip archive.
type File struct {
	Name   string
	Size   int64  // bytes, unpacked
	Packed int64  // bytes in the archive
	local  int64  // where its header lies
	by     uint16 // method
	flags  uint16
	sum    uint32
}

var le = binary.LittleEndian

// directory is where the list of the files of an archive lies.
type directory struct{ off, size, files int64 }

// Files lists the files of a zip archive; folders, links and the like are none.
func Files(f ondisk.Source) ([]File, error) {
	d, err := findDirectory(f)
	if err != nil {
		return nil, err
	}
	if d.files > maxFiles || d.size > maxDirectory {
		return nil, fmt.Errorf("zip archive: %w of %d files and %d bytes of their list", ondisk.ErrLimit, maxFiles,
			maxDirectory)
	}
	b, err := ondisk.Bytes(f, d.off, d.size)
	if err != nil {
		return nil, err
	}
	var out, all []File
	for range d.files {
		x, regular, rest, err := parseFile(b)
		if err != nil {
			return nil, err
		}
		if b, all = rest, append(all, x); regular {
			out = append(out, x)
		}
	}
	return out, apart(all)
}

// apart refuses files that share packed bytes: each of them would cost as much as these.
func apart(files []File) error {
	slices.SortFunc(files, func(a, b File) int { return cmp.Compare(a.local, b.local) })
	for i, x := range files[:max(len(files)-1, 0)] {
		if next := files[i+1]; next.local-x.local < zipLocalSize || next.local-x.local-zipLocalSize < x.Packed {
			return malformed(fmt.Sprintf("the files %.256q and %.256q overlap", x.Name, next.Name), next.local)
		}
	}
	return nil
}

// malformed returns the error of a zip archive.
func malformed(what string, off int64) error {
	return ondisk.In(ondisk.ErrFormat, "zip archive at %#x: %s; the archive is truncated or damaged, get it again", off,
		what)
}

// findDirectory finds the end of a zip archive, and by it the list of its files.
func findDirectory(f ondisk.Source) (d directory, err error) {
	size := f.Size()
	n := min(size, zipEndSize+zipComment)
	b, err := ondisk.Bytes(f, size-n, n)
	if err != nil {
		return d, err
	}
	at := len(b) - zipEndSize
	for ; at >= 0; at-- {
		if string(b[at:at+4]) == zipEnd && at+zipEndSize+int(le.Uint16(b[at+20:])) == len(b) {
			break
		}
	}
	if at < 0 {
		return d, malformed("its end is missing", size)
	}
	end, e := size-n+int64(at), b[at:]
	d = directory{int64(le.Uint32(e[16:])), int64(le.Uint32(e[12:])), int64(le.Uint16(e[10:]))}
	disks := uint32(le.Uint16(e[4:])) | uint32(le.Uint16(e[6:]))
	if at >= zipLocator64Size && string(b[at-zipLocator64Size:][:4]) == zipLocator64 {
		end = ondisk.I64(le.Uint64(b[at-zipLocator64Size+8:]))
		if e, err = ondisk.Bytes(f, end, zipEnd64Size); err != nil {
			return d, err
		}
		if string(e[:4]) != zipEnd64 {
			return d, malformed("no end of a zip64 archive", end)
		}
		d = directory{
			ondisk.I64(le.Uint64(e[48:])), ondisk.I64(le.Uint64(e[40:])), ondisk.I64(le.Uint64(e[32:])),
		}
		disks = le.Uint32(e[16:]) | le.Uint32(e[20:])
	}
	switch {
	case disks != 0:
		return d, fmt.Errorf("zip archive of several parts: %w; join them first: zip -s 0 --out", ondisk.ErrUnsupported)
	case d.off > end || d.size != end-d.off:
		return d, malformed("the list of files lies elsewhere", d.off)
	case d.files > d.size/zipCentralSize:
		return d, malformed("the list is too short for its files", d.off)
	}
	return d, nil
}

// parseFile decodes the first entry of a list, and returns the rest of it.
func parseFile(b []byte) (x File, regular bool, rest []byte, err error) {
	if len(b) < zipCentralSize || string(b[:4]) != zipCentral {
		return x, false, nil, malformed("an entry of its list is missing", 0)
	}
	name, extra, comment := int(le.Uint16(b[28:])), int(le.Uint16(b[30:])), int(le.Uint16(b[32:]))
	if len(b) < zipCentralSize+name+extra+comment {
		return x, false, nil, malformed("an entry of its list is cut off", 0)
	}
	x = File{
		Name: string(b[zipCentralSize:][:name]), Size: int64(le.Uint32(b[24:])), Packed: int64(le.Uint32(b[20:])),
		local: int64(le.Uint32(b[42:])), by: le.Uint16(b[10:]), flags: le.Uint16(b[8:]), sum: le.Uint32(b[16:]),
	}
	if !utf8.ValidString(x.Name) { // APPNOTE.TXT, appendix D: without the flag of UTF-8 in that of the IBM PC
		x.Name = ondisk.DecodeText("ibm437", x.Name)
	}
	x.zip64(b[zipCentralSize+name:][:extra])
	const unix, format, link = 3, 0o170000, 0o120000 // what came through a pipe has the mode of one
	regular = !strings.HasSuffix(x.Name, "/") && (b[5] != unix || le.Uint32(b[38:])>>16&format != link)
	return x, regular, b[zipCentralSize+name+extra+comment:], nil
}

// zip64 takes the numbers that do not fit into 32 bits from an extra field, which has them in this order.
func (x *File) zip64(extra []byte) {
	const id, wide = 1, 0xffffffff
	for len(extra) >= 4 {
		n := int(le.Uint16(extra[2:]))
		field := extra[4:min(len(extra), 4+n)]
		if le.Uint16(extra) == id {
			for _, at := range []*int64{&x.Size, &x.Packed, &x.local} {
				if *at == wide && len(field) >= 8 {
					*at, field = ondisk.I64(le.Uint64(field)), field[8:]
				}
			}
			return
		}
		extra = extra[min(len(extra), 4+n):]
	}
}

// zipMethods are the names of methods by their numbers. Spec: APPNOTE.TXT 6.3.10, 4.4.5.
var zipMethods = map[uint16]string{
	stored: "stored", 1: "shrink", 2: "reduce", 3: "reduce", 4: "reduce", 5: "reduce", 6: "implode",
	deflated: "deflate", 9: "deflate64", 10: "PKWARE DCL implode", bzipped: "bzip2", 14: "LZMA", 16: "IBM CMPSC",
	18: "IBM TERSE", 19: "IBM LZ77", 20: "zstd", 93: "zstd", 94: "MP3", 95: "xz", 96: "JPEG", 97: "WavPack", 98: "PPMd",
	99: "AES",
}

// Methods that are read.
const (
	stored   = 0
	deflated = 8
	bzipped  = 12
)

// method returns the name of the method that packs the file.
func (x *File) method() string {
	if name, ok := zipMethods[x.by]; ok {
		return name
	}
	return fmt.Sprintf("method %d", x.by)
}

// within returns an error of the file's bytes.
func (x *File) within(err error) error {
	return fmt.Errorf("file %.256q of the archive: %w", x.Name, err)
}

// Open begins to unpack the file.
func (x *File) Open(f ondisk.Source) (Unpacker, error) {
	const encrypted = 1
	switch {
	case x.flags&encrypted != 0:
		return nil, fmt.Errorf("file %.256q of the archive is encrypted: %w; unpack it where it is: unzip", x.Name,
			ondisk.ErrUnsupported)
	case !slices.Contains([]uint16{stored, deflated, bzipped}, x.by):
		return nil, fmt.Errorf("file %.256q of the archive is packed with %s: %w, want deflate, bzip2 or stored; "+
			"unpack it where it is: 7z x", x.Name, x.method(), ondisk.ErrUnsupported)
	}
	if err := checkGrowth(x.Packed, x.Size); err != nil {
		return nil, x.within(err)
	}
	head, err := ondisk.Bytes(f, x.local, zipLocalSize)
	if err != nil {
		return nil, err
	}
	at := x.local + zipLocalSize + int64(le.Uint16(head[26:])) + int64(le.Uint16(head[28:]))
	if string(head[:4]) != zipLocal || at > f.Size() || x.Packed > f.Size()-at {
		return nil, malformed(fmt.Sprintf("the file %.256q lies elsewhere", x.Name), x.local)
	}
	in := &input{r: io.NewSectionReader(f, at, x.Packed)}
	r := &fileReader{file: x, in: in, ahead: bufio.NewReader(in), left: x.Size, sum: crc32.NewIEEE()}
	switch x.by {
	case deflated:
		r.out = flate.NewReader(r.ahead)
	case bzipped:
		r.out = bzip2.NewReader(r.ahead)
	default:
		r.out = r.ahead
	}
	return r, nil
}

// fileReader reads a file of an archive, which must have its size and its checksum.
type fileReader struct {
	file  *File
	in    *input
	ahead *bufio.Reader // of in
	out   io.Reader
	left  int64
	sum   hash.Hash32
}

// Read follows the contract of io.Reader.
func (r *fileReader) Read(p []byte) (int, error) {
	n, err := r.out.Read(p)
	if grown := r.in.grow(n, r.ahead.Buffered()); grown != nil {
		return 0, r.file.within(grown)
	}
	r.sum.Write(p[:n])
	r.left -= int64(n)
	switch {
	case r.in.err != nil:
		return n, r.in.err
	case r.left < 0, err != nil && !errors.Is(err, io.EOF):
		return 0, r.damaged()
	case err != nil && (r.left > 0 || r.sum.Sum32() != r.file.sum):
		return n, r.damaged()
	}
	return n, err
}

// Taken returns how many packed bytes were read.
func (r *fileReader) Taken() int64 { return r.in.read }

func (r *fileReader) damaged() error {
	return ondisk.In(ondisk.ErrFormat, "file %.256q of the archive: its size, checksum or data is wrong; "+
		"get the archive again", r.file.Name)
}
