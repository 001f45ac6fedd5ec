package boot

import (
	"fmt"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/table"
)

// systemMounts are what a Linux needs before it can do anything.
var systemMounts = []string{"/", "/boot", "/boot/efi", "/efi", "/usr"}

// scanFstab reads a line "device folder type options". Spec: fstab(5); mount(8), "offset", in bytes.
func scanFstab(c *config, w []string) {
	if len(w) < 2 {
		return
	}
	if slices.Contains(systemMounts, w[1]) {
		if p, ok := c.named(w[0]); ok {
			c.link(p, "mount "+w[1], fmt.Sprintf("is mounted on %s by %.256q of partition %d", w[1], c.path, c.in.Number))
		}
	}
	if len(w) > 3 {
		c.offsetOption(w[0], w[3], "offset=", count)
	}
}

// scanCrypttab reads a line "name device key options". Spec: crypttab(5): offset in sectors, keyfile-offset in bytes.
func scanCrypttab(c *config, w []string) {
	if len(w) > 3 {
		c.offsetOption(w[1], w[3], "offset=", sectors)
		c.offsetOption(w[2], w[3], "keyfile-offset=", count)
	}
}

// offsetOption judges an option of a list with commas.
func (c *config) offsetOption(disk, options, name string, read func(string) (int64, bool)) {
	for o := range strings.SplitSeq(options, ",") {
		if value, ok := strings.CutPrefix(o, name); ok && isDisk(disk) {
			if n, ok := read(value); ok {
				c.place(disk, n, false)
			}
		}
	}
}

// scanOptions looks for options of the kernel and of early boot that find a device, also in a setting that holds them.
func scanOptions(c *config, w []string) {
	for i, s := range w {
		if value, ok := optionValue(s, "root="); ok && c.role != "" {
			if p, ok := c.named(value); ok {
				c.link(p, "root", fmt.Sprintf("is the root of the kernel (root=%.80q in %.256q of partition %d)", value, c.path, c.in.Number))
			}
		}
		if _, ok := optionValue(s, "blkdevparts="); ok { // Spec: Linux, Documentation/block/cmdline-partition.rst
			c.breaks(0, "partitions that the kernel is to take in place of those of the table", true)
		}
		if value, ok := optionValue(s, "cryptkey="); ok { // "device:offset:size" in bytes. Spec: mkinitcpio, hook encrypt
			if f := strings.Split(value, ":"); len(f) > 2 && isDisk(f[len(f)-3]) {
				if n, ok := count(f[len(f)-2]); ok {
					c.place(f[len(f)-3], n, true)
				}
			}
		}
		if _, ok := optionValue(s, "dm-mod.create="); ok {
			c.mapTables(w[i:])
		}
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

// mapTables judges tables of the device mapper, whose targets name a device and a sector of it. Spec: Linux,
// Documentation/admin-guide/device-mapper/dm-init.rst.
func (c *config) mapTables(w []string) {
	f := strings.FieldsFunc(strings.Join(w, " "), func(r rune) bool { return strings.ContainsRune(" ,;", r) })
	for i := 1; i < len(f); i++ {
		if off, ok := sectors(f[i]); ok && isDisk(f[i-1]) {
			c.place(f[i-1], off, true)
		}
	}
}

// scanGRUB reads a line of GRUB 2 or of GRUB legacy.
func scanGRUB(c *config, w []string) {
	c.grubRoot(w)
	for _, x := range w[1:] {
		c.blockList(x)
	}
	switch {
	case len(w) > 1 && slices.Contains([]string{"linux", "linux16", "linuxefi", "kernel"}, w[0]) && c.role != "":
		c.link(c.in, "kernel", fmt.Sprintf("has the kernel that GRUB starts: %.80q, by %.256q", w[1], c.path))
	case w[0] == "partnew" && len(w) > 3:
		// It writes the entry of a partition anew at each boot. Spec: GRUB legacy manual, "partnew".
		off, ok := sectors(w[3])
		if p, found := c.g.StartingAt(off); ok && found && p.Kind != table.Extended {
			c.breaks(p.Number, fmt.Sprintf("the start of partition %d, and writes it into the partition table", p.Number), true)
		}
	}
	scanOptions(c, w)
}

// grubRoot follows what block lists without a device count from.
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

// blockList judges "(hd0)start+length,…": sectors of the whole disk. "(hd0,1)+1" counts from a partition, and is not one. Spec: GRUB manual, "How
// to specify block lists".
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

// place judges a byte offset that a line counts from the start of a disk. Only what a move breaks is said: in front of all partitions
// nothing moves. A name such as /dev/sdb can mean another disk, but the exact start of a partition is no accident.
func (c *config) place(disk string, off int64, breaksBoot bool) {
	gap := c.g.Disk.Size()
	for _, p := range c.g.Partitions {
		gap = min(gap, p.Off)
	}
	if c.full || off < gap || off >= c.g.Disk.Size() {
		return
	}
	p, inside := c.g.Holding(off, 1)
	if !firstDisk.MatchString(disk) && !strings.HasPrefix(disk, "/dev/disk/") && (!inside || p.Off != off) {
		return
	}
	where := fmt.Sprintf("byte %d of the disk", off)
	number := 0
	if inside && p.Kind != table.Extended {
		number = p.Number
		where += fmt.Sprintf(", which is byte %d of partition %d", off-p.Off, p.Number)
	}
	c.breaks(number, where, breaksBoot)
}

// breaks says that a line means a place, and that a move breaks it. Where more is said than is shown, it is not known whether the rest matters.
func (c *config) breaks(partition int, where string, breaksBoot bool) {
	const maxQuoted = 120 // bytes of the line
	line := c.text
	if len(line) > maxQuoted {
		line = line[:maxQuoted] + "…"
	}
	text := fmt.Sprintf("%.256q of partition %d, line %d, means %s: %q", c.path, c.in.Number, c.line, where, line)
	switch {
	case c.said[text] || c.full:
		return
	case len(c.found.Issues) == maxSaid:
		c.full = true
		c.found.unbootable(configCode, 0,
			fmt.Sprintf("there are more lines that name places on the disk, from line %d of %.256q of partition %d on", c.line, c.path, c.in.Number), writeName)
	case breaksBoot:
		c.found.unbootable(configCode, partition, text, writeName+orLeave)
	default:
		c.found.warn(configCode, partition, text, writeName)
	}
	c.said[text] = true
}
