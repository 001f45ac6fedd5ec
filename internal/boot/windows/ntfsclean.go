package windows

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io/fs"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

// windowsClean returns nil if Windows takes a volume as it is. Otherwise the error wraps ErrUnsupported: chkdsk or the
// replay of $LogFile comes first. The log of NTFS holds metadata only, so it would not overwrite a change in a file.
// But it can give a file other clusters, and restores the records of the MFT, in which small files lie: until then it
// is not certain where a file lies.
func windowsClean(g *boot.Guest, p boot.Partition) error {
	if p.Volume.Kind != volume.NTFS {
		return nil // FAT has no log: what is on the disk is what there is
	}
	for _, i := range p.Volume.Issues {
		if i.Code == "ntfs-dirty" {
			return ondisk.In(ondisk.ErrUnsupported, "NTFS is marked dirty: Windows was not shut down cleanly")
		}
	}
	f, err := windowsFile(g, p, "$LogFile")
	if errors.Is(err, fs.ErrNotExist) {
		return ondisk.In(ondisk.ErrUnsupported,
			"NTFS has no $LogFile, so it is not known whether Windows was shut down cleanly")
	}
	if err != nil {
		return err
	}
	return logClosed(f)
}

// restartPage is the header of the two pages at the start of $LogFile, and restartArea what its RestartOffset leads to.
// Spec: Linux fs/ntfs/logfile.h.
type restartPage struct {
	Magic          [4]byte // "RSTR", or "CHKD" when chkdsk made it
	USAOffset      uint16
	USACount       uint16
	ChkdskLSN      uint64
	SystemPageSize uint32 // bytes; the second page is that far
	LogPageSize    uint32
	RestartOffset  uint16 // of the restart area in the page
	MinorVersion   uint16
	MajorVersion   uint16
}

type restartArea struct {
	CurrentLSN uint64 // the newer area has the higher one
	Clients    uint16
	FreeList   uint16
	InUseList  uint16 // 0xffff: the log is closed
	Flags      uint16
}

const (
	noClient      = 0xffff
	volumeIsClean = 2
	firstStride   = 510 // the bytes of a page that no fix-up replaces
	minSystemPage = 512
	maxSystemPage = 64 << 10
)

// logClosed checks $LogFile as ntfs-3g and Linux do: closed, or left open by XP and later with the flag that the volume
// is clean. A log of 0xff bytes is new.
func logClosed(f *guestfile.File) error {
	head, err := ondisk.Bytes(f, 0, min(f.Size(), 4))
	if err != nil {
		return err
	}
	if bytes.Equal(head, []byte{0xff, 0xff, 0xff, 0xff}) {
		return nil
	}
	newest, page, err := restart(f, 0)
	if err != nil {
		return err
	}
	if newest != nil {
		second, _, err := restart(f, page)
		if err != nil {
			return err
		}
		if second != nil && second.CurrentLSN > newest.CurrentLSN {
			newest = second
		}
	}
	switch {
	case newest == nil:
		return ondisk.In(ondisk.ErrUnsupported,
			"$LogFile of NTFS has no restart area, so it is not known whether Windows was shut down cleanly")
	case newest.InUseList != noClient && newest.Flags&volumeIsClean == 0:
		return ondisk.In(ondisk.ErrUnsupported, "$LogFile of NTFS is open: Windows was not shut down cleanly")
	}
	return nil
}

// restart reads the restart area of a page, nil if absent, and the size of the page.
func restart(f *guestfile.File, off int64) (*restartArea, int64, error) {
	var page restartPage
	var area restartArea
	if off+firstStride > f.Size() {
		return nil, 0, nil
	}
	b, err := ondisk.Bytes(f, off, firstStride)
	if err != nil {
		return nil, 0, err
	}
	if err := ondisk.Fill(b[:binary.Size(page)], binary.LittleEndian, &page); err != nil {
		return nil, 0, err
	}
	start, size := int(page.RestartOffset), int64(page.SystemPageSize)
	known := string(page.Magic[:]) == "RSTR" || string(page.Magic[:]) == "CHKD"
	if !known || size < minSystemPage || size > maxSystemPage || start+binary.Size(area) > firstStride {
		return nil, 0, nil
	}
	return &area, size, ondisk.Fill(b[start:start+binary.Size(area)], binary.LittleEndian, &area)
}
