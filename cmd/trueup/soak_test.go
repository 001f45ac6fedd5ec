package main

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// soakDefault is the usual number of random disks.
var soakDefault = func() uint64 {
	if disktest.Exhaustive {
		return 20
	}
	return 6
}()

// soakBatch is the number of disks of TestSoak per guest.
const soakBatch = 20

// TestSoak aligns disks with random tables, contents and data in between, and verifies the results with other programs:
// partitioning tools, file system checks, and a Linux kernel that reads every file. TRUEUP_SOAK is the number of disks,
// TRUEUP_SOAK_SEED the first seed. Without them it takes a few disks, without the kernel of TestLinuxReadsTheResults.
func TestSoak(t *testing.T) {
	t.Parallel()
	first, count := soakNumber(t, "TRUEUP_SOAK_SEED", 1), soakNumber(t, "TRUEUP_SOAK", 0)
	if count == 0 {
		alignSoak(t, first, soakDefault)
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

// alignSoak aligns random disks and returns those whose results pass all tools outside the guest.
func alignSoak(t *testing.T, first, n uint64) []*soakCase {
	t.Helper()
	dir := t.TempDir()
	var cases []*soakCase
	for seed := first; seed < first+n; seed++ {
		folder := filepath.Join(dir, fmt.Sprint(seed))
		require.NoError(t, os.Mkdir(folder, 0o755))
		c := &soakCase{soakDisk: drawSoakDisk(seed), dest: filepath.Join(folder, "aligned")}
		c.format = []string{"raw", "vmdk", "qcow2", "vhdx", "vhd"}[c.rng.IntN(5)]
		c.to = soakTargets[c.rng.IntN(len(soakTargets))]
		if c.sector != sectorSize {
			// the only ones that can check it, because qemu-img does not read such a VHDX
			c.format, c.to = []string{"raw", "vhdx"}[c.rng.IntN(2)], "raw"
		}
		c.boundary = []string{"", "", "", "", "4K", "64K", "1M", "8M"}[c.rng.IntN(8)]
		for _, p := range c.parts {
			if p.kind != "extended" && c.rng.IntN(12) == 0 {
				c.only = append(c.only, p.number)
			}
		}
		cases = append(cases, c)
	}
	t.Run("aligned", func(t *testing.T) {
		for _, c := range cases {
			t.Run(fmt.Sprint(c.seed), func(t *testing.T) {
				t.Parallel()
				c.run(t)
			})
		}
	})
	// A failure does not stop the checks of the others.
	return slices.DeleteFunc(cases, func(c *soakCase) bool { return !c.sound })
}

// readSoak makes the guest read every file of every result, each mounted as the kind that was made, and returns the
// check of the result.
func readSoak(cases []*soakCase, r *reading) (check func(t *testing.T, found map[string]volumeRead)) {
	type read struct {
		c      *soakCase
		p      *soakPart
		device string
	}
	var all []read
	for _, c := range cases {
		disk := r.add(guestDisk{c.dest, qemuFormat(c.to), c.sector})
		for _, p := range c.parts {
			if p.volume == nil || p.volume.fileSystem() == "" {
				continue
			}
			device := fmt.Sprint(disk, p.number)
			if p.volume.name == "lvm" {
				device = "/dev/" + p.volume.group + "/data"
			}
			r.read(device, p.volume.fileSystem())
			all = append(all, read{c, p, device})
		}
	}
	return func(t *testing.T, found map[string]volumeRead) {
		t.Helper()
		for _, a := range all {
			require.Contains(t, found, a.device, "partition %d of\n%v", a.p.number, a.c)
			require.Equal(t, fileSums(a.p.volume.files), found[a.device].sums, "partition %d of\n%v", a.p.number, a.c)
		}
	}
}

// soakCase is a random disk, its job, and the result.
type soakCase struct {
	*soakDisk
	format, to   string // formats of source and result, for --to
	boundary     string // "": auto
	only         []int
	raw          string // the source as a raw file
	source, dest string
	plan         jsonPlan
	after        string        // the result as a raw file
	placed       map[int]int64 // where partitions start in the result, in sectors
	sound        bool          // no error was found
}

// soakTargets lists the formats of results.
var soakTargets = []string{
	"raw", "vmdk:monolithicSparse", "vmdk:streamOptimized", "vmdk:twoGbMaxExtentSparse", "vhd:dynamic", "vhdx:dynamic",
	"qcow2:v3", "qcow2:compressed",
}

// String describes the case, for the log of a failing run.
func (c *soakCase) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: gpt %v, %d sectors of %d, %s to %s, boot code %q, flags %q\n", c.seed, c.gpt, c.sectors,
		c.sector, c.format, c.to, c.bootCode, c.flags())
	for _, p := range c.parts {
		fmt.Fprintf(&b, "%3d %-8s start %d, %d sectors, type %s", p.number, p.kind, p.start, p.sectors, p.typ)
		if p.kind == "logical" {
			fmt.Fprintf(&b, ", record %d", p.record)
		}
		if p.volume != nil {
			fmt.Fprintf(&b, ", %s, hidden %d", p.volume.name, p.volume.hidden)
		}
		b.WriteString("\n")
	}
	for _, e := range c.data {
		fmt.Fprintf(&b, "    data     start %d, %d sectors\n", e.start, e.sectors)
	}
	return b.String()
}

