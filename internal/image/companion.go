package image

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/trueup/trueup/internal/image/raw"
	"github.com/trueup/trueup/internal/ondisk"
)

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

// CompanionKind returns the kind of companions that have such names, empty for other names.
func CompanionKind(name string) string {
	for _, c := range companions {
		if c.disk(name) != "" {
			return c.name
		}
	}
	return ""
}

// DiskOf returns the name of the disk that a companion belongs to, by its own name; empty if that does not say it.
func DiskOf(name string) string {
	for _, c := range companions {
		if disk := c.disk(name); disk != "" {
			return disk
		}
	}
	return ""
}

// CompanionText returns the purpose of a companion of a kind, and what to do instead.
func CompanionText(kind, name string) (text, remedy string) {
	disk, holds := "a disk", "other data"
	remedy = "name the disk instead"
	if of := DiskOf(name); of != "" {
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
	kind := CompanionKind(img.Base)
	if kind == "" || !img.Dir.Exists(DiskOf(img.Base)) {
		return
	}
	text, _ := CompanionText(kind, img.Base)
	img.Issues = append(img.Issues, ondisk.Issue{
		Code: CodeCompanion, Effect: ondisk.Note, Text: fmt.Sprintf("its name is typical of %s: then %s", kind, text),
	})
}
