package ova

import (
	"bytes"
	"context"
	"errors"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/diskcopy"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/ovf"
	"github.com/trueup/trueup/internal/sys"
)

// readBack reads every member that is complete through a handle of its own, checks copies against what was copied, and
// computes the digests of the manifest.
func (p *Output) readBack(ctx context.Context, progress diskcopy.Progress) (map[string][]byte, error) {
	files, err := p.out.ReadBack()
	if err != nil {
		return nil, err
	}
	sums := map[string][]byte{}
	for _, m := range p.members {
		if m.from.file == nil || (m.text && m.from.Role == roleManifest) {
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
	if m.rewrite == nil && !m.text { // a copy: its digests are those of the source
		same, err := sameBytes(ctx, m.from.file, f, progress)
		if err == nil && !same {
			err = ondisk.In(ErrDigest, "%.256q has other bytes than were written: the storage or memory of this "+
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

// check opens the package as a later reader will, and checks it against what was meant.
func (p *Output) check() error {
	files, err := p.out.ReadBack()
	if err != nil {
		return err
	}
	got, err := newPackage(files)
	if err != nil {
		return ondisk.In(ErrDigest, "read back %s: %w", p.base, err)
	}
	defer got.Close()
	bad := func(what string) error {
		return ondisk.In(ErrDigest, "the package as read back has other %s than were written: the storage or memory "+
			"of this machine is at fault; nothing was published", what)
	}
	for _, f := range got.Envelope.Files {
		if err := got.bad[f.Href]; sys.FromSystem(err) {
			return err
		}
	}
	if len(got.Members) != len(p.members) {
		return bad("members")
	}
	for _, want := range p.members {
		m := got.member(want.name)
		if m == nil || m.Size != want.size || (p.Kind == "ova" && m.data != want.data) {
			return bad("members")
		}
		if !want.text {
			continue
		}
		text, err := ondisk.Bytes(m.file, 0, m.Size)
		if err == nil && !bytes.Equal(text, want.written) {
			err = bad("texts")
		}
		if err != nil {
			return err
		}
	}
	return nil
}
