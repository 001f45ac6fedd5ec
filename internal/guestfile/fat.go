package guestfile

import (
	"fmt"
	"io/fs"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/fs/fat"
	"github.com/trueup/trueup/internal/ondisk"
)

// Sizes of a FAT. Spec: Microsoft FAT specification 1.03.
const (
	fatFolder = 65536 * fat.Slot // bytes of the largest folder
	// Most clusters of a FAT16 and of a FAT32. Spec: "FAT Type Determination".
	fat16Most = 65524
	fat32Most = 0x0ffffff5
)

// fatFS reads a FAT12, FAT16 or FAT32.
type fatFS struct {
	*fat.Boot
	volume disk.Disk
	meter  metered
	table  int64 // the FAT in use, in bytes of the volume
}

// FAT reads the FAT12, FAT16 or FAT32 of a partition.
func (b *Budget) FAT(d disk.Disk) (FS, error) {
	boot, err := fat.Read(d)
	if err != nil {
		return nil, err
	}
	f := &fatFS{Boot: boot, volume: d, meter: b.of(d), table: boot.FAT.Off}
	return f, f.check()
}

// check refuses what leaves a place of a file in doubt, on top of what package fat asks of a FAT.
func (f *fatFS) check() error {
	most := int64(fat16Most)
	if f.Bits == 32 {
		most = fat32Most
	}
	if f.Clusters < 1 || f.Clusters > most {
		return fatField("clusters", 0x20, f.Clusters, fmt.Sprintf("1 to %d", most))
	}
	if f.Bits != 32 {
		return nil
	}
	if f.RootEntries != 0 {
		return fatField("root entries", 0x11, f.RootEntries, "0, since it has no FAT of a FAT16")
	}
	if f.Version != 0 {
		return fmt.Errorf("fat32 version %#x: %w", f.Version, ondisk.ErrUnsupported)
	}
	return f.choose()
}

func fatField(name string, off int64, got, want any) error {
	return &ondisk.FormatError{What: "fat boot sector", Off: off, Field: name, Got: got, Want: want}
}

// choose finds the FAT in use. Spec: "BPB_ExtFlags": bit 7 set means that only the FAT of bits 0 to 3 is kept.
func (f *fatFS) choose() error {
	if active := int64(f.Flags & 0xf); f.Flags&0x80 != 0 {
		if active >= int64(f.FATs) {
			return fatField("active FAT", 0x28, active, fmt.Sprintf("0 to %d", f.FATs-1))
		}
		f.table += active * f.FAT.Len
	}
	if root := int64(f.RootCluster); !f.Has(root) {
		return fatField("root cluster", 0x2c, root, f.allowed())
	}
	return nil
}

// Open finds a regular file.
func (f *fatFS) Open(path string) (*File, error) {
	e, stored, err := f.find(path)
	if err != nil {
		return nil, err
	}
	if e.dir() {
		return nil, fmt.Errorf("file %.256q: is a folder: %w", path, fs.ErrNotExist)
	}
	var runs []Run
	if e.size > 0 {
		if runs, err = f.chain(e.first, f.Clusters, (e.size+f.Cluster-1)/f.Cluster); err != nil {
			return nil, fmt.Errorf("file %.256q: %w", path, err)
		}
	}
	return newFile(f.volume, stored, e.size, runs)
}

// List gives the names of a folder.
func (f *fatFS) List(path string) ([]Entry, error) {
	e, _, err := f.find(path)
	if err != nil {
		return nil, err
	}
	if !e.dir() {
		return nil, fmt.Errorf("folder %.256q: is a file: %w", path, fs.ErrNotExist)
	}
	var out []Entry
	err = f.each(e, func(e fatEntry) bool {
		out = append(out, Entry{Name: e.name(), Dir: e.dir()})
		return true
	})
	return out, err
}

// find follows a path from the root. stored is the path with the names as they stand in the folders.
func (f *fatFS) find(path string) (at fatEntry, stored string, err error) {
	names := elements(path)
	if len(names) > maxDepth {
		return at, "", fmt.Errorf("path %.256q: %w of %d folders", path, ondisk.ErrLimit, maxDepth)
	}
	at = fatEntry{attr: fatAttrDir, root: true}
	for i, name := range names {
		found := false
		if at.dir() {
			err = f.each(at, func(e fatEntry) bool {
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
