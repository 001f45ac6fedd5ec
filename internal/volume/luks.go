package volume

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
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

// luks is the header of an encrypted Linux volume. Spec: LUKS1 On-Disk Format Specification 1.2.3, "PHDR"; LUKS2
// On-Disk Format Specification 1.1.1, 2.1 "Binary Header".
var luks = &row{
	kinds: []Traits{{
		Kind: LUKS, Title: "LUKS", Precedence: 1, Data: "first encrypted sector of LUKS",
		Realign: "to align its data, copy them to a volume made by cryptsetup luksFormat --align-payload 2048",
	}},
	what: "luks header", at: []int64{0}, size: units.SectorSize, order: binary.BigEndian,
	magic:  []Mark{{0, "LUKS\xba\xbe"}},
	checks: func(s *super) { s.check(check{"version", 6, 2, within(1, 2).says("1 or 2")}) },
	volume: func(s *super) *Volume {
		v := &Volume{Kind: LUKS, Size: s.d.Size(), UUID: plainID(s.text(168, 40))}
		v.Add("version", strconv.Itoa(int(s.u16(6))))
		if s.u16(6) == 1 {
			s.err = readLUKS1(v, s)
		} else {
			s.err = readLUKS2(v, s)
		}
		if s.err != nil {
			return nil
		}
		if v.DataStart == 0 {
			v.Add("data", "on another device (detached header)")
		}
		return v
	},
}

const (
	luks2What = "luks2 header"

	luks2Fixed   = 4096 // bytes of the binary header; the JSON area follows
	luks2MinSize = 16 << 10
	luks2MaxSize = 4 << 20
)

// readLUKS1 reads the payload offset, stored in sectors. It is 0 in a detached header.
func readLUKS1(v *Volume, s *super) error {
	const atPayload = 104
	v.DataStart = s.i64(atPayload) * units.SectorSize
	if v.DataStart >= v.Size {
		return ondisk.Field("luks1 header", "payload offset", atPayload, s.u32(atPayload),
			fmt.Sprintf("less than %d sectors, the size of the device", v.Size/units.SectorSize))
	}
	return nil
}

// readLUKS2 reads the first of two headers. It verifies a SHA-256 checksum, the default of cryptsetup. The checksum
// covers header and JSON area, with its own field zeroed.
func readLUKS2(v *Volume, s *super) error {
	const atSize, atLabel, atAlgorithm, atOffset, atSum, sumSize = 8, 24, 72, 256, 448, 64
	size := s.u64(atSize)
	switch {
	case v.Size < luks2Fixed:
		return ondisk.Field(luks2What, "length", 0, v.Size, luks2Fixed)
	case size < luks2MinSize || size > luks2MaxSize || !units.IsPowerOfTwo(ondisk.I64(size)) ||
		ondisk.I64(size) > v.Size:
		return ondisk.Field(luks2What, "size", atSize, size, "a power of two from 16 KiB to 4 MiB, within the device")
	case s.u64(atOffset) != 0: // offset of this header
		return ondisk.Field(luks2What, "offset", atOffset, s.u64(atOffset), 0)
	}
	b, err := ondisk.Bytes(s.d, 0, ondisk.I64(size))
	if err != nil {
		return err
	}
	if s.text(atAlgorithm, 32) == "sha256" {
		clear(b[atSum : atSum+sumSize])
		stored := s.b[atSum : atSum+sha256.Size]
		if sum := sha256.Sum256(b); !bytes.Equal(sum[:], stored) {
			return ondisk.Field(luks2What, "checksum", atSum, stored, fmt.Sprintf("% x", sum))
		}
	}
	v.Label = s.text(atLabel, 48)
	text, _, _ := bytes.Cut(b[luks2Fixed:], []byte{0})
	area, err := readLUKS2Area(text)
	if err != nil {
		return ondisk.Shift(err, luks2Fixed)
	}
	data, err := area.payload()
	v.DataStart, v.Size = data.Off, max(v.Size, data.End())
	switch {
	case err != nil:
		return ondisk.Shift(err, luks2Fixed)
	case v.DataStart >= s.d.Size():
		return ondisk.Field("luks2 json", "offset of a segment", luks2Fixed, v.DataStart,
			fmt.Sprintf("less than %d, the size of the device", s.d.Size()))
	}
	if i, ok := area.tableKeys(); ok {
		v.Issues = append(v.Issues, i)
	}
	return nil
}

// luks2Area holds the decoded part of the JSON area. Spec: LUKS2 On-Disk Format Specification 1.1.1, 3.3 "Segments
// Object", 3.5 "Tokens Object".
type luks2Area struct {
	Segments json.RawMessage `json:"segments"`
	Tokens   json.RawMessage `json:"tokens"`
}

func readLUKS2Area(text []byte) (a luks2Area, err error) {
	if err := json.Unmarshal(text, &a); err != nil {
		return a, ondisk.Field("luks2 json", "text", 0, err.Error(), "JSON")
	}
	return a, nil
}

// members visits the members of an object one by one, since a map decoded from untrusted text could need many times its
// size.
func members(object json.RawMessage, visit func(name json.Token, dec *json.Decoder) error) error {
	dec := json.NewDecoder(bytes.NewReader(object))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return ondisk.Field("luks2 json", "segments", 0, "none", "an object")
	}
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return ondisk.Field("luks2 json", "segments", 0, err.Error(), "names")
		}
		if err := visit(name, dec); err != nil {
			return err
		}
	}
	return nil
}

