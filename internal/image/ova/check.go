package ova

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/diskcopy"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/ovf"
	"github.com/trueup/trueup/internal/sys"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/verify"
)

// Algorithms returns the distinct algorithms of the manifest, as spelled there.
func (p *Package) Algorithms() []string {
	out := []string{}
	if p.Manifest == nil {
		return out
	}
	seen := map[string]bool{}
	for _, d := range p.Manifest.Digests {
		if !seen[d.Algorithm] {
			out = append(out, d.Algorithm)
		}
		seen[d.Algorithm] = true
	}
	return out
}

// elsewhere is the remedy for an href outside of the package.
const elsewhere = "put the file into the package, and correct the ovf:href of the OVF"

// Issues returns contradictions between the parts of a package. It reads no disk.
func (p *Package) Issues() (out []ondisk.Issue) {
	add := func(code string, effect ondisk.Effect, remedy, format string, args ...any) {
		out = append(out, ondisk.Issue{Code: code, Effect: effect, Text: fmt.Sprintf(format, args...), Remedy: remedy})
	}
	if p.Manifest == nil {
		add("manifest-missing", ondisk.Note, "", "there is no manifest: damage to a file in transit would not be "+
			"noticed")
	} else {
		out = p.manifestIssues()
	}
	if m := p.role(roleOVF); p.Kind == "ova" && len(p.Members) > 0 && p.Members[0] != m {
		add("ovf-not-first", ondisk.Warn,
			"extract it, and archive it again with the OVF first: tar --format=ustar -cf NEW.ova VM.ovf …",
			"the OVF %.256q is member %d of the archive, but must be the first (DSP0243, 5.3): programs that "+
				"stream the archive refuse it; a copy keeps the order", m.Name,
			slices.Index(p.Members, m)+1)
	}
	for _, f := range p.Envelope.Files {
		name, err := p.localName(f.Href)
		remedy := elsewhere
		if err == nil {
			err, remedy = p.bad[f.Href], "replace it with a plain file"
		}
		m := p.member(name)
		switch {
		case slices.ContainsFunc(p.disks, func(d Disk) bool { return d.file.ID == f.ID && d.openErr != nil }):
		case err != nil:
			add("ovf-file-refused", ondisk.Warn, remedy, "%s", err.Error())
		case m != nil && m.file == nil: // reported with the disk
		case p.inChunks(&f, name):
		case m == nil:
			add("ovf-file-missing", ondisk.Warn, "get the package again",
				"the OVF names the file %.256q, but the package has no such file", name)
		case f.Size >= 0 && f.Size != m.Size:
			add("ovf-file-size", ondisk.Warn, "", "the OVF states %d bytes for the file %.256q, which has %d", f.Size,
				name, m.Size)
		}
	}
	for _, d := range p.unnamed {
		add("ovf-image-unnamed", ondisk.Warn, "copies of the package keep it unchanged; align it by its own name",
			"the file %.256q is an image, and no disk of the OVF names it", d.Member)
	}
	return out
}

// Issues returns the issues of files that the copy omits.
func (p *Output) Issues() (out []ondisk.Issue) {
	for _, name := range p.Dropped {
		out = append(out, ondisk.Issue{
			Code: "certificate-dropped", Effect: ondisk.Warn, Remedy: "sign the copy if the importer requires it",
			Text: fmt.Sprintf("the signature %.256q is of the source's manifest and does not fit the copy: the "+
				"copy has none", name),
		})
	}
	return out
}

// Differs compares everything that a copy keeps: all but the disks and their values in the envelope. It returns a text
// for each difference.
func (p *Package) Differs(ctx context.Context, from *Package, progress diskcopy.Progress) (out []string, err error) {
	if !bytes.Equal(p.Envelope.Shape(), from.Envelope.Shape()) {
		out = append(out, "the OVF differs in more than sizes of files and disks")
	}
	if (p.Manifest == nil) != (from.Manifest == nil) {
		out = append(out, "only one of the packages has a manifest")
	}
	for _, m := range from.Members {
		isDisk := slices.ContainsFunc(from.Disks(), func(d Disk) bool { return d.Member == m.Name })
		if m.Role != roleFile || isDisk || m.file == nil {
			continue
		}
		same := false
		if mine := p.member(m.Name); mine != nil && mine.file != nil {
			if same, err = sameBytes(ctx, m.file, mine.file, progress); err != nil {
				return out, err
			}
		}
		if !same {
			out = append(out, fmt.Sprintf("the file %.256q is missing or differs", m.Name))
		}
	}
	out = append(out, p.newIssues(from)...)
	err = p.Check(ctx, progress)
	if errors.Is(err, ErrDigest) {
		return append(out, strings.TrimSpace(err.Error())), nil
	}
	return out, err
}

// newIssues returns the texts of issues of a package, except notes, that its source does not have.
func (p *Package) newIssues(from *Package) (out []string) {
	old := map[string]bool{}
	for _, i := range from.Issues() {
		old[i.Text] = true
	}
	for _, i := range p.Issues() {
		if i.Effect >= ondisk.Warn && !old[i.Text] {
			out = append(out, i.Text)
		}
	}
	return out
}

