package image

import (
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
)

// qedHeader is the head of a QED image, little-endian. Spec: docs/interop/qed_spec.rst of QEMU, "Header".
type qedHeader struct {
	Magic           [4]byte // "QED\0"
	ClusterSize     uint32  // bytes
	TableSize       uint32  // clusters
	HeaderSize      uint32  // clusters
	Features        uint64
	_               [16]byte // compatible and autoclear features
	L1TableOffset   uint64   // bytes
	ImageSize       uint64   // bytes
	BackingFileName uint32   // bytes from the start of the file
	BackingFileSize uint32   // bytes
}

const (
	qedBackingFile = 1 << 0  // of Features
	maxBackingName = 4 << 10 // bytes
)

// qed names files and has no reader: its overlays are found, and not opened.
var qed = driver.Format{
	Name: "QED", Detect: isQED, Names: qedNames, AnyExtension: true,
	Extensions: []string{".qed"},
}

var isQED = prefix("QED\x00")

// qedNames returns the parents that a QED image names, and none for a file of another format.
func qedNames(f driver.File) (n driver.Names, err error) {
	head := make([]byte, min(f.Size(), magicBlock))
	if err := ondisk.ReadFull(f, head, 0); err != nil || !isQED(head, nil) {
		return n, err
	}
	var h qedHeader
	if _, err := ondisk.Decode(f, 0, &h); err != nil {
		return driver.Names{Broken: true}, nil //nolint:nilerr // a file that ends within its header
	}
	if h.Features&qedBackingFile == 0 {
		return n, nil
	}
	at, size := int64(h.BackingFileName), int64(h.BackingFileSize)
	if size > maxBackingName || at+size > f.Size() {
		return driver.Names{Broken: true}, nil
	}
	name, err := ondisk.Bytes(f, at, size)
	if err == nil {
		n.Parents, n.Broken = driver.BackingFiles(string(name))
	}
	return n, err
}
