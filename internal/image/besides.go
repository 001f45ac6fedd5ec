package image

import (
	"path"
	"slices"
	"strings"
)

// Beside is what a folder holds beside an image.
type Beside struct {
	Locks    []string `json:"locks,omitempty"`    // names of files by which a program says that it uses the image
	Children []string `json:"children,omitempty"` // names of images that are snapshots of it
}

// Folder is what a folder holds that concerns its images, for who lists it once and has many of them. The zero value is an empty one.
type Folder struct {
	general []string        // locks that concern every image
	locks   map[string]bool // of one disk each: its name and ".lck"
	memory  []string        // of machines
}

// maxGeneral is how many locks that concern all images of a folder are kept: one says as much as thousands.
const maxGeneral = 8

// maxMemory is how many files with the memory of a machine are kept: each image is held against all of them.
const maxMemory = 4096

// Add notes a name of the folder.
func (f *Folder) Add(name string) {
	ext := path.Ext(name)
	switch {
	case strings.HasSuffix(name, ".vmx.lck"), strings.HasPrefix(name, ".lck-"), ext == ".vmss":
		if len(f.general) < maxGeneral {
			f.general = append(f.general, name)
		}
	case ext == ".vmem" && len(f.memory) < maxMemory:
		f.memory = append(f.memory, name)
	case ext == ".lck":
		if f.locks == nil {
			f.locks = map[string]bool{}
		}
		f.locks[name] = true
	}
}

// Locks lists the names that say that an image is in use. files are its own, the named one first.
func (f *Folder) Locks(files []string) []string {
	if len(files) == 0 {
		return nil
	}
	out := f.general[:len(f.general):len(f.general)]
	for _, name := range files {
		if f.locks[name+".lck"] {
			out = append(out, name+".lck")
		}
	}
	img := &Image{base: files[0]}
	for _, name := range f.memory {
		if img.lockedBy(name) != "" {
			out = append(out, name)
		}
	}
	slices.Sort(out[len(f.general):])
	return out
}
