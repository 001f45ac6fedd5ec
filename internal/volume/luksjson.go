package volume

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Bounds of the JSON area. cryptsetup has 32 key slots and nests five deep.
const (
	luksMaxDepth    = 32
	luksMaxSegments = 32
	luksMaxCipher   = 256
)

// luksSegment is a stretch of data. Spec: LUKS2 On-Disk Format Specification 1.1.1, 3.3 "Segments Object".
type luksSegment struct {
	Offset     string   `json:"offset"` // bytes
	Encryption string   `json:"encryption"`
	SectorSize int64    `json:"sector_size"`
	Flags      []string `json:"flags"`
	start      int64
}

// luks2Segments gives the segments that hold data, of a JSON area that is at most 4 MiB. Only one object of it is taken
// apart, and that one by one: a map of a stranger's text could take many times its size.
func luks2Segments(text []byte) ([]luksSegment, error) {
	if deepest(text) > luksMaxDepth {
		return nil, field("luks2 json", "nesting", 0, deepest(text), fmt.Sprintf("up to %d", luksMaxDepth))
	}
	var area struct {
		Segments json.RawMessage `json:"segments"`
	}
	if err := json.Unmarshal(text, &area); err != nil {
		return nil, field("luks2 json", "text", 0, err.Error(), "JSON")
	}
	var out []luksSegment
	dec := json.NewDecoder(bytes.NewReader(area.Segments))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, field("luks2 json", "segments", 0, "none", "an object")
	}
	for dec.More() {
		var s luksSegment
		if _, err := dec.Token(); err != nil {
			return nil, field("luks2 json", "segments", 0, err.Error(), "names")
		}
		if err := dec.Decode(&s); err != nil {
			return nil, field("luks2 json", "segment", 0, err.Error(), "an object")
		}
		if len(out) == luksMaxSegments {
			return nil, field("luks2 json", "segments", 0, "more", fmt.Sprintf("up to %d", luksMaxSegments))
		}
		if slices.ContainsFunc(s.Flags, func(f string) bool { return strings.HasPrefix(f, "backup-") }) {
			continue // how it was before an encryption that is under way
		}
		if len(s.Encryption) > luksMaxCipher {
			return nil, field("luks2 json", "encryption of a segment", 0, s.Encryption, fmt.Sprintf("up to %d characters", luksMaxCipher))
		}
		n, err := strconv.ParseUint(s.Offset, 10, 64)
		if err != nil || n > math.MaxInt64 {
			return nil, field("luks2 json", "offset of a segment", 0, s.Offset, "a number of bytes")
		}
		s.start = int64(n)
		out = append(out, s)
	}
	return out, nil
}

// deepest counts how deep a JSON text nests.
func deepest(text []byte) int {
	depth, deep, quoted := 0, 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			depth++
			deep = max(deep, depth)
		case c == '}' || c == ']':
			depth--
		}
	}
	return deep
}
