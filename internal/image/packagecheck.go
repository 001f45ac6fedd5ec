package image

import (
	"bytes"
	"context"
	"errors"

	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/ovf"
)

// readBack reads every member that is complete through a handle of its own, holds copies against what was copied, and
// computes the digests of the manifest.
func (p *PackageOutput) readBack(ctx context.Context, progress Progress) (map[string][]byte, error) {
	dir, err := p.out.reader()
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	sums := map[string][]byte{}
	for _, m := range p.members {
		if m.from.file == nil || (m.text && m.from.Role == RoleManifest) {
			continue
		}
		f, err := dir.openAny(m.part.final, ErrOutput)
		if err != nil {
			return nil, err
		}
		err = p.readMember(ctx, m, &member{f: f, name: m.name, off: m.data, size: m.size}, sums, progress)
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
	}
	return sums, nil
}

func (p *PackageOutput) readMember(ctx context.Context, m *outMember, f driver.File, sums map[string][]byte, progress Progress) error {
	if m.rewrite == nil && !m.text { // a copy: its digests are those of the source
		same, err := sameBytes(ctx, m.from.file, f, progress)
		if err == nil && !same {
			err = ondisk.In(ErrDigest, "%.256q has other bytes than were written: the storage or memory of this machine is at fault; nothing was published", m.name)
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

// manifest is the text of the new manifest.
func (p *PackageOutput) manifest(sums map[string][]byte) []byte {
	return p.src.Manifest.Rewrite(
		func(d ovf.Digest) []byte { return sums[d.Algorithm+" "+d.Name] },
		func(name string) string {
			if m := p.src.named(name); m != nil && p.Kind == "ovf" {
				return p.nameOf(m)
			}
			return name
		})
}

// check opens the package as a later reader will, and holds it against what was meant.
func (p *PackageOutput) check() error {
	dir, err := p.out.reader()
	if err != nil {
		return err
	}
	got, err := openPackageIn(dir, p.out.base)
	if err != nil {
		return errors.Join(ondisk.In(ErrDigest, "read back %s: %w", p.out.base, err), dir.Close())
	}
	defer got.Close()
	bad := func(what string) error {
		return ondisk.In(ErrDigest, "the package as read back has other %s than were written: the storage or memory of this machine is at fault; nothing was published", what)
	}
	if len(got.Members) != len(p.members) {
		return bad("members")
	}
	for _, want := range p.members {
		m := got.Member(want.name)
		if m == nil || m.Size != want.size || (p.Kind == "ova" && m.data != want.data) {
			return bad("members")
		}
		if !want.text {
			continue
		}
		text, err := ondisk.Bytes(m.file, 0, m.Size)
		if err != nil {
			return err
		}
		if !bytes.Equal(text, want.written) {
			return bad("texts")
		}
	}
	return nil
}
