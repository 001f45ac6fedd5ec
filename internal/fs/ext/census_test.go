package ext

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/filetest"
	"github.com/trueup/trueup/internal/guestfile"
)

var (
	piecesLine  = regexp.MustCompile(`(?m)^//?(.*): (\d+) contiguous extents( \(dir\))?$`)
	stretchLine = regexp.MustCompile(`(?m)^ +\d+ +(\d+) +(\d+)(?: +\d+)? +(\d+)\b`)
	freeExtents = regexp.MustCompile(
		`(?s)size: (\d+) bytes.*Free blocks: (\d+) .*Max\. [^:]*: (\d+) KB.*Num\. [^:]*: (\d+)`)
)

// filefrag applies the rule of the program filefrag to the stretches of debugfs, which starts a new one at each hole.
func filefrag(t testing.TB, img, path string) (pieces int64) {
	t.Helper()
	var logical, physical, length int64
	out := disktest.Output(t, "debugfs", "-R", "filefrag -v /"+path, img)
	for _, m := range stretchLine.FindAllStringSubmatch(out, -1) {
		l, p := disktest.Number(t, m[1]), disktest.Number(t, m[2])
		if pieces == 0 || (p != physical+length && p != physical+l-logical) {
			pieces++
		}
		logical, physical, length = l, p, disktest.Number(t, m[3])
	}
	return pieces
}

// sum is the group of files with so many pieces. It knows nothing of their bytes.
func sum(pieces map[string]int64) (g guestfile.Group) {
	for _, n := range pieces {
		filetest.Count(&g, n, 0)
	}
	return g
}

// Files, folders and free space of every kind of ext are as debugfs, filefrag and e2freefrag count them.
func TestCensusLikeE2fsprogs(t *testing.T) {
	t.Parallel()
	files := map[string][]byte{
		"empty": nil, "small": filetest.Noise(1, 50), "deep/er/and/deep/er/file": filetest.Noise(2, 300_000),
	}
	for i := range 60 {
		files[fmt.Sprintf("a folder with long names/file number %0100d", i)] = filetest.Noise(uint64(i), i*13)
	}
	dir := filetest.WriteTree(t, files)
	sparse(t, dir)
	for _, i := range []int{0, 1, 3, 6, 7, 9, 12, 14, 15, 16} {
		k := extKinds[i]
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			img := makeExt(t, k, dir)
			scatter(t, img, 30)
			holes := []string{"sparse", "pieces"}
			script := "ln /pieces /deep/second\nsymlink /link /pieces\n"
			if strings.HasPrefix(k.name, "ext4") { // blocks after the end of a file, which are not written
				script += "fallocate /pieces 40 60\n"
			}
			if strings.HasPrefix(k.name, "ext4") && !strings.Contains(k.name, "inline") {
				script += "fallocate /small 40 60\n"
				holes = append(holes, "small")
			}
			commands := t.TempDir() + "/script"
			require.NoError(t, os.WriteFile(commands, []byte(script), 0o600))
			disktest.Output(t, "debugfs", "-w", "-f", commands, img)

			c := filetest.Counted(t, filetest.RawImage(t, img), Fragments)
			files, folders := map[string]int64{}, map[string]int64{} // of so many pieces; "" is the root
			out := disktest.Output(t, "debugfs", "-R", "filefrag -d /", img) +
				disktest.Output(t, "debugfs", "-R", "filefrag -r /", img)
			for _, m := range piecesLine.FindAllStringSubmatch(out, -1) {
				to := files
				if m[3] != "" {
					to = folders
				}
				to[strings.TrimPrefix(m[1], "/")] = disktest.Number(t, m[2])
			}
			delete(files, "deep/second") // the same file
			delete(files, "link")
			for _, path := range holes {
				files[path] = filefrag(t, img, path)
			}
			if strings.Contains(k.name, "inline") {
				require.Less(t, sum(files).Placed, sum(files).Number-5)
			}
			for _, both := range [][2]guestfile.Group{{sum(files), c.Files}, {sum(folders), c.Folders}} {
				want, got := both[0], both[1]
				got.Bytes, got.Apart = 0, 0
				require.Equal(t, want, got)
			}
			require.Zero(t, c.Unread)
			m := freeExtents.FindStringSubmatch(disktest.Output(t, "e2freefrag", img))
			require.Equal(t, disktest.Number(t, m[1])*disktest.Number(t, m[2]), c.Free.Bytes)
			require.Equal(t, disktest.Number(t, m[4]), c.Free.Pieces)
			if !strings.Contains(k.name, "bigalloc") { // whose largest extent e2freefrag 1.47 does not find
				require.Equal(t, disktest.Number(t, m[3])<<10, c.Free.Largest)
			}
		})
	}
}

// The bytes of a file are those of its blocks.
func TestCensusBytes(t *testing.T) {
	t.Parallel()
	img := makeExt(t, extKinds[5], filetest.WriteTree(t, map[string][]byte{"one": filetest.Noise(1, 4097)}))
	scatter(t, img, 30)
	c := filetest.Counted(t, filetest.RawImage(t, img), Fragments)
	require.Equal(t, int64(1), c.Files.Fragmented)
	require.Equal(t, int64(30*4096), c.Files.Apart)
	require.Equal(t, int64((30+30+2)*4096), c.Files.Bytes) // and those that scatter leaves between the pieces
}

