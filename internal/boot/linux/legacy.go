package linux

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume"
)

// Legacy is stage1 of GRUB 0.9x, in the MBR or in the boot sector of a partition. It names the first sector of
// stage1.5 or of stage2, and that sector lists the rest. Either all of it is understood, or nothing is rewritten.
var Legacy = &boot.Code{
	ID: "grub-legacy", Name: "GRUB legacy", Absolute: true, AnyFlag: true, Picks: boot.None, Find: findGrubLegacy,
	Known: func(code []byte) bool { return isGrub(code) && code[atGrubVersion] == legacyVersion },
}

// legacySector is the unit of GRUB legacy: it reads 512 bytes for each sector, whatever the BIOS reports.
const legacySector = 512

// unsound is why a loader is not rewritten. partition is the one whose move matters; 0: any.
type unsound struct {
	text      string
	partition int
}

func (u unsound) Error() string { return u.text }

func unsoundf(format string, args ...any) error { return unsound{text: fmt.Sprintf(format, args...)} }

func findGrubLegacy(g *boot.Guest, c *boot.Code) (f boot.Found, err error) {
	err = eachHome(g, c, &f, func(home boot.Partition, where string, code []byte) error {
		return readLegacy(&f, g, c, inPartition(home, where), code)
	})
	return f, err
}

// legacyHome is the partition or gap in which a part of GRUB legacy lies.
type legacyHome struct {
	disk.Range // of the partition, or from the start of the disk to the first one

	partition int // 0: in front of all partitions
	name      string
}

func inPartition(p boot.Partition, name string) legacyHome {
	return legacyHome{p.Range, p.Number, name}
}

// holds reports whether all of the sectors lie in it.
func (h legacyHome) holds(first, sectors int64) bool {
	return first > 0 && first*legacySector >= h.Off && (first+sectors)*legacySector <= h.End()
}

// readLegacy follows a stage1, and adds references, or the reason why there are none.
func readLegacy(f *boot.Found, g *boot.Guest, c *boot.Code, home legacyHome, code []byte) error {
	refs, links, config, err := followLegacy(g, home, code)
	if bad := (unsound{}); errors.As(err, &bad) {
		f.Link(home.partition, "GRUB legacy in %s", home.name)
		text := fmt.Sprintf("GRUB legacy in %s: %s", home.name, bad.text)
		f.Breaks(g, g.Numbered(home.partition), c.ID, bad.partition, text, boot.InstallAgain)
		return nil
	}
	f.Refs, f.Chain = append(f.Refs, refs...), append(f.Chain, links...)
	if err == nil && g.Starts(g.Numbered(home.partition)) {
		g.Configured(config)
	}
	return err
}

func followLegacy(g *boot.Guest, home legacyHome, code []byte) (refs []boot.Ref, links []boot.Link,
	config boot.Config, err error,
) {
	one, err := readStage1(code)
	if err != nil {
		return nil, nil, config, err
	}
	if size := g.Disk.SectorSize(); size != legacySector {
		return nil, nil, config, unsoundf("it knows sectors of 512 bytes only, and the disk has sectors of %d", size)
	}
	at, err := legacyHolding(g, int64(one.Sector), 1, "its next stage")
	if err != nil {
		return nil, nil, config, err
	}
	two, err := readStage(g, at, one)
	if err != nil {
		return nil, nil, config, err
	}
	refs = []boot.Ref{legacyRef("GRUB legacy stage1 pointer to "+two.short(), home, home.Off+atStage1Sector, at,
		one.Sector)}
	for i, e := range two.list {
		refs = append(refs, legacyRef(fmt.Sprintf("GRUB legacy %s block list entry %d", two.short(), i+1), at,
			int64(one.Sector)*legacySector+atStageList-int64(i)*stageEntry, at, e.Start))
	}
	for i := range refs {
		if refs[i].Raw, err = g.Read(refs[i].At); err != nil {
			return nil, nil, config, err
		}
	}
	links, config = two.links(g, home, at, one)
	return refs, links, config, nil
}

