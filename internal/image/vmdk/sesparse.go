package vmdk

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
)

// seExtent is an opened space-efficient sparse extent. Places are in bytes.
type seExtent struct {
	file             driver.File
	tabs             *ondisk.Pages
	bytes            int64 // of the disk
	gd, gts, grains0 int64 // begin of the directory, of the grain tables, of the grains
	holed
}

func (x *seExtent) size() int64            { return x.bytes }
func (x *seExtent) unclean() *ondisk.Issue { return nil } // refused when it is opened

// tables returns the number of grain tables that the directory has entries for.
func (x *seExtent) tables() int64 { return (x.bytes + seCovers - 1) / seCovers }

// run returns the map: directory entry, table entry, grain.
func (x *seExtent) run(off int64) (disk.Run, error) {
	loc, zeros, err := x.table(off / seCovers)
	if err != nil {
		return disk.Run{}, err
	}
	if loc == 0 {
		return x.hole(off, zeros*seCovers-off%seCovers), nil
	}
	first := off % seCovers / seGrainBytes
	entries := make([]byte,
		8*min(seGTEs-first, (x.bytes+seGrainBytes-1-off/seGrainBytes*seGrainBytes)/seGrainBytes, maxEntries))
	if err := x.tabs.Read(entries, loc+8*first); err != nil {
		return disk.Run{}, err
	}
	return x.join(entries, loc+8*first, off)
}

// table returns the byte offset of a grain table, or 0 and the number of absent tables from there on.
func (x *seExtent) table(i int64) (loc, zeros int64, err error) {
	at := x.gd + 8*i
	entry, err := x.tabs.U64(at)
	if err != nil {
		return 0, 0, err
	}
	if entry != 0 {
		loc, err = x.tableAt(entry, at)
		return loc, 0, err
	}
	n := 8 * min(gdScan, x.tables()-i)
	zeros, err = x.tabs.Zeros(at, n)
	if err == nil && zeros == n {
		zeros += 8 * emptyEntries(x.file, at+n, x.gd+8*x.tables(), 8)
	}
	return 0, zeros / 8, err
}

// tableAt finds the grain table that a directory entry names by its number. at is the byte offset of the entry.
func (x *seExtent) tableAt(entry uint64, at int64) (int64, error) {
	loc := x.gts + int64(entry&math.MaxUint32)*seTableBytes
	gd := disk.Range{Off: x.gd, Len: 8 * x.tables()}
	end := x.file.Size()
	if x.grains0 > x.gts {
		end = min(end, x.grains0)
	}
	if entry>>32 != seGTAllocated || loc > end-seTableBytes || gd.Overlaps(disk.Range{Off: loc, Len: seTableBytes}) {
		return 0, ondisk.Field("vmdk grain directory", "entry", at, fmt.Sprintf("%#x", entry),
			fmt.Sprintf("0, or 0x10000000 and the number of a grain table that ends before byte %d and outside "+
				"of the directory", end))
	}
	return loc, nil
}

// place returns the byte offset of the grain that an entry names; stored is false when it is zeros, or a hole. at is
// the byte offset of the entry.
func (x *seExtent) place(entry uint64, at int64) (off int64, stored bool, err error) {
	kind := entry & seTop
	switch {
	case entry == seAbsent, kind == seUnmapped, kind == seZero:
		return 0, false, nil
	case kind == seStored:
		// The upper 12 bits of the number stand below the lower 48.
		n := entry&0x0fff000000000000>>48 | entry&0x0000ffffffffffff<<12
		if n < ondisk.U64(max(0, x.file.Size()-x.grains0)/seGrainBytes) {
			return x.grains0 + ondisk.I64(n)*seGrainBytes, true, nil
		}
	}
	return 0, false, ondisk.Field("vmdk grain table", "entry", at, fmt.Sprintf("%#x", entry),
		fmt.Sprintf("0, a mark of zeros (0x1… or 0x2…), or 0x3… and a grain inside the file of %d bytes",
			x.file.Size()))
}

// join makes one run of the entries that continue the first. at is the byte offset of the first entry.
func (x *seExtent) join(entries []byte, at, off int64) (disk.Run, error) {
	entry := func(i int64) uint64 { return binary.LittleEndian.Uint64(entries[8*i:]) }
	into := off % seGrainBytes
	first, stored, err := x.place(entry(0), at)
	if err != nil {
		return disk.Run{}, err
	}
	isHole := entry(0) == seAbsent
	n := int64(1)
	for ; int(8*n) < len(entries); n++ {
		// An entry that is malformed does not spoil those in front of it.
		next, more, err := x.place(entry(n), at+8*n)
		follows := stored && next == first+n*seGrainBytes ||
			!stored && (x.below == nil || (entry(n) == seAbsent) == isHole)
		if err != nil || more != stored || !follows {
			break
		}
	}
	size := n*seGrainBytes - into
	switch {
	case stored:
		return disk.Run{Len: size, Src: x.file, Off: first + into}, nil
	case isHole:
		return x.hole(off, size), nil
	}
	return disk.Run{Len: size}, nil
}
