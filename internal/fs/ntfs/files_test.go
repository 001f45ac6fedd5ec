package ntfs

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/filetest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
)

// Volumes with all sizes of sectors, clusters, records and files have the same content as in ntfs-3g.
func TestNTFSOfMkntfs(t *testing.T) {
	for _, args := range []string{
		"-c 512", "-c 1024", "-c 4096", "-c 65536", "-c 131072", "-c 2097152", "-s 1024 -c 1024", "-s 2048 -c 8192",
		"-s 4096 -c 4096", "-s 4096 -c 65536",
	} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			vol := mkntfs(t, 48<<20, strings.Fields(args)...)
			sizes := []int{0, 1, 300, 700, 5000, 4 << 20}
			for i, n := range sizes {
				ntfscp(t, vol, fmt.Sprintf("file %d", i), filetest.Noise(uint64(i), n))
			}
			v := requireLikeTools(t, vol)
			for i, n := range sizes {
				f := filetest.File(t, v, fmt.Sprintf("FILE %d", i))
				require.Equal(t, filetest.Noise(uint64(i), n), append([]byte{}, filetest.ReadAll(t, f)...))
				require.Equal(t, fmt.Sprintf("file %d", i), f.Path, "the name as it is stored")
			}
		})
	}
}

// Where returns the positions of the bytes of a file, also in the record of a small file, where NTFS replaces the last
// bytes of each 512-byte block.
func TestNTFSRewrite(t *testing.T) {
	for _, args := range []string{"-c 512", "-c 4096", "-s 4096 -c 4096"} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			vol := mkntfs(t, 8<<20, strings.Fields(args)...)
			contents := map[string][]byte{
				"small": filetest.Noise(1, 640), "other": filetest.Noise(2, 640),
				"large": filetest.Noise(3, 100000),
			}
			if strings.HasPrefix(args, "-s 4096") {
				contents["small"], contents["other"] = filetest.Noise(1, 3500), filetest.Noise(2, 3500)
			}
			for name, b := range contents {
				ntfscp(t, vol, name, b)
			}
			v := openNTFS(t, vol)
			small := filetest.File(t, v, "small")
			require.Greater(t, len(filetest.RunsOf(t, small)), 1, "a resident value over the end of a sector")
			ntfsRewrite(t, vol, small, 0, small.Size())
			contents["small"] = inverted(contents["small"])
			large := filetest.File(t, v, "large")
			ntfsRewrite(t, vol, large, 77777, 12)
			copy(contents["large"][77777:], inverted(contents["large"][77777:77789]))
			for name, b := range contents {
				require.Equal(t, b, ntfscat(t, vol, name), name)
			}
			disktest.Run(t, "ntfsfix", "-n", vol)
			requireLikeTools(t, vol)
		})
	}
}

// Files in hundreds of pieces, whose runs are in several records.
func TestNTFSInPieces(t *testing.T) {
	vol := mkntfs(t, 2<<20, "-c", "512")
	const pieces = 220
	for i := 1; i <= pieces; i++ { // each grows by a cluster after that of the other
		ntfscp(t, vol, "a", filetest.Noise(1, 800+i*512))
		ntfscp(t, vol, "b", filetest.Noise(2, 800+i*512))
	}
	v := requireLikeTools(t, vol)
	a := v.file(t, "a")
	require.Greater(t, len(filetest.RunsOf(t, a)), pieces-10)
	require.NotEmpty(t, v.at(t, "a").list)
	ntfsRewrite(t, vol, a, 30000, 20000)
	want := filetest.Noise(1, 800+pieces*512)
	copy(want[30000:], inverted(want[30000:50000]))
	require.Equal(t, want, ntfscat(t, vol, "a"))
}

