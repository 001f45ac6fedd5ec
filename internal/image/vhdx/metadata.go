package vhdx

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
)

// Metadata items of the specification. Spec: 2.6.2.
var (
	itemParameters = ondisk.MustGUID("caa16737-fa36-4d43-b3b6-33f0aa44e76b")
	itemDiskSize   = ondisk.MustGUID("2fa54224-cd1b-4876-b211-5dbed83bf4b8")
	itemDiskID     = ondisk.MustGUID("beca12ab-b2e6-4523-93ef-c309e000c746")
	itemLogical    = ondisk.MustGUID("8141bf1d-a96f-4709-ba47-f233a8faab5f")
	itemPhysical   = ondisk.MustGUID("cda348c7-445d-4471-9cc9-e9885251c556")
	itemLocator    = ondisk.MustGUID("a8d35f2d-b30b-454d-abf7-d3d84834ab0c")
)

// Limits of the metadata. Spec: 2.6.1.
const (
	metadataTableSize = 64 << 10 // bytes
	firstEntries      = 4 << 10  // bytes of the table in the first read
	maxItems          = 2047
	maxUserItems      = 1024
	maxItem           = 1 << 20   // bytes
	maxDisk           = 64 << 40  // bytes
	minBlock          = 1 << 20   // bytes
	maxBlock          = 256 << 20 // bytes
	sectorsPerBitmap  = 1 << 23   // a sector bitmap block has 1 MiB
)

// Flags of file parameters and of table entries.
const (
	flagLeaveAllocated = 1 // a fixed disk
	flagHasParent      = 2

	itemIsUser     = 1
	itemIsDisk     = 2
	itemIsRequired = 4
)

// metadataHeader is the header of the metadata table. Spec: 2.6.1.1.
type metadataHeader struct {
	Signature  [8]byte // "metadata"
	_          uint16
	EntryCount uint16
	_          [20]byte
}

// metadataEntry is the table entry of one item. Spec: 2.6.1.2.
type metadataEntry struct {
	ItemID ondisk.GUID
	Offset uint32 // from the start of the region
	Length uint32
	Flags  uint32
	_      uint32
}

// metadata holds the decoded metadata items.
type metadata struct {
	at                int64 // file offset of the region
	blockSize         int64
	flags             uint32
	size              int64
	diskID            ondisk.GUID // page 83 of the SCSI inquiry in a guest
	logical, physical int64
	locator           *locator // nil if absent
}

func (m *metadata) hasParent() bool { return m.flags&flagHasParent != 0 }

func (m *metadata) subformat() string {
	switch {
	case m.hasParent():
		return differencing
	case m.flags&flagLeaveAllocated != 0:
		return fixed
	}
	return dynamic
}

// read reads the table and the items of the region.
func (m *metadata) read(src ondisk.Source, region disk.Range) error {
	m.at = region.Off
	table, err := readTable(src, region.Off)
	if err != nil {
		return err
	}
	items, err := m.items(table, region.Len)
	if err != nil {
		return err
	}
	values := map[ondisk.GUID][]byte{}
	for _, e := range items {
		if e.Flags&itemIsUser == 0 && lengths[e.ItemID] > 0 {
			if values[e.ItemID], err = ondisk.Bytes(src, region.Off+int64(e.Offset), int64(e.Length)); err != nil {
				return err
			}
		}
	}
	return m.take(values)
}

// readTable reads the part of the table with entries, five in most files. The table has no checksum.
func readTable(src ondisk.Source, at int64) ([]byte, error) {
	const most = (firstEntries - 32) / 32
	table, err := ondisk.Bytes(src, at, firstEntries)
	if err != nil || binary.LittleEndian.Uint16(table[10:]) <= most {
		return table, err
	}
	return ondisk.Bytes(src, at, metadataTableSize)
}

// lengths holds the lengths of the known items; 1 means variable.
var lengths = map[ondisk.GUID]int{
	itemParameters: 8, itemDiskSize: 8, itemDiskID: 16, itemLogical: 4, itemPhysical: 4, itemLocator: 1,
}

func (m *metadata) field(name string, off int64, got, want any) error {
	return ondisk.Field("vhdx metadata", name, m.at+off, got, want)
}

// items decodes the table entries and checks that the items lie inside the region without overlapping.
func (m *metadata) items(table []byte, regionLen int64) ([]metadataEntry, error) {
	if string(table[:8]) != "metadata" {
		return nil, m.field("signature", 0, string(table[:8]), "metadata")
	}
	n := int64(binary.LittleEndian.Uint16(table[10:]))
	if n > maxItems {
		return nil, m.field("entry count", 10, n, fmt.Sprintf("at most %d", maxItems))
	}
	type key struct {
		id   ondisk.GUID
		user bool
	}
	seen, users := map[key]bool{}, 0
	var out []metadataEntry
	for i := range n {
		at := int64(binary.Size(metadataHeader{})) + i*int64(binary.Size(metadataEntry{}))
		var e metadataEntry
		ondisk.Fill(table[at:], binary.LittleEndian, &e)
		k := key{e.ItemID, e.Flags&itemIsUser != 0}
		if seen[k] {
			return nil, m.field("item", at, e.ItemID.String(), "each item once")
		}
		seen[k] = true
		if k.user {
			users++
		}
		if err := m.checkItem(&e, at, regionLen); err != nil {
			return nil, err
		}
		out = append(out, e)
	}
	if users > maxUserItems {
		return nil, m.field("user items", 10, users, fmt.Sprintf("at most %d", maxUserItems))
	}
	return out, m.checkApart(out)
}

