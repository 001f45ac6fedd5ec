package fat

import (
	"bytes"
	"fmt"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
)

// fsInfo is the sector of a FAT32 with the number of free clusters. Spec: "FAT32 FSInfo Sector Structure".
type fsInfo struct {
	Lead   uint32 // 0x41615252
	_      [480]byte
	Struct uint32 // 0x61417272
	Free   uint32 // clusters
}

const (
	infoLead    = 0x41615252
	infoStruct  = 0x61417272
	infoUnknown = 0xffffffff
)

// Unused hands the free clusters of a volume to free. The error is that of a volume whose tables cannot be trusted:
// copies that differ, another number of free clusters than FAT32 has stored, a chain of a file or folder that is
// broken. A cluster in use has an entry of its own in the table, so that used gets nothing.
func Unused(b *guestfile.Budget, volume disk.Disk, free *guestfile.FreeRuns, _ func(disk.Range) error) error {
	opened, err := Open(b, volume)
	if err != nil {
		return err
	}
	f := opened.(*fileSystem) //nolint:forcetypeassert // Open returns no others
	if f.Total > volume.Size() {
		return field("total sectors", 0x20, f.Total/f.Sector, fmt.Sprintf("at most %d", volume.Size()/f.Sector))
	}
	if err := f.freeInto(free, f.mirrored); err != nil {
		return err
	}
	free.End()
	if err := f.counted(free.Bytes / f.Cluster); err != nil {
		return err
	}
	w := &census{Census: &guestfile.Census{Budget: b}, fs: f, seen: map[int64]bool{}}
	if err := w.walk(); err != nil {
		return err
	}
	return w.broken
}

// mirrored requires that a piece of the FAT is the same in all copies, where these are kept.
func (f *fileSystem) mirrored(raw []byte, off int64) error {
	if f.Bits == 32 && f.Flags&0x80 != 0 {
		return nil // only one is
	}
	for i := range int64(f.FATs) {
		at := f.FAT.Off + i*f.FAT.Len
		if at == f.table {
			continue
		}
		other, err := ondisk.Bytes(f.meter, at+off, int64(len(raw)))
		if err != nil {
			return err
		}
		if !bytes.Equal(raw, other) {
			return ondisk.Field("fat", fmt.Sprintf("FAT %d", i+1), at+off, "another table", "a copy of the FAT in use")
		}
	}
	return nil
}

// counted compares the number of free clusters with the one that a FAT32 has stored, if it has.
func (f *fileSystem) counted(free int64) error {
	if f.Bits != 32 || f.FSInfo == 0 || f.FSInfo >= f.Reserved {
		return nil
	}
	var info fsInfo
	at := int64(f.FSInfo) * f.Sector
	switch _, err := ondisk.Decode(f.meter, at, &info); {
	case err != nil:
		return err
	case info.Lead != infoLead || info.Struct != infoStruct || info.Free == infoUnknown || int64(info.Free) == free:
		return nil
	}
	return ondisk.Field("fat FSInfo", "free clusters", at+488, info.Free,
		fmt.Sprintf("%d, as many as the FAT has", free))
}
