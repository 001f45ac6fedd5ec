package windows

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume/identify"
)

// Recovery finds the places of the recovery system in ReAgent.xml. Elements such as WinreLocation name a partition by
// its byte offset in decimal, on GPT disks too. A wrong one disables the recovery system, and nothing else.
var Recovery = boot.Finder{Name: "winre", Find: boot.Everywhere(findRecovery)}

// recoveryFiles are the paths of ReAgent.xml: that of a Windows, and that beside the recovery system itself.
var recoveryFiles = []string{"Windows/System32/Recovery/ReAgent.xml", "Recovery/WindowsRE/ReAgent.xml"}

const (
	reenable = "run reagentc /disable and reagentc /enable after the first boot of the copy"

	maxRecovery     = 64 << 10 // bytes of the file; it has about 1200
	maxRecoveryTags = 64
)

func findRecovery(g *boot.Guest, p boot.Partition, f *boot.Found) error {
	if !identify.Traits(p.Volume.Kind).Windows {
		return nil
	}
	for _, path := range recoveryFiles {
		file, err := windowsFile(g, p, path)
		var refs []boot.Ref
		if err == nil {
			refs, err = recoveryRefs(g, p, file)
		}
		var kept boot.Found // no more than a warning each
		what := fmt.Sprintf("%s of partition %d cannot be read", shown(path), p.Number)
		if err := kept.Unread("winre", 0, what, err, reenable); err != nil {
			return err
		}
		for i := range kept.Issues {
			kept.Issues[i].Text += ": the recovery system can be disabled"
		}
		r := fileRefs{g: g, p: p, file: file, code: "winre", refs: refs}
		if err := r.keep(&kept); err != nil {
			return err
		}
		f.Refs = append(f.Refs, kept.Refs...)
		for _, i := range kept.Issues {
			f.Warn(i.Code, i.Partition, i.Text, i.Remedy)
		}
	}
	return nil
}

func recoveryRefs(g *boot.Guest, p boot.Partition, file *guestfile.File) ([]boot.Ref, error) {
	if file.Size() > maxRecovery {
		return nil, fmt.Errorf("%w of %d bytes", ondisk.ErrLimit, maxRecovery)
	}
	raw, err := ondisk.Bytes(file, 0, file.Size())
	if err != nil {
		return nil, err
	}
	text, in := decodeText(raw)
	var refs []boot.Ref
	for _, l := range locations(text) {
		if len(refs) == maxRecoveryTags {
			return nil, fmt.Errorf("%w of %d places", ondisk.ErrLimit, maxRecoveryTags)
		}
		if l.offset == 0 || !onThisDisk(g, l) {
			continue
		}
		r := boot.Ref{
			Kind: "winre " + l.name, Partition: p.Number, File: file.Path, Off: in.start + int64(l.from*in.unit),
			Points: l.offset,
		}
		if r.At, r.Raw, err = g.At(p, file, r.Off, int64((l.to-l.from)*in.unit)); err != nil {
			return nil, err
		}
		if aim(g, &r); r.Target != 0 {
			r.Encode = stretch{in, l.tag - l.from, l.number - l.from, l.to - l.from}.encode
			r.Loss, r.Remedy = "the recovery system can be disabled", reenable
		}
		refs = append(refs, r)
	}
	return refs, nil
}

// onThisDisk reports whether a location is on this disk: the id is the signature of an MBR disk, in decimal, and the
// guid is that of a GPT. A missing one is 0.
func onThisDisk(g *boot.Guest, l location) bool {
	guid := strings.ToLower(strings.Trim(l.guid, "{}"))
	if strings.Trim(guid, "0-") != "" {
		// No specification says which GUID it is: that of the disk, as seen so far.
		return guid == g.GUID ||
			slices.ContainsFunc(g.Partitions, func(p boot.Partition) bool { return p.GUID == guid })
	}
	n, err := strconv.ParseUint(l.id, 10, 32)
	return err != nil || n == 0 || (g.Scheme == table.MBR || g.Hybrid()) && n == uint64(g.Signature)
}

// stretch is a tag up to the end of its number, with the white space in front, which means nothing between tags and
// grows or shrinks as the number does. The fields count characters.
type stretch struct {
	in               script
	tag, number, end int
}

// encode writes a byte offset in decimal.
func (s stretch) encode(raw []byte, to int64) ([]byte, error) {
	digits := []byte(strconv.FormatInt(to, 10))
	spare := s.tag + s.end - s.number - len(digits) // what white space remains
	if spare < 0 {
		return nil, fmt.Errorf("a number of %d digits: %w of %d, for which there is room", len(digits), ondisk.ErrLimit,
			len(digits)+spare)
	}
	if s.tag == 0 { // zeros in front of the number say the same
		digits = append(bytes.Repeat([]byte("0"), spare), digits...)
		spare = 0
	}
	out := s.in.encode(bytes.Repeat([]byte(" "), max(0, spare-s.tag)))
	out = append(out, raw[max(0, s.tag-spare)*s.in.unit:s.number*s.in.unit]...)
	return append(out, s.in.encode(digits)...), nil
}