// payload returns the first data segment. Its length is 0 if it extends to the end of the device.
func (a luks2Area) payload() (first disk.Range, err error) {
	first.Off = -1
	err = members(a.Segments, func(_ json.Token, dec *json.Decoder) error {
		var s struct {
			Offset string   `json:"offset"` // bytes
			Size   string   `json:"size"`   // bytes, or "dynamic"
			Flags  []string `json:"flags"`
		}
		if err := dec.Decode(&s); err != nil {
			return ondisk.Field("luks2 json", "segment", 0, err.Error(), "an object")
		}
		if slices.ContainsFunc(s.Flags, func(f string) bool { return strings.HasPrefix(f, "backup-") }) {
			return nil // the state before an encryption in progress
		}
		n, err := strconv.ParseInt(s.Offset, 10, 64)
		if err != nil || n < 0 {
			return ondisk.Field("luks2 json", "offset of a segment", 0, s.Offset, "a number of bytes")
		}
		size, err := strconv.ParseInt(s.Size, 10, 64)
		if err != nil || size < 0 || size > math.MaxInt64-n {
			size = 0
		}
		if first.Off < 0 || n < first.Off {
			first = disk.Range{Off: n, Len: size}
		}
		return nil
	})
	first.Off = max(first.Off, 0)
	return first, err
}

// pcrOfTable is the TPM register into which firmware measures the partition table of the boot disk. Spec: TCG PC Client
// Platform Firmware Profile 1.05, 3.3.4.6 "PCR[5]" and 10.4.1, EV_EFI_GPT_EVENT.
const pcrOfTable = 5

// Limits of the tokens of a header.
const (
	maxTokens = 32 // tokens per header, equal to the number of keyslots
	maxNested = 64 // keys nested in keys
)

// luks2Token binds a keyslot to hardware or a service outside of the header. Spec: LUKS2 On-Disk Format Specification
// 1.1.1, 3.5 "Tokens Object"; systemd, src/shared/cryptsetup-tpm2.c, tpm2_make_luks2_json; clevis,
// src/luks/clevis-luks-common-functions.in.
type luks2Token struct {
	Type    string `json:"type"`
	PCRs    []int  `json:"tpm2-pcrs"`
	PCRLock bool   `json:"tpm2_pcrlock"`
	JWE     struct {
		Protected string `json:"protected"`
	} `json:"jwe"`
}

// clevisHeader is the protected header of a clevis key.
type clevisHeader struct {
	Clevis struct {
		Pin  string `json:"pin"`
		TPM2 struct {
			PCRs string `json:"pcr_ids"`
		} `json:"tpm2"`
		SSS struct {
			JWE []string `json:"jwe"` // keys; a threshold of them unlocks
		} `json:"sss"`
	} `json:"clevis"`
}

// tableKeys returns the issue for keys that a TPM releases only while the partition table is unchanged. ok is false
// without such keys. A token that cannot be decoded counts as not bound.
func (a luks2Area) tableKeys() (i ondisk.Issue, ok bool) {
	bound, locked, n := []string{}, false, 0
	_ = members(a.Tokens, func(name json.Token, dec *json.Decoder) error {
		if n++; n > maxTokens {
			return ondisk.ErrLimit
		}
		var t luks2Token
		if err := dec.Decode(&t); err != nil {
			return err
		}
		switch {
		case t.Type == "systemd-tpm2" && slices.Contains(t.PCRs, pcrOfTable), t.Type == "clevis" && t.clevis():
			bound = append(bound, fmt.Sprintf("%.8v (%s)", name, t.Type))
		case t.Type == "systemd-tpm2" && t.PCRLock:
			bound, locked = append(bound, fmt.Sprintf("%.8v (systemd-pcrlock)", name)), true
		}
		return nil
	})
	if len(bound) == 0 {
		return i, false
	}
	is := "is"
	if locked {
		is = "can be"
	}
	return ondisk.Issue{
		Code: "luks-tpm", Effect: ondisk.Warn, OnMove: true, DiskWide: true,
		Text: fmt.Sprintf("a key of LUKS %s bound to PCR %d of the TPM, which measures the partition table (token "+
			"%s): after a move of a partition the TPM does not release it, and the guest asks for a "+
			"passphrase", is, pcrOfTable,
			strings.Join(bound, ", ")),
		Remedy: "have a passphrase or recovery key at hand for the first boot of the copy, and enroll the TPM again " +
			"in it (systemd-cryptenroll --wipe-slot=tpm2 --tpm2-device=auto, clevis luks regen)",
	}, true
}

// clevis reports whether a clevis token depends on the register.
func (t luks2Token) clevis() bool {
	queue := []string{t.JWE.Protected}
	for n := 0; n < len(queue) && n < maxNested; n++ {
		header, _, _ := strings.Cut(queue[n], ".") // the first part of a compact key
		b, err := base64.RawURLEncoding.DecodeString(header)
		if err != nil {
			continue
		}
		var h clevisHeader
		if json.Unmarshal(b, &h) != nil {
			continue
		}
		for id := range strings.SplitSeq(h.Clevis.TPM2.PCRs, ",") {
			if pcr, err := strconv.Atoi(strings.TrimSpace(id)); err == nil && pcr == pcrOfTable {
				return true
			}
		}
		queue = append(queue, h.Clevis.SSS.JWE...)
	}
	return false
}
