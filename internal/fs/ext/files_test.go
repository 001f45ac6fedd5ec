package ext

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/filetest"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
)

func TestExtOfMke2fs(t *testing.T) {
	dir, files := extTree(t)
	large, _ := extTree(t)
	sparse(t, large)
	for i, k := range extKinds {
		t.Run(k.name, func(t *testing.T) {
			dir := dir
			if i == 0 || i == 6 || i == 10 { // one with indirect blocks, one with extents, one with clusters
				dir = large
			}
			hashed := i == 0 || i == 5 || i == 9 // trees change how Linux reads a folder, not its content
			if hashed {
				k.args = append(k.args, "-O", "dir_index")
			}
			img := makeExt(t, k, dir)
			if hashed { // the code is 1 if e2fsck has changed something
				disktest.Run(t, "sh", "-c", `"$0" -fyD "$1"; test $? -le 1`, disktest.Tool(t, "e2fsck"), img)
				require.Contains(t, disktest.Output(t, "debugfs", "-R", "htree_dump /many", img), "Root node dump")
			}
			g := alone.Sound(t, filetest.RawImage(t, img))
			var names []string
			for name, data := range files {
				if strings.HasSuffix(name, "/") {
					continue
				}
				names = append(names, name)
				f := filetest.File(t, g, name)
				require.Equal(t, name, f.Path)
				disktest.EqualBytes(t, data, filetest.ReadAll(t, f))
			}
			checkLinks(t, g, files)
			if dir == large {
				f := filetest.File(t, g, "sparse")
				want, err := os.Open(filepath.Join(dir, "sparse"))
				require.NoError(t, err)
				defer want.Close()
				require.Equal(t, digest(t, want), digest(t, io.NewSectionReader(f, 0, f.Size())))
				_, err = f.Where(10<<20, 10)
				require.ErrorIs(t, err, ondisk.ErrUnsupported, "a hole has no place")
				require.ErrorIs(t, err, guestfile.ErrHole)
				names = append(names, "sparse")
			}
			equalDebugfs(t, img, g.(*fileSystem), names)
		})
	}
}

// checkLinks follows the symbolic links of extTree.
func checkLinks(t *testing.T, g guestfile.FS, files map[string][]byte) {
	t.Helper()
	for link, want := range map[string]string{
		"vmlinuz": "boot/vmlinuz-6.1.0-18-amd64", "abs": "boot/grub/grub.cfg", "dirlink/grub.cfg": "boot/grub/grub.cfg",
		"boot/grub/up": "etc/fstab", "dirlink/up": "etc/fstab", "dirlink/../grub/up": "etc/fstab",
		"slow": "deep/er/and/deep/er/file", "chain1": "boot/vmlinuz-6.1.0-18-amd64", "above": "etc/fstab",
		"slow60": "etc/fstab", "slow59": "etc/fstab", "slow200": "etc/fstab", "/etc//fstab": "etc/fstab",
		"../etc/./fstab": "etc/fstab",
	} {
		f := filetest.File(t, g, link)
		require.Equal(t, want, f.Path, link)
		disktest.EqualBytes(t, files[want], filetest.ReadAll(t, f))
	}
	for _, path := range []string{
		"dangling", "nothing", "etc", "", "throughfile", "etc/fstab/", "etc/fstab/..",
		"etc/Fstab", "lost+found/x",
	} {
		_, err := g.Open(path)
		require.ErrorIs(t, err, fs.ErrNotExist, path)
	}
	_, err := g.Open("loop")
	require.ErrorIs(t, err, ondisk.ErrLimit)
	require.ErrorContains(t, err, "8 symbolic links")
	list, err := g.List("dirlink")
	require.NoError(t, err)
	require.ElementsMatch(t, []guestfile.Entry{{Name: "grub.cfg"}, {Name: "up"}}, list)
	list, err = g.List("")
	require.NoError(t, err)
	require.Contains(t, list, guestfile.Entry{Name: "boot", Dir: true})
	require.Contains(t, list, guestfile.Entry{Name: "dirlink"})
	list, err = g.List("many")
	require.NoError(t, err)
	require.Len(t, list, manyFiles)
	_, err = g.List("etc/fstab")
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// A file system of more than 2^32 bytes has triple indirect blocks even with blocks of 4 KiB.
func TestExtLargeSparseFile(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "large")
	disktest.MakeBlank(t, name, 9<<30+5000)
	places := []int64{0, 48 << 10, 4<<20 + 48<<10 + 5, 4<<30 + 8<<20, 9 << 30}
	for i, off := range places {
		disktest.WriteAt(t, name, off, filetest.Noise(uint64(i), 5000))
	}
	for _, k := range []extKind{extKinds[3], extKinds[5], extKinds[9]} {
		t.Run(k.name, func(t *testing.T) {
			img := makeExt(t, k, dir)
			g := alone.Sound(t, filetest.RawImage(t, img))
			f := filetest.File(t, g, "large")
			require.Equal(t, int64(9<<30+5000), f.Size())
			equalRuns(t, img, g.(*fileSystem), f)
			got := make([]byte, 5000)
			for i, off := range places {
				require.NoError(t, ondisk.ReadFull(f, got, off))
				disktest.EqualBytes(t, filetest.Noise(uint64(i), 5000), got)
			}
		})
	}
}

