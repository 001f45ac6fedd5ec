package vdi_test

import (
	"encoding/binary"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/image/vdi"
	"github.com/trueup/trueup/internal/ondisk"
)

const mib = 1 << 20

// noisy returns a disk with blocks that are not stored, and one that is stored in part.
func noisy(size int) []byte {
	data := imagetest.Noise(uint64(size), size)
	if size > 8*mib {
		clear(data[2*mib : 6*mib+777])
	}
	return data
}

// Output of qemu-img can be read, and our output can be read by qemu-img.
func TestByQemuImg(t *testing.T) {
	for _, size := range []int{512, 3*mib + 5*512, 9*mib - 512, 12 * mib} {
		data := noisy(size)
		raw := imagetest.Write(t, t.TempDir(), "src.img", data)
		src := imagetest.Open(t, raw)
		for sub, static := range map[string]string{"dynamic": "off", "fixed": "on"} {
			t.Run(fmt.Sprintf("%s of %d bytes", sub, size), func(t *testing.T) {
				made := filepath.Join(t.TempDir(), "made.vdi")
				disktest.Run(t, "qemu-img", "convert", "-f", "raw", "-O", "vdi", "-o", "static="+static, raw, made)
				img := imagetest.Open(t, made)
				require.Equal(t, sub, img.Subformat)
				disktest.CheckBytes(t, img.Disk, data)
				imagetest.NoDamage(t, img)

				path := filepath.Join(t.TempDir(), "disk.vdi")
				out := imagetest.Fill(t, src, path, store.CreateOptions{Format: "vdi", Subformat: sub}, 4)
				img = imagetest.ReadsBack(t, out, path, data)
				require.Equal(t, sub, img.Subformat)
				require.Empty(t, img.Issues)
				imagetest.NoDamage(t, img)
				disktest.Run(t, "qemu-img", "compare", "-f", "raw", "-F", "vdi", raw, path)
				require.Contains(t, disktest.Run(t, "qemu-img", "check", "-f", "vdi", path), "No errors were found")
				for off := int64(0); off < img.Disk.Size(); off += mib {
					run, err := img.Disk.(disk.Mapped).Run(off)
					require.NoError(t, err)
					require.Zero(t, run.Off%mib, "offset %d of the disk lies at %d of the file", off, run.Off)
				}
			})
		}
	}
}

func TestOutputIsDeterministic(t *testing.T) {
	src := imagetest.Open(t, imagetest.Write(t, t.TempDir(), "src.img", noisy(12*mib)))
	seed := []byte("job")
	imagetest.SameBytes(t, src, "copy.vdi", store.CreateOptions{Format: "vdi", Subformat: "dynamic", Seed: seed},
		store.CreateOptions{Format: "vdi", Subformat: "fixed", Seed: seed})
}

// A table of several pieces, with gaps of several pieces: 40,000 blocks of which four are stored.
func TestLargeTable(t *testing.T) {
	const size = 40_000 * mib
	path := disktest.Blank(t, "disk.img", size)
	for _, off := range []int64{0, 4095 * mib, 4096 * mib, size - 512} {
		disktest.WriteAt(t, path, off, []byte(fmt.Sprintf("at %d", off)))
	}
	copied := filepath.Join(t.TempDir(), "disk.vdi")
	imagetest.Copy(t, imagetest.Open(t, path), copied, store.CreateOptions{Format: "vdi"})
	img := imagetest.Open(t, copied)
	imagetest.NoDamage(t, img)
	require.Equal(t, int64((1+1+4)*mib), img.Files()[0].Size)
	disktest.Run(t, "qemu-img", "compare", "-f", "raw", "-F", "vdi", path, copied)
}

func TestTooLarge(t *testing.T) {
	src := imagetest.Open(t, disktest.Blank(t, "disk.img", 512))
	for size, says := range map[int64]string{
		512<<40 + 512: "limit exceeded of 562949953421312 bytes (512 TiB)", 100: "want whole sectors",
		0: "want whole sectors",
	} {
		_, err := store.Create(filepath.Join(t.TempDir(), "x.vdi"), size, src, store.CreateOptions{Format: "vdi"})
		require.ErrorContains(t, err, says)
	}
}

// A call that fails ends the writing of a disk with several pieces of the table. All of it is flushed before the
// header, and that at last.
func TestCallsThatFail(t *testing.T) {
	for _, sub := range []string{"dynamic", "fixed"} {
		require.Equal(t, []string{"truncate", "sync", "write at 0", "sync"},
			imagetest.EveryCallFails(t, vdi.Format, sub, 20<<30, 5<<30, 4), sub)
	}
	_, err := vdi.Format.Create(nil, mib, driver.Options{SectorSize: 4096})
	require.ErrorIs(t, err, ondisk.ErrUnsupported)
}

