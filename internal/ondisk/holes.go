package ondisk

import "github.com/trueup/trueup/internal/disk"

// Holes knows whether structures lie in a hole of their file, where reading them would only give zeros: qemu-img
// creates a VMDK of 63 TiB with 16 GiB of empty tables. Not safe for concurrent use.
type Holes struct {
	file  sparseSource
	known disk.Extent // the last stretch of the file that was asked for
}

// sparseSource is a source that knows its holes.
type sparseSource interface {
	Source
	disk.Sparse
}

// NewHoles asks file for its holes.
func NewHoles(file sparseSource) *Holes { return &Holes{file: file} }

// Has reports whether all n bytes from off are in a hole. Where the file does not know, they are not.
func (h *Holes) Has(off, n int64) bool {
	r := disk.Range{Off: off, Len: n}
	if !h.known.Contains(r) {
		e, err := h.file.Extent(off, h.file.Size()-off)
		if err != nil {
			return false
		}
		h.known = e
	}
	return h.known.Zero && h.known.Contains(r)
}
