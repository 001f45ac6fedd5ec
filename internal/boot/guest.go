package boot

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/fs/ext"
	"github.com/trueup/trueup/internal/fs/fat"
	"github.com/trueup/trueup/internal/fs/ntfs"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume"
)

// maxFileSystems limits the file systems opened on a disk. A table can name thousands.
const maxFileSystems = 128

// Partition is a partition with its volume.
type Partition struct {
	table.Partition
	Volume *volume.Volume
	// Fixed is the reason why the partition must not move: firmware or a loader finds it by its place. It is empty if
	// no such reason is known.
	Fixed string
	// InFile is the byte of the file at which the partition starts, in an image that a hypervisor runs in place.
	// Otherwise it is 0.
	InFile int64
	// Shift is the distance from the start on the disk to the start that the storage sees, in bytes: see align.InFiles.
	Shift int64
}

// Suffix returns " of partition 1", to follow the name of a file or volume. It is empty for a volume over the whole
// disk.
func (p Partition) Suffix() string {
	if p.Number == 0 {
		return ""
	}
	return fmt.Sprintf(" of partition %d", p.Number)
}

// Guest is the disk that finders examine.
type Guest struct {
	Disk       disk.Disk
	Sector0    []byte // the boot code of sector 0, 440 bytes
	Code       *Code
	Scheme     table.Scheme
	BesideGPT  bool   // the MBR does not announce the GPT behind it
	Signature  uint32 // of the MBR
	GUID       string // of the GPT
	Partitions []Partition

	Codes  []*Code
	areas  map[int]*Code  // loaders in non-empty boot areas, by partition number; nil before the first read
	files  map[int]opened // by partition number
	budget *guestfile.Budget
	unseen map[int]bool // numbers of partitions with unreadable files
	missed Found        // the same partitions, with reasons

	configs []Config

	// Windows holds the state of the finders of package windows.
	Windows any
}

type opened struct {
	fs  guestfile.FS
	err error
}

// Hybrid reports whether the MBR of a GPT mirrors partitions. Windows then uses that MBR, and identifies the disk by
// its signature.
func (g *Guest) Hybrid() bool {
	_, ok := g.find(func(p Partition) bool { return p.Slot > 0 })
	return ok
}

// Readers maps the supported kinds of volumes to functions that open the file system.
var Readers = map[volume.Kind]func(*guestfile.Budget, disk.Disk) (guestfile.FS, error){
	volume.NTFS:  ntfs.Open,
	volume.FAT12: fat.Open,
	volume.FAT16: fat.Open,
	volume.FAT32: fat.Open,
	volume.Ext2:  ext.Open,
	volume.Ext3:  ext.Open,
	volume.Ext4:  ext.Open,
}

// Files opens the file system of a partition. It returns ErrNoMatch for an unsupported kind.
func (g *Guest) Files(p Partition) (guestfile.FS, error) {
	open := Readers[p.Volume.Kind]
	if open == nil || p.Kind == table.Extended || p.Len <= 0 || p.End() > g.Disk.Size() {
		return nil, ondisk.ErrNoMatch
	}
	if o, ok := g.files[p.Number]; ok {
		return o.fs, o.err
	}
	if len(g.files) == maxFileSystems {
		const limit = "partition %d: %w of %d file systems that are looked into"
		return nil, fmt.Errorf(limit, p.Number, ondisk.ErrLimit, maxFileSystems)
	}
	if g.files == nil {
		g.files, g.budget = map[int]opened{}, guestfile.NewBudget()
	}
	var o opened
	o.fs, o.err = open(g.budget, disk.Section(g.Disk, p.Range))
	o.err = ondisk.Shift(o.err, p.Off)
	g.files[p.Number] = o
	return o.fs, o.err
}

// WithFile calls do for each partition that has one of the files, with the first path that exists.
func (g *Guest) WithFile(paths []string, do func(p Partition, path string)) error {
	for _, p := range g.Partitions {
		path, err := g.firstFile(p, paths)
		switch {
		case err == nil:
			do(p, path)
		case ondisk.Understood(err):
			g.NotSeen(p, strings.Join(paths, " or "), err)
		case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, ondisk.ErrNoMatch):
			return fmt.Errorf("partition %d: %w", p.Number, err)
		}
	}
	return nil
}

func (g *Guest) firstFile(p Partition, paths []string) (string, error) {
	files, err := g.Files(p)
	if err != nil {
		return "", err
	}
	for _, path := range paths {
		if _, err = files.Open(path); !errors.Is(err, fs.ErrNotExist) {
			return path, err
		}
	}
	return "", err
}

