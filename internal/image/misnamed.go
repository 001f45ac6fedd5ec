package image

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/image/raw"
	"github.com/trueup/trueup/internal/ondisk"
)

// CodeMisnamed is that of the issue of a file that has the name of a format, and is read as raw.
const CodeMisnamed = "format-missing"

// rawExtent is the end of the stem that an extent without a header has, which is raw although its extension is that of a VMDK.
var rawExtent = regexp.MustCompile(`-(flat|f[0-9]{3,4}|rdmp?)$`)

// misnamed says that a file has the name of a format and nothing of its structures. The content alone decides what a file is
// read as, but raw is what remains of any format whose header or footer is damaged or cut off: a copy would then be
// one of the container's bytes, and look complete.
func (img *Image) misnamed(name string, o Options) {
	if img.Format != raw.Format.Name || o.Format != "" {
		return
	}
	ext := strings.ToLower(filepath.Ext(name))
	if rawExtent.MatchString(strings.TrimSuffix(strings.ToLower(name), ext)) {
		return
	}
	for _, f := range formats {
		if slices.Contains(f.Extensions, ext) {
			img.Issues = append(img.Issues, ondisk.Issue{
				Code: CodeMisnamed, Effect: ondisk.Refuse, Err: ondisk.ErrFormat,
				Text: fmt.Sprintf("%.256q is named as %s, but has neither its header nor its footer: either they are lost, and its bytes are not those of the disk, or it is a raw disk",
					name, f.Name),
				Remedy: "take it from a backup if it was " + f.Name + "; rename it or add --format raw if it is a raw disk",
			})
		}
	}
}
