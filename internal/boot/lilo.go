package boot

import (
	"encoding/binary"
	"fmt"
)

// lilo names LILO. Its boot sector and its map hold the absolute sectors of the kernel, in one of four layouts and in cylinders, heads
// and sectors by default, so that nothing of it is rewritten.
var lilo = Finder{Name: "lilo", Find: findLilo}

const runLilo = "go on with --allow-unbootable, and run lilo from a rescue system on the copy"

func findLilo(g *Guest) (f Found, err error) {
	if g.Code == Lilo {
		f.lilo(g, Partition{}, "the MBR", g.Sector0)
	}
	for _, p := range g.Partitions {
		code, ok, err := g.loaderIn(p, Lilo)
		if err != nil {
			return f, err
		}
		if ok && (len(f.Chain) < maxBootSectors || g.starts(p)) { // one is enough to refuse a move
			f.lilo(g, p, fmt.Sprintf("the boot sector of partition %d", p.Number), code)
		}
	}
	return f, nil
}

// lilo refuses any move: kernels can lie in any partition.
func (f *Found) lilo(g *Guest, home Partition, where string, code []byte) {
	name := liloVersion(code)
	f.link(home.Number, "%s in %s loads a kernel by absolute sectors", name, where)
	f.breaks(g, home, Lilo.ID, 0, fmt.Sprintf("%s in %s: its map holds the absolute sectors of the kernel", name, where), runLilo)
}

// liloVersion names a LILO by the word in its boot sector: "LILO 22.8". Spec: LILO 21 and 22, common.h, BOOT_PARAMS_1.
func liloVersion(code []byte) string {
	if string(code[2:6]) == "LILO" {
		return "LILO (older than 21)"
	}
	version := binary.LittleEndian.Uint16(code[12:]) // the minor one stands in the high byte
	if minor := version >> 8; minor != 0 {
		return fmt.Sprintf("LILO %d.%d", version&0xff, minor)
	}
	return fmt.Sprintf("LILO %d", version)
}