// legacyRef is the u32 at byte place of the disk, stored in home, that names a sector in target.
func legacyRef(kind string, home legacyHome, place int64, target legacyHome, sector uint32) boot.Ref {
	r := boot.Ref{
		Kind: kind, Partition: home.partition, Off: place - home.Off, At: []disk.Range{{Off: place, Len: 4}},
		Points: int64(sector) * legacySector, Target: target.partition, Encode: boot.EncodeSectors(legacySector),
	}
	if r.Target == 0 {
		r.Stays = "it lies in front of all partitions"
	}
	return r
}

// legacyHolding finds what holds sectors: one partition, or the gap in front of all. what names them in the refusal of
// any other place.
func legacyHolding(g *boot.Guest, first, sectors int64, what string) (legacyHome, error) {
	r := disk.Range{Off: first * legacySector, Len: sectors * legacySector}
	if first == 0 || r.End() > g.Disk.Size() {
		return legacyHome{}, unsoundf("%s is at LBA %d, %d sectors long, where there is no room for it", what, first,
			sectors)
	}
	p, ok := g.Holding(r.Off, r.Len)
	switch {
	case ok && (p.Volume.Kind == volume.VTOC || p.Type == 0xbe || p.Type == 0xbf):
		// illumos: sector numbers stand in the slices too.
		return legacyHome{}, unsound{
			text: fmt.Sprintf("%s is at LBA %d, in partition %d of Solaris, which keeps absolute places itself", what,
				first, p.Number),
			partition: p.Number,
		}
	case ok && p.Kind != table.Extended:
		home := inPartition(p, fmt.Sprintf("partition %d", p.Number))
		home.Len = min(home.Len, g.Disk.Size()-home.Off) // a table can name more than there is
		return home, nil
	}
	gap := legacyHome{disk.Range{Len: g.FirstByte()}, 0, "the gap"}
	if !gap.holds(first, sectors) {
		return gap, unsoundf("%s is at LBA %d, %d sectors long, neither in one partition nor in the gap "+
			"in front of all",
			what, first, sectors)
	}
	return gap, nil
}

// links returns how the boot goes on, and where the loader looks for its menu.
func (s *legacyStage) links(g *boot.Guest, home, at legacyHome, one *stage1) ([]boot.Link, boot.Config) {
	var f boot.Found
	f.Link(home.partition, "GRUB legacy in %s loads %s from LBA %d, in %s", home.name, s.name(), one.Sector, at.name)
	number := int(s.slot) + 1
	known := s.slot != wholeDisk &&
		slices.ContainsFunc(g.Partitions, func(p boot.Partition) bool { return p.Number == number })
	config := boot.Config{
		Loader: "GRUB legacy in " + home.name, Syntax: boot.GRUBLegacy, Home: number,
		Paths: []string{strings.TrimPrefix(s.config, "/")},
	}
	switch {
	case s.menu != "":
		config.Paths[0] = strings.TrimPrefix(s.menu, "/")
	case s.head.ID != 0: // it opens stage2, whose own place of the menu is not read
		config.Paths = legacyMenus
	}
	switch {
	case at.partition != 0 && (!known || number == at.partition):
		config.Home = at.partition
		f.Link(at.partition, "%s of GRUB legacy opens %s by its name", s.short(), s.config)
		return f.Chain, config
	case at.partition != 0:
		f.Link(at.partition, "%s of GRUB legacy runs", s.short())
	}
	if known {
		f.Link(number, "%s of GRUB legacy opens %s in partition %d by its name", s.short(), s.config, number)
	} else {
		config.Home, config.Anywhere, config.Paths = 0, true, legacyMenus
	}
	return f.Chain, config
}

// legacyMenus are the usual places of the menu. Spec: GRUB 0.97, configure.ac and stage2/asm.S, config_file; Red Hat
// calls it grub.conf.
var legacyMenus = []string{"boot/grub/menu.lst", "grub/menu.lst", "boot/grub/grub.conf", "grub/grub.conf"}