// Files that are not stored byte for byte are refused, and their neighbours are not.
func TestExtRefused(t *testing.T) {
	k := extKinds[18]
	k.args = append(k.args, "-O", "^mmp") // debugfs waits for other hosts
	dir := filetest.WriteTree(t, map[string][]byte{
		"enc/file": filetest.Noise(1, 10), "sealed": filetest.Noise(2, 10),
		"packed": filetest.Noise(3, 10), "plain": filetest.Noise(4, 10), "cf/Name": nil,
	})
	img := makeExt(t, k, dir)
	for path, flags := range map[string]string{
		"/enc": "0x80800", "/sealed": "0x180000", "/packed": "0x80200",
		"/cf": "0x40080000",
	} {
		disktest.Run(t, "debugfs", "-w", "-R", "set_inode_field "+path+" flags "+flags, img)
	}
	g := alone.Sound(t, filetest.RawImage(t, img))
	for path, text := range map[string]string{
		"enc/file": "is encrypted", "sealed": "fs-verity", "packed": "is compressed",
		"cf/name": "without case",
	} {
		_, err := g.Open(path)
		require.ErrorIs(t, err, ondisk.ErrUnsupported, path)
		require.ErrorContains(t, err, text)
	}
	_, err := g.List("enc")
	require.ErrorIs(t, err, ondisk.ErrUnsupported)
	for _, path := range []string{"plain", "cf/Name"} {
		_, err = g.Open(path)
		require.NoError(t, err)
	}
	list, err := g.List("")
	require.NoError(t, err)
	require.Contains(t, list, guestfile.Entry{Name: "enc", Dir: true})
}

// The files of a volume with an unreplayed journal, or with features that only permit reading, cannot be rewritten.
func TestExtFixed(t *testing.T) {
	img := makeExt(t, extKinds[5], filetest.WriteTree(t, map[string][]byte{"file": filetest.Noise(1, 10)}))
	raw, err := os.ReadFile(img)
	require.NoError(t, err)
	for text, a := range map[string]filetest.Attack{
		"journal":         {Off: 0x60, Put: []byte{raw[superAt+0x60] | incompatRecover}},
		"features 0x4000": {Off: 0x65, Put: []byte{raw[superAt+0x65] | 0x40}},
		"features 0x80":   {Off: 0x64, Put: []byte{raw[superAt+0x64] | 0x80}},
	} {
		b := slices.Clone(raw)
		copy(b[superAt+a.Off:], a.Put)
		g := alone.Sound(t, filetest.Memory(b))
		f := filetest.File(t, g, "file")
		disktest.EqualBytes(t, filetest.Noise(1, 10), filetest.ReadAll(t, f))
		_, err = f.Where(0, 10)
		require.ErrorIs(t, err, ondisk.ErrUnsupported)
		require.ErrorContains(t, err, text)
	}
}

// Images of the corpus were made by Linux itself.
func TestExtCorpus(t *testing.T) {
	for rel, start := range map[string]int64{
		"imagemounter/test.ext3.xz": 0, "dfvfs/ext2.qcow2.xz": 0,
		"osv-scalibr/valid-ext-exfat-fat32-ntfs.vmdk.xz": 2048,
	} {
		t.Run(rel, func(t *testing.T) {
			img := filetest.RawCorpus(t, rel, start, 129024)
			volume := alone.Sound(t, filetest.RawImage(t, img))
			g := volume.(*fileSystem)
			out := t.TempDir()
			disktest.Run(t, "debugfs", "-R", "rdump / "+out, img)
			names := filetest.EqualFolder(t, g, out)
			require.Subset(t, filetest.WalkFS(t, g, ""), names)
			for p, runs := range debugfsRuns(t, img, g.block, names) {
				f := filetest.File(t, g, p)
				want, err := guestfile.NewFile(g.volume, p, f.Size(), runs)
				require.NoError(t, err)
				require.Equal(t, filetest.RunsOf(t, want), filetest.RunsOf(t, f))
			}
			if rel == "dfvfs/ext2.qcow2.xz" {
				f := filetest.File(t, g, "a_link")
				require.Equal(t, "a_directory/another_file", f.Path)
			}
		})
	}
}

