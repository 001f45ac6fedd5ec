package unpack

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// sample returns bytes that are partly zeros, partly text and partly noise.
func sample(n int) []byte {
	b := make([]byte, n)
	r := rand.New(rand.NewPCG(1, 2))
	for i := n / 3; i < n; i++ {
		b[i] = byte(r.Uint32N(4)) + 'a'
	}
	for i := 2 * n / 3; i < n; i++ {
		b[i] = byte(r.Uint32())
	}
	return b
}

// made returns the output of a program for some input.
func made(t testing.TB, input []byte, tool string, args ...string) []byte {
	t.Helper()
	return []byte(disktest.RunInput(t, string(input), tool, args...))
}

// unpacked unpacks a file whole.
func unpacked(stream string, file []byte) (b []byte, stated int64, err error) {
	r, err := OpenStream(stream, bytes.NewReader(file))
	if err != nil {
		return nil, 0, err
	}
	b, err = io.ReadAll(r)
	return b, r.Stated, err
}

// variant is a file that a real program has written.
type variant struct {
	stream, tool string
	args         []string
	stated       bool
}

var variants = map[string]variant{
	"gzip -9":                  {Gzip, "gzip", []string{"-9"}, false},
	"gzip -1":                  {Gzip, "gzip", []string{"-1"}, false},
	"bzip2":                    {Bzip2, "bzip2", []string{"-1"}, false},
	"zstd of a pipe":           {Zstd, "zstd", []string{"-q", "-3"}, false},
	"zstd with its size":       {Zstd, "zstd", []string{"-q", "-19", "--stream-size=1000003"}, true},
	"zstd with a window":       {Zstd, "zstd", []string{"-q", "--long=26"}, false},
	"zstd without a checksum":  {Zstd, "zstd", []string{"-q", "--no-check"}, false},
	"xz -9":                    {XZ, "xz", []string{"-9"}, true},
	"xz of many blocks":        {XZ, "xz", []string{"-0", "--block-size=65536"}, true},
	"xz of blocks by threads":  {XZ, "xz", []string{"-0", "-T2", "--block-size=100000"}, true},
	"xz with CRC32":            {XZ, "xz", []string{"-0", "--check=crc32"}, true},
	"xz with SHA-256":          {XZ, "xz", []string{"-0", "--check=sha256"}, true},
	"xz without a check":       {XZ, "xz", []string{"-0", "--check=none"}, true},
	"xz, one block after each": {XZ, "xz", []string{"-0", "--block-list=1000,1,70000,0"}, true},
}

const sampleSize = 1000003

func TestStreamsOfTools(t *testing.T) {
	want := sample(sampleSize)
	for name, v := range variants {
		t.Run(name, func(t *testing.T) {
			file := made(t, want, v.tool, append(v.args, "-c")...)
			got, stated, err := unpacked(v.stream, file)
			require.NoError(t, err)
			require.True(t, bytes.Equal(want, got))
			if v.stated {
				require.EqualValues(t, len(want), stated)
			} else {
				require.EqualValues(t, -1, stated)
			}
		})
	}
}

// Concatenated files unpack to the concatenation of their parts, and an empty file to nothing.
func TestJoinedStreams(t *testing.T) {
	one, two := sample(70001), bytes.Repeat([]byte("of a second file\n"), 3000)
	for stream, tool := range tools {
		t.Run(stream, func(t *testing.T) {
			nothing := made(t, nil, tool[0], tool[1:]...)
			b, _, err := unpacked(stream, nothing)
			require.NoError(t, err)
			require.Empty(t, b)
			parts := [][]byte{nothing, made(t, one, tool[0], tool[1:]...), nothing, made(t, two, tool[0], tool[1:]...)}
			file := bytes.Join(parts, nil)
			b, stated, err := unpacked(stream, file)
			require.NoError(t, err)
			require.True(t, bytes.Equal(append(bytes.Clone(one), two...), b))
			if stream == XZ {
				require.EqualValues(t, -1, stated)
			}
		})
	}
}

