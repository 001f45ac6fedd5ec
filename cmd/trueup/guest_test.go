package main

import (
	"fmt"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
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
	disktest.Tool(t, "qemu-system-x86_64")
	dir := t.TempDir()
	pool := func(letter string) string { return filepath.Join(dir, letter+".raw") }
	setup := newMaking()
	disks, install := extlinuxDrives(t, setup, extlinuxVolumes...)
	var names []string
	for letter := range strings.SplitSeq(poolDisks, "") {
		disktest.MakeBlank(t, pool(letter), 32<<20)
		names = append(names, "@"+letter, setup.add(guestDisk{pool(letter), "raw", sectorSize}))
	}
	guest := setup.boot(t)
	guest.sh(t, install)
	said := guest.sh(t, "set -e\n"+strings.NewReplacer(names...).Replace(strings.Join(poolCommands, "\n")))
	guest.end(t)

	// The lines of lvs: name, size, type and places, with @a for the disk a.
	names = nil
	var lvs []string
	for line := range strings.Lines(said) {
		f := strings.Fields(line)
		switch {
		case len(f) == 3 && f[0] == "disk":
			names = append(names, f[1]+":", "@"+f[2]+":")
		case len(f) > 3 && strings.Contains(f[3], ":"):
			lvs = append(lvs, strings.NewReplacer(names...).Replace(strings.Join(f, " ")))
		}
	}
	t.Run("pools", func(t *testing.T) { testPools(t, pool, lvs) })
	t.Run("extlinux boots", func(t *testing.T) {
		for _, v := range extlinuxVolumes {
			// The kernel of the guest said where the partition starts.
			at := staleHidden.at
			if v.kind == "xfs" {
				at = staleXFSHidden.at
			}
			require.Equal(t, staleHidden.bytes, readAt(t, disks[v.kind], at(window{start: trackSectors}), 4), v.kind)
		}
		for _, c := range extlinuxCases {
			t.Run(c.name, func(t *testing.T) {
				source := filepath.Join(t.TempDir(), "disk.raw")
				disktest.Run(t, "cp", "--sparse=always", disks[c.kind], source)
				disktest.WriteAt(t, source, 0, c.code(t))
				m := movedBoot{
					plan: "extlinux on " + c.name, starts: []int64{c.starts}, quick: true, boot: on(extlinuxHeads),
					shows: booted,
				}
				c.stale.require(t, m.align(t, source), c.fails, m.boot)
			})
		}
	})
}

