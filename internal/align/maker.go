package align

import (
	"fmt"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/volume"
)

// System is what set a disk up, as far as its habits tell.
type System string

// Systems.
const (
	UnknownSystem System = "unknown"
	Windows2000   System = "windows_2000_2003"
	WindowsVista  System = "windows_vista_later"
	LinuxEarly    System = "linux_early"
	Linux         System = "linux"
)

var systemNames = map[System]string{
	Windows2000: "Windows 2000, XP or 2003", WindowsVista: "Windows Vista or later", LinuxEarly: "Linux from before about 2010", Linux: "Linux",
}

// Role is what a disk is for.
type Role string

// Roles.
const (
	BootDisk    Role = "boot"
	DataDisk    Role = "data"
	UnknownRole Role = "unknown"
)

// loaders are boot codes that need no active partition. Who initialises a disk writes the other codes to data disks too.
var loaders = []boot.Code{boot.Grub2, boot.GrubLegacy, boot.Lilo, boot.SyslinuxAlt, boot.Isolinux}

// Types of partitions that firmware boots from: the EFI system partition and the BIOS boot partition of GRUB. Spec: UEFI 2.10,
// table 5.7; GRUB manual, "BIOS installation".
const (
	espByte  = 0xef
	espGUID  = "c12a7328-f81f-11d2-ba4b-00a0c93ec93b"
	biosBoot = "21686148-6449-6e6f-744e-656564454649"
)

func roleOf(l *layout.Layout) Role {
	code := l.Boot.Code
	if slices.Contains(loaders, code) {
		return BootDisk
	}
	for _, p := range l.Partitions {
		if (p.Active || p.LegacyBoot) && code != boot.Empty || p.TypeGUID == espGUID || p.TypeGUID == biosBoot || p.Kind == table.Primary && p.Type == espByte {
			return BootDisk
		}
	}
	// A system without a boot code in sector 0 is booted by another disk, or lost it.
	if code == boot.Unknown || l.Table == nil || code == boot.Empty && len(l.Boot.Chain) > 0 {
		return UnknownRole
	}
	return DataDisk
}

// makerOf names the system that set a disk up, and what says so.
func makerOf(l *layout.Layout) (System, []string) {
	h := habitsOf(l)
	windows, linux := contents(l)
	switch l.Boot.Code {
	case boot.Windows2000:
		return Windows2000, append([]string{"its boot code"}, h.evidence...)
	case boot.Vista, boot.Windows7:
		return WindowsVista, append([]string{"its boot code"}, h.evidence...)
	case boot.GrubLegacy, boot.Lilo:
		return LinuxEarly, append([]string{l.Boot.Code.Name}, h.evidence...)
	case boot.Grub2:
		windows, linux = nil, append([]string{l.Boot.Code.Name}, linux...)
	}
	switch {
	case len(windows) > 0 && len(linux) > 0:
		return UnknownSystem, slices.Concat(windows, linux, h.evidence)
	case len(windows) > 0 && h.tracks:
		return Windows2000, append(windows, h.evidence...)
	case len(windows) > 0 && h.mebibytes:
		return WindowsVista, append(windows, h.evidence...)
	case len(linux) > 0 && h.tracks:
		return LinuxEarly, append(linux, h.evidence...)
	case len(linux) > 0:
		return Linux, append(linux, h.evidence...)
	}
	return UnknownSystem, append(windows, h.evidence...)
}

// habits are how a partitioner places partitions.
type habits struct {
	tracks    bool // it counts cylinders, heads and sectors: Windows before Vista, Linux before about 2010
	mebibytes bool // it puts everything on whole MiB, as all do since
	evidence  []string
}

func habitsOf(l *layout.Layout) habits {
	var h habits
	parts := slices.DeleteFunc(slices.Clone(l.Partitions), func(p layout.Partition) bool { return p.Kind == table.Extended })
	if len(parts) == 0 {
		return h
	}
	h.mebibytes = !slices.ContainsFunc(parts, func(p layout.Partition) bool { return p.Off%units.MiB != 0 })
	if h.mebibytes {
		h.evidence = append(h.evidence, "all partitions start on whole MiB")
	}
	track := int64(l.Geometry.Sectors) * l.LBASize()
	if track == 0 {
		return h // no MBR
	}
	if slices.ContainsFunc(parts, func(p layout.Partition) bool { return p.Off == track }) {
		h.tracks = true
		h.evidence = append(h.evidence, fmt.Sprintf("a start on the second track, LBA %d", l.Geometry.Sectors))
	}
	cylinder := track * int64(l.Geometry.Heads)
	if !h.mebibytes && !slices.ContainsFunc(parts, func(p layout.Partition) bool { return p.End()%cylinder != 0 }) {
		h.tracks = true
		h.evidence = append(h.evidence, "ends on whole cylinders")
	}
	return h
}

// windowsKinds and linuxKinds are volumes that only one family of systems makes for itself.
var (
	windowsKinds = []volume.Kind{volume.NTFS, volume.ReFS, volume.BitLocker, volume.LDM}
	linuxKinds   = []volume.Kind{
		volume.Ext2, volume.Ext3, volume.Ext4, volume.JBD, volume.XFS, volume.Btrfs, volume.JFS, volume.ReiserFS, volume.LVM2, volume.MDRaid, volume.LUKS, volume.Swap,
	}
)

// MBR types that say as much where the content is not known. Source: Andries Brouwer's list.
const typeNTFS = 0x07

var linuxTypes = []byte{0x82, 0x83, 0x8e, 0xfd} // swap, file systems, LVM, RAID

// contents are the kinds of volumes on a disk that tell a family of systems.
func contents(l *layout.Layout) (windows, linux []string) {
	for _, p := range l.Partitions {
		switch v := p.Volume; {
		case v.Kind == volume.NTFS:
			windows = addOnce(windows, strings.TrimSpace("NTFS "+detail(v, "version")))
		case slices.Contains(windowsKinds, v.Kind):
			windows = addOnce(windows, string(v.Kind))
		case slices.Contains(linuxKinds, v.Kind):
			linux = addOnce(linux, string(v.Kind))
		case v.Kind != volume.Unknown || p.Kind == table.Entry:
		case p.Type == typeNTFS:
			windows = addOnce(windows, "type "+p.TypeID())
		case slices.Contains(linuxTypes, p.Type):
			linux = addOnce(linux, "type "+p.TypeID())
		}
	}
	return windows, linux
}

func addOnce(s []string, x string) []string {
	if slices.Contains(s, x) {
		return s
	}
	return append(s, x)
}

// detail is what a volume says about itself under a name.
func detail(v *volume.Volume, name string) string {
	for _, d := range v.Details {
		if d.Name == name {
			return d.Value
		}
	}
	return ""
}
