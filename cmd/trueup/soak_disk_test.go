package main

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/poolforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
)

// soakDisk is a disk drawn from a seed. Positions are in sectors of the disk.
type soakDisk struct {
	rng       *rand.Rand
	seed      uint64
	gpt       bool
	sector    int64
	sectors   int64
	cylinders bool         // partitions start at cylinder heads, like on old disks
	heads     int64        // of the CHS bytes
	bootCode  string       // "", lba or chs
	container byte         // type of an extended partition
	parts     []*soakPart  // in disk order; an extended one precedes its logical ones
	chain     []*soakPart  // logical ones in the order of their records
	data      []soakExtent // data outside partitions
}

// soakPart is a partition of a random disk.
type soakPart struct {
	number         int
	kind           string // name in trueup
	start, sectors int64
	record         int64 // of a logical one: position of its EBR
	typ            string
	active         bool
	guid, name     string
	attributes     uint64
	volume         *soakVolume // nil: extended
}

func (p *soakPart) end() int64 { return p.start + p.sectors }

// soakExtent is data after a partition with content; nil: before the first.
type soakExtent struct {
	behind         *soakPart
	start, sectors int64
}

const (
	soakTrack    = 63
	soakCylinder = 255 * soakTrack
	soakEntries  = 128
	gptEntry     = 128
)

func drawSoakDisk(seed uint64) *soakDisk {
	rng := rand.New(rand.NewChaCha8(sha256.Sum256(fmt.Append(nil, "soak ", seed))))
	d := &soakDisk{rng: rng, seed: seed, sector: sectorSize, heads: 255}
	d.gpt = rng.IntN(5) < 2
	if rng.IntN(7) == 0 {
		d.sector = 4096
	}
	switch {
	case d.gpt:
	case d.sector == sectorSize && rng.IntN(2) == 0:
		d.cylinders = true
	case rng.IntN(3) == 0:
		d.heads = 16
	}
	if !d.gpt {
		d.bootCode = []string{"", "", "lba", "chs"}[rng.IntN(4)]
		d.container = []byte{0x05, 0x0f, 0x85}[rng.IntN(3)]
	}

	// Partitions fill the disk from its start.
	at := int64(1)
	n, extended := 1+rng.IntN(4), -1
	if d.gpt {
		at += d.tableSectors()
		n = 1 + rng.IntN(6)
	} else if rng.IntN(10) < 6 {
		extended = rng.IntN(n)
	}
	big := rng.IntN(n)
	for i := range n {
		if i == extended {
			at = d.drawExtended(at)
		} else {
			p := &soakPart{kind: "primary", start: d.drawData(at, d.place(at))}
			if d.gpt {
				p.kind = "gpt"
			}
			at = d.fill(p, i == big)
		}
	}
	tail := []int64{0, rng.Int64N(100), 2048, rng.Int64N(6000)}[rng.IntN(4)]
	d.sectors = d.drawData(at, at+tail)
	if d.gpt {
		d.sectors += d.tableSectors()
	}
	d.number(n)
	return d
}

// tableSectors is the number of sectors of a GPT copy at each end of the disk, without the protective MBR.
func (d *soakDisk) tableSectors() int64 { return 1 + soakEntries*gptEntry/d.sector }

// place is the first possible start of the next partition.
func (d *soakDisk) place(at int64) int64 {
	if d.cylinders {
		if at <= soakTrack {
			return soakTrack
		}
		return (at+soakCylinder-1)/soakCylinder*soakCylinder + d.rng.Int64N(2)*soakCylinder*d.rng.Int64N(2)
	}
	switch d.rng.IntN(6) {
	case 0:
		return at
	case 1:
		return at + 1
	case 2:
		return (at + 2047) / 2048 * 2048
	}
	return at + d.rng.Int64N(3000)
}

