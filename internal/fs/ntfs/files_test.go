package ntfs

import (
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/filetest"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
)

// Volumes with all sizes of sectors, clusters, records and files are read as ntfs-3g reads them.
func TestNTFSOfMkntfs(t *testing.T) {
	for _, args := range []string{
		"-c 512", "-c 1024", "-c 4096", "-c 65536", "-c 131072", "-c 2097152", "-s 1024 -c 1024", "-s 2048 -c 8192",
		"-s 4096 -c 4096", "-s 4096 -c 65536",
	} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			vol := mkntfs(t, 48<<20, strings.Fields(args)...)
			sizes := []int{0, 1, 300, 700, 5000, 4 << 20}
			for i, n := range sizes {
				ntfscp(t, vol, fmt.Sprintf("file %d", i), filetest.Noise(uint64(i), n))
			}
			v := requireLikeTools(t, vol)
			for i, n := range sizes {
				f := filetest.File(t, v, fmt.Sprintf("FILE %d", i))
				require.Equal(t, filetest.Noise(uint64(i), n), append([]byte{}, filetest.ReadAll(t, f)...))
				require.Equal(t, fmt.Sprintf("file %d", i), f.Path, "the name as it is stored")
			}
		})
	}
}

// A byte that is written where Where says changes this byte of the file and nothing else, in the record of a small file
// too, where NTFS has other bytes at the end of each 512 than the file has.
func TestNTFSRewrite(t *testing.T) {
	for _, args := range []string{"-c 512", "-c 4096", "-s 4096 -c 4096"} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			vol := mkntfs(t, 8<<20, strings.Fields(args)...)
			contents := map[string][]byte{
				"small": filetest.Noise(1, 640), "other": filetest.Noise(2, 640),
				"large": filetest.Noise(3, 100000),
			}
			if strings.HasPrefix(args, "-s 4096") {
				contents["small"], contents["other"] = filetest.Noise(1, 3500), filetest.Noise(2, 3500)
			}
			for name, b := range contents {
				ntfscp(t, vol, name, b)
			}
			before := disktest.Head(t, filetest.RawImage(t, vol), 8<<20)
			v := openNTFS(t, vol)
			small := filetest.File(t, v, "small")
			require.Greater(t, len(filetest.RunsOf(t, small)), 1, "a resident value over the end of a sector")
			var edges []int64
			for _, r := range filetest.RunsOf(t, small) {
				edges = append(edges, r.Off, r.Off+r.Len-1)
				if r.Len > 2 {
					edges = append(edges, r.Off+r.Len/2)
				}
			}
			for _, off := range edges {
				ntfsRewrite(t, vol, small, off, 1)
				places, err := small.Where(off, 1)
				require.NoError(t, err)
				now, at := disktest.ReadFile(t, vol), places[0].Off
				require.Equal(t, ^before[at], now[at])
				now[at] = before[at]
				require.Equal(t, string(before), string(now))
				contents["small"][off] ^= 0xff
				require.Equal(t, contents["small"], filetest.ReadAll(t, small))
				ntfsRewrite(t, vol, small, off, 1)
				contents["small"][off] ^= 0xff
			}
			ntfsRewrite(t, vol, small, 0, small.Size())
			contents["small"] = inverted(contents["small"])
			large := filetest.File(t, v, "large")
			ntfsRewrite(t, vol, large, 77777, 12)
			copy(contents["large"][77777:], inverted(contents["large"][77777:77789]))
			for name, b := range contents {
				require.Equal(t, b, ntfscat(t, vol, name), name)
			}
			disktest.Run(t, "ntfsfix", "-n", vol)
			requireLikeTools(t, vol)
		})
	}
}

// Files in hundreds of pieces, whose runs are in several records.
func TestNTFSInPieces(t *testing.T) {
	vol := mkntfs(t, 2<<20, "-c", "512")
	const pieces = 220
	for i := 1; i <= pieces; i++ { // each grows by a cluster behind that of the other
		ntfscp(t, vol, "a", filetest.Noise(1, 800+i*512))
		ntfscp(t, vol, "b", filetest.Noise(2, 800+i*512))
	}
	v := requireLikeTools(t, vol)
	a := v.file(t, "a")
	require.Greater(t, len(filetest.RunsOf(t, a)), pieces-10)
	require.NotEmpty(t, v.at(t, "a").list)
	ntfsRewrite(t, vol, a, 30000, 20000)
	want := filetest.Noise(1, 800+pieces*512)
	copy(want[30000:], inverted(want[30000:50000]))
	require.Equal(t, want, ntfscat(t, vol, "a"))
}