// scatter makes a file in many pieces, and one with blocks that are taken and not written.
func scatter(t testing.TB, img string, blocks int) []byte {
	t.Helper()
	tmp := t.TempDir()
	one, big := filepath.Join(tmp, "one"), filepath.Join(tmp, "big")
	data := filetest.Noise(7, blocks*4096)
	require.NoError(t, os.WriteFile(one, filetest.Noise(8, 4096), 0o600))
	require.NoError(t, os.WriteFile(big, data, 0o600))
	var script strings.Builder
	for i := range 2 * blocks {
		fmt.Fprintf(&script, "write %s s%d\n", one, i)
	}
	for i := 0; i < 2*blocks; i += 2 {
		fmt.Fprintf(&script, "rm s%d\n", i)
	}
	fmt.Fprintf(&script, "write %s pieces\n", big)
	commands := filepath.Join(tmp, "script")
	require.NoError(t, os.WriteFile(commands, []byte(script.String()), 0o600))
	disktest.Output(t, "debugfs", "-w", "-f", commands, img)
	return data
}

// Other programs read bytes written at these positions, nothing else changes, and a check of the volume finds no error.
func TestExtRewriteInPlace(t *testing.T) {
	dir := filetest.WriteTree(t, map[string][]byte{"other": filetest.Noise(1, 9999)})
	for _, k := range []extKind{extKinds[0], extKinds[3], extKinds[5], extKinds[6], extKinds[9], extKinds[13]} {
		t.Run(k.name, func(t *testing.T) {
			img := makeExt(t, k, dir)
			data := scatter(t, img, 500)
			g := alone.Sound(t, filetest.RawImage(t, img))
			f := filetest.File(t, g, "pieces")
			equalRuns(t, img, g.(*fileSystem), f)
			if !strings.Contains(k.name, "bigalloc") {
				require.Greater(t, len(filetest.RunsOf(t, f)), 200)
			}
			filetest.Rewrite(t, img, f, data, 10_001, 1_200_000)
			before := filetest.Noise(1, 9999)
			require.Equal(t, string(data), disktest.Output(t, "debugfs", "-R", "cat /pieces", img))
			require.Equal(t, string(before), disktest.Output(t, "debugfs", "-R", "cat /other", img))
			disktest.Run(t, "e2fsck", "-fn", img)
		})
	}
}

func equalRuns(t *testing.T, img string, g *fileSystem, f *guestfile.File) {
	t.Helper()
	want, err := guestfile.NewFile(g.volume, f.Path, f.Size(), debugfsRuns(t, img, g.block, []string{f.Path})[f.Path])
	require.NoError(t, err)
	require.NotEmpty(t, filetest.RunsOf(t, f))
	require.Equal(t, filetest.RunsOf(t, want), filetest.RunsOf(t, f))
}

// Blocks that are taken and not written read as zeros, and have no place.
func TestExtUninitialised(t *testing.T) {
	img := makeExt(t, extKinds[5], filetest.WriteTree(t, map[string][]byte{"file": filetest.Noise(1, 10_000)}))
	disktest.Run(t, "debugfs", "-w", "-R", "fallocate /file 3 40", img)
	disktest.Run(t, "debugfs", "-w", "-R", "set_inode_field /file size 150000", img)
	g := alone.Sound(t, filetest.RawImage(t, img))
	f := filetest.File(t, g, "file")
	equalRuns(t, img, g.(*fileSystem), f)
	b := filetest.ReadAll(t, f)
	disktest.EqualBytes(t, filetest.Noise(1, 10_000), b[:10_000])
	require.True(t, ondisk.IsZero(b[12_288:]))
	_, err := f.Where(12_280, 8)
	require.NoError(t, err)
	_, err = f.Where(12_281, 8)
	require.ErrorIs(t, err, guestfile.ErrHole)
}

// extKind is a way to format. All have blocks of 4 KiB unless they say something else.
type extKind struct {
	name string
	size string
	args []string
}

// words are arguments of a program.
var words = strings.Fields

