package image

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/url"
	"path"
	"slices"
	"strings"
	"unicode/utf16"

	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/ovf"
	"github.com/trueup/trueup/internal/sys"
)

// looksLikeOVF reports whether a file has the name of an OVF or begins like one; not, with an error. Where it has the
// name, a comment of any length may stand in front of the envelope, and the text may be in UTF-16.
func looksLikeOVF(name string, f driver.File) (bool, error) {
	if strings.EqualFold(path.Ext(name), ".ovf") {
		return true, nil
	}
	head := make([]byte, min(f.Size(), textBlock))
	err := ondisk.ReadFull(f, head, 0)
	return err == nil && ovf.Looks(head), err
}

// ovfNames lists the files of an OVF's own folder that belong to its package; none for a file that is no OVF.
func ovfNames(f driver.File) (driver.Names, error) {
	if looks, err := looksLikeOVF(f.Name(), f); !looks {
		return driver.Names{}, err
	}
	if f.Size() > ovf.MaxText {
		return driver.Names{Broken: true}, nil
	}
	text, err := ondisk.Bytes(f, 0, f.Size())
	if err != nil {
		return driver.Names{}, err
	}
	e, err := ovf.Parse(text)
	if err != nil {
		return driver.Names{Broken: true}, nil //nolint:nilerr // what it names is not known
	}
	var n driver.Names
	for _, r := range e.Files {
		name := strings.TrimPrefix(r.Href, "./")
		n.Members = append(n.Members, name)
		if plain, err := url.PathUnescape(name); err == nil && plain != name {
			n.Members = append(n.Members, plain)
		}
	}
	n.Members = slices.DeleteFunc(n.Members, func(name string) bool { return strings.Contains(name, "/") })
	return n, nil
}

// calls reports whether a name that stands in an image or an OVF is that of a file, or of the file that it is a chunk
// of. Other systems find a file by its name in another case.
func calls(name, base string) bool {
	name = lastName(name)
	whole, ok := ovf.Whole(base)
	return strings.EqualFold(name, base) || ok && strings.EqualFold(name, whole)
}

// mentions reports whether a file is an OVF in whose text the name of another stands, in UTF-8 or UTF-16 and any
// case. It is for an OVF that cannot be parsed: other programs may read it.
func mentions(d *gate.Folder, name, base string) (found bool, err error) {
	f, err := d.OpenAny(name, ondisk.ErrReference)
	if err != nil {
		if passed(err) || sys.Denied(err) {
			err = nil
		}
		return false, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if looks, err := looksLikeOVF(name, f); !looks {
		return false, err
	}
	text, err := ondisk.Bytes(f, 0, min(f.Size(), ovf.MaxText))
	if err != nil {
		return false, err
	}
	return hasName(text, base), nil
}

// hasName reports whether a name stands in a text, as XML has it or as URIs do.
func hasName(text []byte, name string) bool {
	names := []string{name, url.PathEscape(name)}
	if whole, ok := ovf.Whole(name); ok {
		names = append(names, whole, url.PathEscape(whole))
	}
	text = lower(text)
	for _, n := range names {
		n = strings.ReplaceAll(n, "&", "&amp;")
		units := utf16.Encode([]rune(n))
		little, big := make([]byte, 0, 2*len(units)), make([]byte, 0, 2*len(units))
		for _, u := range units {
			little, big = binary.LittleEndian.AppendUint16(little, u), binary.BigEndian.AppendUint16(big, u)
		}
		for _, b := range [][]byte{[]byte(n), little, big} {
			if bytes.Contains(text, lower(b)) {
				return true
			}
		}
	}
	return false
}

// lower makes the capital letters of ASCII small, in a text of any encoding.
func lower(text []byte) []byte {
	out := bytes.Clone(text)
	for i, c := range out {
		if 'A' <= c && c <= 'Z' {
			out[i] += 'a' - 'A'
		}
	}
	return out
}
