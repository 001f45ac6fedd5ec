package table

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// gptHeader is the first 92 bytes of LBA 1 and of the last LBA. Spec: UEFI 2.10, 5.3.2.
type gptHeader struct {
	Magic       [8]byte // "EFI PART"
	Revision    uint32
	HeaderSize  uint32
	HeaderCRC   uint32
	_           uint32
	MyLBA       uint64
	AltLBA      uint64
	FirstUsable uint64
	LastUsable  uint64
	DiskGUID    ondisk.GUID
	EntriesLBA  uint64
	NumEntries  uint32
	EntrySize   uint32
	EntriesCRC  uint32
}

// gptEntry is the defined part of an entry. Spec: UEFI 2.10, 5.3.3.
type gptEntry struct {
	Type, GUID ondisk.GUID
	First      uint64
	Last       uint64
	Attributes uint64
	Name       [72]byte // UTF-16
}

// noGUID is the GUID of an entry without one.
var noGUID = ondisk.GUID{}.String()

const (
	gptMagic     = "EFI PART"
	minHeader    = 92
	maxEntries   = 16384
	minEntrySize = 128
	maxEntrySize = 4096
	atHeaderSize = 12
	atHeaderCRC  = 16
	atMyLBA      = 24
	atAltLBA     = 32
	atUsable     = 40
	atEntriesLBA = 72
	atNumEntries = 80
	atEntrySize  = 84
	atEntriesCRC = 88
)

// gpt is one copy of a table.
type gpt struct {
	Table
	d      disk.Disk
	at     int64 // byte offset of the header
	header gptHeader
	raw    []byte // the header, HeaderSize bytes
	bare   bool   // only the checksums are verified
	cut    bool   // a primary from a larger disk: partitions and backup may lie past the end
}

// array returns the range of the entries of this copy.
func (g *gpt) array() disk.Range {
	return disk.Range{
		Off: ondisk.I64(g.header.EntriesLBA) * g.SectorSize,
		Len: int64(g.header.NumEntries) * int64(g.header.EntrySize),
	}
}

// readGPT tries all sector sizes, the disk's own first, since the position of the header implies the sector size. A
// sound table of one size outweighs a broken one of another. Either copy may be damaged; two valid copies that differ
// are an issue.
func readGPT(d disk.Disk) (*gpt, error) {
	first := ondisk.ErrNoMatch
	sizes := []int64{d.SectorSize()}
	for _, s := range disk.SectorSizes {
		if s != sizes[0] {
			sizes = append(sizes, s)
		}
	}
	for _, s := range sizes {
		g, err := readGPTWith(d, s)
		switch {
		case err == nil:
			return g, g.rivals()
		case isNoMatch(err):
			continue
		case !errors.Is(err, ondisk.ErrFormat):
			return nil, err
		case isNoMatch(first):
			first = err
		}
	}
	return nil, first
}

// rivals refuses a move if the disk also has a sound table for another sector size: a machine reads the table for the
// sector size that it presents.
func (g *gpt) rivals() error {
	for _, s := range disk.SectorSizes {
		if s == g.SectorSize {
			continue
		}
		switch _, err := readCopy(g.d, s, s, true); {
		case err == nil:
			g.Issues = append(g.Issues, ondisk.Issue{
				Code: "gpt-sector-sizes", Effect: ondisk.Refuse, OnMove: true,
				Text: fmt.Sprintf("the disk has a GPT for sectors of %d bytes and another one for sectors of %d: "+
					"which one counts depends on the sector size that the machine presents", g.SectorSize, s),
				Remedy: "wipe the stale table in the guest; trueup convert copies the disk as it is",
			})
		case !isNoMatch(err) && !errors.Is(err, ondisk.ErrFormat):
			return err
		}
	}
	return nil
}

