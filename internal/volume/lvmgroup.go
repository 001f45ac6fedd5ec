package volume

import (
	"errors"
	"regexp"
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
)

// Patterns of what is of use in the text of a volume group, as LVM writes it. Spec: LVM2, lib/format_text/export.c.
var (
	lvmSection = regexp.MustCompile(`([\w+.-]{1,127}) \{\s+id = "([\w-]{1,38})"`) // the first is the group itself
	lvmExtent  = regexp.MustCompile(`\bextent_size = (\d{1,10})\b`)               // sectors
	lvmDevice  = regexp.MustCompile(`\bpe_start = \d`)
	lvmStripe  = regexp.MustCompile(`"([\w+.-]{1,127})",\s*(\d{1,10})\b`) // device and first extent
)

// lvmMaxStripes bounds the stripes that are looked into: a group has rarely more.
const lvmMaxStripes = 512

// readGroup takes the name of the group from its text, and what a logical volume holds that concerns the whole disk.
func (p *physicalVolume) readGroup(text string) error {
	sections, extent := lvmSection.FindAllStringSubmatch(text, -1), lvmExtent.FindStringSubmatch(text)
	if sections == nil || extent == nil {
		return field("lvm text", "volume group", 0, "none", "a section with id and extent_size")
	}
	p.v.Label = strings.Clone(sections[0][1]) // not the whole text
	if n := len(lvmDevice.FindAllString(text, -1)); n > 1 {
		p.v.says("physical volumes", strconv.Itoa(n))
	}
	size, err := strconv.ParseInt(extent[1], 10, 64)
	if err != nil || size == 0 {
		return field("lvm text", "extent size", 0, size, "1 sector or more")
	}
	for _, s := range sections {
		if s[2] == p.v.UUID {
			return p.hibernated(text, s[1], size*lvmSector)
		}
	}
	return nil
}

// hibernated looks for a hibernated Linux at the start of each stripe on the device: swap lies on LVM more often than not.
func (p *physicalVolume) hibernated(text, device string, extent int64) error {
	for _, s := range lvmStripe.FindAllStringSubmatch(text, lvmMaxStripes) {
		n, err := strconv.ParseInt(s[2], 10, 64)
		if err != nil || s[1] != device || n > (p.d.Size()-p.v.DataStart)/extent {
			continue
		}
		at := p.v.DataStart + n*extent
		inner, err := probeSwap(disk.Section(p.d, disk.Range{Off: at, Len: p.d.Size() - at}))
		switch {
		case errors.Is(err, ondisk.ErrNoMatch) || errors.Is(err, ondisk.ErrFormat):
		case err != nil:
			return err
		default:
			p.v.inherit(inner)
		}
	}
	return nil
}