// run makes the disk, aligns it, and checks the whole result.
func (c *soakCase) run(t *testing.T) {
	t.Helper()
	t.Logf("%v\nto repeat it: TRUEUP_SOAK=1 TRUEUP_SOAK_SEED=%d go test -count=1 -run '^TestSoak$' ./cmd/trueup", c,
		c.seed)
	dir := t.TempDir()
	c.raw = c.make(t, dir)
	made := c.wantTable(c.starts())
	require.Equal(t, made, readFdisk(t, c.raw, c.sector, c.gpt), "the disk that this test made")
	requireSoundTable(t, c.raw, c.sector, c.gpt)
	c.source = filepath.Join(dir, "source."+c.format)
	switch {
	case c.format == "raw":
		c.source = c.raw
	case c.sector != sectorSize: // no other program here writes such a VHDX
		trueupJSON[jsonHead](t, 0, append([]string{"convert", c.raw, c.source, "--to", c.format},
			c.sectorFlag("raw")...)...)
	default:
		args := []string{"convert", "-f", "raw", "-O", qemuFormat(c.format)}
		if c.format == "vhd" {
			args = append(args, "-o", "force_size=on")
		}
		disktest.Run(t, "qemu-img", append(args, c.raw, c.source)...)
	}

	// trueup reads the table that was made.
	report := trueupJSON[jsonInspect](t, c.verdict(c.starts()),
		append([]string{"inspect", c.source}, c.sectorFlag(c.format)...)...)
	require.Equal(t, c.sector, report.Table.SectorSize)
	got := map[int]soakEntry{}
	for _, p := range report.Partitions {
		e := soakEntry{
			start: p.StartLBA, sectors: p.SizeBytes / c.sector, typ: strings.TrimPrefix(p.Type, "0x"), active: p.Active,
		}
		e.typ, e.guid, e.name = strings.TrimPrefix(e.typ, "0"), strings.ToUpper(p.GUID), p.Name
		if c.gpt {
			e.typ, e.attributes = strings.ToUpper(p.Type), made[p.Number].attributes // the report has none
		}
		got[p.Number] = e
	}
	require.Equal(t, made, got)

	c.checkPlan(t)
	c.align(t)
	c.checkResult(t)
	c.checkPartitions(t)
	c.sound = true
}

func qemuFormat(format string) string {
	name, _, _ := strings.Cut(format, ":")
	if name == "vhd" {
		return "vpc"
	}
	return name
}

// sectorFlag passes the sector size if the format cannot store it.
func (c *soakCase) sectorFlag(format string) []string {
	if c.sector == sectorSize || format != "raw" {
		return nil
	}
	return []string{"--sector-size", fmt.Sprint(c.sector)}
}

// flags returns flags for plan and align.
func (c *soakCase) flags() []string { return c.flagsFor(c.format) }

func (c *soakCase) flagsFor(format string) []string {
	flags := c.sectorFlag(format)
	if c.boundary != "" {
		flags = append(flags, "--boundary", c.boundary)
	}
	for _, number := range c.only {
		flags = append(flags, "--partition", fmt.Sprint(number))
	}
	return flags
}

// verdict returns the exit code of inspect: the worst of the partitions, each by the better of its start and data.
func (c *soakCase) verdict(starts map[int]int64) int {
	code := 0
	for _, p := range c.parts {
		if p.volume == nil {
			continue
		}
		off := starts[p.number] * c.sector
		code = max(code, exitOf(off, off+c.inside(p), 64*kib))
	}
	return code
}

// exitOf returns the better exit code of the start of a partition and the start of its data, in bytes.
func exitOf(off, data, boundary int64) int {
	code := func(at int64) int {
		switch {
		case at%min(boundary, 4*kib) != 0:
			return 3
		case at%boundary != 0:
			return 2
		}
		return 0
	}
	return min(code(off), code(data))
}