func readGPTWith(d disk.Disk, sector int64) (*gpt, error) {
	end := units.AlignDown(d.Size(), sector)
	first, err1 := readCopy(d, sector, sector, false)
	last, err2 := readCopy(d, sector, end-sector, err1 == nil) // one list of partitions is enough
	c := copies{disk: d.Size(), sector: sector, end: end, valid: [2]*gpt{first, last}}
	switch {
	case err1 == nil && first.cut:
		first.checkCut()
	case err1 == nil && err2 == nil:
		if !first.same(last) {
			first.broken(last.at, "backup table", "another valid table", "the same as the primary")
		}
	case err1 == nil:
		if err := c.findEnlarged(first); err != nil {
			return nil, err
		}
		first.faultyBackup(&c, err2, end/sector-1)
	case err2 == nil:
		if isNoMatch(err1) {
			err1 = fmt.Errorf("no header at %#x", sector)
		}
		last.warn(CodePrimary, fmt.Sprintf("the primary GPT is invalid, the backup is used: %v", err1))
		first = last
	case isNoMatch(err1) || !isNoMatch(err2) && !errors.Is(err2, ondisk.ErrFormat):
		return nil, err2
	default:
		return nil, err1
	}
	if first.gpt = &c; c.crossed() {
		first.warn(codeCrossed,
			fmt.Sprintf("the GPT headers at LBA 1 and LBA %d name LBA %d and LBA %d as the place of the other",
				c.valid[backup].header.MyLBA, first.header.AltLBA, c.valid[backup].header.AltLBA))
	}
	return first, c.prepare(first)
}

// same reports whether two copies describe the same partitions.
func (g *gpt) same(o *gpt) bool {
	a, b := g.header, o.header
	return a.DiskGUID == b.DiskGUID && a.EntriesCRC == b.EntriesCRC && a.NumEntries == b.NumEntries &&
		a.EntrySize == b.EntrySize && a.FirstUsable == b.FirstUsable && a.LastUsable == b.LastUsable
}

// faultyBackup reports the fault of the backup. An enlarged disk has a valid backup in its middle. last is the last
// LBA.
func (g *gpt) faultyBackup(c *copies, err error, last int64) {
	switch {
	case c.backupMoves() || c.valid[backup] != nil:
		text := "the first move puts it there"
		if !c.enlarged {
			text = "the last sector has other content, and a move leaves the backup in place"
		}
		g.Issues = append(g.Issues, ondisk.Issue{
			Code: CodeBackup, Effect: ondisk.Note,
			Text: fmt.Sprintf("the backup GPT is at LBA %d, not in the last sector (LBA %d): the disk was enlarged; %s",
				g.header.AltLBA, last, text),
		})
	case !isNoMatch(err):
		g.warn(CodeBackup, fmt.Sprintf("the backup GPT is invalid: %v", err))
	default:
		g.warn(CodeBackup, fmt.Sprintf("the backup GPT is invalid: no header in the last sector (at %#x)",
			last*g.SectorSize))
	}
}

// Codes of the issues for damage that prevents a rewrite of entries.
const (
	CodePrimary = "gpt-primary"
	CodeBackup  = "gpt-backup"
	codeCrossed = "gpt-alternate"
)

// Torn lists these codes.
var Torn = []string{CodePrimary, CodeBackup, codeCrossed}

// warn adds a warning for damage that the other copy compensates.
func (g *gpt) warn(code, text string) {
	i := ondisk.Issue{Code: code, Effect: ondisk.Warn, Text: text, Remedy: askToMend}
	if g.gpt != nil && g.gpt.blocked() {
		i.Remedy = mendFirst
	}
	g.Issues = append(g.Issues, i)
}

// readCopy reads and checks the table with its header at byte off. bare omits the partitions.
func readCopy(d disk.Disk, sector, off int64, bare bool) (*gpt, error) {
	g := &gpt{Table: Table{Scheme: GPT, SectorSize: sector}, d: d, at: off, bare: bare}
	if off < sector || off+sector > d.Size() {
		return nil, ondisk.ErrNoMatch
	}
	if _, err := ondisk.Decode(d, off, &g.header); err != nil {
		return nil, err
	}
	if string(g.header.Magic[:]) != gptMagic {
		return nil, ondisk.ErrNoMatch
	}
	if err := g.checkHeader(); err != nil {
		return nil, err
	}
	g.GUID = g.header.DiskGUID.String()
	if err := g.readEntries(); err != nil {
		return nil, err
	}
	return g, nil
}

func (g *gpt) field(name string, at int64, got, want any) error {
	return ondisk.Field("gpt header", name, g.at+at, got, want)
}

