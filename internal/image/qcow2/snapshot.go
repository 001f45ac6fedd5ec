package qcow2

import (
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// snapshotEntry is the fixed part of an entry in the snapshot table. Spec: "Snapshots".
type snapshotEntry struct {
	L1TableOffset uint64
	L1Size        uint32 // entries
	IDSize        uint16
	NameSize      uint16
	DateSec       uint32 // since 1970
	DateNsec      uint32
	VMClockNsec   uint64
	VMStateSize   uint32
	ExtraDataSize uint32
}

const (
	snapshotLength = 40   // bytes of the fixed part
	maxExtra       = 1024 // bytes of extra data; QEMU's bound
	maxListed      = 8    // snapshots that are listed by name
	maxShown       = 256  // bytes of an ID or a name
)

// eachSnapshot walks the snapshot table. at is the byte offset of the entry; id and name are cut to what is shown.
func (q *qcow) eachSnapshot(visit func(e *snapshotEntry, r disk.Range) error) error {
	at := ondisk.I64(q.h.SnapshotsOffset)
	for range q.h.NbSnapshots {
		var e snapshotEntry
		if err := decodeAt(q.file, at, &e); err != nil {
			return err
		}
		n := snapshotLength + int64(e.ExtraDataSize) + int64(e.IDSize) + int64(e.NameSize)
		switch l1 := (disk.Range{Len: 8 * int64(e.L1Size)}); {
		case e.ExtraDataSize > maxExtra:
			return snapshotField(at+36, "extra data size", e.ExtraDataSize, fmt.Sprintf("at most %d bytes", maxExtra))
		case n > q.file.Size()-at:
			return snapshotField(at+12, "length of id and name", n,
				fmt.Sprintf("an end inside the file of %d bytes", q.file.Size()))
		case e.L1TableOffset%ondisk.U64(q.h.cluster()) != 0 || e.L1TableOffset > ondisk.U64(q.file.Size()) ||
			l1.Len > q.file.Size()-ondisk.I64(e.L1TableOffset):
			return snapshotField(at, "L1 table offset", e.L1TableOffset,
				fmt.Sprintf("a multiple of %d from which %d bytes fit into the file of %d bytes", q.h.cluster(), l1.Len,
					q.file.Size()))
		case l1.Len > maxL1:
			return fmt.Errorf("qcow2 snapshot at %#x: L1 table of %d entries: %w of %d bytes", at+8, e.L1Size,
				ondisk.ErrLimit, maxL1)
		}
		if err := visit(&e, disk.Range{Off: at, Len: n}); err != nil {
			return err
		}
		at += (n + 7) &^ 7
	}
	return nil
}

func snapshotField(at int64, name string, got, want any) error {
	return ondisk.Field("qcow2 snapshot table", name, at, got, want)
}

// addSnapshots lists the internal snapshots, and notes that a copy has none.
func (q *qcow) addSnapshots(img *driver.Image) error {
	if q.h.NbSnapshots == 0 {
		return nil
	}
	img.Details = append(img.Details,
		driver.Detail{Name: "snapshots", Value: strconv.FormatUint(uint64(q.h.NbSnapshots), 10)})
	listed := 0
	err := q.eachSnapshot(func(e *snapshotEntry, r disk.Range) error {
		if listed++; listed > maxListed {
			return nil
		}
		text, err := q.describe(e, r.Off)
		img.Details = append(img.Details, driver.Detail{Name: fmt.Sprintf("snapshot %d", listed), Value: text})
		return err
	})
	if err != nil {
		return err
	}
	img.Issues = append(img.Issues, ondisk.Issue{
		Code: driver.CodeSnapshots, Effect: ondisk.Warn,
		Text: fmt.Sprintf("the qcow2 has %d internal snapshots: a copy holds the present state only, without them",
			q.h.NbSnapshots),
		Remedy: "keep the source, or save a snapshot first with qemu-img convert -l",
	})
	return nil
}

// describe returns one snapshot in a line: name, id, time, and the state of the machine that it has.
func (q *qcow) describe(e *snapshotEntry, at int64) (string, error) {
	extra, err := ondisk.Bytes(q.file, at+snapshotLength, int64(e.ExtraDataSize))
	if err != nil {
		return "", err
	}
	at += snapshotLength + int64(e.ExtraDataSize)
	id, err := ondisk.Bytes(q.file, at, min(int64(e.IDSize), maxShown))
	if err != nil {
		return "", err
	}
	name, err := ondisk.Bytes(q.file, at+int64(e.IDSize), min(int64(e.NameSize), maxShown))
	if err != nil {
		return "", err
	}
	state := uint64(e.VMStateSize)
	if len(extra) >= 8 {
		state = binary.BigEndian.Uint64(extra) // replaces the field of 32 bits
	}
	text := fmt.Sprintf("%q, id %q, %s", name, id, time.Unix(int64(e.DateSec), 0).UTC().Format(time.RFC3339))
	if state > 0 && state <= math.MaxInt64 {
		text += ", machine state of " + units.Format(ondisk.I64(state))
	}
	return text, nil
}

// addBitmaps notes that a copy has no dirty bitmaps: they know the blocks of the old layout.
func (q *qcow) addBitmaps(img *driver.Image) {
	b := q.x.bitmaps
	if b == nil {
		return
	}
	stale := ""
	if q.h.AutoclearFeatures&autoclearBitmaps == 0 {
		stale = ", which are out of date"
	}
	img.Issues = append(img.Issues, ondisk.Issue{
		Code: "qcow2-bitmaps", Text: fmt.Sprintf("the qcow2 has %d persistent bitmaps%s: a copy has none, so the "+
			"next incremental backup is a full one", b.NbBitmaps, stale),
	})
}