// A hostile volume ends with the budget, and the counts up to then are kept.
func TestCensusEndsWithItsBudget(t *testing.T) {
	t.Parallel()
	files := map[string][]byte{}
	for i := range 600 {
		files[fmt.Sprint(i)] = filetest.Noise(uint64(i), 10)
	}
	img := makeExt(t, extKinds[5], filetest.WriteTree(t, files))
	// Group descriptors, bitmaps and two or three stretches of inodes.
	c := filetest.CountedInPart(t, filetest.RawImage(t, img), Fragments, 256<<10)
	require.Positive(t, c.Files.Number)
	require.Less(t, c.Files.Number, int64(600))
	require.Less(t, c.Looked, c.Of)
}

// A file whose tree is broken does not hide the others.
func TestCensusSkipsBrokenFiles(t *testing.T) {
	t.Parallel()
	img := makeExt(t, extKinds[0], filetest.WriteTree(t, map[string][]byte{
		"good": filetest.Noise(1, 5000), "bad": filetest.Noise(2, 5000),
	}))
	disktest.Run(t, "debugfs", "-w", "-R", "set_inode_field bad block[2] 99999999", img)
	c := filetest.Counted(t, filetest.RawImage(t, img), Fragments)
	require.Equal(t, int64(1), c.Unread)
	require.Equal(t, int64(1), c.Files.Number)
}

func TestExtLargeFolder(t *testing.T) {
	const block, entry = 4096, 28
	var folder []byte
	for i := range filetest.ManyNames {
		name := fmt.Sprintf("name number %05d", i)
		start, length := len(folder)%block, entry
		if start+2*entry > block || i == filetest.ManyNames-1 {
			length = block - start // the last entry has all that is left
		}
		e := binary.LittleEndian.AppendUint32(nil, 13)
		e = append(binary.LittleEndian.AppendUint16(e, uint16(length)), byte(len(name)), 1)
		folder = append(folder, append(e, name...)...)
		folder = append(folder, make([]byte, length-8-len(name))...)
	}
	require.Zero(t, len(folder)%block)
	img := makeExt(t, extKind{size: "16M", args: []string{"-t", "ext4", "-b", "4096", "-O", "^metadata_csum"}},
		filetest.WriteTree(t, map[string][]byte{"large": folder}))
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	disktest.Run(t, "debugfs", "-w", "-R", "write "+file+" file", img)
	disktest.Run(t, "debugfs", "-w", "-R", "set_inode_field large mode 040755", img)
	require.Contains(t, disktest.Output(t, "debugfs", "-R", "stat <13>", img), "Type: regular")
	require.Equal(t, filetest.ManyNames, strings.Count(disktest.Output(t, "debugfs", "-R", "ls -p /large", img),
		"/name number "))
	g := alone.Sound(t, filetest.RawImage(t, img))
	filetest.Cheap(t, g, g.(*fileSystem).meter, int64(len(folder)),
		fmt.Sprintf("large/name number %05d", filetest.ManyNames-1))
}

var alone = filetest.Alone(Open)

// Sorting the runs of a file takes longer than reading them, and a volume can have many such files.
func TestFilesOfManyRunsCost(t *testing.T) {
	m := &blockMap{fs: &fileSystem{meter: guestfile.NewBudget().Meter(nil)}, runs: filetest.ManyRuns()}
	filetest.EndsWithin(t, 100, m.disjoint)
}

// s_backup_bgs ends at 0x254. Spec: Linux, Documentation/filesystems/ext4/super.rst.
func TestStructSize(t *testing.T) { require.Equal(t, 0x254, binary.Size(super{})) }

func FuzzExt(f *testing.F) {
	var volumes [][]byte
	for _, k := range []extKind{
		{size: "256K", args: words("-t ext2 -b 1024 -N 32")},
		{size: "512K", args: words("-t ext4 -b 1024 -N 32 -O ^has_journal,^resize_inode,inline_data")},
		{size: "512K", args: words("-t ext4 -b 1024 -N 64 -g 256 -O ^has_journal,^resize_inode,meta_bg")},
		{size: "1M", args: words("-t ext4 -b 1024 -N 64 -g 256 -O ^has_journal,^resize_inode,inline_data,^flex_bg")},
	} {
		dir := filetest.WriteTree(f, map[string][]byte{
			"file":           filetest.Noise(1, 3000),
			"dir/in dir.txt": filetest.Noise(2, 100), "DIR/IN DIR.TXT": nil, "holes": make([]byte, 100_000),
		})
		require.NoError(f, os.Symlink("dir/in dir.txt", filepath.Join(dir, "link")))
		require.NoError(f, os.Symlink("././././././././././././././././././././././././././././././././dir/in dir.txt",
			filepath.Join(dir, "slow link")))
		img := makeExt(f, k, dir)
		scatter(f, img, 12)
		volumes = append(volumes, disktest.ReadFile(f, img))
	}
	filetest.FuzzFiles(f, alone, Fragments, volumes...)
}
