package ext

import (
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/filetest"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
)

// useExt opens what extVolume put on the volume, and reads it.
func useExt(b []byte) error {
	g, err := alone(filetest.Memory(b))
	if err != nil {
		return err
	}
	if _, err := g.List("dir"); err != nil {
		return err
	}
	for _, path := range []string{"dir/in dir", "pieces", "link"} {
		f, err := g.Open(path)
		if err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, io.NewSectionReader(f, 0, f.Size())); err != nil {
			return err
		}
	}
	return nil
}

// extVolume has a folder, a link of more than 60 characters, and a file in so many pieces that blocks of the volume map
// it.
func extVolume(t *testing.T, k extKind) (*fileSystem, []byte) {
	t.Helper()
	dir := filetest.WriteTree(t, map[string][]byte{
		"dir/in dir": filetest.Noise(1, 300),
		"dir/other":  filetest.Noise(2, 10),
	})
	require.NoError(t, os.Symlink(strings.Repeat("./", 40)+"dir/other", filepath.Join(dir, "link")))
	img := makeExt(t, k, dir)
	scatter(t, img, 300)
	raw := disktest.ReadFile(t, img)
	require.NoError(t, useExt(raw))
	g := opened(t, filetest.Memory(raw))
	return g.(*fileSystem), raw
}

func TestExtHostileSuperblock(t *testing.T) {
	_, raw := extVolume(t, extKinds[5])
	for _, a := range []filetest.Attack{
		filetest.NewAttack("log block size 2^32-1", 0x18, filetest.LE32(0xffffffff), ondisk.ErrFormat,
			"log block size 4294967295"),
		filetest.NewAttack("log block size 7", 0x18, filetest.LE32(7), ondisk.ErrFormat, "log block size 7"),
		filetest.NewAttack("blocks of 64 KiB", 0x18, filetest.LE32(6), ondisk.ErrFormat, "block count"),
		filetest.NewAttack("no block in a group", 0x20, filetest.LE32(0), ondisk.ErrFormat, "blocks per group 0"),
		filetest.NewAttack("one block in a group", 0x20, filetest.LE32(1), ondisk.ErrFormat, "inode count"),
		filetest.NewAttack("no inode in a group", 0x28, filetest.LE32(0), ondisk.ErrFormat, "inodes per group 0"),
		filetest.NewAttack("2^32-1 inodes in a group", 0x28, filetest.LE32(0xffffffff), ondisk.ErrFormat,
			"inodes per group"),
		filetest.NewAttack("2^32-1 inodes", 0x00, filetest.LE32(0xffffffff), ondisk.ErrFormat, "inode count"),
		filetest.NewAttack("one inode", 0x00, filetest.LE32(1), ondisk.ErrFormat, "inode count 1, want 8192"),
		filetest.NewAttack("inodes of no byte", 0x58, filetest.LE16(0), ondisk.ErrFormat, "inode size 0"),
		filetest.NewAttack("inodes of 65535 bytes", 0x58, filetest.LE16(65535), ondisk.ErrFormat, "inode size 65535"),
		filetest.NewAttack("inodes of 8 KiB", 0x58, filetest.LE16(8192), ondisk.ErrFormat, "inode size 8192"),
		filetest.NewAttack("descriptors of no byte", 0xfe, filetest.LE16(0), ondisk.ErrFormat,
			"group descriptor size 0"),
		filetest.NewAttack("descriptors of 63 bytes", 0xfe, filetest.LE16(63), ondisk.ErrFormat,
			"group descriptor size 63"),
		filetest.NewAttack("descriptors of 32 KiB", 0xfe, filetest.LE16(32768), ondisk.ErrFormat,
			"group descriptor size"),
		filetest.NewAttack("2^63 blocks", 0x150, filetest.LE32(1<<31), ondisk.ErrFormat, "block count 92233720368547"),
		filetest.NewAttack("2^32-1 blocks", 0x04, filetest.LE32(0xffffffff), ondisk.ErrFormat, "block count"),
		filetest.NewAttack("no block", 0x04, filetest.LE32(0), ondisk.ErrFormat, "block count 0"),
		filetest.NewAttack("first data block 2^32-1", 0x14, filetest.LE32(0xffffffff), ondisk.ErrFormat,
			"first data block"),
		filetest.NewAttack("unknown feature", 0x63, []byte{0x80}, ondisk.ErrUnsupported,
			"incompatible features 0x80000000"),
		filetest.NewAttack("compression", 0x60, []byte{raw[superAt+0x60] | 1}, ondisk.ErrUnsupported,
			"incompatible features 0x1:"),
		filetest.NewAttack("lustre", 0x61, []byte{raw[superAt+0x61] | 0x10}, ondisk.ErrUnsupported,
			"incompatible features 0x1000"),
		filetest.NewAttack("a journal alone", 0x60, []byte{raw[superAt+0x60] | 8}, ondisk.ErrUnsupported,
			"incompatible features 0x8:"),
		filetest.NewAttack("error behaviour 4", 0x3c, filetest.LE16(4), ondisk.ErrNoMatch, ""),
		filetest.NewAttack("creator 5", 0x48, filetest.LE32(5), ondisk.ErrNoMatch, ""),
		filetest.NewAttack("revision 2", 0x4c, filetest.LE32(2), ondisk.ErrNoMatch, ""),
		filetest.NewAttack("no magic", 0x38, filetest.LE16(0), ondisk.ErrNoMatch, ""),
	} {
		a.Off += superAt
		a.Try(t, raw, useExt)
	}
	require.ErrorIs(t, useExt(nil), ondisk.ErrNoMatch)
	require.ErrorIs(t, useExt(raw[:2047]), ondisk.ErrNoMatch)
	require.ErrorIs(t, useExt(raw[:2048]), ondisk.ErrFormat)
}

