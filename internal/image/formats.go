package image

import (
	"cmp"
	"path/filepath"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/qcow2"
	"github.com/trueup/trueup/internal/image/raw"
	"github.com/trueup/trueup/internal/image/vdi"
	"github.com/trueup/trueup/internal/image/vhd"
	"github.com/trueup/trueup/internal/image/vhdx"
	"github.com/trueup/trueup/internal/image/vmdk"
)

// Formats is the table of contents: every format that is read. raw is what remains and stands apart.
var Formats = []driver.Format{
	qcow2.Format,
	vdi.Format,
	vhd.Format,
	vhdx.Format,
	vmdk.Format,
}

// withRaw yields all formats, raw behind the others.
func withRaw(yield func(driver.Format) bool) {
	for _, f := range Formats {
		if !yield(f) {
			return
		}
	}
	yield(raw.Format)
}

// Writable lists the formats that are written.
func Writable() []driver.Format {
	var out []driver.Format
	for f := range withRaw {
		if f.Create != nil {
			out = append(out, f)
		}
	}
	return out
}

// byName finds a format by the name that --format and --to take.
func byName(name string) (driver.Format, bool) {
	for f := range withRaw {
		if f.Name == name {
			return f, true
		}
	}
	return driver.Format{}, false
}

// Names lists the formats that are read, for help texts and completion.
func Names() []string {
	var out []string
	for f := range withRaw {
		out = append(out, f.Name)
	}
	return out
}

// Title returns a format as its makers write it, also of one that is recognised only.
func Title(format string) string {
	if f, ok := byName(format); ok {
		return cmp.Or(f.Title, f.Name)
	}
	if format != strings.ToLower(format) {
		return format
	}
	return strings.ToUpper(format)
}

// FormatName returns the name of a format as the user may write it: in any case, and as QEMU calls it.
func FormatName(name string) string {
	name = strings.ToLower(name)
	for f := range withRaw {
		if f.Alias != "" && f.Alias == name {
			return f.Name
		}
	}
	return name
}

// extended finds the format that files with an extension (".vhd") have, one that is recognised only by its title.
func extended(ext string) string {
	for f := range withRaw {
		if slices.Contains(f.Extensions, ext) {
			return f.Name
		}
	}
	for _, c := range others {
		if ext != "" && c.extension == ext {
			return c.name
		}
	}
	return ""
}

// SuffixFormat returns the one format that the suffix of a name stands for, empty for a suffix of several, such as
// .img, or of none.
func SuffixFormat(path string) string {
	ext := strings.ToLower(filepath.Ext(path))
	if ext == ".raw" {
		return raw.Format.Name
	}
	return extended(ext)
}
