// Package vhd reads and writes Virtual PC and Hyper-V disks: fixed and dynamic ones, and reads differencing ones
// together with their parents.
//
// Specification: Microsoft, "Virtual Hard Disk Image Format Specification" 1.0 (2006), called VHD 1.0 below; where
// real files differ, a comment says which. Everything is big-endian.
package vhd

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

const formatName = "vhd"

// Names of the subformats. A differencing disk is only read.
const (
	dynamicDisk      = "dynamic"
	fixedDisk        = "fixed"
	differencingDisk = "differencing"
)

// Format is VHD.
var Format = driver.Format{
	Name:       formatName,
	Title:      "VHD",
	Alias:      "vpc",
	Detect:     detect,
	Open:       open,
	Create:     create,
	Reports:    reports,
	Subformats: []string{dynamicDisk, fixedDisk},
	Names:      names,
	Extensions: []string{".vhd", ".avhd"},
}

// detect knows the footer at the end and its copy at the front. A dynamic disk that lost its end still has the copy.
func detect(head, tail []byte) bool {
	if bytes.HasPrefix(head, []byte(cookie)) {
		return true
	}
	for _, n := range []int{footerBytes, shortFooter} {
		if len(tail) >= n && bytes.HasPrefix(tail[len(tail)-n:], []byte(cookie)) {
			return true
		}
	}
	return false
}

func open(s *driver.Source) (*driver.Image, error) {
	f, issues, err := findFooter(s.File)
	if err != nil {
		return nil, err
	}
	if err := f.check(); err != nil {
		return nil, err
	}
	var img *driver.Image
	if f.DiskType == typeFixed {
		img, err = openFixed(s, f)
	} else {
		img, err = openSparse(s, f)
	}
	if err != nil {
		return nil, err
	}
	img.Issues = append(append(issues, f.issues()...), img.Issues...)
	img.ContentID = hex.EncodeToString(f.UniqueID[:])
	img.Details = append(f.details(), img.Details...)
	if g := f.DiskGeometry; g.SectorsPerTrack <= 63 && g.sectors() > 0 { // what the BIOS interface can say
		img.Heads, img.Sectors = int(g.Heads), int(g.SectorsPerTrack)
	}
	if f.DiskGeometry.sectors() > 0 {
		img.BIOS = f.reported()
	}
	return img, nil
}

// openFixed opens a disk that lies in the file byte for byte, in front of the footer.
func openFixed(s *driver.Source, f *footer) (*driver.Image, error) {
	size := f.size()
	if size > f.off {
		return nil, f.fault("current size", atCurrentSize, f.CurrentSize,
			fmt.Sprintf("at most the %d bytes in front of the footer", f.off))
	}
	img := &driver.Image{
		Subformat: fixedDisk, Template: &template{footer: f},
		Disk: disk.New(size, units.SectorSize, func(off int64) (disk.Run, error) {
			return disk.Run{Len: size - off, Src: s.File, Off: off}, nil
		}),
	}
	if size == f.off {
		img.Around = func(size int64, bios driver.Geometry) (driver.Around, error) {
			return f.around(size, s.File.Size()-f.off, bios)
		}
	}
	if size < f.off {
		img.Issues = append(img.Issues, ondisk.Issue{
			Code: "vhd-slack", Effect: ondisk.Warn,
			Text: fmt.Sprintf("%d bytes lie between the end of the disk and the vhd footer at %#x: by the footer "+
				"they are no part of the disk, and a copy has none of them",
				f.off-size, f.off),
		})
	}
	return img, nil
}

// epoch is where time stamps count from. Spec: VHD 1.0, "Hard Disk Footer Format".
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// details returns what the footer says about the disk.
func (f *footer) details() []driver.Detail {
	g := f.DiskGeometry
	return []driver.Detail{
		{Name: "creator", Value: fmt.Sprintf("%q %d.%d", bytes.TrimRight(f.CreatorApplication[:], "\x00"),
			f.CreatorVersion>>16, f.CreatorVersion&0xffff)},
		{Name: "created", Value: epoch.Add(time.Duration(f.TimeStamp) * time.Second).Format(time.RFC3339)},
		{Name: "geometry", Value: fmt.Sprintf("%d/%d/%d", g.Cylinders, g.Heads, g.SectorsPerTrack)},
		{Name: "unique id", Value: hex.EncodeToString(f.UniqueID[:])},
	}
}
