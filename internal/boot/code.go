// Package boot holds the common parts of boot analysis: the guest, boot code signatures, finders, and stored positions
// that a move of a partition would break. Its subpackages cover the loader families; package layout lists them.
package boot

import (
	_ "embed" // codes
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume"
)

// Code is a program in a boot sector: its signature and its behaviour. Codes are compared by address.
type Code struct {
	ID    string // "windows-2000", stable, for JSON
	Name  string // for people
	Known func(code []byte) bool
	// Generic marks code recognized only by its shape. Its author and its further behaviour are unknown.
	Generic bool

	ReadsCHS bool // finds its partition by the CHS bytes of the table, on some machines at least
	// HandsOver marks code that passes the address of its table entry to the boot sector in DS:SI. A loader then finds
	// its place without hidden sectors. It is false if this is unknown.
	HandsOver bool
	// Encrypts marks the loader of a fully encrypted disk. Its encryption units count from the start of the disk.
	Encrypts bool
	// Absolute marks a loader that finds its files by absolute sectors, from sector 0 or from a partition's boot
	// sector.
	Absolute bool
	// AnyFlag marks code that boots regardless of the active flag.
	AnyFlag bool

	// Find returns the next boot steps and the parts that a move of a partition breaks, anywhere on the disk. If it is
	// nil, the fields below describe the code completely.
	Find func(g *Guest, c *Code) (Found, error)
	// OfVolume marks the boot sector of a volume, never of a disk. Offset is its place in volumes of a kind, in bytes,
	// if it is not at the start.
	OfVolume bool
	Offset   map[volume.Kind]int64

	// These fields select the partition whose boot sector the code reads. Without a number and Picks it is the active
	// one, unless that is logical.
	First    bool // partition 1
	NumberAt int  // byte of sector 0 with the partition number; 0 if the code stores no number
	Picks    func(p Partition) bool
	Choice   string // for people; empty for the active partition
	Many     bool   // any of several partitions is valid

	GPT bool // reads a GPT and no MBR
	// BothTables marks code that reads a GPT if there is one, otherwise an MBR.
	BothTables bool
	Address    string // form of a sector address for the BIOS; see ReadsCHS if empty
}

// Codes for a sector 0 that matches no entry of the table.
var (
	Empty   = &Code{ID: "empty", Name: "none"}
	Unknown = &Code{ID: "unknown", Name: "unknown"}
)

// CodeLen is the space for code in a boot sector, in bytes; the disk signature follows.
const CodeLen = 440

// Number returns the number of the partition whose boot sector the code reads; ok is false for any other choice.
func (c *Code) Number(sector0 []byte) (n int, ok bool) {
	if c.NumberAt > 0 {
		return int(sector0[c.NumberAt]), true
	}
	return 1, c.First
}

// listed is a row of codes.json.
type listed struct {
	Code

	Like  [][]string // alternative byte patterns, see Like
	Picks string     // key of picks
	About string     // its instructions, or their source
}

// picks maps the names in codes.json to the functions that select a partition.
var picks = map[string]func(p Partition) bool{
	"active":       Active,
	"legacy-boot":  func(p Partition) bool { return p.LegacyBoot },
	"mbr":          func(p Partition) bool { return p.InMBR() },
	"freebsd-boot": func(p Partition) bool { return p.Is(table.FreeBSDBoot) },
	"haiku": func(p Partition) bool {
		return p.TypeGUID != "" && p.Is(table.BeOS) || p.TypeGUID == "" && p.Active && p.Kind == table.Primary
	},
}

// Listed returns the codes of codes.json, specific code before generic code.
var Listed = sync.OnceValue(func() (codes []*Code) {
	rows := ondisk.Embedded[[]listed](codesText)
	for i := range rows {
		c := &rows[i].Code
		c.Picks = picks[rows[i].Picks]
		c.Known = Like(rows[i].Like[0]...)
		for _, other := range rows[i].Like[1:] {
			c.Known = Either(c.Known, Like(other...))
		}
		codes = append(codes, c)
	}
	return codes
})

//go:embed codes.json
var codesText []byte

// Named returns the code with an ID from codes.json.
func Named(id string) *Code {
	return Listed()[slices.IndexFunc(Listed(), func(c *Code) bool { return c.ID == id })]
}

// Identify returns the first matching code for an MBR.
func Identify(codes []*Code, code []byte) *Code {
	if ondisk.IsZero(code) {
		return Empty
	}
	return first(codes, code, func(c *Code) bool { return !c.OfVolume })
}

func first(codes []*Code, code []byte, may func(c *Code) bool) *Code {
	for _, c := range codes {
		if may(c) && c.Known(code) {
			return c
		}
	}
	return Unknown
}

// Like returns a test that accepts code with all of these byte patterns, at any place. A pattern is hexadecimal, with
// two dots for a byte that differs between builds, and has texts in quotes.
func Like(all ...string) func(code []byte) bool {
	runs := make([][]uint16, len(all))
	for i, run := range all {
		for n, piece := range strings.Split(run, "'") {
			if n%2 == 0 {
				runs[i] = append(runs[i], hexadecimal(piece)...)
				continue
			}
			for _, c := range []byte(piece) {
				runs[i] = append(runs[i], uint16(c))
			}
		}
	}
	return func(code []byte) bool {
		return !slices.ContainsFunc(runs, func(run []uint16) bool { return !matches(code, run) })
	}
}