// inside is the byte of a partition at which the blocks of its volume begin: the clusters of a FAT (FAT specification
// 1.03: behind reserved sectors, FATs and root directory), the extents of LVM.
func (c *soakCase) inside(p *soakPart) int64 {
	switch {
	case p.volume.name == "lvm":
		return lvmDataStart
	case !strings.HasPrefix(p.volume.name, "fat"):
		return 0
	}
	b := make([]byte, 64)
	f, err := os.Open(c.raw)
	if err == nil {
		_, err = f.ReadAt(b, p.start*c.sector)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		panic(err)
	}
	u16 := func(at int) int64 { return int64(binary.LittleEndian.Uint16(b[at:])) }
	size := u16(22)
	if size == 0 {
		size = int64(binary.LittleEndian.Uint32(b[36:]))
	}
	return u16(11)*(u16(14)+int64(b[16])*size) + 32*u16(17)
}

// stays reports whether a partition off the boundary need not move: its data are fine, or would be on a multiple of a
// lower power of two.
func (c *soakCase) stays(p *soakPart, boundary int64) bool {
	off, inside := p.start*c.sector, c.inside(p)
	power := func(n int64) int64 { // the largest that divides n, up to the boundary
		if n%boundary == 0 {
			return boundary
		}
		return n & -n
	}
	return exitOf(off, off+inside, boundary) == 0 || power(inside) < power(off+inside)
}

// checkPlan requires that the plan follows the rules, is deterministic, and is the same for a disk that stores its
// zeros. Every selected partition is aligned, and every moved one starts on the boundary.
func (c *soakCase) checkPlan(t *testing.T) {
	t.Helper()
	args := append([]string{"plan", c.source}, c.flags()...)
	c.plan = trueupJSON[jsonPlan](t, 0, args...)
	require.Equal(t, c.plan, trueupJSON[jsonPlan](t, 0, args...), "a plan depends on its image alone")
	full := c.raw + ".full"
	disktest.Run(t, "cp", "--sparse=never", c.raw, full)
	plan := trueupJSON[jsonPlan](t, 0, append([]string{"plan", full}, c.flagsFor("raw")...)...)
	require.NoError(t, os.Remove(full))
	require.Equal(t, c.plan.Moves, plan.Moves, "a plan depends on what the disk holds")
	require.Equal(t, c.plan.Patches, plan.Patches, "a plan depends on what the disk holds")
	c.placed = map[int]int64{}
	for _, p := range c.plan.Result.Partitions {
		c.placed[p.Number] = p.StartLBA
	}
	require.Len(t, c.placed, len(c.parts))
	// Moves and targets according to the rules of the README.
	must, want := int64(64*kib), int64(mib)
	switch {
	case c.boundary != "":
		must = map[string]int64{"4K": 4 * kib, "64K": 64 * kib, "1M": mib, "8M": 8 * mib}[c.boundary]
		want = must
	case c.bootCode == "chs":
		want = 64 * kib
	}
	end := int64(0)
	for _, p := range c.parts {
		if p.volume == nil {
			continue
		}
		to := c.placed[p.number]
		require.GreaterOrEqual(t, to, end, "partition %d keeps its place in the order", p.number)
		end = to + p.sectors
		named := slices.Contains(c.only, p.number)
		if named || len(c.only) == 0 && !c.stays(p, must) {
			require.Zero(t, to*c.sector%must, "partition %d is aligned", p.number)
		}
		i := slices.IndexFunc(c.plan.Moves, func(m jsonMove) bool { return m.Partition == p.number })
		require.Equal(t, to != p.start, i >= 0, "partition %d is listed if it moves", p.number)
		if i >= 0 {
			require.Equal(t, jsonMove{
				p.number, p.start * c.sector, to * c.sector, p.sectors * c.sector,
				(to - p.start) * c.sector,
			}, c.plan.Moves[i])
			kept := !named && (to-p.start)*c.sector%want == 0
			require.True(t, kept || to*c.sector%want == 0, "partition %d moves to the boundary, or keeps its distance",
				p.number)
		}
	}
	require.LessOrEqual(t, end*c.sector, c.plan.NewSizeBytes)
	if growth := c.plan.NewSizeBytes - c.plan.OldSizeBytes; growth != 0 {
		require.Zero(t, c.plan.NewSizeBytes%mib, "growth ends on a whole MiB")
		require.Less(t, growth, int64(len(c.parts))*want+mib, "no more growth than each partition needs")
	}
}

