package linux

import (
	"fmt"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/units"
)

// systemMounts are the mount points that every Linux needs.
var systemMounts = []string{"/", "/boot", "/boot/efi", "/efi", "/usr"}

// scanFstab scans a line "device folder type options". Spec: fstab(5); mount(8), "offset", in bytes.
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

// scanCrypttab scans a line "name device key options". Spec: crypttab(5): offset in sectors, keyfile-offset in bytes.
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

// offsetOption checks one option of a comma-separated list.
func (c *config) offsetOption(disk, options, name string, read func(string) (int64, bool)) {
	for o := range strings.SplitSeq(options, ",") {
		if value, ok := strings.CutPrefix(o, name); ok {
			if n, ok := read(value); ok {
				c.place(disk, n, false)
			}
		}
	}
}

// offsetFlags lists the flags of a program that set an offset on a device.
var offsetFlags = []struct {
	program string
	flags   []string
	read    func(string) (int64, bool)
}{
	{"losetup", []string{"-o", "--offset"}, count},      // losetup(8): bytes
	{"cryptsetup", []string{"-o", "--offset"}, sectors}, // cryptsetup-open(8): sectors of 512 bytes
}

// scanCommands scans a line of a script or of /etc/dmtab.
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

// flagValue reads the number of a flag, after a space or "=".
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

// mapTargets are the device mapper targets that name a device and a sector of it.
var mapTargets = []string{"linear", "striped", "crypt", "delay", "flakey"}

// mapTables finds tables of the device mapper: start and length of the piece in sectors, target, and arguments with a
// device and a sector on it. Spec: Linux, Documentation/admin-guide/device-mapper.
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

// scanRules scans a udev rule that recognizes a partition by its start, in sectors. Spec: udev(7); sysfs,
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

// scanLilo scans lilo.conf, whose partition sections can have a start in sectors. Spec: lilo.conf(5).
func scanLilo(c *config, w []string) {
	if value, ok := strings.CutPrefix(strings.Join(w, ""), "start="); ok {
		c.startOf(value)
	}
	scanOptions(c, w)
}

// startOf reports a number that is the first sector of a partition.
func (c *config) startOf(value string) {
	if off, ok := sectors(value); ok {
		if p, ok := c.startingAt(off); ok {
			c.breaks(p.Number, fmt.Sprintf("the start of partition %d, LBA %d", p.Number, off/units.SectorSize), false)
		}
	}
}

// scanOptions finds options of the kernel and of early boot that name a device. They are separate words, or stand
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

// optionValue finds an option at the start of a word, or after the "=" of an enclosing setting.
func optionValue(s, name string) (string, bool) {
	i := strings.Index(s, name)
	if i < 0 || i > 0 && s[i-1] != '=' {
		return "", false
	}
	return s[i+len(name):], true
}

// cryptKey checks "device:offset:size", a key stored on a device, in bytes. Spec: mkinitcpio, hook encrypt.
func (c *config) cryptKey(value string) {
	f := strings.Split(value, ":")
	if len(f) < 3 || !isDisk(f[len(f)-3]) {
		return
	}
	if n, ok := count(f[len(f)-2]); ok {
		c.place(f[len(f)-3], n, true)
	}
}

// commandLineTable checks the partitions defined on a command line: "disk:size@offset(name),…;disk:…". A definition of
// a partition that the table also has would not move with it. Spec: Linux, Documentation/block/cmdline-partition.rst.
func (c *config) commandLineTable(value string) {
	for def := range strings.SplitSeq(value, ";") {
		if _, list, ok := strings.Cut(def, ":"); ok {
			c.commandLineDisk(list)
		}
	}
}

// commandLineDisk checks the partitions of one disk: "size@offset(name),…".
func (c *config) commandLineDisk(list string) {
	at := int64(0)
	for part := range strings.SplitSeq(list, ",") {
		part, _, _ = strings.Cut(part, "(")
		size, off, placed := strings.Cut(part, "@")
		if placed {
			n, ok := count(off)
			if !ok {
				return
			}
			at = n
		}
		if p, ok := c.startingAt(at); ok {
			c.breaks(p.Number, fmt.Sprintf("the start of partition %d, byte %d", p.Number, at), true)
		}
		n, ok := count(size)
		if !ok || n > math.MaxInt64-at {
			return // "-", the rest of the disk
		}
		at += n
	}
}

// scanGRUB scans a line of GRUB legacy.
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
		// It rewrites a partition entry at each boot. Spec: GRUB legacy manual, "partnew".
		if off, ok := sectors(w[3]); ok {
			if p, ok := c.startingAt(off); ok {
				c.breaks(p.Number, fmt.Sprintf("the start of partition %d, and writes it into the partition table",
					p.Number), true)
			}
		}
	}
	scanOptions(c, w)
}

// legacyRoot tracks the root device for names without a device. An entry starts with the root set before all entries.
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

