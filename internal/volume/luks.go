package volume

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strconv"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// LUKS is an encrypted volume of Linux.
const LUKS Kind = "luks"

var luks = Prober{
	Kinds: []Traits{{
		Kind: LUKS, Title: "LUKS", Precedence: 1, Data: "first encrypted sector of LUKS",
		Realign: "to align its data, copy them to a volume made by cryptsetup luksFormat --align-payload 2048",
	}},
	Marks: []Mark{{0, luksMagic}},
	Probe: probeLUKS,
}

// luks1Header is big-endian. No key is ever derived, so that no count of iterations matters. Spec: LUKS1 On-Disk Format
// Specification 1.2.3, "PHDR".
type luks1Header struct {
	Magic         [6]byte
	Version       uint16
	CipherName    [32]byte
	CipherMode    [32]byte
	HashSpec      [32]byte
	PayloadOffset uint32 // sectors; 0: the header is detached
	KeyBytes      uint32
	_             [56]byte // digest of the key, salt, iterations
	UUID          [40]byte
	Slots         [8]luks1Slot
}

// luks1Slot is a key slot. Spec: LUKS1 On-Disk Format Specification 1.2.3, "key slot".
type luks1Slot struct {
	Active uint32
	_      [44]byte
}

// luks2Header is big-endian; the JSON area follows. Spec: LUKS2 On-Disk Format Specification 1.1.1, 2.1 "Binary Header".
type luks2Header struct {
	Magic       [6]byte
	Version     uint16
	Size        uint64 // with the JSON area, bytes
	SeqID       uint64
	Label       [48]byte
	ChecksumAlg [32]byte
	_           [64]byte // salt
	UUID        [40]byte
	Subsystem   [48]byte
	Offset      uint64 // its own place
	_           [184]byte
	Checksum    [64]byte // of all Size bytes, with zeros here
	_           [3584]byte
}

const (
	luks1What  = "luks1 header"
	luks2What  = "luks2 header"
	luksMagic  = "LUKS\xba\xbe"
	luksSecond = "SKUL\xba\xbe"

	luks1Active  = 0x00ac71f3
	luks2Fixed   = 4096
	luks2MinSize = 16 << 10
	luks2MaxSize = 4 << 20
	luks2AtSum   = 448
)

func probeLUKS(d disk.Disk) (*Volume, error) {
	b, err := start(d)
	if err != nil || string(b[:6]) != luksMagic {
		return nil, orNoMatch(err)
	}
	switch version := binary.BigEndian.Uint16(b[6:]); version {
	case 1:
		return readLUKS1(d)
	case 2:
		return readLUKS2(d)
	default:
		return nil, field("luks header", "version", 6, version, "1 or 2")
	}
}

func readLUKS1(d disk.Disk) (*Volume, error) {
	var h luks1Header
	b, err := ondisk.Bytes(d, 0, int64(binary.Size(h)))
	if err != nil {
		return nil, err
	}
	decodeBig(b, &h)
	v := &Volume{Kind: LUKS, Size: d.Size(), UUID: plainID(zeroTerminated(h.UUID[:])), DataStart: int64(h.PayloadOffset) * units.SectorSize}
	if v.DataStart >= d.Size() {
		return nil, field(luks1What, "payload offset", 104, h.PayloadOffset, fmt.Sprintf("less than %d sectors, the size of the device", d.Size()/units.SectorSize))
	}
	v.says("version", "1")
	if name := zeroTerminated(h.CipherName[:]); name != "" {
		v.says("cipher", name+"-"+zeroTerminated(h.CipherMode[:]))
	}
	active := 0
	for _, s := range h.Slots {
		if s.Active == luks1Active {
			active++
		}
	}
	v.says("key slots", strconv.Itoa(active))
	v.detached()
	return v, nil
}

// detached says where the data are when they do not follow the header.
func (v *Volume) detached() {
	if v.DataStart == 0 {
		v.says("data", "on another device: this is a detached header")
	}
}

