package ntfs

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
)

const (
	bitmapRecord = 6
	firstRecord  = 24 // first one not reserved for metadata. Spec: Linux-NTFS documentation, "Files: overview"

	stretchRecords = 64      // consecutive records that a sample includes or skips together
	bitmapChunk    = 1 << 16 // bytes of $Bitmap per read

	unlimited = math.MaxInt64 // the budget of the disk bounds a walk over all records
)

// census counts the files of a volume.
type census struct {
	*guestfile.Census
	fs *fileSystem
}

// Fragments counts the files of a volume by the records of its MFT.
func Fragments(c *guestfile.Census, volume disk.Disk) error {
	n, err := open(c.Budget, volume, unlimited)
	if err != nil {
		return err
	}
	w := &census{Census: c, fs: n}
	if err := w.mft(); err != nil {
		return err
	}
	if err := c.CountFree(w.fs.freeInto); err != nil {
		return err
	}
	if err := w.records(); err != nil {
		return w.End(err)
	}
	return nil
}

// mft counts the fragments of the MFT itself.
func (w *census) mft() error {
	node, err := w.fs.node(ref{number: mftRecord}, "$MFT")
	if err != nil {
		return err
	}
	t := w.Begin()
	if err := node.tally(t, attrData); err != nil {
		return err
	}
	w.MFT = t.Pieces()
	return nil
}

// records counts the files of the sampled records, in stretches of consecutive records.
func (w *census) records() error {
	records := w.fs.mft.Size() / w.fs.record
	stride := w.Stride(records)
	for from := int64(0); from < records; from += stride * stretchRecords {
		for number := from; number < min(from+stretchRecords, records); number++ {
			w.Looked++
			if err := w.count(number); err != nil && !w.Skip(err) {
				return err
			}
		}
	}
	return nil
}

// count counts the file or folder whose base record has this number.
func (w *census) count(number int64) error {
	if number < firstRecord && number != rootRecord {
		return nil
	}
	inUse, h, err := w.fs.peek(number)
	if err != nil || !inUse || h.Flags&recordView != 0 || h.Base != 0 {
		return err // or an unused or deleted record, a view index, or an extension record
	}
	node, err := w.fs.node(ref{number: number}, fmt.Sprintf("record %d", number))
	if err != nil {
		return err
	}
	t, kind := w.Begin(), uint32(attrData)
	if node.rec.dir() {
		kind = attrIndexAlloc
	}
	if err := node.tally(t, kind); err != nil {
		return err
	}
	t.End(node.rec.dir())
	return nil
}

// peek reads the head of a record, and reports whether it is in use.
func (n *fileSystem) peek(number int64) (inUse bool, h recordHead, err error) {
	var head [recordHeadSize]byte
	if err := n.spend(recordHeadSize); err != nil {
		return false, h, err
	}
	if err := ondisk.ReadFull(n.mft, head[:], number*n.record); err != nil {
		return false, h, err
	}
	ondisk.Fill(head[:], binary.LittleEndian, &h)
	return !ondisk.IsZero(h.Magic[:]) && h.Flags&recordInUse != 0, h, nil
}

// tally adds the runs of all streams of an attribute type. The parts of one stream are adjacent in the attribute list
// and in a record.
func (node *node) tally(t *guestfile.Tally, kind uint32) error {
	s := stream{fs: node.fs, tally: t}
	return node.each(kind, func(string) bool { return true }, s.add)
}

// stream decodes the runs of the streams of a file.
type stream struct {
	fs       *fileSystem
	tally    *guestfile.Tally
	name     string
	clusters int64 // decoded so far
}

