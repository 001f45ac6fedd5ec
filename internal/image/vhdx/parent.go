package vhdx

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
)

// locatorVHDX marks a parent that is a VHDX, too. Spec: 2.6.2.6.3.
var locatorVHDX = ondisk.MustGUID("b04aefb7-d19e-4a81-b789-25b8e9445913")

// Keys of a locator, the paths in the order in which they are tried. parent_linkage2 is not looked at: the
// specification forbids it, and a parent that only it knows is refused as a changed one.
const keyLinkage = "parent_linkage"

var keyPaths = []string{"relative_path", "volume_path", "absolute_win32_path"}

// maxPairs bounds the key-value pairs of a locator; the specification knows five.
const maxPairs = 64

// locatorHeader begins a parent locator. Spec: 2.6.2.6.1.
type locatorHeader struct {
	LocatorType   ondisk.GUID
	_             uint16
	KeyValueCount uint16
}

// locatorEntry is a key and its value. Offsets count from the start of the locator, lengths are in bytes. Spec:
// 2.6.2.6.2.
type locatorEntry struct {
	KeyOffset, ValueOffset uint32
	KeyLength, ValueLength uint16
}

// locator holds what a differencing disk knows of its parent.
type locator struct {
	at     int64 // of the metadata region, for messages
	values map[string]string
}

// readLocator reads the item of a locator.
func readLocator(item []byte, at int64) (*locator, error) {
	l := &locator{at: at, values: map[string]string{}}
	var h locatorHeader
	if len(item) < binary.Size(h) {
		return nil, l.field("length", len(item), fmt.Sprintf("at least %d bytes", binary.Size(h)))
	}
	if _, err := binary.Decode(item, binary.LittleEndian, &h); err != nil {
		return nil, err
	}
	n := int(h.KeyValueCount)
	switch {
	case h.LocatorType != locatorVHDX:
		return nil, fmt.Errorf("vhdx parent locator of type %s: %w; only parents that are VHDX are known",
			h.LocatorType, ondisk.ErrUnsupported)
	case n > maxPairs:
		return nil, fmt.Errorf("vhdx parent locator of %d keys: %w of %d", n, ondisk.ErrLimit, maxPairs)
	case binary.Size(h)+n*binary.Size(locatorEntry{}) > len(item):
		return nil, l.field("key count", n, fmt.Sprintf("entries within its %d bytes", len(item)))
	}
	for i := range n {
		if err := l.add(item, binary.Size(h)+i*binary.Size(locatorEntry{})); err != nil {
			return nil, err
		}
	}
	return l, nil
}

func (l *locator) field(name string, got, want any) error {
	return ondisk.Field("vhdx parent locator", name, l.at, got, want)
}

// add reads the pair whose entry is at byte at of the item.
func (l *locator) add(item []byte, at int) error {
	var e locatorEntry
	if _, err := binary.Decode(item[at:], binary.LittleEndian, &e); err != nil {
		return err
	}
	key, err := l.text(item, e.KeyOffset, e.KeyLength)
	if err != nil {
		return err
	}
	value, err := l.text(item, e.ValueOffset, e.ValueLength)
	if err != nil {
		return err
	}
	if _, twice := l.values[key]; twice {
		return l.field("key", key, "each key once")
	}
	l.values[key] = value
	return nil
}

// text decodes UTF-16.
func (l *locator) text(item []byte, off uint32, n uint16) (string, error) {
	if n == 0 || n%2 != 0 || off == 0 || int64(off)+int64(n) > int64(len(item)) {
		return "", l.field("text", fmt.Sprintf("%d bytes at %d", n, off),
			fmt.Sprintf("UTF-16 within its %d bytes", len(item)))
	}
	s := ondisk.UTF16(item[off:][:n], binary.LittleEndian)
	if strings.ContainsRune(s, 0) {
		return "", l.field("text", s, "no zero inside")
	}
	return s, nil
}

// paths returns the names of the parent, in the order in which they are to be tried.
func (l *locator) paths() []string {
	if l == nil {
		return nil
	}
	var out []string
	for _, k := range keyPaths {
		if v := l.values[k]; v != "" {
			out = append(out, v)
		}
	}
	return out
}

// ref returns how the parent is found and known.
func (l *locator) ref() (driver.ParentRef, error) {
	id, ok := ondisk.ParseGUID(l.values[keyLinkage])
	if !ok {
		return driver.ParentRef{}, l.field(keyLinkage, l.values[keyLinkage], "the GUID of the parent")
	}
	return driver.ParentRef{Names: l.paths(), Format: name, ID: id.String()}, nil
}
