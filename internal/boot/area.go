package boot

import (
	"fmt"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
)

// AreaLen is the room for boot code in front of a file system, in bytes: ext keeps two sectors free.
const AreaLen = 1024

// MaxBootSectors bounds the boot sectors of partitions that are followed for a loader. A table can name thousands.
const MaxBootSectors = 16

// Area returns the loader in the boot area of a partition, Unknown for any other content. ok is false for zeros, as in
// front of most file systems, and for an area that is not on the disk as a whole. All areas are read once: a table can
// have thousands of partitions, and each finder asks for all of them.
func (g *Guest) Area(p Partition) (c *Code, ok bool, err error) {
	if g.areas == nil {
		areas, buf := map[int]*Code{}, make([]byte, AreaLen)
		for _, p := range g.Partitions {
			if p.Len < AreaLen || p.End() > g.Disk.Size() {
				continue
			}
			if err := ondisk.ReadFull(g.Disk, buf, p.Off); err != nil {
				return c, false, err
			}
			if !ondisk.IsZero(buf) {
				areas[p.Number] = g.Loader(buf[:CodeLen])
			}
		}
		g.areas = areas
	}
	c, ok = g.areas[p.Number]
	return c, ok, nil
}

// Homes calls do for each boot sector that holds a loader: that of the disk, with a zero Partition, and those of
// partitions. where names the boot sector for people, and code has at least CodeLen bytes.
func (g *Guest) Homes(c *Code, do func(home Partition, where string, code []byte) error) error {
	if g.Code == c {
		if err := do(Partition{}, "the MBR", g.Sector0); err != nil {
			return err
		}
	}
	for _, p := range g.Partitions {
		held, ok, err := g.Area(p)
		if err != nil {
			return err
		}
		if !ok || held != c {
			continue
		}
		sector, err := ondisk.Bytes(g.Disk, p.Off, 512)
		if err != nil {
			return err
		}
		if err := do(p, fmt.Sprintf("the boot sector of partition %d", p.Number), sector); err != nil {
			return err
		}
	}
	return nil
}

// inPartitions reports whether the code can be the boot sector of a partition, which its Find describes then.
func (c *Code) inPartitions() bool { return c.Absolute || c.OfVolume }

// Loader identifies the loader in the boot sector of a partition.
func (g *Guest) Loader(code []byte) *Code { return first(g.Codes, code, (*Code).inPartitions) }

// Chooses reports whether the code in sector 0 can boot from a partition. Unknown code is taken to go by the flag.
func (g *Guest) Chooses(p Partition) bool {
	switch c := g.Code; {
	case c.Number != nil:
		n := p.Number
		if p.Kind == table.Entry {
			n = p.Slot
		}
		return n > 0 && n == c.Number(g.Sector0)
	case c.Picks != nil:
		return c.Picks(p)
	}
	return p.Active && p.Kind != table.Logical
}

// Described reports whether b, the boot sector of a partition, is that of a loader whose Find describes it.
func (g *Guest) Described(p Partition, b []byte) (described bool, err error) {
	for _, c := range g.Codes {
		at, sector := c.Offset[p.Volume.Kind], b
		switch {
		case !c.inPartitions() || at+512 > p.Len:
			continue
		case at > 0:
			if sector, err = ondisk.Bytes(g.Disk, p.Off+at, 512); err != nil {
				return false, err
			}
		}
		if c.Known(sector[:CodeLen]) {
			return true, nil
		}
	}
	return false, nil
}

// Starts reports whether the boot reads the boot sector of a partition without the menu of a loader. That of the disk,
// number 0, it always reads.
func (g *Guest) Starts(home Partition) bool { return home.Number == 0 || g.Chooses(home) }

// Breaks reports that a move of a partition (0: any move) breaks the loader in the boot sector of home. One that only a
// menu can lead to is a warning: many boot sectors are left over from systems long gone.
func (f *Found) Breaks(g *Guest, home Partition, code string, partition int, text, remedy string) {
	if g.Starts(home) {
		f.Unbootable(code, partition, text, remedy)
		return
	}
	const unless = ". The code in sector 0 does not read that boot sector: " +
		"this matters only if the menu of another loader does"
	f.Warn(code, partition, text+unless, "install that loader again in the copy if you boot by it")
}

// Loaders finds what the boot loaders in sector 0 and in boot sectors store.
var Loaders = Finder{Name: "boot loaders", Find: findLoaders}

func findLoaders(g *Guest) (f Found, err error) {
	for _, c := range g.Codes {
		if c.Find == nil {
			continue
		}
		found, err := c.Find(g, c)
		if err != nil {
			return f, fmt.Errorf("%s: %w", c.Name, err)
		}
		f.Add(found)
	}
	return f, nil
}