// extPlaces finds the inodes and blocks that the attacks change.
type extPlaces struct {
	g   *fileSystem
	raw []byte
}

func (p extPlaces) inode(t *testing.T, path string) int64 {
	t.Helper()
	root, err := p.g.inode(rootInode)
	require.NoError(t, err)
	at := root
	for _, name := range guestfile.Elements(path) {
		number, err := p.g.lookup(at, name)
		require.NoError(t, err)
		at, err = p.g.inode(number)
		require.NoError(t, err)
	}
	return at.at
}

func (p extPlaces) u32(off int64) int64 { return int64(binary.LittleEndian.Uint32(p.raw[off:])) }

func TestExtHostileExtents(t *testing.T) {
	g, raw := extVolume(t, extKinds[5])
	p := extPlaces{g, raw}
	file, dir := p.inode(t, "pieces")+atMap, p.inode(t, "dir")
	require.Equal(t, byte(1), raw[file+6], "a tree of depth 1")
	leaf := p.u32(file + 16)
	node := leaf * g.block
	require.Equal(t, byte(0), raw[node+6])
	group := g.descriptor(0)
	for _, a := range []filetest.Attack{
		filetest.NewAttack("magic of the root", file, filetest.LE16(0), ondisk.ErrFormat,
			"magic of the extents 0x0000, want 0xf30a"),
		filetest.NewAttack("magic of a node", node, filetest.LE16(0xf30b), ondisk.ErrFormat,
			"magic of the extents 0xf30b"),
		filetest.NewAttack("more entries than room", file+2, filetest.LE16(5), ondisk.ErrFormat,
			"extents 5, want at most 4"),
		filetest.NewAttack("more room than bytes", file+4, filetest.LE16(5), ondisk.ErrFormat,
			"room for extents 5, want 1 to 4"),
		filetest.NewAttack("more entries than room in a node", node+2, filetest.LE16(341), ondisk.ErrFormat,
			"extents 341, want at most 340"),
		filetest.NewAttack("more room than bytes in a node", node+4, filetest.LE16(0xffff), ondisk.ErrFormat,
			"room for extents 65535, want 1 to 340"),
		filetest.NewAttack("no room", node+4, filetest.LE16(0), ondisk.ErrFormat, "room for extents 0"),
		filetest.NewAttack("depth 6", file+6, filetest.LE16(6), ondisk.ErrFormat,
			"depth of the tree 6, want at most 5"),
		filetest.NewAttack("depth 2 over a leaf", file+6, filetest.LE16(2), ondisk.ErrFormat,
			"depth of the tree 0, want 1"),
		filetest.NewAttack("depth 1 in a leaf", node+6, filetest.LE16(1), ondisk.ErrFormat,
			"depth of the tree 1, want 0"),
		filetest.NewAttack("node past the end", file+16, filetest.LE32(0xfffffff0), ondisk.ErrFormat,
			"block of an index"),
		filetest.NewAttack("node at 2^47", file+20, filetest.LE16(0x8000), ondisk.ErrFormat, "block of an index"),
		filetest.NewAttack("node in the superblock", file+16, filetest.LE32(0), ondisk.ErrFormat,
			"block of an index 0"),
		filetest.NewAttack("a node twice", file+2,
			slices.Concat(filetest.LE16(2), filetest.LE16(4), filetest.LE16(1), filetest.LE32(0), filetest.LE32(0),
				filetest.LE32(uint32(leaf)), filetest.LE32(0), filetest.LE32(200), filetest.LE32(uint32(leaf)),
				filetest.LE32(0)), ondisk.ErrFormat, "to 200"),
		filetest.NewAttack("an index twice", file+2,
			slices.Concat(filetest.LE16(2), filetest.LE16(4), filetest.LE16(1), filetest.LE32(0), filetest.LE32(0),
				filetest.LE32(uint32(leaf)), filetest.LE32(0), filetest.LE32(0), filetest.LE32(uint32(leaf)),
				filetest.LE32(0)), ondisk.ErrFormat, "first block of an index 0, want 1 to"),
		filetest.NewAttack("a node naming itself", node+2,
			slices.Concat(filetest.LE16(1), filetest.LE16(340), filetest.LE16(1), filetest.LE32(0), filetest.LE32(0),
				filetest.LE32(uint32(leaf)), filetest.LE32(0)), ondisk.ErrFormat, "depth of the tree 1, want 0"),
		filetest.NewAttack("index out of order", file+12, filetest.LE32(0xffffffff), ondisk.ErrFormat, ""),
		filetest.NewAttack("extent of no block", node+16, filetest.LE16(0), ondisk.ErrFormat, "of 0 blocks"),
		filetest.NewAttack("extent over the next", node+16, filetest.LE16(5), ondisk.ErrFormat, "extent"),
		filetest.NewAttack("extents out of order", node+24, filetest.LE32(0), ondisk.ErrFormat, "extent"),
		filetest.NewAttack("extent past the end", node+20, filetest.LE32(0xffffffff), ondisk.ErrFormat, "block"),
		filetest.NewAttack("extent at 2^47", node+18, filetest.LE16(0x8000), ondisk.ErrFormat, "block"),
		filetest.NewAttack("two extents in one place", node+20, raw[node+32:node+36], ondisk.ErrFormat, "only once"),
		filetest.NewAttack("size of 2^63", file-atMap+0x6c, filetest.LE32(1<<31), ondisk.ErrFormat, "size 9223372036"),
		filetest.NewAttack("inode table past the end", group+8, filetest.LE32(0xffffffff), ondisk.ErrFormat,
			"inode table"),
		filetest.NewAttack("inode table at 2^63", group+0x28, filetest.LE32(0xffffffff), ondisk.ErrFormat,
			"inode table"),
		filetest.NewAttack("folder of 2^32-1 bytes", dir+4, filetest.LE32(0xffffffff), ondisk.ErrFormat, "rec_len 0"),
		filetest.NewAttack("link of 1 MiB", p.inode(t, "link")+4, filetest.LE32(1<<20), ondisk.ErrFormat,
			"size of a symbolic link 1048576"),
		filetest.NewAttack("link of no byte", p.inode(t, "link")+4, filetest.LE32(0), ondisk.ErrFormat,
			"size of a symbolic link 0"),
	} {
		a.Try(t, raw, useExt)
	}
}

