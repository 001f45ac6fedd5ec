package main

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
)

// soakDisk is a disk drawn from a seed. Positions are in sectors of the disk.
type soakDisk struct {
	rng       *rand.Rand
	seed      uint64
	gpt       bool
	sector    int64
	sectors   int64
	cylinders bool         // partitions start at the heads of cylinders, as they did when cylinders were real
	heads     int64        // of the CHS bytes
	bootCode  string       // "", lba or chs
	container byte         // type of an extended partition
	parts     []*soakPart  // in disk order; an extended one stands before its logical ones
	chain     []*soakPart  // logical ones in the order of their records
	data      []soakExtent // that no partition owns
}

// soakPart is a partition of a random disk.
type soakPart struct {
	number         int
	kind           string // as trueup calls it
	start, sectors int64
	record         int64 // of a logical one: where its EBR is
	typ            string
	active         bool
	guid, name     string
	attributes     uint64
	volume         *soakVolume // nil: extended
}

func (p *soakPart) end() int64 { return p.start + p.sectors }

// soakExtent is a piece of data behind a partition that has content; nil: in front of the first.
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

// place is where something can start that comes next.
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

	// Its boot sector tells the truth about its place, or one of the values that systems and tools leave there.
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

// drawExtended draws an extended partition with none to six logical ones, and returns its end.
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
		rest := d.chain[1:] // the first record is where the extended partition starts
		d.rng.Shuffle(len(rest), func(i, j int) { rest[i], rest[j] = rest[j], rest[i] })
	}
	return at
}

// drawData puts data into some of the gaps: whose it is, is not known. It returns the end of the gap.
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

// number gives partitions their slots, with holes and in any order, and what else a table says about them.
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

// The tables of random disks are forged, since no tool writes chains in another order than that of the disk, or disks
// of 4096-byte sectors. The tools read them before trueup does.

// writeMBR writes sector 0 and the chain of extended boot records, one for each logical partition, or an empty one. An
// entry of a record counts from that record, a link from the start of the extended partition. The size of a link covers
// the record and its partition.
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

// putEntry writes an entry: start is where it lies on the disk, and lba what the entry says about it.
func (d *soakDisk) putEntry(entry []byte, typ byte, start, sectors, lba int64) {
	copy(entry[1:], d.chs(start))
	entry[4] = typ
	copy(entry[5:], d.chs(start+sectors-1))
	binary.LittleEndian.PutUint32(entry[8:], uint32(lba))
	binary.LittleEndian.PutUint32(entry[12:], uint32(sectors))
}

// chs are the CHS bytes of a sector.
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

// wantTable is what a tool has to read from the disk when partitions start where starts says.
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

// starts are those of the source.
func (d *soakDisk) starts() map[int]int64 {
	starts := map[int]int64{}
	for _, p := range d.parts {
		starts[p.number] = p.start
	}
	return starts
}
