// Package qcow2 reads and writes images of QEMU, versions 2 and 3, with compressed clusters, extended L2 entries,
// external data files and backing files. It recognises and refuses encrypted images.
//
// Specification: QEMU docs/interop/qcow2. Comments mark where QEMU reads more or less.
package qcow2

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// Subformats. Only a writer distinguishes compressed: readers look at each cluster.
const (
	v3         = "v3"         // compat 1.1
	v2         = "v2"         // compat 0.10, for QEMU before 1.1 and other old programs
	asPacked   = "compressed" // version 3 with deflate
	magic      = "QFI\xfb"
	sectorSize = 512 // bytes; the format has no field for it
)

// Format is qcow2.
var Format = driver.Format{
	Name:       "qcow2",
	Detect:     detect,
	Open:       open,
	Create:     create,
	Subformats: []string{v3, v2, asPacked},
	Names:      names,
	Extensions: []string{".qcow2", ".qcow", ".qcow3"},
	// libvirt names the overlay of disk.qcow2 for a snapshot "disk.NAME-OF-SNAPSHOT".
	AnyExtension: true,
}

func detect(head, _ []byte) bool { return bytes.HasPrefix(head, []byte(magic)) }

func open(s *driver.Source) (*driver.Image, error) {
	h, err := readHeader(s.File)
	if err != nil {
		return nil, err
	}
	if err := h.check(s.File.Size()); err != nil {
		return nil, err
	}
	x, err := h.readExtensions(s.File)
	if err != nil {
		return nil, err
	}
	if err := h.checkFeatures(x); err != nil {
		return nil, err
	}
	q := newQcow(s, h, x)
	if q.data, err = h.openData(s, x); err != nil {
		return nil, err
	}
	img := &driver.Image{
		Disk: disk.New(ondisk.I64(h.Size), sectorSize, q.run), Subformat: fmt.Sprintf("v%d", h.Version), Check: q.check,
		Template: &template{clusterBits: h.ClusterBits}, Details: q.details(), Issues: h.issues(),
	}
	if h.external() {
		img.Parts = []driver.File{q.data}
	}
	q.addBitmaps(img)
	img.Bitmap = q.bitmap
	if err := q.addSnapshots(img); err != nil {
		return nil, err
	}
	return img, q.addParent(s, img)
}

// details returns the metadata of the header.
func (q *qcow) details() []driver.Detail {
	out := []driver.Detail{
		{Name: "compat", Value: map[uint32]string{2: "0.10", 3: "1.1"}[q.h.Version]},
		{Name: "cluster size", Value: units.Format(q.h.cluster())},
		{Name: "compression", Value: [...]string{packingDeflate: "deflate", packingZstd: "zstd"}[q.x.packing]},
		{Name: "refcount bits", Value: strconv.Itoa(1 << q.h.RefcountOrder)},
	}
	if q.h.extended() {
		out = append(out, driver.Detail{Name: "extended L2", Value: "subclusters of " + units.Format(q.unit)})
	}
	if q.h.external() {
		out = append(out, driver.Detail{Name: "data file", Value: q.x.dataFile})
	}
	if q.h.external() && q.h.AutoclearFeatures&autoclearRaw != 0 {
		out = append(out, driver.Detail{Name: "data file raw", Value: "on"})
	}
	if q.h.CompatibleFeatures&compatLazy != 0 {
		out = append(out, driver.Detail{Name: "lazy refcounts", Value: "on"})
	}
	return out
}

// issues returns the issues of the dirty and the corrupt bit.
func (h *header) issues() []ondisk.Issue {
	var out []ondisk.Issue
	if h.IncompatibleFeatures&incompatDirty != 0 {
		out = append(out, ondisk.Issue{
			Code: "qcow2-dirty", Effect: ondisk.Refuse, Err: ondisk.ErrBusy,
			Text: fmt.Sprintf("the qcow2 was not closed cleanly (incompatible feature bit 0 at %#x is set): its "+
				"refcounts may be stale", atIncompat),
			Remedy: "close the program that has it open, or repair it with qemu-img check -r all",
		})
	}
	if h.IncompatibleFeatures&incompatCorrupt != 0 {
		out = append(out, ondisk.Issue{
			Code: "qcow2-corrupt", Effect: ondisk.Refuse, Err: ondisk.ErrFormat,
			Text: fmt.Sprintf("the qcow2 is marked as corrupt (incompatible feature bit 1 at %#x is set): QEMU "+
				"found damage in it", atIncompat),
			Remedy: "restore the image from a good copy, or repair it with qemu-img check -r all",
		})
	}
	return out
}

