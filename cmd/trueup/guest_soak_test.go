package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// soakDefault is how many random disks TestLinuxReadsTheResults aligns.
var soakDefault = func() uint64 {
	if disktest.Exhaustive {
		return 20
	}
	return 6
}()

// soakBatch is how many disks of TestSoak one guest gets.
const soakBatch = 20

// TestSoak aligns disks with random tables, contents and data in between, and has other programs judge the results:
// partitioning tools, the checks of the file systems, and a Linux kernel that reads every file. TRUEUP_SOAK is how
// many, TRUEUP_SOAK_SEED the first seed.
func TestSoak(t *testing.T) {
	t.Parallel()
	first, count := soakNumber(t, "TRUEUP_SOAK_SEED", 1), soakNumber(t, "TRUEUP_SOAK", 0)
	if count == 0 {
		t.Skipf("TRUEUP_SOAK has no number of disks; TestLinuxReadsTheResults has the first %d", soakDefault)
	}
	for done := uint64(0); done < count; done += soakBatch {
		from, n := first+done, min(soakBatch, count-done)
		t.Run(fmt.Sprintf("seeds %d to %d", from, from+n-1), func(t *testing.T) {
			t.Parallel()
			r := newReading()
			check := readSoak(alignSoak(t, from, n), r)
			check(t, r.run(t))
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

// alignSoak aligns random disks and returns those whose results are sound as far as tools outside of the guest see.
func alignSoak(t *testing.T, first, n uint64) []*soakCase {
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
	return slices.DeleteFunc(cases, func(c *soakCase) bool { return !c.sound })
}

// readSoak has the guest read every file of every result, each mounted as the kind that was made, and returns what
// checks that.
func readSoak(cases []*soakCase, r *reading) (check func(t *testing.T, found map[string]volumeRead)) {
	type read struct {
		c      *soakCase
		p      *soakPart
		device string
	}
	var all []read
	for _, c := range cases {
		disk := r.add(guestDisk{c.dest, qemuFormat(c.to), c.sector})
		for _, p := range c.fileSystems() {
			device := p.volume.device(disk, p.number)
			r.read(device, p.volume.fileSystem())
			all = append(all, read{c, p, device})
		}
	}
	return func(t *testing.T, found map[string]volumeRead) {
		t.Helper()
		for _, a := range all {
			require.Contains(t, found, a.device, "partition %d of\n%v", a.p.number, a.c)
			require.Equal(t, a.p.volume.fileSums(), found[a.device].sums, "partition %d of\n%v", a.p.number, a.c)
		}
	}
}

// fileSystems are the partitions that can be mounted.
func (d *soakDisk) fileSystems() []*soakPart {
	return slices.DeleteFunc(slices.Clone(d.parts), func(p *soakPart) bool {
		return p.volume == nil ||
			p.volume.fileSystem() == ""
	})
}

// device is where the file system is in the guest.
func (v *soakVolume) device(disk string, number int) string {
	if v.name == "lvm" {
		return "/dev/" + v.group + "/data"
	}
	return fmt.Sprint(disk, number)
}
