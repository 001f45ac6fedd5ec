package boot

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume"
)

// Result describes how a disk boots.
type Result struct {
	Found // Chain is in boot order
	Code  *Code
	State State // overall state shown by Signs; empty if not examined

	unseen map[int]bool // partitions with unreadable files
	boots  bool         // the disk has boot code, a boot chain or a firmware partition
}

// Read identifies the boot code among codes, runs the finders and returns their results.
func Read(g *Guest, codes []*Code, finders []Finder) (*Result, error) {
	g.Code, g.Codes = Identify(codes, g.Sector0), codes
	r := &Result{Code: g.Code}
	for _, f := range finders {
		found, err := f.Find(g)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name, err)
		}
		r.Add(found)
	}
	r.unseen, r.boots, r.State = g.unseen, r.bootable(g.Partitions), Overall(r.Signs)
	if r.Add(g.missed); !r.boots {
		r.Unseen = nil // a disk that does not boot needs no search
	}
	var clash *ondisk.Issue
	if r.Refs, clash = distinct(r.Refs); clash != nil {
		r.Issues = append(r.Issues, *clash)
	}
	return r, r.checkJournals(g)
}

// Boots reports whether a partition takes part in the boot.
func (r *Result) Boots(partition int) bool {
	return slices.ContainsFunc(r.Chain, func(l Link) bool { return l.Partition == partition })
}

// Remedies.
const (
	InstallAgain = "use --allow-unbootable, and reinstall the boot loader on the copy from a rescue system"
	WhenUnknown  = "use --allow-unbootable if nothing boots from the disk, or if you reinstall the boot loader on " +
		"the copy"
)

// Found is the result of a finder. A move keeps the order of Refs.
type Found struct {
	Refs   []Ref
	Issues []ondisk.Issue
	Chain  []Link
	Signs  []Sign // of the state in which the machine was left

	// Fixed lists ranges outside all partitions whose place and bytes the boot needs.
	Fixed []Fixed
	// ByPlace is the range outside all partitions that may hold a loader which a board reads from a fixed place.
	ByPlace disk.Range
	// DOS lists the numbers of partitions whose boot sector belongs to DOS or OS/2, or starts without the active flag.
	DOS []int
	// Windows reports a Windows in any partition.
	Windows bool
	// Unlisted counts the positions on other disks missing from Refs: too many, or impossible to rewrite.
	Unlisted int
	// Unseen lists the searches that could not look everywhere.
	Unseen []Unseen
}

// Unseen is a place that a search could not read. A search without an entry has seen everything.
type Unseen struct {
	Partition int    `json:"partition,omitempty"` // 0 is the disk
	What      string `json:"what"`                // the object of the search, such as "the configuration of GRUB"
	Why       string `json:"why"`
}

func (u Unseen) String() string { return fmt.Sprintf("%s: not read: %s", u.What, u.Why) }

// maxUnseen limits the places listed for a disk. A table can name thousands of partitions.
const maxUnseen = 32

// NotSeen records, without duplicates, that a search could not look into a partition (0 is the disk).
func (f *Found) NotSeen(partition int, what, why string) {
	u := Unseen{partition, what, why}
	if len(f.Unseen) < maxUnseen && !slices.Contains(f.Unseen, u) {
		f.Unseen = append(f.Unseen, u)
	}
}

// Fixed is a range of the disk that must keep its place and its bytes; otherwise Issue applies.
type Fixed struct {
	disk.Range
	Issue ondisk.Issue
}

// Link is one step of a boot, in words.
type Link struct {
	Partition int    `json:"partition,omitempty"` // 0 is the disk
	Text      string `json:"text"`
}

// Finder finds the references of one kind, and the parts of the boot that a move breaks and no rewrite repairs.
type Finder struct {
	Name string
	Find func(g *Guest) (Found, error)
}

// Add appends the result of another finder.
func (f *Found) Add(more Found) {
	f.Refs = append(f.Refs, more.Refs...)
	f.Issues = append(f.Issues, more.Issues...)
	f.Chain = append(f.Chain, more.Chain...)
	f.Signs = append(f.Signs, more.Signs...)
	f.Fixed, f.DOS = append(f.Fixed, more.Fixed...), append(f.DOS, more.DOS...)
	if f.ByPlace.Len == 0 {
		f.ByPlace = more.ByPlace
	}
	f.Windows, f.Unlisted = f.Windows || more.Windows, f.Unlisted+more.Unlisted
	for _, u := range more.Unseen {
		f.NotSeen(u.Partition, u.What, u.Why)
	}
}

// Link adds a step of the boot. Partition 0 is the disk.
func (f *Found) Link(partition int, format string, args ...any) {
	f.Chain = append(f.Chain, Link{partition, fmt.Sprintf(format, args...)})
}

// Unbootable reports that a move of a partition (0 for any) breaks the boot.
func (f *Found) Unbootable(code string, partition int, text, remedy string) {
	f.onMove(ondisk.Unbootable, code, partition, text, remedy)
}

// Warn adds a warning that applies if a partition (0 for any) moves.
func (f *Found) Warn(code string, partition int, text, remedy string) {
	f.onMove(ondisk.Warn, code, partition, text, remedy)
}

func (f *Found) onMove(effect ondisk.Effect, code string, partition int, text, remedy string) {
	f.Issues = append(f.Issues, ondisk.Issue{
		Code: code, Effect: effect, OnMove: true, Partition: partition, Text: text, Remedy: remedy,
	})
}