// add adds the next part of a stream, an attribute of rec. A resident value has no runs.
func (s *stream) add(rec *record, a *attr) error {
	if a.NonResident == 0 {
		return nil
	}
	if a.LowestVCN == 0 {
		s.tally.Stream()
		s.name, s.clusters = a.name, 0
	}
	if a.name != s.name || a.LowestVCN != s.clusters {
		return rec.broken(a.at+0x10, "lowest cluster", a.LowestVCN, fmt.Sprintf("%d, which comes next", s.clusters))
	}
	return rec.eachRun(a, s.fs.clusters, func(e extent) error {
		if e.length > s.fs.vcnLimit()-s.clusters {
			return fmt.Errorf("%w: %d clusters behind %d", errRunList, e.length, s.clusters)
		}
		if c := s.fs.cluster; e.start != extentHole {
			s.tally.Add(guestfile.Run{Off: s.clusters * c, Len: e.length * c, At: e.start * c})
		}
		s.clusters += e.length
		return nil
	})
}

// bitmap opens $Bitmap.
func (n *fileSystem) bitmap() (*guestfile.File, *value, error) {
	node, err := n.node(ref{number: bitmapRecord}, "$Bitmap")
	if err != nil {
		return nil, nil, err
	}
	v := &value{fs: n}
	if err := node.read(attrData, "", v); err != nil {
		return nil, nil, err
	}
	if err := v.plain("$Bitmap"); err != nil {
		return nil, nil, err
	}
	f, err := v.file("$Bitmap")
	if err != nil {
		return nil, nil, err
	}
	if want := (n.clusters + 7) / 8; f.Size() < want {
		return nil, nil, ondisk.Field("ntfs $Bitmap", "size", v.at, f.Size(),
			fmt.Sprintf("%d at least, a bit for each cluster", want))
	}
	return f, v, nil
}

// freeInto adds the free clusters of $Bitmap.
func (n *fileSystem) freeInto(out *guestfile.FreeRuns) error {
	f, _, err := n.bitmap()
	if err != nil {
		return err
	}
	buf := make([]byte, bitmapChunk)
	for done := int64(0); done < n.clusters; done += 8 * bitmapChunk {
		bits := min(8*bitmapChunk, n.clusters-done)
		part := buf[:(bits+7)/8]
		if err := n.budget.Work.Spend(int64(len(part))); err != nil {
			return err
		}
		if err := ondisk.ReadFull(f, part, done/8); err != nil {
			return err
		}
		out.Bitmap(part, bits, done*n.cluster, n.cluster)
	}
	return nil
}

// Unused passes the free clusters of a volume to free, and then every range in use to used: the runs of every MFT
// record. An error of used ends the walk. Unused returns an error if $Bitmap cannot be trusted.
func Unused(b *guestfile.Budget, volume disk.Disk, free *guestfile.FreeRuns, used func(disk.Range) error) error {
	n, err := open(b, volume, unlimited)
	if err != nil {
		return err
	}
	if err := n.requireClean(); err != nil {
		return err
	}
	if err := unshadowed(volume); err != nil {
		return err
	}
	if err := n.wholeBitmap(); err != nil {
		return err
	}
	if err := n.freeInto(free); err != nil {
		return err
	}
	free.End()
	if err := used(disk.Range{Len: n.record}); err != nil { // the boot sector, even if $Boot does not cover it
		return err
	}
	for number := range n.mft.Size() / n.record {
		if err := n.usedBy(number, used); err != nil {
			return err
		}
	}
	return nil
}

// requireClean returns an error if a volume is marked dirty or has an unknown version.
func (n *fileSystem) requireClean() error {
	node, err := n.node(ref{number: volumeRecord}, "$Volume")
	if err != nil {
		return err
	}
	v := value{fs: n}
	if err := node.read(attrVolumeInfo, "", &v); err != nil {
		return err
	}
	info, err := v.bytes("$VOLUME_INFORMATION", n.record)
	if err != nil {
		return err
	}
	const version, flags = 8, 10
	if len(info) < flags+2 {
		return ondisk.Field("ntfs $Volume", "information", v.at, len(info), "12 bytes at least")
	}
	switch major, minor := info[version], info[version+1]; {
	case binary.LittleEndian.Uint16(info[flags:])&dirtyFlag != 0:
		return ondisk.Field("ntfs $Volume", "flags", v.at, fmt.Sprintf("%#x", info[flags:flags+2]),
			"a volume that is not dirty")
	case (major != 1 || minor != 2) && (major != 3 || minor > 1): // NT 4, 2000, and since XP
		return fmt.Errorf("ntfs version %d.%d: %w", major, minor, ondisk.ErrUnsupported)
	}
	return nil
}

