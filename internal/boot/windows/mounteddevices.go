package windows

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/hive"
	"github.com/trueup/trueup/internal/ondisk"
)

// MountedDevices finds the values by which Windows recognises a volume of an MBR disk: disk signature and byte offset.
// With another offset NT 4 to 2003 take it for a new volume, even their own, and give it another letter.
var MountedDevices = hives{"mounted-devices", checkLetters, systemHives, findLetters}.finder()

// otherLetter is the cost of a stale letter of a partition on another disk.
const otherLetter = "Windows takes the partition for a new one and gives it another drive letter"

const checkLetters = "go on with --allow-unbootable, and give the drive letters back after the first boot of the copy"

// systemHives returns the paths of the hives SYSTEM in a partition.
func systemHives(g *boot.Guest, p boot.Partition) (paths []string, err error) {
	folders, err := foldersOf(g, p)
	for _, folder := range folders {
		paths = append(paths, folder+"/"+systemHive)
	}
	return paths, err
}

// mountedDevice is the value of a volume of an MBR disk, 12 bytes. Values of other lengths name volumes in other ways:
// by the GUID of a GPT partition, or by the path of a device. Source:
// winreg-kb, docs/sources/system-keys/Mounted-devices.md.
const (
	mountedLength = 12
	mountedOffset = 4 // of the byte offset, behind the signature

	maxMounted = 8192 // values; Windows never forgets one
)

func findMounted(h *guestHive) error {
	k, err := ifThere(h.Key("MountedDevices"))
	if k == nil {
		return err
	}
	seen := 0
	return each(k.Values(), func(v *hive.Value) error {
		if seen++; seen > maxMounted {
			return fmt.Errorf("MountedDevices: %w of %d values", ondisk.ErrLimit, maxMounted)
		}
		if v.Size != mountedLength || v.Type != regBinary {
			return nil
		}
		data, err := v.Data()
		if err != nil {
			return err
		}
		if disk := binary.LittleEndian.Uint32(data); disk != h.g.Signature {
			return h.other(mountedKind(v.Name), v, mountedOffset, disk, otherLetter)
		}
		_, err = h.ref(mountedKind(v.Name), v, mountedOffset)
		return err
	})
}

// mountedKind names a value: a drive letter, or a volume that can be mounted in a folder.
func mountedKind(name string) string {
	letter, ok := strings.CutPrefix(strings.ToLower(name), `\dosdevices\`)
	if ok && len(letter) == 2 && letter[0] >= 'a' && letter[0] <= 'z' && letter[1] == ':' {
		return "drive letter " + strings.ToUpper(letter)
	}
	return "mounted volume"
}