func (g *gpt) checkHeader() error {
	h := g.header
	if h.HeaderSize < minHeader || int64(h.HeaderSize) > g.SectorSize {
		return g.field("header size", atHeaderSize, h.HeaderSize, fmt.Sprintf("%d to %d", minHeader, g.SectorSize))
	}
	whole, err := ondisk.Bytes(g.d, g.at, int64(h.HeaderSize))
	if err != nil {
		return err
	}
	clear(whole[atHeaderCRC : atHeaderCRC+4])
	if sum := crc32.ChecksumIEEE(whole); sum != h.HeaderCRC {
		return g.field("header crc32", atHeaderCRC, fmt.Sprintf("%#08x", h.HeaderCRC), fmt.Sprintf("%#08x", sum))
	}
	binary.LittleEndian.PutUint32(whole[atHeaderCRC:], h.HeaderCRC)
	g.raw = whole
	sectors := ondisk.U64(g.d.Size() / g.SectorSize)
	size := uint64(h.NumEntries) * uint64(h.EntrySize)
	switch {
	case h.MyLBA != ondisk.U64(g.at/g.SectorSize):
		return g.field("my LBA", atMyLBA, h.MyLBA, g.at/g.SectorSize)
	case h.NumEntries == 0 || h.NumEntries > maxEntries:
		return g.field("number of entries", atNumEntries, h.NumEntries, fmt.Sprintf("1 to %d", maxEntries))
	case h.EntrySize < minEntrySize || h.EntrySize > maxEntrySize || !units.IsPowerOfTwo(int64(h.EntrySize)):
		return g.field("entry size", atEntrySize, h.EntrySize, fmt.Sprintf("128, 256, … %d", maxEntrySize))
	case h.FirstUsable > h.LastUsable || (h.LastUsable >= sectors && !g.wasLonger(sectors)):
		return g.field("usable LBAs", atUsable, fmt.Sprintf("%d to %d", h.FirstUsable, h.LastUsable),
			fmt.Sprintf("a range within %d sectors", sectors))
	case h.EntriesLBA < 2 || h.EntriesLBA >= sectors || size > (sectors-h.EntriesLBA)*ondisk.U64(g.SectorSize):
		return g.field("entries LBA", atEntriesLBA, h.EntriesLBA,
			fmt.Sprintf("a place for %d bytes within %d sectors", size, sectors))
	}
	return g.checkArray()
}

// wasLonger reports whether a primary is from a larger disk that was truncated: its backup is past the end, and its
// usable space ends in front of the backup.
func (g *gpt) wasLonger(sectors uint64) bool {
	h := g.header
	g.cut = g.at == g.SectorSize && h.AltLBA >= sectors && h.AltLBA < ondisk.U64(math.MaxInt64/g.SectorSize) &&
		h.LastUsable < h.AltLBA
	return g.cut
}

// checkArray requires the entries to be outside of the space for partitions, on the side of their header.
func (g *gpt) checkArray() error {
	h, a := g.header, g.array()
	first, last := ondisk.I64(h.FirstUsable)*g.SectorSize, ondisk.I64(h.LastUsable+1)*g.SectorSize
	switch {
	case g.at < first && a.End() > first:
		return g.field("entries LBA", atEntriesLBA, h.EntriesLBA,
			fmt.Sprintf("a place for %d bytes in front of the first usable LBA %d", a.Len, h.FirstUsable))
	case g.at >= first && (g.at < last || a.Off < last || a.End() > g.at):
		return g.field("entries LBA", atEntriesLBA, h.EntriesLBA,
			fmt.Sprintf("a place for %d bytes between the last usable LBA %d and the header", a.Len, h.LastUsable))
	}
	return nil
}

