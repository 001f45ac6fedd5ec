package main

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// To start a guest takes seconds of a processor, so that tests share one where they can: one makes disks, and another
// reads the results.

// newMaking returns a guest that makes file systems, volume groups and arrays.
func newMaking() *linuxSetup {
	return &linuxSetup{
		modules: []string{
			"crc32c_generic", "ext4", "xfs", "btrfs", "dm-mod", "dm-thin-pool", "raid0", "raid1", "raid456",
		},
		programs: []string{"sh", "cp", "extlinux", "lvm", "mdadm", "mkdir", "mke2fs", "mount", "umount"},
		files:    map[string]string{},
	}
}

// TestDisksThatLinuxMakes has one guest make what only a Linux can make: volume groups, arrays, and disks that extlinux
// boots from.
func TestDisksThatLinuxMakes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	pool := func(letter string) string { return filepath.Join(dir, letter+".raw") }
	setup := newMaking()
	boots, install := extlinuxDrives(t, setup, extlinuxVolumes...)
	pools := poolScript(t, setup, pool)
	guest := setup.boot(t)
	guest.sh(t, install)
	lvs := poolLines(guest.sh(t, pools))
	guest.end(t)
	t.Run("pools", func(t *testing.T) { testPools(t, pool, lvs) })
	t.Run("extlinux boots", func(t *testing.T) { testExtlinuxBoots(t, boots) })
}

// reading is what a guest does with disks that it must not change.
type reading struct {
	linuxSetup
	script string // what is done before volumes are read
	reads  []volumeToRead
}

// newReading returns a guest that knows all file systems of the tests. NTFS is read by ntfs-3g.
func newReading() *reading {
	return &reading{linuxSetup: linuxSetup{
		modules: []string{
			"crc32c_generic", "ext4", "nls_cp437", "nls_ascii", "nls_utf8", "vfat", "exfat", "fuse", "xfs", "btrfs",
			"dm-mod", "nbd",
		},
		programs: []string{"sh", "blkid", "cat", "find", "lvm", "mkdir", "mount", "ntfs-3g", "sha256sum"},
		files:    map[string]string{},
		readOnly: "on",
	}}
}

// volumeToRead is a device of the guest and the kind that it is mounted as. An empty one lets mount find it.
type volumeToRead struct{ device, kind string }

// volumeRead is what the guest found in a volume: the kind of its file system, and lines of sha256sum, sorted.
type volumeRead struct {
	kind string
	sums []string
}

// read has all files of a volume read.
func (r *reading) read(device, kind string) { r.reads = append(r.reads, volumeToRead{device, kind}) }

// What is printed before the sums, and at the end if every file could be read.
const (
	sumsBegin = "the sums"
	sumsEnd   = "all were read"
)

// readAll returns a script that mounts all volumes beside each other, and has one program read them all. To start
// programs takes most of the time in emulation. A volume that cannot be mounted does not end the run.
func (r *reading) readAll() string {
	script := "lvm vgchange -q -a y >&2\nmkdir /tmp/v; cd /tmp/v\n" +
		`m() { mkdir $1 && mount -r $3 $2 $1 2>&1 && mounted="$mounted $2"; }` + "\n"
	for i, v := range r.reads {
		script += fmt.Sprintf("m %d %s", i, v.device)
		if v.kind != "" {
			script += " -t" + v.kind
		}
		script += "\n"
	}
	return script + "blkid -c /dev/null -s TYPE $mounted\necho " + sumsBegin + "\n" +
		"find . -type f -exec sha256sum {} + && echo " + sumsEnd + "\n"
}

// run starts the guest and returns what it found, by device. A volume that was not mounted is missing.
func (r *reading) run(t *testing.T) map[string]volumeRead {
	t.Helper()
	withLibraries(t, "ntfs-3g", r.files)
	r.files["sbin/mount.ntfs"] = r.files["bin/ntfs-3g"]
	guest := r.boot(t)
	volumes := readBlocks(guest.sh(t, r.script))
	kinds, sums, found := strings.Cut(guest.sh(t, r.readAll()), sumsBegin+"\n")
	guest.end(t)
	require.True(t, found, kinds)
	sums, found = strings.CutSuffix(strings.TrimRight(sums, "\n"), "\n"+sumsEnd)
	require.True(t, found, sums)
	t.Log(kinds) // and why others were not mounted
	for _, m := range regexp.MustCompile(`(?m)^(.+): TYPE="(.+)"`).FindAllStringSubmatch(kinds, -1) {
		volumes[m[1]] = volumeRead{kind: m[2]}
	}
	for line := range strings.SplitSeq(sums, "\n") {
		sum, path, _ := strings.Cut(line, "  ./")
		number, name, _ := strings.Cut(path, "/")
		n, err := strconv.Atoi(number)
		require.NoError(t, err, line)
		device := r.reads[n].device
		v := volumes[device]
		v.sums = append(v.sums, sum+"  ./"+name)
		volumes[device] = v
	}
	for _, v := range volumes {
		slices.Sort(v.sums)
	}
	return volumes
}

// readBlocks returns the lines of each block of the script.
func readBlocks(text string) map[string]volumeRead {
	blocks := map[string]volumeRead{}
	var lines []string
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		end, found := strings.CutPrefix(line, "end ")
		switch {
		case line == "begin":
			lines = nil
		case found:
			name, kind, _ := strings.Cut(end, " ")
			blocks[name] = volumeRead{kind, lines}
		case line != "":
			lines = append(lines, line)
		}
	}
	return blocks
}
