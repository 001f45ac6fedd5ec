package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// soakDefault is how many random disks a plain run aligns. TRUEUP_SOAK replaces it, TRUEUP_SOAK_SEED the first seed.
const soakDefault = 20

// soakBatch is how many disks one appliance gets. It has a letter for each of 26.
const soakBatch = 20

// TestSoak aligns disks with random tables, contents and data in between, and has other programs judge the results: partitioning
// tools, the checks of the file systems, and a Linux kernel that reads every file.
func TestSoak(t *testing.T) {
	t.Parallel()
	first, count := soakNumber(t, "TRUEUP_SOAK_SEED", 1), soakNumber(t, "TRUEUP_SOAK", soakDefault)
	for done := uint64(0); done < count; done += soakBatch {
		from, n := first+done, min(soakBatch, count-done)
		t.Run(fmt.Sprintf("seeds %d to %d", from, from+n-1), func(t *testing.T) {
			t.Parallel()
			soakSeeds(t, from, n)
		})
	}
}

func soakNumber(t *testing.T, name string, usual uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return usual
	}
	n, err := strconv.ParseUint(text, 10, 63)
	require.NoError(t, err, name)
	return n
}

func soakSeeds(t *testing.T, first, n uint64) {
	t.Helper()
	dir := t.TempDir()
	var cases []*soakCase
	for seed := first; seed < first+n; seed++ {
		folder := filepath.Join(dir, fmt.Sprint(seed))
		require.NoError(t, os.Mkdir(folder, 0o755))
		cases = append(cases, drawCase(seed, folder))
	}
	t.Run("aligned", func(t *testing.T) {
		for _, c := range cases {
			t.Run(fmt.Sprint(c.seed), func(t *testing.T) {
				t.Parallel()
				c.run(t)
			})
		}
	})
	// What failed is no reason to look at the others less closely.
	cases = slices.DeleteFunc(cases, func(c *soakCase) bool { return !c.sound })
	t.Run("read by a kernel", func(t *testing.T) { soakGuest(t, cases) })
}

// soakGuest has the appliance read every file of every result, each mounted as the kind that was made. Its list of file systems
// would take longer than all the mounts, and does not come to an end on extended partitions of type 0x85.
func soakGuest(t *testing.T, cases []*soakCase) {
	t.Helper()
	requireKernel(t)
	sums := t.TempDir()
	var args []string
	script := "run\n"
	for i, c := range cases {
		args = append(args, fmt.Sprintf("--blocksize=%d", c.sector), "--format="+qemuFormat(c.to), "-a", c.dest)
		for _, p := range c.fileSystems() {
			out := filepath.Join(sums, deviceName(i, p.number))
			script += fmt.Sprintf("-mount-vfs ro %s %s /\n-checksums-out sha256 / %q\n-umount /\n",
				p.volume.fileSystem(), p.volume.device(i, p.number), out)
		}
	}
	runGuestfish(t, args, script)
	for i, c := range cases {
		for _, p := range c.fileSystems() {
			path := filepath.Join(sums, deviceName(i, p.number))
			require.FileExists(t, path, "partition %d of\n%v", p.number, c)
			require.Equal(t, p.volume.fileSums(), readSums(t, path), "partition %d of\n%v", p.number, c)
		}
	}
}

// fileSystems are the partitions that can be mounted.
func (d *soakDisk) fileSystems() []*soakPart {
	return slices.DeleteFunc(slices.Clone(d.parts), func(p *soakPart) bool { return p.volume == nil || p.volume.fileSystem() == "" })
}

// device is where the file system is in the appliance.
func (v *soakVolume) device(i, number int) string {
	if v.name == "lvm" {
		return "/dev/" + v.group + "/data"
	}
	return "/dev/" + deviceName(i, number)
}
