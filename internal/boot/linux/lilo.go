package linux

import (
	"encoding/binary"
	"fmt"

	"github.com/trueup/trueup/internal/boot"
)

// Lilo holds in its boot sector and its map the absolute sectors of the kernel, in one of four layouts and in cylinders,
// heads and sectors by default, so that nothing of it is rewritten.
var Lilo = &boot.Code{
	ID: "lilo", Name: "LILO", Absolute: true, AnyFlag: true, Picks: boot.None, Find: findLilo,
	Known: isLilo,
}

func isLilo(code []byte) bool {
	return len(code) >= 10 && !LiloMBR.Known(code) && !LiloMBR2.Known(code) && (string(code[6:10]) == "LILO" || string(code[2:6]) == "LILO")
}

const runLilo = "go on with --allow-unbootable, and run lilo from a rescue system on the copy"

func findLilo(g *boot.Guest, c *boot.Code) (f boot.Found, err error) {
	err = g.Homes(c, func(home boot.Partition, where string, code []byte) error {
		if len(f.Chain) < boot.MaxBootSectors || g.Starts(home) { // one is enough to refuse a move
			refuseLilo(&f, g, c, home, where, code)
		}
		return nil
	})
	return f, err
}

// refuseLilo refuses any move: kernels can lie in any partition.
func refuseLilo(f *boot.Found, g *boot.Guest, c *boot.Code, home boot.Partition, where string, code []byte) {
	name := liloVersion(code)
	f.Link(home.Number, "%s in %s loads a kernel by absolute sectors", name, where)
	text := fmt.Sprintf("%s in %s: its map holds the absolute sectors of the kernel", name, where)
	f.Breaks(g, home, c.ID, 0, text, runLilo)
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