// formatNames maps QEMU's names of backing file formats to trueup's.
var formatNames = map[string]string{
	"": "", "raw": "raw", "file": "raw", "host_device": "raw", "qcow2": "qcow2", "vmdk": "vmdk", "vdi": "vdi",
	"vpc": "vhd", "vhdx": "vhdx",
}

// addParent opens the backing file.
func (q *qcow) addParent(s *driver.Source, img *driver.Image) error {
	name, ok, err := q.h.backing(s.File)
	if err != nil || !ok {
		return err
	}
	format, known := formatNames[q.x.format]
	if !known {
		return fmt.Errorf("qcow2 backing file %.256q of format %.32q: %w; convert it to one complete image with "+
			"qemu-img convert", name, q.x.format, ondisk.ErrUnsupported)
	}
	img.Details = append(img.Details, driver.Detail{Name: "backing file", Value: name})
	if q.x.format != "" {
		img.Details = append(img.Details, driver.Detail{Name: "backing format", Value: q.x.format})
	}
	q.parent, err = s.Parent(driver.ParentRef{Names: []string{name}, Format: format})
	return err
}

// names returns the parents in a qcow2, and none for a file of another format.
func names(f driver.File) (driver.Names, error) {
	head := make([]byte, min(f.Size(), int64(len(magic))))
	if err := ondisk.ReadFull(f, head, 0); err != nil {
		return driver.Names{}, err
	}
	if !detect(head, nil) {
		return driver.Names{}, nil
	}
	broken := driver.Names{Broken: true}
	h, err := readHeader(f)
	if err != nil {
		return broken, ioError(err)
	}
	if h.Version == 1 { // the backing file name has the same offset
		return h.parents(f)
	}
	if h.Version != 2 && h.Version != 3 || h.ClusterBits < minClusterBits || h.ClusterBits > maxClusterBits ||
		int64(h.HeaderLength) > f.Size() {
		return broken, nil
	}
	x, err := h.readExtensions(f)
	if err != nil {
		return broken, ioError(err)
	}
	n, err := h.parents(f)
	if x.dataFile != "" {
		var broken bool
		n.Extents, broken = driver.BackingFiles(x.dataFile)
		n.Broken = n.Broken || broken
	}
	return n, err
}

// parents returns the possible paths of the backing file.
func (h *header) parents(f driver.File) (n driver.Names, err error) {
	if h.BackingFileSize > maxName {
		return driver.Names{Broken: true}, nil
	}
	name, ok, err := h.backing(f)
	if err != nil {
		return driver.Names{Broken: true}, ioError(err)
	}
	if ok {
		n.Parents, n.Broken = driver.BackingFiles(name)
	}
	return n, nil
}

// ioError returns err unless it is a format or limit error, which only makes the names unknown.
func ioError(err error) error {
	if errors.Is(err, ondisk.ErrFormat) || errors.Is(err, ondisk.ErrLimit) {
		return nil
	}
	return err
}

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
	maxExtra       = 1024 // bytes of extra data; QEMU's limit
	maxListed      = 8    // snapshots listed by name
	maxShown       = 256  // bytes of an ID or a name
)

// eachSnapshot calls visit for each entry of the snapshot table with its range in the file.
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

// addSnapshots lists the internal snapshots, and adds the issue that a copy drops them.
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

// describe returns one line about a snapshot: name, id, time, and the size of the machine state.
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
		state = binary.BigEndian.Uint64(extra) // replaces the 32-bit field
	}
	text := fmt.Sprintf("%q, id %q, %s", name, id, time.Unix(int64(e.DateSec), 0).UTC().Format(time.RFC3339))
	if state > 0 && state <= math.MaxInt64 {
		text += ", machine state of " + units.Format(ondisk.I64(state))
	}
	return text, nil
}

// addBitmaps adds the issue that a copy drops dirty bitmaps, which describe the blocks of the old layout.
func (q *qcow) addBitmaps(img *driver.Image) {
	b := q.x.bitmaps
	if b == nil {
		return
	}
	stale := ""
	if q.outdatedBitmaps() {
		stale = ", which are out of date"
	}
	img.Issues = append(img.Issues, ondisk.Issue{
		Code: "qcow2-bitmaps", Text: fmt.Sprintf("the qcow2 has %d persistent bitmaps%s: a copy has none, so the "+
			"next incremental backup is a full one", b.NbBitmaps, stale),
	})
}
