package vhdx

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"

	"github.com/trueup/trueup/internal/ondisk"
)

// Places in the header section, the first MiB of the file. Spec: 2.2.
const (
	atHeader1  = 64 << 10
	atHeader2  = 128 << 10
	atRegions1 = 192 << 10
	atRegions2 = 256 << 10
)

// atChecksum is where headers, region tables and log entries have their checksum, which is computed as if it were zero.
const atChecksum = 4

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksum returns the CRC-32C of a structure.
func checksum(b []byte) uint32 {
	sum := crc32.Update(0, castagnoli, b[:atChecksum])
	sum = crc32.Update(sum, castagnoli, make([]byte, 4))
	return crc32.Update(sum, castagnoli, b[atChecksum+4:])
}

// seal sets the checksum of a structure.
func seal(b []byte) { binary.LittleEndian.PutUint32(b[atChecksum:], checksum(b)) }

// fileHeader holds the place of the log. There are two, so that one of them is always whole. Spec: 2.2.2.
type fileHeader struct {
	Signature      [4]byte // "head"
	Checksum       uint32
	SequenceNumber uint64
	FileWriteGUID  ondisk.GUID
	DataWriteGUID  ondisk.GUID // what a child knows its parent by
	LogGUID        ondisk.GUID // zero when there is nothing to replay
	LogVersion     uint16
	Version        uint16
	LogLength      uint32
	LogOffset      uint64
	_              [4016]byte
}

// Byte offsets of fields, for messages.
const (
	atSequence   = 8
	atLogVersion = 64
	atVersion    = 66
	atLogLength  = 68
	atLogOffset  = 72
)

// copyOf is one of two copies of a structure.
type copyOf struct {
	at  int64
	raw []byte
	err error // what is wrong with it
}

// readCopy reads a structure of n bytes and looks at its signature and checksum.
func readCopy(src ondisk.Source, what, sign string, at, n int64) (copyOf, error) {
	if at+n > src.Size() {
		return copyOf{
			at:  at,
			err: ondisk.Field(what, "file size", at, src.Size(), fmt.Sprintf("at least %d bytes", at+n)),
		}, nil
	}
	b, err := ondisk.Bytes(src, at, n)
	if err != nil {
		return copyOf{}, err
	}
	c := copyOf{at: at, raw: b}
	switch got := binary.LittleEndian.Uint32(b[atChecksum:]); {
	case string(b[:4]) != sign:
		c.err = ondisk.Field(what, "signature", at, string(b[:4]), sign)
	case got != checksum(b):
		c.err = ondisk.Field(what, "checksum", at+atChecksum, hex32(got), hex32(checksum(b)))
	}
	return c, nil
}

func hex32(v uint32) string { return fmt.Sprintf("0x%08x", v) }

// oneOf reports a copy that is damaged if the other one is not. Both damaged are an error.
func (x *image) oneOf(what string, a, b copyOf) error {
	bad := a
	if a.err == nil {
		bad = b
	}
	switch {
	case a.err != nil && b.err != nil:
		return a.err
	case bad.err != nil:
		x.issues = append(x.issues, ondisk.Issue{
			Code: "vhdx-copy-damaged", Effect: ondisk.Warn,
			Text: fmt.Sprintf("one of the two copies of the %s is damaged, and the other one is used: %v", what,
				bad.err),
			Remedy: "open it once in Hyper-V, which writes both again",
		})
	}
	return nil
}

// readHeaders finds the current header: the valid one with the greater sequence number. Spec: 2.2.2.1.
func (x *image) readHeaders() error {
	const what = "vhdx header"
	var both [2]copyOf
	var heads [2]fileHeader
	for i, at := range []int64{atHeader1, atHeader2} {
		var err error
		if both[i], err = readCopy(x.file, what, "head", at, int64(binary.Size(heads[i]))); err != nil {
			return err
		}
		if both[i].err == nil {
			if _, err := binary.Decode(both[i].raw, binary.LittleEndian, &heads[i]); err != nil {
				return err
			}
		}
	}
	if err := x.oneOf(what, both[0], both[1]); err != nil {
		return err
	}
	cur := 0
	switch {
	case both[0].err != nil:
		cur = 1
	case both[1].err != nil:
	case heads[1].SequenceNumber > heads[0].SequenceNumber:
		cur = 1
	case heads[1].SequenceNumber == heads[0].SequenceNumber && string(both[0].raw) != string(both[1].raw):
		return ondisk.Field(what, "sequence number", atHeader2+atSequence, heads[1].SequenceNumber,
			"another one than the first header has, whose content differs")
	}
	x.head = heads[cur]
	return x.head.check(both[cur].at, x.file.Size())
}

// check checks the fields of the current header against the specification. at is its place.
func (h *fileHeader) check(at, fileSize int64) error {
	field := func(name string, off int64, got, want any) error {
		return ondisk.Field("vhdx header", name, at+off, got, want)
	}
	switch {
	case h.SequenceNumber == math.MaxUint64:
		return field("sequence number", atSequence, h.SequenceNumber, "a number that can still grow")
	case h.Version != 1:
		return field("version", atVersion, h.Version, 1)
	case h.LogGUID != ondisk.GUID{} && h.LogVersion != 0:
		return field("log version", atLogVersion, h.LogVersion, 0)
	case h.LogLength%mib != 0 || (h.LogLength == 0 && h.LogGUID != ondisk.GUID{}):
		return field("log length", atLogLength, h.LogLength, "a multiple of 1 MiB")
	case h.LogLength > 0 && (h.LogOffset%mib != 0 || h.LogOffset < mib):
		return field("log offset", atLogOffset, h.LogOffset, "a multiple of 1 MiB, from 1 MiB on")
	case h.LogLength > 0 && (h.LogOffset > ondisk.U64(fileSize) ||
		uint64(h.LogLength) > ondisk.U64(fileSize)-h.LogOffset):
		return field("log offset", atLogOffset, h.LogOffset,
			fmt.Sprintf("a place from which %d bytes fit into the file of %d bytes", h.LogLength, fileSize))
	}
	return nil
}
