// Package boottest reads disks of bytes as a guest, for the tests of boot and of its families.
package boottest

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
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

// Code returns boot code with runs of instructions, which are hexadecimal, behind each other.
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

// Guest returns a disk as finders see it.
func Guest(d disk.Disk, tab *table.Table, parts []boot.Partition) *boot.Guest {
	return &boot.Guest{
		Disk: d, Sector0: tab.BootCode, Scheme: tab.Scheme, BesideGPT: tab.BesideGPT, Signature: tab.Signature,
		Partitions: parts,
	}
}

// GuestOf returns a disk of bytes as finders see it.
func GuestOf(t testing.TB, b []byte) *boot.Guest {
	t.Helper()
	return GuestOn(t, Disk(b))
}

// GuestOn returns a disk as finders see it.
func GuestOn(t testing.TB, d disk.Disk) *boot.Guest {
	t.Helper()
	tab, parts := Partitions(t, d)
	return Guest(d, tab, parts)
}

// Effects returns what issues lead to.
func Effects(issues []ondisk.Issue) (out []ondisk.Effect) {
	for _, i := range issues {
		out = append(out, i.Effect)
	}
	return out
}

// ReadGuest returns what a guest boots with.
func ReadGuest(t testing.TB, g *boot.Guest) *boot.Result {
	t.Helper()
	r, err := layout.ReadBoot(g)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Read returns what a disk of bytes boots with. Each of its reads is made to fail once, which nothing may take for what
// is on the disk.
func Read(t testing.TB, b []byte) *boot.Result {
	t.Helper()
	d := Disk(b)
	tab, parts := Partitions(t, d)
	disktest.EveryBadRead(t, d, said(tab, parts))
	return ReadGuest(t, Guest(d, tab, parts))
}

// EveryBadSector makes each sector that is read of a guest unreadable in turn, which nothing may take for what is on
// the disk.
func EveryBadSector(t testing.TB, g *boot.Guest) {
	t.Helper()
	tab := &table.Table{BootCode: g.Sector0, Scheme: g.Scheme, BesideGPT: g.BesideGPT, Signature: g.Signature}
	disktest.EveryBadSector(t, g.Disk, said(tab, g.Partitions))
}

// said returns what reads a disk with partitions, as text.
func said(tab *table.Table, parts []boot.Partition) func(d disk.Disk) (string, error) {
	return func(d disk.Disk) (string, error) {
		r, err := layout.ReadBoot(Guest(d, tab, parts))
		if err != nil {
			return "", err
		}
		return fmt.Sprint(r.State) + Said(r.Found), nil
	}
}

// Said returns what was found, as text.
func Said(f boot.Found) string {
	var text strings.Builder
	fmt.Fprintln(&text, f.Issues, f.Chain, f.Signs, f.Unseen)
	for _, x := range f.Refs {
		fmt.Fprintln(&text, x.Name(), x.Place(), x.Points, x.Target, x.Stays, x.Loss, string(x.Raw))
		for _, s := range x.Seals {
			fmt.Fprintln(&text, s.Name, s.At, string(s.Raw))
		}
	}
	return text.String()
}

// Texts returns the steps of a boot.
func Texts(chain []boot.Link) []string {
	var out []string
	for _, l := range chain {
		out = append(out, l.Text)
	}
	return out
}

// Issues returns those that have a code.
func Issues(r *boot.Result, code string) []ondisk.Issue {
	return slices.DeleteFunc(slices.Clone(r.Issues), func(i ondisk.Issue) bool { return i.Code != code })
}

// Unseen is the code of the warning that the configuration of a loader was not seen: disks of loaders alone have none.
const Unseen = "boot-configuration-unseen"

// But returns the issues that have another code.
func But(r *boot.Result, code string) []ondisk.Issue {
	return slices.DeleteFunc(slices.Clone(r.Issues), func(i ondisk.Issue) bool { return i.Code == code })
}
