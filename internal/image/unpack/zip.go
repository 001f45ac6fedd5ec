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

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

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