// checkItem validates one entry, at byte at of the region.
func (m *metadata) checkItem(e *metadataEntry, at, regionLen int64) error {
	known := 0
	if e.Flags&itemIsUser == 0 {
		known = lengths[e.ItemID]
	}
	switch end := int64(e.Offset) + int64(e.Length); {
	case known == 0 && e.Flags&itemIsRequired != 0:
		return fmt.Errorf("vhdx metadata at %#x: item %s is required: %w; it is not one of the specification's",
			m.at+at, e.ItemID, ondisk.ErrUnsupported)
	case known > 1 && int64(e.Length) != int64(known):
		return m.field("length of item "+e.ItemID.String(), at+20, e.Length, known)
	case e.Length > maxItem:
		return m.field("length", at+20, e.Length, fmt.Sprintf("at most %d", maxItem))
	case e.Length == 0 && e.Offset == 0:
		return nil // present and empty
	case e.Offset < metadataTableSize || end > regionLen:
		return m.field("offset", at+16, e.Offset,
			fmt.Sprintf("from %d on, and %d bytes within the region of %d bytes", metadataTableSize, e.Length,
				regionLen))
	}
	return nil
}

func (m *metadata) checkApart(items []metadataEntry) error {
	sorted := slices.SortedFunc(slices.Values(items),
		func(a, b metadataEntry) int { return cmp.Compare(a.Offset, b.Offset) })
	for i := 1; i < len(sorted); i++ {
		a, b := sorted[i-1], sorted[i]
		if int64(a.Offset)+int64(a.Length) > int64(b.Offset) {
			return m.field("item "+b.ItemID.String(), int64(b.Offset), fmt.Sprintf("%d bytes", b.Length),
				"a place apart from item "+a.ItemID.String())
		}
	}
	return nil
}

// take decodes the values of the items.
func (m *metadata) take(values map[ondisk.GUID][]byte) error {
	for _, id := range []ondisk.GUID{itemParameters, itemDiskSize, itemDiskID, itemLogical, itemPhysical} {
		if values[id] == nil {
			return m.field("item", 0, "none", id.String())
		}
	}
	number := func(id ondisk.GUID) int64 { return int64(binary.LittleEndian.Uint32(values[id])) }
	m.blockSize, m.logical, m.physical = number(itemParameters), number(itemLogical), number(itemPhysical)
	m.flags = binary.LittleEndian.Uint32(values[itemParameters][4:])
	copy(m.diskID[:], values[itemDiskID])
	size := binary.LittleEndian.Uint64(values[itemDiskSize])
	sector := func(n int64) bool { return n == 512 || n == 4096 }
	switch {
	case m.blockSize < minBlock || m.blockSize > maxBlock || m.blockSize&(m.blockSize-1) != 0:
		return m.field("block size", 0, m.blockSize, "a power of two from 1 MiB to 256 MiB")
	case !sector(m.logical):
		return m.field("logical sector size", 0, m.logical, "512 or 4096")
	case !sector(m.physical):
		return m.field("physical sector size", 0, m.physical, "512 or 4096")
	case size == 0 || size > maxDisk || size%ondisk.U64(m.logical) != 0:
		return m.field("virtual disk size", 0, size, fmt.Sprintf("a multiple of %d from there to 64 TiB", m.logical))
	}
	m.size = ondisk.I64(size)
	return m.takeLocator(values[itemLocator])
}

// takeLocator decodes the parent locator. The parent flag and the item must agree.
func (m *metadata) takeLocator(item []byte) error {
	switch {
	case item == nil && !m.hasParent():
		return nil
	case item == nil:
		return &ondisk.Refusal{
			Code: "reference", Remedy: "consolidate the checkpoints on the host of the virtual machine",
			Reason: "by the vhdx metadata the disk has a parent, but no parent locator names it",
		}
	case !m.hasParent():
		return &ondisk.Refusal{
			Code: "reference", Remedy: "consolidate the checkpoints or convert the disk to one complete image first",
			Reason: "the vhdx metadata has a parent locator, but its file parameters no parent",
		}
	}
	var err error
	m.locator, err = readLocator(item, m.at)
	return err
}

// blocks returns the number of payload blocks.
func (m *metadata) blocks() int64 { return (m.size + m.blockSize - 1) / m.blockSize }

// ratio returns the number of payload blocks per sector bitmap block. Spec: 2.4.
func (m *metadata) ratio() int64 { return sectorsPerBitmap * m.logical / m.blockSize }