// fill gives a partition its volume and size, and returns its end.
func (d *soakDisk) fill(p *soakPart, big bool) int64 {
	p.volume = drawVolume(d.rng, d.sector, fmt.Sprintf("soak %d %d", d.seed, len(d.parts)), big)
	p.sectors = p.volume.size / d.sector
	if d.cylinders {
		end := (p.end() + soakCylinder - 1) / soakCylinder * soakCylinder
		p.sectors = end - p.start
		p.volume.size = p.sectors * d.sector
	}

	// Its boot sector has its true position, or one of the values that systems and tools leave there.
	v := p.volume
	v.hidden = p.start
	other := d.rng.IntN(6)
	switch {
	case other == 0:
		v.hidden = 0
	case other < 3 && p.kind == "logical":
		v.hidden = p.start - p.record
	case other == 1 && v.name != "ntfs": // an NTFS of this kind is refused
		v.hidden = p.start + 7
	}
	types := p.volume.typ
	p.typ = fmt.Sprintf("%x", types[d.rng.IntN(len(types))])
	d.parts = append(d.parts, p)
	return p.end()
}

// drawExtended draws an extended partition with up to six logical ones, and returns its end.
func (d *soakDisk) drawExtended(at int64) int64 {
	box := &soakPart{kind: "extended", start: d.drawData(at, d.place(at)), typ: fmt.Sprintf("%x", d.container)}
	d.parts = append(d.parts, box)
	at = box.start
	n := d.rng.IntN(7)
	big := d.rng.IntN(7)
	for i := range n {
		p := &soakPart{kind: "logical", record: at}
		if i > 0 {
			p.record = d.drawData(at, d.place(at))
		}
		p.start = p.record + soakTrack
		if !d.cylinders {
			p.start = p.record + []int64{1, 2, soakTrack, 1 + d.rng.Int64N(100)}[d.rng.IntN(4)]
		}
		at = d.fill(p, i == big)
		d.chain = append(d.chain, p)
	}
	switch {
	case d.cylinders && n == 0:
		at += soakCylinder
	case !d.cylinders:
		at += 1 + d.rng.Int64N(2)*d.rng.Int64N(3000)
	}
	box.sectors = at - box.start
	if len(d.chain) > 2 && d.rng.IntN(3) == 0 {
		rest := d.chain[1:] // the first record is at the start of the extended partition
		d.rng.Shuffle(len(rest), func(i, j int) { rest[i], rest[j] = rest[j], rest[i] })
	}
	return at
}

// drawData puts data of unknown owner into some of the gaps. It returns the end of the gap.
func (d *soakDisk) drawData(from, to int64) int64 {
	if to > from && d.rng.IntN(3) == 0 {
		e := soakExtent{start: from + d.rng.Int64N(to-from)}
		if d.rng.IntN(2) == 0 {
			e.start = from
		}
		e.sectors = 1 + d.rng.Int64N(min(to-e.start, 200))
		for _, p := range d.parts {
			if p.volume != nil {
				e.behind = p
			}
		}
		d.data = append(d.data, e)
	}
	return to
}

// number gives partitions their slots, with gaps and in any order, and their other fields in the table.
func (d *soakDisk) number(n int) {
	slots := d.rng.Perm(4)
	if d.gpt {
		slots = d.rng.Perm(20)
	}
	slots = slots[:n]
	if d.rng.IntN(2) == 0 {
		slices.Sort(slots)
	}
	for _, p := range d.parts {
		if p.kind == "logical" {
			continue
		}
		p.number, slots = slots[0]+1, slots[1:]
	}
	for i, p := range d.chain {
		p.number = 5 + i
	}
	for _, p := range d.parts {
		if !d.gpt {
			continue
		}
		p.guid = fmt.Sprintf("%08X-%04X-4%03X-8%03X-%012X", d.rng.Uint32(), d.rng.IntN(1<<16), d.rng.IntN(1<<12),
			d.rng.IntN(1<<12), d.rng.Int64N(1<<48))
		p.typ = []string{
			"0FC63DAF-8483-4772-8E79-3D69D8477DE4", "EBD0A0A2-B9E5-4433-87C0-68B6B72699C7",
			"933AC7E1-2EB4-4F13-B844-0E14E2AEF915",
		}[d.rng.IntN(3)]
		p.name = []string{"", "Basic data partition", "Größe", fmt.Sprintf("name %d", d.rng.IntN(1000))}[d.rng.IntN(4)]
		p.attributes = []uint64{0, 1, 4, 1 << 60, 1<<63 | 1<<62 | 1}[d.rng.IntN(5)]
	}
	if first := d.parts[0]; first.kind == "primary" && first.volume.fileSystem() != "" && d.rng.IntN(2) == 0 {
		first.active = true
	}
}

