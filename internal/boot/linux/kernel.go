package linux

import (
	"fmt"
	"math"
	"strings"

	"github.com/trueup/trueup/internal/boot"
)

// scanOptions finds options of the kernel and of early boot that name a device. They are words of their own, or stand
// within the quotes of a setting.
func scanOptions(c *config, w []string) {
	for _, x := range w {
		for f := range strings.FieldsSeq(x) {
			c.option(strings.Trim(f, `"'`))
		}
	}
	if strings.Contains(c.command, "dm-mod.create=") { // Spec: Documentation/admin-guide/device-mapper/dm-init.rst
		c.mapTables(w, true)
	}
}

func (c *config) option(s string) {
	if value, ok := optionValue(s, "root="); ok {
		if p, ok := c.named(value); ok && c.role != "" {
			c.link(p, "root", fmt.Sprintf("is the root of the kernel (root=%.80q in %.256q of partition %d)", value,
				c.path, c.in.Number))
		}
	}
	if value, ok := optionValue(s, "blkdevparts="); ok {
		c.commandLineTable(value)
	}
	if value, ok := optionValue(s, "cryptkey="); ok {
		c.cryptKey(value)
	}
}

// optionValue finds an option at the start of a word, or behind the "=" of a setting that holds it.
func optionValue(s, name string) (string, bool) {
	i := strings.Index(s, name)
	if i < 0 || i > 0 && s[i-1] != '=' {
		return "", false
	}
	return s[i+len(name):], true
}

// cryptKey checks "device:offset:size", a key in bytes of a device. Spec: mkinitcpio, hook encrypt.
func (c *config) cryptKey(value string) {
	f := strings.Split(value, ":")
	if len(f) < 3 || !isDisk(f[len(f)-3]) {
		return
	}
	if n, ok := count(f[len(f)-2]); ok {
		c.place(f[len(f)-3], n, true)
	}
}

// commandLineTable checks the partitions that a command line gives a disk, "disk:size@offset(name),…;disk:…". Those
// that are partitions of the table too would not move with them. Spec: Linux,
// Documentation/block/cmdline-partition.rst.
func (c *config) commandLineTable(value string) {
	for def := range strings.SplitSeq(value, ";") {
		_, list, ok := strings.Cut(def, ":")
		if !ok {
			continue
		}
		at := int64(0)
		for part := range strings.SplitSeq(list, ",") {
			part, _, _ = strings.Cut(part, "(")
			size, off, placed := strings.Cut(part, "@")
			if placed {
				n, ok := count(off)
				if !ok {
					break
				}
				at = n
			}
			if p, ok := c.startingAt(at); ok {
				c.breaks(p.Number, fmt.Sprintf("the start of partition %d, byte %d", p.Number, at), true)
			}
			n, ok := count(size)
			if !ok || n > math.MaxInt64-at {
				break // "-", all that is left
			}
			at += n
		}
	}
}

// scanGRUB reads a line of GRUB legacy.
func scanGRUB(c *config, w []string) {
	if len(w) == 0 {
		return
	}
	c.legacyRoot(w)
	for i, x := range w {
		c.blockLists(x, i > 0)
	}
	switch {
	case len(w) > 1 && w[0] == "kernel" && c.role != "":
		c.kernel(w[1])
	case len(w) > 1 && w[0] == "configfile":
		c.include([][]string{{w[1]}}, boot.GRUBLegacy)
	case w[0] == "partnew" && len(w) > 3:
		// It writes the entry of a partition again at each boot. Spec: GRUB legacy manual, "partnew".
		if off, ok := sectors(w[3]); ok {
			if p, ok := c.startingAt(off); ok {
				c.breaks(p.Number, fmt.Sprintf("the start of partition %d, and writes it into the partition table",
					p.Number), true)
			}
		}
	}
	scanOptions(c, w)
}

// legacyRoot follows the root that names without a device count from. An entry starts with that of the lines in front
// of all entries.
func (c *config) legacyRoot(w []string) {
	switch {
	case w[0] == "title":
		c.script.root, c.blocks = c.global, 1
	case len(w) > 1 && (w[0] == "root" || w[0] == "rootnoverify" || w[0] == "uuid"):
		if w[0] == "uuid" { // Debian's GRUB legacy
			if p, ok := c.named("uuid=" + w[1]); ok {
				c.setRoot([]string{fmt.Sprintf("#%d", p.Number)})
			}
			return
		}
		c.setRoot([]string{w[1]})
	case len(w) > 2 && w[0] == "find" && w[1] == "--set-root":
		c.searchFile("root", w[len(w)-1])
	}
}
