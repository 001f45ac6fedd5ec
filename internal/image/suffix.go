package image

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/image/raw"
	"github.com/trueup/trueup/internal/ondisk"
)

// unwritten are suffixes of formats that are not in the table of contents.
var unwritten = map[string]string{".vdi": "vdi", ".qed": "qed", ".hdd": "hdd", ".ova": packageOVA, ".ovf": packageOVF}

// SuffixFormat is the one format that the suffix of a name stands for, empty for a suffix of several, such as .img, or of none.
func SuffixFormat(path string) string {
	ext := strings.ToLower(filepath.Ext(path))
	if ext == ".raw" {
		return raw.Format.Name
	}
	for _, f := range formats {
		if slices.Contains(f.Extensions, ext) {
			return f.Name
		}
	}
	return unwritten[ext]
}

// checkSuffix refuses a DEST that would have the format of SOURCE under the name of another.
func checkSuffix(path, format string) error {
	named := SuffixFormat(path)
	if named == "" || named == format {
		return nil
	}
	if f, ok := byName(named); !ok || f.Create == nil {
		return ondisk.In(ErrUsage, "DEST %s has the name of the format %s, which is not written, and the copy would be %s as SOURCE is; choose another name, "+
			"or say --to %s to keep that format under this name", path, named, format, format)
	}
	return ondisk.In(ErrUsage, "DEST %s has the name of the format %s, and the copy would be %s as SOURCE is; say --to %s, or --to %s to keep that format under this name",
		path, named, format, named, format)
}

// FormatName is the name of a format as the user may write it: in any case, and as QEMU calls it.
func FormatName(name string) string {
	name = strings.ToLower(name)
	if name == "vpc" { // QEMU's name for VHD
		return "vhd"
	}
	return name
}