// readEntries reads the array in pieces: its largest legal size is 64 MiB.
func (g *gpt) readEntries() error {
	h := g.header
	off := g.array().Off
	perPiece := int64(64<<10) / int64(h.EntrySize)
	sum := crc32.NewIEEE()
	for i := int64(0); i < int64(h.NumEntries); i += perPiece {
		n := min(perPiece, int64(h.NumEntries)-i)
		b, err := ondisk.Bytes(g.d, off+i*int64(h.EntrySize), n*int64(h.EntrySize))
		if err != nil {
			return err
		}
		sum.Write(b)
		for j := int64(0); j < n && !g.bare; j++ {
			if err := g.addEntry(int(i+j)+1, b[j*int64(h.EntrySize):]); err != nil {
				return err
			}
		}
	}
	if sum.Sum32() != h.EntriesCRC {
		return g.field("entries crc32", atEntriesCRC, fmt.Sprintf("%#08x", h.EntriesCRC),
			fmt.Sprintf("%#08x", sum.Sum32()))
	}
	g.checkEntries()
	return nil
}

func (g *gpt) addEntry(number int, b []byte) error {
	var e gptEntry
	if ondisk.IsZero(b[:len(e.Type)]) { // unused, like most entries
		return nil
	}
	ondisk.Fill(b, binary.LittleEndian, &e)
	p := Partition{
		Number: number, Kind: Entry, TypeGUID: e.Type.String(), GUID: e.GUID.String(),
		Name: ondisk.UTF16Z(e.Name[:], binary.LittleEndian), LegacyBoot: e.Attributes&4 != 0,
	}
	most := ondisk.U64(math.MaxInt64 / g.SectorSize) // so that bytes stay within 63 bits
	if e.First > e.Last || e.Last >= most {
		g.brokenIn("gpt entry", g.array().Off+int64(number-1)*int64(g.header.EntrySize)+32, number, "LBAs",
			fmt.Sprintf("%d to %d", e.First, e.Last), "a start that is not above the end")
		return nil
	}
	p.Range = disk.Range{Off: ondisk.I64(e.First) * g.SectorSize, Len: ondisk.I64(e.Last-e.First+1) * g.SectorSize}
	g.Partitions = append(g.Partitions, p)
	return nil
}

// checkEntries reports partitions outside of the usable range and overlaps.
func (g *gpt) checkEntries() {
	h := g.header
	usable := disk.Range{
		Off: ondisk.I64(h.FirstUsable) * g.SectorSize,
		Len: ondisk.I64(h.LastUsable-h.FirstUsable+1) * g.SectorSize,
	}
	sorted := g.byOffset()
	seen := map[string]int{}
	for i, k := range sorted {
		p := &g.Partitions[k]
		at := g.array().Off + int64(p.Number-1)*int64(h.EntrySize)
		lbas := fmt.Sprintf("%d to %d", p.Off/g.SectorSize, p.End()/g.SectorSize-1)
		if n := seen[p.GUID]; n != 0 && p.GUID != noGUID {
			g.brokenIn("gpt entry", at+16, p.Number, "partition GUID", p.GUID,
				fmt.Sprintf("another one than that of partition %d", n))
		}
		seen[p.GUID] = p.Number
		if !usable.Contains(p.Range) {
			g.brokenIn("gpt entry", at+32, p.Number, "LBAs", lbas,
				fmt.Sprintf("within %d to %d", h.FirstUsable, h.LastUsable))
		}
		if i > 0 && p.Overlaps(g.Partitions[sorted[i-1]].Range) {
			g.brokenIn("gpt entry", at+32, p.Number, "LBAs", lbas,
				fmt.Sprintf("a place apart from partition %d", g.Partitions[sorted[i-1]].Number))
		}
	}
}

// checkCut reports partitions and the backup past the end of a truncated disk.
func (g *gpt) checkCut() {
	sectors := g.d.Size() / g.SectorSize
	missing := false
	for _, p := range g.Partitions {
		if p.End() > g.d.Size() {
			missing = true
			at := g.array().Off + int64(p.Number-1)*int64(g.header.EntrySize)
			g.brokenIn("gpt entry", at+32, p.Number, "LBAs",
				fmt.Sprintf("%d to %d", p.Off/g.SectorSize, p.End()/g.SectorSize-1),
				fmt.Sprintf("within the %d sectors of the disk", sectors))
		}
	}
	g.cutShort((ondisk.I64(g.header.AltLBA)+1)*g.SectorSize, g.d.Size(), missing,
		g.field("alternate LBA", atAltLBA, g.header.AltLBA,
			fmt.Sprintf("the place of a backup within %d sectors", sectors)))
}
