package ntfs

import (
	"encoding/binary"
	"fmt"
	"io/fs"
	"slices"
	"unicode/utf16"

	"github.com/trueup/trueup/internal/ondisk"
)

// spaceDOS is the namespace of the short name of a file that has a long one too. Spec: Linux-NTFS documentation,
// "$FILE_NAME".
const spaceDOS = 2

// fileName is a name in a folder.
type fileName struct {
	ref   ref
	name  []uint16
	space byte
	dir   bool
}

// text returns the name. NTFS allows halves of surrogate pairs, which become U+FFFD: such a file cannot be opened by
// name.
func (n *fileName) text() string { return string(utf16.Decode(n.name)) }

// upcaseTable is $UpCase: the upper-case form of each of 65,536 characters. It differs between versions of Windows, and
// makes names unique. It is read in blocks as characters are asked for: most names need the first one.
type upcaseTable struct {
	file   ondisk.Source
	blocks [maxUpcase / upcaseBlock][]byte
}

// Sizes of $UpCase, and of what is read of it at once, in bytes.
const (
	maxUpcase   = 128 << 10
	upcaseBlock = 4 << 10
)

// findUpcase finds the upper-case table of the volume.
func (n *fileSystem) findUpcase() error {
	node, err := n.node(ref{number: upcaseRecord}, "$UpCase")
	if err != nil {
		return err
	}
	v := value{fs: n}
	if err := node.read(attrData, "", &v); err != nil {
		return err
	}
	if err := v.plain("$UpCase"); err != nil {
		return err
	}
	f, err := v.upTo("$UpCase", maxUpcase)
	if err != nil {
		return err
	}
	n.upper.file = f
	return n.spend(f.Size())
}

// upcase returns the upper-case form of a character. Characters beyond the table stay.
func (n *fileSystem) upcase(u uint16) (uint16, error) {
	const chars = upcaseBlock / 2
	t := &n.upper
	block, at := u/chars, 2*int(u%chars)
	if t.blocks[block] == nil {
		off := int64(block) * upcaseBlock
		b := make([]byte, max(0, min(upcaseBlock, t.file.Size()-off)))
		if err := ondisk.ReadFull(t.file, b, off); err != nil {
			return 0, err
		}
		t.blocks[block] = b
	}
	if b := t.blocks[block]; at+1 < len(b) {
		return binary.LittleEndian.Uint16(b[at:]), nil
	}
	return u, nil
}

// child finds a name in a folder. An exact match comes before names that differ by case, which POSIX programs make.
func (node *node) child(name string) (*node, error) {
	path := name
	if node.path != "" {
		path = node.path + "/" + name
	}
	if !node.rec.dir() {
		return nil, fmt.Errorf("file %.256q: %w", path, fs.ErrNotExist)
	}
	want := utf16.Encode([]rune(name))
	upper := make([]uint16, len(want))
	for i, u := range want {
		var err error
		if upper[i], err = node.fs.upcase(u); err != nil {
			return nil, err
		}
	}
	var exact, folded *fileName
	rivals := false
	err := node.names(upper, func(n *fileName) error {
		switch {
		case slices.Equal(n.name, want):
			exact = n
		case folded == nil:
			folded = n
		case folded.ref != n.ref:
			rivals = true
		}
		return nil
	})
	switch {
	case err != nil:
		return nil, err
	case exact != nil:
		folded = exact
	case rivals:
		return nil, fmt.Errorf("file %.256q: %w: several files have names that differ by case alone", path,
			ondisk.ErrUnsupported)
	case folded == nil:
		return nil, fmt.Errorf("file %.256q: %w", path, fs.ErrNotExist)
	}
	return node.fs.node(folded.ref, path[:len(path)-len(name)]+folded.text())
}
