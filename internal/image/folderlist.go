package image

import (
	"cmp"
	"encoding/json"
	"path"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/image/driver"
)

// FileNames are names of files. They are bytes, and JSON would change those that are not UTF-8: there they are base64.
type FileNames []string

// MarshalJSON keeps every byte.
func (n FileNames) MarshalJSON() ([]byte, error) {
	raw := make([][]byte, len(n))
	for i, name := range n {
		raw[i] = []byte(name)
	}
	return json.Marshal(raw)
}

// UnmarshalJSON reads what MarshalJSON writes.
func (n *FileNames) UnmarshalJSON(b []byte) error {
	var raw [][]byte
	if err := json.Unmarshal(b, &raw); err != nil {
		return err
	}
	*n = make(FileNames, len(raw))
	for i, name := range raw {
		(*n)[i] = string(name)
	}
	return nil
}

// Beside lists what a folder holds beside an image. The image looks at each: not all of them need to concern it.
type Beside struct {
	Locks    FileNames `json:"locks,omitempty"` // files by which a program marks the image as in use
	Children []Child   `json:"children,omitempty"`
}

// Child is an image that may be a snapshot of another, or a view: its name, the last components of those that it gives
// its parent, or the ContentID of that, and the files that it is a view of.
type Child struct {
	Name    []byte    `json:"name"`
	Parents FileNames `json:"parents"`
	Views   FileNames `json:"views,omitempty"`
	Lineage string    `json:"lineage,omitempty"`
}

// parents returns the children as names of siblings.
func (b *Beside) parents() map[string]driver.Names {
	out := map[string]driver.Names{}
	for _, c := range b.Children {
		out[string(c.Name)] = driver.Names{Parents: c.Parents, Views: c.Views, Lineage: c.Lineage}
	}
	return out
}

// Folder collects what a folder holds that concerns its images, for a caller that lists it once and opens many of them.
// The zero value is an empty one.
type Folder struct {
	general []string        // locks that concern every image, sorted
	locks   map[string]bool // of one disk each: its name and ".lck"
	memory  []string        // files with the memory of a machine; sorted by Done
}

// maxLocks is how many locks are kept that concern one image, or every image: one says as much as thousands. Those that
// come first by name are kept, since the order of a folder is chance.
const maxLocks = 8

// Add notes a name of the folder.
func (f *Folder) Add(name string) {
	ext := path.Ext(name)
	switch {
	case strings.HasSuffix(name, ".vmx.lck"), strings.HasPrefix(name, ".lck-"), ext == ".vmss",
		ext == ".sav" && vboxState().MatchString(name):
		at, _ := slices.BinarySearch(f.general, name)
		if f.general = slices.Insert(f.general, at, name); len(f.general) > maxLocks {
			f.general = f.general[:maxLocks]
		}
	case ext == ".vmem":
		f.memory = append(f.memory, name)
	case ext == ".lck":
		if f.locks == nil {
			f.locks = map[string]bool{}
		}
		f.locks[name] = true
	}
}

// Done ends the list: all names were added.
func (f *Folder) Done() { slices.Sort(f.memory) }

// Locks lists the names that may show that an image is in use, sorted. files are its own and those of its parents.
// After Done it is safe for concurrent use.
func (f *Folder) Locks(files []string) FileNames {
	out := slices.Clone(f.general)
	for _, name := range files {
		if f.locks[name+".lck"] {
			out = append(out, name+".lck")
		}
		stem := strings.TrimSuffix(name, path.Ext(name))
		out = append(append(out, f.startingWith(stem+".")...), f.startingWith(stem+"-")...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// startingWith finds the first memory files whose name begins so.
func (f *Folder) startingWith(prefix string) []string {
	from, _ := slices.BinarySearch(f.memory, prefix)
	to := min(from+maxLocks, len(f.memory))
	n, _ := slices.BinarySearchFunc(f.memory[from:to], prefix, func(name, prefix string) int {
		if strings.HasPrefix(name, prefix) {
			return -1
		}
		return cmp.Compare(name, prefix)
	})
	return f.memory[from : from+n]
}
