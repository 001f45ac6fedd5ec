package volume

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/ondisk"
)

// seedBytes is short, because a mutation hits any byte: the boot sector, the superblock of ext, and the master file table
// where it stands right behind.
const seedBytes = 8 << 10

// FuzzVolume probes anything as a volume.
func FuzzVolume(f *testing.F) {
	const sectors = 6000
	for _, put := range []func(disktest.Forged, int64, int64){disktest.Forged.PutNTFS, disktest.Forged.PutFAT16, disktest.Forged.PutExt} {
		disk := make(disktest.Forged, sectors*512)
		put(disk, 0, sectors)
		f.Add([]byte(disk[:seedBytes]), uint32(sectors))
	}
	ntfs := make(disktest.Forged, sectors*512)
	ntfs.PutNTFS(0, sectors)
	ntfs.U64(disktest.NTFSMFT, 1)
	ntfs.Put(4096+3<<10, disktest.NTFSVolumeRecord("a label"))
	f.Add([]byte(ntfs[:seedBytes]), uint32(sectors))
	for _, b := range disktest.Seeds(f, seedBytes, "dftt/7-ntfs-undel.dd.xz", "dftt/6-fat-undel.dd.xz", "imagemounter/test.ntfs.xz", "imagemounter/test.fat12.xz",
		"imagemounter/test.ext3.xz", "dfvfs/ext2.splitraw.000.xz", "go-ntfs/ads_with_same_ids-0x0.bin") {
		f.Add(b, uint32(32768))
	}
	f.Add([]byte("LUKS\xba\xbe\x00\x01"), uint32(64))
	f.Add([]byte("\xeb\x58\x90-FVE-FS-"), uint32(64))
	swap := make(disktest.Forged, 4096)
	swap.Text(4086, "SWAPSPACE2")
	f.Add([]byte(swap), uint32(64))
	for _, put := range []func(disktest.Forged){
		func(d disktest.Forged) {
			d.PutDisklabel(512, disktest.Slice{Start: 16, Sectors: 100, Type: 7}, disktest.Slice{Start: 8})
		},
		func(d disktest.Forged) { d.PutDisklabel(64, disktest.Slice{Start: 16, Sectors: 100, Type: 7}) },
		func(d disktest.Forged) { d.PutVTOC(0, disktest.Slice{Start: 16, Sectors: 100, Type: 2}) },
		func(d disktest.Forged) { d.Put(508, []byte{0xda, 0xbe, 0xda, 0xbf, 0, 0}) },
	} {
		label := make(disktest.Forged, 2048)
		put(label)
		f.Add([]byte(label), uint32(64))
	}
	f.Fuzz(func(t *testing.T, data []byte, sectors uint32) {
		d := disktest.ShortDisk(data, int64(sectors)*512)
		start := time.Now()
		v, err := Probe(d, 63*512)
		require.Less(t, time.Since(start), 5*time.Second)
		require.NoError(t, err, "only reading can fail, and this disk can be read")
		require.NotNil(t, v)
		require.GreaterOrEqual(t, v.Size, int64(0))
		require.GreaterOrEqual(t, v.BlockSize, int64(0))
		require.GreaterOrEqual(t, v.DataStart, int64(0))
		require.LessOrEqual(t, len(v.Label), 1<<16)
		for _, p := range v.Parts {
			require.Positive(t, p.Size)
			require.GreaterOrEqual(t, p.Start, int64(-1))
			require.True(t, p.Start < 0 || v.OnDisk || p.Start+p.Size <= d.Size(), "a slice with a place lies in its container")
		}
		if v.Boot != nil {
			require.Positive(t, v.Boot.SectorSize)
			require.LessOrEqual(t, v.Boot.Backup+512, max(d.Size(), 512), "the copy of the boot sector is one to write to")
		}
	})
}

// FuzzLDM reads anything as the database of a dynamic disk, whose private header is in sector 0 and the rest behind it.
func FuzzLDM(f *testing.F) {
	const sectors, seedSectors = 4096, 20
	disk := make(disktest.Forged, sectors*512)
	db := disk[disk.PutLDM(63, 1000):]
	head := disk[disktest.LDMHead:][:512]
	head.Big64(disktest.LDMConfigStart, 1)
	head.Big64(disktest.LDMConfigSize, seedSectors)
	f.Add(append(append([]byte{}, head...), db[:seedSectors*512]...), uint32(sectors))
	f.Fuzz(func(t *testing.T, data []byte, sectors uint32) {
		d := disktest.ShortDisk(data, int64(sectors)*512)
		start := time.Now()
		group, err := ReadLDM(d, []int64{0})
		require.Less(t, time.Since(start), 5*time.Second)
		if err != nil {
			require.True(t, isNoMatch(err) || errors.Is(err, ondisk.ErrFormat), "%v", err)
			return
		}
		require.LessOrEqual(t, len(group.Volumes), maxLDMNames)
		for _, v := range group.Volumes {
			require.GreaterOrEqual(t, v.Size, int64(0))
			require.Less(t, v.Start, max(d.Size(), 1))
		}
	})
}