// A folder whose index has three levels: names of 240 characters leave place for eight in a block.
func TestNTFSLargeFolder(t *testing.T) {
	vol := mkntfs(t, 8<<20)
	for i := range 120 {
		ntfscp(t, vol, fmt.Sprintf("%03d%s", i*7%120, strings.Repeat("ä", 118)), []byte{byte(i)})
	}
	v := requireLikeTools(t, vol)
	for i := range 120 {
		f := filetest.File(t, v, fmt.Sprintf("%03d%s", i*7%120, strings.Repeat("Ä", 118)))
		require.Equal(t, []byte{byte(i)}, filetest.ReadAll(t, f))
	}
	_, err := v.Open("060" + strings.Repeat("a", 118))
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func TestNTFSPaths(t *testing.T) {
	vol := mkntfs(t, 8<<20)
	for _, name := range []string{"Straße", "ÄÖÜ", "ǆ", "ﬀ", "Case", "case", "Two", "tWO", "😀"} {
		ntfscp(t, vol, name, []byte(name))
	}
	v := openNTFS(t, vol)
	for path, want := range map[string]string{
		"STRAßE": "Straße", "äöü": "ÄÖÜ", "Ǆ": "ǆ", "ﬀ": "ﬀ", "Case": "Case", "case": "case", "tWO": "tWO", "😀": "😀",
		"$upcase": "$UpCase", "$EXTEND/$objid": "$Extend/$ObjId",
	} {
		f, err := v.Open(path)
		if path == "$EXTEND/$objid" {
			require.ErrorIs(t, err, ondisk.ErrUnsupported, "there, and without data")
			continue
		}
		require.NoError(t, err, path)
		require.Equal(t, want, f.Path)
		if want[0] != '$' {
			require.Equal(t, want, string(filetest.ReadAll(t, f)))
		}
	}
	for _, path := range []string{
		"", "/", "STRASSE", "FF", "x", "Case/x", "$Extend", "$Extend/", "/Case", ".", "./Case",
		"..", "$Extend/../Case", "Case\x00", "Case ", "Case\xff",
	} {
		_, err := v.Open(path)
		require.ErrorIs(t, err, fs.ErrNotExist, path)
	}
	for _, path := range []string{"x", "Case", "/", ".", "$Extend/x"} {
		_, err := v.List(path)
		require.ErrorIs(t, err, fs.ErrNotExist, path)
	}
	for _, path := range []string{"CASE", "two"} {
		_, err := v.Open(path)
		require.ErrorIs(t, err, ondisk.ErrUnsupported, "which of both is meant?")
	}
	_, err := v.Open(strings.Repeat("a/", guestfile.MaxDepth) + "a")
	require.ErrorIs(t, err, ondisk.ErrLimit)
}

// What the bytes on the disk are not the bytes of is refused, with the reason.
func TestNTFSCompressed(t *testing.T) {
	vol := mkntfs(t, 8<<20, "-C")
	text := []byte(strings.Repeat("the same again, ", 10000))
	ntfscp(t, vol, "large", text)
	ntfscp(t, vol, "small", text[:100])
	v := openNTFS(t, vol)
	_, err := v.Open("large")
	require.ErrorIs(t, err, ondisk.ErrUnsupported)
	require.ErrorContains(t, err, "compressed")
	requireLikeNTFSCat(t, vol, v, "small")
}

// ntfs-3g, and Linux, read a volume whose boot sector does not end in 0xaa55.
func TestNTFSFilesWithoutSignature(t *testing.T) {
	vol := mkntfs(t, 2<<20)
	ntfscp(t, vol, "large", filetest.Noise(1, 50000))
	m := forgeNTFS(t, vol)
	m.U16(0x1fe, 0)
	vol = m.save(t)
	requireLikeNTFSCat(t, vol, openNTFS(t, vol), "large")
}

func TestNTFSIsNotThere(t *testing.T) {
	for _, b := range [][]byte{nil, make([]byte, 511), make([]byte, 512), make([]byte, 1<<20)} {
		_, err := alone(disktest.ShortDisk(b, int64(len(b))))
		require.ErrorIs(t, err, ondisk.ErrNoMatch)
	}
}

// Volumes that Windows NT 4, XP, 2003, 7 and others made.
func TestNTFSOfTheCorpus(t *testing.T) {
	for _, tc := range []struct {
		name string
		lba  int64
	}{
		{"dftt/7-ntfs-undel.dd.xz", 0},
		{"imagemounter/test.ntfs.xz", 0},
		{"libldm/ldm-2003r2-simple-1.img.xz", 63},
		{"vmdk-rs/monolithicFlat-flat.vmdk.xz", 128},
		{"dfvfs/vsstest.qcow2.xz", 0},
		{"osv-scalibr/valid-ext-exfat-fat32-ntfs.vmdk.xz", 393216},
	} {
		t.Run(tc.name, func(t *testing.T) {
			requireLikeTools(t, filetest.RawCorpus(t, tc.name, tc.lba, 0))
		})
	}
}
