package fat

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
)

const (
	maxFolders = 1 << 16 // folders per walk
	tableChunk = 1 << 16 // bytes of the FAT per read
)

// census counts the files of a volume.
type census struct {
	*guestfile.Census
	fs      *fileSystem
	folders []entry        // folders found so far, in the order of the walk
	seen    map[int64]bool // first clusters of folders
	broken  error          // error of the first file or folder left out
}

// Fragments counts the files of a volume, folder by folder.
func Fragments(c *guestfile.Census, volume disk.Disk) error {
	opened, err := Open(c.Budget, volume)
	if err != nil {
		return err
	}
	w := &census{Census: c, fs: opened.(*fileSystem), seen: map[int64]bool{}} //nolint:forcetypeassert // Open's
	if err := c.CountFree(func(out *guestfile.FreeRuns) error { return w.fs.freeInto(out, nil) }); err != nil {
		return err
	}
	return w.End(w.walk())
}

// walk visits all folders breadth first.
func (w *census) walk() error {
	defer func() { w.Of = w.Looked }()
	root := entry{attr: attrDir, root: true, first: int64(w.fs.RootCluster)}
	if w.fs.Bits != 32 {
		root.first = 0 // the root directory has its own area
	}
	w.folders = []entry{root}
	for i := 0; i < len(w.folders); i++ { //nolint:intrange // the walk adds to them
		if err := w.count(w.folders[i]); err != nil && !w.skip(err) {
			return err
		}
		var failed error
		err := w.fs.each(w.folders[i], func(e entry) bool {
			if failed = w.visit(e); failed != nil && w.skip(failed) {
				failed = nil
			}
			return failed == nil
		})
		switch {
		case failed != nil:
			return failed
		case err != nil && !w.skip(err):
			return err
		}
	}
	return nil
}

// skip records the error of a file, and reports whether the walk can continue.
func (w *census) skip(err error) bool {
	w.broken = cmp.Or(w.broken, err)
	return w.Skip(err)
}

// visit counts a file, or queues a folder.
func (w *census) visit(e entry) error {
	if w.Looked++; w.Looked > guestfile.MaxRecords {
		w.Cut()
		return fmt.Errorf("fat: %w of %d names", ondisk.ErrLimit, guestfile.MaxRecords)
	}
	if !e.dir() {
		return w.count(e)
	}
	switch {
	case w.seen[e.first]:
		return ondisk.Field("fat folder entry", "first cluster", 0x1a, e.first, "one that no other folder begins with")
	case len(w.folders) == maxFolders:
		return fmt.Errorf("fat: %w of %d folders", ondisk.ErrLimit, maxFolders)
	}
	w.seen[e.first] = true
	w.folders = append(w.folders, e)
	return nil
}

// count counts a file or folder by its cluster chain.
func (w *census) count(e entry) error {
	t := w.Begin()
	if e.first != 0 || (e.size > 0 && !e.dir()) {
		off := int64(0)
		err := w.fs.follow(e.first, w.fs.Clusters, (e.size+w.fs.Cluster-1)/w.fs.Cluster, func(cluster int64) error {
			t.Add(guestfile.Run{Off: off, Len: w.fs.Cluster, At: w.fs.at(cluster)})
			off += w.fs.Cluster
			return nil
		})
		if err != nil {
			return err
		}
	}
	t.End(e.dir())
	return nil
}

// freeInto adds the free clusters of the FAT in use. It calls same, unless nil, with each piece of the FAT and its
// offset.
func (f *fileSystem) freeInto(out *guestfile.FreeRuns, same func(raw []byte, at int64) error) error {
	add := func(cluster int64, value uint32) {
		if value == 0 {
			out.Add(disk.Range{Off: f.at(cluster), Len: f.Cluster})
		}
	}
	// Three bytes hold two entries of a FAT12. The largest FAT12 has 6 KiB, so it is read in one piece.
	per := 8 * tableChunk / f.Bits
	for first := int64(0); f.has(max(first, 2)); first += per {
		n := min(per, f.Clusters+2-first)
		raw, err := ondisk.Bytes(f.meter, f.table+first*f.Bits/8, (n*f.Bits+7)/8)
		if err != nil {
			return err
		}
		if same != nil {
			if err := same(raw, first*f.Bits/8); err != nil {
				return err
			}
		}
		for i := max(0, 2-first); i < n; i++ {
			switch f.Bits {
			case 12:
				pair := binary.LittleEndian.Uint16(raw[i*12/8:])
				add(first+i, uint32(pair>>(i%2*4)&0xfff))
			case 16:
				add(first+i, uint32(binary.LittleEndian.Uint16(raw[2*i:])))
			default:
				add(first+i, binary.LittleEndian.Uint32(raw[4*i:])&0x0fffffff) // the upper bits are reserved
			}
		}
	}
	return nil
}

// fsInfo is the FAT32 sector with the number of free clusters. Spec: "FAT32 FSInfo Sector Structure".
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

// Unused passes the free clusters of a volume to free. It returns an error if the FAT cannot be trusted: copies differ,
// the number of free clusters differs from FSInfo, or the chain of a file or folder is broken. It does not call used,
// since each cluster in use has an entry of its own in the FAT.
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

// mirrored requires that a piece of the FAT is the same in all copies, if the volume mirrors its FATs.
func (f *fileSystem) mirrored(raw []byte, off int64) error {
	if f.Bits == 32 && f.Flags&0x80 != 0 {
		return nil // not mirrored
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

// counted compares the number of free clusters with FSInfo, if a FAT32 stores it there.
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