// A folder whose index has three levels: with names of 240 characters, a block has room for eight.
func TestNTFSLargeFolder(t *testing.T) {
	vol := mkntfs(t, 8<<20)
	for i := range 120 {
		ntfscp(t, vol, fmt.Sprintf("%03d%s", i*7%120, strings.Repeat("ä", 118)), []byte{byte(i)})
	}
	v := requireLikeTools(t, vol)
	for i := range 120 {
		f := filetest.File(t, v, fmt.Sprintf("%03d%s", i*7%120, strings.Repeat("Ä", 118)))
		require.Equal(t, []byte{byte(i)}, filetest.ReadAll(t, f))
	}
	_, err := v.Open("060" + strings.Repeat("a", 118))
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func TestNTFSPaths(t *testing.T) {
	vol := mkntfs(t, 8<<20)
	for _, name := range []string{"Straße", "ÄÖÜ", "ǆ", "ﬀ", "Case", "case", "Two", "tWO", "😀"} {
		ntfscp(t, vol, name, []byte(name))
	}
	v := openNTFS(t, vol)
	for path, want := range map[string]string{
		"STRAßE": "Straße", "äöü": "ÄÖÜ", "Ǆ": "ǆ", "ﬀ": "ﬀ", "Case": "Case", "case": "case", "tWO": "tWO", "😀": "😀",
		"$upcase": "$UpCase", "$EXTEND/$objid": "$Extend/$ObjId",
	} {
		f, err := v.Open(path)
		if path == "$EXTEND/$objid" {
			require.ErrorIs(t, err, ondisk.ErrUnsupported, "there, and without data")
			continue
		}
		require.NoError(t, err, path)
		require.Equal(t, want, f.Path)
		if want[0] != '$' {
			require.Equal(t, want, string(filetest.ReadAll(t, f)))
		}
	}
	for _, path := range []string{
		"", "/", "STRASSE", "FF", "x", "Case/x", "$Extend", "$Extend/", "/Case", ".", "./Case",
		"..", "$Extend/../Case", "Case\x00", "Case ", "Case\xff",
	} {
		_, err := v.Open(path)
		require.ErrorIs(t, err, fs.ErrNotExist, path)
	}
	for _, path := range []string{"x", "Case", "/", ".", "$Extend/x"} {
		_, err := v.List(path)
		require.ErrorIs(t, err, fs.ErrNotExist, path)
	}
	for _, path := range []string{"CASE", "two"} {
		_, err := v.Open(path)
		require.ErrorIs(t, err, ondisk.ErrUnsupported, "which of both is meant?")
	}
	_, err := v.Open(strings.Repeat("a/", guestfile.MaxDepth) + "a")
	require.ErrorIs(t, err, ondisk.ErrLimit)
}

// Files whose stored bytes differ from their content are refused, with the reason.
func TestNTFSCompressed(t *testing.T) {
	vol := mkntfs(t, 8<<20, "-C")
	text := []byte(strings.Repeat("the same again, ", 10000))
	ntfscp(t, vol, "large", text)
	ntfscp(t, vol, "small", text[:100])
	v := openNTFS(t, vol)
	_, err := v.Open("large")
	require.ErrorIs(t, err, ondisk.ErrUnsupported)
	require.ErrorContains(t, err, "compressed")
	requireLikeNTFSCat(t, vol, v, "small")
}

// ntfs-3g, and Linux, read a volume whose boot sector does not end in 0xaa55.
func TestNTFSFilesWithoutSignature(t *testing.T) {
	vol := mkntfs(t, 2<<20)
	ntfscp(t, vol, "large", filetest.Noise(1, 50000))
	m := forgeNTFS(t, vol)
	m.U16(0x1fe, 0)
	vol = m.save(t)
	requireLikeNTFSCat(t, vol, openNTFS(t, vol), "large")
}

func TestNTFSIsNotThere(t *testing.T) {
	for _, b := range [][]byte{nil, make([]byte, 511), make([]byte, 512), make([]byte, 1<<20)} {
		_, err := alone(disktest.ShortDisk(b, int64(len(b))))
		require.ErrorIs(t, err, ondisk.ErrNoMatch)
	}
}

// Volumes that Windows NT 4, XP, 2003, 7 and others made.
func TestNTFSOfTheCorpus(t *testing.T) {
	for _, tc := range []struct {
		name string
		lba  int64
	}{
		{"dftt/7-ntfs-undel.dd.xz", 0},
		{"imagemounter/test.ntfs.xz", 0},
		{"libldm/ldm-2003r2-simple-1.img.xz", 63},
		{"vmdk-rs/monolithicFlat-flat.vmdk.xz", 128},
		{"dfvfs/vsstest.qcow2.xz", 0},
		{"osv-scalibr/valid-ext-exfat-fat32-ntfs.vmdk.xz", 393216},
	} {
		t.Run(tc.name, func(t *testing.T) {
			requireLikeTools(t, filetest.RawCorpus(t, tc.name, tc.lba, 0))
		})
	}
}

const noChild = -1

// indexEntry is an entry of an index of names; the last one has no name.
func indexEntry(name string, record, child int64) forge.Bytes {
	size := 0
	if name != "" {
		size = keySize + len(utf16le(name))
	}
	e := make(forge.Bytes, entrySize+(size+7)&^7)
	if name == "" {
		e.U16(12, entryLast)
	} else {
		e.U64(0, uint64(record)|1<<48)
		e.U16(10, uint16(size))
		e.U8(entrySize+0x40, byte(len(utf16le(name))/2))
		e.Text(entrySize+keySize, utf16le(name))
	}
	if child != noChild {
		e = binary.LittleEndian.AppendUint64(e, uint64(child))
		e[12] |= entrySubNode
	}
	e.U16(8, uint16(len(e)))
	return e
}

// indexNode is the head of a node, and entries.
func indexNode(from int, entries ...forge.Bytes) forge.Bytes {
	all := slices.Concat(entries...)
	n := make(forge.Bytes, from, from+len(all))
	n.U32(0, uint32(from))
	n.U32(4, uint32(from+len(all)))
	n.U32(8, uint32(from+len(all)))
	return append(n, all...)
}

// indexBlock is a block of 1024 bytes.
func indexBlock(vcn int64, entries ...forge.Bytes) forge.Bytes {
	b := make(forge.Bytes, 1024)
	b.Text(0, "INDX")
	b.U16(4, 0x28)
	b.U16(6, 3)
	b.U64(0x10, uint64(vcn))
	b.Put(indexBlockHead, indexNode(0x18, entries...))
	return sealNTFS(b)
}

// walkBlocks walks an index with block numbers in units of 512 bytes, from a root with a node below it.
func walkBlocks(root forge.Bytes, blocks []byte, want []uint16) (names []string, err error) {
	source := bytes.NewReader(blocks)
	size := int64(len(blocks))
	tree, err := guestfile.NewFile(source, "dir", size, []guestfile.Run{{Len: size}})
	if err != nil {
		return nil, err
	}
	x := &indexWalk{
		fs: newFileSystem(guestfile.NewBudget(), nil), path: "dir", block: 1024, unit: 512,
		visited: map[int64]bool{}, want: want,
		blocks: tree,
	}
	if err := x.push(root); err != nil {
		return nil, err
	}
	err = x.walk(func(n *fileName) error {
		names = append(names, n.text())
		return nil
	})
	return names, err
}

func TestNTFSIndex(t *testing.T) {
	root := indexNode(0x10, indexEntry("D", 1, 0), indexEntry("", 0, 2))
	blocks := slices.Concat(
		indexBlock(0, indexEntry("B", 2, 4), indexEntry("C", 3, noChild), indexEntry("", 0, 6)),
		indexBlock(2, indexEntry("E", 4, noChild), indexEntry("", 0, noChild)),
		indexBlock(4, indexEntry("A", 5, noChild), indexEntry("", 0, noChild)),
		indexBlock(6, indexEntry("", 0, noChild)),
	)
	names, err := walkBlocks(root, blocks, nil)
	require.NoError(t, err)
	require.Equal(t, []string{"A", "B", "C", "D", "E"}, names)
	for _, name := range append(names, "", "AA", "BB", "CC", "DD", "EE") {
		found, err := walkBlocks(root, blocks, utf16.Encode([]rune(name)))
		require.NoError(t, err)
		if len(name) == 1 {
			require.Equal(t, []string{name}, found)
		} else {
			require.Empty(t, found)
		}
	}
}

// An index with blocks that refer to themselves or their parent, entries that do not advance, or too many levels is an
// error.
func TestNTFSHostileIndex(t *testing.T) {
	last := indexEntry("", 0, noChild)
	root := indexNode(0x10, indexEntry("", 0, 0))
	changed := func(e forge.Bytes, change func(e forge.Bytes)) forge.Bytes {
		change(e)
		return e
	}
	name := func() forge.Bytes { return indexEntry("name", 7, noChild) }
	for what, blocks := range map[string][]byte{
		"block naming itself":      indexBlock(0, indexEntry("a", 1, 0), last),
		"last entry naming itself": indexBlock(0, indexEntry("", 0, 0)),
		"block naming its parent": append(indexBlock(0, indexEntry("", 0, 2)),
			indexBlock(2, indexEntry("", 0, 0))...),
		"one block under two": append(indexBlock(0, indexEntry("a", 1, 2), indexEntry("", 0, 2)),
			indexBlock(2, last)...),
		"block behind the end":      indexBlock(0, indexEntry("", 0, 2)),
		"block over the end":        indexBlock(0, indexEntry("", 0, 1)),
		"block 2^64-1":              indexBlock(0, indexEntry("", 0, -2)),
		"block with another number": indexBlock(2, last),
		"no block":                  make([]byte, 1024),
		"no entries":                indexBlock(0),
		"no last entry":             indexBlock(0, name()),
		"entry of length 0":         indexBlock(0, changed(name(), func(e forge.Bytes) { e.U16(8, 0) }), last),
		"entry of length 8":         indexBlock(0, changed(name(), func(e forge.Bytes) { e.U16(8, 8) }), last),
		"entry of odd length":       indexBlock(0, changed(name(), func(e forge.Bytes) { e.U16(8, 0x51) }), last),
		"entry of length 65535":     indexBlock(0, changed(name(), func(e forge.Bytes) { e.U16(8, 65535) }), last),
		"key of 65535 bytes":        indexBlock(0, changed(name(), func(e forge.Bytes) { e.U16(10, 65535) }), last),
		"key of no bytes":           indexBlock(0, changed(name(), func(e forge.Bytes) { e.U16(10, 0) }), last),
		"name of 255 characters": indexBlock(0,
			changed(name(), func(e forge.Bytes) { e.U8(entrySize+0x40, 255) }), last),
		"name of no characters": indexBlock(0, changed(name(), func(e forge.Bytes) { e.U8(entrySize+0x40, 0) }),
			last),
		"reference without a sequence": indexBlock(0, changed(name(), func(e forge.Bytes) { e.U16(6, 0) }), last),
		"node without a number": indexBlock(0, changed(indexEntry("", 0, noChild),
			func(e forge.Bytes) { e.U16(12, 3) })),
		"entries from 2^32-1 on": changed(indexBlock(0, last), func(e forge.Bytes) { e.U32(0x18, 1<<32-1) }),
		"entries over the head":  changed(indexBlock(0, last), func(e forge.Bytes) { e.U32(0x18, 0) }),
		"entries up to 2^32-1":   changed(indexBlock(0, last), func(e forge.Bytes) { e.U32(0x1c, 1<<32-1) }),
		"torn block":             changed(indexBlock(0, last), func(e forge.Bytes) { e.U16(1022, 7) }),
		"fix-ups over the head":  changed(indexBlock(0, last), func(e forge.Bytes) { e.U16(4, 0x20) }),
	} {
		_, err := walkBlocks(root, blocks, nil)
		require.ErrorIs(t, err, ondisk.ErrFormat, what)
	}
	var deep, wide []byte
	for i := range int64(guestfile.MaxDepth) {
		deep = append(deep, indexBlock(2*i, indexEntry("", 0, 2*i+2))...)
	}
	_, err := walkBlocks(root, deep, nil)
	require.ErrorIs(t, err, ondisk.ErrLimit)
	level := []forge.Bytes{}
	for i := range int64(guestfile.MaxEntries/8 + 1) {
		entries := []forge.Bytes{}
		for k := range int64(8) {
			entries = append(entries, indexEntry(fmt.Sprintf("%06d", 8*i+k), 9, noChild))
		}
		wide = append(wide, indexBlock(2*i, append(entries, last)...)...)
		level = append(level, indexEntry(fmt.Sprintf("%06d", 8*i+8), 9, 2*i))
	}
	_, err = walkBlocks(indexNode(0x10, append(level, last)...), wide, nil)
	require.ErrorIs(t, err, ondisk.ErrLimit)
	require.ErrorContains(t, err, "names")
}

// A folder inside itself: every path ends.
func TestNTFSFolderInItself(t *testing.T) {
	m := hostileBase(t)
	number := m.number(t, "$Extend")
	m.change(t, number, func(r forge.Bytes) {
		i := bytes.Index(r, []byte(utf16le("$ObjId"))) - keySize - entrySize
		require.Positive(t, i)
		seq := m.fs.at(t, "$Extend").rec.Sequence
		r.U64(int64(i), uint64(number)|uint64(seq)<<48)
	})
	v := alone.Sound(t, m.disk())
	entries, err := v.List("$Extend" + strings.Repeat("/$ObjId", guestfile.MaxDepth-1))
	require.NoError(t, err)
	require.Len(t, entries, 3)
	_, err = v.List("$Extend" + strings.Repeat("/$ObjId", guestfile.MaxDepth))
	require.ErrorIs(t, err, ondisk.ErrLimit)
}

// The total cost of a volume is bounded.
func TestNTFSCost(t *testing.T) {
	m := hostileBase(t)
	v := alone.Sound(t, m.disk())
	for range 100 {
		_, err := v.Open("small")
		require.NoError(t, err)
	}
	require.Less(t, v.(*fileSystem).own.Spent(), int64(maxStructures/50), "opening files takes little of it")
	var err error
	for err == nil && v.(*fileSystem).own.Spent() <= maxStructures {
		_, err = v.List("")
	}
	require.ErrorIs(t, err, ondisk.ErrLimit)
	_, err = v.Open("small")
	require.ErrorIs(t, err, ondisk.ErrLimit)
}

// Each character has an entry in the table, whose blocks are read on demand; missing characters are unchanged, and half
// an entry does not count.
func TestUpcaseTable(t *testing.T) {
	const entries = 5000
	table := make([]byte, 2*entries+1)
	for i := range entries {
		binary.LittleEndian.PutUint16(table[2*i:], uint16(i+1))
	}
	n := newFileSystem(guestfile.NewBudget(), nil)
	n.upper.file = bytes.NewReader(table)
	for _, u := range []uint16{0, 'a', 2047, 2048, entries - 1, entries, 6143, 6144, 65535} {
		want := u
		if u < entries {
			want++
		}
		got, err := n.upcase(u)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	require.Nil(t, newFileSystem(guestfile.NewBudget(), nil).upper.blocks[0])
	n = newFileSystem(guestfile.NewBudget(), nil)
	n.upper.file = disktest.NewBadDisk(filetest.Memory(table[:2*4096]), upcaseBlock) // its second block
	_, err := n.upcase(2047)
	require.NoError(t, err)
	_, err = n.upcase(2048)
	require.ErrorIs(t, err, disktest.ErrFault)
	_, err = (&indexWalk{fs: n, want: []uint16{2048}}).compare(&fileName{name: []uint16{2048}})
	require.ErrorIs(t, err, disktest.ErrFault)
}
