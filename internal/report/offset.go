package report

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/shell"
	"github.com/trueup/trueup/internal/units"
)

// Offset describes a disk that begins at an offset of DEST, and how to attach it.
type Offset struct {
	At         int64           `json:"offset_bytes"`
	Partitions []align.Placing `json:"partitions"`
	QEMU       string          `json:"qemu"`              // an argument
	Libvirt    string          `json:"libvirt,omitempty"` // XML; only of a raw disk, like Losetup
	Losetup    string          `json:"losetup,omitempty"` // a command line

	sector int64 // bytes
}

// Shifted completes the report of a disk that was written at an offset. Sources: QEMU, qapi/block-core.json,
// BlockdevOptionsRaw; libvirt, formatdomain, "slices"; losetup(8).
func (r *Align) Shifted(at, sector int64, places []align.Placing) {
	d := r.Disks[0]
	path, err := filepath.Abs(r.Dest)
	if err != nil {
		path = r.Dest
	}
	driver, attribute := "file", "file"
	if realign.IsDevice(r.Dest) {
		driver, attribute = "host_device", "dev"
	}
	var escaped bytes.Buffer
	_ = xml.EscapeText(&escaped, []byte(path)) // a buffer never fails
	r.Offset = &Offset{At: at, Partitions: places, sector: sector}
	place := ""
	if d.Format == "raw" {
		place = fmt.Sprintf("offset=%d,size=%d,", at, d.NewSize)
		if utf8.ValidString(path) {
			r.Offset.Libvirt = fmt.Sprintf("<source %s='%s'><slices><slice type='storage' offset='%d' size='%d'/>"+
				"</slices></source>", attribute, &escaped, at, d.NewSize)
		}
		sectors := ""
		if sector != units.SectorSize {
			sectors = fmt.Sprintf("--sector-size %d ", sector)
		}
		r.Offset.Losetup = fmt.Sprintf("losetup --find --show --offset %d --sizelimit %d %s%s", at, d.NewSize, sectors,
			shell.Quote(path))
	}
	r.Offset.QEMU = "-blockdev " + shell.Quote(fmt.Sprintf("driver=%s,node-name=disk,%sfile.driver=%s,file.filename=%s",
		d.Format, place, driver, strings.ReplaceAll(path, ",", ",,")))
}

// offset prints the place of each partition before and after, and how to attach the disk.
func (t *Text) offset(o *Offset) {
	t.say("offset", o)
	var rows [][]string
	for _, p := range o.Partitions {
		rows = append(rows, []string{
			decimal(int64(p.Partition)), units.Format(p.Size), decimal(p.From), string(p.Was), decimal(p.To),
			string(p.Is),
		})
	}
	if len(rows) > 0 {
		t.Table(slices.Values(rows), ">partition", ">size", ">from byte", "verdict", ">to byte", "verdict")
	}
	t.say("use of an offset", o)
}
