package ovf

import (
	"bytes"
	"crypto/sha1" // prescribed by OVF 1, and no protection here
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"hash"
	"regexp"
	"strings"

	"github.com/trueup/trueup/internal/ondisk"
)

// Limits of a manifest. It has one or a few lines for each file.
const (
	MaxManifest = 4 << 20
	maxLines    = 4 * maxItems
)

// Manifest holds the digests of the files of a package. Spec: DSP0243 6, "OVF Package".
type Manifest struct {
	Digests []Digest

	text []byte
}

// Digest is one line of a manifest.
type Digest struct {
	Algorithm string // as spelled in the line
	Name      string
	Sum       []byte
	New       func() hash.Hash // nil for an unknown algorithm

	name, sum value
	upper     bool
}

// line matches "SHA256(disk1.vmdk)= 0123…". The name may contain brackets.
var line = regexp.MustCompile(`^[ \t]*([A-Za-z0-9-]+)[ \t]*\((.*)\)[ \t]*=[ \t]*([0-9A-Fa-f]+)[ \t]*$`)

var algorithms = map[string]func() hash.Hash{
	"SHA1": sha1.New, "SHA256": sha256.New, "SHA384": sha512.New384,
	"SHA512": sha512.New,
}

// ParseManifest parses a manifest.
func ParseManifest(text []byte) (*Manifest, error) {
	if len(text) > MaxManifest {
		return nil, fmt.Errorf("manifest of %d bytes: %w of %d bytes", len(text), ondisk.ErrLimit, MaxManifest)
	}
	m := &Manifest{text: text}
	off, number := 0, 0
	for l := range bytes.Lines(text) {
		number++
		if number > maxLines {
			return nil, fmt.Errorf("manifest: %w of %d lines", ondisk.ErrLimit, maxLines)
		}
		if err := m.add(l, off, number); err != nil {
			return nil, err
		}
		off += len(l)
	}
	return m, nil
}

// add parses the line at byte off of the text.
func (m *Manifest) add(l []byte, off, number int) error {
	bad := func(kind error, format string, args ...any) error {
		return &ondisk.TextError{What: "manifest", Line: number, Msg: fmt.Sprintf(format, args...), Kind: kind}
	}
	l = bytes.TrimRight(l, "\r\n")
	if len(bytes.TrimSpace(l)) == 0 {
		return nil
	}
	at := line.FindSubmatchIndex(l)
	if at == nil {
		return bad(ondisk.ErrFormat, "%.256q, must be a line such as %q", l, "SHA256(disk1.vmdk)= 0123…")
	}
	d := Digest{
		Algorithm: string(l[at[2]:at[3]]), Name: string(l[at[4]:at[5]]), name: value{
			off + at[4],
			off + at[5],
		}, sum: value{off + at[6], off + at[7]},
	}
	if strings.ContainsAny(d.Name, `\:`) || strings.HasPrefix(d.Name, "/") || strings.Contains("/"+d.Name+"/", "/../") {
		return bad(ondisk.ErrReference, "the name %.256q leaves the package", d.Name)
	}
	digits := string(l[at[6]:at[7]])
	d.upper = strings.ContainsAny(digits, "ABCDEF")
	d.New = algorithms[strings.ToUpper(strings.ReplaceAll(d.Algorithm, "-", ""))]
	sum, err := hex.DecodeString(digits)
	if err != nil || (d.New != nil && len(sum) != d.New().Size()) {
		return bad(ondisk.ErrFormat, "%d hexadecimal digits are not a digest of %s", len(digits), d.Algorithm)
	}
	d.Sum = sum
	m.Digests = append(m.Digests, d)
	return nil
}

// Rewrite returns the text with digests and names replaced. sum returns the new digest of d, or nil to keep the old
// one. name returns the new name.
func (m *Manifest) Rewrite(sum func(d Digest) []byte, name func(string) string) []byte {
	var out bytes.Buffer
	done := 0
	for _, d := range m.Digests {
		out.Write(m.text[done:d.name.from])
		out.WriteString(name(d.Name))
		out.Write(m.text[d.name.to:d.sum.from])
		done = d.sum.from
		if b := sum(d); b != nil {
			digits := hex.EncodeToString(b)
			if d.upper {
				digits = strings.ToUpper(digits)
			}
			out.WriteString(digits)
			done = d.sum.to
		}
	}
	out.Write(m.text[done:])
	return out.Bytes()
}