// shadowHeader is the offset of the shadow copy header in a volume. Spec: libvshadow, "Volume Shadow Snapshot (VSS)
// format", section 2.
const shadowHeader = 0x1e00

var shadowID = [16]byte{0x6b, 0x87, 0x08, 0x38, 0x76, 0xc1, 0x48, 0x4e, 0xb7, 0xae, 0x04, 0x04, 0x6e, 0x6c, 0xc7, 0x52}

// unshadowed returns an error if a volume has shadow copies. A shadow copy reads unchanged data from the clusters of
// the volume, even if the files there were deleted since.
func unshadowed(volume disk.Disk) error {
	var h struct {
		ID      [16]byte
		_       [32]byte
		Catalog uint64 // byte offset in the volume, 0 without shadow copies
	}
	switch _, err := ondisk.Decode(volume, shadowHeader, &h); {
	case err != nil:
		return err
	case h.ID != shadowID || h.Catalog == 0:
		return nil
	}
	return ondisk.Field("ntfs volume", "shadow copies", shadowHeader+0x30, fmt.Sprintf("catalog at byte %d", h.Catalog),
		"none: they need data in free clusters (remove them with vssadmin delete shadows /all)")
}

// wholeBitmap requires that all of $Bitmap is stored, and that the bits behind the last cluster are set, as all
// formatters leave them.
func (n *fileSystem) wholeBitmap() error {
	f, v, err := n.bitmap()
	if err != nil {
		return err
	}
	stored := int64(0)
	for _, r := range v.runs {
		stored += r.Len
	}
	if v.initialised < v.size || stored < v.size {
		return ondisk.Field("ntfs $Bitmap", "size", v.at, v.size,
			fmt.Sprintf("%d at most, which are stored and initialised", min(v.initialised, stored)))
	}
	used := (n.clusters + 7) / 8
	at := max(0, used-1)
	if f.Size()-at > bitmapChunk {
		return ondisk.Field("ntfs $Bitmap", "size", v.at, f.Size(), fmt.Sprintf("%d, a bit for each cluster", used))
	}
	raw := make([]byte, f.Size()-at)
	if err := ondisk.ReadFull(f, raw, at); err != nil {
		return err
	}
	for i := n.clusters - 8*at; i < 8*int64(len(raw)); i++ {
		if raw[i/8]>>(i%8)&1 == 0 {
			return ondisk.Field("ntfs $Bitmap", fmt.Sprintf("bit %d", 8*at+i), v.at, 0,
				fmt.Sprintf("1 from bit %d on, the number of clusters", n.clusters))
		}
	}
	return nil
}

// usedBy visits the runs of one record, if the record is in use. It follows no attribute list, since each extension
// record is visited by its own number.
func (n *fileSystem) usedBy(number int64, used func(disk.Range) error) error {
	inUse, _, err := n.peek(number)
	if err != nil || !inUse {
		return err
	}
	rec, err := n.load(ref{number: number})
	if err != nil {
		return err
	}
	for i := range rec.attrs {
		a := &rec.attrs[i]
		if a.NonResident == 0 {
			continue
		}
		err := rec.eachRun(a, n.clusters, func(e extent) error {
			if e.start == extentHole {
				return nil
			}
			return used(disk.Range{Off: e.start * n.cluster, Len: e.length * n.cluster})
		})
		if err != nil {
			return err
		}
	}
	return nil
}
