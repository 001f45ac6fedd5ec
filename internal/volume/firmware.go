package volume

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// firmwareRAID is the metadata that a RAID of a BIOS or of a cheap controller keeps on each disk.
type firmwareRAID struct {
	name    string              // as libblkid calls it
	sectors []int64             // places, from the end of the disk; negative ones from its start
	known   func(b []byte) bool // b is the sector there
}

// firmwareRAIDs are in the order of libblkid. Spec: util-linux, libblkid/src/superblocks/*_raid.c; for the sums of
// nvidia and jmicron dmraid, lib/format/ataraid/nv.c and jm.c.
var firmwareRAIDs = []firmwareRAID{
	{"ddf_raid_member", []int64{1, 257}, isDDF},
	{"isw_raid_member", []int64{2}, func(b []byte) bool {
		return bytes.HasPrefix(b, []byte("Intel Raid ISM Cfg Sig. ")) && b[24] >= '0' && b[24] <= '9' && b[25] == '.'
	}},
	{"lsi_mega_raid_member", []int64{1}, func(b []byte) bool { return bytes.HasPrefix(b, []byte("$XIDE$")) }},
	{"via_raid_member", []int64{1}, isVIA},
	{"silicon_medley_raid_member", []int64{1}, isSilicon},
	{"nvidia_raid_member", []int64{2}, isNVIDIA},
	{
		"promise_fasttrack_raid_member",
		[]int64{63, 255, 256, 16, 399, 591, 675, 735, 911, 974, 991, 951, 3087},
		func(b []byte) bool {
			return bytes.HasPrefix(b, []byte("Promise Technology, Inc."))
		},
	},
	{"hpt45x_raid_member", []int64{11}, func(b []byte) bool { return isHighPoint(b, 0x5a7816f3) }},
	{"hpt37x_raid_member", []int64{-9}, func(b []byte) bool { return isHighPoint(b[32:], 0x5a7816f0) }},
	{"adaptec_raid_member", []int64{1}, func(b []byte) bool {
		return binary.BigEndian.Uint32(b) == 0x37fc4d1e && string(b[256:260]) == "DPTM"
	}},
	{"jmicron_raid_member", []int64{1}, isJMicron},
}

// minFirmwareRAID is the smallest disk that is searched, in bytes, as in libblkid.
const minFirmwareRAID = 256 * units.KiB

// FirmwareRAID names the array of a BIOS or controller that a whole disk belongs to, as libblkid does. at is the place
// of its metadata in bytes; name is empty if absent.
func FirmwareRAID(d disk.Disk) (name string, at int64, err error) {
	if d.Size() < minFirmwareRAID {
		return "", 0, nil
	}
	for _, r := range firmwareRAIDs {
		for _, s := range r.sectors {
			at := (d.Size()/units.SectorSize - s) * units.SectorSize
			if s < 0 {
				at = -s * units.SectorSize
			}
			if at < 0 {
				continue
			}
			b, err := ondisk.Bytes(d, at, units.SectorSize)
			if err != nil {
				return "", 0, err
			}
			if r.known(b) {
				return r.name, at, nil
			}
		}
	}
	return "", 0, nil
}

// isDDF checks the signature of a DDF anchor, in either byte order, and its revision: "01.02.00".
func isDDF(b []byte) bool {
	const magic, revision = 0xde11de11, 32
	known := binary.BigEndian.Uint32(b) == magic || binary.LittleEndian.Uint32(b) == magic
	return known && b[revision] == '0' && b[revision+2] == '.' && b[revision+5] == '.'
}

// isVIA checks version 0 to 2, and in byte 50 the sum of the bytes in front of it.
func isVIA(b []byte) bool {
	const sum = 50
	var n byte
	for _, x := range b[:sum] {
		n += x
	}
	return binary.LittleEndian.Uint16(b) == 0xaa55 && b[2] <= 2 && n == b[sum]
}

// isSilicon checks for a disk number below eight, and a sum that makes the words up to it zero.
func isSilicon(b []byte) bool {
	const atMagic, atDisk, atSum = 0x60, 0x116, 0x13e
	return binary.LittleEndian.Uint32(b[atMagic:]) == 0x2f000000 && b[atDisk] < 8 && sum16(b[:atSum+2]) == 0
}

// isNVIDIA checks for a sum that makes all words zero. Their number stands behind the name.
func isNVIDIA(b []byte) bool {
	words := binary.LittleEndian.Uint32(b[8:])
	if !bytes.HasPrefix(b, []byte("NVIDIA")) || words < 5 || int64(words) > int64(len(b)/4) {
		return false
	}
	var sum uint32
	for w := range slices.Chunk(b[:4*words], 4) {
		sum += binary.LittleEndian.Uint32(w)
	}
	return sum == 0
}

// isHighPoint checks the mark of a good member, or of a failed one.
func isHighPoint(b []byte, good uint32) bool {
	n := binary.LittleEndian.Uint32(b)
	return n == good || n == 0x5a7816fd
}

// isJMicron checks that the words of its 128 bytes add up to zero or one.
func isJMicron(b []byte) bool { return string(b[:2]) == "JM" && sum16(b[:128]) <= 1 }

func sum16(b []byte) (sum uint16) {
	for w := range slices.Chunk(b, 2) {
		sum += binary.LittleEndian.Uint16(w)
	}
	return sum
}
