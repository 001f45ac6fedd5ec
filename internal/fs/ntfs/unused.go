package ntfs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
)

// Unused hands the free clusters of a volume to free, and then all that is in use to used, whose error ends the walk:
// the runs of every record of the MFT. The error is that of a volume whose $Bitmap cannot be trusted.
func Unused(b *guestfile.Budget, volume disk.Disk, free *guestfile.FreeRuns, used func(disk.Range) error) error {
	boot, err := readBoot(volume)
	if err != nil {
		return err
	}
	n := newFileSystem(b, volume)
	n.own.Limit = math.MaxInt64 // the budget of the disk bounds a walk over all records
	n.cluster, n.clusters, n.record = boot.cluster(), boot.clusters(), boot.record()
	if err := n.readMFT(boot.mft()); err != nil {
		return err
	}
	if err := n.settled(); err != nil {
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
	if err := used(disk.Range{Len: n.record}); err != nil { // the boot sector, whatever $Boot has
		return err
	}
	for number := range n.mft.Size() / n.record {
		if err := n.usedBy(number, used); err != nil {
			return err
		}
	}
	return nil
}

// settled refuses a volume that is marked dirty, or whose version is not known.
func (n *fileSystem) settled() error {
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

// shadowHeader is where a volume with shadow copies has their header. Spec: libvshadow, "Volume Shadow Snapshot (VSS)
// format", section 2.
const shadowHeader = 0x1e00

var shadowID = [16]byte{0x6b, 0x87, 0x08, 0x38, 0x76, 0xc1, 0x48, 0x4e, 0xb7, 0xae, 0x04, 0x04, 0x6e, 0x6c, 0xc7, 0x52}

// unshadowed refuses a volume with shadow copies. They read what has not been overwritten from the clusters of the
// volume, also where the files that had these were deleted since.
func unshadowed(volume disk.Disk) error {
	var h struct {
		ID      [16]byte
		_       [32]byte
		Catalog uint64 // byte of the volume; 0: there are none
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

// usedBy visits the runs of a record that is in use. The parts of a file have records of their own, so that no list of
// attributes is followed.
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
		err := runList(a.runs, n.clusters, func(e extent) error {
			if e.start == extentHole {
				return nil
			}
			return used(disk.Range{Off: e.start * n.cluster, Len: e.length * n.cluster})
		})
		if errors.Is(err, errRunList) {
			return rec.broken(a.at+int64(a.RunOffset), "runs", err.Error(), "a run list")
		}
		if err != nil {
			return err
		}
	}
	return nil
}