// gzip and xz define padding: zeros after the end, for xz in multiples of four and between streams too.
func TestPadding(t *testing.T) {
	want := sample(5000)
	for _, c := range []struct {
		stream  string
		padding int
		behind  bool // another stream
		fine    bool
	}{
		{Gzip, 1, false, true},
		{Gzip, 10239, false, true},
		{Gzip, 3, true, false},
		{XZ, 4, false, true},
		{XZ, 512, false, true},
		{XZ, 8, true, true},
		{XZ, 3, false, false},
		{XZ, 6, true, false},
		{Zstd, 4, false, false},
		{Bzip2, 4, false, false},
	} {
		file := made(t, want, tools[c.stream][0], tools[c.stream][1:]...)
		n := len(want)
		padded := append(bytes.Clone(file), make([]byte, c.padding)...)
		if c.behind {
			padded, n = append(padded, file...), 2*n
		}
		b, _, err := unpacked(c.stream, padded)
		if !c.fine {
			require.ErrorIs(t, err, ondisk.ErrFormat, c)
			continue
		}
		require.NoError(t, err, c)
		require.Len(t, b, n)
	}
}

// A file that was cut anywhere, or followed by something else, is an error and never a shorter disk.
func TestTruncatedStreams(t *testing.T) {
	want := sample(1000)
	for stream, tool := range tools {
		t.Run(stream, func(t *testing.T) {
			file := made(t, want, tool[0], tool[1:]...)
			for n := range file {
				b, _, err := unpacked(stream, file[:n])
				if n == 0 && err == nil { // no stream at all, which is not asked for
					require.Empty(t, b)
					continue
				}
				require.ErrorIs(t, err, ondisk.ErrFormat, "the first %d bytes", n)
			}
			_, _, err := unpacked(stream, append(bytes.Clone(file), "other bytes"...))
			require.ErrorIs(t, err, ondisk.ErrFormat)
		})
	}
}

// Each stream has a checksum of its data. No flipped bit gives other bytes without an error.
func TestFlippedBits(t *testing.T) {
	want := sample(600)
	for stream, tool := range tools {
		t.Run(stream, func(t *testing.T) {
			file := made(t, want, tool[0], tool[1:]...)
			found := 0
			for bit := range len(file) * 8 {
				bad := bytes.Clone(file)
				bad[bit/8] ^= 1 << (bit % 8)
				b, _, err := unpacked(stream, bad)
				if err != nil {
					require.True(t, errorClass(err), "%v", err)
					found++
					continue
				}
				require.True(t, bytes.Equal(want, b), "bit %d", bit)
			}
			require.Greater(t, found, len(file)*7, "only fields such as times change nothing")
		})
	}
}

// errorClass reports whether an error has the class of something wrong in a file.
func errorClass(err error) bool {
	return errors.Is(err, ondisk.ErrFormat) || errors.Is(err, ondisk.ErrUnsupported) || errors.Is(err, ondisk.ErrLimit)
}

// tools write streams with windows as small as they can, since tests unpack them thousands of times.
var tools = map[string][]string{
	Gzip: {"gzip", "-c"}, XZ: {"xz", "-0", "-c"}, Zstd: {"zstd", "-q", "-c"}, Bzip2: {"bzip2", "-1", "-c"},
}

// An error of reading the file is not a damage of the stream.
func TestErrorsOfReading(t *testing.T) {
	for stream, tool := range tools {
		file := made(t, sample(200000), tool[0], tool[1:]...)
		r, err := OpenStream(stream, failing{bytes.NewReader(file), int64(len(file)) - 100})
		if err == nil {
			_, err = io.Copy(io.Discard, r)
		}
		require.ErrorIs(t, err, iotest.ErrTimeout, stream)
		require.NotErrorIs(t, err, ondisk.ErrFormat)
	}
}

// failing is a file that cannot be read from some byte on.
type failing struct {
	*bytes.Reader
	from int64
}

func (f failing) ReadAt(p []byte, off int64) (int, error) {
	if off+int64(len(p)) > f.from {
		return 0, iotest.ErrTimeout
	}
	return f.Reader.ReadAt(p, off)
}

