package windows

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/fs/ntfs"
	"github.com/trueup/trueup/internal/fs/ntfs/journal"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

// lasting returns nil if Windows keeps what is rewritten in the references. Otherwise the error wraps ErrUnsupported:
// chkdsk comes first, or the replay of $LogFile may write there. The log of NTFS holds metadata only. But it can give a
// file other clusters, and restores the records of the MFT, in which small files lie.
func (r *fileRefs) lasting() error {
	if r.p.Volume.Kind != volume.NTFS {
		return nil // FAT has no log: what is on the disk is what there is
	}
	for _, i := range r.p.Volume.Issues {
		if i.Code == "ntfs-dirty" {
			return ondisk.In(ondisk.ErrUnsupported, "NTFS is marked dirty: Windows was not shut down cleanly")
		}
	}
	log, err := logOf(r.g, r.p)
	if err == nil && log == nil {
		return ondisk.In(ondisk.ErrUnsupported,
			"NTFS has no $LogFile, so it is not known whether Windows was shut down cleanly")
	}
	if err != nil {
		return err
	}
	return r.replayed()
}

// logOf reads the log of an NTFS, once; nil if the volume has no log.
func logOf(g *boot.Guest, p boot.Partition) (*journal.Log, error) {
	logs := memoryOf(g).logs
	known, ok := logs[p.Number]
	if !ok {
		known.Log, known.err = readLog(g, p)
		logs[p.Number] = known
	}
	return known.Log, known.err
}

// ntfsLog is the log of a volume, or why it cannot be read.
type ntfsLog struct {
	*journal.Log
	err error
}

func readLog(g *boot.Guest, p boot.Partition) (*journal.Log, error) {
	file, err := windowsFile(g, p, "$LogFile")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	v, err := ntfsOf(g, p)
	if err != nil {
		return nil, err
	}
	cluster, record := v.Sizes()
	log, err := journal.Read(file, journal.Volume{Source: v.Disk(), Cluster: cluster, Record: record, MFT: v.Record})
	if err != nil && boot.Understood(err) {
		err = ondisk.In(ondisk.ErrUnsupported,
			"$LogFile of NTFS cannot be read, so it is not known whether Windows was shut down cleanly: %v", err)
	}
	return log, err
}

func ntfsOf(g *boot.Guest, p boot.Partition) (ntfs.Volume, error) {
	files, err := windowsFiles(g, p)
	if err != nil {
		return nil, err
	}
	v, ok := files.(ntfs.Volume)
	if !ok {
		panic("windows: an NTFS that is no ntfs.Volume")
	}
	return v, nil
}

// replayed returns nil if the replay of an open log changes nothing of the file, of those beside it, and of the
// references.
func (r *fileRefs) replayed() error {
	if r.p.Volume.Kind != volume.NTFS {
		return nil
	}
	log, err := logOf(r.g, r.p)
	if err != nil || log == nil || len(log.Writes) == 0 {
		return err
	}
	patched, err := r.patched()
	if err != nil {
		return err
	}
	if c := log.Conflict(patched); c != nil {
		return ondisk.In(ondisk.ErrUnsupported, "$LogFile of NTFS is open: %v: Windows was not shut down cleanly", c)
	}
	return nil
}

// noteOpen reports that an open log was found harmless.
func (r *fileRefs) noteOpen(f *boot.Found) error {
	if r.p.Volume.Kind != volume.NTFS {
		return nil
	}
	log, err := logOf(r.g, r.p)
	if err == nil && log.State == journal.Open {
		f.Issues = append(f.Issues, ondisk.Issue{
			Code: "ntfs-open", Effect: ondisk.Note, OnMove: true,
			Text: fmt.Sprintf("the NTFS of partition %d was in use when it was copied: "+
				"no write that its log holds (%d) touches %s", r.p.Number, len(log.Writes), shown(r.file.Path)),
		})
	}
	return err
}

// patched returns what a replay must leave alone.
func (r *fileRefs) patched() (journal.Patched, error) {
	var out journal.Patched
	v, err := ntfsOf(r.g, r.p)
	if err != nil {
		return out, err
	}
	places := func(at []disk.Range) {
		for _, x := range at {
			out.Bytes = append(out.Bytes, disk.Range{Off: x.Off - r.p.Off, Len: x.Len})
		}
	}
	for i := range r.refs {
		places(r.refs[i].At)
		for _, s := range r.refs[i].Seals {
			places(s.At)
		}
	}
	for _, path := range append([]string{r.file.Path}, r.beside...) {
		t, err := v.Trace(path)
		if err != nil {
			return out, err
		}
		out.Records, out.Folders, out.MFT = append(out.Records, t.File...), append(out.Folders, t.Folders...), t.MFT
		if len(r.beside) > 0 {
			out.Parents = append(out.Parents, t.Parent...)
		}
	}
	return out, nil
}
