package windows

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/fs/ntfs"
	"github.com/trueup/trueup/internal/fs/ntfs/journal"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

// lasting returns nil if Windows keeps what is rewritten in the references. Otherwise the error wraps ErrUnsupported:
// chkdsk comes first, or the replay of $LogFile may write there. The log of NTFS holds metadata only. But it can give a
// file other clusters, and restores the records of the MFT, in which small files lie.
func (r *fileRefs) lasting(f *boot.Found) error {
	if r.p.Volume.Kind != volume.NTFS {
		return nil // FAT has no log: what is on the disk is what there is
	}
	for _, i := range r.p.Volume.Issues {
		if i.Code == "ntfs-dirty" {
			return ondisk.In(ondisk.ErrUnsupported, "NTFS is marked dirty: Windows was not shut down cleanly")
		}
	}
	file, err := windowsFile(r.g, r.p, "$LogFile")
	if errors.Is(err, fs.ErrNotExist) {
		return ondisk.In(ondisk.ErrUnsupported,
			"NTFS has no $LogFile, so it is not known whether Windows was shut down cleanly")
	}
	if err != nil {
		return err
	}
	open, err := logOpen(file)
	if err != nil || !open {
		return err
	}
	return r.replayed(f, file)
}

// openLog is the log of a volume that was in use.
type openLog struct {
	*journal.Log
	err error
}

// replayed returns nil if the replay of an open log changes nothing of the references.
func (r *fileRefs) replayed(f *boot.Found, file *guestfile.File) error {
	files, err := windowsFiles(r.g, r.p)
	if err != nil {
		return err
	}
	v, ok := files.(ntfs.Volume)
	if !ok {
		panic("windows: an NTFS that is no ntfs.Volume")
	}
	logs := memoryOf(r.g).logs
	log, known := logs[r.p.Number]
	if !known {
		cluster, record := v.Sizes()
		volume := journal.Volume{Source: v.Disk(), Cluster: cluster, Record: record, MFT: v.Record}
		log.Log, log.err = journal.Read(file, volume)
		logs[r.p.Number] = log
	}
	if log.err != nil {
		if !boot.Understood(log.err) {
			return log.err
		}
		return ondisk.In(ondisk.ErrUnsupported,
			"$LogFile of NTFS is open, and cannot be read: %v: Windows was not shut down cleanly", log.err)
	}
	patched, err := r.patched(v)
	if err != nil {
		return err
	}
	if c := log.Conflict(patched); c != nil {
		return ondisk.In(ondisk.ErrUnsupported, "$LogFile of NTFS is open: %v: Windows was not shut down cleanly", c)
	}
	f.Issues = append(f.Issues, ondisk.Issue{
		Code: "ntfs-open", Effect: ondisk.Note, OnMove: true,
		Text: fmt.Sprintf("the NTFS of partition %d was in use when it was copied: "+
			"of the %d writes that its log holds, none touches %s", r.p.Number, len(log.Writes), shown(r.file.Path)),
	})
	return nil
}

// patched returns what a replay must leave alone.
func (r *fileRefs) patched(v ntfs.Volume) (journal.Patched, error) {
	var out journal.Patched
	seen := map[string]bool{}
	places := func(at []disk.Range) {
		for _, x := range at {
			out.Bytes = append(out.Bytes, disk.Range{Off: x.Off - r.p.Off, Len: x.Len})
		}
	}
	for _, ref := range r.refs {
		if !movable(&ref) {
			continue
		}
		places(ref.At)
		for _, s := range ref.Seals {
			places(s.At)
		}
		if seen[ref.File] {
			continue
		}
		seen[ref.File] = true
		t, err := v.Trace(ref.File)
		if err != nil {
			return out, err
		}
		out.Records, out.Folders, out.MFT = append(out.Records, t.File...), append(out.Folders, t.Folders...), t.MFT
	}
	return out, nil
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

// logOpen reports whether Windows replays $LogFile, as ntfs-3g and Linux decide it. A closed log has no client, or the
// flag of XP and later that the volume is clean; one of 0xff bytes is new.
func logOpen(f *guestfile.File) (bool, error) {
	head, err := ondisk.Bytes(f, 0, min(f.Size(), 4))
	if err != nil {
		return false, err
	}
	if bytes.Equal(head, []byte{0xff, 0xff, 0xff, 0xff}) {
		return false, nil
	}
	newest, page, err := restart(f, 0)
	if err != nil {
		return false, err
	}
	if newest != nil {
		second, _, err := restart(f, page)
		if err != nil {
			return false, err
		}
		if second != nil && second.CurrentLSN > newest.CurrentLSN {
			newest = second
		}
	}
	if newest == nil {
		return false, ondisk.In(ondisk.ErrUnsupported,
			"$LogFile of NTFS has no restart area, so it is not known whether Windows was shut down cleanly")
	}
	return newest.InUseList != noClient && newest.Flags&volumeIsClean == 0, nil
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
