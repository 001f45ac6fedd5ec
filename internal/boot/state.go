package boot

import (
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume"
)

// State is the shutdown state of the machine when its disk was copied, as far as the disk shows it.
type State string

// States, as worded in all reports.
const (
	ShutDown   State = "shut down"
	Running    State = "running" // in use, or stopped without a shutdown
	Hibernated State = "hibernated"
	NotKnown   State = "unknown"
)

// Sign is the state shown by one file or volume.
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
