package volume

import (
	"encoding/binary"
	"fmt"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// vmfs is the header of a device that the file system of VMware ESXi lies on. VMware has published nothing. Spec:
// dissect.vmfs, c_lvm.py, struct LVM_DevMetadata.
var vmfs = &row{
	kinds: []Traits{{Kind: VMFS, Title: "VMFS", NeverStale: true}},
	what:  "vmfs device header", at: []int64{1 << 20}, size: units.SectorSize, order: binary.LittleEndian,
	magic: []Mark{{0, "\x0d\xd0\x01\xc0"}},
	checks: func(s *super) {
		s.check(
			check{"version", 4, 4, within(3, 6)},
			check{"data offset", 122, 8, below(ondisk.U64(s.d.Size())).
				says("less than %d, the size of the device", s.d.Size())},
		)
	},
	volume: func(s *super) *Volume {
		v := &Volume{Kind: VMFS, Size: s.d.Size(), DataStart: ondisk.I64(s.u64(122))}
		v.Add("device", vmfsID(s.b[130:146]))
		v.Note("vmfs", ondisk.Refuse, "VMFS: a moved VMFS is taken for a snapshot by ESXi",
			"move the virtual machines to a new datastore")
		vmfsHeader(v, s)
		return v
	},
}

// vmfsHeader reads the header of the file system. Only the first device of a large VMFS has one. Local and later
// variants count the magic number up; version 14 is VMFS 5, 24 VMFS 6. Spec: dissect.vmfs, c_vmfs.py, struct
// FS3_Descriptor.
func vmfsHeader(v *Volume, s *super) {
	const fromData, magic, lastMagic = 2 << 20, 0x2fabf15e, 0x2fabf161
	at := v.DataStart + fromData
	if at > s.d.Size()-units.SectorSize {
		return
	}
	b := s.read(at, units.SectorSize)
	if b == nil {
		return
	}
	le := binary.LittleEndian
	if n := le.Uint32(b); n < magic || n > lastMagic {
		v.Add("file system", "begins on another device")
		return
	}
	v.UUID, v.Label = vmfsID(b[9:25]), Text(b[29:157])
	version := 3
	switch major := le.Uint32(b[4:]); {
	case major >= 24:
		version = 6
	case major >= 14:
		version = 5
	}
	v.Addf("version", "%d.%d", version, b[8])
	if n := le.Uint64(b[161:]); n <= 1<<30 {
		v.BlockSize = ondisk.I64(n)
	}
}

// vmfsID formats an identifier as ESXi and libblkid do: two numbers, a half, and the address of a network card.
func vmfsID(b []byte) string {
	le := binary.LittleEndian
	return fmt.Sprintf("%08x-%08x-%04x-%x", le.Uint32(b), le.Uint32(b[4:]), le.Uint16(b[8:]), b[10:16])
}
