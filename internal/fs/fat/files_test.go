package fat

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/filetest"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
)

// fatKind is a way to format.
type fatKind struct {
	name string
	size string // as truncate knows it
	bits int64
	args []string
}

var fatKinds = []fatKind{
	{"fat12, a floppy", "1440K", 12, nil},
	{"fat12, 4 KiB clusters", "12M", 12, []string{"-F", "12", "-s", "8"}},
	{"fat12, 512-byte clusters", "2M", 12, []string{"-F", "12", "-s", "1"}},
	{"fat16, 512-byte clusters", "20M", 16, []string{"-F", "16", "-s", "1"}},
	{"fat16, 16 KiB clusters", "128M", 16, []string{"-F", "16", "-s", "32"}},
	{"fat16, one fat", "20M", 16, []string{"-F", "16", "-s", "1", "-f", "1"}},
	{"fat16, sectors of 4 KiB", "64M", 16, []string{"-F", "16", "-S", "4096", "-s", "1"}},
	{"fat32, 512-byte clusters", "40M", 32, []string{"-F", "32", "-s", "1"}},
	{"fat32, 4 KiB clusters", "300M", 32, []string{"-F", "32", "-s", "8"}},
}

// fatTree is put on each: names of all sorts.
func fatTree() map[string][]byte {
	files := map[string][]byte{
		"EMPTY": nil, "BOOT.INI": filetest.Noise(1, 211), "lower.txt": filetest.Noise(2, 512),
		"Mixed.TXT": filetest.Noise(3, 513), "BASE.txt": filetest.Noise(4, 4096),
		"A rather long name with spaces.configuration": filetest.Noise(5, 70000), "ünïcödé ☃.txt": filetest.Noise(6,
			100), "no extension at all": filetest.Noise(7, 1),
		"EFI/BOOT/BOOTX64.EFI": filetest.Noise(8, 40000), "EFI/Microsoft/Boot/BCD": filetest.Noise(9, 28672),
		"boot/grub/x86_64-efi/normal.mod":               filetest.Noise(10, 3000),
		"many/deep/er/and/deep/er/file.with.dots.in.it": filetest.Noise(11, 10), "empty folder/": nil,
		"many/" + strings.Repeat("n", 200): filetest.Noise(12, 20), "thirteen-char": filetest.Noise(13, 13),
		"twelve-chars": filetest.Noise(14, 12),
	}
	for i := range 60 {
		files[fmt.Sprintf("many/file number %d", i)] = filetest.Noise(uint64(100+i), i*37)
	}
	return files
}

func makeFAT(t testing.TB, k fatKind, files map[string][]byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "fat.img")
	disktest.Run(t, "truncate", "-s", k.size, path)
	disktest.Run(t, "mkfs.fat", append(k.args, path)...)
	t.Setenv("LC_ALL", "C.UTF-8")
	t.Setenv("MTOOLS_SKIP_CHECK", "1")
	dir := filetest.WriteTree(t, files)
	top, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	if len(top) == 0 {
		return path
	}
	disktest.Run(t, "mcopy", append([]string{"-s", "-Q", "-i", path}, append(top, "::")...)...)
	return path
}

// fragment leaves holes in the volume and a file that fills them.
func fragment(t testing.TB, img string, size int) []byte {
	t.Helper()
	small := filepath.Join(t.TempDir(), "small")
	require.NoError(t, os.WriteFile(small, filetest.Noise(20, size/8), 0o600))
	for i := range 8 {
		disktest.Run(t, "mcopy", "-i", img, small, fmt.Sprintf("::hole%d", i))
	}
	for i := 1; i < 8; i += 2 {
		disktest.Run(t, "mdel", "-i", img, fmt.Sprintf("::hole%d", i))
	}
	forgetNextFree(t, img)
	data := filetest.Noise(21, size)
	require.NoError(t, os.WriteFile(small, data, 0o600))
	disktest.Run(t, "mcopy", "-i", img, small, "::In pieces.bin")
	return data
}