// A few bytes without output can be repeated for ever.
func TestBytesThatUnpackToNothing(t *testing.T) {
	for stream, nothing := range map[string][]byte{
		Gzip:  made(t, nil, "gzip", "-c"),
		XZ:    made(t, nil, "xz", "-c"),
		Bzip2: made(t, nil, "bzip2", "-c"),
		Zstd:  append([]byte("\x50\x2a\x4d\x18\x00\x10\x00\x00"), make([]byte, 4096)...), // a skippable frame
	} {
		file := bytes.Repeat(nothing, 2*int(maxIdle)/len(nothing))
		r, err := OpenStream(stream, bytes.NewReader(file))
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, r)
		require.ErrorIs(t, err, ondisk.ErrLimit, stream)
		require.LessOrEqual(t, r.Taken(), maxIdle+2*int64(buffer))
	}
}

// Incompressible data count as progress, however much of them one call reads.
func TestLargeReads(t *testing.T) {
	t.Parallel()
	noise := make([]byte, 17<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(noise)
	r, err := OpenStream(XZ, bytes.NewReader(made(t, noise, "xz", "-0", "-c")))
	require.NoError(t, err)
	b := make([]byte, len(noise))
	_, err = io.ReadFull(r, b)
	require.NoError(t, err)
	require.True(t, bytes.Equal(noise, b))
}

// A header can request more memory than any program needs.
func TestWindowsAreBounded(t *testing.T) {
	_, _, err := unpacked(Zstd, made(t, sample(1000), "zstd", "-q", "-c", "--long=27"))
	require.ErrorIs(t, err, ondisk.ErrLimit)
	require.ErrorContains(t, err, "unpack it first: zstd -d --long=31")

	file := made(t, sample(1000), "xz", "-c", "--lzma2=dict=128MiB")
	_, _, err = unpacked(XZ, file)
	require.ErrorIs(t, err, ondisk.ErrLimit)
	_, _, err = unpacked(XZ, made(t, sample(1000), "xz", "-c", "--lzma2=dict=64MiB"))
	require.NoError(t, err)

	// Behind a block that is fine, where no index leads to it.
	fine := made(t, sample(1000), "xz", "-c", "-0")
	_, _, err = unpacked(XZ, append(bytes.Clone(fine), file...))
	require.ErrorIs(t, err, ondisk.ErrLimit)
}

// A block allocates its dictionary whether it fills it or not, and a file can have millions of blocks.
func TestDictionariesOfManyBlocks(t *testing.T) {
	one := made(t, []byte("a"), "xz", "-c", "-9")
	_, _, err := unpacked(XZ, bytes.Repeat(one, 40))
	require.ErrorIs(t, err, ondisk.ErrLimit)
	b, _, err := unpacked(XZ, bytes.Repeat(made(t, []byte("a"), "xz", "-c", "-0"), 400))
	require.NoError(t, err)
	require.Len(t, b, 400)
}

func TestFiltersOfXZ(t *testing.T) {
	_, _, err := unpacked(XZ, made(t, sample(1000), "xz", "-c", "--x86", "--lzma2"))
	require.ErrorIs(t, err, ondisk.ErrUnsupported)
	require.ErrorContains(t, err, "unxz")
}

// An index that does not fit the blocks is an error, although every checksum fits.
func TestIndexOfXZ(t *testing.T) {
	file := made(t, sample(1000), "xz", "-c", "-0")
	index := len(file) - xzHeader - int((int64(binary.LittleEndian.Uint32(file[len(file)-8:]))+1)*4)
	require.Zero(t, file[index])
	last := len(file) - xzHeader - 4
	bad := bytes.Clone(file)
	bad[index+2] ^= 1 // the unpadded size of the block
	binary.LittleEndian.PutUint32(bad[last:], crc32.ChecksumIEEE(bad[index:last]))
	_, _, err := unpacked(XZ, bad)
	require.ErrorIs(t, err, ondisk.ErrFormat)
	require.ErrorContains(t, err, "the index or the footer is wrong")
}

func TestZipOfTools(t *testing.T) {
	dir := t.TempDir()
	want := map[string][]byte{"a.img": sample(300000), "sub/b.img": sample(70000), "nothing": nil}
	require.NoError(t, os.Mkdir(filepath.Join(dir, "sub"), 0o700))
	for name, b := range want {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), b, 0o600))
	}
	require.NoError(t, os.Symlink("a.img", filepath.Join(dir, "link")))
	for name, args := range map[string][]string{
		"deflate": {"-q", "-r", "-y"}, "stored": {"-q", "-r", "-0", "-y"}, "zip64": {"-q", "-r", "-y", "-fz"},
		"bzip2": {"-q", "-r", "-y", "-Z", "bzip2"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "x.zip")
			disktest.Run(t, "sh", append([]string{"-c", `cd "$1" && shift && exec zip "$@"`, "sh", dir},
				append(args, file, ".")...)...)
			requireZip(t, file, want)
		})
	}
	t.Run("streamed, with a descriptor behind the data", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "x.zip")
		require.NoError(t, os.WriteFile(file, made(t, want["a.img"], "zip", "-q", "-", "-"), 0o600))
		requireZip(t, file, map[string][]byte{"-": want["a.img"]})
	})
	t.Run("with a password", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "x.zip")
		disktest.Run(t, "zip", "-q", "-j", "-P", "secret", file, filepath.Join(dir, "a.img"))
		b, err := os.ReadFile(file)
		require.NoError(t, err)
		_, err = firstOf(b)
		require.ErrorIs(t, err, ondisk.ErrUnsupported)
		require.ErrorContains(t, err, "is encrypted")
	})
}

