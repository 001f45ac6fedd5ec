package ova

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tarforge"
	"github.com/trueup/trueup/internal/ondisk"
)

type memory struct{ *bytes.Reader }

func index(b []byte) ([]entry, error) { return tarIndex(memory{bytes.NewReader(b)}) }

// archive is a tar that the standard library writes.
func archive(t *testing.T, format tar.Format, names ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i, n := range names {
		data := bytes.Repeat([]byte{byte('a' + i)}, 100+511*i)
		require.NoError(t, w.WriteHeader(&tar.Header{
			Name: n, Mode: 0o600, Size: int64(len(data)), Format: format, ModTime: time.Unix(1e9, 0),
			Typeflag: tar.TypeReg,
		}))
		_, err := w.Write(data)
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return b.Bytes()
}

// The index has the same entries as the standard library's reader, for all formats and for names that need extended
// headers.
func TestTarIndex(t *testing.T) {
	long := strings.Repeat("n", 150) + ".vmdk"
	for _, format := range []tar.Format{tar.FormatUSTAR, tar.FormatPAX, tar.FormatGNU} {
		names := []string{"vm.ovf", "disk.vmdk", "sub/x.nvram"}
		if format != tar.FormatUSTAR {
			names = append(names, long, "Grüße.iso")
		}
		b := archive(t, format, names...)
		entries, err := index(b)
		require.NoError(t, err)
		require.Equal(t, int64(len(b)-2*tarBlock), entries[len(entries)-1].end())
		r := tar.NewReader(bytes.NewReader(b))
		for i, e := range entries {
			h, err := r.Next()
			require.NoError(t, err)
			want, err := io.ReadAll(r)
			require.NoError(t, err)
			require.Equal(t, h.Name, e.name)
			require.Equal(t, names[i], e.name)
			require.True(t, e.regular())
			require.Equal(t, want, b[e.off:e.off+e.size])
		}
		_, err = r.Next()
		require.ErrorIs(t, err, io.EOF)
	}
}

// GNU tar's own archives, in each of its formats.
func TestTarIndexOfGNUTar(t *testing.T) {
	dir := t.TempDir()
	long := strings.Repeat("n", 150) + ".vmdk"
	for _, n := range []string{"vm.ovf", "disk.vmdk", long} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, n), []byte("this is "+n), 0o644))
	}
	for format, names := range map[string][]string{
		"ustar": {"vm.ovf", "disk.vmdk"}, "gnu": {"vm.ovf", "disk.vmdk", long}, "posix": {"vm.ovf", "disk.vmdk", long},
		"v7": {"vm.ovf", "./disk.vmdk"},
	} {
		path := filepath.Join(t.TempDir(), "x.tar")
		disktest.Run(t, "tar", append([]string{"--format=" + format, "-C", dir, "-cf", path}, names...)...)
		b := disktest.ReadFile(t, path)
		entries, err := index(b)
		require.NoError(t, err, format)
		require.Len(t, entries, len(names))
		for i, e := range entries {
			require.Equal(t, strings.TrimPrefix(names[i], "./"), e.name)
			require.Equal(t, "this is "+e.name, string(b[e.off:e.off+e.size]))
		}
	}
}

// An archive that ends with its last member is complete, one that ends inside of it is not.
func TestTarEnds(t *testing.T) {
	whole := tarforge.New(tarforge.Member{Name: "a", Data: []byte("12345")})
	for cut := range len(whole) + 1 {
		entries, err := index(whole[:cut])
		switch {
		case cut == 0:
			require.NoError(t, err)
			require.Empty(t, entries)
		case cut < tarBlock+5:
			require.ErrorIs(t, err, ondisk.ErrFormat, "%d", cut)
		default:
			require.NoError(t, err, "%d", cut)
			require.Len(t, entries, 1)
		}
	}
	for _, blocks := range []int{1, 2} {
		entries, err := index(slices.Concat(whole, tarforge.End()[:blocks*tarBlock], whole))
		require.NoError(t, err)
		require.Len(t, entries, 1, "what stands behind the end is no member")
	}
}

