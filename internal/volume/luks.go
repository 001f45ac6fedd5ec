package volume

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// luks finds an encrypted volume of Linux.
var luks = Prober{
	Kinds: []Traits{{
		Kind: LUKS, Title: "LUKS", Precedence: 1, Data: "first encrypted sector of LUKS",
		Realign: "to align its data, copy them to a volume made by cryptsetup luksFormat --align-payload 2048",
	}},
	Marks: []Mark{{Off: 0, Bytes: luksMagic}},
	Probe: probeLUKS,
}

// luks1Header is big-endian. Spec: LUKS1 On-Disk Format Specification 1.2.3, "PHDR".
type luks1Header struct {
	_             [104]byte // magic, version, cipher, hash
	PayloadOffset uint32    // sectors; 0: the header is detached
	_             [60]byte  // size and digest of the key, salt, iterations
	UUID          [40]byte
}

// luks2Header is big-endian; the JSON area follows. Spec: LUKS2 On-Disk Format Specification 1.1.1, 2.1 "Binary
// Header".
type luks2Header struct {
	_           [8]byte // magic, version
	Size        uint64  // with the JSON area, bytes
	_           uint64  // sequence number
	Label       [48]byte
	ChecksumAlg [32]byte
	_           [64]byte // salt
	UUID        [40]byte
	_           [48]byte // subsystem
	Offset      uint64   // its own place
	_           [184]byte
	Checksum    [64]byte // of all Size bytes, with zeros here
	_           [3584]byte
}

const (
	luks2What = "luks2 header"
	luksMagic = "LUKS\xba\xbe"

	luks2Fixed   = 4096
	luks2MinSize = 16 << 10
	luks2MaxSize = 4 << 20
	luks2AtSum   = 448
)

func probeLUKS(d disk.Disk) (*Volume, error) {
	b, err := ReadBlock(d, 0, units.SectorSize)
	if err != nil || string(b[:6]) != luksMagic {
		return nil, orNoMatch(err)
	}
	switch version := binary.BigEndian.Uint16(b[6:]); version {
	case 1:
		return readLUKS1(d)
	case 2:
		return readLUKS2(d)
	default:
		return nil, ondisk.Field("luks header", "version", 6, version, "1 or 2")
	}
}

func readLUKS1(d disk.Disk) (*Volume, error) {
	var h luks1Header
	if _, err := Superblock(d, 0, binary.BigEndian, &h); err != nil {
		return nil, err
	}
	v := &Volume{
		Kind: LUKS, Size: d.Size(), UUID: plainID(Text(h.UUID[:])),
		DataStart: int64(h.PayloadOffset) * units.SectorSize,
	}
	if v.DataStart >= d.Size() {
		return nil, ondisk.Field("luks1 header", "payload offset", 104, h.PayloadOffset,
			fmt.Sprintf("less than %d sectors, the size of the device", d.Size()/units.SectorSize))
	}
	v.Add("version", "1")
	detached(v)
	return v, nil
}

// detached reports data on another device as a detail.
func detached(v *Volume) {
	if v.DataStart == 0 {
		v.Add("data", "on another device: this is a detached header")
	}
}

// readLUKS2 reads the first of two headers. It verifies the checksum if that is SHA-256, the default of cryptsetup.
func readLUKS2(d disk.Disk) (*Volume, error) {
	var h luks2Header
	b, err := ondisk.Bytes(d, 0, min(luks2Fixed, d.Size()))
	if err != nil {
		return nil, err
	}
	if len(b) < luks2Fixed {
		return nil, ondisk.Field(luks2What, "length", 0, len(b), luks2Fixed)
	}
	ondisk.MustFill(b, binary.BigEndian, &h)
	switch {
	case h.Size < luks2MinSize || h.Size > luks2MaxSize || !units.IsPowerOfTwo(ondisk.I64(h.Size)) ||
		ondisk.I64(h.Size) > d.Size():
		return nil, ondisk.Field(luks2What, "size", 8, h.Size, "a power of two from 16 KiB to 4 MiB, within the device")
	case h.Offset != 0:
		return nil, ondisk.Field(luks2What, "offset", 256, h.Offset, 0)
	}
	if b, err = ondisk.Bytes(d, 0, ondisk.I64(h.Size)); err != nil {
		return nil, err
	}
	if Text(h.ChecksumAlg[:]) == "sha256" {
		clear(b[luks2AtSum : luks2AtSum+len(h.Checksum)])
		if sum := sha256.Sum256(b); !bytes.Equal(sum[:], h.Checksum[:len(sum)]) {
			return nil, ondisk.Field(luks2What, "checksum", luks2AtSum, h.Checksum[:len(sum)], fmt.Sprintf("% x", sum))
		}
	}
	v := &Volume{
		Kind: LUKS, Size: d.Size(), UUID: plainID(Text(h.UUID[:])),
		Label: Text(h.Label[:]),
	}
	v.Add("version", "2")
	text, _, _ := bytes.Cut(b[luks2Fixed:], []byte{0})
	var data disk.Range
	data, err = luks2Payload(text)
	v.DataStart, v.Size = data.Off, max(v.Size, data.End())
	switch {
	case err != nil:
		return nil, ondisk.Shift(err, luks2Fixed)
	case v.DataStart >= d.Size():
		return nil, ondisk.Field("luks2 json", "offset of a segment", luks2Fixed, v.DataStart,
			fmt.Sprintf("less than %d, the size of the device", d.Size()))
	}
	if i, ok := tableKeys(text); ok {
		v.Issues = append(v.Issues, i)
	}
	detached(v)
	return v, nil
}

// luks2Payload returns the first data segment; one that goes to the end of the device has the length 0. Segments are
// decoded one by one, since a map of untrusted text could take many times its size. Spec: LUKS2 On-Disk Format
// Specification 1.1.1, 3.3 "Segments Object".
func luks2Payload(text []byte) (first disk.Range, err error) {
	var area struct {
		Segments json.RawMessage `json:"segments"`
	}
	if err := json.Unmarshal(text, &area); err != nil {
		return first, ondisk.Field("luks2 json", "text", 0, err.Error(), "JSON")
	}
	dec := json.NewDecoder(bytes.NewReader(area.Segments))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return first, ondisk.Field("luks2 json", "segments", 0, "none", "an object")
	}
	first.Off = -1
	for dec.More() {
		var s struct {
			Offset string   `json:"offset"` // bytes
			Size   string   `json:"size"`   // bytes, or "dynamic"
			Flags  []string `json:"flags"`
		}
		if _, err := dec.Token(); err != nil {
			return first, ondisk.Field("luks2 json", "segments", 0, err.Error(), "names")
		}
		if err := dec.Decode(&s); err != nil {
			return first, ondisk.Field("luks2 json", "segment", 0, err.Error(), "an object")
		}
		if slices.ContainsFunc(s.Flags, func(f string) bool { return strings.HasPrefix(f, "backup-") }) {
			continue // how it was before an encryption that is under way
		}
		n, err := strconv.ParseInt(s.Offset, 10, 64)
		if err != nil || n < 0 {
			return first, ondisk.Field("luks2 json", "offset of a segment", 0, s.Offset, "a number of bytes")
		}
		size, err := strconv.ParseInt(s.Size, 10, 64)
		if err != nil || size < 0 || size > math.MaxInt64-n {
			size = 0
		}
		if first.Off < 0 || n < first.Off {
			first = disk.Range{Off: n, Len: size}
		}
	}
	first.Off = max(first.Off, 0)
	return first, nil
}
