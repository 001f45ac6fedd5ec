package image

import (
	"slices"

	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/qcow2"
	"github.com/trueup/trueup/internal/image/raw"
	"github.com/trueup/trueup/internal/image/vhd"
	"github.com/trueup/trueup/internal/image/vhdx"
	"github.com/trueup/trueup/internal/image/vmdk"
)

// formats is the table of contents: every format that is read. raw is what remains and stands apart.
var formats = []driver.Format{
	qcow2.Format,
	vhd.Format,
	vhdx.Format,
	vmdk.Format,
}

// Writable lists the formats that are written.
func Writable() []driver.Format {
	var out []driver.Format
	for _, f := range append(slices.Clone(formats), raw.Format) {
		if f.Create != nil {
			out = append(out, f)
		}
	}
	return out
}

// byName finds a format by the name that --format and --to take.
func byName(name string) (driver.Format, bool) {
	for _, f := range append(slices.Clone(formats), raw.Format) {
		if f.Name == name {
			return f, true
		}
	}
	return driver.Format{}, false
}

// Names lists the formats that are read, for help texts and completion.
func Names() []string {
	var out []string
	for _, f := range append(slices.Clone(formats), raw.Format) {
		out = append(out, f.Name)
	}
	return out
}