// make builds the disk as a raw file in dir.
func (d *soakDisk) make(t testing.TB, dir string) string {
	t.Helper()
	raw := filepath.Join(dir, "source.raw")
	disktest.MakeBlank(t, raw, d.sectors*d.sector)
	if d.gpt {
		f := tableforge.NewGPT(d.sector, d.sectors, soakEntries)
		size := int64(len(f))
		last := size - d.tableSectors()*d.sector
		for header, entries := range map[int64]int64{d.sector: 2 * d.sector, size - d.sector: last} {
			for _, p := range d.parts {
				entry := f[entries+int64(p.number-1)*gptEntry:]
				entry.Put(0, guidBytes(t, p.typ))
				entry.Put(16, guidBytes(t, p.guid))
				entry.U64(32, uint64(p.start))
				entry.U64(40, uint64(p.end()-1))
				entry.U64(48, p.attributes)
				for i, u := range utf16.Encode([]rune(p.name)) {
					entry.U16(56+2*int64(i), u)
				}
			}
			tableforge.SealGPT(f, header, d.sector)
		}
		disktest.WriteAt(t, raw, 0, f[:(1+d.tableSectors())*d.sector])
		disktest.WriteAt(t, raw, last, f[last:])
	} else {
		d.writeMBR(t, raw)
	}
	for i, e := range d.data {
		disktest.WriteAt(t, raw, e.start*d.sector, noise(fmt.Sprintf("gap %d", i), int(e.sectors*d.sector)))
	}
	for _, p := range d.parts {
		if p.volume != nil {
			part := filepath.Join(dir, "part")
			p.volume.make(t, part)
			placeVolume(t, part, raw, p.start*d.sector)
		}
	}
	return raw
}

// The tables of random disks are forged, since no tool writes chains in another order than the disk's, or disks of
// 4096-byte sectors. The tools read them before trueup does.

// writeMBR writes sector 0 and the chain of extended boot records, one for each logical partition, or an empty one. An
// entry of a record is relative to that record, a link to the start of the extended partition. The size of a link
// covers the record and its partition.
func (d *soakDisk) writeMBR(t testing.TB, raw string) {
	t.Helper()
	sector := make([]byte, sectorSize)
	switch d.bootCode {
	case "lba":
		copy(sector, lbaBootCode(t))
	case "chs":
		copy(sector, chsBootCode(t))
	}
	signature, err := hex.DecodeString(strings.TrimPrefix(diskSignature, "0x"))
	require.NoError(t, err)
	binary.LittleEndian.PutUint32(sector[440:], binary.BigEndian.Uint32(signature))
	var box *soakPart // the extended partition
	for _, p := range d.parts {
		if p.kind == "logical" {
			continue
		}
		entry := sector[mbrEntryAt+(p.number-1)*mbrEntrySize:]
		d.putEntry(entry, p.typeByte(t), p.start, p.sectors, p.start)
		if p.active {
			entry[0] = 0x80
		}
		if p.kind == "extended" {
			box = p
		}
	}
	binary.LittleEndian.PutUint16(sector[mbrSignatureAt:], 0xaa55)
	disktest.WriteAt(t, raw, 0, sector)
	if box == nil {
		return
	}

	place := box.start
	for i := range max(1, len(d.chain)) {
		record := make([]byte, sectorSize)
		if i < len(d.chain) {
			p := d.chain[i]
			place = p.record
			d.putEntry(record[mbrEntryAt:], p.typeByte(t), p.start, p.sectors, p.start-p.record)
		}
		if i+1 < len(d.chain) {
			next := d.chain[i+1]
			d.putEntry(record[mbrEntryAt+mbrEntrySize:], 0x05, next.record, next.end()-next.record,
				next.record-box.start)
		}
		binary.LittleEndian.PutUint16(record[mbrSignatureAt:], 0xaa55)
		disktest.WriteAt(t, raw, place*d.sector, record)
	}
}

func (p *soakPart) typeByte(t testing.TB) byte {
	t.Helper()
	typ, err := strconv.ParseUint(p.typ, 16, 8)
	require.NoError(t, err)
	return byte(typ)
}