// reading is what a guest does with disks that it must not change.
type reading struct {
	linuxSetup
	script string // what is done before volumes are read
	said   string // by the script
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

// run starts the guest and returns the content of each volume by device. An unmounted volume is missing.
func (r *reading) run(t *testing.T) map[string]volumeRead {
	t.Helper()
	// All volumes are mounted beside each other, and one program reads them all: to start programs takes most of the
	// time in emulation. A volume that cannot be mounted does not end the run.
	script := "lvm vgchange -q -a y >&2\nmkdir /tmp/v; cd /tmp/v\n" +
		`m() { mkdir $1 && mount -r $3 $2 $1 2>&1 && mounted="$mounted $2"; }` + "\n"
	for i, v := range r.reads {
		script += fmt.Sprintf("m %d %s", i, v.device)
		if v.kind != "" {
			script += " -t" + v.kind
		}
		script += "\n"
	}
	script += "blkid -c /dev/null -s TYPE $mounted\necho " + sumsBegin + "\n" +
		"find . -type f -exec sha256sum {} + && echo " + sumsEnd + "\n"

	withLibraries(t, "ntfs-3g", r.files)
	r.files["sbin/mount.ntfs"] = r.files["bin/ntfs-3g"]
	guest := r.boot(t)
	volumes := map[string]volumeRead{}
	r.said = guest.sh(t, r.script)
	kinds, sums, found := strings.Cut(guest.sh(t, script), sumsBegin+"\n")
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

// readDisk is a disk whose volumes a guest reads.
type readDisk struct {
	guestDisk
	volumes []madeVolume
}

// TestLinuxReadsTheResults has a real Linux kernel mount every volume of made and of random disks and of their results,
// and read served disks.
func TestLinuxReadsTheResults(t *testing.T) {
	t.Parallel()
	disktest.Tool(t, "qemu-system-x86_64")
	r := newReading()

	// The NBD client of the kernel reads a disk that is served over a network.
	source, aligned := sampleDisk(t), filepath.Join(t.TempDir(), "aligned.raw")
	require.Equal(t, 0, trueup(t, "align", "--to", "raw", source, aligned).code)
	at, err := url.Parse(serving(t, "--listen", "127.0.0.1:0", source).URI)
	require.NoError(t, err)
	const here, served = "10.0.2.2", "/dev/nbd0p1" // by the first QEMU's network leads to this machine
	r.programs = append(r.programs, "nbd-client")
	r.script += "nbd-client " + here + " " + at.Port() + " /dev/nbd0 >&2 && " +
		"sha256sum < /dev/nbd0 && cd /sys/block/nbd0 && echo $(cat ro size nbd0p*/start)\n"
	r.read(served, "")

	checkSoak := readSoak(alignSoak(t, 1, soakDefault), r)
	checkMade := readMade(t, r)
	found := r.run(t)
	t.Run("served disks", func(t *testing.T) {
		const sectors = 8 << 20 / sectorSize
		require.Equal(t, fmt.Sprintf("%s  -\n1 %d 2048\n", sha256Of(t, aligned), sectors), r.said)
		require.Equal(t, "ntfs", found[served].kind)
		require.NotEmpty(t, found[served].sums)
	})
	t.Run("random disks", func(t *testing.T) { checkSoak(t, found) })
	t.Run("made disks", func(t *testing.T) { checkMade(t, found) })
}

// readMade has the guest read every file of madeDisks and of disks with sectors of 4096 bytes, and of their aligned
// copies, each mounted as the type that trueup reports. check compares the files of one source with its copy.
func readMade(t *testing.T, r *reading) (check func(t *testing.T, found map[string]volumeRead)) {
	t.Helper()
	var disks []readDisk
	for i, d := range madeDisks {
		raw := d.make(t, t.TempDir())
		// A mount takes seconds in emulation: every disk and every format comes up, not every pair of them.
		f := diskFormats[i%len(diskFormats)]
		source := f.convert(t, raw, t.TempDir(), "disk", d.adapter)
		dest := filepath.Join(t.TempDir(), "aligned"+f.ext)
		args := []string{"align", source, dest}
		if f == formatFlat { // Linux reads a view, which has the bytes of the copy
			dest = filepath.Join(filepath.Dir(source), viewName)
			args = []string{"view", source, dest}
		}
		r := trueup(t, args...)
		require.Equal(t, 0, r.code, r.stderr)
		disks = append(disks,
			readDisk{guestDisk{raw, formatRaw.container, sectorSize}, d.volumes},
			readDisk{guestDisk{dest, f.container, sectorSize}, d.volumes})
	}
	for _, label := range []string{"dos", "gpt"} {
		raw, dest := fourKDisk(t, label), filepath.Join(t.TempDir(), label+".raw")
		r := trueup(t, "align", "--sector-size", "4096", raw, dest)
		require.Equal(t, 0, r.code, r.stderr)
		for _, path := range []string{raw, dest} {
			disks = append(disks, readDisk{guestDisk{path, "raw", fourK}, fourKVolumes})
		}
	}

	var names []string
	device := func(i, n int) string { return fmt.Sprint(names[i], n+1) }
	for i, d := range disks {
		names = append(names, r.add(d.guestDisk))
		for n := range d.volumes {
			r.read(device(i, n), "")
		}
	}
	return func(t *testing.T, found map[string]volumeRead) {
		t.Helper()
		for i, d := range disks {
			for n, v := range d.volumes {
				read := found[device(i, n)]
				kind := v.kind
				if strings.HasPrefix(kind, "fat") {
					kind = "vfat"
				}
				require.Equal(t, kind, read.kind, "%s, %s", d.path, v.label)
				if d.sector == sectorSize || v.kind == "ext4" { // fourKDisk puts files into no other
					require.Subset(t, read.sums, fileSums(v.files()), "%s, %s", d.path, v.label)
				}
				// All files of the volume are compared, not only the files of the test. Each result follows its source.
				if i%2 == 1 {
					require.Equal(t, found[device(i-1, n)].sums, read.sums, "%s, %s", d.path, v.label)
				}
			}
		}
	}
}
