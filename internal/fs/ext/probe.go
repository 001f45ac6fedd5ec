package ext

import (
	"fmt"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

// Prober finds ext2, ext3 and ext4, and the journal of one on another device.
var Prober = volume.Prober{
	Kinds: []volume.Traits{
		{Kind: "ext"},
		{Kind: volume.Ext2},
		{Kind: volume.Ext3},
		{Kind: volume.Ext4},
		{Kind: volume.JBD, Title: "ext journal"},
	},
	Marks: []volume.Mark{{Off: superAt + 56, Bytes: "\x53\xef"}},
	Probe: probe,
}

func probe(d disk.Disk) (*volume.Volume, error) {
	s, err := readSuper(d)
	if err != nil {
		return nil, err
	}
	v := &volume.Volume{
		Kind: kind(s), Label: volume.Text(s.Label[:]), UUID: volume.UUID(s.UUID),
		BlockSize: s.blockSize(), Size: s.blockCount() * s.blockSize(),
	}
	if s.Incompat&incompatRecover != 0 {
		v.Note("ext-journal", ondisk.Note, "the ext journal has not been replayed: the guest was not shut down cleanly",
			"")
	}
	if v.Kind != volume.JBD && s.Compat&compatJournal == 0 && s.State&stateValid == 0 {
		v.Note("ext-dirty", ondisk.Note, "the ext file system was not unmounted cleanly", "")
	}
	if unknown := s.Incompat &^ incompatKnown; unknown != 0 {
		v.Note("ext-features", ondisk.Note,
			fmt.Sprintf("unknown incompatible ext features %#x: the volume moves as opaque bytes", unknown), "")
	}
	return v, nil
}

// kind follows the rule of libblkid: the features in use decide.
func kind(s *super) volume.Kind {
	switch {
	case s.journal():
		return volume.JBD
	case s.modern():
		return volume.Ext4
	case s.Compat&compatJournal != 0:
		return volume.Ext3
	default:
		return volume.Ext2
	}
}
