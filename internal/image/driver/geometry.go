package driver

import (
	"slices"

	"github.com/trueup/trueup/internal/units"
)

// Geometry divides a disk for programs that address it by cylinder, head and sector. The zero value says nothing.
type Geometry struct{ Cylinders, Heads, Sectors int64 }

// MaxCylinders are those that programs can address: a cylinder has ten bits. Spec: INT 13h, AH=02h.
const MaxCylinders = 1024

// Limits of what an ATA disk and the interface of a BIOS can state. Spec: ATA-5, 6.2; INT 13h, AH=08h.
const (
	maxCylindersOfATA = 1<<16 - 1
	maxHeadsOfATA     = 16
	maxHeads          = 256
	maxSectors        = 63
)

// Addressable reports whether programs can address a disk by g.
func (g Geometry) Addressable() bool {
	return g.Cylinders >= 1 && g.Heads >= 1 && g.Heads <= maxHeads && g.Sectors >= 1 && g.Sectors <= maxSectors
}

// Bytes returns how many bytes g covers.
func (g Geometry) Bytes() int64 { return g.Cylinders * g.cylinder() }

func (g Geometry) cylinder() int64 { return g.Heads * g.Sectors * units.SectorSize }

// Alike reports whether a sector has one address in both, as far as both reach.
func (g Geometry) Alike(other Geometry) bool {
	return g.Heads == other.Heads && g.Sectors == other.Sectors
}

// Over returns the heads and sectors of g with the cylinders of a disk of size bytes, the last one whole.
func (g Geometry) Over(size int64) Geometry {
	if g.cylinder() > 0 {
		g.Cylinders = max(1, size/g.cylinder())
	}
	return g
}

// Clipped returns g without the cylinders that no program can address.
func (g Geometry) Clipped() Geometry {
	g.Cylinders = min(g.Cylinders, MaxCylinders)
	return g
}

// Reported returns what a BIOS makes of an ATA disk of size bytes that states g: the same if it can be addressed as it
// is, and otherwise 63 sectors and as many heads as the size wants. Source: QEMU 7.2 hw/block/hd-geometry.c,
// hd_bios_chs_auto_trans; SeaBIOS 1.16 src/block.c, setup_translation.
func (g Geometry) Reported(size int64) Geometry {
	if !g.Addressable() || g.Cylinders > MaxCylinders || g.Heads > maxHeadsOfATA {
		tracks := size / units.SectorSize / maxSectors
		g = Geometry{Heads: maxHeadsOfATA, Sectors: maxSectors}
		for heads := tracks / MaxCylinders; g.Heads < heads; g.Heads *= 2 {
			if g.Heads == 128 {
				g.Heads = 255 // 256 heads break DOS
				break
			}
		}
		g.Cylinders = tracks / g.Heads
	}
	return g.Clipped()
}

// ForATA returns what an ATA disk of size bytes states so that a BIOS reports the heads and sectors of want: the first
// that does of those in favour, each over the whole disk or as far as programs can address it, of want itself, and of
// the usual 16 heads. ok is false where there is none.
func ForATA(size int64, want Geometry, favour ...Geometry) (g Geometry, ok bool) {
	for _, g := range slices.Concat(favour, []Geometry{want, {Heads: maxHeadsOfATA, Sectors: maxSectors}}) {
		whole := g.Over(size)
		whole.Cylinders = min(whole.Cylinders, maxCylindersOfATA)
		for _, g := range []Geometry{whole, whole.Clipped()} {
			if g.Addressable() && g.Heads <= maxHeadsOfATA && g.Reported(size).Alike(want) {
				return g, true
			}
		}
	}
	return Geometry{}, false
}