// readLUKS2 takes the header that cryptsetup would take: the first if it is sound, else the second.
func readLUKS2(d disk.Disk) (*Volume, error) {
	first, err := luks2At(d, 0, luksMagic)
	if err != nil && !isBroken(err) {
		return nil, err
	}
	second := (*luks2)(nil)
	for at := int64(luks2MinSize); at <= luks2MaxSize && second == nil; at *= 2 {
		if first != nil && at != ondisk.I64(first.Size) {
			continue
		}
		var serr error
		if second, serr = luks2At(d, at, luksSecond); serr != nil && !isBroken(serr) {
			return nil, serr
		}
	}
	switch {
	case first == nil && second == nil:
		return nil, err
	case first == nil:
		v, verr := second.volume(d)
		if verr == nil {
			v.note("luks-header", ondisk.Warn, "the first header of the LUKS2 is broken, the second is used (places count from its start): "+err.Error(), "run cryptsetup repair in the guest")
		}
		return v, verr
	}
	v, err := first.volume(d)
	if err == nil && (second == nil || second.SeqID != first.SeqID) {
		v.note("luks-header", ondisk.Note, "the second header of the LUKS2 is broken or older than the first", "run cryptsetup repair in the guest")
	}
	return v, err
}

// luks2 is a sound header and its JSON text.
type luks2 struct {
	luks2Header
	at   int64
	text []byte
}

// luks2At reads a header and checks it.
func luks2At(d disk.Disk, at int64, magic string) (*luks2, error) {
	h := &luks2{at: at}
	if at > d.Size()-luks2Fixed {
		return nil, field(luks2What, "place", at, at, "a header within the device")
	}
	b, err := ondisk.Bytes(d, at, luks2Fixed)
	if err != nil {
		return nil, err
	}
	decodeBig(b, &h.luks2Header)
	switch room := d.Size() - at; {
	case string(h.Magic[:]) != magic:
		return nil, field(luks2What, "magic", at, h.Magic[:], fmt.Sprintf("%q", magic))
	case h.Version != 2:
		return nil, field(luks2What, "version", at+6, h.Version, 2)
	case h.Size < luks2MinSize || h.Size > luks2MaxSize || !units.IsPowerOfTwo(ondisk.I64(h.Size)) || ondisk.I64(h.Size) > room:
		return nil, field(luks2What, "size", at+8, h.Size, "a power of two from 16 KiB to 4 MiB, within the device")
	case h.Offset != ondisk.U64(at):
		return nil, field(luks2What, "offset", at+256, h.Offset, at)
	}
	if b, err = ondisk.Bytes(d, at, ondisk.I64(h.Size)); err != nil {
		return nil, err
	}
	h.text, _, _ = bytes.Cut(b[luks2Fixed:], []byte{0})
	if err := h.checksum(b); err != nil {
		return nil, err
	}
	return h, nil
}

// checksum checks the whole header if it is summed by SHA-256, as cryptsetup does where nothing else is asked for.
func (h *luks2) checksum(b []byte) error {
	if alg := zeroTerminated(h.ChecksumAlg[:]); alg != "sha256" {
		return nil
	}
	clear(b[luks2AtSum : luks2AtSum+len(h.Checksum)])
	sum := sha256.Sum256(b)
	if !bytes.Equal(sum[:], h.Checksum[:len(sum)]) {
		return field(luks2What, "checksum", h.at+luks2AtSum, h.Checksum[:len(sum)], fmt.Sprintf("% x", sum))
	}
	return nil
}

// volume describes the volume of a header.
func (h *luks2) volume(d disk.Disk) (*Volume, error) {
	v := &Volume{Kind: LUKS, Size: d.Size(), UUID: plainID(zeroTerminated(h.UUID[:])), Label: zeroTerminated(h.Label[:])}
	segments, err := luks2Segments(h.text)
	if err != nil {
		return nil, ondisk.Shift(err, h.at+luks2Fixed)
	}
	v.says("version", "2")
	v.says("subsystem", zeroTerminated(h.Subsystem[:]))
	for i, s := range segments {
		if s.start >= d.Size() {
			return nil, field("luks2 json", "offset of a segment", h.at+luks2Fixed, s.start, fmt.Sprintf("less than %d, the size of the device", d.Size()))
		}
		if i == 0 || s.start < v.DataStart {
			v.DataStart = s.start
		}
	}
	if len(segments) > 0 {
		v.says("cipher", segments[0].Encryption)
		if n := segments[0].SectorSize; n > 0 {
			v.says("sector size", bytesOf(n))
		}
		v.detached()
	}
	return v, nil
}

// decodeBig is decode for big-endian structs.
func decodeBig(b []byte, v any) {
	if _, err := binary.Decode(b, binary.BigEndian, v); err != nil {
		panic(err) // our own bug
	}
}
