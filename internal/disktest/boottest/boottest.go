// Package boottest reads byte slices as guest disks, for the tests of boot and its families.
package boottest

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume"
	"github.com/trueup/trueup/internal/volume/identify"
)

// Disk returns a disk of bytes, in sectors of 512 bytes.
func Disk(b []byte) disk.Disk { return DiskOf(b, 512) }

// DiskOf returns a disk of bytes, in sectors of another size.
func DiskOf(b []byte, sectorSize int64) disk.Disk {
	return disk.New(int64(len(b)), sectorSize, func(off int64) (disk.Run, error) {
		return disk.Run{Len: int64(len(b)) - off, Src: content(b), Off: off}, nil
	})
}

// Code returns boot code with the runs of hexadecimal instructions one after another, with a zero byte after each.
func Code(runs ...string) []byte {
	code, at := make([]byte, boot.CodeLen), 0
	for _, run := range runs {
		b, err := hex.DecodeString(strings.ReplaceAll(run, " ", ""))
		if err != nil {
			panic(err)
		}
		at += copy(code[at:], b) + 1
	}
	return code
}

type content []byte

func (c content) ReadAt(p []byte, off int64) (int, error) { return copy(p, c[off:]), nil }

// Partitions returns the table of a disk, and its partitions with their volumes.
func Partitions(t testing.TB, d disk.Disk) (*table.Table, []boot.Partition) {
	t.Helper()
	tab, err := table.Read(d)
	if err != nil {
		t.Fatal(err)
	}
	var out []boot.Partition
	for _, p := range tab.Partitions {
		v, err := identify.Probe(disk.Section(d, p.Range), p.Off)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, boot.Partition{Partition: p, Volume: v})
	}
	return tab, out
}

// Guest returns the guest of a disk, for finders.
func Guest(d disk.Disk, tab *table.Table, parts []boot.Partition) *boot.Guest {
	return &boot.Guest{
		Disk: d, Sector0: tab.BootCode, Scheme: tab.Scheme, BesideGPT: tab.BesideGPT, Signature: tab.Signature,
		Partitions: parts,
	}
}

// GuestOf returns the guest of a byte slice, for finders.
func GuestOf(t testing.TB, b []byte) *boot.Guest {
	t.Helper()
	d := Disk(b)
	tab, parts := Partitions(t, d)
	return Guest(d, tab, parts)
}

// Effects returns the effects of issues.
func Effects(issues []ondisk.Issue) (out []ondisk.Effect) {
	for _, i := range issues {
		out = append(out, i.Effect)
	}
	return out
}

// ReadGuest returns the boot chain of a guest.
func ReadGuest(t testing.TB, g *boot.Guest) *boot.Result {
	t.Helper()
	r, err := layout.ReadBoot(g)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Read returns the boot chain of the disk b. It also fails each read of the disk once, and requires that no error is
// mistaken for data.
func Read(t testing.TB, b []byte) *boot.Result {
	t.Helper()
	d := Disk(b)
	tab, parts := Partitions(t, d)
	disktest.EveryBadRead(t, d, said(tab, parts))
	return ReadGuest(t, Guest(d, tab, parts))
}

// EveryBadSector makes each sector read from a guest unreadable in turn, and requires that the error is never mistaken
// for data.
func EveryBadSector(t testing.TB, g *boot.Guest) {
	t.Helper()
	tab := &table.Table{BootCode: g.Sector0, Scheme: g.Scheme, BesideGPT: g.BesideGPT, Signature: g.Signature}
	disktest.EveryBadSector(t, g.Disk, said(tab, g.Partitions))
}

// said formats the result of reading a disk with partitions.
func said(tab *table.Table, parts []boot.Partition) func(d disk.Disk) (string, error) {
	return func(d disk.Disk) (string, error) {
		r, err := layout.ReadBoot(Guest(d, tab, parts))
		if err != nil {
			return "", err
		}
		var text strings.Builder
		fmt.Fprintln(&text, r.Issues, r.Chain, r.Signs, r.Unseen)
		for _, x := range r.Refs {
			fmt.Fprintln(&text, x.Name(), x.Place(), x.Points, x.Target, x.Stays, x.Loss, string(x.Raw))
			for _, s := range x.Seals {
				fmt.Fprintln(&text, s.Name, s.At, string(s.Raw))
			}
		}
		return fmt.Sprint(r.State) + text.String(), nil
	}
}

// Texts returns the steps of a boot.
func Texts(chain []boot.Link) []string {
	var out []string
	for _, l := range chain {
		out = append(out, l.Text)
	}
	return out
}

// Issues returns the issues with a code.
func Issues(r *boot.Result, code string) []ondisk.Issue {
	return slices.DeleteFunc(slices.Clone(r.Issues), func(i ondisk.Issue) bool { return i.Code != code })
}

// Unseen is the code of the warning that a loader's configuration was not found: disks with only a loader have none.
const Unseen = "boot-configuration-unseen"

// But returns the issues with other codes.
func But(r *boot.Result, code string) []ondisk.Issue {
	return slices.DeleteFunc(slices.Clone(r.Issues), func(i ondisk.Issue) bool { return i.Code == code })
}

// Bare returns the layout of a disk without its volumes and boot code, in the geometry of a BIOS.
func Bare(t require.TestingT, d disk.Disk) *layout.Layout {
	tab, err := table.Read(d)
	require.NoError(t, err)
	l := &layout.Layout{
		Size: d.Size(), SectorSize: d.SectorSize(), Table: tab, Boot: &boot.Result{Code: boot.Empty},
		Issues: tab.Issues, Geometry: table.Geometry{Heads: 255, Sectors: 63},
	}
	for _, p := range tab.Partitions {
		l.Partitions = append(l.Partitions, boot.Partition{Partition: p, Volume: &volume.Volume{Kind: volume.Unknown}})
	}
	require.NoError(t, l.ReadGaps(d))
	return l
}