// At returns the ranges on the disk of bytes [off, off+n) of a file, and the bytes. It reads them twice, through the
// file and from the disk: a rewrite must replace the bytes that were found.
func (g *Guest) At(p Partition, f *guestfile.File, off, n int64) ([]disk.Range, []byte, error) {
	at, err := f.Where(off, n)
	if err != nil {
		return nil, nil, err
	}
	raw, err := ondisk.Bytes(f, off, n)
	if err != nil {
		return nil, nil, err
	}
	for i := range at {
		at[i].Off += p.Off
	}
	stored, err := g.Read(at)
	if err != nil {
		return nil, nil, err
	}
	if !bytes.Equal(raw, stored) {
		const differ = "byte %d of file %.256q reads % x, and % x at its places %v: %w"
		return nil, nil, fmt.Errorf(differ, off, f.Path, raw, stored, at, errPlaces)
	}
	return at, raw, nil
}

var errPlaces = errors.New("a file and its places differ")

// Read returns the concatenated bytes of ranges of the disk.
func (g *Guest) Read(at []disk.Range) ([]byte, error) {
	var out []byte
	for _, r := range at {
		b, err := ondisk.Bytes(g.Disk, r.Off, r.Len)
		if err != nil {
			return nil, err
		}
		out = append(out, b...)
	}
	return out, nil
}

// StartingAt finds the partition that starts at a byte offset of the disk. A logical partition has priority over its
// extended one.
func (g *Guest) StartingAt(off int64) (Partition, bool) {
	return g.find(func(p Partition) bool { return p.Off == off })
}

// Holding finds the partition that contains all n bytes from off on.
func (g *Guest) Holding(off, n int64) (Partition, bool) {
	return g.find(func(p Partition) bool { return off >= p.Off && off < p.End() && n <= p.End()-off })
}

// Numbered finds a partition by its number. It returns a zero Partition if there is none.
func (g *Guest) Numbered(number int) Partition {
	p, _ := g.find(func(p Partition) bool { return p.Number == number })
	return p
}

func (g *Guest) find(is func(Partition) bool) (found Partition, ok bool) {
	for _, p := range g.Partitions {
		if is(p) && (!ok || found.Kind == table.Extended) {
			found, ok = p, true
		}
	}
	return found, ok
}

// Everywhere turns a finder for one partition into a finder for the disk.
func Everywhere(find func(g *Guest, p Partition, f *Found) error) func(*Guest) (Found, error) {
	return func(g *Guest) (f Found, err error) {
		for _, p := range g.Partitions {
			if err := find(g, p, &f); err != nil {
				return f, fmt.Errorf("partition %d: %w", p.Number, err)
			}
		}
		return f, nil
	}
}

// FirstByte returns the start of the first partition. Data before it never moves.
func (g *Guest) FirstByte() int64 {
	first := g.Disk.Size()
	for _, p := range g.Partitions {
		first = min(first, p.Off)
	}
	return first
}

// firmwareType names the type of a partition from which firmware, or a loader in the MBR, boots. It is empty for any
// other.
func firmwareType(p Partition) string {
	switch {
	case p.Is(table.ESP):
		return "an EFI system partition"
	case p.Is(table.PReP):
		return "a PReP boot partition"
	case p.Is(table.BIOSBoot):
		return "a BIOS boot partition"
	}
	return ""
}

// IsESP reports whether UEFI firmware starts loaders from a partition.
func IsESP(p Partition) bool { return p.Is(table.ESP) && p.Kind != table.Logical }

// Needs returns why a partition is, or can be, part of the system that the disk boots. It is empty for a data
// partition. An unreadable partition can hold a system if the disk boots at all.
func (r *Result) Needs(p Partition) string {
	if p.Kind == table.Extended {
		return ""
	}
	if name := firmwareType(p); name != "" {
		return "it is " + name
	}
	for _, l := range r.Chain {
		if l.Partition == p.Number {
			return "it is in the boot chain: " + l.Text
		}
	}
	switch {
	case p.Active:
		return "it is the active partition, from which a BIOS boots"
	case r.unseen[p.Number] && r.boots && p.Volume.Kind != volume.Swap:
		const unseen = "the disk boots, and the partition (%s) may hold the system: trueup cannot read its files"
		return fmt.Sprintf(unseen, p.Volume.Kind)
	}
	return ""
}

// BootsBy returns why a machine can boot from the disk. It is empty for a data disk, although Windows writes its code
// into sector 0 of data disks too.
func (g *Guest) BootsBy() string {
	switch c := g.Code; {
	case c == Unknown:
		return "the code in sector 0 is unknown"
	case c.AnyFlag:
		return c.Name + " is in sector 0"
	}
	for _, p := range g.Partitions {
		name := firmwareType(p)
		switch {
		case name != "":
			return fmt.Sprintf("partition %d is %s", p.Number, name)
		case p.Active:
			return fmt.Sprintf("partition %d is active", p.Number)
		case g.Code != Empty && g.Chooses(p):
			return fmt.Sprintf("%s in sector 0 can boot partition %d", g.Code.Name, p.Number)
		}
	}
	return ""
}