// putEntry writes an entry: start is its position on the disk, and lba the value in the entry.
func (d *soakDisk) putEntry(entry []byte, typ byte, start, sectors, lba int64) {
	copy(entry[1:], d.chs(start))
	entry[4] = typ
	copy(entry[5:], d.chs(start+sectors-1))
	binary.LittleEndian.PutUint32(entry[8:], uint32(lba))
	binary.LittleEndian.PutUint32(entry[12:], uint32(sectors))
}

// chs returns the CHS bytes of a sector.
func (d *soakDisk) chs(lba int64) []byte {
	track := lba / soakTrack
	cyl := track / d.heads
	if cyl > 1023 {
		return []byte{0xfe, 0xff, 0xff}
	}
	return []byte{byte(track % d.heads), byte(lba%soakTrack+1) | byte(cyl>>8<<6), byte(cyl)}
}

// guidBytes is the form on disk: the first three fields are little-endian.
func guidBytes(t testing.TB, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(text, "-", ""))
	require.NoError(t, err)
	return []byte{b[3], b[2], b[1], b[0], b[5], b[4], b[7], b[6], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]}
}

// wantTable is the expected output of a tool when partitions start at starts.
func (d *soakDisk) wantTable(starts map[int]int64) map[int]soakEntry {
	entries := map[int]soakEntry{}
	for _, p := range d.parts {
		e := soakEntry{
			start: starts[p.number], sectors: p.sectors, typ: p.typ, active: p.active, guid: p.guid, name: p.name,
		}
		if d.gpt {
			e.attributes = fmt.Sprintf("%016X", p.attributes)
		}
		entries[p.number] = e
	}
	return entries
}

// starts returns the starts of the partitions of the source, by number.
func (d *soakDisk) starts() map[int]int64 {
	starts := map[int]int64{}
	for _, p := range d.parts {
		starts[p.number] = p.start
	}
	return starts
}

// soakVolume is the content of a partition of a random disk.
type soakVolume struct {
	soakKind
	sector int64
	size   int64             // bytes
	hidden int64             // position in its boot sector, in sectors
	files  map[string][]byte // by path
	noise  string            // seed of the bytes of a partition that has no file system
	group  string            // name of its LVM volume group
}

// soakKind is a kind of volume, and the commands that make one.
type soakKind struct {
	name        string
	least, most int64  // bytes
	typ         string // its MBR types, one byte each
	flat        bool   // its tools cannot make folders
	only512     bool   // does not fit small disks of 4096-byte sectors
	bootSector  bool   // its boot sector contains its position
}

const (
	kib = 1 << 10
	mib = 1 << 20
)

// soakKinds are the contents of random partitions. The sizes are near the minimum of the tools, because a disk has
// several.
var soakKinds = []soakKind{
	{name: "ext2", least: 2 * mib, most: 6 * mib, typ: "\x83"},
	// 2048 blocks for a journal, also with blocks of 4 KiB
	{name: "ext3", least: 9 * mib, most: 12 * mib, typ: "\x83"},
	{name: "ext4", least: 6 * mib, most: 12 * mib, typ: "\x83"},
	{name: "fat12", least: 2 * mib, most: 4 * mib, typ: "\x01\x06", bootSector: true, only512: true},
	{name: "fat16", least: 18 * mib, most: 24 * mib, typ: "\x04\x06\x0e", bootSector: true},
	{name: "fat32", least: 34 * mib, most: 36 * mib, typ: "\x0b\x0c", bootSector: true, only512: true},
	{name: "ntfs", least: 4 * mib, most: 12 * mib, typ: "\x07", bootSector: true, flat: true},
	{name: "xfs", least: 32 * mib, most: 34 * mib, typ: "\x83"},
	{name: "btrfs", least: 18 * mib, most: 22 * mib, typ: "\x83"},
	{name: "lvm", least: 10 * mib, most: 12 * mib, typ: "\x8e", only512: true},
	{name: "swap", least: 64 * kib, most: 2 * mib, typ: "\x82"},
	{name: "noise", least: 4 * kib, most: 1 * mib, typ: "\xda\x83"},
}

