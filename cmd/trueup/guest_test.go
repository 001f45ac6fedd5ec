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
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/hostile"
)

// Starting a guest takes seconds of processor time, so tests share one if possible: one makes disks, and another reads
// the results.

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

// TestDisksThatLinuxMakes has a guest make disks that only Linux can make: volume groups, arrays, and disks with
// extlinux.
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

	// The output of lvs: name, size, type and places, with @a for the disk a.
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
			// The kernel of the guest printed the start of the partition.
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

// reading is a script of a guest for disks that it must not change.
type reading struct {
	linuxSetup
	script string // commands before volumes are read
	said   string // output of the script
	reads  []volumeToRead
}

// newReading returns a guest with drivers for all file systems of the tests. It reads NTFS with ntfs-3g.
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

// volumeToRead is a device of the guest and the kind to mount it as. If that is empty, mount detects it.
type volumeToRead struct{ device, kind string }

// volumeRead is the content of a volume in the guest: the kind of its file system, and sorted lines of sha256sum.
type volumeRead struct {
	kind string
	sums []string
}

// read requests that the guest reads all files of a volume.
func (r *reading) read(device, kind string) { r.reads = append(r.reads, volumeToRead{device, kind}) }

// Markers before the digests, and at the end if every file could be read.
const (
	sumsBegin = "the sums"
	sumsEnd   = "all were read"
)

// run starts the guest and returns the content of each volume by device. A volume that could not be mounted is missing.
func (r *reading) run(t *testing.T) map[string]volumeRead {
	t.Helper()
	// All volumes are mounted together, and one program reads them all, because starting programs takes most of the
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
	t.Log(kinds) // and the reasons why others were not mounted
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

// readDisk is a disk with volumes for a guest to read.
type readDisk struct {
	guestDisk
	volumes []madeVolume
}

// TestLinuxReadsTheResults mounts every volume of made and random disks and of their results in a real Linux kernel,
// and reads served disks.
func TestLinuxReadsTheResults(t *testing.T) {
	t.Parallel()
	disktest.Tool(t, "qemu-system-x86_64")
	r := newReading()

	// The kernel's NBD client reads a disk served over a network.
	source, aligned := sampleDisk(t), filepath.Join(t.TempDir(), "aligned.raw")
	require.Equal(t, 0, trueup(t, "align", "--to", "raw", source, aligned).code)
	at, err := url.Parse(serving(t, "--listen", "127.0.0.1:0", source).URI)
	require.NoError(t, err)
	const here, served = "10.0.2.2", "/dev/nbd0p1" // the first QEMU's network leads to this machine
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

// readMade requests that the guest reads every file of madeDisks, of disks with sectors of 4096 bytes, and of their
// aligned copies, each mounted as the type that trueup reports. check compares the files of a source with its copy.
func readMade(t *testing.T, r *reading) (check func(t *testing.T, found map[string]volumeRead)) {
	t.Helper()
	var disks []readDisk
	for i, d := range madeDisks {
		raw := d.make(t, t.TempDir())
		// A mount takes seconds in emulation, so every disk and every format is tested, but not every pair.
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
				if d.sector == sectorSize || v.kind == "ext4" { // fourKDisk puts files only there
					require.Subset(t, read.sums, fileSums(v.files()), "%s, %s", d.path, v.label)
				}
				// All files of the volume are compared, not only those of the test. Each result follows its source.
				if i%2 == 1 {
					require.Equal(t, found[device(i-1, n)].sums, read.sums, "%s, %s", d.path, v.label)
				}
			}
		}
	}
}

// poolDisks are made by Linux from disks of 32 MiB in a guest: a and b become a volume group, the others members of
// arrays, and h a physical volume whose extents are aligned when it becomes a partition at LBA 63: 63 and 65 sectors
// are 64 KiB.
const poolDisks = "abcdefgh"

