package image

import (
	"encoding/binary"
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

// companion is a kind of file that programs keep beside a disk, with an image's suffix and none of the disk's data.
type companion struct {
	name   string // as users write it
	holds  string // completes "it holds …"
	detect detector
	// disk returns the name of the disk that a file belongs to; empty if the name of the file is not of this kind.
	disk func(file string) string
}

var companions = []companion{
	{
		name: "VMware changed block tracking", holds: "a list of changed blocks", detect: changeTracking,
		disk: vmdkBefore("-ctk"),
	},
	{
		name: "VMware CBRC digest", holds: "hashes for the host's read cache", disk: vmdkBefore("-digest"),
		detect: func(_, _ []byte) bool { return false }, // its format is not published
	},
	{
		name: "AppleDouble", holds: "attributes that macOS stores beside a file", detect: appleDouble,
		disk: func(file string) string {
			if disk, ok := strings.CutPrefix(file, "._"); ok {
				return disk
			}
			return ""
		},
	},
}

// vmdkBefore returns a function that takes the mark off a name: disk-ctk.vmdk belongs to disk.vmdk.
func vmdkBefore(mark string) func(string) string {
	end := mark + ".vmdk"
	return func(file string) string {
		if at := len(file) - len(end); at > 0 && strings.EqualFold(file[at:], end) {
			return file[:at] + file[at+len(mark):]
		}
		return ""
	}
}

// changeTracking reports the header of a -ctk.vmdk file: signature, version 1, and a header of one sector. Source:
// libvmdk, "VMware Virtual Disk (VMDK) format specification", "Change tracking file".
func changeTracking(head, _ []byte) bool {
	return has(head, 0, "\xa2\x72\x19\xf6\x01\x00\x00\x00") && le16(12, 512)(head, nil)
}

// appleDouble reports the header of an AppleDouble file: magic and version 2. Spec: RFC 1740, appendix A.
func appleDouble(head, _ []byte) bool {
	return len(head) >= 8 && binary.BigEndian.Uint64(head) == 0x00051607_00020000
}

// companionOf returns the kind of a file whose content has no format, nil for any other. A disk with a partition table
// is never one. The name of an image and of its companion's kind count where the content shows nothing.
func companionOf(name string, head []byte) *companion {
	if raw.HasTable(head) {
		return nil
	}
	for i := range companions {
		if c := &companions[i]; c.detect(head, nil) || c.named(name) {
			return c
		}
	}
	return nil
}

// named reports whether a name alone tells the kind. Other files than those of macOS begin with "._".
func (c *companion) named(name string) bool { return c.name != "AppleDouble" && c.disk(name) != "" }

// CompanionOf returns the kind of a companion and the name of its disk, by its own name; empty if that does not say it.
func CompanionOf(name string) (kind, disk string) {
	for _, c := range companions {
		if disk := c.disk(name); disk != "" {
			return c.name, disk
		}
	}
	return "", ""
}

// CompanionText returns the purpose of a companion of a kind, and what to do instead.
func CompanionText(kind, name string) (text, remedy string) {
	disk, holds := "a disk", "other data"
	remedy = "name the disk instead"
	if _, of := CompanionOf(name); of != "" {
		disk, remedy = fmt.Sprintf("%.256q", of), fmt.Sprintf("name %.256q instead", of)
	}
	for _, c := range companions {
		if c.name == kind {
			holds = c.holds
		}
	}
	return fmt.Sprintf("it belongs to %s and holds %s, not the data of a disk", disk, holds), remedy
}

// CodeCompanion is the code of the issue of an image that is named and placed like a companion of another.
const CodeCompanion = "companion"

// noteCompanion notes that an image of a known format has the name of a companion, and the disk stands beside it. A
// digest of CBRC is such an image: a descriptor with an extent.
func (img *Image) noteCompanion() {
	kind, of := CompanionOf(img.Base)
	if kind == "" || !img.Dir.Exists(of) {
		return
	}
	text, _ := CompanionText(kind, img.Base)
	img.Issues = append(img.Issues, ondisk.Issue{
		Code: CodeCompanion, Effect: ondisk.Note, Text: fmt.Sprintf("its name is typical of %s: then %s", kind, text),
	})
}