// ubootDevices are the U-Boot commands that read sectors of a device: "mmc read address block count". Source: U-Boot,
// cmd/mmc.c, cmd/usb.c, cmd/scsi.c, cmd/sata.c, cmd/ide.c, cmd/nvme.c, cmd/virtio.c.
var ubootDevices = []string{"mmc", "usb", "scsi", "sata", "ide", "nvme", "virtio"}

// scanUBoot scans a line of a U-Boot script or environment, and reports the disk sectors it reads, in hexadecimal
// numbers. A script has a binary header before its first line, and lines of an environment hold scripts after a "=".
func scanUBoot(c *config, _ []string) {
	w := ubootWords(c.command)
	for i := 0; i+3 < len(w); i++ {
		if !slices.Contains(ubootDevices, w[i]) || w[i+1] != "read" {
			continue
		}
		word, known := w[i+3], true
		if name, ok := strings.CutPrefix(word, "$"); ok {
			name = strings.Trim(name, "{}")
			if followsTable(c.text, name) {
				continue
			}
			word, known = ubootVariable(c.text, name)
		}
		n, err := strconv.ParseInt(strings.TrimPrefix(strings.ToLower(word), "0x"), 16, 64)
		if !known || err != nil || n < 0 || n > math.MaxInt64/units.SectorSize {
			c.miss(c.in.Number, c.at(), "the sector that "+w[i]+" read starts at is not known")
			continue
		}
		c.place("hd0", n*units.SectorSize, true)
	}
}

// ubootWords splits a line at blanks, separators and quotes. A # starts a comment.
func ubootWords(line string) []string {
	w := strings.FieldsFunc(line, func(r rune) bool {
		return r <= ' ' || r >= 0x7f || strings.ContainsRune(";&|()='\"", r)
	})
	if i := slices.IndexFunc(w, func(s string) bool { return s[0] == '#' }); i >= 0 {
		w = w[:i]
	}
	return w
}

// followsTable reports whether "part start interface device:partition name" sets a variable. That command reads the
// partition table at each boot. Source: U-Boot, doc/usage/cmd/part.rst.
func followsTable(text, name string) bool {
	for line := range strings.Lines(text) {
		w := ubootWords(line[:min(len(line), maxConfigLine)])
		for i := 0; i+4 < len(w); i++ {
			if w[i] == "part" && w[i+1] == "start" && w[i+4] == name {
				return true
			}
		}
	}
	return false
}

// ubootVariable returns the value that a text assigns to a variable, by "setenv name value" or "name=value". ok is
// false for two different values.
func ubootVariable(text, name string) (value string, ok bool) {
	for line := range strings.Lines(text) {
		w := ubootWords(line[:min(len(line), maxConfigLine)])
		for i := 0; i+1 < len(w); i++ {
			if w[i] != name || (i > 0 && w[i-1] != "setenv") {
				continue
			}
			if ok && value != w[i+1] {
				return "", false
			}
			value, ok = w[i+1], true
		}
	}
	return value, ok
}

// Names of whole disks and of partitions. Spec: Linux, Documentation/admin-guide/devices.txt; systemd,
// 60-persistent-storage.rules.
var (
	diskName   = ondisk.LazyPattern(`^/dev/(?:(?:sd|hd|vd|xvd)[a-z]{1,3}|nvme[0-9]{1,3}n[0-9]{1,3}|mmcblk[0-9]{1,3})$`)
	diskLink   = ondisk.LazyPattern(`^/dev/disk/by-(?:path/.+|id/(?:ata|scsi|virtio|nvme|usb|wwn|mmc)-.+)$`)
	partLink   = ondisk.LazyPattern(`-part[0-9]+$`)
	firstDisk  = ondisk.LazyPattern(`^(?:/dev/(?:sda|hda|vda|xvda|nvme0n1|mmcblk0)|\(hd0\)|hd0|8:0)$`)
	firstPart  = ondisk.LazyPattern(`^/dev/(?:(?:sd|hd|vd|xvd)a|nvme0n1p|mmcblk0p)([0-9]{1,3})$`)
	byLink     = ondisk.LazyPattern(`^/dev/disk/by-(uuid|label|partuuid|partlabel)/(.+)$`)
	arithmetic = ondisk.LazyPattern(`^\$\(\(([0-9]{1,12})\*([0-9]{1,6})\)\)$`)
)

// isDisk reports whether a name means a whole disk, this one or another.
func isDisk(name string) bool {
	if !strings.HasPrefix(name, "/dev/") {
		return name == "8:0"
	}
	return diskName().MatchString(name) || (diskLink().MatchString(name) && !partLink().MatchString(name))
}