// Names that lead elsewhere, and names that exist twice.
func TestTarNames(t *testing.T) {
	name := func(n string) []byte {
		if len(n) <= 100 {
			return tarforge.New(tarforge.Member{Name: n})
		}
		record := func(total int) string { return fmt.Sprintf("%d path=%s\n", total, n) }
		total := len(record(len(record(1000))))
		return tarforge.New(tarforge.Member{Name: "pax", Type: 'x', Data: []byte(record(total))},
			tarforge.Member{Name: "x"})
	}
	for _, n := range []string{
		"../x", "/x", `..\x`, `C:\x`, "a/../x", "a/..", "..", "a//b", "", "\x1b]0;x", "a\nb", "\xff\xfe", "http://x",
		strings.Repeat("d/", 300) + "x", strings.Repeat("d", 2000),
	} {
		_, err := index(name(n))
		require.ErrorIs(t, err, ondisk.ErrReference, "%.80q", n)
		require.NotContains(t, err.Error(), "\x1b")
	}
	for _, n := range []string{"./x", "sub/x", "..x", "with blanks.vmdk", strings.Repeat("d", 254)} {
		entries, err := index(name(n))
		require.NoError(t, err, n)
		require.Equal(t, strings.TrimPrefix(n, "./"), entries[0].name)
	}
	file, folder := tarforge.Member{Name: "disk.vmdk"}, tarforge.Member{Name: "disk.vmdk/", Type: '5'}
	for _, twice := range [][]tarforge.Member{
		{file, file}, {file, {Name: "./disk.vmdk"}}, {file, folder}, {folder, file},
	} {
		_, err := index(tarforge.New(twice...))
		require.ErrorIs(t, err, ondisk.ErrReference)
		require.ErrorContains(t, err, "twice")
	}
}

// Headers with impossible numbers are errors, and so are members that are not stored in one piece.
func TestTarNumbers(t *testing.T) {
	base256 := func(first byte, rest ...byte) string {
		return string(append(append([]byte{first}, make([]byte, 11-len(rest))...), rest...))
	}
	pax := func(record string) []byte {
		return tarforge.New(tarforge.Member{Name: "pax", Type: 'x', Data: []byte(record)},
			tarforge.Member{Name: "x"})
	}
	for name, c := range map[string]struct {
		archive []byte
		kind    error
	}{
		"base 256 with the sign": {
			tarforge.New(tarforge.Member{Name: "x", Size: strings.Repeat("\xff", 12)}),
			ondisk.ErrFormat,
		},
		"base 256 of 2^63": {tarforge.New(tarforge.Member{Name: "x", Size: base256(0x80, 0x80, 0, 0, 0, 0,
			0, 0, 0)}), ondisk.ErrFormat},
		"base 256 of 2^88": {tarforge.New(tarforge.Member{Name: "x", Size: base256(0x80, 1, 0, 0, 0, 0, 0,
			0, 0, 0, 0, 0)}), ondisk.ErrFormat},
		"base 256 of 2^62": {tarforge.New(tarforge.Member{Name: "x", Size: base256(0x80, 0x40, 0, 0, 0, 0,
			0, 0, 0)}), ondisk.ErrFormat},
		"no octal digits": {
			tarforge.New(tarforge.Member{Name: "x", Size: "99999999999\x00"}),
			ondisk.ErrFormat,
		},
		"beyond the end": {
			tarforge.New(tarforge.Member{Name: "x", Size: "00000004000\x00"}),
			ondisk.ErrFormat,
		},
		"a wrong sum": {tarforge.New(tarforge.Member{
			Name: "x",
			Sum:  func(n int) int { return n + 1 },
		}), ondisk.ErrFormat},
		"a link with a size": {
			tarforge.New(tarforge.Member{Name: "x", Type: '2', Data: []byte("12345")}),
			ondisk.ErrFormat,
		},
		"a PAX header of 1 GiB": {
			tarforge.New(tarforge.Member{Name: "x", Type: 'x', Size: "10000000000\x00"}),
			ondisk.ErrFormat,
		},
		"a PAX header of 1 MiB": {
			tarforge.New(tarforge.Member{Name: "x", Type: 'x', Data: make([]byte, 1<<20)}),
			ondisk.ErrLimit,
		},
		"PAX headers without end": {
			tarforge.New(slices.Repeat([]tarforge.Member{{Name: "x", Type: 'x'}}, 2000)...),
			ondisk.ErrLimit,
		},
		"a PAX header and no member": {tarforge.New(tarforge.Member{Name: "x", Type: 'x'}), ondisk.ErrFormat},
		"a PAX header, and the end": {append(tarforge.New(tarforge.Member{Name: "x", Type: 'x'}),
			make([]byte, 1<<20)...), ondisk.ErrFormat},
		"a PAX size below zero":        {pax("11 size=-1\n"), ondisk.ErrFormat},
		"a PAX size above 2^63":        {pax("28 size=9223372036854775808\n"), ondisk.ErrFormat},
		"a PAX record without a key":   {pax("5 x\n\n"), ondisk.ErrFormat},
		"a PAX record of a wrong size": {pax("99 path=x\n"), ondisk.ErrFormat},
		"a PAX sparse map":             {pax("22 GNU.sparse.major=1\n"), ondisk.ErrUnsupported},
		"a GNU sparse member": {
			tarforge.New(tarforge.Member{Name: "x", Type: 'S', Edit: gnu}),
			ondisk.ErrUnsupported,
		},
		"one size for all": {
			tarforge.New(tarforge.Member{Name: "x", Type: 'g', Data: []byte("9 size=1\n")}),
			ondisk.ErrUnsupported,
		},
		"too many members": {
			tarforge.New(slices.Repeat([]tarforge.Member{{Name: "m", Type: '5'}}, maxMembers+1)...),
			ondisk.ErrLimit,
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := index(append(bytes.Clone(c.archive), tarforge.End()...))
			require.ErrorIs(t, err, c.kind)
		})
	}
}

