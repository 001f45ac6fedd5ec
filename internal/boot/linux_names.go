package boot

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/units"
)

// Names of whole disks and of partitions. Spec: Linux, Documentation/admin-guide/devices.txt; systemd, 60-persistent-storage.rules.
var (
	diskName  = regexp.MustCompile(`^/dev/(?:(?:sd|hd|vd|xvd)[a-z]{1,3}|nvme[0-9]{1,3}n[0-9]{1,3}|mmcblk[0-9]{1,3})$`)
	diskLink  = regexp.MustCompile(`^/dev/disk/by-(?:path/.+|id/(?:ata|scsi|virtio|nvme|usb|wwn|mmc)-.+)$`)
	partLink  = regexp.MustCompile(`-part[0-9]+$`)
	firstDisk = regexp.MustCompile(`^(?:/dev/(?:sda|hda|vda|xvda|nvme0n1|mmcblk0)|\(hd0\)|hd0|8:0)$`)
	firstPart = regexp.MustCompile(`^/dev/(?:(?:sd|hd|vd|xvd)a|nvme0n1p|mmcblk0p)([0-9]{1,3})$`)
	byLink    = regexp.MustCompile(`^/dev/disk/by-(uuid|label|partuuid|partlabel)/(.+)$`)
)

// isDisk reports whether a name is that of a whole disk, this one or another.
func isDisk(name string) bool {
	if !strings.HasPrefix(name, "/dev/") {
		return name == "8:0"
	}
	return diskName.MatchString(name) || (diskLink.MatchString(name) && !partLink.MatchString(name))
}

// named finds the partition that a name means: UUID=…, LABEL=…, a link in /dev/disk, or the number of a partition on the first disk.
func (l *linux) named(name string) (Partition, bool) {
	if m := firstPart.FindStringSubmatch(name); m != nil {
		return l.only(func(p Partition) bool { return strconv.Itoa(p.Number) == m[1] })
	}
	key, value, ok := strings.Cut(name, "=")
	if m := byLink.FindStringSubmatch(name); m != nil {
		key, value, ok = m[1], m[2], true
	}
	if value = strings.Trim(value, `"'`); !ok || value == "" {
		return Partition{}, false
	}
	switch strings.ToLower(key) {
	case "uuid":
		return l.only(func(p Partition) bool { return strings.EqualFold(p.Volume.UUID, value) })
	case "label":
		return l.only(func(p Partition) bool { return p.Volume.Label == value })
	case "partuuid":
		return l.only(l.hasPartUUID(value))
	case "partlabel":
		return l.only(func(p Partition) bool { return p.Name == value })
	}
	return Partition{}, false
}

// hasPartUUID compares what Linux calls a partition: the GUID, or disk signature and number, hexadecimal.
func (l *linux) hasPartUUID(value string) func(Partition) bool {
	signature, number, _ := strings.Cut(strings.ToLower(value), "-")
	n, err := strconv.ParseInt(number, 16, 32)
	if err != nil || signature != fmt.Sprintf("%08x", l.g.Signature) {
		n = -1
	}
	return func(p Partition) bool {
		if l.g.Scheme == table.GPT {
			return strings.EqualFold(p.GUID, value)
		}
		return int64(p.Number) == n
	}
}

// only finds the one partition of which something is true.
func (l *linux) only(is func(Partition) bool) (found Partition, ok bool) {
	n := 0
	if l.names++; l.names > maxNames {
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

// count reads a number as programs of Linux do: decimal, hexadecimal, or with K, M or G.
func count(s string) (int64, bool) {
	unit := int64(1)
	for suffix, n := range map[string]int64{"K": units.KiB, "M": units.MiB, "G": units.GiB} {
		if digits, ok := strings.CutSuffix(strings.ToUpper(strings.TrimSuffix(s, "iB")), suffix); ok {
			s, unit = digits, n
			break
		}
	}
	n, err := strconv.ParseInt(s, 0, 64)
	if err != nil || n < 0 || n > math.MaxInt64/unit {
		return 0, false
	}
	return n * unit, true
}

// sectors reads a count of 512 bytes, and gives bytes.
func sectors(s string) (int64, bool) {
	n, ok := count(s)
	if !ok || n > math.MaxInt64/units.SectorSize {
		return 0, false
	}
	return n * units.SectorSize, true
}
