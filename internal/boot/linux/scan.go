package linux

import (
	"fmt"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/units"
)

// systemMounts are the folders that every Linux needs.
var systemMounts = []string{"/", "/boot", "/boot/efi", "/efi", "/usr"}

// scanFstab reads a line "device folder type options". Spec: fstab(5); mount(8), "offset", in bytes.
func scanFstab(c *config, w []string) {
	if len(w) < 2 {
		return
	}
	if slices.Contains(systemMounts, w[1]) {
		if p, ok := c.named(w[0]); ok {
			c.link(p, "mount "+w[1], fmt.Sprintf("is mounted on %s by %.256q of partition %d", w[1], c.path,
				c.in.Number))
		}
	}
	if len(w) > 3 && isDisk(w[0]) {
		c.offsetOption(w[0], w[3], "offset=", count)
	}
}

// scanCrypttab reads a line "name device key options". Spec: crypttab(5): offset in sectors, keyfile-offset in bytes.
func scanCrypttab(c *config, w []string) {
	if len(w) < 4 {
		return
	}
	if isDisk(w[1]) {
		c.offsetOption(w[1], w[3], "offset=", sectors)
	}
	if isDisk(w[2]) {
		c.offsetOption(w[2], w[3], "keyfile-offset=", count)
	}
}

// offsetOption checks an option of a list with commas.
func (c *config) offsetOption(disk, options, name string, read func(string) (int64, bool)) {
	for o := range strings.SplitSeq(options, ",") {
		if value, ok := strings.CutPrefix(o, name); ok {
			if n, ok := read(value); ok {
				c.place(disk, n, false)
			}
		}
	}
}

// offsetFlags are the flags of a program by which it finds a place on a device.
var offsetFlags = []struct {
	program string
	flags   []string
	read    func(string) (int64, bool)
}{
	{"losetup", []string{"-o", "--offset"}, count},      // losetup(8): bytes
	{"cryptsetup", []string{"-o", "--offset"}, sectors}, // cryptsetup-open(8): sectors of 512 bytes
}

// scanCommands reads a line of a script, or one of /etc/dmtab.
func scanCommands(c *config, w []string) {
	c.mapTables(w, false)
	i := slices.IndexFunc(w, isDisk)
	if i < 0 {
		return
	}
	for _, o := range offsetFlags {
		if !command(w, o.program) {
			continue
		}
		for k := range w {
			if n, ok := flagValue(w[k:], o.flags, o.read); ok {
				c.place(w[i], n, false)
			}
		}
	}
	if command(w, "mount") {
		for _, x := range w {
			c.offsetOption(w[i], x, "offset=", count)
		}
	}
}

// flagValue reads the number of a flag, behind a space or behind "=".
func flagValue(w, flags []string, read func(string) (int64, bool)) (int64, bool) {
	for _, f := range flags {
		if value, ok := strings.CutPrefix(w[0], f+"="); ok {
			return read(value)
		}
		if w[0] == f && len(w) > 1 {
			return read(w[1])
		}
	}
	return 0, false
}

// mapTargets are those of the device mapper that name a device and a sector of it.
var mapTargets = []string{"linear", "striped", "crypt", "delay", "flakey"}

// mapTables finds tables of the device mapper: start and length of the piece in sectors, target, and in its arguments a
// device with a sector on it. Spec: Linux, Documentation/admin-guide/device-mapper.
func (c *config) mapTables(w []string, breaksBoot bool) {
	f := strings.FieldsFunc(strings.Join(w, " "), func(r rune) bool { return strings.ContainsRune(" \t,;\"'", r) })
	for i := 2; i < len(f); i++ {
		_, start := sectors(f[i-2])
		_, length := sectors(f[i-1])
		if !start || !length || !slices.Contains(mapTargets, f[i]) {
			continue
		}
		for k := i + 1; k+1 < min(len(f), i+16) && !slices.Contains(mapTargets, f[k]); k++ {
			if off, ok := sectors(f[k+1]); ok && isDisk(f[k]) {
				c.place(f[k], off, breaksBoot)
			}
		}
	}
}

// scanRules reads a rule of udev that recognises a partition by its start, in sectors. Spec: udev(7); sysfs,
// ABI/testing/sysfs-block.
func scanRules(c *config, w []string) {
	for _, x := range w {
		for _, name := range []string{"{start}==", "{ID_PART_ENTRY_OFFSET}=="} {
			if _, value, ok := strings.Cut(x, name); ok {
				c.startOf(strings.TrimRight(value, ","))
			}
		}
	}
}

// scanLilo reads lilo.conf, whose partition sections can give a start in sectors. Spec: lilo.conf(5).
func scanLilo(c *config, w []string) {
	if value, ok := strings.CutPrefix(strings.Join(w, ""), "start="); ok {
		c.startOf(value)
	}
	scanOptions(c, w)
}

// startOf checks a number that should be the first sector of a partition.
func (c *config) startOf(value string) {
	if off, ok := sectors(value); ok {
		if p, ok := c.startingAt(off); ok {
			c.breaks(p.Number, fmt.Sprintf("the start of partition %d, LBA %d", p.Number, off/units.SectorSize), false)
		}
	}
}
