package stack

import (
	"encoding/binary"
	"fmt"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/volume"
)

// BCache finds a device of bcache, the cache of Linux for slow disks.
var BCache = volume.Prober{
	Kinds: []volume.Traits{{
		Kind: volume.BCache, Data: "first sector of the data of bcache",
		Realign: "to align its data, copy them to a device made by make-bcache --data-offset 2048",
	}},
	Probe: probeBcache,
}

// bcacheSuper is the superblock, 4 KiB into the device, up to the list of journal buckets. Spec: Linux,
// drivers/md/bcache/bcache_ondisk.h, struct cache_sb_disk.
type bcacheSuper struct {
	Checksum    uint64 // CRC-64 of the rest
	Offset      uint64 // sectors, its own place
	Version     uint64
	Magic       [16]byte
	UUID        [16]byte
	SetUUID     [16]byte
	Label       [32]byte
	_           [16]byte // flags, sequence number
	_           [64]byte // features
	Place       uint64   // of a backing device: sector where the data begin; of a cache: number of its buckets
	_           uint16
	BucketSize  uint16 // sectors
	_           uint32
	_           uint32 // time
	FirstBucket uint16
	Keys        uint16 // journal buckets, 8 bytes each
}

const (
	bcacheWhat    = "bcache superblock"
	bcacheMagic   = "\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"
	atBcache      = 4 << 10
	bcacheFixed   = 208
	bcacheMaxKeys = 256
	bcacheSector  = 512
)

func probeBcache(d disk.Disk) (*volume.Volume, error) {
	b, err := volume.ReadBlock(d, atBcache, bcacheFixed+8*bcacheMaxKeys)
	if err != nil {
		return nil, err
	}
	var s bcacheSuper
	ondisk.MustFill(b, binary.LittleEndian, &s)
	// Old bcachefs has the same magic, and a part of its checksum where the offset is.
	if string(s.Magic[:]) != bcacheMagic || s.Offset != atBcache/bcacheSector {
		return nil, ondisk.ErrNoMatch
	}
	if s.Keys > bcacheMaxKeys {
		return nil, ondisk.Field(bcacheWhat, "journal buckets", atBcache+206, s.Keys,
			fmt.Sprintf("up to %d", bcacheMaxKeys))
	}
	if sum := crc64WE(b[8 : bcacheFixed+8*int(s.Keys)]); s.Checksum != sum {
		return nil, ondisk.Field(bcacheWhat, "checksum", atBcache, volume.Hex(s.Checksum), volume.Hex(sum))
	}
	v := &volume.Volume{Kind: volume.BCache, Label: volume.Text(s.Label[:]), UUID: volume.UUID(s.UUID), Size: d.Size()}
	return v, bcacheData(v, &s)
}

// bcacheData finds the start of the data, which depends on the version.
func bcacheData(v *volume.Volume, s *bcacheSuper) error {
	const beforeOffsets = 16 // sectors
	sector, role := s.Place, "backing device"
	switch s.Version {
	case 1:
		sector = beforeOffsets
	case 4, 6: // with an offset, with features
	case 0, 3, 5:
		sector, role = uint64(s.FirstBucket)*uint64(s.BucketSize), "cache"
	default:
		return ondisk.Field(bcacheWhat, "version", atBcache+16, s.Version, "0, 1, 3, 4, 5 or 6")
	}
	if sector >= ondisk.U64(v.Size/bcacheSector) {
		return ondisk.Field(bcacheWhat, "data offset", atBcache+184, sector,
			fmt.Sprintf("less than %d sectors, the size of the device", v.Size/bcacheSector))
	}
	v.DataStart = ondisk.I64(sector) * bcacheSector
	v.Holds = role != "cache"
	v.Add("role", role)
	v.Add("set UUID", volume.UUID(s.SetUUID))
	if role == "cache" && s.BucketSize > 0 {
		v.Add("bucket size", units.Format(int64(s.BucketSize)*bcacheSector))
	}
	return nil
}

// crc64WE is CRC-64/WE: the polynomial of ECMA-182, most significant bit first, which hash/crc64 does not have.
func crc64WE(b []byte) uint64 {
	const poly = 0x42f0e1eba9ea3693
	crc := ^uint64(0)
	for _, c := range b {
		crc ^= uint64(c) << 56
		for range 8 {
			crc = crc<<1 ^ poly*(crc>>63)
		}
	}
	return ^crc
}
