package volume

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
)

// zfs finds a device of a pool. Spec of its room for boot loaders: ZFS On-Disk Specification, 1.3; GRUB 2.06,
// grub_zfs_embed.
var zfs = Prober{
	Kinds: []Traits{{Kind: ZFS, Title: "ZFS", InSlice: true, Checksummed: 4 << 20}},
	Probe: probeZFS,
}

// A device of a ZFS pool has four labels, two at the start and two at the end. A label holds a packed list of names and
// values and a ring of uberblocks. Spec: ZFS On-Disk Specification (draft, 2006), 1.2 "Vdev Labels".
const (
	zfsLabel     = 256 << 10
	atZFSList    = 16 << 10
	zfsListSize  = 112 << 10
	atUberblocks = 128 << 10
	uberblock    = 1 << 10 // the least distance between two
	uberMagic    = 0x00bab10c
	zfsDataStart = 4 << 20 // behind two labels and the boot area
	zfsMinSize   = 64 << 20
)

// Lists are packed in XDR. Spec: OpenZFS, module/nvpair/nvpair.c, "XDR encoding"; include/sys/nvpair.h, data_type_t.
const (
	nvNumber  = 8
	nvText    = 9
	nvMaxText = 255 // bytes of a name. Spec: OpenZFS, include/sys/fs/zfs.h, ZFS_MAX_DATASET_NAME_LEN
)

func probeZFS(d disk.Disk) (*Volume, error) {
	if d.Size() < zfsMinSize {
		return nil, ondisk.ErrNoMatch
	}
	var broken error
	for _, at := range []int64{0, zfsLabel} {
		v, err := readZFS(d, at)
		switch {
		case err == nil:
			return v, nil
		case isBroken(err):
			broken = err
		case !errors.Is(err, ondisk.ErrNoMatch):
			return nil, err
		}
	}
	if broken != nil {
		return nil, broken
	}
	return nil, ondisk.ErrNoMatch
}

// readZFS reads the label at a place. A device in use has a list with version and GUID.
func readZFS(d disk.Disk, at int64) (*Volume, error) {
	const head = 12 // XDR, byte order of the machine, two reserved bytes; version 0; names that stand once
	b, err := ondisk.Bytes(d, at+atZFSList, head)
	if err != nil || b[0] != 1 || b[1] > 1 || !bytes.Equal(b[2:], []byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 1}) {
		return nil, orNoMatch(err)
	}
	if b, err = ondisk.Bytes(d, at+atZFSList, zfsListSize); err != nil {
		return nil, err
	}
	if nvUint(b, "version") == 0 || nvUint(b, "guid") == 0 {
		if err := findUberblock(d, at); err != nil {
			return nil, err
		}
		return nil, ondisk.Field("zfs label", "list", at+atZFSList, "neither guid nor version", "both")
	}
	v := &Volume{Kind: ZFS, Size: d.Size(), DataStart: zfsDataStart, AtEnd: true}
	if name := nvValue(b, "name", nvText, 4); name != nil {
		n := min(binary.BigEndian.Uint32(name), nvMaxText)
		v.Label = Text(name[4:min(len(name), 4+int(n))])
	}
	if n := nvUint(b, "pool_guid"); n != 0 {
		v.UUID = strconv.FormatUint(n, 10)
	}
	// The size of a device with parity is that of all its disks. Spec: OpenZFS, include/sys/vdev_impl.h,
	// VDEV_LABEL_START_SIZE and VDEV_LABEL_END_SIZE: two labels and the boot block in front, two labels behind.
	if n := nvUint(b, "asize"); n < math.MaxInt64/2 && nvUint(b, "nparity") == 0 {
		v.Size = max(v.Size, zfsDataStart+ondisk.I64(n)+2*zfsLabel)
	}
	const minShift, maxShift = 9, 16
	if n := nvUint(b, "ashift"); n >= minShift && n <= maxShift {
		v.BlockSize = 1 << n
	}
	return v, nil
}

// findUberblock returns ErrNoMatch for a label without an uberblock: it is not one of ZFS, whatever its list looks
// like.
func findUberblock(d disk.Disk, label int64) error {
	b, err := ondisk.Bytes(d, label+atUberblocks, zfsLabel-atUberblocks)
	if err != nil {
		return err
	}
	for ; len(b) > 0; b = b[uberblock:] {
		if binary.LittleEndian.Uint64(b) == uberMagic || binary.BigEndian.Uint64(b) == uberMagic {
			return nil
		}
	}
	return ondisk.ErrNoMatch
}

// nvValue returns the bytes behind the first name in a packed list that has one value of a kind, at least size bytes;
// nil if absent. It searches nested lists, too.
func nvValue(list []byte, name string, kind uint32, size int) []byte {
	pair := binary.BigEndian.AppendUint32(nil, uint32(len(name))) //nolint:gosec // names are those of this file
	pair = append(pair, name+strings.Repeat("\x00", -len(name)&3)...)
	pair = binary.BigEndian.AppendUint32(pair, kind)
	pair = binary.BigEndian.AppendUint32(pair, 1)
	_, value, ok := bytes.Cut(list, pair)
	if !ok || len(value) < size {
		return nil
	}
	return value
}

// nvUint returns a number of a packed list; 0 if absent.
func nvUint(list []byte, name string) uint64 {
	if value := nvValue(list, name, nvNumber, 8); value != nil {
		return binary.BigEndian.Uint64(value)
	}
	return 0
}

// orNoMatch returns ErrNoMatch, or the error of reading.
func orNoMatch(err error) error {
	if err == nil {
		err = ondisk.ErrNoMatch
	}
	return err
}