// poolCommands is a shell script for the guest, with @a for the disk a.
var poolCommands = []string{
	"lvm pvcreate --dataalignment 64k --dataalignmentoffset 33280b @h",
	"lvm pvcreate --metadatasize 128k --dataalignment 64k @a",
	"lvm pvcreate @b",
	"lvm vgcreate -s 1M vg0 @a @b",
	"lvm lvcreate -y -n root -L 8M vg0 @a",
	"lvm lvcreate -y -n swap -L 4M vg0 @a",
	"lvm lvcreate -y -n wide -i 2 -L 4M vg0",
	"lvm lvcreate -y --type thin-pool -n pool -L 2M vg0",
	"lvm lvextend -L +1M vg0/root",
	"echo disk @a a; echo disk @b b",
	"lvm lvs --noheadings --units b --nosuffix -a -o lv_name,lv_size,seg_type,seg_pe_ranges vg0",
	"lvm vgchange -an vg0",
	"mdadm --create /dev/md/zero --metadata=0.90 --level=1 --raid-devices=2 --run @c missing",
	"mdadm --create /dev/md/ten --name=ten --metadata=1.0 --level=1 --raid-devices=2 --run @d missing",
	"mdadm --create /dev/md/eleven --name=eleven --metadata=1.1 --level=5 --chunk=64 --raid-devices=3 --run @e " +
		"missing @f",
	"mdadm --create /dev/md/twelve --name=twelve --metadata=1.2 --level=0 --force --data-offset=136K " +
		"--raid-devices=1 --run @g",
	"mke2fs -q -L inside /dev/md/ten",
	"mdadm --stop --scan",
}

// poolReport is the part of an inspection that these tests examine.
type poolReport struct {
	Volume     *poolVolume `json:"volume"`
	Partitions []struct {
		Volume poolVolume `json:"volume"`
	} `json:"partitions"`
	Findings []jsonFinding `json:"findings"`
}

type poolVolume struct {
	Kind      string            `json:"kind"`
	Label     string            `json:"label"`
	UUID      string            `json:"uuid"`
	DataStart int64             `json:"data_offset_bytes"`
	Details   map[string]string `json:"details"`
	Parts     []struct {
		Name  string `json:"name"`
		Kind  string `json:"kind"`
		Start *int64 `json:"start_bytes"`
		Size  int64  `json:"size_bytes"`
	} `json:"parts"`
}

func inspectPool(t *testing.T, path string, flags ...string) poolReport {
	t.Helper()
	return trueupJSON[poolReport](t, 0, append([]string{"inspect", path}, flags...)...)
}

