package fat

import (
	"fmt"
	"io/fs"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
)

// Sizes of a FAT. Spec: Microsoft FAT specification 1.03.
const (
	maxFolder = 65536 * slotSize // bytes of the largest folder
	// Most clusters of a FAT16 and of a FAT32. Spec: "FAT Type Determination".
	most16 = 65524
	most32 = 0x0ffffff5
)

// fileSystem reads a FAT12, FAT16 or FAT32.
type fileSystem struct {
	*bootSector
	volume disk.Disk
	meter  guestfile.Metered
	table  int64 // the FAT in use, in bytes of the volume
}

// Open opens the FAT12, FAT16 or FAT32 of a partition.
func Open(b *guestfile.Budget, d disk.Disk) (guestfile.FS, error) {
	boot, err := readBoot(d)
	if err != nil {
		return nil, err
	}
	f := &fileSystem{bootSector: boot, volume: d, meter: b.Of(d), table: boot.FAT.Off}
	return f, f.check()
}

// check refuses a FAT whose files have no certain places, beyond the checks of Read.
func (f *fileSystem) check() error {
	most := int64(most16)
	if f.Bits == 32 {
		most = most32
	}
	if f.Clusters < 1 || f.Clusters > most {
		return field("clusters", 0x20, f.Clusters, fmt.Sprintf("1 to %d", most))
	}
	if f.Bits != 32 {
		return nil
	}
	if f.RootEntries != 0 {
		return field("root entries", 0x11, f.RootEntries, "0, since it has no FAT of a FAT16")
	}
	if f.Version != 0 {
		return fmt.Errorf("fat32 version %#x: %w", f.Version, ondisk.ErrUnsupported)
	}
	return f.choose()
}

// choose finds the FAT in use. Spec: "BPB_ExtFlags": bit 7 set means that only the FAT of bits 0 to 3 is kept.
func (f *fileSystem) choose() error {
	if active := int64(f.Flags & 0xf); f.Flags&0x80 != 0 {
		if active >= int64(f.FATs) {
			return field("active FAT", 0x28, active, fmt.Sprintf("0 to %d", f.FATs-1))
		}
		f.table += active * f.FAT.Len
	}
	if root := int64(f.RootCluster); !f.has(root) {
		return field("root cluster", 0x2c, root, f.allowed())
	}
	return nil
}

// Open finds a regular file.
func (f *fileSystem) Open(path string) (*guestfile.File, error) {
	e, stored, err := f.find(path)
	if err != nil {
		return nil, err
	}
	if e.dir() {
		return nil, fmt.Errorf("file %.256q: is a folder: %w", path, fs.ErrNotExist)
	}
	var runs []guestfile.Run
	if e.size > 0 {
		if runs, err = f.chain(e.first, f.Clusters, (e.size+f.Cluster-1)/f.Cluster); err != nil {
			return nil, fmt.Errorf("file %.256q: %w", path, err)
		}
	}
	return guestfile.NewFile(f.volume, stored, e.size, runs)
}

// Volume is what Open returns, for the judge of a volume that was not unmounted.
type Volume interface {
	// Mirrored returns nil if all FATs agree on the clusters of a file and of the folders on its path.
	Mirrored(path string) error
	// FirstEntry returns nil if the first entry of the FAT in use repeats the media byte. Spec: "FAT Data Structure".
	FirstEntry() error
}

// FirstEntry follows Volume.
func (f *fileSystem) FirstEntry() error {
	v, _, err := f.value(f.table, 0)
	if err == nil && v&0xff != uint32(f.Media) {
		err = f.broken(0, int64(v), fmt.Sprintf("the media byte %#02x in the low byte", f.Media))
	}
	return err
}

// Mirrored follows Volume.
func (f *fileSystem) Mirrored(path string) error {
	names := guestfile.Elements(path)
	for i := range len(names) + 1 {
		e, _, err := f.find(strings.Join(names[:i], "/"))
		switch {
		case err != nil:
			return err
		case e.root && f.Bits != 32, !e.dir() && e.size == 0:
			continue // without clusters
		case e.root:
			e.first = int64(f.RootCluster)
		}
		if _, err := f.chain(e.first, f.Clusters, 1); err != nil {
			return fmt.Errorf("path %.256q: %w", path, err)
		}
		if err := f.sameInAll(e.first); err != nil {
			return fmt.Errorf("path %.256q: %w", path, err)
		}
	}
	return nil
}

// List returns the names of a folder.
func (f *fileSystem) List(path string) ([]guestfile.Entry, error) {
	e, _, err := f.find(path)
	if err != nil {
		return nil, err
	}
	if !e.dir() {
		return nil, fmt.Errorf("folder %.256q: is a file: %w", path, fs.ErrNotExist)
	}
	var out []guestfile.Entry
	err = f.each(e, func(e entry) bool {
		out = append(out, guestfile.Entry{Name: e.name(), Dir: e.dir()})
		return true
	})
	return out, err
}

// find follows a path from the root. stored is the path with the names as stored in the folders.
func (f *fileSystem) find(path string) (at entry, stored string, err error) {
	names := guestfile.Elements(path)
	if len(names) > guestfile.MaxDepth {
		return at, "", fmt.Errorf("path %.256q: %w of %d folders", path, ondisk.ErrLimit, guestfile.MaxDepth)
	}
	at = entry{attr: attrDir, root: true}
	for i, name := range names {
		found := false
		if at.dir() {
			err = f.each(at, func(e entry) bool {
				if found = e.is(name); found {
					at = e
				}
				return !found
			})
		}
		if err != nil {
			return at, "", fmt.Errorf("path %.256q: %w", path, err)
		}
		if !found {
			return at, "", fmt.Errorf("path %.256q: %w", path, fs.ErrNotExist)
		}
		names[i] = at.name()
	}
	return at, strings.Join(names, "/"), nil
}
