package volume

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/ondisk"
)

// pcrOfTable is the register of a TPM into which firmware measures the partition table of the disk that it boots. Spec:
// TCG PC Client Platform Firmware Profile 1.05, 3.3.4.6 "PCR[5]" and 10.4.1, EV_EFI_GPT_EVENT.
const pcrOfTable = 5

// Limits of the tokens of a header.
const (
	maxTokens = 32 // of a header; keyslots have room for as many
	maxNested = 64 // keys inside of keys
)

// luks2Token binds a keyslot to something outside of the header. Spec: LUKS2 On-Disk Format Specification 1.1.1, 3.5
// "Tokens Object"; systemd, src/shared/cryptsetup-tpm2.c, tpm2_make_luks2_json; clevis, src/luks/clevis-luks-common-
// functions.in.
type luks2Token struct {
	Type    string `json:"type"`
	PCRs    []int  `json:"tpm2-pcrs"`
	PCRLock bool   `json:"tpm2_pcrlock"`
	JWE     struct {
		Protected string `json:"protected"`
	} `json:"jwe"`
}

// clevisHeader is the protected header of a key of clevis.
type clevisHeader struct {
	Clevis struct {
		Pin  string `json:"pin"`
		TPM2 struct {
			PCRs string `json:"pcr_ids"`
		} `json:"tpm2"`
		SSS struct {
			JWE []string `json:"jwe"` // keys, of which some number must open
		} `json:"sss"`
	} `json:"clevis"`
}

// tableKeys returns the issue of keys that a TPM gives only while the partition table is as it was. text is the JSON
// area; ok is false if there are none. What cannot be decoded binds nothing that is known.
func tableKeys(text []byte) (i ondisk.Issue, ok bool) {
	var area struct {
		Tokens json.RawMessage `json:"tokens"`
	}
	if json.Unmarshal(text, &area) != nil {
		return i, false
	}
	dec := json.NewDecoder(bytes.NewReader(area.Tokens))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return i, false
	}
	bound, locked := []string{}, false
	for n := 0; dec.More() && n < maxTokens; n++ {
		name, err := dec.Token()
		if err != nil {
			break
		}
		var t luks2Token
		if err := dec.Decode(&t); err != nil {
			break
		}
		switch {
		case t.Type == "systemd-tpm2" && slices.Contains(t.PCRs, pcrOfTable), t.Type == "clevis" && t.clevis():
			bound = append(bound, fmt.Sprintf("%.8v (%s)", name, t.Type))
		case t.Type == "systemd-tpm2" && t.PCRLock:
			bound, locked = append(bound, fmt.Sprintf("%.8v (systemd-pcrlock)", name)), true
		}
	}
	if len(bound) == 0 {
		return i, false
	}
	is := "is"
	if locked {
		is = "can be"
	}
	return ondisk.Issue{
		Code: "luks-tpm", Effect: ondisk.Warn, OnMove: true, DiskWide: true,
		Text: fmt.Sprintf("a key of LUKS %s bound to PCR %d of the TPM, which measures the partition table: token %s; "+
			"after a move of a partition the TPM does not give it, and the guest asks for a passphrase", is, pcrOfTable,
			strings.Join(bound, ", ")),
		Remedy: "have a passphrase or recovery key at hand for the first boot of the copy, and enroll the TPM again " +
			"in it (systemd-cryptenroll --wipe-slot=tpm2 --tpm2-device=auto, clevis luks regen)",
	}, true
}

// clevis reports whether a token of clevis needs the register.
func (t luks2Token) clevis() bool {
	queue := []string{t.JWE.Protected}
	for n := 0; n < len(queue) && n < maxNested; n++ {
		header, _, _ := strings.Cut(queue[n], ".") // of a compact key it is the first part
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
