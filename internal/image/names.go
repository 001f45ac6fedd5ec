package image

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/raw"
	"github.com/trueup/trueup/internal/image/vhd"
	"github.com/trueup/trueup/internal/ondisk"
)

// CodeHidden is the code of the issue of an image with data that read as zeros.
const CodeHidden = vhd.CodeHidden

// CodeMisnamed is the code of the issue of a file that is named as a format and read as raw.
const CodeMisnamed = "format-missing"

// rawExtent is the end of the stem that an extent without a header has, which is raw although its extension is that of
// a VMDK.
var rawExtent = regexp.MustCompile(`-(flat|head|f[0-9]{3,4}|rdmp?)$`)

// checkExtension reports a file that has the name of a format and nothing of its structures. The content alone decides
// what a file is read as, but raw is what remains of any format whose header or footer is damaged or cut off: a copy
// would then be one of the container's bytes, and look complete.
func (img *Image) checkExtension(name string, o Options) {
	if img.Format != raw.Format.Name || o.Format != "" {
		return
	}
	format := namedAs(name)
	if format == "" {
		return
	}
	img.Issues = append(img.Issues, ondisk.Issue{
		Code: CodeMisnamed, Effect: ondisk.Refuse, Err: ondisk.ErrFormat,
		Text: fmt.Sprintf("%.256q is named as %s, but has neither its header nor its footer: either they are lost, "+
			"and its bytes are not those of the disk, or it is a raw disk",
			name, format),
		Remedy: "take it from a backup if it was " + format + "; rename it or add --format raw if it is a raw disk",
	})
}

// namedAs returns the format that the name of a file stands for, "" for no format and for names that raw images have
// too.
func namedAs(name string) string {
	ext := strings.ToLower(filepath.Ext(name))
	if rawExtent.MatchString(strings.TrimSuffix(strings.ToLower(name), ext)) {
		return ""
	}
	return extended(ext)
}

// addNamedFormat adds the format in the name of a file to the error of one that is no image.
func addNamedFormat(name string, err error) error {
	if format := namedAs(name); format != "" && errors.Is(err, raw.ErrNone) {
		return fmt.Errorf("%w. The name says %s: it may be truncated or damaged", err, format)
	}
	return err
}

// nameOwner names the image that an extent belongs to, where a look into the folder shows that.
func (img *Image) nameOwner(err error) error {
	if !errors.Is(err, driver.ErrLone) || img.known != nil {
		return err
	}
	siblings, _ := readSiblings(img.Dir, img.Base) // a folder that cannot be read names nothing
	user := userAmong(img.Dir, siblings, img.Base, func(n driver.Names) []string { return n.Extents })
	if user == "" {
		return err
	}
	return ondisk.In(driver.ErrLone, "it is an extent of %.256q; name that one", user)
}

// noteOverride notes that the content looks like another format than raw, which the user has ordered.
func (img *Image) noteOverride(main driver.File) error {
	_, names, _, err := recognise(main)
	if err == nil && len(names) > 0 {
		img.Issues = append(img.Issues, ondisk.Issue{
			Code: "format-overridden", Effect: ondisk.Warn,
			Text: fmt.Sprintf("the file has the header of %s, and is read as a raw disk, as --format says",
				strings.Join(names, " and ")),
		})
	}
	return err
}

// packedNames are extensions of compressed files, and of pieces of them.
var packedNames = regexp.MustCompile(`\.(gz|xz|zst|zstd|bz2|lz4|lzo|zip|7z|rar|[0-9]{2,3}|a[a-z])$`)

// NamedPacked reports whether the name of a compressed file is that of an image: disk.img.gz, a box of Vagrant, a part
// of a Clonezilla image.
func NamedPacked(name string) bool {
	name = strings.ToLower(name)
	if strings.HasSuffix(name, ".box") || strings.Contains(name, "-ptcl-img") {
		return true
	}
	for packedNames.MatchString(name) {
		name = packedNames.ReplaceAllString(name, "")
	}
	return namedAs(name) != "" || rawNamed(name) || slices.Contains([]string{".vma", ".iso"}, filepath.Ext(name))
}

// rawNamed reports whether a name has an extension of raw disks, which other files have too.
func rawNamed(name string) bool {
	return slices.Contains([]string{".raw", ".img", ".dd"}, strings.ToLower(filepath.Ext(name)))
}

// Renamed returns the bytes of the first file of an image, and these with other names of the files that it names; nil
// for an image in one file.
func (img *Image) Renamed(to func(name string) string) (b, renamed []byte, err error) {
	f, _ := byName(img.Format)
	switch {
	case len(img.Parts) == 0:
		return nil, nil, nil
	case f.Rename == nil:
		return nil, nil, &ondisk.Refusal{
			Code: "unsupported", Reason: fmt.Sprintf("its data lie in %q, and no other name can be written into the %s",
				img.Parts[0].Name(), Title(f.Name)),
			Remedy: "write a copy: trueup align SOURCE DEST",
		}
	}
	main := img.Handles[0] // a file without data, which was read as a whole
	if b, err = ondisk.Bytes(main, 0, main.Size()); err != nil {
		return nil, nil, err
	}
	renamed, err = f.Rename(b, to)
	return b, renamed, err
}