// forgetNextFree clears the hint of a FAT32 where free clusters begin, so that holes are filled.
func forgetNextFree(t testing.TB, img string) {
	t.Helper()
	f, err := os.OpenFile(img, os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	sector := make([]byte, 512)
	_, err = f.ReadAt(sector, 512)
	require.NoError(t, err)
	if string(sector[:4]) == "RRaA" {
		_, err = f.WriteAt([]byte{2, 0, 0, 0}, 512+492)
		require.NoError(t, err)
	}
}

func TestFATReadsWhatMtoolsWrote(t *testing.T) {
	for _, k := range fatKinds {
		t.Run(k.name, func(t *testing.T) {
			files := fatTree()
			img := makeFAT(t, k, files)
			files["In pieces.bin"] = fragment(t, img, 200_000)
			g, err := alone(filetest.RawImage(t, img))
			require.NoError(t, err)
			require.Equal(t, k.bits, g.(*fileSystem).Bits)
			var names []string
			for name, data := range files {
				if strings.HasSuffix(name, "/") {
					continue
				}
				names = append(names, name)
				for _, asked := range []string{name, strings.ToUpper(name), strings.ToLower(name)} {
					f, err := g.Open(asked)
					require.NoError(t, err, asked)
					require.Equal(t, name, f.Path, "the names are those that are stored")
					disktest.EqualBytes(t, data, filetest.ReadAll(t, f))
				}
			}
			for i := 0; i < 8; i += 2 {
				names = append(names, fmt.Sprintf("hole%d", i))
			}
			require.ElementsMatch(t, names, filetest.WalkFS(t, g, ""))
			equalMshowfat(t, img, g, names)
		})
	}
}

// equalMshowfat holds the places of all files against those that mshowfat prints: "::/name <2-11> <22>".
func equalMshowfat(t *testing.T, img string, g guestfile.FS, names []string) {
	t.Helper()
	args := []string{"-i", img}
	for _, name := range names {
		args = append(args, "::"+name)
	}
	lines := slices.DeleteFunc(strings.Split(disktest.Output(t, "mshowfat", args...), "\n"),
		func(s string) bool { return !strings.HasPrefix(s, "::/") })
	require.Len(t, lines, len(names))
	v, fragmented := g.(*fileSystem), 0
	for i, name := range names {
		f, err := g.Open(name)
		require.NoError(t, err)
		var want []disk.Range
		left := f.Size()
		for field := range strings.FieldsSeq(lines[i][strings.LastIndex(lines[i], "::/"):]) {
			from, to, ok := strings.Cut(strings.Trim(field, "<>"), "-")
			if !strings.HasPrefix(field, "<") || field == "<0>" {
				continue
			}
			if !ok {
				to = from
			}
			a, err1 := strconv.ParseInt(from, 10, 64)
			b, err2 := strconv.ParseInt(to, 10, 64)
			require.NoError(t, err1)
			require.NoError(t, err2)
			n := min(left, (b-a+1)*v.Cluster)
			want, left = append(want, disk.Range{Off: v.at(a), Len: n}), left-n
		}
		if f.Size() == 0 {
			continue
		}
		got, err := f.Where(0, f.Size())
		require.NoError(t, err)
		require.Equal(t, want, got, name)
		if len(got) > 1 {
			fragmented++
		}
	}
	require.Positive(t, fragmented, "the proof needs a file in pieces")
}

// What is written to the places of bytes is what other programs read, and nothing else changes.
func TestFATRewriteInPlace(t *testing.T) {
	for _, k := range []fatKind{fatKinds[0], fatKinds[4], fatKinds[7]} {
		t.Run(k.name, func(t *testing.T) {
			img := makeFAT(t, k, map[string][]byte{"dir/other": filetest.Noise(1, 9999)})
			data := fragment(t, img, 200_000)
			g := opened(t, filetest.RawImage(t, img))
			f, err := g.Open("IN PIECES.BIN")
			require.NoError(t, err)
			filetest.Rewrite(t, img, f, data, 10_000, 120_000)
			out := filepath.Join(t.TempDir(), "out")
			disktest.Run(t, "mcopy", "-n", "-i", img, "::In pieces.bin", out)
			got := disktest.ReadFile(t, out)
			disktest.EqualBytes(t, data, got)
			disktest.Run(t, "mcopy", "-n", "-o", "-i", img, "::dir/other", out)
			got = disktest.ReadFile(t, out)
			disktest.EqualBytes(t, filetest.Noise(1, 9999), got)
			disktest.Run(t, "fsck.fat", "-n", img)
		})
	}
}

// Of two FATs that differ the flags of a FAT32 say which one counts.
func TestFATActiveTable(t *testing.T) {
	img := makeFAT(t, fatKinds[7], map[string][]byte{"file": filetest.Noise(1, 5000)})
	raw, err := os.ReadFile(img)
	require.NoError(t, err)
	reserved, size := int(raw[0x0e])|int(raw[0x0f])<<8, int(raw[0x24])|int(raw[0x25])<<8
	clear(raw[reserved*512 : (reserved+size)*512]) // the first FAT
	open := func() error {
		g, err := alone(filetest.Memory(raw))
		if err != nil {
			return err
		}
		_, err = g.Open("file")
		return err
	}
	require.Error(t, open())
	raw[0x28] = 1 // not the bit that says that only one FAT is kept
	require.Error(t, open())
	raw[0x28] = 0x81
	require.NoError(t, open())
	raw[0x28] = 0x82
	require.ErrorContains(t, open(), "active FAT 2, want 0 to 1")
}

// Tools make FAT32 with fewer clusters than the specification wants, and systems read them as FAT32.
func TestFATSmall32(t *testing.T) {
	img := makeFAT(t, fatKind{size: "16M", args: []string{"-F", "32", "-s", "8", "-n", "LABEL"}}, nil)
	g := opened(t, filetest.RawImage(t, img))
	require.Equal(t, int64(32), g.(*fileSystem).Bits)
	list, err := g.List("")
	require.NoError(t, err)
	require.Empty(t, list)
}

func TestFATNotThere(t *testing.T) {
	g, err := alone(filetest.RawImage(t, makeFAT(t, fatKinds[0], map[string][]byte{"file": nil, "dir/file": nil})))
	require.NoError(t, err)
	for _, path := range []string{
		"nothing", "dir/nothing", "file/below", "dir", "", ".", "..", "dir/..", "dir/../file", "/file", "file/", "fil",
	} {
		_, err := g.Open(path)
		require.ErrorIs(t, err, fs.ErrNotExist, path)
	}
	for _, path := range []string{"nothing", "file", "dir/file"} {
		_, err := g.List(path)
		require.ErrorIs(t, err, fs.ErrNotExist, path)
	}
}

// TestMirrored changes the second FAT of a volume, cluster by cluster: it matters to the files and folders that lie
// there.
func TestMirrored(t *testing.T) {
	for _, k := range []fatKind{fatKinds[2], fatKinds[3], fatKinds[7]} {
		img := makeFAT(t, k, map[string][]byte{
			"dir/deep/file": filetest.Noise(1, 5000),
			"dir/other":     filetest.Noise(2, 5000), "EMPTY": nil,
		})
		raw, err := os.ReadFile(img)
		require.NoError(t, err)
		open := func() *fileSystem {
			g := opened(t, filetest.Memory(raw))
			return g.(*fileSystem)
		}
		f := open()
		for _, path := range []string{"DIR/deep/FILE", "dir/other", "empty"} {
			require.NoError(t, f.Mirrored(path))
		}
		require.ErrorIs(t, f.Mirrored("none"), fs.ErrNotExist)
		hit := map[string]int{}
		for c := int64(2); c < 40; c++ {
			at := f.FAT.Off + f.FAT.Len + c*f.Bits/8
			raw[at+1] ^= 0x04 // in all kinds a bit of this entry
			for _, path := range []string{"dir/deep/file", "dir/other", "EMPTY"} {
				if err := open().Mirrored(path); err != nil {
					require.ErrorIs(t, err, ondisk.ErrFormat)
					require.ErrorContains(t, err, fmt.Sprintf("entry of cluster %d in FAT 2", c))
					hit[path]++
				}
			}
			raw[at+1] ^= 0x04
		}
		root := map[int64]int{32: 1}[k.bits] // in a cluster
		require.Equal(t, [3]int{root + 2 + 10, root + 1 + 10, root},
			[3]int{hit["dir/deep/file"], hit["dir/other"], hit["EMPTY"]}, k.name)
	}
}

// TestFirstEntry wipes the first entry of FATs that mkfs.fat has made.
func TestFirstEntry(t *testing.T) {
	for _, k := range []fatKind{fatKinds[2], fatKinds[3], fatKinds[7]} {
		raw, err := os.ReadFile(makeFAT(t, k, nil))
		require.NoError(t, err)
		f := opened(t, filetest.Memory(raw)).(*fileSystem)
		require.NoError(t, f.FirstEntry())
		raw[f.FAT.Off] ^= 0x0f
		err = opened(t, filetest.Memory(raw)).(*fileSystem).FirstEntry()
		require.ErrorIs(t, err, ondisk.ErrFormat)
		require.ErrorContains(t, err, "the media byte")
	}
}
