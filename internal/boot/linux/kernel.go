package linux

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// scanOptions finds options of the kernel and of early boot that name a device. They are words of their own, or stand
// within the quotes of a setting.
func scanOptions(c *config, w []string) {
	for _, x := range w {
		for f := range strings.FieldsSeq(x) {
			c.option(strings.Trim(f, `"'`))
		}
	}
	if strings.Contains(c.text, "dm-mod.create=") { // Spec: Documentation/admin-guide/device-mapper/dm-init.rst
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

// scanGRUB reads a line of GRUB 2 or of GRUB legacy.
func scanGRUB(c *config, w []string) {
	if len(w) == 0 {
		return
	}
	c.grubRoot(w)
	for i, x := range w {
		if i > 0 {
			c.blockList(x)
		}
	}
	switch {
	case len(w) > 1 && slices.Contains([]string{"linux", "linux16", "linuxefi", "kernel"}, w[0]) && c.role != "":
		c.link(c.in, "kernel", fmt.Sprintf("has the kernel that GRUB starts: %.80q, by %.256q", w[1], c.path))
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

// grubRoot follows the root that block lists without a device count from.
func (c *config) grubRoot(w []string) {
	value := ""
	switch {
	case w[0] == "menuentry" || w[0] == "title" || w[0] == "submenu":
	case len(w) > 1 && (w[0] == "root" || w[0] == "rootnoverify"):
		value = w[1]
	case len(w) > 1 && w[0] == "set" && strings.HasPrefix(w[1], "root="):
		value = strings.TrimPrefix(w[1], "root=")
	default:
		return
	}
	c.onDisk = strings.Trim(value, "()") == "hd0"
}

// blockList checks "(hd0)start+length,…": sectors of the whole disk. "(hd0,1)+1" counts from a partition, and does not
// matter. Spec: GRUB manual, "How to specify block lists".
func (c *config) blockList(s string) {
	list, onDisk := strings.CutPrefix(s, "(hd0)")
	if !onDisk && !c.onDisk || list == "" {
		return
	}
	var at []int64
	for block := range strings.SplitSeq(list, ",") {
		first, length, ok := strings.Cut(block, "+")
		if first == "" {
			first = "0"
		}
		off, isNumber := sectors(first)
		if _, counted := count(length); !ok || !isNumber || !counted {
			return
		}
		at = append(at, off)
	}
	for _, off := range at {
		c.place("(hd0)", off, true)
	}
}
