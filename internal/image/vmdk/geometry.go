package vmdk

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/trueup/trueup/internal/image/driver"
)

// Lines of the disk data base on the geometry that a BIOS reports, where it is to be another than follows from the
// disk's. Source: VirtualBox, src/VBox/Storage/VMDK.cpp, VMDK_DDB_GEO_LCHS_CYLINDERS; vmware.log of Fusion 6, "Geo
// (83220/16/63) BIOS Geo (5221/255/63)".
var biosKeys = []struct{ name, key string }{
	{"ddb.geometry.biosCylinders", "ddb.geometry.bioscylinders"},
	{"ddb.geometry.biosHeads", "ddb.geometry.biosheads"},
	{"ddb.geometry.biosSectors", "ddb.geometry.biossectors"},
}

// values returns cylinders, heads and sectors in the order of the keys.
func values(g driver.Geometry) [3]int64 { return [3]int64{g.Cylinders, g.Heads, g.Sectors} }

// pinned returns the geometry for a BIOS that the descriptor states beside that of the disk; VirtualBox writes zeros
// for none.
func (d *descriptor) pinned() (g driver.Geometry, ok bool) {
	g = driver.Geometry{
		Cylinders: d.ddbInt(biosKeys[0].key), Heads: d.ddbInt(biosKeys[1].key), Sectors: d.ddbInt(biosKeys[2].key),
	}
	return g, g.Addressable()
}

// reported returns what a BIOS reports of the disk with size bytes: what the descriptor pins, what an IDE disk leads
// to, or what controllers of SCSI take as it is.
func (d *descriptor) reported(size int64) driver.Geometry {
	if g, ok := d.pinned(); ok {
		return g.Over(size).Clipped()
	}
	_, h, s := d.geometry()
	g := driver.Geometry{Heads: h, Sectors: s}.Over(size)
	if !g.Addressable() {
		return driver.Geometry{}
	}
	if adapter, _ := d.get("ddb.adaptertype"); adapter == "ide" {
		return g.Reported(size)
	}
	return g.Clipped()
}

// reports returns what a BIOS reports of a disk that create makes.
func reports(size int64, o driver.Options) driver.Geometry {
	d, _ := sourceOf(o.Template, o.BIOS)
	return d.forBIOS(size, o.BIOS).reported(size)
}

// forBIOS returns the descriptor with the geometry for a BIOS that a copy of size bytes has: that of the source, over
// the new size, or bios where the machine would report another one.
func (d *descriptor) forBIOS(size int64, bios driver.Geometry) *descriptor {
	pin, has := d.pinned()
	switch {
	case bios != (driver.Geometry{}) && !d.reported(size).Alike(bios):
		pin = bios
	case !has:
		return d
	}
	out := *d
	out.lines = slices.Clone(d.lines)
	over := pin.Over(size)
	if pin.Cylinders <= driver.MaxCylinders {
		over = over.Clipped() // some writers count all
	}
	for i, v := range values(over) {
		k := biosKeys[i]
		if d.ddbInt(k.key) == v {
			continue
		}
		l := line{text: fmt.Sprintf("%s = \"%d\"", k.name, v), key: k.key, val: strconv.FormatInt(v, 10)}
		at := slices.IndexFunc(out.lines, func(l line) bool { return l.key == k.key })
		if at >= 0 {
			out.lines[at] = l
			continue
		}
		// Behind the last line on the geometry, or at the end.
		at = len(out.lines)
		for n, other := range out.lines {
			if other.key == "ddb.geometry.sectors" || i > 0 && other.key == biosKeys[i-1].key {
				at = n + 1
			}
		}
		out.lines = slices.Insert(out.lines, at, l)
	}
	return &out
}
