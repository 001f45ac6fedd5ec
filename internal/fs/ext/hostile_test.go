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

// useExt opens the volume in b, and reads the files that extVolume put there.
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

// extVolume has a folder, a link of more than 60 characters, and a file with so many pieces that it has mapping blocks.
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
	g := alone.Sound(t, filetest.Memory(raw))
	return g.(*fileSystem), raw
}

func TestExtHostileSuperblock(t *testing.T) {
	_, raw := extVolume(t, extKinds[5])
	for _, a := range []filetest.Attack{
		filetest.Bad("log block size 2^32-1", 0x18, filetest.LE32(0xffffffff), "log block size 4294967295"),
		filetest.Bad("log block size 7", 0x18, filetest.LE32(7), "log block size 7"),
		filetest.Bad("blocks of 64 KiB", 0x18, filetest.LE32(6), "block count"),
		filetest.Bad("no block in a group", 0x20, filetest.LE32(0), "blocks per group 0"),
		filetest.Bad("one block in a group", 0x20, filetest.LE32(1), "inode count"),
		filetest.Bad("no inode in a group", 0x28, filetest.LE32(0), "inodes per group 0"),
		filetest.Bad("2^32-1 inodes in a group", 0x28, filetest.LE32(0xffffffff), "inodes per group"),
		filetest.Bad("2^32-1 inodes", 0x00, filetest.LE32(0xffffffff), "inode count"),
		filetest.Bad("one inode", 0x00, filetest.LE32(1), "inode count 1, want 8192"),
		filetest.Bad("inodes of no byte", 0x58, filetest.LE16(0), "inode size 0"),
		filetest.Bad("inodes of 65535 bytes", 0x58, filetest.LE16(65535), "inode size 65535"),
		filetest.Bad("inodes of 8 KiB", 0x58, filetest.LE16(8192), "inode size 8192"),
		filetest.Bad("descriptors of no byte", 0xfe, filetest.LE16(0), "group descriptor size 0"),
		filetest.Bad("descriptors of 63 bytes", 0xfe, filetest.LE16(63), "group descriptor size 63"),
		filetest.Bad("descriptors of 32 KiB", 0xfe, filetest.LE16(32768), "group descriptor size"),
		filetest.Bad("2^63 blocks", 0x150, filetest.LE32(1<<31), "block count 92233720368547"),
		filetest.Bad("2^32-1 blocks", 0x04, filetest.LE32(0xffffffff), "block count"),
		filetest.Bad("no block", 0x04, filetest.LE32(0), "block count 0"),
		filetest.Bad("first data block 2^32-1", 0x14, filetest.LE32(0xffffffff), "first data block"),
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
		filetest.Bad("magic of the root", file, filetest.LE16(0), "magic of the extents 0x0000, want 0xf30a"),
		filetest.Bad("magic of a node", node, filetest.LE16(0xf30b), "magic of the extents 0xf30b"),
		filetest.Bad("more entries than room", file+2, filetest.LE16(5), "extents 5, want at most 4"),
		filetest.Bad("more room than bytes", file+4, filetest.LE16(5), "room for extents 5, want 1 to 4"),
		filetest.Bad("more entries than room in a node", node+2, filetest.LE16(341), "extents 341, want at most 340"),
		filetest.Bad("more room than bytes in a node", node+4, filetest.LE16(0xffff),
			"room for extents 65535, want 1 to 340"),
		filetest.Bad("no room", node+4, filetest.LE16(0), "room for extents 0"),
		filetest.Bad("depth 6", file+6, filetest.LE16(6), "depth of the tree 6, want at most 5"),
		filetest.Bad("depth 2 over a leaf", file+6, filetest.LE16(2), "depth of the tree 0, want 1"),
		filetest.Bad("depth 1 in a leaf", node+6, filetest.LE16(1), "depth of the tree 1, want 0"),
		filetest.Bad("node past the end", file+16, filetest.LE32(0xfffffff0), "block of an index"),
		filetest.Bad("node at 2^47", file+20, filetest.LE16(0x8000), "block of an index"),
		filetest.Bad("node in the superblock", file+16, filetest.LE32(0), "block of an index 0"),
		filetest.Bad("a node twice", file+2,
			slices.Concat(filetest.LE16(2), filetest.LE16(4), filetest.LE16(1), filetest.LE32(0), filetest.LE32(0),
				filetest.LE32(uint32(leaf)), filetest.LE32(0), filetest.LE32(200), filetest.LE32(uint32(leaf)),
				filetest.LE32(0)), "to 200"),
		filetest.Bad("an index twice", file+2,
			slices.Concat(filetest.LE16(2), filetest.LE16(4), filetest.LE16(1), filetest.LE32(0), filetest.LE32(0),
				filetest.LE32(uint32(leaf)), filetest.LE32(0), filetest.LE32(0), filetest.LE32(uint32(leaf)),
				filetest.LE32(0)), "first block of an index 0, want 1 to"),
		filetest.Bad("a node naming itself", node+2,
			slices.Concat(filetest.LE16(1), filetest.LE16(340), filetest.LE16(1), filetest.LE32(0), filetest.LE32(0),
				filetest.LE32(uint32(leaf)), filetest.LE32(0)), "depth of the tree 1, want 0"),
		filetest.Bad("index out of order", file+12, filetest.LE32(0xffffffff), ""),
		filetest.Bad("extent of no block", node+16, filetest.LE16(0), "of 0 blocks"),
		filetest.Bad("extent over the next", node+16, filetest.LE16(5), "extent"),
		filetest.Bad("extents out of order", node+24, filetest.LE32(0), "extent"),
		filetest.Bad("extent past the end", node+20, filetest.LE32(0xffffffff), "block"),
		filetest.Bad("extent at 2^47", node+18, filetest.LE16(0x8000), "block"),
		filetest.Bad("two extents in one place", node+20, raw[node+32:node+36], "only once"),
		filetest.Bad("size of 2^63", file-atMap+0x6c, filetest.LE32(1<<31), "size 9223372036"),
		filetest.Bad("inode table past the end", group+8, filetest.LE32(0xffffffff), "inode table"),
		filetest.Bad("inode table at 2^63", group+0x28, filetest.LE32(0xffffffff), "inode table"),
		filetest.Bad("folder of 2^32-1 bytes", dir+4, filetest.LE32(0xffffffff), "rec_len 0"),
		filetest.Bad("link of 1 MiB", p.inode(t, "link")+4, filetest.LE32(1<<20), "size of a symbolic link 1048576"),
		filetest.Bad("link of no byte", p.inode(t, "link")+4, filetest.LE32(0), "size of a symbolic link 0"),
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
			filetest.Bad("rec_len 0", at+4, filetest.LE16(0), "rec_len 0"),
			filetest.Bad("rec_len 3", at+4, filetest.LE16(3), "rec_len 3"),
			filetest.Bad("rec_len 8", at+4, filetest.LE16(8), "rec_len 8"),
			filetest.Bad("rec_len beyond the block", at+4, filetest.LE16(uint16(g.block)), "rec_len"),
			filetest.Bad("rec_len 65535", at+4, filetest.LE16(65535), "rec_len 65535"),
			filetest.Bad("rec_len up to the last 4 bytes", at+4, filetest.LE16(uint16(g.block-28)),
				"room for an entry 4"),
			filetest.Bad("name_len above rec_len", at+6, []byte{255}, "name_len 255"),
			filetest.Bad("inode 2^32-1", at, filetest.LE32(0xffffffff), "inode 4294967295"),
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
		filetest.Bad("block past the end", file, filetest.LE32(0xffffffff), "block 4294967295"),
		filetest.Bad("superblock", file, filetest.LE32(1), "block 1,"),
		filetest.Bad("indirect block past the end", file+12*4, filetest.LE32(0xffffffff), "indirect block 4294967295"),
		filetest.Bad("double indirect block past the end", file+13*4, filetest.LE32(0xffffffff),
			"indirect block 4294967295"),
		filetest.Bad("block in an indirect block past the end", single*g.block, filetest.LE32(0x7fffffff),
			"block 2147483647"),
		filetest.Bad("indirect block in a double one past the end", double*g.block, filetest.LE32(0x7fffffff),
			"indirect block 2147483647"),
		filetest.Bad("double indirect block naming itself", double*g.block, filetest.LE32(uint32(double)),
			"the tree has not used yet"),
		filetest.Bad("an indirect block twice", double*g.block+4, filetest.LE32(uint32(under)),
			"the tree has not used yet"),
		filetest.Bad("a block twice", file+4, raw[file:file+4], "only once"),
	} {
		a.Try(t, raw, useExt)
	}
}