// Names that are not UTF-8 are in code page 437, as DOS and Windows pack them. Bytes by MAPPINGS/VENDORS/MICSFT/PC,
// CP437.TXT, of unicode.org.
func TestZipNames(t *testing.T) {
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, name := range []string{"B\x81ro/\x84.img", "plain.img", "Büro.img"} {
		f, err := w.CreateHeader(&zip.FileHeader{Name: name, NonUTF8: true})
		require.NoError(t, err)
		_, err = f.Write([]byte(name))
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	z, err := openZip(bytes.NewReader(b.Bytes()))
	require.NoError(t, err)
	var names []string
	for _, x := range z.zip.File {
		names = append(names, x.Name)
	}
	require.Equal(t, []string{"Büro/ä.img", "plain.img", "Büro.img"}, names)
}

// A checksum of 0 in the list is compared as any other one, and a part of several has its remedy. Spec: APPNOTE.TXT
// 6.3.10, 4.3.12 and 4.3.16.
func TestZipLists(t *testing.T) {
	archive := made(t, sample(3000), "zip", "-q", "-", "-")
	_, err := firstOf(archive)
	require.NoError(t, err)
	entry, end := bytes.Index(archive, []byte("PK\x01\x02")), bytes.LastIndex(archive, []byte("PK\x05\x06"))
	binary.LittleEndian.PutUint32(archive[entry+16:], 0)
	_, err = firstOf(archive)
	require.ErrorContains(t, err, "checksum")
	archive[end+4] = 1
	_, err = firstOf(archive)
	require.ErrorContains(t, err, "zip archive of several parts: not supported; join them first: zip -s 0 --out")
}

// A method that is not read is named by its number in APPNOTE.TXT 6.3.10, 4.4.5.
func TestZipMethods(t *testing.T) {
	archive := made(t, sample(3000), "zip", "-q", "-", "-")
	entry := bytes.Index(archive, []byte("PK\x01\x02"))
	for _, method := range []uint16{1, 6, 9, 14, 77, 93, 95, 98} {
		binary.LittleEndian.PutUint16(archive[entry+10:], method)
		_, err := firstOf(archive)
		require.ErrorIs(t, err, ondisk.ErrUnsupported)
		require.ErrorContains(t, err, fmt.Sprintf(
			`file "-" of the archive is compressed by method %d: not supported, only deflate, bzip2`, method))
	}
}

// Unpacked zeros take no room, so only the number of bytes bounds the work. bzip2 compresses 45 MB of them to some 40
// bytes; the limits of the other formats are never reached.
func TestGrowth(t *testing.T) {
	zeros := make([]byte, 64*units.MiB)
	for _, tc := range []struct {
		stream string
		args   []string
		bound  bool
	}{
		{Bzip2, []string{"-9"}, true},
		{Gzip, []string{"-9"}, false},
		{XZ, []string{"-9"}, false},
		{Zstd, []string{"-q", "-19"}, false},
	} {
		b := made(t, zeros, tc.stream, append(tc.args, "-c")...)
		r, err := OpenStream(tc.stream, bytes.NewReader(b))
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, r)
		require.NoError(t, err, "less than what is free")

		r, err = OpenStream(tc.stream, bytes.NewReader(b))
		require.NoError(t, err)
		r.in.out = maxSpare // as if as many had been unpacked of nothing
		n, err := io.Copy(io.Discard, r)
		if !tc.bound {
			require.NoError(t, err, tc.stream)
			continue
		}
		require.ErrorIs(t, err, ondisk.ErrLimit)
		require.ErrorContains(t, err, "bytes of the file unpack to 1")
		require.Less(t, n, int64(len(zeros)))
	}
}

