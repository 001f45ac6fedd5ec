package align

import (
	"fmt"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/units"
)

// Storage is what lies below a disk: it reads and writes whole blocks.
type Storage struct {
	Name   string // "netapp"; of a plain size "64K"
	Block  int64  // bytes, a power of two
	About  string // for people
	Source string // where the size is from
}

// Storages is the table of contents of the profiles, the default first. The arrays of one maker differ; where Source
// is folklore, administrators use the number, and no document of the maker was found.
var Storages = []Storage{
	{
		"generic", 4 * units.KiB, "4 KiB blocks, as most storage has",
		"virt-alignment-scan(1), RECOMMENDED ALIGNMENT: disks with 4 KiB sectors, files on file systems with 4 KiB blocks, " +
			"some network storage",
	},
	{
		"netapp", 4 * units.KiB, "NetApp WAFL, 4 KiB blocks",
		"NetApp TR-3747, Best Practices for File System Alignment in Virtual Environments; Data ONTAP SAN Administration " +
			"Guide, misaligned I/O",
	},
	{
		"clariion", 64 * units.KiB, "EMC CLARiiON, elements of 64 KiB",
		"EMC Storage Operations Guide: a default stripe element of 128 sectors",
	},
	{
		"3par", 16 * units.KiB, "HP 3PAR, pages of 16 KiB",
		"folklore",
	},
	{
		"hp-raid5", 64 * units.KiB, "HP Smart Array with RAID 5, stripes of 64 KiB",
		"folklore; other controllers and settings have 16 to 256 KiB",
	},
	{
		"flasharray", 512, "Pure Storage FlashArray, 512-byte blocks",
		"Pure Storage, Say Goodbye to VM Alignment Issues: alignment does not matter",
	},
	{
		"vmfs", 64 * units.KiB, "VMware VMFS on a disk array, 64 KiB",
		"VMware, Recommendations for Aligning VMFS Partitions: vCenter puts a VMFS on 64 KiB",
	},
}

// storageSizes lists the sizes that need no name. Bytes.
var storageSizes = []int64{
	512, 4 * units.KiB, 8 * units.KiB, 16 * units.KiB, 32 * units.KiB, 64 * units.KiB,
	128 * units.KiB,
}

// Generic returns the storage that is assumed if the user names none.
func Generic() Storage { return Storages[0] }

// StorageNames returns the values that ParseStorage takes: profiles and sizes.
func StorageNames() []string {
	var out []string
	for _, s := range Storages {
		out = append(out, s.Name)
	}
	for _, n := range storageSizes {
		out = append(out, units.Short(n))
	}
	return out
}

// ParseStorage finds a profile by its name, or makes one of a size.
func ParseStorage(s string) (Storage, error) {
	if i := slices.IndexFunc(Storages, func(p Storage) bool { return p.Name == strings.ToLower(s) }); i >= 0 {
		return Storages[i], nil
	}
	if n, err := units.Parse(s); err == nil && slices.Contains(storageSizes, n) {
		return Storage{Name: units.Short(n), Block: n, About: "blocks of " + units.Format(n), Source: "--storage"}, nil
	}
	return Storage{}, fmt.Errorf("no storage %.256q, want one of %s", s, strings.Join(StorageNames(), ", "))
}
