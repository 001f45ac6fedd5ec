package linux_test

import (
	"slices"
	"testing"

	"github.com/trueup/trueup/internal/disktest/forge/liloforge"
)

type liloRefusal struct {
	change func(i *liloforge.Install)   // before it is installed
	put    func(d liloDisk, used int64) // after that; used: sectors of the map
	says   string                       // in the refusal
}

func liloAt(d liloDisk, sector, off int64) int64 { return d.file[sector]*512 + off }

// resealLilo computes the checksum of the table of kernels again.
func resealLilo(d liloDisk) {
	var table []byte
	for k := range int64(3) {
		table = append(table, d.bytes[liloAt(d, liloFileTable+k, 0):][:512]...)
	}
	d.bytes.U32(liloAt(d, liloFileTable+2, 508), liloforge.Sum(table[:3*512-4]))
}

// sealLiloParameters sets a byte of the parameters, and their checksum.
func sealLiloParameters(d liloDisk, used, off int64, b byte) {
	p := liloAt(d, used-1, 0)
	d.bytes.U8(p+off, b)
	d.bytes.U32(p+504, liloforge.Sum(d.bytes[p:p+504]))
}

// TestLiloRefused changes one thing of a LILO that would be rewritten.
func TestLiloRefused(t *testing.T) {
	t.Parallel()
	for _, cases := range []map[string]liloRefusal{liloInstalls(), liloStages(), liloTables()} {
		for name, tc := range cases {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
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

// liloInstalls are maps of systems that lilo was told to install so.
func liloInstalls() map[string]liloRefusal {
	return map[string]liloRefusal{
		"cylinders": {
			change: func(i *liloforge.Install) { i.Mode = liloforge.Geometry },
			says:   "its addresses are cylinders, heads and sectors",
		},
		"array": {change: func(i *liloforge.Install) { i.Mode |= liloforge.RAID }, says: "of an array"},
		"second disk": {
			change: func(i *liloforge.Install) { i.Drive = 0x81 },
			says:   "its map is on BIOS drive 0x81, which can be another disk",
		},
		"22.5":    {change: func(i *liloforge.Install) { i.Version = 0x0516 }, says: "only that of 22.6 to 24"},
		"21.7":    {change: func(i *liloforge.Install) { i.Version = 0x0715 }, says: "only that of 22.6 to 24"},
		"stage 2": {put: func(d liloDisk, _ int64) { d.bytes.U8(3, 2) }, says: "only that of 22.6 to 24"},
		"25":      {change: func(i *liloforge.Install) { i.Version = 25 }, says: "only that of 22.6 to 24"},
		"another system": {
			change: func(i *liloforge.Install) { i.Images[2].Flags = 0 },
			says:   `it also starts another system, "old"`,
		},
		"kernel in another partition": {
			change: func(i *liloforge.Install) { i.Images[0].Kernel = []int64{2400, 2401} },
			says:   "it names LBA 2400 to 2400, not all in partition 1, where the map lies",
		},
		"kernel in the gap": {
			change: func(i *liloforge.Install) { i.Images[0].Kernel = []int64{40} },
			says:   "it names LBA 40 to 40",
		},
		"kernel outside of all": {
			change: func(i *liloforge.Install) { i.Images[0].Kernel = []int64{4700} },
			says:   "LBA 4700 to 4700",
		},
	}
}

// liloStages are faults of the first stage, and of the list and the sectors of the second.
func liloStages() map[string]liloRefusal {
	return map[string]liloRefusal{
		"offset of an array": {put: func(d liloDisk, _ int64) { d.bytes.U32(16, 63) }, says: "of an array"},
		"flag of an array":   {put: func(d liloDisk, _ int64) { d.bytes[28] |= 2 }, says: "of an array"},
		"unknown code": {
			put:  func(d liloDisk, _ int64) { d.bytes[0x190] ^= 1 },
			says: "its first stage is not that of 22.6 to 24",
		},
		"no cli": {
			put:  func(d liloDisk, _ int64) { d.bytes[0] = 0x90 },
			says: "its first stage is not that of 22.6 to 24",
		},
		"too much code": {
			put:  func(d liloDisk, _ int64) { d.bytes[4] = 0xb8 },
			says: "its first stage is not that of 22.6 to 24",
		},
		"unknown flags": {
			put:  func(d liloDisk, _ int64) { d.bytes[31] = 0x20 },
			says: "the unknown flags 0x20",
		},
		"list in no partition": {
			put:  func(d liloDisk, _ int64) { d.bytes.U32(32, 10) },
			says: "is at LBA 10, in no partition",
		},
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
		"list without sectors": {
			put:  func(d liloDisk, _ int64) { d.bytes.U32(liloAt(d, liloFileList, 0), 0) },
			says: "has no sectors, or no end",
		},
		"second stage outside": {put: func(d liloDisk, _ int64) {
			d.bytes.U32(liloAt(d, liloFileList, 4), uint32(d.kernel[3]))
		}, says: `sector 2 of its second stage is at LBA`},
		"list of itself": {put: func(d liloDisk, _ int64) {
			d.bytes.U32(liloAt(d, liloFileList, 0), uint32(d.file[liloFileList]))
		}, says: "as another part of its map"},
		"second stage twice": {put: func(d liloDisk, _ int64) {
			d.bytes.U32(liloAt(d, liloFileList, 4), uint32(d.file[liloFileStage]))
		}, says: "as another part of its map"},
		"time of the map": {
			put:  func(d liloDisk, _ int64) { d.bytes[liloAt(d, liloFileStage, 12)]++ },
			says: "no second stage of the same map",
		},
		"version of it": {
			put:  func(d liloDisk, _ int64) { d.bytes[liloAt(d, liloFileStage, 10)]++ },
			says: "no second stage of the same map",
		},
		"number of it": {
			put:  func(d liloDisk, _ int64) { d.bytes[liloAt(d, liloFileStage, 16)]++ },
			says: "no second stage of the same map",
		},
		"word of it": {
			put:  func(d liloDisk, _ int64) { d.bytes[liloAt(d, liloFileStage, 6)]++ },
			says: "no second stage of the same map",
		},
		"parameters elsewhere": {put: func(d liloDisk, _ int64) {
			d.bytes.U16(liloAt(d, liloFileStage, 26), uint16(d.kernel[7]))
		}, says: "the sector of its parameters is at LBA"},
		"no parameters": {
			put:  func(d liloDisk, _ int64) { d.bytes.U8(liloAt(d, liloFileStage, 26+2), 0) },
			says: "an address has the flags 0x0",
		},
		"table elsewhere": {
			put:  func(d liloDisk, used int64) { sealLiloParameters(d, used, 480, 0x20) },
			says: "do not name the first sectors",
		},
		"starts of arrays": {
			put:  func(d liloDisk, used int64) { sealLiloParameters(d, used, 412, 1) },
			says: "of an array",
		},
		"parameters": {
			put:  func(d liloDisk, used int64) { d.bytes[liloAt(d, used-1, 3)]++ },
			says: "do not have their checksum",
		},
		"message without a length": {
			change: func(i *liloforge.Install) { i.Message = "Hello" },
			put:    func(d liloDisk, _ int64) { d.bytes.U16(liloAt(d, liloFileStage, 24), 0) },
			says:   "the address of a message, which has no length",
		},
		"length without a message": {
			put:  func(d liloDisk, _ int64) { d.bytes.U16(liloAt(d, liloFileStage, 24), 7) },
			says: "an address has the flags 0x0",
		},
	}
}

// liloTables are faults of the table of kernels, and of the lists of their sectors.
func liloTables() map[string]liloRefusal {
	return map[string]liloRefusal{
		"table": {
			put:  func(d liloDisk, _ int64) { d.bytes[liloAt(d, liloFileTable, 60)]++ },
			says: "its table of kernels does not have its checksum",
		},
		"table without kernels": {put: func(d liloDisk, _ int64) {
			clear(d.bytes[liloAt(d, liloFileTable, 0):][:512])
			resealLilo(d)
		}, says: "is empty, or does not end in zeros"},
		"table with more behind its end": {put: func(d liloDisk, _ int64) {
			d.bytes.U8(liloAt(d, liloFileTable+2, 300), 1)
			resealLilo(d)
		}, says: "is empty, or does not end in zeros"},
		"name without an end": {put: func(d liloDisk, _ int64) {
			d.bytes.Text(liloAt(d, liloFileTable, 0), "0123456789abcdef")
			resealLilo(d)
		}, says: "entry 1 of its table of kernels has no name"},
		"name of two parts": {put: func(d liloDisk, _ int64) {
			d.bytes.Text(liloAt(d, liloFileTable, 0), "Linux\x00\x00new")
			resealLilo(d)
		}, says: "entry 1 of its table of kernels has no name"},
		"name that is no text": {put: func(d liloDisk, _ int64) {
			d.bytes.Text(liloAt(d, liloFileTable, 0), "\x1b[2J")
			resealLilo(d)
		}, says: "entry 1 of its table of kernels has no name"},
		"ram disk of no length": {put: func(d liloDisk, _ int64) {
			d.bytes.U32(liloAt(d, liloFileTable, 36), 0)
			resealLilo(d)
		}, says: "of the initial RAM disk"},
		"kernel on another drive": {put: func(d liloDisk, _ int64) {
			d.bytes.U8(liloAt(d, liloFileTable, 36+9+2), 0xe1)
			resealLilo(d)
		}, says: "BIOS drive 0x81"},
		"ram disk on another drive": {put: func(d liloDisk, _ int64) {
			d.bytes.U8(liloAt(d, liloFileTable, 36+4+2), 0xe1)
			resealLilo(d)
		}, says: "BIOS drive 0x81"},
		"list of a kernel elsewhere": {put: func(d liloDisk, _ int64) {
			d.bytes.U16(liloAt(d, liloFileTable, 36+9), uint16(d.kernel[7]))
			resealLilo(d)
		}, says: `a list of sectors, of kernel "Linux", is at LBA`},
		"list of a kernel that goes in a circle": {
			change: func(i *liloforge.Install) { i.Images[0].Kernel = slices.Repeat(i.Images[0].Kernel, 2) },
			put: func(d liloDisk, _ int64) {
				copy(d.bytes[liloAt(d, liloFileKernel, 505):][:5], d.bytes[liloAt(d, liloFileTable, 36+9):][:5])
			}, says: "as another part of its map",
		},
		"list of a kernel that is empty": {put: func(d liloDisk, _ int64) {
			clear(d.bytes[liloAt(d, liloFileKernel, 0):][:512])
		}, says: `the list of sectors of kernel "Linux" is empty`},
		"count of zero": {
			change: func(i *liloforge.Install) { i.Mode = liloforge.Linear },
			put:    func(d liloDisk, _ int64) { d.bytes.U8(liloAt(d, liloFileKernel, 14), 0) }, says: "has no sectors",
		},
		"count that leaves the partition": {
			change: func(i *liloforge.Install) { i.Compact = true },
			put: func(d liloDisk, _ int64) {
				d.bytes.Put(liloAt(d, liloFileKernel, 95), []byte{0x3e, 8, 0xa0, 0, 2})
			}, says: "it names LBA 2110 to 2111",
		},
		"count in front of all bits": {
			put:  func(d liloDisk, _ int64) { d.bytes[liloAt(d, liloFileKernel, 2)] = 0xa0 },
			says: "an address has the flags 0x20, which do not fit 0x60",
		},
		"linear among others": {
			put:  func(d liloDisk, _ int64) { d.bytes[liloAt(d, liloFileKernel, 2)] = 0xc0 },
			says: "an address has the flags 0x40, which do not fit 0x60",
		},
		"array among others": {
			put:  func(d liloDisk, _ int64) { d.bytes[liloAt(d, liloFileKernel, 2)] = 0xf0 },
			says: "of an array",
		},
		"journal": {put: func(d liloDisk, _ int64) {
			d.bytes[liloStart*512+1024+0x5c] |= 4
			d.bytes[liloStart*512+1024+0x60] |= 4
		}, says: "the journal of the ext file system is on another device"},
		"files that are not read": {
			put:  func(d liloDisk, _ int64) { d.bytes.U16(liloStart*512+1024+0x38, 0) },
			says: "and only in ext the file of the map is read",
		},
	}
}