// bootable reports whether anything on the disk looks like the start of a boot.
func (r *Result) bootable(parts []Partition) bool {
	return r.Code != Empty ||
		slices.ContainsFunc(parts, func(p Partition) bool { return r.Boots(p.Number) || firmwareType(p) != "" })
}

// State is the shutdown state of the machine when its disk was copied, as far as the disk shows it.
type State string

// States, as worded in all reports.
const (
	ShutDown   State = "shut down"
	Running    State = "running" // in use, or stopped without a shutdown
	Hibernated State = "hibernated"
	NotKnown   State = "unknown"
)

// Sign is the evidence of a state in one file or volume.
type Sign struct {
	State     State  `json:"state"`
	Partition int    `json:"partition,omitempty"` // 0 is the disk
	Text      string `json:"text"`
	OnMove    string `json:"on_move,omitempty"` // consequence for a move, if any
}

// Sign adds a sign of a partition.
func (f *Found) Sign(s State, p Partition, onMove, format string, args ...any) {
	f.Signs = append(f.Signs, Sign{s, p.Number, fmt.Sprintf(format, args...), onMove})
}

// gravity orders the states: an open or unknown volume outweighs a closed one.
var gravity = []State{ShutDown, NotKnown, Running, Hibernated}

// Gravity ranks a state; -1 is no state.
func (s State) Gravity() int { return slices.Index(gravity, s) }

// Overall returns the gravest state of signs, or NotKnown without a sign.
func Overall(signs []Sign) State {
	if len(signs) == 0 {
		return NotKnown
	}
	return slices.MaxFunc(signs, func(a, b Sign) int { return a.State.Gravity() - b.State.Gravity() }).State
}

// marks maps the issues of probers that report an unclosed volume.
var marks = map[string]struct {
	state        State
	text, onMove string
}{
	"ext-journal": {
		Running, "the journal of %s needs a replay", "a position in a block of the journal" + cannotChange,
	},
	"ext-dirty":        {Running, inUse, ""},
	"fat-dirty":        {Running, inUse, "a position in a file with different entries in the two FATs" + cannotChange},
	"exfat-dirty":      {Running, inUse, ""},
	"hfsplus-dirty":    {Running, inUse, ""},
	"jfs-dirty":        {Running, inUse, ""},
	"reiserfs-dirty":   {Running, inUse, ""},
	"ntfs-dirty":       {Running, inUse, OnMoveRepair},
	"hibernated-linux": {Hibernated, "%s holds a hibernated Linux", NoMove},
}

const (
	inUse        = "%s is marked as in use"
	cannotChange = " cannot change; a move that needs it is refused"
)

// NoMove is the consequence of a system that is, or may be, hibernated.
const NoMove = "no partition may move"

// OnMoveRepair is the consequence of an NTFS that Windows repairs, or may repair, before it reads a file.
const OnMoveRepair = "a position in its files" + cannotChange

// marked lists the kinds of volumes with a dirty mark that a clean unmount removes. FAT12 has none under DOS. Spec:
// Microsoft FAT specification 1.03, "ClnShutBitMask".
var marked = []volume.Kind{
	volume.Ext2, volume.Ext3, volume.Ext4, volume.FAT16, volume.FAT32, volume.ExFAT, volume.HFSPlus, volume.JFS,
	volume.ReiserFS,
}

// Volumes finds the signs in the volumes themselves.
var Volumes = Finder{Name: "marks of volumes", Find: Everywhere(func(g *Guest, p Partition, f *Found) error {
	f.Signs = append(f.Signs, SignsOf(p)...)
	if p.Volume.Kind != volume.Unknown || p.Kind == table.Extended || NoFiles(p) {
		return nil
	}
	_, used, err := g.Area(p) // zeros mean an unformatted partition
	if used {
		f.Sign(NotKnown, p, "", "the content of partition %d is unknown, and whether it was closed", p.Number)
	}
	return err
})}

// NoFiles reports whether a partition of unknown content holds no files, because of its type or because it is a loader.
func NoFiles(p Partition) bool {
	return p.Fixed != "" || p.Is(table.NoFiles)
}

// SignsOf returns the signs of a volume. The state of an NTFS is in its log instead.
func SignsOf(p Partition) []Sign {
	var f Found
	v := p.Volume
	name := fmt.Sprintf("the volume (%s)%s", v.Kind, p.Suffix())
	for _, i := range v.Issues {
		if m, ok := marks[i.Code]; ok {
			f.Sign(m.state, p, m.onMove, m.text, name)
		}
	}
	switch {
	case len(f.Signs) > 0 || slices.Contains([]volume.Kind{volume.NTFS, volume.Swap, volume.Unknown}, v.Kind):
	case slices.Contains(marked, v.Kind):
		f.Sign(ShutDown, p, "", "%s is closed", name)
	default:
		f.Sign(NotKnown, p, "", "it is unknown whether %s was closed", name)
	}
	return f.Signs
}