// Files without bytes in the inode that their flag promises.
func TestExtHostileInlineData(t *testing.T) {
	img := makeExt(t, extKinds[7], filetest.WriteTree(t,
		map[string][]byte{"dir/in dir": filetest.Noise(1, 300), "small": filetest.Noise(2, 100)}))
	raw := disktest.ReadFile(t, img)
	g := alone.Sound(t, filetest.Memory(raw))
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
		filetest.Bad("larger than the inode", at+4, filetest.LE32(101+40), "size 141, want at most the 100 bytes"),
		filetest.Bad("no attribute", attr, filetest.LE32(0), "at most the 60 bytes"),
		filetest.Bad("extra size 65535", at+128, filetest.LE16(65535), "at most the 60 bytes"),
		filetest.Bad("another attribute", attr+20, []byte("dota"), "at most the 60 bytes"),
		filetest.Bad("name past the end", attr+4, []byte{255}, "at most the 60 bytes"),
		filetest.Bad("value past the end", attr+6, filetest.LE16(250), "at most the 60 bytes"),
		filetest.Bad("value of 2^32-1 bytes", attr+12, filetest.LE32(0xffffffff), "at most the 60 bytes"),
		filetest.Bad("value in another inode", attr+8, filetest.LE32(12), "at most the 60 bytes"),
		filetest.Bad("folder with rec_len 0", p.inode(t, "dir")+atMap+8, filetest.LE16(0), "rec_len 0"),
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

	// A double indirect block over 256 others, each of which refers to one block of the volume 256 times: pieces that
	// cannot be joined.
	const top, below, block = 9000, 9001, 9500
	binary.LittleEndian.PutUint32(raw[file+atMap+13*4:], top)
	for i := range int64(256) {
		binary.LittleEndian.PutUint32(raw[top*g.block+4*i:], uint32(below+i))
		for j := range int64(256) {
			binary.LittleEndian.PutUint32(raw[(below+i)*g.block+4*j:], block)
		}
	}
	again := alone.Sound(t, filetest.Memory(raw))
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
	g := alone.Sound(t, filetest.RawImage(t, makeExt(t, extKinds[0],
		filetest.WriteTree(t, map[string][]byte{deep + "/file": nil}))))
	_, err := g.List(deep[:2*63+1])
	require.NoError(t, err)
	_, err = g.List(deep[:2*64+1])
	require.ErrorIs(t, err, ondisk.ErrLimit)
	require.ErrorContains(t, err, "64 folders")
}
