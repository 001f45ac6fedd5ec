// Package identify finds what a partition holds: it asks all probers, and settles what they answer.
package identify

import (
	"errors"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

// Probe asks all probers. Two that match are an issue, never a silent first winner; what none knows has a name at most
// by its magic number, or is Unknown. The error is one of reading. at is the byte offset of whole on the disk: messages
// name places on the disk.
func Probe(whole disk.Disk, at int64) (*volume.Volume, error) {
	d, done := withHead(whole, headSize)
	defer done()
	v, err := d.ask(at, d.mayBe)
	if err != nil || v.Kind != volume.Unknown {
		return v, err
	}
	return byMagic(d)
}

// Glance is Probe for who wants to know what a volume is, and no more: a sound one with a mark in its first 4 KiB is
// believed. What else could show farther in or at the end is only looked for without such a mark: an array that keeps
// its superblock at the end (it holds what was found), or what an earlier use of the space left.
func Glance(whole disk.Disk, at int64) (*volume.Volume, error) {
	v, err := Front(whole, at)
	if err != nil || (v.Kind != volume.Unknown && !broken(v)) {
		return v, err
	}
	return Probe(whole, at)
}

// Front is what shows by a mark in the first 4 KiB of a volume.
func Front(whole disk.Disk, at int64) (*volume.Volume, error) {
	d, done := withHead(whole, frontSize)
	defer done()
	if d.head == nil {
		return Probe(whole, at)
	}
	return d.ask(at, func(p volume.Prober) bool { return len(p.Marks) > 0 && d.mayBe(p) })
}

// ask asks the probers that may know the volume, and settles what they say.
func (h headed) ask(at int64, may func(p volume.Prober) bool) (*volume.Volume, error) {
	var found []*volume.Volume
	for _, p := range Probers {
		if !may(p) {
			continue
		}
		v, err := p.Probe(h)
		switch {
		case errors.Is(err, ondisk.ErrNoMatch):
			continue
		case errors.Is(err, ondisk.ErrFormat):
			err = ondisk.Shift(err, at)
			if v == nil {
				v = &volume.Volume{Kind: p.Kinds[0].Kind}
			}
			v.Issues = append(v.Issues, ondisk.Issue{
				Code: "volume", Effect: ondisk.BadVolume, OnMove: true, Text: err.Error(), Err: err,
				Remedy: "run the guest's own file-system check, or move the partition as opaque bytes with --allow-unbootable",
			})
		case err != nil:
			return nil, err
		}
		found = append(found, v)
	}
	if len(found) == 0 {
		return &volume.Volume{Kind: volume.Unknown}, nil
	}
	return settle(withoutRuins(withoutSlices(withoutHidden(outermost(found))))), nil
}
