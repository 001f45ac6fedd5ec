package volume

import (
	"encoding/binary"
	"strconv"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
)

// ZFS is a device of a pool. Spec of its room for boot loaders: ZFS On-Disk Specification, 1.3; GRUB 2.06,
// grub_zfs_embed.
const ZFS Kind = "zfs_member"

var zfs = Prober{
	Kinds: []Traits{{Kind: ZFS, Title: "ZFS", InSlice: true, Checksummed: 4 << 20}},
	Probe: probeZFS,
}

// A device of a ZFS pool has four labels, two at the start and two at the end. A label holds a packed list of names and values
// and a ring of uberblocks. Spec: ZFS On-Disk Specification (draft, 2006), 1.2 "Vdev Labels".
const (
	zfsWhat      = "zfs label"
	zfsLabel     = 256 << 10
	atZFSList    = 16 << 10
	zfsListSize  = 112 << 10
	atUberblocks = 128 << 10
	uberblock    = 1 << 10 // the least distance between two
	uberMagic    = 0x00bab10c
	zfsDataStart = 4 << 20 // behind two labels and the boot area
	zfsMinSize   = 64 << 20
)

func probeZFS(d disk.Disk) (*Volume, error) {
	var broken error
	if d.Size() < zfsMinSize {
		return nil, ondisk.ErrNoMatch
	}
	for _, at := range []int64{0, zfsLabel} {
		b, err := ondisk.Bytes(d, at+atZFSList, nvHeader+nvVersion)
		if err != nil {
			return nil, err
		}
		if !isPackedList(b) {
			continue
		}
		if b, err = ondisk.Bytes(d, at+atZFSList, zfsListSize); err != nil {
			return nil, err
		}
		var z zfsConfig
		if err = z.read(b); err == nil {
			return z.volume(d), nil
		}
		found, rerr := hasUberblock(d, at)
		if rerr != nil {
			return nil, rerr
		}
		if found && broken == nil {
			broken = ondisk.Shift(err, at+atZFSList)
		}
	}
	if broken != nil {
		return nil, broken
	}
	return nil, ondisk.ErrNoMatch
}

// hasUberblock reports whether the label at a place is one of ZFS, whatever its list looks like.
func hasUberblock(d disk.Disk, label int64) (bool, error) {
	b, err := ondisk.Bytes(d, label+atUberblocks, zfsLabel-atUberblocks)
	if err != nil {
		return false, err
	}
	for ; len(b) > 0; b = b[uberblock:] {
		if binary.LittleEndian.Uint64(b) == uberMagic || binary.BigEndian.Uint64(b) == uberMagic {
			return true, nil
		}
	}
	return false, nil
}

// zfsConfig is what a label says.
type zfsConfig struct {
	name, guid, pool, kind, host string
	version, state, ashift       uint64
}

// read takes the values of a packed list.
func (z *zfsConfig) read(b []byte) error {
	err := walkList(b[nvHeader:], func(p nvPair) error {
		switch p.name {
		case "name":
			z.name = p.text()
		case "hostname":
			z.host = p.text()
		case "guid":
			z.guid = strconv.FormatUint(p.number(), 10)
		case "pool_guid":
			z.pool = strconv.FormatUint(p.number(), 10)
		case "version":
			z.version = p.number()
		case "state":
			z.state = p.number()
		case "vdev_tree":
			return z.tree(p)
		}
		return nil
	})
	if err == nil && (z.guid == "" || z.version == 0) {
		return field(zfsWhat, "list", 0, "neither guid nor version", "both")
	}
	return err
}

// tree takes the values of the device that are of use; its children are not looked at.
func (z *zfsConfig) tree(p nvPair) error {
	if p.kind != nvList {
		return nil
	}
	return walkList(p.value, func(p nvPair) error {
		switch p.name {
		case "type":
			z.kind = p.text()
		case "ashift":
			z.ashift = p.number()
		}
		return nil
	})
}

func (z *zfsConfig) volume(d disk.Disk) *Volume {
	v := &Volume{Kind: ZFS, Label: z.name, UUID: z.pool, Size: d.Size(), DataStart: zfsDataStart, AtEnd: true}
	const minShift, maxShift = 9, 16
	if z.ashift >= minShift && z.ashift <= maxShift {
		v.BlockSize = 1 << z.ashift
	}
	v.says("pool", z.name)
	v.says("pool version", strconv.FormatUint(z.version, 10))
	v.says("state", zfsState(z.state))
	v.says("layout", z.kind)
	v.says("device guid", z.guid)
	v.says("last host", z.host)
	return v
}

// zfsState is the state of a pool. Spec: OpenZFS, include/sys/fs/zfs.h, pool_state_t.
func zfsState(n uint64) string {
	names := []string{"active", "exported", "destroyed", "spare", "cache"}
	if n < uint64(len(names)) {
		return names[n]
	}
	return strconv.FormatUint(n, 10)
}