// A file of a zip archive that is too large for its packed bytes is refused before it is unpacked, from its size in the
// archive; one with a smaller stated size ends there.
func TestGrowthOfZip(t *testing.T) {
	_, err := (&archive{}).open(&zip.File{FileHeader: zip.FileHeader{
		Name: "a.img", UncompressedSize64: 900 << 30, CompressedSize64: 1 << 20, Method: bzipped,
	}})
	require.ErrorIs(t, err, ondisk.ErrLimit)
	require.ErrorContains(t, err, `file "a.img" of the archive: 1048576 bytes of the file unpack to 900 GiB`)
	require.NoError(t, checkGrowth(units.MiB, units.GiB+32*units.GiB))
	require.Error(t, checkGrowth(units.MiB, units.GiB+33*units.GiB))
	require.NoError(t, checkGrowth(1<<62, 1<<62))
}

// requireZip demands that an archive has these files.
func requireZip(t *testing.T, path string, want map[string][]byte) {
	t.Helper()
	b := disktest.ReadFile(t, path)
	z, err := openZip(bytes.NewReader(b))
	require.NoError(t, err)
	got := map[string][]byte{}
	for _, x := range z.zip.File {
		if strings.HasSuffix(x.Name, "/") || x.Mode()&fs.ModeSymlink != 0 {
			continue
		}
		r, err := z.open(x)
		require.NoError(t, err)
		got[x.Name], err = io.ReadAll(r)
		require.NoError(t, err)
		require.EqualValues(t, len(got[x.Name]), r.Stated)
	}
	require.Len(t, got, len(want))
	for name := range want {
		require.True(t, bytes.Equal(want[name], got[name]), name)
	}
}

// No byte of an archive can be another one without an error, where it counts for the file.
func TestDamagedZip(t *testing.T) {
	want := sample(3000)
	file := made(t, want, "zip", "-q", "-", "-")
	for n := range file {
		_, err := openZip(bytes.NewReader(file[:n]))
		require.Error(t, err, "the first %d bytes", n)
	}
	for bit := range len(file) * 8 {
		bad := bytes.Clone(file)
		bad[bit/8] ^= 1 << (bit % 8)
		b, err := firstOf(bad)
		if err != nil {
			require.True(t, errorClass(err), "%v", err)
			continue
		}
		require.True(t, bytes.Equal(want, b), "bit %d", bit)
	}
}

// firstOf unpacks the first file of an archive.
func firstOf(archive []byte) ([]byte, error) {
	z, err := openZip(bytes.NewReader(archive))
	if err != nil {
		return nil, err
	}
	if len(z.zip.File) == 0 {
		return nil, ondisk.In(ondisk.ErrFormat, "no file")
	}
	r, err := z.open(z.zip.File[0])
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(r, units.MiB))
}

