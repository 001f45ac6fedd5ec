package fat

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
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

	// The hint of a FAT32 where free clusters begin is cleared, so that holes are filled.
	if string(disktest.ReadFile(t, img)[512:516]) == "RRaA" {
		disktest.WriteAt(t, img, 512+492, []byte{2, 0, 0, 0})
	}

	data := filetest.Noise(21, size)
	require.NoError(t, os.WriteFile(small, data, 0o600))
	disktest.Run(t, "mcopy", "-i", img, small, "::In pieces.bin")
	return data
}

func TestFATOfMtools(t *testing.T) {
	for _, k := range fatKinds {
		t.Run(k.name, func(t *testing.T) {
			files := fatTree()
			img := makeFAT(t, k, files)
			files["In pieces.bin"] = fragment(t, img, 200_000)
			g := alone.Sound(t, filetest.RawImage(t, img))
			require.Equal(t, k.bits, g.(*fileSystem).Bits)
			var names []string
			for name, data := range files {
				if strings.HasSuffix(name, "/") {
					continue
				}
				names = append(names, name)
				for _, asked := range []string{name, strings.ToUpper(name), strings.ToLower(name)} {
					f := filetest.File(t, g, asked)
					require.Equal(t, name, f.Path, "the names are those that are stored")
					disktest.EqualBytes(t, data, filetest.ReadAll(t, f))
				}
			}
			for i := 0; i < 8; i += 2 {
				names = append(names, fmt.Sprintf("hole%d", i))
			}
			require.ElementsMatch(t, names, filetest.WalkFS(t, g, ""))

			// mshowfat prints the same places for all files.
			v, fragmented := g.(*fileSystem), 0
			for i, runs := range clusterRuns(t, img, names) {
				f := filetest.File(t, g, names[i])
				if f.Size() == 0 {
					continue
				}
				var want []disk.Range
				left := f.Size()
				for _, r := range runs {
					n := min(left, (r[1]-r[0]+1)*v.Cluster)
					want, left = append(want, disk.Range{Off: v.at(r[0]), Len: n}), left-n
				}
				got, err := f.Where(0, f.Size())
				require.NoError(t, err)
				require.Equal(t, want, got, names[i])
				if len(got) > 1 {
					fragmented++
				}
			}
			require.Positive(t, fragmented, "the proof needs a file in pieces")
		})
	}
}

// clusterRuns returns the first and last clusters of each run of files or folders from mshowfat: "::/name <2-11> <22>".
// The root directory and empty files have none.
func clusterRuns(t *testing.T, img string, names []string) (out [][][2]int64) {
	t.Helper()
	args := []string{"-i", img}
	for _, name := range names {
		args = append(args, "::"+name)
	}
	for line := range strings.Lines(disktest.Output(t, "mshowfat", args...)) {
		if !strings.HasPrefix(line, "::/") {
			continue
		}
		_, list, _ := strings.Cut(strings.TrimSpace(line), " <")
		var runs [][2]int64
		for field := range strings.FieldsSeq(list) {
			from, to, ok := strings.Cut(strings.Trim(field, "<>"), "-")
			if !ok {
				to = from
			}
			if r := [2]int64{disktest.Number(t, from), disktest.Number(t, to)}; r[0] > 0 {
				runs = append(runs, r)
			}
		}
		out = append(out, runs)
	}
	require.Len(t, out, len(names))
	return out
}

