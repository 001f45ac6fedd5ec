package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// gptMiB is the size of the disks below.
const gptMiB = 40

// gptDisk has sgdisk make a disk with misaligned partitions: numbers with a hole, out of disk order, with attributes
// and names.
func gptDisk(t testing.TB, extra ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "gpt.raw")
	disktest.Run(t, "truncate", "-s", fmt.Sprintf("%dM", gptMiB), path)
	args := append(slices.Clone(extra), "-a", "1", "-n", "2:20000:40000", "-n", "1:100:10000", "-n", "5:10001:15000",
		"-n", "7:50000:0", "-t", "2:0700", "-t", "5:ef00", "-c", "1:first ☃", "-c", "7:to the end", "-A", "1:set:2",
		"-A", "7:set:63", path)
	disktest.Run(t, "sgdisk", args...)
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	require.NoError(t, err)
	defer file.Close()
	for _, lba := range []int64{100, 10001, 20000, 50000} {
		_, err = file.WriteAt(noise(fmt.Sprintf("partition at %d", lba), 64<<10), lba*sectorSize)
		require.NoError(t, err)
	}
	return path
}

// spoil changes bytes of an image at an offset; a negative one counts from the end.
func spoil(t testing.TB, path string, off int64, b []byte) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	require.NoError(t, err)
	defer file.Close()
	if off < 0 {
		st, err := file.Stat()
		require.NoError(t, err)
		off += st.Size()
	}
	_, err = file.WriteAt(b, off)
	require.NoError(t, err)
}

// damage is what is wrong with a table that still has one good copy: other bytes at an offset, and a disk that was
// enlarged.
type damage struct {
	off   int64 // from the end when it is negative
	bytes []byte
	grow  int64
}

func (d damage) spoil(t testing.TB, path string) {
	t.Helper()
	spoil(t, path, d.off, d.bytes)
	st := disktest.Stat(t, path)
	require.NoError(t, os.Truncate(path, st.Size()+d.grow))
}

var gptDamage = map[string]damage{
	"nothing":                    {},
	"primary header zeroed":      {off: 512, bytes: make([]byte, 512)},
	"primary entries zeroed":     {off: 1024, bytes: make([]byte, 32*512)},
	"one bit of a primary entry": {off: 1024 + 40, bytes: []byte{0xff}},
	"backup header zeroed":       {off: -512, bytes: make([]byte, 512)},
	"backup entries zeroed":      {off: -33 * 512, bytes: make([]byte, 32*512)},
	"no protective MBR":          {off: 446, bytes: make([]byte, 66)},
	"first KiB zeroed":           {off: 0, bytes: make([]byte, 1024)},
	"enlarged, no backup":        {off: -33 * 512, bytes: make([]byte, 33*512), grow: 3 << 20},
	"enlarged, backup damaged":   {off: -512, bytes: []byte("damaged!"), grow: 3 << 20},
	"enlarged disk":              {grow: 3 << 20},
	"enlarged by one sector":     {grow: 512},
}

// otherArrays are the cases in which the size and the place of the array matter.
var otherArrays = map[string]bool{
	"nothing": true, "primary entries zeroed": true, "backup header zeroed": true,
	"enlarged disk": true,
}

// sgdiskSays is all that sgdisk tells of the partitions, without their places.
func sgdiskSays(t testing.TB, path string) string {
	t.Helper()
	var out []string
	for line := range strings.Lines(disktest.Run(t, "sgdisk", "-i", "1", "-i", "2", "-i", "5", "-i", "7", path)) {
		if !strings.Contains(line, "sector: ") {
			out = append(out, line)
		}
	}
	return strings.Join(out, "")
}

// asked are the cases in which entries can be rewritten only after a copy was mended, or what belongs beside it. Where
// the primary array lies behind a hole, zeros in the hole are no damage.
func (d damage) asked(array string) bool {
	return d.bytes != nil && (array != "array behind a hole" || d.off != 1024)
}

// TestDamagedGPTs aligns disks whose table has one good copy. sgdisk must find both copies right and all but the places
// as it was on the disk before the damage. The sizes of the array are those that sgdisk can make.
func TestDamagedGPTs(t *testing.T) {
	t.Parallel()
	for array, extra := range map[string][]string{
		"128 entries": nil, "256 entries": {"-S", "256"},
		"array behind a hole": {"-j", "40"},
	} {
		sound := gptDisk(t, extra...)
		want := sgdiskSays(t, sound)
		for name, damaged := range gptDamage {
			if extra != nil && !otherArrays[name] || !disktest.Share(array+name) {
				continue
			}
			t.Run(array+", "+name, func(t *testing.T) {
				source := filepath.Join(t.TempDir(), "gpt.raw")
				disktest.Run(t, "cp", "--sparse=always", sound, source)
				damaged.spoil(t, source)
				dest := filepath.Join(t.TempDir(), "aligned.raw")
				args := []string{"align", source, dest}
				if damaged.asked(array) {
					if name != "no protective MBR" { // which a move can leave as it is
						require.Equal(t, 4, trueup(t, args...).code)
						require.NoFileExists(t, dest)
					}
					args = append(args, "--repair-table")
				}
				answer := trueupJSON[jsonAlign](t, 0, args...)
				require.Equal(t, 4, answer.Moved)
				require.Contains(t, disktest.Run(t, "sgdisk", "-v", dest), "No problems found")
				require.Equal(t, want, sgdiskSays(t, dest))
				require.Equal(t, 0, trueup(t, "verify", source, dest).code)

				// The protective entry covers the whole disk. Spec: UEFI 2.10, 5.2.3.
				was, is := disktest.ReadFile(t, source), disktest.ReadFile(t, dest)
				require.Equal(t, []byte{0x55, 0xaa}, is[510:512])
				require.Equal(t, byte(0xee), is[446+4])
				require.Equal(t, uint32(1), binary.LittleEndian.Uint32(is[446+8:]))
				require.Equal(t, uint32(len(is)/512-1), binary.LittleEndian.Uint32(is[446+12:]))
				for _, m := range answer.Moves {
					require.Zero(t, m.ToBytes%(1<<20))
					require.Equal(t, was[m.FromBytes:m.FromBytes+m.SizeBytes], is[m.ToBytes:m.ToBytes+m.SizeBytes],
						"partition %d", m.Partition)
				}
				again := trueupJSON[jsonPlan](t, 0, "plan", dest)
				require.Empty(t, again.Patches)
			})
		}
	}
}
