package linux_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/boot/linux"
	"github.com/trueup/trueup/internal/disktest/boottest"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/liloforge"
	"github.com/trueup/trueup/internal/disktest/forge/volumeforge"
	"github.com/trueup/trueup/internal/ondisk"
)

// liloRefusal is a valid LILO with one unsupported detail.
type liloRefusal struct {
	change func(i *liloforge.Install) // before it is installed
	put    liloPut                    // after that
	says   string                     // text of the refusal
}

// liloPut changes an installed LILO, whose map uses this many sectors.
type liloPut func(d liloDisk, used int64)

func liloAt(d liloDisk, sector, off int64) int64 { return d.file[sector]*512 + off }

// inLiloMBR puts bytes into the first stage.
func inLiloMBR(off int64, b ...byte) liloPut {
	return func(d liloDisk, _ int64) { d.bytes.Put(off, b) }
}

// inLiloMap overwrites bytes of a sector of the map, and flipped changes one.
func inLiloMap(sector, off int64, b ...byte) liloPut {
	return func(d liloDisk, _ int64) { d.bytes.Put(liloAt(d, sector, off), b) }
}

func flipped(sector, off int64) liloPut {
	return func(d liloDisk, _ int64) { d.bytes[liloAt(d, sector, off)]++ }
}

// inLiloParameters sets a byte of the parameters, and their checksum.
func inLiloParameters(off int64, b byte) liloPut {
	return func(d liloDisk, used int64) {
		p := liloAt(d, used-1, 0)
		d.bytes.U8(p+off, b)
		d.bytes.U32(p+504, liloforge.Sum(d.bytes[p:p+504]))
	}
}

// inLiloTable puts bytes into the table of kernels, and its checksum.
func inLiloTable(off int64, b ...byte) liloPut {
	return func(d liloDisk, _ int64) {
		d.bytes.Put(liloAt(d, liloFileTable+off/512, off%512), b)
		var table []byte
		for k := range int64(3) {
			table = append(table, d.bytes[liloAt(d, liloFileTable+k, 0):][:512]...)
		}
		d.bytes.U32(liloAt(d, liloFileTable+2, 508), liloforge.Sum(table[:3*512-4]))
	}
}

// TestLiloRefused changes one detail of a valid LILO, and requires that the result is refused.
func TestLiloRefused(t *testing.T) {
	for _, cases := range []map[string]liloRefusal{liloInstalls, liloStages, liloTables} {
		for name, tc := range cases {
			t.Run(name, func(t *testing.T) {
				d := newLiloDisk(t)
				i := d.install()
				if tc.change != nil {
					tc.change(&i)
				}
				used := i.Put(d.bytes, 0)
				if tc.put != nil {
					tc.put(d, int64(used))
				}
				requireLiloRefused(t, liloGuest(t, d.bytes), tc.says)
			})
		}
	}
}

// liloVersion installs another version.
func liloVersion(v uint16) func(*liloforge.Install) {
	return func(i *liloforge.Install) { i.Version = v }
}

// liloKernel has the first kernel at these sectors.
func liloKernel(lbas ...int64) func(*liloforge.Install) {
	return func(i *liloforge.Install) { i.Images[0].Kernel = lbas }
}

const (
	liloVersions = "is not that of 22.6 to 24"
	liloArray    = "of an array"
	liloUnknown  = "its first stage is not that of 22.6 to 24"
	liloOther    = "to a second stage of the same map"
	liloNameless = "entry 1 of its table of kernels has no name"
	liloZeros    = "is empty, or does not end in zeros"
)

// liloInstalls are maps of unusual installations.
var liloInstalls = map[string]liloRefusal{
	"cylinders": {
		change: func(i *liloforge.Install) { i.Mode = liloforge.Geometry },
		says:   "its addresses are cylinders, heads and sectors",
	},
	"array": {change: func(i *liloforge.Install) { i.Mode |= liloforge.RAID }, says: liloArray},
	"second disk": {
		change: func(i *liloforge.Install) { i.Drive = 0x81 },
		says:   "its map is on BIOS drive 0x81, which can be another disk",
	},
	"22.5":    {change: liloVersion(0x0516), says: liloVersions},
	"21.7":    {change: liloVersion(0x0715), says: liloVersions},
	"25":      {change: liloVersion(25), says: liloVersions},
	"stage 2": {put: inLiloMBR(3, 2), says: liloVersions},
	"another system": {
		change: func(i *liloforge.Install) { i.Images[2].Flags = 0 },
		says:   `it also starts another system, "old"`,
	},
	"kernel in another partition": {
		change: liloKernel(2400, 2401),
		says:   "it names LBA 2400 to 2400, not all in partition 1, where the map lies",
	},
	"kernel in the gap":     {change: liloKernel(40), says: "it names LBA 40 to 40"},
	"kernel outside of all": {change: liloKernel(4700), says: "LBA 4700 to 4700"},
}