// Names are attacked in the only block of a folder: ".", "..", "in dir", "other".
func TestExtHostileFolder(t *testing.T) {
	for _, k := range []extKind{extKinds[0], extKinds[5]} {
		g, raw := extVolume(t, k)
		p := extPlaces{g, raw}
		block := p.u32(p.inode(t, "dir") + atMap)
		if k.args[1] == "ext4" {
			block = p.u32(p.inode(t, "dir") + atMap + 20)
		}
		at := block*g.block + 24
		for _, a := range []filetest.Attack{
			filetest.NewAttack("rec_len 0", at+4, filetest.LE16(0), ondisk.ErrFormat, "rec_len 0"),
			filetest.NewAttack("rec_len 3", at+4, filetest.LE16(3), ondisk.ErrFormat, "rec_len 3"),
			filetest.NewAttack("rec_len 8", at+4, filetest.LE16(8), ondisk.ErrFormat, "rec_len 8"),
			filetest.NewAttack("rec_len beyond the block", at+4, filetest.LE16(uint16(g.block)), ondisk.ErrFormat,
				"rec_len"),
			filetest.NewAttack("rec_len 65535", at+4, filetest.LE16(65535), ondisk.ErrFormat, "rec_len 65535"),
			filetest.NewAttack("rec_len up to the last 4 bytes", at+4, filetest.LE16(uint16(g.block-28)),
				ondisk.ErrFormat, "room for an entry 4"),
			filetest.NewAttack("name_len above rec_len", at+6, []byte{255}, ondisk.ErrFormat, "name_len 255"),
			filetest.NewAttack("inode 2^32-1", at, filetest.LE32(0xffffffff), ondisk.ErrFormat, "inode 4294967295"),
		} {
			a.Try(t, raw, useExt)
		}
	}
}

