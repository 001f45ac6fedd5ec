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
	raw, err := os.ReadFile(img)
	require.NoError(t, err)
	require.NoError(t, useExt(raw))
	g, err := alone(filetest.Memory(raw))
	require.NoError(t, err)
	return g.(*fileSystem), raw
}

func TestExtHostileSuperblock(t *testing.T) {
	_, raw := extVolume(t, extKinds[5])
	for _, a := range []filetest.Attack{
		{Name: "log block size 2^32-1", Off: 0x18, Put: filetest.LE32(0xffffffff), Want: ondisk.ErrFormat, Text: "log block size 4294967295"},
		{Name: "log block size 7", Off: 0x18, Put: filetest.LE32(7), Want: ondisk.ErrFormat, Text: "log block size 7"},
		{Name: "blocks of 64 KiB", Off: 0x18, Put: filetest.LE32(6), Want: ondisk.ErrFormat, Text: "block count"},
		{Name: "no block in a group", Off: 0x20, Put: filetest.LE32(0), Want: ondisk.ErrFormat, Text: "blocks per group 0"},
		{Name: "one block in a group", Off: 0x20, Put: filetest.LE32(1), Want: ondisk.ErrFormat, Text: "inode count"},
		{Name: "no inode in a group", Off: 0x28, Put: filetest.LE32(0), Want: ondisk.ErrFormat, Text: "inodes per group 0"},
		{Name: "2^32-1 inodes in a group", Off: 0x28, Put: filetest.LE32(0xffffffff), Want: ondisk.ErrFormat, Text: "inodes per group"},
		{Name: "2^32-1 inodes", Off: 0x00, Put: filetest.LE32(0xffffffff), Want: ondisk.ErrFormat, Text: "inode count"},
		{Name: "one inode", Off: 0x00, Put: filetest.LE32(1), Want: ondisk.ErrFormat, Text: "inode count 1, want 8192"},
		{Name: "inodes of no byte", Off: 0x58, Put: filetest.LE16(0), Want: ondisk.ErrFormat, Text: "inode size 0"},
		{Name: "inodes of 65535 bytes", Off: 0x58, Put: filetest.LE16(65535), Want: ondisk.ErrFormat, Text: "inode size 65535"},
		{Name: "inodes of 8 KiB", Off: 0x58, Put: filetest.LE16(8192), Want: ondisk.ErrFormat, Text: "inode size 8192"},
		{Name: "descriptors of no byte", Off: 0xfe, Put: filetest.LE16(0), Want: ondisk.ErrFormat, Text: "group descriptor size 0"},
		{Name: "descriptors of 63 bytes", Off: 0xfe, Put: filetest.LE16(63), Want: ondisk.ErrFormat, Text: "group descriptor size 63"},
		{Name: "descriptors of 32 KiB", Off: 0xfe, Put: filetest.LE16(32768), Want: ondisk.ErrFormat, Text: "group descriptor size"},
		{Name: "2^63 blocks", Off: 0x150, Put: filetest.LE32(1 << 31), Want: ondisk.ErrFormat, Text: "block count 92233720368547"},
		{Name: "2^32-1 blocks", Off: 0x04, Put: filetest.LE32(0xffffffff), Want: ondisk.ErrFormat, Text: "block count"},
		{Name: "no block", Off: 0x04, Put: filetest.LE32(0), Want: ondisk.ErrFormat, Text: "block count 0"},
		{Name: "first data block 2^32-1", Off: 0x14, Put: filetest.LE32(0xffffffff), Want: ondisk.ErrFormat, Text: "first data block"},
		{Name: "unknown feature", Off: 0x63, Put: []byte{0x80}, Want: ondisk.ErrUnsupported, Text: "incompatible features 0x80000000"},
		{Name: "compression", Off: 0x60, Put: []byte{raw[superAt+0x60] | 1}, Want: ondisk.ErrUnsupported, Text: "incompatible features 0x1:"},
		{Name: "lustre", Off: 0x61, Put: []byte{raw[superAt+0x61] | 0x10}, Want: ondisk.ErrUnsupported, Text: "incompatible features 0x1000"},
		{Name: "a journal alone", Off: 0x60, Put: []byte{raw[superAt+0x60] | 8}, Want: ondisk.ErrUnsupported, Text: "incompatible features 0x8:"},
		{Name: "error behaviour 4", Off: 0x3c, Put: filetest.LE16(4), Want: ondisk.ErrNoMatch, Text: ""},
		{Name: "creator 5", Off: 0x48, Put: filetest.LE32(5), Want: ondisk.ErrNoMatch, Text: ""},
		{Name: "revision 2", Off: 0x4c, Put: filetest.LE32(2), Want: ondisk.ErrNoMatch, Text: ""},
		{Name: "no magic", Off: 0x38, Put: filetest.LE16(0), Want: ondisk.ErrNoMatch, Text: ""},
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
		{Name: "magic of the root", Off: file, Put: filetest.LE16(0), Want: ondisk.ErrFormat, Text: "magic of the extents 0x0000, want 0xf30a"},
		{Name: "magic of a node", Off: node, Put: filetest.LE16(0xf30b), Want: ondisk.ErrFormat, Text: "magic of the extents 0xf30b"},
		{Name: "more entries than room", Off: file + 2, Put: filetest.LE16(5), Want: ondisk.ErrFormat, Text: "extents 5, want at most 4"},
		{Name: "more room than bytes", Off: file + 4, Put: filetest.LE16(5), Want: ondisk.ErrFormat, Text: "room for extents 5, want 1 to 4"},
		{Name: "more entries than room in a node", Off: node + 2, Put: filetest.LE16(341), Want: ondisk.ErrFormat, Text: "extents 341, want at most 340"},
		{Name: "more room than bytes in a node", Off: node + 4, Put: filetest.LE16(0xffff), Want: ondisk.ErrFormat, Text: "room for extents 65535, want 1 to 340"},
		{Name: "no room", Off: node + 4, Put: filetest.LE16(0), Want: ondisk.ErrFormat, Text: "room for extents 0"},
		{Name: "depth 6", Off: file + 6, Put: filetest.LE16(6), Want: ondisk.ErrFormat, Text: "depth of the tree 6, want at most 5"},
		{Name: "depth 2 over a leaf", Off: file + 6, Put: filetest.LE16(2), Want: ondisk.ErrFormat, Text: "depth of the tree 0, want 1"},
		{Name: "depth 1 in a leaf", Off: node + 6, Put: filetest.LE16(1), Want: ondisk.ErrFormat, Text: "depth of the tree 1, want 0"},
		{Name: "node past the end", Off: file + 16, Put: filetest.LE32(0xfffffff0), Want: ondisk.ErrFormat, Text: "block of an index"},
		{Name: "node at 2^47", Off: file + 20, Put: filetest.LE16(0x8000), Want: ondisk.ErrFormat, Text: "block of an index"},
		{Name: "node in the superblock", Off: file + 16, Put: filetest.LE32(0), Want: ondisk.ErrFormat, Text: "block of an index 0"},
		{Name: "a node twice", Off: file + 2, Put: slices.Concat(filetest.LE16(2), filetest.LE16(4), filetest.LE16(1), filetest.LE32(0), filetest.LE32(0), filetest.LE32(uint32(leaf)), filetest.LE32(0), filetest.LE32(200), filetest.LE32(uint32(leaf)), filetest.LE32(0)), Want: ondisk.ErrFormat, Text: "to 200"},
		{Name: "an index twice", Off: file + 2, Put: slices.Concat(filetest.LE16(2), filetest.LE16(4), filetest.LE16(1), filetest.LE32(0), filetest.LE32(0), filetest.LE32(uint32(leaf)), filetest.LE32(0), filetest.LE32(0), filetest.LE32(uint32(leaf)), filetest.LE32(0)), Want: ondisk.ErrFormat, Text: "first block of an index 0, want 1 to"},
		{Name: "a node naming itself", Off: node + 2, Put: slices.Concat(filetest.LE16(1), filetest.LE16(340), filetest.LE16(1), filetest.LE32(0), filetest.LE32(0), filetest.LE32(uint32(leaf)), filetest.LE32(0)), Want: ondisk.ErrFormat, Text: "depth of the tree 1, want 0"},
		{Name: "index out of order", Off: file + 12, Put: filetest.LE32(0xffffffff), Want: ondisk.ErrFormat, Text: ""},
		{Name: "extent of no block", Off: node + 16, Put: filetest.LE16(0), Want: ondisk.ErrFormat, Text: "of 0 blocks"},
		{Name: "extent over the next", Off: node + 16, Put: filetest.LE16(5), Want: ondisk.ErrFormat, Text: "extent"},
		{Name: "extents out of order", Off: node + 24, Put: filetest.LE32(0), Want: ondisk.ErrFormat, Text: "extent"},
		{Name: "extent past the end", Off: node + 20, Put: filetest.LE32(0xffffffff), Want: ondisk.ErrFormat, Text: "block"},
		{Name: "extent at 2^47", Off: node + 18, Put: filetest.LE16(0x8000), Want: ondisk.ErrFormat, Text: "block"},
		{Name: "two extents in one place", Off: node + 20, Put: raw[node+32 : node+36], Want: ondisk.ErrFormat, Text: "only once"},
		{Name: "size of 2^63", Off: file - atMap + 0x6c, Put: filetest.LE32(1 << 31), Want: ondisk.ErrFormat, Text: "size 9223372036"},
		{Name: "inode table past the end", Off: group + 8, Put: filetest.LE32(0xffffffff), Want: ondisk.ErrFormat, Text: "inode table"},
		{Name: "inode table at 2^63", Off: group + 0x28, Put: filetest.LE32(0xffffffff), Want: ondisk.ErrFormat, Text: "inode table"},
		{Name: "folder of 2^32-1 bytes", Off: dir + 4, Put: filetest.LE32(0xffffffff), Want: ondisk.ErrFormat, Text: "rec_len 0"},
		{Name: "link of 1 MiB", Off: p.inode(t, "link") + 4, Put: filetest.LE32(1 << 20), Want: ondisk.ErrFormat, Text: "size of a symbolic link 1048576"},
		{Name: "link of no byte", Off: p.inode(t, "link") + 4, Put: filetest.LE32(0), Want: ondisk.ErrFormat, Text: "size of a symbolic link 0"},
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
			{Name: "rec_len 0", Off: at + 4, Put: filetest.LE16(0), Want: ondisk.ErrFormat, Text: "rec_len 0"},
			{Name: "rec_len 3", Off: at + 4, Put: filetest.LE16(3), Want: ondisk.ErrFormat, Text: "rec_len 3"},
			{Name: "rec_len 8", Off: at + 4, Put: filetest.LE16(8), Want: ondisk.ErrFormat, Text: "rec_len 8"},
			{Name: "rec_len beyond the block", Off: at + 4, Put: filetest.LE16(uint16(g.block)), Want: ondisk.ErrFormat, Text: "rec_len"},
			{Name: "rec_len 65535", Off: at + 4, Put: filetest.LE16(65535), Want: ondisk.ErrFormat, Text: "rec_len 65535"},
			{Name: "rec_len up to the last 4 bytes", Off: at + 4, Put: filetest.LE16(uint16(g.block - 28)), Want: ondisk.ErrFormat, Text: "room for an entry 4"},
			{Name: "name_len above rec_len", Off: at + 6, Put: []byte{255}, Want: ondisk.ErrFormat, Text: "name_len 255"},
			{Name: "inode 2^32-1", Off: at, Put: filetest.LE32(0xffffffff), Want: ondisk.ErrFormat, Text: "inode 4294967295"},
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
		{Name: "block past the end", Off: file, Put: filetest.LE32(0xffffffff), Want: ondisk.ErrFormat, Text: "block 4294967295"},
		{Name: "superblock", Off: file, Put: filetest.LE32(1), Want: ondisk.ErrFormat, Text: "block 1,"},
		{Name: "indirect block past the end", Off: file + 12*4, Put: filetest.LE32(0xffffffff), Want: ondisk.ErrFormat, Text: "indirect block 4294967295"},
		{Name: "double indirect block past the end", Off: file + 13*4, Put: filetest.LE32(0xffffffff), Want: ondisk.ErrFormat, Text: "indirect block 4294967295"},
		{Name: "block in an indirect block past the end", Off: single * g.block, Put: filetest.LE32(0x7fffffff), Want: ondisk.ErrFormat, Text: "block 2147483647"},
		{Name: "indirect block in a double one past the end", Off: double * g.block, Put: filetest.LE32(0x7fffffff), Want: ondisk.ErrFormat, Text: "indirect block 2147483647"},
		{Name: "double indirect block naming itself", Off: double * g.block, Put: filetest.LE32(uint32(double)), Want: ondisk.ErrFormat, Text: "the tree has not used yet"},
		{Name: "an indirect block twice", Off: double*g.block + 4, Put: filetest.LE32(uint32(under)), Want: ondisk.ErrFormat, Text: "the tree has not used yet"},
		{Name: "a block twice", Off: file + 4, Put: raw[file : file+4], Want: ondisk.ErrFormat, Text: "only once"},
	} {
		a.Try(t, raw, useExt)
	}
}