// manifestIssues returns the issues of missing lines, extra lines and unknown algorithms in the manifest. It verifies
// no digests.
func (p *Package) manifestIssues() (out []ondisk.Issue) {
	add := func(code, remedy, format string, args ...any) {
		out = append(out, ondisk.Issue{
			Code: code, Effect: ondisk.Warn, Text: fmt.Sprintf(format, args...),
			Remedy: remedy,
		})
	}
	for _, d := range p.Manifest.Digests {
		if p.named(d.Name) == nil {
			add("manifest-file-missing", "get the package again",
				"the manifest has a digest of %.256q, but the package has no such file", d.Name)
		} else if d.New == nil {
			add("manifest-algorithm", "", "the manifest has a digest of the unknown algorithm %.64q for %.256q: it "+
				"is not checked", d.Algorithm, d.Name)
		}
	}
	for _, m := range p.Members {
		// A manifest has no digest of itself or of the certificate, which signs it.
		if m.file != nil && m.Role != roleManifest && m.Role != roleCertificate && len(p.lines[m]) == 0 {
			add("manifest-incomplete", "", "the manifest has no digest of %.256q: damage to it in transit would "+
				"not be noticed", m.Name)
		}
	}
	return out
}

// readBack reads every complete member through a new handle. It compares copies with their source, and computes the
// digests for the manifest.
func (p *Output) readBack(ctx context.Context, progress diskcopy.Progress) (map[string][]byte, error) {
	files, err := p.ReadBack()
	if err != nil {
		return nil, err
	}
	sums := map[string][]byte{}
	for _, m := range p.members {
		if m.from.file == nil || m.newManifest() {
			continue
		}
		f, err := p.reopen(files, m)
		if err == nil {
			err = p.readMember(ctx, m, f, sums, progress)
		}
		if err != nil {
			return nil, errors.Join(err, files.Close())
		}
	}
	return sums, files.Close()
}

// reopen opens a member for reading.
func (p *Output) reopen(files *image.FileSet, m *outMember) (driver.File, error) {
	switch {
	case p.Kind == "ova":
		return files.Section(m.name, disk.Range{Off: m.data, Len: m.size}), nil
	case m.name == files.First().Name():
		return files.First(), nil
	}
	return files.Open(m.name)
}

func (p *Output) readMember(
	ctx context.Context, m *outMember, f driver.File, sums map[string][]byte, progress diskcopy.Progress,
) error {
	if m.rewrite == nil && !m.text { // a copy has the digests of the source
		same, err := sameBytes(ctx, m.from.file, f, progress)
		if err == nil && !same {
			err = ondisk.In(ErrDigest, "%.256q differs from the data written: the storage or memory of this "+
				"machine is at fault; nothing was published", m.name)
		}
		return err
	}
	want := p.src.digests(m.from)
	if len(want) == 0 {
		return nil
	}
	got, err := hashes(ctx, f, want, progress)
	for i := range got {
		sums[want[i].Algorithm+" "+want[i].Name] = got[i]
	}
	return err
}

// manifest returns the text of the new manifest.
func (p *Output) manifest(sums map[string][]byte) []byte {
	return p.src.Manifest.Rewrite(
		func(d ovf.Digest) []byte { return sums[d.Algorithm+" "+d.Name] },
		func(name string) string {
			if m := p.src.named(name); m != nil && p.Kind == "ovf" {
				return p.nameOf(m)
			}
			return name
		})
}

// check opens the package like a later reader, and compares it with the intended content.
func (p *Output) check() error {
	files, err := p.ReadBack()
	if err != nil {
		return err
	}
	got, err := newPackage("", files)
	if err != nil {
		return ondisk.In(ErrDigest, "read back %s: %w", p.base, err)
	}
	defer got.Close()
	for _, f := range got.Envelope.Files {
		if err := got.bad[f.Href]; sys.FromSystem(err) {
			return err
		}
	}
	if len(got.Members) != len(p.members) {
		return notAsWritten("members")
	}
	for _, want := range p.members {
		if err := p.checkMember(got.member(want.name), want); err != nil {
			return err
		}
	}
	return nil
}

// checkMember compares a member that was read back, nil if it is missing, with the one written.
func (p *Output) checkMember(m *Member, want *outMember) error {
	if m == nil || m.Size != want.size || (p.Kind == "ova" && m.data != want.data) {
		return notAsWritten("members")
	}
	if !want.text {
		return nil
	}
	text, err := ondisk.Bytes(m.file, 0, m.Size)
	if err == nil && !bytes.Equal(text, want.written) {
		err = notAsWritten("texts")
	}
	return err
}

func notAsWritten(parts string) error {
	return ondisk.In(ErrDigest, "the package differs in its %s from the data written: the storage or memory of this "+
		"machine is at fault; nothing was published", parts)
}