var extKinds = []extKind{
	{"ext2, 1 KiB blocks", "24M", words("-t ext2 -b 1024")},
	{"ext2, revision 0", "24M", words("-t ext2 -r 0 -b 1024")},
	{"ext2, no file types", "24M", words("-t ext2 -O ^filetype -b 2048 -I 128")},
	{"ext3", "32M", words("-t ext3 -b 4096")},
	{"ext3, inodes of 512 bytes", "32M", words("-t ext3 -b 1024 -I 512")},
	{"ext4", "32M", words("-t ext4 -b 4096")},
	{"ext4, 1 KiB blocks, no 64bit, no checksums", "32M", words("-t ext4 -b 1024 -O ^64bit,^metadata_csum,uninit_bg")},
	{"ext4, inline data", "32M", words("-t ext4 -b 4096 -O inline_data -I 256")},
	{"ext4, inline data, inodes of 1 KiB", "32M", words("-t ext4 -b 4096 -O inline_data -I 1024")},
	{"ext4, bigalloc", "64M", words("-t ext4 -b 4096 -O bigalloc -C 16384")},
	{"ext4, bigalloc, 1 KiB blocks", "64M", words("-t ext4 -b 1024 -O bigalloc -C 8192")},
	{
		"ext4, bigalloc, meta_bg, 1 KiB blocks", "64M",
		words("-t ext4 -b 1024 -O bigalloc,meta_bg,^resize_inode -C 8192"),
	},
	{"ext4, meta_bg, many groups", "64M", words("-t ext4 -b 1024 -g 512 -O meta_bg,^resize_inode")},
	{
		"ext4, meta_bg, no sparse_super", "64M",
		words("-t ext4 -b 1024 -g 512 -O meta_bg,^resize_inode,^sparse_super,^flex_bg"),
	},
	{"ext4, many groups, no flex_bg", "64M", words("-t ext4 -b 1024 -g 512 -O ^resize_inode,^flex_bg")},
	{
		"ext4, sparse_super2, meta_bg", "64M",
		words("-t ext4 -b 1024 -g 512 -O sparse_super2,meta_bg,^resize_inode,^flex_bg"),
	},
	{"ext4, 64 KiB blocks", "96M", words("-t ext4 -b 65536")},
	{"ext4, inodes of 128 bytes", "32M", words("-t ext4 -b 4096 -I 128")},
	{
		"ext4, many features", "32M",
		words("-t ext4 -b 4096 -O large_dir,ea_inode,encrypt,verity,quota,project,mmp,metadata_csum_seed,casefold"),
	},
	{"ext4, blocks mapped as in ext3", "32M", words("-t ext4 -b 1024 -O ^extents,^64bit")},
}

// manyFiles are so many that a folder has several blocks.
const manyFiles = 250

// extTree is put on each.
func extTree(t testing.TB) (dir string, files map[string][]byte) {
	t.Helper()
	files = map[string][]byte{
		"boot/grub/grub.cfg": filetest.Noise(1, 6000), "boot/vmlinuz-6.1.0-18-amd64": filetest.Noise(2, 700_001),
		"etc/fstab": filetest.Noise(3, 600), "ünïcödé ☃": filetest.Noise(4, 5),
		"deep/er/and/deep/er/file": filetest.Noise(5, 10), "empty folder/": nil,
		"name/" + strings.Repeat("n", 255): filetest.Noise(6, 20),
	}
	for _, n := range []int{
		0, 1, 59, 60, 61, 100, 120, 155, 156, 157, 500, 900, 1023, 1024, 1025, 4095, 4096, 4097,
		12 * 1024, 12*1024 + 1, 65536, 268*1024 + 1,
	} {
		files[fmt.Sprintf("sizes/%d", n)] = filetest.Noise(uint64(1000+n), n)
	}
	for i := range manyFiles {
		files[fmt.Sprintf("many/file number %d", i)] = filetest.Noise(uint64(i), i%7)
	}
	for i := range 3 {
		files[fmt.Sprintf("few/%d", i)] = nil
	}
	dir = filetest.WriteTree(t, files)
	for name, target := range map[string]string{
		"vmlinuz": "boot/vmlinuz-6.1.0-18-amd64", "abs": "/boot/grub/grub.cfg", "dirlink": "boot/grub",
		"boot/grub/up": "../../etc/fstab",
		"slow":         "deep/../deep/../deep/../deep/../deep/er/and/../../er/and/deep/er/file", "chain1": "chain2",
		"chain2": "/chain3", "chain3": "./vmlinuz",
		"loop": "loop", "dangling": "nothing/here", "above": "../../../etc//fstab", "slow60": strings.Repeat("./", 25) +
			"etc/fstab", "slow59": strings.Repeat("./", 25) + "etc/./fstab",
		"slow200": strings.Repeat("./", 95) + "etc/fstab", "throughfile": "etc/fstab/x",
	} {
		require.NoError(t, os.Symlink(target, filepath.Join(dir, name)))
	}
	return dir, files
}