// gnu makes a header one of GNU tar's own format.
func gnu(h forge.Bytes) { h.Text(257, "ustar  \x00") }

// A header keeps everything but the size, and its length does not depend on the size: 8 GiB is where octal digits end.
func TestNewSizes(t *testing.T) {
	const gib = int64(1) << 30
	for _, format := range []tar.Format{tar.FormatUSTAR, tar.FormatPAX, tar.FormatGNU} {
		for _, name := range []string{strings.Repeat("d", 90) + ".vmdk", "Grüße.vmdk", strings.Repeat("long", 50)} {
			old := tar.Header{
				Name: name, Mode: 0o640, Uid: 64, Size: 5, Format: format, ModTime: time.Unix(1e9, 5e8),
				Uname: "vm",
			}
			for _, most := range []int64{7, 8*gib - 1, 200 * gib} {
				first, err := tarHeaders(&old, most, most)
				require.NoError(t, err)
				for _, size := range []int64{0, 7, 8*gib - 1, 8 * gib, 9_999_999_999, 10_000_000_000, 100 * gib} {
					if size > most {
						continue
					}
					h, err := tarHeaders(&old, size, most)
					require.NoError(t, err)
					require.Len(t, h, len(first))
					e, got, err := tarEntry(sized{memory{bytes.NewReader(h)}, 1 << 42}, 0)
					require.NoError(t, err, "%v %d %d", format, most, size)
					require.Equal(t, entry{name: name, kind: tar.TypeReg, off: int64(len(h)), size: size}, e)
					plain := name[0] == 'd' && most < 8*gib
					require.Equal(t, map[bool]tar.Format{true: tar.FormatUSTAR, false: tar.FormatGNU}[plain],
						got.Format)
					require.Equal(t, old.Mode, got.Mode)
					require.Equal(t, old.Uid, got.Uid)
					require.Equal(t, old.Uname, got.Uname)
					require.Equal(t, old.ModTime.Unix(), got.ModTime.Unix())
				}
			}
		}
	}
	_, err := tarHeaders(&tar.Header{Name: "x", Mode: 1 << 60}, 0, 0)
	require.ErrorIs(t, err, ondisk.ErrUnsupported)
}

// Names of owners that only PAX records hold are omitted, and the numbers stay; a slash at the end of a file's name
// goes.
func TestHeadersThatOnlyPAXHolds(t *testing.T) {
	for _, name := range []string{"firstname.lastname-external@corp.example.com", strings.Repeat("ü", 200)} {
		b, err := tarHeaders(&tar.Header{Name: "disk1.vmdk/", Uid: 1000, Gid: 5, Uname: name, Gname: name}, 3, 5)
		require.NoError(t, err)
		got, err := tar.NewReader(bytes.NewReader(b)).Next()
		require.NoError(t, err)
		require.Equal(t, []any{"disk1.vmdk", 1000, 5, "", ""}, []any{got.Name, got.Uid, got.Gid, got.Uname, got.Gname})
	}
}