// drawVolume draws a kind, its size and its files. To keep a disk with many partitions small, only big draws a large
// kind.
func drawVolume(rng *rand.Rand, sector int64, name string, big bool) *soakVolume {
	kinds := slices.DeleteFunc(slices.Clone(soakKinds), func(k soakKind) bool {
		return k.only512 && sector != sectorSize || !big && k.least > 12*mib
	})
	v := &soakVolume{
		soakKind: kinds[rng.IntN(len(kinds))], sector: sector, noise: name,
		group: strings.ReplaceAll(name, " ", "_"),
	}
	v.size = v.least + rng.Int64N((v.most-v.least)/sector)*sector
	if v.fileSystem() == "" {
		return v
	}
	// Names that no file system changes make the trees comparable.
	v.files = map[string][]byte{}
	dirs := []string{""}
	for range rng.IntN(4) {
		if !v.flat {
			dirs = append(dirs, dirs[rng.IntN(len(dirs))]+fmt.Sprintf("folder-%d/", rng.IntN(100)))
		}
	}
	for i := range 3 + rng.IntN(6) {
		name := fmt.Sprintf("%sfile-%d.%d", dirs[rng.IntN(len(dirs))], i, rng.IntN(1000))
		v.files[name] = noise(fmt.Sprint(rng.Uint64()), rng.IntN(40_000))
	}
	return v
}

// fileSystem returns the type for mount, or an empty string without a file system.
func (v *soakVolume) fileSystem() string {
	switch v.name {
	case "fat12", "fat16", "fat32":
		return "vfat"
	case "lvm":
		return "ext4"
	case "swap", "noise":
		return ""
	}
	return v.name
}

// fileSums are the checksums of files by their paths, as sha256sum prints them.
func fileSums(files map[string][]byte) []string {
	var lines []string
	for name, data := range files {
		lines = append(lines, fmt.Sprintf("%x  ./%s", sha256.Sum256(data), name))
	}
	slices.Sort(lines)
	return lines
}

// make builds the volume in a file of its own.
func (v *soakVolume) make(t testing.TB, part string) {
	t.Helper()
	disktest.MakeBlank(t, part, v.size)
	tree := filepath.Dir(part) + "/tree"
	require.NoError(t, os.Mkdir(tree, 0o755))
	for name, data := range v.files {
		path := filepath.Join(tree, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, data, 0o644))
	}
	switch v.name {
	case "ext2", "ext3", "ext4":
		disktest.Run(t, "mke2fs", "-q", "-F", "-t", v.name, "-b", fmt.Sprint(max(v.sector, kib)), "-d", tree, part)
	case "fat12", "fat16", "fat32":
		cluster := map[string]string{"fat12": "8", "fat16": "1", "fat32": "1"}[v.name]
		if v.name == "fat16" && v.sector == sectorSize {
			cluster = "4"
		}
		disktest.Run(t, "mkfs.fat", "-F", v.name[3:], "-h", fmt.Sprint(v.hidden), "-g", "255/63", "-s", cluster,
			"-S", fmt.Sprint(v.sector), part)
		entries, err := filepath.Glob(tree + "/*")
		require.NoError(t, err)
		disktest.Run(t, "mcopy", append(append([]string{"-s", "-i", part}, entries...), "::/")...)
	case "ntfs":
		disktest.Run(t, "mkntfs", "-q", "-F", "-Q", "-p", fmt.Sprint(v.hidden), "-H", "255", "-S", "63", "-s",
			fmt.Sprint(v.sector), "-c", "4096", part)
		for _, name := range slices.Sorted(maps.Keys(v.files)) {
			disktest.Run(t, "ntfscp", "-q", part, filepath.Join(tree, name), "/"+name)
		}
	case "xfs":
		// Without this option, it makes none below 300 MiB, despite its messages.
		disktest.Run(t, "mkfs.xfs", "--unsupported", "-q", "-s", fmt.Sprintf("size=%d", v.sector), "-p",
			v.prototype(t, part, tree), part)
	case "btrfs":
		disktest.Run(t, "mkfs.btrfs", "-q", "--mixed", "--rootdir", tree, part)
	case "lvm":
		v.makeLVM(t, part, tree)
	case "swap":
		disktest.Run(t, "mkswap", part)
	default:
		disktest.WriteAt(t, part, 0, noise(v.noise, int(v.size)))
	}
	require.NoError(t, os.RemoveAll(tree))
}