// entries returns the number of BAT entries. In a differencing disk, the last entry belongs to a sector bitmap block.
// Spec: VHDX Format Specification 1.00, "BAT".
func (m *metadata) entries() int64 {
	if m.hasParent() {
		return (m.blocks() + m.ratio() - 1) / m.ratio() * (m.ratio() + 1)
	}
	return m.index(m.blocks()-1) + 1
}

// index returns the BAT index of a payload block. The sector bitmap entry follows the entries of its chunk.
func (m *metadata) index(block int64) int64 { return block + block/m.ratio() }

// blocksBefore returns the number of payload blocks with an entry before entry i.
func (m *metadata) blocksBefore(i int64) int64 {
	return i/(m.ratio()+1)*m.ratio() + i%(m.ratio()+1)
}

// locatorVHDX is the locator type of a VHDX parent. Spec: 2.6.2.6.3.
var locatorVHDX = ondisk.MustGUID("b04aefb7-d19e-4a81-b789-25b8e9445913")

// Keys of a locator, with the paths in the order of preference. parent_linkage2 is ignored, since the specification
// forbids it. A parent that matches only parent_linkage2 is refused as changed.
const keyLinkage = "parent_linkage"

var keyPaths = []string{"relative_path", "volume_path", "absolute_win32_path"}

// maxPairs limits the key-value pairs of a locator; the specification defines five.
const maxPairs = 64

// locatorHeader is the header of a parent locator. Spec: 2.6.2.6.1.
type locatorHeader struct {
	LocatorType   ondisk.GUID
	_             uint16
	KeyValueCount uint16
}

// locatorEntry locates a key and its value. Offsets count from the start of the locator; lengths are in bytes. Spec:
// 2.6.2.6.2.
type locatorEntry struct {
	KeyOffset, ValueOffset uint32
	KeyLength, ValueLength uint16
}

// locator holds the key-value pairs of a parent locator.
type locator struct {
	at     int64 // file offset of the metadata region, for messages
	values map[string]string
}

// readLocator decodes the item of a parent locator.
func readLocator(item []byte, at int64) (*locator, error) {
	l := &locator{at: at, values: map[string]string{}}
	var h locatorHeader
	if len(item) < binary.Size(h) {
		return nil, l.field("length", len(item), fmt.Sprintf("at least %d bytes", binary.Size(h)))
	}
	ondisk.Fill(item, binary.LittleEndian, &h)
	n := int(h.KeyValueCount)
	switch {
	case h.LocatorType != locatorVHDX:
		return nil, fmt.Errorf("vhdx parent locator of type %s: %w; only VHDX parents are",
			h.LocatorType, ondisk.ErrUnsupported)
	case n > maxPairs:
		return nil, fmt.Errorf("vhdx parent locator of %d keys: %w of %d", n, ondisk.ErrLimit, maxPairs)
	case binary.Size(h)+n*binary.Size(locatorEntry{}) > len(item):
		return nil, l.field("key count", n, fmt.Sprintf("entries within its %d bytes", len(item)))
	}
	for i := range n {
		if err := l.add(item, binary.Size(h)+i*binary.Size(locatorEntry{})); err != nil {
			return nil, err
		}
	}
	return l, nil
}

func (l *locator) field(name string, got, want any) error {
	return ondisk.Field("vhdx parent locator", name, l.at, got, want)
}

// add decodes the pair with the entry at byte at of the item.
func (l *locator) add(item []byte, at int) error {
	var e locatorEntry
	ondisk.Fill(item[at:], binary.LittleEndian, &e)
	key, err := l.text(item, e.KeyOffset, e.KeyLength)
	if err != nil {
		return err
	}
	value, err := l.text(item, e.ValueOffset, e.ValueLength)
	if err != nil {
		return err
	}
	if _, twice := l.values[key]; twice {
		return l.field("key", key, "each key once")
	}
	l.values[key] = value
	return nil
}

// text decodes a UTF-16 string of the item.
func (l *locator) text(item []byte, off uint32, n uint16) (string, error) {
	if n == 0 || n%2 != 0 || off == 0 || int64(off)+int64(n) > int64(len(item)) {
		return "", l.field("text", fmt.Sprintf("%d bytes at %d", n, off),
			fmt.Sprintf("UTF-16 within its %d bytes", len(item)))
	}
	s := ondisk.UTF16(item[off:][:n], binary.LittleEndian)
	if strings.ContainsRune(s, 0) {
		return "", l.field("text", s, "no zero inside")
	}
	return s, nil
}

// paths returns the paths of the parent, in order of preference.
func (l *locator) paths() []string {
	if l == nil {
		return nil
	}
	var out []string
	for _, k := range keyPaths {
		if v := l.values[k]; v != "" {
			out = append(out, v)
		}
	}
	return out
}

// ref returns the reference to the parent.
func (l *locator) ref() (driver.ParentRef, error) {
	id, ok := ondisk.ParseGUID(l.values[keyLinkage])
	if !ok {
		return driver.ParentRef{}, l.field(keyLinkage, l.values[keyLinkage], "the GUID of the parent")
	}
	return driver.ParentRef{Names: l.paths(), Format: name, ID: id.String()}, nil
}
