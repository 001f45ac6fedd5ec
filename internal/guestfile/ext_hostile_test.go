package guestfile

import (
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/fs/ext"
	"github.com/trueup/trueup/internal/ondisk"
)

// useExt opens what extVolume put on the volume, and reads it.
func useExt(b []byte) error {
	g, err := Ext(memory(b))
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

// extVolume has a folder, a link of more than 60 characters, and a file in so many pieces that blocks of the volume map it.
func extVolume(t *testing.T, k extKind) (*extFS, []byte) {
	t.Helper()
	dir := writeTree(t, map[string][]byte{"dir/in dir": noise(1, 300), "dir/other": noise(2, 10)})
	require.NoError(t, os.Symlink(strings.Repeat("./", 40)+"dir/other", filepath.Join(dir, "link")))
	img := makeExt(t, k, dir)
	scatter(t, img, 300)
	raw, err := os.ReadFile(img)
	require.NoError(t, err)
	require.NoError(t, useExt(raw))
	g, err := Ext(memory(raw))
	require.NoError(t, err)
	return g.(*extFS), raw
}

func TestExtHostileSuperblock(t *testing.T) {
	_, raw := extVolume(t, extKinds[5])
	for _, a := range []attack{
		{"log block size 2^32-1", 0x18, le32(0xffffffff), ondisk.ErrFormat, "log block size 4294967295"},
		{"log block size 7", 0x18, le32(7), ondisk.ErrFormat, "log block size 7"},
		{"blocks of 64 KiB", 0x18, le32(6), ondisk.ErrFormat, "block count"},
		{"no block in a group", 0x20, le32(0), ondisk.ErrFormat, "blocks per group 0"},
		{"one block in a group", 0x20, le32(1), ondisk.ErrFormat, "inode count"},
		{"no inode in a group", 0x28, le32(0), ondisk.ErrFormat, "inodes per group 0"},
		{"2^32-1 inodes in a group", 0x28, le32(0xffffffff), ondisk.ErrFormat, "inodes per group"},
		{"2^32-1 inodes", 0x00, le32(0xffffffff), ondisk.ErrFormat, "inode count"},
		{"one inode", 0x00, le32(1), ondisk.ErrFormat, "inode count 1, want 8192"},
		{"inodes of no byte", 0x58, le16(0), ondisk.ErrFormat, "inode size 0"},
		{"inodes of 65535 bytes", 0x58, le16(65535), ondisk.ErrFormat, "inode size 65535"},
		{"inodes of 8 KiB", 0x58, le16(8192), ondisk.ErrFormat, "inode size 8192"},
		{"descriptors of no byte", 0xfe, le16(0), ondisk.ErrFormat, "group descriptor size 0"},
		{"descriptors of 63 bytes", 0xfe, le16(63), ondisk.ErrFormat, "group descriptor size 63"},
		{"descriptors of 32 KiB", 0xfe, le16(32768), ondisk.ErrFormat, "group descriptor size"},
		{"2^63 blocks", 0x150, le32(1 << 31), ondisk.ErrFormat, "block count 92233720368547"},
		{"2^32-1 blocks", 0x04, le32(0xffffffff), ondisk.ErrFormat, "block count"},
		{"no block", 0x04, le32(0), ondisk.ErrFormat, "block count 0"},
		{"first data block 2^32-1", 0x14, le32(0xffffffff), ondisk.ErrFormat, "first data block"},
		{"unknown feature", 0x63, []byte{0x80}, ondisk.ErrUnsupported, "incompatible features 0x80000000"},
		{"compression", 0x60, []byte{raw[ext.At+0x60] | 1}, ondisk.ErrUnsupported, "incompatible features 0x1:"},
		{"lustre", 0x61, []byte{raw[ext.At+0x61] | 0x10}, ondisk.ErrUnsupported, "incompatible features 0x1000"},
		{"a journal alone", 0x60, []byte{raw[ext.At+0x60] | 8}, ondisk.ErrUnsupported, "incompatible features 0x8:"},
		{"error behaviour 4", 0x3c, le16(4), ondisk.ErrNoMatch, ""},
		{"creator 5", 0x48, le32(5), ondisk.ErrNoMatch, ""},
		{"revision 2", 0x4c, le32(2), ondisk.ErrNoMatch, ""},
		{"no magic", 0x38, le16(0), ondisk.ErrNoMatch, ""},
	} {
		a.off += ext.At
		a.try(t, raw, useExt)
	}
	require.ErrorIs(t, useExt(nil), ondisk.ErrNoMatch)
	require.ErrorIs(t, useExt(raw[:2047]), ondisk.ErrNoMatch)
	require.ErrorIs(t, useExt(raw[:2048]), ondisk.ErrFormat)
}

// extPlaces finds the inodes and blocks that the attacks change.
type extPlaces struct {
	g   *extFS
	raw []byte
}

func (p extPlaces) inode(t *testing.T, path string) int64 {
	t.Helper()
	root, err := p.g.inode(extRoot)
	require.NoError(t, err)
	at := root
	for _, name := range elements(path) {
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
	file, dir := p.inode(t, "pieces")+extAtMap, p.inode(t, "dir")
	require.Equal(t, byte(1), raw[file+6], "a tree of depth 1")
	leaf := p.u32(file + 16)
	node := leaf * g.block
	require.Equal(t, byte(0), raw[node+6])
	group := g.descriptor(0)
	for _, a := range []attack{
		{"magic of the root", file, le16(0), ondisk.ErrFormat, "magic of the extents 0x0000, want 0xf30a"},
		{"magic of a node", node, le16(0xf30b), ondisk.ErrFormat, "magic of the extents 0xf30b"},
		{"more entries than room", file + 2, le16(5), ondisk.ErrFormat, "extents 5, want at most 4"},
		{"more room than bytes", file + 4, le16(5), ondisk.ErrFormat, "room for extents 5, want 1 to 4"},
		{"more entries than room in a node", node + 2, le16(341), ondisk.ErrFormat, "extents 341, want at most 340"},
		{"more room than bytes in a node", node + 4, le16(0xffff), ondisk.ErrFormat, "room for extents 65535, want 1 to 340"},
		{"no room", node + 4, le16(0), ondisk.ErrFormat, "room for extents 0"},
		{"depth 6", file + 6, le16(6), ondisk.ErrFormat, "depth of the tree 6, want at most 5"},
		{"depth 2 over a leaf", file + 6, le16(2), ondisk.ErrFormat, "depth of the tree 0, want 1"},
		{"depth 1 in a leaf", node + 6, le16(1), ondisk.ErrFormat, "depth of the tree 1, want 0"},
		{"node past the end", file + 16, le32(0xfffffff0), ondisk.ErrFormat, "block of an index"},
		{"node at 2^47", file + 20, le16(0x8000), ondisk.ErrFormat, "block of an index"},
		{"node in the superblock", file + 16, le32(0), ondisk.ErrFormat, "block of an index 0"},
		{"a node twice", file + 2, slices.Concat(le16(2), le16(4), le16(1), le32(0), le32(0), le32(uint32(leaf)), le32(0), le32(200), le32(uint32(leaf)), le32(0)), ondisk.ErrFormat, "to 200"},
		{"an index twice", file + 2, slices.Concat(le16(2), le16(4), le16(1), le32(0), le32(0), le32(uint32(leaf)), le32(0), le32(0), le32(uint32(leaf)), le32(0)), ondisk.ErrFormat, "first block of an index 0, want 1 to"},
		{"a node naming itself", node + 2, slices.Concat(le16(1), le16(340), le16(1), le32(0), le32(0), le32(uint32(leaf)), le32(0)), ondisk.ErrFormat, "depth of the tree 1, want 0"},
		{"index out of order", file + 12, le32(0xffffffff), ondisk.ErrFormat, ""},
		{"extent of no block", node + 16, le16(0), ondisk.ErrFormat, "of 0 blocks"},
		{"extent over the next", node + 16, le16(5), ondisk.ErrFormat, "extent"},
		{"extents out of order", node + 24, le32(0), ondisk.ErrFormat, "extent"},
		{"extent past the end", node + 20, le32(0xffffffff), ondisk.ErrFormat, "block"},
		{"extent at 2^47", node + 18, le16(0x8000), ondisk.ErrFormat, "block"},
		{"two extents in one place", node + 20, raw[node+32 : node+36], ondisk.ErrFormat, "only once"},
		{"size of 2^63", file - extAtMap + 0x6c, le32(1 << 31), ondisk.ErrFormat, "size 9223372036"},
		{"inode table past the end", group + 8, le32(0xffffffff), ondisk.ErrFormat, "inode table"},
		{"inode table at 2^63", group + 0x28, le32(0xffffffff), ondisk.ErrFormat, "inode table"},
		{"folder of 2^32-1 bytes", dir + 4, le32(0xffffffff), ondisk.ErrFormat, "rec_len 0"},
		{"link of 1 MiB", p.inode(t, "link") + 4, le32(1 << 20), ondisk.ErrFormat, "size of a symbolic link 1048576"},
		{"link of no byte", p.inode(t, "link") + 4, le32(0), ondisk.ErrFormat, "size of a symbolic link 0"},
	} {
		a.try(t, raw, useExt)
	}
}

// Names are attacked in the only block of a folder: ".", "..", "in dir", "other".
func TestExtHostileFolder(t *testing.T) {
	for _, k := range []extKind{extKinds[0], extKinds[5]} {
		g, raw := extVolume(t, k)
		p := extPlaces{g, raw}
		block := p.u32(p.inode(t, "dir") + extAtMap)
		if k.args[1] == "ext4" {
			block = p.u32(p.inode(t, "dir") + extAtMap + 20)
		}
		at := block*g.block + 24
		for _, a := range []attack{
			{"rec_len 0", at + 4, le16(0), ondisk.ErrFormat, "rec_len 0"},
			{"rec_len 3", at + 4, le16(3), ondisk.ErrFormat, "rec_len 3"},
			{"rec_len 8", at + 4, le16(8), ondisk.ErrFormat, "rec_len 8"},
			{"rec_len beyond the block", at + 4, le16(uint16(g.block)), ondisk.ErrFormat, "rec_len"},
			{"rec_len 65535", at + 4, le16(65535), ondisk.ErrFormat, "rec_len 65535"},
			{"rec_len up to the last 4 bytes", at + 4, le16(uint16(g.block - 28)), ondisk.ErrFormat, "room for an entry 4"},
			{"name_len above rec_len", at + 6, []byte{255}, ondisk.ErrFormat, "name_len 255"},
			{"inode 2^32-1", at, le32(0xffffffff), ondisk.ErrFormat, "inode 4294967295"},
		} {
			a.try(t, raw, useExt)
		}
	}
}

func TestExtHostileIndirectBlocks(t *testing.T) {
	g, raw := extVolume(t, extKinds[0])
	p := extPlaces{g, raw}
	file := p.inode(t, "pieces") + extAtMap
	single, double := p.u32(file+12*4), p.u32(file+13*4)
	require.Positive(t, double)
	under := p.u32(double * g.block)
	for _, a := range []attack{
		{"block past the end", file, le32(0xffffffff), ondisk.ErrFormat, "block 4294967295"},
		{"superblock", file, le32(1), ondisk.ErrFormat, "block 1,"},
		{"indirect block past the end", file + 12*4, le32(0xffffffff), ondisk.ErrFormat, "indirect block 4294967295"},
		{"double indirect block past the end", file + 13*4, le32(0xffffffff), ondisk.ErrFormat, "indirect block 4294967295"},
		{"block in an indirect block past the end", single * g.block, le32(0x7fffffff), ondisk.ErrFormat, "block 2147483647"},
		{"indirect block in a double one past the end", double * g.block, le32(0x7fffffff), ondisk.ErrFormat, "indirect block 2147483647"},
		{"double indirect block naming itself", double * g.block, le32(uint32(double)), ondisk.ErrFormat, "the tree has not used yet"},
		{"an indirect block twice", double*g.block + 4, le32(uint32(under)), ondisk.ErrFormat, "the tree has not used yet"},
		{"a block twice", file + 4, raw[file : file+4], ondisk.ErrFormat, "only once"},
	} {
		a.try(t, raw, useExt)
	}
}

// Files without bytes in the inode that their flag promises.
func TestExtHostileInlineData(t *testing.T) {
	img := makeExt(t, extKinds[7], writeTree(t, map[string][]byte{"dir/in dir": noise(1, 300), "small": noise(2, 100)}))
	raw, err := os.ReadFile(img)
	require.NoError(t, err)
	g, err := Ext(memory(raw))
	require.NoError(t, err)
	p := extPlaces{g.(*extFS), raw}
	use := func(b []byte) error {
		g, err := Ext(memory(b))
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
	for _, a := range []attack{
		{"larger than the inode", at + 4, le32(101 + 40), ondisk.ErrFormat, "size 141, want at most the 100 bytes"},
		{"no attribute", attr, le32(0), ondisk.ErrFormat, "at most the 60 bytes"},
		{"extra size 65535", at + 128, le16(65535), ondisk.ErrFormat, "at most the 60 bytes"},
		{"another attribute", attr + 20, []byte("dota"), ondisk.ErrFormat, "at most the 60 bytes"},
		{"name past the end", attr + 4, []byte{255}, ondisk.ErrFormat, "at most the 60 bytes"},
		{"value past the end", attr + 6, le16(250), ondisk.ErrFormat, "at most the 60 bytes"},
		{"value of 2^32-1 bytes", attr + 12, le32(0xffffffff), ondisk.ErrFormat, "at most the 60 bytes"},
		{"value in another inode", attr + 8, le32(12), ondisk.ErrFormat, "at most the 60 bytes"},
		{"folder with rec_len 0", p.inode(t, "dir") + extAtMap + 8, le16(0), ondisk.ErrFormat, "rec_len 0"},
	} {
		a.try(t, raw, use)
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

	// A double indirect block over 256 others, all of which name one block of the volume 256 times: pieces that cannot be joined.
	const top, below, block = 9000, 9001, 9500
	binary.LittleEndian.PutUint32(raw[file+extAtMap+13*4:], top)
	for i := range int64(256) {
		binary.LittleEndian.PutUint32(raw[top*g.block+4*i:], uint32(below+i))
		for j := range int64(256) {
			binary.LittleEndian.PutUint32(raw[(below+i)*g.block+4*j:], block)
		}
	}
	again, err := Ext(memory(raw))
	require.NoError(t, err)
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
	g, err := Ext(rawImage(t, makeExt(t, extKinds[0], writeTree(t, map[string][]byte{deep + "/file": nil}))))
	require.NoError(t, err)
	_, err = g.List(deep[:2*63+1])
	require.NoError(t, err)
	_, err = g.List(deep[:2*64+1])
	require.ErrorIs(t, err, ondisk.ErrLimit)
	require.ErrorContains(t, err, "64 folders")
}