// prototype writes the file from which mkfs.xfs fills a volume, and returns its name. Format: mkfs.xfs(8), option -p.
func (v *soakVolume) prototype(t testing.TB, part, tree string) string {
	t.Helper()
	var text strings.Builder
	text.WriteString("/none\n0 0\nd--755 0 0\n")
	v.prototypeOf(t, &text, tree)
	text.WriteString("$\n")
	path := filepath.Dir(part) + "/prototype"
	require.NoError(t, os.WriteFile(path, []byte(text.String()), 0o644))
	return path
}

// prototypeOf lists a folder. drawVolume bounds the depth.
func (v *soakVolume) prototypeOf(t testing.TB, text *strings.Builder, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		if !entry.IsDir() {
			fmt.Fprintf(text, "%s ---644 0 0 %s\n", entry.Name(), path)
			continue
		}
		fmt.Fprintf(text, "%s d--755 0 0\n", entry.Name())
		v.prototypeOf(t, text, path)
		text.WriteString("$\n")
	}
}

// Offsets in a physical volume. The kernel and the tools of the guest must find the volume group in the result and
// activate it.
const (
	lvmExtent    = 64 * kib
	lvmDataStart = poolforge.LVMPeStart
)

// lvmUUID returns an identifier in LVM's format that depends only on the name.
func lvmUUID(name string) string {
	const letters = "0123456789abcdefghijklmnopqrstuv"
	var text []byte
	for i, b := range noise(name, 32) {
		if i == 6 || i > 6 && i < 30 && (i-6)%4 == 0 {
			text = append(text, '-')
		}
		text = append(text, letters[b%32])
	}
	return string(text)
}

// makeLVM forges a volume group of one physical and one logical volume, with an ext4 on it: LVM itself needs block
// devices.
func (v *soakVolume) makeLVM(t testing.TB, part, tree string) {
	t.Helper()
	extents := (v.size - lvmDataStart) / lvmExtent
	lv := part + "-lv"
	disktest.MakeBlank(t, lv, extents*lvmExtent)
	disktest.Run(t, "mke2fs", "-q", "-F", "-t", "ext4", "-d", tree, lv)
	placeVolume(t, lv, part, lvmDataStart)
	pv := make(forge.Bytes, v.size)
	text := fmt.Sprintf(lvmText, v.group, lvmUUID("vg "+v.group), lvmUUID("pv "+v.group), lvmUUID("lv "+v.group),
		lvmExtent/sectorSize, lvmDataStart/sectorSize, v.size/sectorSize, extents)
	poolforge.PutLVM(pv, text, 512)
	pv.Text(poolforge.LVMUUID, strings.ReplaceAll(lvmUUID("pv "+v.group), "-", ""))
	pv.U32(poolforge.LVMMetaArea+32, 2) // version of the extension
	pv.U32(poolforge.LVMMetaArea+36, 1) // in use
	poolforge.SealLVM(pv)
	disktest.WriteAt(t, part, 0, pv[:lvmDataStart])
}

// lvmText is the metadata of the group.
const lvmText = `%[1]s {
id = "%[2]s"
seqno = 1
format = "lvm2"
status = ["RESIZEABLE", "READ", "WRITE"]
flags = []
extent_size = %[5]d
max_lv = 0
max_pv = 0
metadata_copies = 0
physical_volumes {
pv0 {
id = "%[3]s"
device = "/dev/none"
status = ["ALLOCATABLE"]
flags = []
dev_size = %[7]d
pe_start = %[6]d
pe_count = %[8]d
}
}
logical_volumes {
data {
id = "%[4]s"
status = ["READ", "WRITE", "VISIBLE"]
flags = []
segment_count = 1
segment1 {
start_extent = 0
extent_count = %[8]d
type = "striped"
stripe_count = 1
stripes = ["pv0", 0]
}
}
}
}
contents = "Text Format Volume Group"
version = 1
description = ""
creation_host = "test"
creation_time = 1000000000
`

// placeVolume copies the file part to byte offset off of a disk, leaves out holes, and removes the file.
func placeVolume(t testing.TB, part, raw string, off int64) {
	t.Helper()
	disktest.Run(t, "dd", "if="+part, "of="+raw, "bs=65536", "conv=sparse,notrunc", "oflag=seek_bytes",
		fmt.Sprintf("seek=%d", off), "status=none")
	require.NoError(t, os.Remove(part))
}