// findUnnamed finds the images of the package that no disk of the envelope names, without the parts of other files.
func (p *Package) findUnnamed() {
	listed := map[string]*ovf.File{}
	for i := range p.Envelope.Files {
		if name, err := p.localName(p.Envelope.Files[i].Href); err == nil {
			listed[name] = &p.Envelope.Files[i]
		}
	}
	finder := image.Finder{Packed: true}
	bad := map[string]error{}
	for _, m := range p.Members {
		if m.Role == roleFile && m.file != nil {
			id, err := image.IdentifyFile(m.file)
			finder.Add(m.Name, m.Size, id, err)
			bad[m.Name] = err
		}
	}
	for _, name := range finder.Images() {
		whole, chunk := ovf.Whole(name)
		named := slices.ContainsFunc(p.disks, func(d Disk) bool { return d.Member == name })
		if !named && (!chunk || listed[whole] == nil) {
			p.unnamed = append(p.unnamed, Disk{Member: name, file: listed[name], openErr: bad[name]})
		}
	}
}

// ErrDigest marks a member whose bytes do not match its digest in the manifest.
var ErrDigest = errors.New("differs from its digest")

// Check compares all members in the manifest with their digests.
func (p *Package) Check(ctx context.Context, progress diskcopy.Progress) error {
	if p.Manifest == nil {
		return nil
	}
	for _, d := range p.Manifest.Digests {
		if p.named(d.Name) == nil {
			return ondisk.In(ErrDigest, "the manifest has a digest of %.256q, but the package has no such file; "+
				"get the package again", d.Name)
		}
	}
	for _, m := range p.Members {
		if m.file == nil {
			continue
		}
		if err := compare(ctx, m.Name, m.file, p.digests(m), progress); err != nil {
			return err
		}
	}
	return nil
}

// named returns the member for a name in the manifest, relative to the folder of the OVF, or nil if absent.
func (p *Package) named(name string) *Member {
	if p.Kind == "ovf" {
		return p.member(name)
	}
	full, err := p.checkMember(name)
	if err != nil {
		return nil
	}
	return p.member(full)
}

// digests returns the manifest lines of a member with a known algorithm.
func (p *Package) digests(m *Member) []ovf.Digest {
	return slices.DeleteFunc(slices.Clone(p.lines[m]), func(d ovf.Digest) bool { return d.New == nil })
}

// compare reads a member once and compares it with its digests.
func compare(ctx context.Context, name string, f driver.File, want []ovf.Digest, progress diskcopy.Progress) error {
	if len(want) == 0 {
		return nil
	}
	got, err := hashes(ctx, f, want, progress)
	if err != nil {
		return err
	}
	for i, d := range want {
		if !bytes.Equal(got[i], d.Sum) {
			return fmt.Errorf("%.256q %w: %s is %x, but %x in the manifest; the package was damaged or changed, "+
				"get it again", name, ErrDigest, d.Algorithm, got[i], d.Sum)
		}
	}
	return nil
}

// hashes reads a file once and computes a digest for each of want.
func hashes(ctx context.Context, f driver.File, want []ovf.Digest, progress diskcopy.Progress) ([][]byte, error) {
	by := map[string]hash.Hash{}
	var sinks []io.Writer
	for _, d := range want {
		if by[d.Algorithm] == nil {
			by[d.Algorithm] = d.New()
			sinks = append(sinks, by[d.Algorithm])
		}
	}
	progress.Begin(diskcopy.PhaseDigest, f.Size())
	all := io.MultiWriter(append(sinks, watched{ctx, progress})...)
	if _, err := io.CopyBuffer(all, io.NewSectionReader(f, 0, f.Size()), make([]byte, units.MiB)); err != nil {
		return nil, err
	}
	var out [][]byte
	for _, d := range want {
		out = append(out, by[d.Algorithm].Sum(nil))
	}
	return out, nil
}

// watched reports the bytes written to it as progress, and fails after its context has ended.
type watched struct {
	ctx      context.Context //nolint:containedctx // used for one call only
	progress diskcopy.Progress
}

func (w watched) Write(b []byte) (int, error) {
	w.progress.Add(int64(len(b)))
	return len(b), w.ctx.Err()
}

// asDisk returns a file as a disk, for copying and comparing.
func asDisk(f driver.File) disk.Disk {
	return disk.New(f.Size(), units.SectorSize, disk.Whole(f, f.Size()))
}

// sameBytes reports whether two files are equal.
func sameBytes(ctx context.Context, want, got driver.File, progress diskcopy.Progress) (bool, error) {
	a, b := asDisk(want), asDisk(got)
	if a.Size() == b.Size() {
		if err := diskcopy.Begin(ctx, progress, diskcopy.PhaseProve, 0, a, b); err != nil {
			return false, err
		}
	}
	diffs, err := verify.Same(ctx, a, b, verify.Options{Progress: progress.Add})
	return len(diffs) == 0, err
}
