package volume

import (
	"fmt"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/fs/ext"
	"github.com/trueup/trueup/internal/ondisk"
)

// Kinds of ext, and the journal of one on another device.
const (
	Ext2 Kind = "ext2"
	Ext3 Kind = "ext3"
	Ext4 Kind = "ext4"
	JBD  Kind = "jbd"
)

var extVolumes = Prober{
	Kinds: []Traits{{Kind: "ext"}, {Kind: Ext2}, {Kind: Ext3}, {Kind: Ext4}, {Kind: JBD, Title: "ext journal"}},
	Marks: []Mark{{ext.At + 56, "\x53\xef"}},
	Probe: probeExt,
}

func probeExt(d disk.Disk) (*Volume, error) {
	s, err := ext.Read(d)
	if err != nil {
		return nil, err
	}
	v := &Volume{
		Kind: extKind(s), Label: zeroTerminated(s.Label[:]), UUID: uuid(s.UUID),
		BlockSize: s.BlockSize(), Size: s.Blocks() * s.BlockSize(),
	}
	if s.Incompat&ext.IncompatRecover != 0 {
		v.note("ext-journal", ondisk.Note, "the ext journal has not been replayed: the guest was not shut down cleanly", "")
	}
	if unknown := s.Incompat &^ ext.IncompatKnown; unknown != 0 {
		v.note("ext-features", ondisk.Note,
			fmt.Sprintf("unknown incompatible ext features %#x: the volume moves as opaque bytes", unknown), "")
	}
	return v, nil
}

// extKind follows the rule of libblkid: the features in use decide.
func extKind(s *ext.Super) Kind {
	switch {
	case s.Journal():
		return JBD
	case s.Modern():
		return Ext4
	case s.Compat&ext.CompatJournal != 0:
		return Ext3
	default:
		return Ext2
	}
}

// uuid is a UUID as libblkid prints it, which takes zeros for none.
func uuid(b [16]byte) string {
	if b == [16]byte{} {
		return ""
	}
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:])
}