// testPools compares the report of inspect with volumes made by a real Linux with LVM and mdadm. lvs is the output of
// lvs.
func testPools(t *testing.T, disk func(letter string) string, lvs []string) {
	t.Helper()
	require.GreaterOrEqual(t, len(lvs), 8)
	t.Run("LVM", func(t *testing.T) {
		for i, letter := range []string{"a", "b"} {
			requirePV(t, disk(letter), letter, []string{"pv0", "pv1"}[i], lvs)
		}
		report := inspectPool(t, disk("a"), "--boundary", "1M")
		require.Equal(t, int64(192<<10), report.Volume.DataStart, "what old systems made")
		require.Equal(t, "nested-misaligned", report.Findings[0].Code)
		require.Contains(t, report.Findings[0].Text, "192 KiB past a multiple of 1 MiB")
		require.Empty(t, inspectPool(t, disk("a")).Findings, "192 KiB are on 64 KiB")
		require.Contains(t, trueup(t, "inspect", disk("a")).stdout, "Inside the disk: LVM2 \"vg0\"")
	})
	t.Run("md", func(t *testing.T) {
		for letter, version := range map[string]string{"c": "0.90", "d": "1.0", "e": "1.1", "f": "1.1", "g": "1.2"} {
			v := inspectPool(t, disk(letter)).Volume
			says := disktest.Output(t, "mdadm", "--examine", disk(letter))
			export := disktest.Output(t, "mdadm", "--examine", "--export", disk(letter))
			require.Contains(t, says, "- correct")
			require.Equal(t, "linux_raid_member", v.Kind)
			require.Equal(t, version, v.Details["metadata"])
			require.Contains(t, export, "MD_LEVEL="+v.Details["level"]+"\n")
			require.Contains(t, export, "MD_DEVICES="+v.Details["devices"]+"\n")
			require.Contains(t, export, "MD_UUID="+v.UUID+"\n")
			if v.Label != "" {
				require.Contains(t, says, "Name : "+v.Label+"\n")
			}
			if v.DataStart > 0 {
				require.Contains(t, says, fmt.Sprintf("Data Offset : %d sectors\n", v.DataStart/512))
			} else {
				require.NotContains(t, strings.ReplaceAll(says, "Data Offset : 0 sectors", ""), "Data Offset")
			}
		}
		require.Equal(t, `ext2 "inside"`, inspectPool(t, disk("d")).Volume.Details["content"])
		require.Equal(t, "nested-misaligned", inspectPool(t, disk("g")).Findings[0].Code, "136 KiB")
	})
	t.Run("a partition that is off a boundary so that its data are on one", func(t *testing.T) {
		pv := disktest.ReadFile(t, disk("h"))
		report := inspectPool(t, poolImage(0x8e, int64(len(pv)), func(v forge.Bytes) { v.Put(0, pv) })(t,
			t.TempDir()))
		require.Zero(t, (63*512+report.Partitions[0].Volume.DataStart)%(64<<10))
		require.True(t, slices.ContainsFunc(report.Findings, func(f jsonFinding) bool {
			return hostile.Row{Says: []string{
				"starts at LBA 63 (byte 32256), 3584 bytes past a 4 KiB boundary, but the first extent of LVM2 is " +
					"at byte", ", a multiple of 64 KiB", "would misalign the data",
			}}.Found(f.Text)
		}))
	})
}

// requirePV compares a physical volume with the header that pvck reads, and its logical volumes with the output of lvs.
func requirePV(t *testing.T, path, letter, name string, lvs []string) {
	t.Helper()
	v := inspectPool(t, path).Volume
	head := disktest.Run(t, "pvck", "--dump", "headers", path)
	require.Equal(t, "lvm2_member", v.Kind)
	require.Equal(t, "vg0", v.Label)
	require.Equal(t, fmt.Sprintf("2 (this is %q)", name), v.Details["physical volumes"])
	require.Contains(t, head, "pv_header.pv_uuid "+strings.ReplaceAll(v.UUID, "-", "")+"\n")
	require.Contains(t, head, fmt.Sprintf("disk_locn[0].offset %d\n", v.DataStart))
	require.Contains(t, head, "vgname vg0 seqno "+v.Details["revision"]+"\n")
	seen := map[string]bool{}
	for _, p := range v.Parts {
		seen[p.Name] = true
		place := "@" + letter + ":"
		if p.Start != nil {
			const extent = 1 << 20
			first := (*p.Start - v.DataStart) / extent
			require.Zero(t, (*p.Start-v.DataStart)%extent)
			place += fmt.Sprintf("%d-%d", first, first+p.Size/extent-1)
			require.Contains(t, lvs, fmt.Sprintf("%s %d %s %s", p.Name, p.Size, p.Kind, place))
			continue
		}
		var segments []string
		for _, line := range lvs {
			if strings.HasPrefix(line, p.Name+" ") {
				segments = append(segments, line)
				require.Equal(t, strconv.FormatInt(p.Size, 10), strings.Fields(line)[1])
			}
		}
		require.False(t, len(segments) == 1 && strings.Contains(segments[0], " linear "+place),
			"%s is in one piece here", segments)
	}
	for _, line := range lvs {
		require.True(t, seen[strings.Fields(line)[0]], line)
	}
}