// TestFATRewriteInPlace writes to the disk offsets of a file. mtools reads these bytes, and nothing else changes.
func TestFATRewriteInPlace(t *testing.T) {
	for _, k := range []fatKind{fatKinds[0], fatKinds[4], fatKinds[7]} {
		t.Run(k.name, func(t *testing.T) {
			img := makeFAT(t, k, map[string][]byte{"dir/other": filetest.Noise(1, 9999)})
			data := fragment(t, img, 200_000)
			g := alone.Sound(t, filetest.RawImage(t, img))
			f := filetest.File(t, g, "IN PIECES.BIN")
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

// Of two different FATs, the flags of a FAT32 determine which one counts.
func TestFATActiveTable(t *testing.T) {
	img := makeFAT(t, fatKinds[7], map[string][]byte{"file": filetest.Noise(1, 5000)})
	raw := disktest.ReadFile(t, img)
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
	raw[0x28] = 1 // not the bit for a single active FAT
	require.Error(t, open())
	raw[0x28] = 0x81
	require.NoError(t, open())
	raw[0x28] = 0x82
	require.ErrorContains(t, open(), "active FAT 2, want 0 to 1")
}

// Tools make FAT32 with fewer clusters than the specification requires, and systems read them as FAT32.
func TestFATSmall32(t *testing.T) {
	img := makeFAT(t, fatKind{size: "16M", args: []string{"-F", "32", "-s", "8", "-n", "LABEL"}}, nil)
	g := alone.Sound(t, filetest.RawImage(t, img))
	require.Equal(t, int64(32), g.(*fileSystem).Bits)
	list, err := g.List("")
	require.NoError(t, err)
	require.Empty(t, list)
}

func TestFATNotThere(t *testing.T) {
	g := alone.Sound(t, filetest.RawImage(t, makeFAT(t, fatKinds[0], map[string][]byte{"file": nil, "dir/file": nil})))
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

// TestMirrored changes the second FAT of a volume, cluster by cluster: each change concerns the files and folders in
// that cluster.
func TestMirrored(t *testing.T) {
	for _, k := range []fatKind{fatKinds[2], fatKinds[3], fatKinds[7]} {
		img := makeFAT(t, k, map[string][]byte{
			"dir/deep/file": filetest.Noise(1, 5000),
			"dir/other":     filetest.Noise(2, 5000), "EMPTY": nil,
		})
		raw := disktest.ReadFile(t, img)
		open := func() *fileSystem {
			g := alone.Sound(t, filetest.Memory(raw))
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
		f := alone.Sound(t, filetest.Memory(raw)).(*fileSystem)
		require.NoError(t, f.FirstEntry())
		raw[f.FAT.Off] ^= 0x0f
		err = alone.Sound(t, filetest.Memory(raw)).(*fileSystem).FirstEntry()
		require.ErrorIs(t, err, ondisk.ErrFormat)
		require.ErrorContains(t, err, "the media byte")
	}
}

// Windows and Linux write names that mtools does not: kept in case by flags, with leftovers of long names, and in other
// code pages.
func TestFATNames(t *testing.T) {
	img := makeFAT(t, fatKinds[0], map[string][]byte{"x": nil})
	raw := disktest.ReadFile(t, img)
	slot := func(name string, flags byte) []byte {
		return append(append([]byte(name), 0x20, flags), make([]byte, 32-13)...)
	}
	long := func(order byte, name string, sum byte) []byte {
		b := bytes.Repeat([]byte{0xff}, 32)
		b[0], b[11], b[12], b[13], b[26], b[27] = order, 0x0f, 0, sum, 0, 0
		for i, at := range []int{1, 3, 5, 7, 9, 14, 16, 18, 20, 22, 24, 28, 30}[:min(13, len(name)+1)] {
			b[at], b[at+1] = 0, 0
			if i < len(name) {
				b[at] = name[i]
			}
		}
		return b
	}
	sum := shortSum([]byte("LONGNA~1TXT"))
	require.Equal(t, byte(0xf4), sum, "by another program")
	root := slices.Concat(slot("LABEL      ", 0), slot("NTLOADER   ", 0x08), slot("BASE    EXT", 0x10),
		slot("BOTH    EXT", 0x18), slot("\x05KANJI  TXT", 0), slot("\x81BER    TXT", 0), slot("\xe5ONE    TXT", 0),
		long(0x42, "ame.txt", sum), long(1, "A very long n", sum), slot("LONGNA~1TXT", 0), long(0x42, "x", sum+1),
		long(1, "another check", sum+1), slot("LONGNA~1TXT", 0), long(0x43, "x", sum), long(1, "one is absent", sum),
		slot("LONGNA~1TXT", 0), long(0x41, "an orphan", sum), slot("SHORT      ", 0), long(0x41, "cut off", sum),
		slot("\xe5ONGNA~1TXT", 0), slot("LONGNA~1TXT", 0), make([]byte, 32), slot("BEHIND     ", 0))
	root[11] = 0x08
	at := 19 * 512 // of a floppy: one boot sector, two FATs of nine
	copy(raw[at:], root)
	g := alone.Sound(t, filetest.Memory(raw))
	list, err := g.List("")
	require.NoError(t, err)
	var names []string
	for _, e := range list {
		names = append(names, e.Name)
	}
	require.Equal(t, []string{
		"ntloader", "BASE.ext", "both.ext", "\xe5KANJI.TXT", "\x81BER.TXT",
		"A very long name.txt", "LONGNA~1.TXT", "LONGNA~1.TXT", "SHORT", "LONGNA~1.TXT",
	}, names)
	for path, want := range map[string]string{
		"NTLDR": "", "NTLOADER": "ntloader", "\x81ber.txt": "\x81BER.TXT", "\x91BER.TXT": "",
		"a VERY long name.TXT": "A very long name.txt", "longna~1.txt": "A very long name.txt", "ſhort": "",
		"short": "SHORT", "\xe5kanji.txt": "\xe5KANJI.TXT", "\xc5kanji.txt": "",
	} {
		f, err := g.Open(path)
		if want == "" {
			require.ErrorIs(t, err, fs.ErrNotExist, path)
			continue
		}
		require.NoError(t, err, path)
		require.Equal(t, want, f.Path)
	}
}

// Images of the corpus were made by Linux and by Windows.
func TestFATCorpus(t *testing.T) {
	for rel, start := range map[string]int64{
		"imagemounter/test.fat12.xz": 0, "keramics/fat16.qcow2.xz": 0, "dftt/6-fat-undel.dd.xz": 0,
		"osv-scalibr/valid-ext-exfat-fat32-ntfs.vmdk.xz": 262144,
	} {
		t.Run(rel, func(t *testing.T) {
			img := filetest.RawCorpus(t, rel, start, 131072)
			g := alone.Sound(t, filetest.RawImage(t, img))
			t.Setenv("MTOOLS_SKIP_CHECK", "1")
			out := t.TempDir()
			// mcopy fails on an empty volume.
			disktest.Run(t, "sh", "-c", `"$0" -s -n -i "$1" :: "$2"; true`, disktest.Tool(t, "mcopy"), img, out)
			names := filetest.EqualFolder(t, g, out)
			require.ElementsMatch(t, names, filetest.WalkFS(t, g, ""))
			t.Log(names)
		})
	}
}

// mshowfat is the group of files or folders whose runs of clusters mshowfat prints.
func mshowfat(t *testing.T, img string, cluster int64, names []string) (g guestfile.Group) {
	t.Helper()
	for _, runs := range clusterRuns(t, img, names) {
		bytes := int64(0)
		for _, r := range runs {
			bytes += (r[1] - r[0] + 1) * cluster
		}
		filetest.Count(&g, int64(len(runs)), bytes)
	}
	return g
}

var fsckLine = regexp.MustCompile(`: (\d+) files, (\d+)/(\d+) clusters`)

// Files, folders and free space of each FAT are as mshowfat, blkls and fsck.fat count them.
func TestCensusLikeMtools(t *testing.T) {
	for _, i := range []int{0, 3, 6, 7} {
		k := fatKinds[i]
		t.Run(k.name, func(t *testing.T) {
			files := fatTree()
			img := makeFAT(t, k, files)
			fragment(t, img, 200_000)
			volume := filetest.RawImage(t, img)
			g := alone.Sound(t, volume)
			v := g.(*fileSystem)
			c := filetest.Counted(t, volume, Fragments)
			require.Zero(t, c.Unread)

			names := filetest.WalkFS(t, g, "")
			want := mshowfat(t, img, v.Cluster, names)
			require.Equal(t, want.Number, int64(len(names)))
			require.Equal(t, want, c.Files)
			require.Positive(t, want.Fragmented)

			folders := map[string]bool{"": true, "empty folder": true}
			for _, name := range names {
				for parts := strings.Split(name, "/"); len(parts) > 1; {
					parts = parts[:len(parts)-1]
					folders[strings.Join(parts, "/")] = true
				}
			}
			require.Equal(t, int64(len(folders)), c.Folders.Number)
			delete(folders, "")
			want = mshowfat(t, img, v.Cluster, slices.Collect(maps.Keys(folders)))
			// The root, which mshowfat does not print, is a chain in FAT32 only.
			pieces, bytes := int64(0), int64(0)
			if v.Bits == 32 {
				b := disktest.ReadFile(t, img)
				for last, c := int64(-1), int64(v.RootCluster); c < 0x0ffffff8; {
					if c != last+1 {
						pieces++
					}
					bytes += v.Cluster
					last, c = c, int64(binary.LittleEndian.Uint32(b[int64(v.Reserved)*v.Sector+4*c:]))
				}
			}
			filetest.Count(&want, pieces, bytes)
			require.Equal(t, want, c.Folders)

			require.Equal(t, filetest.FreeOfSleuthkit(t, img, v.Sector), c.Free)
			m := fsckLine.FindStringSubmatch(disktest.Output(t, "fsck.fat", "-n", img))
			require.NotNil(t, m)
			require.Equal(t, v.Clusters-disktest.Number(t, m[2]), c.Free.Bytes/v.Cluster)
		})
	}
}

// A chain that comes back to itself, and one that leaves the volume, do not hide the other files; nor does a folder
// that holds itself.
func TestCensusOfBrokenFAT(t *testing.T) {
	img := makeFAT(t, fatKinds[3], map[string][]byte{
		"A": filetest.Noise(1, 2000), "B": filetest.Noise(2, 2000), "C": filetest.Noise(3, 2000),
		"D/E": filetest.Noise(4, 10),
	})
	b := disktest.ReadFile(t, img)
	g := alone.Sound(t, filetest.Memory(b))
	v := g.(*fileSystem)
	first := func(path string) int64 {
		e, _, err := v.find(path)
		require.NoError(t, err)
		return e.first
	}
	next := map[int64]uint16{first("A") + 1: uint16(first("A")), first("B"): 0xfff0}
	dir, inner := v.at(first("D")), first("D")
	for cluster, to := range next {
		b[v.table+2*cluster], b[v.table+2*cluster+1] = byte(to), byte(to>>8)
	}
	copy(b[dir+3*32:], "SELF       \x10")
	b[dir+3*32+26], b[dir+3*32+27] = byte(inner), byte(inner>>8)
	c := filetest.Counted(t, filetest.Memory(b), Fragments)
	require.Equal(t, int64(3), c.Unread)
	require.Equal(t, int64(2), c.Files.Number)
	require.Equal(t, int64(2), c.Folders.Number)

	filetest.CountedInPart(t, filetest.Memory(b), Fragments, 150<<10) // the free clusters and the root
}

func FuzzFAT(f *testing.F) {
	var volumes [][]byte
	for _, k := range []fatKind{
		{size: "128K", args: []string{"-F", "12", "-s", "1", "-r", "64"}},
		{size: "4400K", args: []string{"-F", "16", "-s", "1", "-r", "64"}},
		{size: "34M", args: []string{"-F", "32", "-s", "1"}},
	} {
		img := makeFAT(f, k, map[string][]byte{
			"file": filetest.Noise(1, 3000), "dir/in dir.txt": filetest.Noise(2, 100),
			"A long name with spaces.txt": filetest.Noise(3, 10), "dir/dir/dir": filetest.Noise(3, 900),
		})
		fragment(f, img, 20_000)
		volumes = append(volumes, disktest.ReadFile(f, img))
	}
	filetest.FuzzFiles(f, alone, Fragments, volumes...)
}

func TestFATLargeFolder(t *testing.T) {
	folder := bytes.Repeat([]byte{0}, 1<<21)
	for i := range filetest.ManyNames {
		copy(folder[i*32:], fmt.Sprintf("NAME%04XEXT ", i))
	}
	for _, k := range []fatKind{
		{size: "20M", args: []string{"-F", "16", "-s", "1"}},
		{size: "40M", args: []string{"-F", "32", "-s", "1"}},
	} {
		raw := disktest.ReadFile(t, makeFAT(t, k, map[string][]byte{"LARGE": folder}))
		raw[bytes.Index(raw, []byte("LARGE      "))+11] |= attrDir
		g := alone.Sound(t, filetest.Memory(raw))
		filetest.Cheap(t, lower{g}, g.(*fileSystem).meter, int64(len(folder))*(1+namesWeight),
			fmt.Sprintf("LARGE/NAME%04X.EXT", filetest.ManyNames-1))
	}
}

// lower looks names up in another case.
type lower struct{ guestfile.FS }

func (l lower) Open(path string) (*guestfile.File, error) { return l.FS.Open(strings.ToLower(path)) }

func (l lower) List(path string) ([]guestfile.Entry, error) { return l.FS.List(strings.ToLower(path)) }

var alone = filetest.Alone(Open)