// liloStages are faults in the first stage, and in the list and the sectors of the second.
var liloStages = map[string]liloRefusal{
	"offset of an array":   {put: inLiloMBR(16, 63, 0, 0, 0), says: liloArray},
	"flag of an array":     {put: func(d liloDisk, _ int64) { d.bytes[28] |= 2 }, says: liloArray},
	"unknown code":         {put: func(d liloDisk, _ int64) { d.bytes[0x190] ^= 1 }, says: liloUnknown},
	"no cli":               {put: inLiloMBR(0, 0x90), says: liloUnknown},
	"too much code":        {put: inLiloMBR(4, 0xb8), says: liloUnknown},
	"unknown flags":        {put: inLiloMBR(31, 0x20), says: "the unknown flags 0x20"},
	"list in no partition": {put: inLiloMBR(32, 10, 0, 0, 0), says: "is at LBA 10, in no partition"},
	"list outside of the map": {
		put:  func(d liloDisk, _ int64) { d.bytes.U32(32, uint32(d.kernel[0])) },
		says: "is in no file /boot/map",
	},
	"no list": {
		put:  func(d liloDisk, _ int64) { d.bytes.U32(32, uint32(d.file[2])) },
		says: "does not hold the list of its second stage",
	},
	"list without an end": {put: func(d liloDisk, used int64) {
		for k := range int64(127) {
			d.bytes.U32(liloAt(d, liloFileList, 4*k), uint32(d.file[[]int64{liloFileStage, used + k}[min(k, 1)]]))
		}
	}, says: "has no sectors, or no end"},
	"list without sectors": {put: inLiloMap(liloFileList, 0, 0, 0, 0, 0), says: "has no sectors, or no end"},
	"second stage outside": {put: func(d liloDisk, _ int64) {
		d.bytes.U32(liloAt(d, liloFileList, 4), uint32(d.kernel[3]))
	}, says: `sector 2 of its second stage is at LBA`},
	"list of itself": {put: func(d liloDisk, _ int64) {
		d.bytes.U32(liloAt(d, liloFileList, 0), uint32(d.file[liloFileList]))
	}, says: "as another part of its map"},
	"second stage twice": {put: func(d liloDisk, _ int64) {
		d.bytes.U32(liloAt(d, liloFileList, 4), uint32(d.file[liloFileStage]))
	}, says: "as another part of its map"},
	"time of the map": {put: flipped(liloFileStage, 12), says: liloOther},
	"version of it":   {put: flipped(liloFileStage, 10), says: liloOther},
	"number of it":    {put: flipped(liloFileStage, 16), says: liloOther},
	"word of it":      {put: flipped(liloFileStage, 6), says: liloOther},
	"parameters elsewhere": {put: func(d liloDisk, _ int64) {
		d.bytes.U16(liloAt(d, liloFileStage, 26), uint16(d.kernel[7]))
	}, says: "the sector of its parameters is at LBA"},
	"no parameters":    {put: inLiloMap(liloFileStage, 26+2, 0), says: "an address has the flags 0x0"},
	"table elsewhere":  {put: inLiloParameters(480, 0x20), says: "do not name the first sectors"},
	"starts of arrays": {put: inLiloParameters(412, 1), says: liloArray},
	"parameters": {
		put:  func(d liloDisk, used int64) { flipped(used-1, 3)(d, used) },
		says: "do not have their checksum",
	},
	"message without a length": {
		change: func(i *liloforge.Install) { i.Message = "Hello" },
		put:    inLiloMap(liloFileStage, 24, 0, 0),
		says:   "the address of a message of no length",
	},
	"length without a message": {put: inLiloMap(liloFileStage, 24, 7, 0), says: "an address has the flags 0x0"},
}