func (c *soakCase) align(t *testing.T) {
	t.Helper()
	before := hashFolder(t, filepath.Dir(c.source))
	args := append([]string{"align", c.source, c.dest, "--to", c.to}, c.flags()...)
	answer := trueupJSON[jsonAlign](t, 0, args...)
	require.True(t, answer.Written)
	require.Equal(t, c.plan.Moves, answer.Disks[0].Moves)
	require.Equal(t, c.plan.Patches, answer.Disks[0].Patches)
	require.Equal(t, before, hashFolder(t, filepath.Dir(c.source)), "the source must not change")
	args[2] = filepath.Join(t.TempDir(), filepath.Base(c.dest))
	require.Equal(t, 0, trueup(t, args...).code)
	require.Equal(t, sumsOf(t, filepath.Dir(c.dest)), sumsOf(t, filepath.Dir(args[2])), "a second run writes the same")
	c.after = filepath.Join(t.TempDir(), "after.raw")
	disktest.Run(t, "qemu-img", "convert", "-f", qemuFormat(c.to), "-O", "raw", c.dest, c.after)
	info := disktest.Stat(t, c.after)
	require.Equal(t, c.plan.NewSizeBytes, info.Size())
}

// checkResult requires the old table with the planned starts, unchanged data outside partitions, agreement of verify,
// and no further moves.
func (c *soakCase) checkResult(t *testing.T) {
	t.Helper()
	requireSoundTable(t, c.after, c.sector, c.gpt)
	got, want := readFdisk(t, c.after, c.sector, c.gpt), c.wantTable(c.placed)
	for _, p := range c.parts {
		if p.kind != "extended" {
			continue
		}
		// The extended partition covers its records.
		box := got[p.number]
		for _, q := range c.chain {
			require.Less(t, box.start, got[q.number].start)
			require.LessOrEqual(t, got[q.number].start+q.sectors, box.start+box.sectors)
		}
		e := want[p.number]
		e.sectors = box.sectors
		want[p.number] = e
	}
	require.Equal(t, want, got)

	// Data stay in place before the first partition, elsewhere between the same two partitions.
	for i, e := range c.data {
		want := readAt(t, c.raw, e.start*c.sector, e.sectors*c.sector)
		if e.behind == nil {
			require.Equal(t, want, readAt(t, c.after, e.start*c.sector, e.sectors*c.sector), "data %d", i)
			continue
		}
		from, to := (c.placed[e.behind.number]+e.behind.sectors)*c.sector, c.plan.NewSizeBytes
		for _, p := range c.parts {
			if p.start > e.start && p.kind != "extended" {
				to = c.placed[p.number] * c.sector
				break
			}
		}
		require.True(t, bytes.Contains(readAt(t, c.after, from, to-from), want), "data %d is gone: %d sectors at %d", i,
			e.sectors, e.start)
	}

	verify := append([]string{"verify", c.source, c.dest}, c.sectorFlag(c.to)...)
	require.True(t, trueupJSON[jsonVerify](t, 0, verify...).Equal)
	again := append([]string{"plan", c.dest}, c.flagsFor(c.to)...)
	answer := trueupJSON[jsonPlan](t, 0, again...)
	require.Empty(t, answer.Moves)
	require.Empty(t, answer.Patches)
	inspect := append([]string{"inspect", c.dest}, c.sectorFlag(c.to)...)
	trueupJSON[jsonInspect](t, c.verdict(c.placed), inspect...)
}

// checkPartitions requires that the content of each partition is unchanged except for the patches of the plan, and
// passes the checks of its tools.
func (c *soakCase) checkPartitions(t *testing.T) {
	t.Helper()
	for _, p := range c.parts {
		if p.volume == nil {
			continue
		}
		size, to := p.sectors*c.sector, c.placed[p.number]*c.sector
		old := extract(t, c.raw, p.start*c.sector, size)
		moved := extract(t, c.after, to, size)
		requireSoundVolume(t, p.volume, moved)

		if p.volume.bootSector {
			hidden := int64(binary.LittleEndian.Uint32(readAt(t, moved, hiddenSectorsAt, 4)))
			switch { // hidden sectors equal to the old start are updated, all others stay
			case p.volume.hidden == p.start:
				require.Equal(t, c.placed[p.number], hidden, "partition %d", p.number)
			case p.kind == "logical" && p.volume.hidden == p.start-p.record: // Windows counts from the record
				entry := readAt(t, c.after, to-hidden*c.sector+mbrEntryAt, mbrEntrySize)
				require.Equal(t, hidden, int64(binary.LittleEndian.Uint32(entry[8:])),
					"partition %d is where its record says", p.number)
				require.Equal(t, p.sectors, int64(binary.LittleEndian.Uint32(entry[12:])))
			default:
				require.Equal(t, p.volume.hidden, hidden, "partition %d", p.number)
			}
		}

		for _, patch := range c.plan.Patches {
			at := patch.OffsetBytes - to
			if at < 0 || at >= size {
				continue
			}
			require.True(t, p.volume.bootSector, "partition %d: a patch at %#x", p.number, patch.OffsetBytes)
			require.LessOrEqual(t, patch.LengthBytes, int64(4))
			was, err := hex.DecodeString(patch.Old)
			require.NoError(t, err)
			require.Equal(t, patch.New, hex.EncodeToString(readAt(t, moved, at, patch.LengthBytes)))
			disktest.WriteAt(t, moved, at, was)
		}
		disktest.Run(t, "cmp", old, moved)
		require.NoError(t, os.Remove(old))
		require.NoError(t, os.Remove(moved))
	}
}

