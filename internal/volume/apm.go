package volume

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
)

// apm finds the partition map of Apple.
var apm = Prober{
	Kinds: []Traits{{Kind: APM, Slices: "Apple partition map", Foreign: true, NeverStale: true}},
	Marks: []Mark{{Off: 0, Bytes: "ER"}},
	Probe: probeAPM,
}

// appleDriverMap begins block 0, appleEntry each of the blocks behind it. Big-endian. Spec: Apple, Inside Macintosh:
// Devices, "Data Organization on SCSI Devices"; Linux, block/partitions/mac.h.
type appleDriverMap struct {
	Signature  [2]byte // "ER"
	BlockSize  uint16  // bytes
	BlockCount uint32
}

type appleEntry struct {
	Signature [2]byte // "PM"
	_         uint16
	Entries   uint32 // of the map
	Start     uint32 // blocks
	Count     uint32
	Name      [32]byte
	Type      [32]byte
}

const apmWhat = "apple partition map"

// appleOwn are types of partitions that hold the map, drivers or nothing.
var appleOwn = []string{"Apple_partition_map", "Apple_Patches", "Apple_Void", "Apple_Scratch"}

func probeAPM(d disk.Disk) (*Volume, error) {
	var m appleDriverMap
	if _, err := Superblock(d, 0, binary.BigEndian, &m); err != nil {
		return nil, err
	}
	size := int64(m.BlockSize)
	if !PowerBetween(size, 512, 4096) {
		return nil, ondisk.ErrNoMatch // two letters are too few
	}
	v := newTable(APM, d)
	for i, n := int64(1), int64(1); i <= n; i++ {
		var e appleEntry
		_, err := Superblock(d, i*size, binary.BigEndian, &e)
		switch {
		case err == nil && string(e.Signature[:]) == "PM" && i == 1:
			n = int64(e.Entries)
		case i == 1 && (err == nil || errors.Is(err, ondisk.ErrNoMatch)):
			return nil, ondisk.ErrNoMatch
		case err != nil && !errors.Is(err, ondisk.ErrNoMatch):
			return nil, err
		case err != nil || string(e.Signature[:]) != "PM":
			return v, ondisk.Field(apmWhat, fmt.Sprintf("signature of entry %d", i), i*size,
				fmt.Sprintf("%q", e.Signature[:]), `"PM"`)
		}
		if n < 1 || n > maxEntries {
			return v, ondisk.Field(apmWhat, "entry count", size+4, n, fmt.Sprintf("1 to %d", maxEntries))
		}
		kind := Text(e.Type[:])
		if kind == "Apple_Free" || e.Count == 0 {
			continue
		}
		entry(v, apmWhat, i*size+8, Part{
			Name: strings.TrimSpace(strconv.FormatInt(i, 10) + " " + Label(e.Name[:])), Kind: kind,
			Start: blocks(e.Start, size), Size: blocks(e.Count, size),
			Own: slices.Contains(appleOwn, kind) || strings.HasPrefix(kind, "Apple_Driver"),
		})
	}
	return v, nil
}