// liloTables are faults in the table of kernels, and in their sector lists.
var liloTables = map[string]liloRefusal{
	"table": {
		put: flipped(liloFileTable, 60), says: "its table of kernels does not have its checksum",
	},
	"table without kernels":          {put: inLiloTable(0, make([]byte, 512)...), says: liloZeros},
	"table with more behind its end": {put: inLiloTable(2*512+300, 1), says: liloZeros},
	"name without an end":            {put: inLiloTable(0, []byte("0123456789abcdef")...), says: liloNameless},
	"name of two parts":              {put: inLiloTable(0, []byte("Linux\x00\x00new")...), says: liloNameless},
	"name that is no text":           {put: inLiloTable(0, []byte("\x1b[2J")...), says: liloNameless},
	"ram disk of no length":          {put: inLiloTable(36, 0, 0, 0, 0), says: "of the initial RAM disk"},
	"kernel on another drive":        {put: inLiloTable(36+9+2, 0xe1), says: "BIOS drive 0x81"},
	"ram disk on another drive":      {put: inLiloTable(36+4+2, 0xe1), says: "BIOS drive 0x81"},
	"list of a kernel elsewhere": {put: func(d liloDisk, used int64) {
		inLiloTable(36+9, byte(d.kernel[7]), byte(d.kernel[7]>>8))(d, used)
	}, says: `a list of sectors, of kernel "Linux", is at LBA`},
	"list of a kernel that goes in a circle": {
		change: func(i *liloforge.Install) { i.Images[0].Kernel = slices.Repeat(i.Images[0].Kernel, 2) },
		put: func(d liloDisk, _ int64) {
			copy(d.bytes[liloAt(d, liloFileKernel, 505):][:5], d.bytes[liloAt(d, liloFileTable, 36+9):][:5])
		}, says: "as another part of its map",
	},
	"list of a kernel that is empty": {
		put: inLiloMap(liloFileKernel, 0, make([]byte, 512)...), says: `the list of sectors of kernel "Linux" is empty`,
	},
	"count of zero": {
		change: func(i *liloforge.Install) { i.Mode = liloforge.Linear },
		put:    inLiloMap(liloFileKernel, 14, 0), says: "has no sectors",
	},
	"count that leaves the partition": {
		change: func(i *liloforge.Install) { i.Compact = true },
		put:    inLiloMap(liloFileKernel, 95, 0x3e, 8, 0xa0, 0, 2), says: "it names LBA 2110 to 2111",
	},
	"count in front of all bits": {
		put: inLiloMap(liloFileKernel, 2, 0xa0), says: "an address has the flags 0x20, which do not fit 0x60",
	},
	"linear among others": {
		put: inLiloMap(liloFileKernel, 2, 0xc0), says: "an address has the flags 0x40, which do not fit 0x60",
	},
	"array among others": {put: inLiloMap(liloFileKernel, 2, 0xf0), says: liloArray},
	"journal": {put: func(d liloDisk, _ int64) {
		d.bytes[liloStart*512+1024+0x5c] |= 4
		d.bytes[liloStart*512+1024+0x60] |= 4
	}, says: "the journal of the ext file system is on another device"},
	"files that are not read": {
		put:  func(d liloDisk, _ int64) { d.bytes.U16(liloStart*512+1024+0x38, 0) },
		says: "and trueup reads the file of the map only in ext",
	},
}

// Spec: common.h of LILO 0.5, 21, 22 and 24: the signature after a jump of 2 or 6 bytes, then stage and version, or the
// version alone.
func TestLilo(t *testing.T) {
	for name, tc := range map[string]struct {
		code string
		says string
	}{
		"before 21":    {"\xeb\x21LILO\x01\x00\x14\x00", "LILO (older than 21)"},
		"21":           {"\xeb\x3c\x00\x00\x00\x00LILO\x01\x00\x15\x00", "LILO 21"},
		"22.2":         {"\xfa\xe8\x21\x00\xb4\x01LILO\x01\x00\x16\x02", "LILO 22.2"},
		"22.8":         {"\xfa\xeb\x21\x01\xb4\x01LILO\x16\x08\x03\x1e\x2f\x4d", "LILO 22.8"},
		"24, whenever": {"\xfa\xeb\x21\x01\xb4\x01LILO\x18\x00\x10\x00\x2f\x4d", "LILO 24"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, lba := range []int64{0, 63} {
				f := legacyDisk()
				f.Text(lba*512, tc.code)
				f.U16(lba*512+510, 0xaa55)
				r := boottest.Read(t, f)
				require.Empty(t, r.Refs)
				require.Len(t, r.Issues, 1)
				i := r.Issues[0]
				require.Equal(t, "lilo", i.Code)
				require.Equal(t, ondisk.Unbootable, i.Effect)
				require.True(t, i.OnMove)
				require.Zero(t, i.Partition, "a kernel can lie in any partition")
				require.Contains(t, i.Text, tc.says+" in the ")
				require.Contains(t, i.Text, "trueup cannot rewrite its map, since ")
				require.Contains(t, i.Remedy, "run lilo on the copy")
				require.Equal(t, lba != 0, r.Boots(1))
				require.Contains(t, r.Chain[0].Text, tc.says+" in the ")
			}
		})
	}
}

// FuzzBootSectors reads any code in sector 0, at the start of a partition, and where XFS leaves room for some.
func FuzzBootSectors(f *testing.F) {
	f.Add([]byte("\xfa\xeb\x21\x01\xb4\x01LILO\x01\x00\x16\x08"), byte(0))
	f.Add([]byte("\xeb\x58\x90SYSLINUX\x00\x02\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x3a\x00\x07\x00\x3f"), byte(1))
	f.Add([]byte("\xeb\x63\x90"), byte(2))
	f.Fuzz(func(t *testing.T, code []byte, kind byte) {
		disk := legacyDisk()
		code = code[:min(len(code), 440)]
		disk.Put(0, code)
		switch kind % 4 {
		case 1:
			fsforge.PutExt(disk, 63, 8000)
		case 2:
			volumeforge.PutXFS(disk, 63, 8000)
			disk.Put((63+4)*512, code)
		case 3:
			fsforge.PutNTFS(disk, 63, 8000)
		}
		if kind%4 != 2 {
			disk.Put(63*512, code)
		}
		r := boottest.Read(t, disk)
		for _, ref := range r.Refs {
			require.True(t, ref.Follows() || ref.Stays != "")
		}
		require.Equal(t, r.Code == linux.Lilo, hasLilo(r))
	})
}

// hasLilo reports whether LILO in sector 0 is refused.
func hasLilo(r *boot.Result) bool {
	for _, i := range r.Issues {
		if i.Code == linux.Lilo.ID && i.OnMove {
			return true
		}
	}
	return false
}