func TestExtHostileIndirectBlocks(t *testing.T) {
	g, raw := extVolume(t, extKinds[0])
	p := extPlaces{g, raw}
	file := p.inode(t, "pieces") + atMap
	single, double := p.u32(file+12*4), p.u32(file+13*4)
	require.Positive(t, double)
	under := p.u32(double * g.block)
	for _, a := range []filetest.Attack{
		filetest.NewAttack("block past the end", file, filetest.LE32(0xffffffff), ondisk.ErrFormat, "block 4294967295"),
		filetest.NewAttack("superblock", file, filetest.LE32(1), ondisk.ErrFormat, "block 1,"),
		filetest.NewAttack("indirect block past the end", file+12*4, filetest.LE32(0xffffffff), ondisk.ErrFormat,
			"indirect block 4294967295"),
		filetest.NewAttack("double indirect block past the end", file+13*4, filetest.LE32(0xffffffff), ondisk.ErrFormat,
			"indirect block 4294967295"),
		filetest.NewAttack("block in an indirect block past the end", single*g.block, filetest.LE32(0x7fffffff),
			ondisk.ErrFormat, "block 2147483647"),
		filetest.NewAttack("indirect block in a double one past the end", double*g.block, filetest.LE32(0x7fffffff),
			ondisk.ErrFormat, "indirect block 2147483647"),
		filetest.NewAttack("double indirect block naming itself", double*g.block, filetest.LE32(uint32(double)),
			ondisk.ErrFormat, "the tree has not used yet"),
		filetest.NewAttack("an indirect block twice", double*g.block+4, filetest.LE32(uint32(under)), ondisk.ErrFormat,
			"the tree has not used yet"),
		filetest.NewAttack("a block twice", file+4, raw[file:file+4], ondisk.ErrFormat, "only once"),
	} {
		a.Try(t, raw, useExt)
	}
}

