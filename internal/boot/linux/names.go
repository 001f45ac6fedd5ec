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

// isDisk reports whether a name is that of a whole disk, this one or another.
func isDisk(name string) bool {
	if !strings.HasPrefix(name, "/dev/") {
		return name == "8:0"
	}
	return diskName().MatchString(name) || (diskLink().MatchString(name) && !partLink().MatchString(name))
}

// named finds the partition that a name means: UUID=…, LABEL=…, a link in /dev/disk, or the number of a partition on
// the first disk.
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

// only finds the one partition that passes a test.
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

// count reads a number as programs of Linux do: decimal, hexadecimal, with K, M or G, or a product in a shell.
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

// sectors reads a count of 512 bytes, and returns bytes.
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

// enough reports whether a disk names more places than a person would write, and adds that as an issue.
func (c *config) enough() bool {
	if c.places++; c.places == maxLookups+1 {
		c.more()
	}
	return c.places > maxLookups
}

// more reports lines that are left out: it is not known whether they matter.
func (c *config) more() {
	const more = "there are more lines that name places on the disk, from %s on"
	c.found.Unbootable(configCode, 0, fmt.Sprintf(more, c.at()), writeName)
}

// command reports whether one of the words is a program.
func command(words []string, name string) bool {
	return slices.ContainsFunc(words, func(w string) bool { return path.Base(w) == name })
}

// place checks a byte offset that a line counts from the start of a disk. Only what a move breaks is reported: nothing
// in front of all partitions moves. A name such as /dev/sdb can mean another disk, but the exact start of a partition
// is no accident.
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

// breaks reports that a line means a place, and that a move breaks it.
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
