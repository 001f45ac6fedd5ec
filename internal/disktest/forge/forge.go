// Package forge writes images for tests, field by field, without the decoders under test. Below it is a package for
// each family of structures.
package forge

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"testing"
)

// Bytes is an image that a test writes field by field, little-endian, from the specification of its format: never by
// the code under test. A valid one is the start, and a test changes one field of it.
type Bytes []byte

// U8 sets the byte at off.
func (f Bytes) U8(off int64, v uint8) { f[off] = v }

// U16 sets two bytes at off.
func (f Bytes) U16(off int64, v uint16) { binary.LittleEndian.PutUint16(f[off:], v) }

// U32 sets four bytes at off.
func (f Bytes) U32(off int64, v uint32) { binary.LittleEndian.PutUint32(f[off:], v) }

// U64 sets eight bytes at off.
func (f Bytes) U64(off int64, v uint64) { binary.LittleEndian.PutUint64(f[off:], v) }

// BE16 sets two bytes at off, big-endian.
func (f Bytes) BE16(off int64, v uint16) { binary.BigEndian.PutUint16(f[off:], v) }

// BE32 sets four bytes at off, big-endian.
func (f Bytes) BE32(off int64, v uint32) { binary.BigEndian.PutUint32(f[off:], v) }

// BE64 sets eight bytes at off, big-endian.
func (f Bytes) BE64(off int64, v uint64) { binary.BigEndian.PutUint64(f[off:], v) }

// Text puts s at off.
func (f Bytes) Text(off int64, s string) { copy(f[off:], s) }

// Put puts b at off.
func (f Bytes) Put(off int64, b []byte) { copy(f[off:], b) }

// stretch is the unit that Write stores or leaves as a hole. Most of a forged disk is zero, and writing a page costs
// more than checking it.
const stretch = 64 << 10

var zeros [stretch]byte

// Write writes the image to a file. Zeros become holes, if the file system supports them.
func (f Bytes) Write(t testing.TB, path string) {
	t.Helper()
	if err := f.write(path); err != nil {
		t.Fatal(err)
	}
}

func (f Bytes) write(path string) (err error) {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	for off := 0; off < len(f); off += stretch {
		part := f[off:min(off+stretch, len(f))]
		if bytes.Equal(part, zeros[:len(part)]) {
			continue
		}
		if _, err := file.WriteAt(part, int64(off)); err != nil {
			return err
		}
	}
	return file.Truncate(int64(len(f)))
}