// Files without bytes in the inode that their flag promises.
func TestExtHostileInlineData(t *testing.T) {
	img := makeExt(t, extKinds[7], filetest.WriteTree(t,
		map[string][]byte{"dir/in dir": filetest.Noise(1, 300), "small": filetest.Noise(2, 100)}))
	raw := disktest.ReadFile(t, img)
	g, err := alone(filetest.Memory(raw))
	require.NoError(t, err)
	p := extPlaces{g.(*fileSystem), raw}
	use := func(b []byte) error {
		g, err := alone(filetest.Memory(b))
		if err != nil {
			return err
		}
		if _, err := g.List("dir"); err != nil {
			return err
		}
		_, err = g.Open("small")
		return err
	}
	require.NoError(t, use(raw))
	at := p.inode(t, "small")
	attr := at + 128 + int64(raw[at+128])
	require.Equal(t, "data", string(raw[attr+20:attr+24]))
	for _, a := range []filetest.Attack{
		filetest.NewAttack("larger than the inode", at+4, filetest.LE32(101+40), ondisk.ErrFormat,
			"size 141, want at most the 100 bytes"),
		filetest.NewAttack("no attribute", attr, filetest.LE32(0), ondisk.ErrFormat, "at most the 60 bytes"),
		filetest.NewAttack("extra size 65535", at+128, filetest.LE16(65535), ondisk.ErrFormat, "at most the 60 bytes"),
		filetest.NewAttack("another attribute", attr+20, []byte("dota"), ondisk.ErrFormat, "at most the 60 bytes"),
		filetest.NewAttack("name past the end", attr+4, []byte{255}, ondisk.ErrFormat, "at most the 60 bytes"),
		filetest.NewAttack("value past the end", attr+6, filetest.LE16(250), ondisk.ErrFormat, "at most the 60 bytes"),
		filetest.NewAttack("value of 2^32-1 bytes", attr+12, filetest.LE32(0xffffffff), ondisk.ErrFormat,
			"at most the 60 bytes"),
		filetest.NewAttack("value in another inode", attr+8, filetest.LE32(12), ondisk.ErrFormat,
			"at most the 60 bytes"),
		filetest.NewAttack("folder with rec_len 0", p.inode(t, "dir")+atMap+8, filetest.LE16(0), ondisk.ErrFormat,
			"rec_len 0"),
	} {
		a.Try(t, raw, use)
	}
}

// Work is bounded over all files: a tree of indirect blocks that map nothing, a folder that repeats one block.
func TestExtLimits(t *testing.T) {
	g, raw := extVolume(t, extKinds[0])
	p := extPlaces{g, raw}
	file := p.inode(t, "pieces")
	binary.LittleEndian.PutUint32(raw[file+4:], 0xffffffff)
	binary.LittleEndian.PutUint32(raw[file+0x6c:], 3)
	err := useExt(raw)
	require.NoError(t, err, "a file of 16 GiB with many holes")

	// A double indirect block over 256 others, all of which name one block of the volume 256 times: pieces that cannot
	// be
	// joined.
	const top, below, block = 9000, 9001, 9500
	binary.LittleEndian.PutUint32(raw[file+atMap+13*4:], top)
	for i := range int64(256) {
		binary.LittleEndian.PutUint32(raw[top*g.block+4*i:], uint32(below+i))
		for j := range int64(256) {
			binary.LittleEndian.PutUint32(raw[(below+i)*g.block+4*j:], block)
		}
	}
	again := opened(t, filetest.Memory(raw))
	_, err = again.Open("pieces")
	require.ErrorIs(t, err, ondisk.ErrLimit)
	require.ErrorContains(t, err, "65536 runs")

	g.meter.Budget.Limit = 100
	_, err = g.List("")
	require.ErrorIs(t, err, ondisk.ErrLimit)
}

// Paths are bounded too.
func TestExtDeepPath(t *testing.T) {
	deep := strings.TrimSuffix(strings.Repeat("d/", 70), "/")
	g := opened(t, filetest.RawImage(t, makeExt(t, extKinds[0],
		filetest.WriteTree(t, map[string][]byte{deep + "/file": nil}))))
	_, err := g.List(deep[:2*63+1])
	require.NoError(t, err)
	_, err = g.List(deep[:2*64+1])
	require.ErrorIs(t, err, ondisk.ErrLimit)
	require.ErrorContains(t, err, "64 folders")
}