// Unread reports that a file of the guest is unusable because of err. A missing file is no issue, and a read error is
// returned.
func (f *Found) Unread(code string, partition int, what string, err error, remedy string) error {
	switch {
	case err == nil, errors.Is(err, fs.ErrNotExist), errors.Is(err, ondisk.ErrNoMatch):
		return nil
	case ondisk.Understood(err):
		f.Unbootable(code, partition, fmt.Sprintf("%s: %v", what, err), remedy)
		return nil
	}
	return err
}

// HiddenSectors adds the count of sectors before a volume, 32 bits at byte off of the partition. primary marks the
// field that boot code uses.
func (f *Found) HiddenSectors(g *Guest, p Partition, kind string, off, sectorSize int64, primary bool) error {
	r := Ref{Kind: kind, Partition: p.Number, Off: off, At: []disk.Range{{Off: p.Off + off, Len: 4}}}
	raw, err := g.Read(r.At)
	if err != nil {
		return err
	}
	r.Raw, r.Encode = raw, EncodeSectors(sectorSize)
	r.Points = int64(binary.LittleEndian.Uint32(raw)) * sectorSize
	f.OwnStart(r, p, primary)
	return nil
}

// OwnStart adds a reference that should point to the start of its own partition. Any other target is reported, and the
// reference stays. primary marks a reference that boot code uses.
func (f *Found) OwnStart(r Ref, p Partition, primary bool) {
	switch {
	case r.Points == p.Off:
		r.Target = p.Number
	case p.Kind == table.Logical && r.Points == p.Off-p.Record():
		// DOS and Windows count the hidden sectors of a logical drive from its boot record.
		r.Target, r.FromRecord = p.Number, true
	default:
		r.Stays = fmt.Sprintf("it points to byte %d, but the partition starts at byte %d", r.Points, p.Off)
		f.stale(r, p, primary)
	}
	f.Refs = append(f.Refs, r)
}

// stale reports a reference that does not point to its own partition.
func (f *Found) stale(r Ref, p Partition, primary bool) {
	place := r.At[0].Off
	text := fmt.Sprintf("%s at %#x point to byte %d, but the partition starts at byte %d: ", r.Kind, place,
		r.Points, p.Off)
	i := ondisk.Issue{Code: "stale-reference", Effect: ondisk.Warn, Partition: p.Number, Text: text + "left as found"}
	switch {
	case r.Points == 0:
		// Formatters that see only the partition write 0; nothing ever used it.
		i.Effect = ondisk.Note
	case p.Volume.Kind == volume.NTFS && primary && p.Kind != table.Logical:
		no := i
		no.Code, no.Effect, no.OnMove = "ntfs-inconsistent", ondisk.Unbootable, true
		no.Text = text + "the boot sector does not fit the partition table"
		no.Remedy = "correct it in the guest (chkdsk, bootrec) and shut it down cleanly, or accept it with " +
			"--allow-unbootable"
		f.Issues = append(f.Issues, no)
	}
	f.Issues = append(f.Issues, i)
}

// Config describes where a loader on the disk looks for its configuration. The loader's finder adds it; the finder of
// configurations follows it.
type Config struct {
	Loader string // "GRUB 2 in the MBR"
	Syntax Syntax
	Home   int // number of the partition for relative names; 0 if unknown
	// Script holds the commands built into the loader, and Prefix its first folder in GRUB's notation:
	// "(,msdos1)/boot/grub".
	Script, Prefix string
	Paths          []string // candidate names; the loader opens the first one that exists
	Anywhere       bool     // the loader looks for Paths in all partitions; else in Home
	Why            string   // why the place is unknown; empty if it is known
}

// Syntax is the language of a configuration.
type Syntax string

// Syntaxes of loaders. Options covers languages whose lines hold only kernel options and partition names.
const (
	Options    Syntax = ""
	GRUB2      Syntax = "grub2"
	GRUBLegacy Syntax = "grub-legacy"
	SYSLINUX   Syntax = "syslinux"
)

// maxConfigs limits the loaders with a followed configuration.
const maxConfigs = 64

// Configured records where a loader looks for its configuration.
func (g *Guest) Configured(c Config) {
	if len(g.configs) < maxConfigs {
		g.configs = append(g.configs, c)
	}
}

// Configs returns the recorded configurations in boot order.
func (g *Guest) Configs() []Config { return g.configs }

// NotSeen records that a search could not read the files of a partition. An empty object of the search (what) means
// that the partition can hold none. err is an error of Files or of a file.
func (g *Guest) NotSeen(p Partition, what string, err error) {
	if g.unseen == nil {
		g.unseen = map[int]bool{}
	}
	g.unseen[p.Number] = true
	if what != "" && p.Kind != table.Extended && p.Volume.Kind != volume.Swap {
		g.missed.NotSeen(p.Number, what, WhyUnseen(p, err))
	}
}

// Missed reports whether a search could not read the whole partition.
func (g *Guest) Missed(p Partition) bool { return g.unseen[p.Number] }

// WhyUnseen describes an error of Files, or of a file in it.
func WhyUnseen(p Partition, err error) string {
	switch {
	case !errors.Is(err, ondisk.ErrNoMatch):
		return err.Error()
	case Readers[p.Volume.Kind] != nil: // the volume reaches beyond the disk
		return fmt.Sprintf("partition %d (%s) ends behind the disk", p.Number, p.Volume.Kind)
	case p.Volume.Kind == volume.Unknown:
		return fmt.Sprintf("the content of partition %d is unknown", p.Number)
	}
	return fmt.Sprintf("trueup does not read files in %s (partition %d)", p.Volume.Kind, p.Number)
}