// named returns a zip archive of empty files, whose names have some length.
func named(t *testing.T, files, length int) []byte {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for i := range files {
		_, err := w.CreateHeader(&zip.FileHeader{Name: fmt.Sprintf("%0*d", length, i)})
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return b.Bytes()
}

// A list can have any number of files, and be of any length.
func TestListOfZipIsBounded(t *testing.T) {
	_, err := openZip(bytes.NewReader(named(t, maxFiles, 8)))
	require.NoError(t, err)
	_, err = openZip(bytes.NewReader(named(t, maxFiles+1, 8)))
	require.ErrorIs(t, err, ondisk.ErrLimit)
	_, err = openZip(bytes.NewReader(named(t, 100, 60000)))
	require.ErrorIs(t, err, ondisk.ErrLimit)
}

// The end of a zip64 archive in a large file with holes can claim more files than there is memory for.
func TestClaimOfZip64IsBounded(t *testing.T) {
	end := slices.Concat(
		[]byte("PK\x06\x06"), make([]byte, 52), // end of a zip64 archive
		[]byte("PK\x06\x07"), make([]byte, 16), // its locator
		[]byte("PK\x05\x06"), make([]byte, 4), bytes.Repeat([]byte{0xff}, 12), make([]byte, 2),
	)
	const size = 1 << 50
	binary.LittleEndian.PutUint64(end[32:], size/100)         // files
	binary.LittleEndian.PutUint64(end[56+8:], size-98)        // where the end of the zip64 archive lies
	binary.LittleEndian.PutUint32(end[56+16:], 1)             // disks
	_, err := openZip(holes{bytes.NewReader(end), size - 98}) // 56 + 20 + 22 bytes
	require.ErrorIs(t, err, ondisk.ErrLimit)
}

// holes is a file with bytes after a hole.
type holes struct {
	*bytes.Reader
	from int64
}

func (h holes) Size() int64 { return h.from + h.Reader.Size() }

func (h holes) ReadAt(p []byte, off int64) (int, error) {
	clear(p)
	if hole := h.from - off; hole > 0 {
		p = p[min(hole, int64(len(p))):]
		n, err := h.Reader.ReadAt(p, 0)
		return n + int(hole), err
	}
	return h.Reader.ReadAt(p, off-h.from)
}

// Sizes of more than 63 bits are not sizes.
func TestSizesOfZip64(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a.img"), sample(3000), 0o600))
	disktest.Run(t, "zip", "-q", "-j", "-X", "-fz", filepath.Join(dir, "x.zip"), filepath.Join(dir, "a.img"))
	b, err := os.ReadFile(filepath.Join(dir, "x.zip"))
	require.NoError(t, err)
	_, err = firstOf(b)
	require.NoError(t, err)
	entry := bytes.LastIndex(b, []byte("PK\x01\x02"))
	extra := b[entry+46+int(binary.LittleEndian.Uint16(b[entry+28:])):]
	for at := 4; at < 4+int(binary.LittleEndian.Uint16(extra[2:])); at += 8 {
		binary.LittleEndian.PutUint64(extra[at:], math.MaxUint64)
	}
	_, err = firstOf(b)
	require.ErrorIs(t, err, ondisk.ErrFormat)
}

// Nor is the size in the header of a zstd frame, of more than 63 bits. Spec: RFC 8878, 3.1.1.1.
func TestSizeOfZstd(t *testing.T) {
	frame := append([]byte("\x28\xb5\x2f\xfd\xe0"), bytes.Repeat([]byte{0xff}, 8)...)
	_, _, err := unpacked(Zstd, append(frame, 1, 0, 0))
	require.True(t, errorClass(err), "%v", err)
}

func FuzzStreams(f *testing.F) {
	for _, v := range variants {
		if v.stream != Zstd || !v.stated { // the size of another input
			f.Add(v.stream, made(f, sample(3000), v.tool, append(v.args, "-c")...))
		}
	}
	f.Fuzz(func(t *testing.T, stream string, file []byte) {
		r, err := OpenStream(stream, bytes.NewReader(file))
		if err != nil {
			require.True(t, errorClass(err), "%v", err)
			return
		}
		_, err = io.Copy(io.Discard, io.LimitReader(r, 4*units.MiB))
		require.True(t, err == nil || errorClass(err), "%v", err)
	})
}

func FuzzZip(f *testing.F) {
	f.Add(made(f, sample(3000), "zip", "-q", "-", "-"))
	f.Fuzz(func(t *testing.T, file []byte) {
		if _, err := firstOf(file); err != nil {
			require.True(t, errorClass(err), "%v", err)
		}
	})
}
