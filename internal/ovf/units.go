package ovf

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// legacyUnits are the words of OVF 1.0 and of CIM_ResourceAllocationSettingData.
var legacyUnits = map[string]int64{
	"": 1, "byte": 1, "bytes": 1, "kilobytes": 1 << 10, "megabytes": 1 << 20, "gigabytes": 1 << 30,
	"terabytes": 1 << 40,
}

// parseUnits reads a programmatic unit, "byte * 2^30". Spec: DMTF DSP0004, annex C.1.
func parseUnits(s string) (int64, error) {
	factors := strings.Split(strings.ToLower(s), "*")
	unit, ok := legacyUnits[strings.TrimSpace(factors[0])]
	if !ok {
		return 0, fmt.Errorf("unit %.64q, want bytes such as %q", s, "byte * 2^30")
	}
	for _, f := range factors[1:] {
		n, ok := parsePower(f)
		if !ok || n == 0 || n > math.MaxInt64/unit {
			return 0, fmt.Errorf("unit %.64q, want bytes such as %q", s, "byte * 2^30")
		}
		unit *= n
	}
	return unit, nil
}

// parsePower reads "2^30" or "1024".
func parsePower(s string) (int64, bool) {
	base, exponent, isPower := strings.Cut(s, "^")
	n, err := strconv.ParseInt(strings.TrimSpace(base), 10, 64)
	if err != nil || n < 1 || !isPower {
		return n, err == nil && n > 0
	}
	e, err := strconv.ParseUint(strings.TrimSpace(exponent), 10, 6)
	if err != nil {
		return 0, false
	}
	out := int64(1)
	for range e {
		if out > math.MaxInt64/n {
			return 0, false
		}
		out *= n
	}
	return out, true
}

// parseCapacity returns bytes, or -1 for a property that a deployment fills in.
func parseCapacity(s string, unit int64) (int64, error) {
	s = strings.TrimSpace(s)
	if strings.HasPrefix(s, "${") && strings.HasSuffix(s, "}") {
		return -1, nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("capacity %.64q, want a number", s)
	}
	if n > math.MaxInt64/unit {
		return 0, fmt.Errorf("capacity %d in units of %d bytes, want at most %d bytes", n, unit, int64(math.MaxInt64))
	}
	return n * unit, nil
}
