package scan

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/shell"
)

// NotOpened adds a remedy to the error of a path that cannot be opened as one image.
func NotOpened(path string, err error) error {
	st, statErr := os.Stat(path)
	switch {
	case statErr == nil && st.IsDir():
		if exists(filepath.Join(path, image.BundleDescriptor)) {
			return ondisk.In(ondisk.ErrUnsupported, "%s is the folder of a %s; what to do with it: trueup inspect %s",
				path, image.Parallels, shell.Quote(filepath.Join(path, image.BundleDescriptor)))
		}
		return ondisk.In(ondisk.ErrUnsupported, "%s is a folder, want one image; for all in it: trueup scan %s",
			path, shell.Quote(path))
	case !errors.Is(err, fs.ErrNotExist) || realign.IsRemote(path):
		return err
	case strings.Contains(path, "://") || strings.HasPrefix(path, "["):
		return fmt.Errorf("%w; trueup reads files and block devices of this machine, and NBD: mount it, or serve it "+
			"by NBD with nbdkit", err)
	}
	return fmt.Errorf("%w%s", err, patternHint(path))
}

// patternHint returns a hint that a path that does not exist may be meant as a pattern, empty when it does not look
// like one.
func patternHint(path string) string {
	if strings.ContainsAny(path, "*?[") {
		return "; if it is a pattern, give it without quotes"
	}
	return ""
}