// archive/tar returns no record of a global header with one wrong record, so the others would be missed.
func TestWrongGlobalHeaders(t *testing.T) {
	const evil, wrong = "13 path=evil\n", "13 mtime=abc\n"
	for _, text := range []string{evil, wrong + evil, wrong, "9 size=x\n"} {
		_, err := index(tarforge.New(tarforge.Member{Name: "pax", Type: 'g', Data: []byte(text)},
			tarforge.Member{Name: "x"}))
		require.Error(t, err, "%q", text)
	}
	_, err := index(tarforge.New(tarforge.Member{Name: "pax", Type: 'g', Data: []byte("10 mtime=1\n")},
		tarforge.Member{Name: "x"}))
	require.Error(t, err, "a record of a wrong length")
	for _, text := range []string{"", "11 mtime=1\n"} {
		_, err = index(tarforge.New(tarforge.Member{Name: "pax", Type: 'g', Data: []byte(text)},
			tarforge.Member{Name: "x"}))
		require.NoError(t, err, "%q", text)
	}
}

func TestNewHeaders(t *testing.T) {
	h, err := newTarHeader("vm.ovf", 1e9)
	require.NoError(t, err)
	b, err := tarHeaders(h, 3, 5)
	require.NoError(t, err)
	got, err := tar.NewReader(bytes.NewReader(b)).Next()
	require.NoError(t, err)
	require.Equal(t, "vm.ovf", got.Name)
	require.Equal(t, int64(1e9), got.ModTime.Unix())
	require.Equal(t, int64(0o644), got.Mode)
	_, err = newTarHeader(strings.Repeat("n", 101), 0)
	require.ErrorIs(t, err, ondisk.ErrUsage)
}

func FuzzTar(f *testing.F) {
	f.Add([]byte(tarforge.New(tarforge.Member{Name: "vm.ovf", Data: []byte("<x/>")},
		tarforge.Member{Name: "d", Type: '5'})))
	f.Add([]byte(append(tarforge.New(
		tarforge.Member{Name: "pax", Type: 'x', Data: []byte("12 path=abc\n8 size=3\n")}, tarforge.Member{
			Name: "x",
			Data: []byte("123"),
		},
		tarforge.Member{Name: "././@LongLink", Type: 'L', Data: []byte("long\x00")}, tarforge.Member{Name: "y"},
	), tarforge.End()...)))
	f.Fuzz(func(t *testing.T, b []byte) {
		// The checksum of every block with the magic of a header is corrected: no fuzzer guesses one.
		b = bytes.Clone(b)
		for off := 0; off+tarBlock <= len(b); off += tarBlock {
			if h := b[off : off+tarBlock]; string(h[257:262]) == "ustar" {
				copy(h[148:], "        ")
				sum := 0
				for _, c := range h {
					sum += int(c)
				}
				copy(h[148:], fmt.Sprintf("%06o\x00 ", sum))
			}
		}

		entries, err := index(b)
		if err != nil {
			for _, class := range []error{
				ondisk.ErrFormat, ondisk.ErrLimit, ondisk.ErrUnsupported,
				ondisk.ErrReference,
			} {
				if errors.Is(err, class) {
					return
				}
			}
			require.NoError(t, err)
		}
		at := int64(0)
		for _, e := range entries {
			require.Equal(t, at, e.head)
			require.GreaterOrEqual(t, e.size, int64(0))
			require.LessOrEqual(t, e.off+e.size, int64(len(b)))
			at = min(e.end(), int64(len(b)))
			_, old, err := tarEntry(memory{bytes.NewReader(b)}, e.head)
			require.NoError(t, err)
			if !e.regular() {
				continue
			}
			h, err := tarHeaders(old, 1<<40, 1<<41)
			if errors.Is(err, ondisk.ErrUnsupported) { // an owner that is not a number of 7 bytes
				continue
			}
			require.NoError(t, err)
			again, _, err := tarEntry(sized{memory{bytes.NewReader(h)}, 1 << 42}, 0)
			require.NoError(t, err)
			require.Equal(t, e.name, again.name)
			require.Equal(t, int64(1<<40), again.size)
		}
	})
}

// sized is a file with a hole after its bytes.
type sized struct {
	memory
	size int64
}

func (s sized) Size() int64 { return s.size }

func (s sized) ReadAt(p []byte, off int64) (int, error) {
	clear(p)
	_, err := s.memory.ReadAt(p, min(off, s.memory.Size()))
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	return len(p), nil
}