// Files without bytes in the inode that their flag promises.
func TestExtHostileInlineData(t *testing.T) {
	img := makeExt(t, extKinds[7], filetest.WriteTree(t,
		map[string][]byte{"dir/in dir": filetest.Noise(1, 300), "small": filetest.Noise(2, 100)}))
	raw, err := os.ReadFile(img)
	require.NoError(t, err)
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
		{Name: "larger than the inode", Off: at + 4, Put: filetest.LE32(101 + 40), Want: ondisk.ErrFormat, Text: "size 141, want at most the 100 bytes"},
		{Name: "no attribute", Off: attr, Put: filetest.LE32(0), Want: ondisk.ErrFormat, Text: "at most the 60 bytes"},
		{Name: "extra size 65535", Off: at + 128, Put: filetest.LE16(65535), Want: ondisk.ErrFormat, Text: "at most the 60 bytes"},
		{Name: "another attribute", Off: attr + 20, Put: []byte("dota"), Want: ondisk.ErrFormat, Text: "at most the 60 bytes"},
		{Name: "name past the end", Off: attr + 4, Put: []byte{255}, Want: ondisk.ErrFormat, Text: "at most the 60 bytes"},
		{Name: "value past the end", Off: attr + 6, Put: filetest.LE16(250), Want: ondisk.ErrFormat, Text: "at most the 60 bytes"},
		{Name: "value of 2^32-1 bytes", Off: attr + 12, Put: filetest.LE32(0xffffffff), Want: ondisk.ErrFormat, Text: "at most the 60 bytes"},
		{Name: "value in another inode", Off: attr + 8, Put: filetest.LE32(12), Want: ondisk.ErrFormat, Text: "at most the 60 bytes"},
		{Name: "folder with rec_len 0", Off: p.inode(t, "dir") + atMap + 8, Put: filetest.LE16(0), Want: ondisk.ErrFormat, Text: "rec_len 0"},
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

	// A double indirect block over 256 others, all of which name one block of the volume 256 times: pieces that cannot be
	// joined.
	const top, below, block = 9000, 9001, 9500
	binary.LittleEndian.PutUint32(raw[file+atMap+13*4:], top)
	for i := range int64(256) {
		binary.LittleEndian.PutUint32(raw[top*g.block+4*i:], uint32(below+i))
		for j := range int64(256) {
			binary.LittleEndian.PutUint32(raw[(below+i)*g.block+4*j:], block)
		}
	}
	again, err := alone(filetest.Memory(raw))
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
	g, err := alone(filetest.RawImage(t, makeExt(t, extKinds[0],
		filetest.WriteTree(t, map[string][]byte{deep + "/file": nil}))))
	require.NoError(t, err)
	_, err = g.List(deep[:2*63+1])
	require.NoError(t, err)
	_, err = g.List(deep[:2*64+1])
	require.ErrorIs(t, err, ondisk.ErrLimit)
	require.ErrorContains(t, err, "64 folders")
}
