package ova

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// Limits of an archive. OVAs have some five members, each with one header.
const (
	maxMembers = 4096
	maxHeaders = 512 << 10 // bytes of the headers of one member
	maxName    = 1024      // bytes
	maxFolders = 16
)

// tarBlock is the block size of a tar, in bytes. Spec: POSIX pax, "ustar Interchange Format".
const tarBlock = 512

// entry is one member of a tar archive.
type entry struct {
	name string
	kind byte  // type flag, tar.TypeReg for a file
	head int64 // offset of its headers, extended ones first
	off  int64 // offset of its data
	size int64
}

// end returns the offset of the next member.
func (e entry) end() int64 { return e.off + units.AlignUp(e.size, tarBlock) }

// bytes returns the range of the member's data in the archive.
func (e entry) bytes() disk.Range { return disk.Range{Off: e.off, Len: e.size} }

// regular reports whether a member is a file with its own data.
func (e entry) regular() bool { return e.kind == tar.TypeReg }

var tarKinds = map[byte]string{
	tar.TypeLink: "a hard link", tar.TypeSymlink: "a symbolic link", tar.TypeChar: "a character device",
	tar.TypeBlock: "a block device", tar.TypeDir: "a folder", tar.TypeFifo: "a FIFO",
}

// File is a file in an archive and the range of its data.
type File struct {
	Name string
	disk.Range
}

// Files lists the regular files of a tar archive.
func Files(f ondisk.Source) ([]File, error) {
	entries, err := tarIndex(f)
	var out []File
	for _, e := range entries {
		if e.regular() {
			out = append(out, File{e.name, e.bytes()})
		}
	}
	return out, err
}

// tarIndex lists the members of an archive.
func tarIndex(f ondisk.Source) ([]entry, error) {
	kinds := map[string]byte{}
	var out []entry
	for at := int64(0); ; {
		e, h, err := tarEntry(f, at)
		if err != nil || h == nil {
			return out, err
		}
		// A folder may occur twice.
		if kind, twice := kinds[e.name]; twice && (kind != tar.TypeDir || e.kind != tar.TypeDir) {
			return nil, fmt.Errorf("member %.256q occurs twice in the archive: %w", e.name,
				ondisk.ErrReference)
		}
		kinds[e.name] = e.kind
		if len(out) == maxMembers {
			return nil, fmt.Errorf("archive: %w of %d members", ondisk.ErrLimit, maxMembers)
		}
		out = append(out, e)
		at = min(e.end(), f.Size()) // the padding of the last member may be missing
	}
}

// tarEntry reads the headers of the member at offset head. At the end of the archive, the header is nil. The final
// blocks of zeros are optional.
func tarEntry(f ondisk.Source, head int64) (e entry, h *tar.Header, err error) {
	if head == f.Size() {
		return e, nil, nil
	}
	first, err := ondisk.Bytes(f, head, tarBlock)
	if ondisk.IsZero(first) { // also true after a read error
		return e, nil, err
	}
	s := io.NewSectionReader(f, head, min(maxHeaders, f.Size()-head))
	h, err = tarHeader(tar.NewReader(s), head)
	read, _ := s.Seek(0, io.SeekCurrent) // cannot fail for these arguments
	ended := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
	switch {
	case ended && read == maxHeaders:
		return e, nil, fmt.Errorf("tar headers at %#x: %w of %d bytes for a member", head, ondisk.ErrLimit, maxHeaders)
	case ended || errors.Is(err, tar.ErrHeader):
		return e, nil, ondisk.In(ondisk.ErrFormat, "tar header at %#x: it is incomplete, or has a wrong checksum "+
			"or an invalid number or record; the archive is truncated or damaged, get it again", head)
	case err != nil:
		return e, nil, err
	}
	e = entry{kind: h.Typeflag, head: head, off: head + read, size: h.Size}
	if e.kind == tar.TypeCont { // POSIX requires this of readers without support for the type
		e.kind = tar.TypeReg
	}
	bad := func(want string) error {
		return ondisk.Field("tar header", "size", head, e.size, want)
	}
	switch {
	case tarKinds[e.kind] != "" && e.size != 0:
		return e, nil, bad("0 for " + tarKinds[e.kind])
	case e.size > f.Size()-e.off:
		return e, nil, bad(fmt.Sprintf("an end within the %d bytes of the archive", f.Size()))
	}
	e.name, err = MemberName(h.Name)
	return e, h, err
}