// sparse puts a file with holes into a folder: bytes in every range that a tree of blocks of 1 KiB tells apart.
func sparse(t testing.TB, dir string) {
	t.Helper()
	path := filepath.Join(dir, "sparse")
	disktest.MakeBlank(t, path, 66<<20)
	for i, off := range []int64{
		5000, 100_000, 263 << 10, 280 << 10, 2 << 20, 30<<20 + 7, 64<<20 + 200<<10, 65 << 20, 66<<20 - 10,
	} {
		disktest.WriteAt(t, path, off, filetest.Noise(uint64(i), 9))
	}
}

func makeExt(t testing.TB, k extKind, dir string) string {
	t.Helper()
	img := filepath.Join(t.TempDir(), "ext.img")
	disktest.Run(t, "truncate", "-s", k.size, img)
	disktest.Run(t, "mke2fs", slices.Concat([]string{"-q", "-F", "-d", dir}, k.args, []string{img})...)
	return img
}

func digest(t testing.TB, r io.Reader) [sha256.Size]byte {
	t.Helper()
	h := sha256.New()
	_, err := io.Copy(h, r)
	require.NoError(t, err)
	return [sha256.Size]byte(h.Sum(nil))
}

var extStretch = regexp.MustCompile(`\((\d+)(?:-(\d+))?(\[u\])?\):(\d+)`)

// debugfsRuns are the places of files as debugfs prints them: "(0-11):24-35, (IND):36, (12):37". Stretches that are
// taken but not written are marked "[u]" and omitted.
func debugfsRuns(t testing.TB, img string, block int64, paths []string) map[string][]guestfile.Run {
	t.Helper()
	var script strings.Builder
	for _, p := range paths {
		fmt.Fprintf(&script, "stat \"/%s\"\n", p)
	}
	commands := filepath.Join(t.TempDir(), "script")
	require.NoError(t, os.WriteFile(commands, []byte(script.String()), 0o600))
	parts := strings.Split(disktest.Output(t, "debugfs", "-f", commands, img), "debugfs: stat ")[1:]
	require.Len(t, parts, len(paths))
	out := map[string][]guestfile.Run{}
	for i, p := range paths {
		var runs []guestfile.Run
		_, lists, _ := strings.Cut(parts[i], "\nBLOCKS:")
		if _, extents, ok := strings.Cut(parts[i], "\nEXTENTS:"); ok {
			lists = extents
		}
		for _, m := range extStretch.FindAllStringSubmatch(lists, -1) {
			first, at := disktest.Number(t, m[1]), disktest.Number(t, m[4])
			last := first
			if m[2] != "" {
				last = disktest.Number(t, m[2])
			}
			if m[3] == "" {
				runs = append(runs, guestfile.Run{Off: first * block, Len: (last - first + 1) * block, At: at * block})
			}
		}
		slices.SortFunc(runs, func(a, b guestfile.Run) int { return cmp.Compare(a.Off, b.Off) })
		out[p] = runs
	}
	return out
}

// equalDebugfs holds the places of all files, and the bytes of all, against debugfs.
func equalDebugfs(t *testing.T, img string, g *fileSystem, names []string) {
	t.Helper()
	mapped := 0
	for name, runs := range debugfsRuns(t, img, g.block, names) {
		f := filetest.File(t, g, name)
		if f.Fixed != nil { // inline
			require.Less(t, f.Size(), int64(1000))
			require.Empty(t, runs, name)
			if f.Size() > 0 {
				_, err := f.Where(0, 1)
				require.ErrorIs(t, err, ondisk.ErrUnsupported)
				require.ErrorContains(t, err, "within its inode")
			}
			continue
		}
		want, err := guestfile.NewFile(g.volume, name, f.Size(), runs)
		require.NoError(t, err)
		require.Equal(t, filetest.RunsOf(t, want), filetest.RunsOf(t, f), name)
		mapped++
	}
	require.Greater(t, mapped, 10)
	out := t.TempDir()
	disktest.Run(t, "debugfs", "-R", "rdump / "+out, img)
	for _, name := range names {
		f := filetest.File(t, g, name)
		other, err := os.Open(filepath.Join(out, name))
		require.NoError(t, err)
		var theirs io.Reader = other
		if f.Fixed != nil { // debugfs shows all 60 bytes that the inode has room for
			theirs = io.LimitReader(other, f.Size())
		}
		require.Equal(t, digest(t, theirs), digest(t, io.NewSectionReader(f, 0, f.Size())), name)
		require.NoError(t, other.Close())
	}
}