// soakEntry is an entry of a table.
type soakEntry struct {
	start, sectors  int64
	typ, guid, name string
	active          bool
	attributes      string // the 64 bits in hexadecimal
}

// readFdisk reads a table with fdisk, which also supports sector sizes other than 512. It requests each column
// separately, since names have spaces.
func readFdisk(t testing.TB, raw string, sector int64, gpt bool) map[int]soakEntry {
	t.Helper()
	column := func(name string) map[int]string {
		// fdisk prints names in the character set of its locale.
		out := disktest.Output(t, "env", "LC_ALL=C.UTF-8", "fdisk", "-b", fmt.Sprint(sector), "-l", "-o",
			"Device,"+name, raw)
		values := map[int]string{}
		for line := range strings.Lines(out) {
			device, value, _ := strings.Cut(strings.TrimSpace(line), " ")
			number, found := strings.CutPrefix(device, raw)
			if found && !strings.HasSuffix(device, ":") {
				values[int(disktest.Number(t, number))] = strings.TrimSpace(value)
			}
		}
		return values
	}
	entries, sectors := map[int]soakEntry{}, column("Sectors")
	for number, start := range column("Start") {
		entries[number] = soakEntry{start: disktest.Number(t, start), sectors: disktest.Number(t, sectors[number])}
	}
	if gpt {
		types, guids, names, attributes := column("Type-UUID"), column("UUID"), column("Name"), column("Attrs")
		// Source: libfdisk, gpt_entry_attrs_to_string.
		words := map[string]int{"RequiredPartition": 0, "NoBlockIOProtocol": 1, "LegacyBIOSBootable": 2}
		separated := strings.NewReplacer("GUID:", " ", ",", " ")
		for number, e := range entries {
			e.typ, e.guid, e.name = types[number], guids[number], names[number]
			var bits uint64
			for word := range strings.FieldsSeq(separated.Replace(attributes[number])) {
				bit, known := words[word]
				if !known {
					bit = int(disktest.Number(t, word))
				}
				bits |= 1 << bit
			}
			e.attributes = fmt.Sprintf("%016X", bits)
			entries[number] = e
		}
		return entries
	}
	types, boot := column("Id"), column("Boot")
	for number, e := range entries {
		e.typ, e.active = types[number], boot[number] == "*"
		entries[number] = e
	}
	return entries
}

// requireSoundTable checks a table with the tools.
func requireSoundTable(t testing.TB, raw string, sector int64, gpt bool) {
	t.Helper()
	require.Contains(t, disktest.RunInput(t, "v\nq\n", "fdisk", "-b", fmt.Sprint(sector), raw), "No errors detected")
	if sector != sectorSize {
		return
	}
	require.Contains(t, disktest.Run(t, "sfdisk", "--verify", raw), "No errors detected")
	if gpt {
		require.Contains(t, disktest.Run(t, "sgdisk", "-v", raw), "No problems found")
	}
}

// requireSoundVolume runs the read-only check of the volume in the file part.
func requireSoundVolume(t testing.TB, v *soakVolume, part string) {
	t.Helper()
	switch v.name {
	case "xfs":
		disktest.Run(t, "xfs_repair", "-n", part)
	case "btrfs":
		disktest.Run(t, "btrfs", "check", part)
	case "lvm":
		lv := extract(t, part, lvmDataStart, (v.size-lvmDataStart)/lvmExtent*lvmExtent)
		disktest.Run(t, "e2fsck", "-f", "-n", lv)
	case "swap":
		require.Equal(t, "swap\n", disktest.Output(t, "blkid", "-p", "-o", "value", "-s", "TYPE", part))
	case "noise":
	case "fat12":
		fsck(t, "fat16", part)
	default:
		fsck(t, v.name, part)
	}
}