// tarHeader reads the header of a member, merged with its extended headers. It returns errors of archive/tar unchanged.
func tarHeader(r *tar.Reader, head int64) (*tar.Header, error) {
	for {
		h, err := r.Next()
		if err != nil {
			return nil, err
		}
		if h.Typeflag == tar.TypeXGlobalHeader && h.PAXRecords == nil { // archive/tar returns no error here
			return nil, tar.ErrHeader
		}
		sparse := h.Typeflag == tar.TypeGNUSparse
		for key := range h.PAXRecords {
			if h.Typeflag == tar.TypeXGlobalHeader && (key == "path" || key == "size") {
				return nil, fmt.Errorf("global tar header at %#x gives all members the same %s: %w", head, key,
					ondisk.ErrUnsupported)
			}
			sparse = sparse || strings.HasPrefix(key, "GNU.sparse.")
		}
		if sparse {
			return nil, fmt.Errorf("member at %#x of the archive is sparse: %w; archive it again with tar, without "+
				"--sparse", head, ondisk.ErrUnsupported)
		}
		if h.Typeflag != tar.TypeXGlobalHeader {
			return h, nil
		}
	}
}

// MemberName returns the name of a member without a leading "./". Although nothing is extracted, a name that leaves the
// package is an error.
func MemberName(name string) (string, error) {
	clean := strings.TrimSuffix(strings.TrimPrefix(name, "./"), "/")
	var bad string
	switch {
	case clean == "" && name != "./":
		bad = "is empty"
	case len(clean) > maxName || strings.Count(clean, "/") > maxFolders:
		bad = fmt.Sprintf("is longer than %d bytes or deeper than %d folders", maxName, maxFolders)
	case strings.HasPrefix(clean, "/"), clean != "" && clean != path.Clean(clean), strings.HasPrefix(clean+"/", "../"):
		bad = "leaves the archive"
	case strings.ContainsAny(clean, `\:`):
		bad = "has a backslash or a colon"
	case strings.ContainsFunc(clean, func(r rune) bool { return r < 0x20 || r == 0x7f }) || !utf8.ValidString(clean):
		bad = "has control characters or is not UTF-8"
	default:
		return clean, nil
	}
	return "", fmt.Errorf("member name %.256q %s: %w", name, bad, ondisk.ErrReference)
}

// maxTarName is the size of the name field in a header, in bytes.
const maxTarName = 100

// newTarHeader returns the header of a file from a folder, as ovftool writes it.
func newTarHeader(name string, mtime int64) (*tar.Header, error) {
	if len(name) > maxTarName {
		return nil, ondisk.In(ondisk.ErrUsage, "the name %.256q has %d bytes; an OVA allows at most %d", name,
			len(name), maxTarName)
	}
	return &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, ModTime: time.Unix(max(mtime, 0), 0)}, nil
}

// ownerName returns the name of an owner or a group, or an empty string if only PAX records could hold it. The numeric
// ids take precedence.
func ownerName(name string) string {
	const most = 32 // bytes
	if len(name) > most || !utf8.ValidString(name) {
		return ""
	}
	return name
}

// tarHeaders returns the headers of a file: ustar, the format of an OVA, or GNU tar if ustar cannot hold the name or
// the size. Their length depends only on most, an upper bound of size, since the data are placed before their size is
// known. So fields that only PAX can hold are dropped, such as fractions of seconds.
func tarHeaders(old *tar.Header, size, most int64) ([]byte, error) {
	h := tar.Header{
		Typeflag: tar.TypeReg, Name: strings.TrimSuffix(old.Name, "/"), Mode: old.Mode, Uid: old.Uid, Gid: old.Gid,
		Uname: ownerName(old.Uname), Gname: ownerName(old.Gname),
		ModTime: old.ModTime.Truncate(time.Second), Size: most, Format: tar.FormatUSTAR,
	}
	if tar.NewWriter(io.Discard).WriteHeader(&h) != nil {
		h.Format = tar.FormatGNU
	}
	h.Size = size
	var out bytes.Buffer
	if err := tar.NewWriter(&out).WriteHeader(&h); err != nil {
		return nil, fmt.Errorf("header of member %.256q: %w for writing: %w", old.Name, ondisk.ErrUnsupported, err)
	}
	return out.Bytes(), nil
}