// named finds the partition with a name: UUID=…, LABEL=…, a link in /dev/disk, or a partition number on the first disk.
func (l *guest) named(name string) (boot.Partition, bool) {
	if m := firstPart().FindStringSubmatch(name); m != nil {
		return l.only(func(p boot.Partition) bool { return strconv.Itoa(p.Number) == m[1] })
	}
	key, value, ok := strings.Cut(name, "=")
	if m := byLink().FindStringSubmatch(name); m != nil {
		key, value, ok = m[1], m[2], true
	}
	if value = strings.Trim(value, `"'`); !ok || value == "" {
		return boot.Partition{}, false
	}
	switch strings.ToLower(key) {
	case "uuid":
		return l.only(func(p boot.Partition) bool { return strings.EqualFold(p.Volume.UUID, value) })
	case "label":
		return l.only(func(p boot.Partition) bool { return p.Volume.Label == value })
	case "partuuid":
		return l.only(l.hasPartUUID(value))
	case "partlabel":
		return l.only(func(p boot.Partition) bool { return p.Name == value })
	}
	return boot.Partition{}, false
}

// hasPartUUID returns a test for the PARTUUID of Linux: the GUID, or disk signature and number, hexadecimal.
func (l *guest) hasPartUUID(value string) func(boot.Partition) bool {
	signature, number, _ := strings.Cut(strings.ToLower(value), "-")
	n, err := strconv.ParseInt(number, 16, 32)
	if err != nil || signature != fmt.Sprintf("%08x", l.g.Signature) {
		n = -1
	}
	return func(p boot.Partition) bool {
		if l.g.Scheme == table.GPT {
			return strings.EqualFold(p.GUID, value)
		}
		return int64(p.Number) == n
	}
}

// only finds the single partition that passes a test.
func (l *guest) only(is func(boot.Partition) bool) (found boot.Partition, ok bool) {
	n := 0
	if l.names++; l.names > maxLookups {
		return found, false
	}
	for _, p := range l.g.Partitions {
		if p.Kind != table.Extended && is(p) {
			found = p
			n++
		}
	}
	return found, n == 1
}

// count parses a number in the formats of Linux programs: decimal, hexadecimal, with K, M or G, or a product in a
// shell.
func count(s string) (int64, bool) {
	if m := arithmetic().FindStringSubmatch(s); m != nil {
		a, _ := strconv.ParseInt(m[1], 10, 64)
		b, _ := strconv.ParseInt(m[2], 10, 64)
		return a * b, true // 18 digits
	}
	unit := int64(1)
	if digits := strings.TrimSuffix(s, "iB"); digits != "" {
		if i := strings.IndexByte("kmg", digits[len(digits)-1]|0x20); i >= 0 {
			s, unit = digits[:len(digits)-1], units.KiB<<(10*i)
		}
	}
	n, err := strconv.ParseInt(s, 0, 64)
	if err != nil || n < 0 || n > math.MaxInt64/unit {
		return 0, false
	}
	return n * unit, true
}

// sectors parses a count of 512-byte sectors, and returns bytes.
func sectors(s string) (int64, bool) {
	n, ok := count(s)
	if !ok || n > math.MaxInt64/units.SectorSize {
		return 0, false
	}
	return n * units.SectorSize, true
}

// startingAt finds the partition that starts at a byte offset.
func (c *config) startingAt(off int64) (boot.Partition, bool) {
	if off <= 0 || c.enough() {
		return boot.Partition{}, false
	}
	p, ok := c.g.StartingAt(off)
	return p, ok && p.Kind != table.Extended
}

// enough reports whether a disk names more places than a person would write, and adds an issue for that.
func (c *config) enough() bool {
	if c.places++; c.places == maxLookups+1 {
		c.more()
	}
	return c.places > maxLookups
}

// more reports omitted lines: their effect is unknown.
func (c *config) more() {
	const more = "further lines name positions on the disk, from %s on"
	c.found.Unbootable(configCode, 0, fmt.Sprintf(more, c.at()), writeName)
}

// command reports whether one of the words is a program.
func command(words []string, name string) bool {
	return slices.ContainsFunc(words, func(w string) bool { return path.Base(w) == name })
}

// place checks a byte offset that a line counts from the start of a disk. It reports only offsets that a move breaks:
// data before all partitions never moves. A name such as /dev/sdb can mean another disk, but an offset at the exact
// start of a partition is no accident.
func (c *config) place(disk string, off int64, breaksBoot bool) {
	if c.enough() {
		return
	}
	p, inside := c.g.Holding(off, 1)
	ours := firstDisk().MatchString(disk) || strings.HasPrefix(disk, "/dev/disk/") || inside && p.Off == off
	if off < c.g.FirstByte() || off >= c.g.Disk.Size() || !ours {
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

// breaks reports a line that refers to a place on the disk, which a move changes.
func (c *config) breaks(partition int, where string, breaksBoot bool) {
	text := fmt.Sprintf("%s, means %s: %q", c.at(), where, cutText(c.command))
	switch {
	case c.said[text] || c.places > maxLookups:
		return
	case len(c.found.Issues) == maxSaid:
		c.places = maxLookups + 1
		c.more()
	case breaksBoot:
		c.found.Unbootable(configCode, partition, text, writeName+orLeave)
	default:
		c.found.Warn(configCode, partition, text, writeName)
	}
	c.said[text] = true
}

// cutText shortens a line for a message.
func cutText(s string) string {
	if len(s) > maxQuoted {
		return s[:maxQuoted] + "…"
	}
	return s
}