// hexadecimal decodes a run of bytes.
func hexadecimal(text string) (run []uint16) {
	for pair := range slices.Chunk([]byte(strings.ReplaceAll(text, " ", "")), 2) {
		n, err := strconv.ParseUint(string(pair), 16, 8)
		if string(pair) == ".." {
			n, err = anyByte, nil
		}
		if err != nil {
			panic(fmt.Sprintf("boot: %q is no run of bytes: %v", text, err))
		}
		run = append(run, uint16(n))
	}
	return run
}

const anyByte = 1 << 8

// matches reports whether code contains a pattern.
func matches(code []byte, run []uint16) bool {
	for at := 0; at+len(run) <= len(code); at++ {
		n := 0
		for n < len(run) && (run[n] == anyByte || run[n] == uint16(code[at+n])) {
			n++
		}
		if n == len(run) {
			return true
		}
	}
	return false
}

// Either returns a test that accepts code if a or b does.
func Either(a, b func(code []byte) bool) func(code []byte) bool {
	return func(code []byte) bool { return a(code) || b(code) }
}

// Active picks the active partition, even inside an extended one.
func Active(p Partition) bool { return p.Active }

// None picks no partition: the code reads no table.
func None(Partition) bool { return false }

// AreaLen is the space for boot code before a file system, in bytes: ext keeps two sectors free.
const AreaLen = 1024

// MaxBootSectors limits the partition boot sectors followed for a loader. A table can name thousands.
const MaxBootSectors = 16

// Area returns the loader in the boot area of a partition, or Unknown for any other content. ok is false for zeros, the
// usual content, and for an area that ends beyond the disk. It reads all areas once: a table can have thousands of
// partitions, and each finder needs them all.
func (g *Guest) Area(p Partition) (c *Code, ok bool, err error) {
	if g.areas == nil {
		areas, buf := map[int]*Code{}, make([]byte, AreaLen)
		for _, p := range g.Partitions {
			if p.Len < AreaLen || p.End() > g.Disk.Size() {
				continue
			}
			if err := ondisk.ReadFull(g.Disk, buf, p.Off); err != nil {
				return c, false, err
			}
			if !ondisk.IsZero(buf) {
				areas[p.Number] = g.Loader(buf[:CodeLen])
			}
		}
		g.areas = areas
	}
	c, ok = g.areas[p.Number]
	return c, ok, nil
}

// Homes calls do for each boot sector with a loader: first the disk's, with a zero Partition, then the partitions'.
// where names the boot sector for people, and code has at least CodeLen bytes.
func (g *Guest) Homes(c *Code, do func(home Partition, where string, code []byte) error) error {
	if g.Code == c {
		if err := do(Partition{}, "the MBR", g.Sector0); err != nil {
			return err
		}
	}
	for _, p := range g.Partitions {
		held, ok, err := g.Area(p)
		if err != nil {
			return err
		}
		if !ok || held != c {
			continue
		}
		sector, err := ondisk.Bytes(g.Disk, p.Off, 512)
		if err != nil {
			return err
		}
		if err := do(p, fmt.Sprintf("the boot sector of partition %d", p.Number), sector); err != nil {
			return err
		}
	}
	return nil
}

// inPartitions reports whether the code can be in a partition's boot sector, which its Find then describes.
func (c *Code) inPartitions() bool { return c.Absolute || c.OfVolume }

// Loader identifies the loader in the boot sector of a partition.
func (g *Guest) Loader(code []byte) *Code { return first(g.Codes, code, (*Code).inPartitions) }

// Chooses reports whether the code in sector 0 can boot from a partition. Unknown code is assumed to obey the active
// flag.
func (g *Guest) Chooses(p Partition) bool {
	n := p.Number
	if p.Kind == table.Entry {
		n = p.Slot
	}
	if number, ok := g.Code.Number(g.Sector0); ok {
		return n > 0 && n == number
	}
	if g.Code.Picks != nil {
		return g.Code.Picks(p)
	}
	return p.Active && p.Kind != table.Logical
}

// Described reports whether b, the boot sector of a partition, holds a loader that its Find describes.
func (g *Guest) Described(p Partition, b []byte) (described bool, err error) {
	for _, c := range g.Codes {
		at, sector := c.Offset[p.Volume.Kind], b
		switch {
		case !c.inPartitions() || at+512 > p.Len:
			continue
		case at > 0:
			if sector, err = ondisk.Bytes(g.Disk, p.Off+at, 512); err != nil {
				return false, err
			}
		}
		if c.Known(sector[:CodeLen]) {
			return true, nil
		}
	}
	return false, nil
}

// Starts reports whether the boot reads the boot sector of a partition without a loader's menu. The boot always reads
// sector 0 of the disk, number 0.
func (g *Guest) Starts(home Partition) bool { return home.Number == 0 || g.Chooses(home) }

// Breaks reports that a move of a partition (0 for any) breaks the loader in the boot sector of home. If only a menu
// can start that loader, it is a warning: many boot sectors are left over from removed systems.
func (f *Found) Breaks(g *Guest, home Partition, code string, partition int, text, remedy string) {
	if g.Starts(home) {
		f.Unbootable(code, partition, text, remedy)
		return
	}
	const unless = ". The code in sector 0 does not read that boot sector: this matters only if another loader's " +
		"menu does"
	f.Warn(code, partition, text+unless, "if you boot from it, reinstall that loader in the copy")
}

// Loaders finds the references stored by boot loaders in sector 0 and in boot sectors.
var Loaders = Finder{Name: "boot loaders", Find: findLoaders}

func findLoaders(g *Guest) (f Found, err error) {
	for _, c := range g.Codes {
		if c.Find == nil {
			continue
		}
		found, err := c.Find(g, c)
		if err != nil {
			return f, fmt.Errorf("%s: %w", c.Name, err)
		}
		f.Add(found)
	}
	return f, nil
}