// VirtualBox checks fields that qemu-img ignores. Source: VDI.cpp, vdiValidateHeader.
func TestHeaderForVirtualBox(t *testing.T) {
	src := imagetest.Open(t, imagetest.Write(t, t.TempDir(), "src.img", noisy(12*mib)))
	for sub, kind := range map[string]uint32{"dynamic": 1, "fixed": 2} {
		path := filepath.Join(t.TempDir(), "disk.vdi")
		imagetest.Copy(t, src, path, store.CreateOptions{Format: "vdi", Subformat: sub})
		b := disktest.ReadFile(t, path)
		u32 := func(at int) uint32 { return binary.LittleEndian.Uint32(b[at:]) }
		require.Equal(t, "<<< Oracle VM VirtualBox Disk Image >>>\n", string(b[:40]))
		require.Equal(t, []uint32{0x10001, 400, kind}, []uint32{u32(0x44), u32(0x48), u32(0x4c)})
		require.Equal(t, []uint32{512, 512}, []uint32{u32(0x168), u32(0x1d4)}, "sector sizes of both geometries")
		require.Equal(t, []uint32{mib, 0, 12}, []uint32{u32(0x178), u32(0x17c), u32(0x180)}, "blocks")
		require.LessOrEqual(t, u32(0x184), u32(0x180))
		require.NotEqual(t, make([]byte, 16), b[0x188:0x198], "UUID of the disk")
		require.NotEqual(t, make([]byte, 16), b[0x198:0x1a8], "UUID of its last change")
		require.Equal(t, make([]byte, 32), b[0x1a8:0x1c8], "parents")
		require.Equal(t, int64(u32(0x158))+int64(u32(0x184))*mib, int64(len(b)))
	}
}

// A copy states the geometry for a BIOS that its source states, over its own size and as far as it can be addressed, or
// that by which the disk boots. It stands at byte 0x1c8 of the file, and at 0x15c where the header ends before that.
// Spec: VirtualBox, VDICore.h, VDIHEADER1PLUS; VDI.cpp, getImageLCHSGeometry.
func TestGeometryForABIOS(t *testing.T) {
	type chs [3]uint32
	made := filepath.Join(t.TempDir(), "made.vdi")
	disktest.Run(t, "qemu-img", "create", "-q", "-f", "vdi", made, "34M")
	for _, tc := range []struct {
		name        string
		header      uint32 // its size
		old, logic  chs
		bios        driver.Geometry
		reads, want chs
	}{
		{"none", 400, chs{}, chs{}, driver.Geometry{}, chs{}, chs{}},
		{"of the source", 400, chs{}, chs{1000, 4, 17}, driver.Geometry{}, chs{1000, 4, 17}, chs{1024, 4, 17}},
		{"of a short header", 384, chs{100, 16, 31}, chs{}, driver.Geometry{}, chs{100, 16, 31}, chs{144, 16, 31}},
		{"the old one counts no more", 400, chs{69, 16, 63}, chs{}, driver.Geometry{}, chs{}, chs{}},
		{"by which it boots", 400, chs{}, chs{}, driver.Geometry{Heads: 5, Sectors: 17}, chs{}, chs{843, 5, 17}},
	} {
		b := disktest.ReadFile(t, made)
		binary.LittleEndian.PutUint32(b[0x48:], tc.header)
		for i := range 3 {
			binary.LittleEndian.PutUint32(b[0x15c+4*i:], tc.old[i])
			binary.LittleEndian.PutUint32(b[0x1c8+4*i:], tc.logic[i])
		}
		src := imagetest.Open(t, imagetest.Write(t, t.TempDir(), "src.vdi", b))
		g := src.BIOS
		read := chs{uint32(g.Cylinders), uint32(g.Heads), uint32(g.Sectors)}
		require.Equal(t, tc.reads, read, tc.name)
		path := filepath.Join(t.TempDir(), "copy.vdi")
		out, err := store.Create(path, 35*mib, src, store.CreateOptions{BIOS: tc.bios})
		require.NoError(t, err)
		require.NoError(t, out.Finish())
		require.NoError(t, out.Publish())
		got := disktest.ReadFile(t, path)
		for i := range 3 {
			require.Equal(t, tc.want[i], binary.LittleEndian.Uint32(got[0x1c8+4*i:]), "%s, field %d", tc.name, i)
			require.Zero(t, binary.LittleEndian.Uint32(got[0x15c+4*i:]), tc.name)
		}
		require.Equal(t, int64(tc.want[1]), out.BIOS().Heads, tc.name)
	}
}
