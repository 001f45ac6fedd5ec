package image

import (
	"path/filepath"
	"strings"

	"github.com/trueup/trueup/internal/image/raw"
	"github.com/trueup/trueup/internal/ondisk"
)

// SuffixFormat is the one format that the suffix of a name stands for, empty for a suffix of several, such as .img, or
// of none.
func SuffixFormat(path string) string {
	ext := strings.ToLower(filepath.Ext(path))
	if ext == ".raw" {
		return raw.Format.Name
	}
	return extended(ext)
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
