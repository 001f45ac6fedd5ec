package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// soakCase is a random disk, the job that it is given to, and what came of it.
type soakCase struct {
	*soakDisk
	format, to   string // of source and result, as trueup's --to calls them
	boundary     string // "": auto
	only         []int
	raw          string // the source as a raw file
	source, dest string
	plan         jsonPlan
	after        string        // the result as a raw file
	placed       map[int]int64 // where partitions start in the result, in sectors
	sound        bool          // nothing was found that is wrong
}

// soakTargets are the formats of results.
var soakTargets = []string{
	"raw", "vmdk:monolithicSparse", "vmdk:streamOptimized", "vmdk:twoGbMaxExtentSparse", "vhd:dynamic", "vhdx:dynamic",
	"qcow2:v3", "qcow2:compressed",
}

func drawCase(seed uint64, dir string) *soakCase {
	c := &soakCase{soakDisk: drawSoakDisk(seed)}
	c.format = []string{"raw", "vmdk", "qcow2", "vhdx", "vhd"}[c.rng.IntN(5)]
	c.to = soakTargets[c.rng.IntN(len(soakTargets))]
	if c.sector != sectorSize {
		// the only ones that can say so, and qemu-img reads no such VHDX
		c.format, c.to = []string{"raw", "vhdx"}[c.rng.IntN(2)], "raw"
	}
	c.boundary = []string{"", "", "", "", "4K", "64K", "1M", "8M"}[c.rng.IntN(8)]
	for _, p := range c.parts {
		if p.kind != "extended" && c.rng.IntN(12) == 0 {
			c.only = append(c.only, p.number)
		}
	}
	c.dest = filepath.Join(dir, "aligned")
	return c
}

// String says what the case is about, for the log of a run that fails.
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

// run makes the disk, aligns it, and has everything of it judged.
func (c *soakCase) run(t *testing.T) {
	t.Helper()
	t.Logf("%v\nto repeat it: TRUEUP_SOAK=1 TRUEUP_SOAK_SEED=%d go test -count=1 -run '^TestSoak$' ./cmd/trueup", c,
		c.seed)
	c.makeSource(t)
	c.checkInspect(t)
	c.checkPlan(t)
	c.checkPlanOfFullFile(t)
	c.align(t)
	c.checkResultTable(t)
	c.checkPartitions(t)
	c.checkData(t)
	c.checkAgain(t)
	c.sound = true
}

func qemuFormat(format string) string {
	name, _, _ := strings.Cut(format, ":")
	if name == "vhd" {
		return "vpc"
	}
	return name
}

func (c *soakCase) makeSource(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	c.raw = c.make(t, dir)
	require.Equal(t, c.wantTable(c.starts()), readFdisk(t, c.raw, c.sector, c.gpt), "the disk that this test made")
	requireSoundTable(t, c.raw, c.sector, c.gpt)
	if c.source = c.raw; c.format == "raw" {
		return
	}
	c.source = filepath.Join(dir, "source."+c.format)
	if c.sector != sectorSize { // nothing else here writes such a VHDX
		trueupJSON[jsonHead](t, 0, append([]string{"convert", c.raw, c.source, "--to", c.format},
			c.sectorFlag("raw")...)...)
		return
	}
	args := []string{"convert", "-f", "raw", "-O", qemuFormat(c.format)}
	if c.format == "vhd" {
		args = append(args, "-o", "force_size=on")
	}
	disktest.Run(t, "qemu-img", append(args, c.raw, c.source)...)
}

// sectorFlag tells the sector size where a format cannot.
func (c *soakCase) sectorFlag(format string) []string {
	if c.sector == sectorSize || format != "raw" {
		return nil
	}
	return []string{"--sector-size", fmt.Sprint(c.sector)}
}

// flags are those of plan and align.
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

// goal is what has to move, and where to: the rules of the README.
func (c *soakCase) goal() (must, want int64) {
	if c.boundary != "" {
		must = map[string]int64{"4K": 4 * kib, "64K": 64 * kib, "1M": mib, "8M": 8 * mib}[c.boundary]
		return must, must
	}
	if c.bootCode == "chs" {
		return 64 * kib, 64 * kib
	}
	return 64 * kib, mib
}

// checkInspect holds trueup's own table against the one that was made.
func (c *soakCase) checkInspect(t *testing.T) {
	t.Helper()
	args := append([]string{"inspect", c.source}, c.sectorFlag(c.format)...)
	report := trueupJSON[jsonInspect](t, c.verdict(c.starts()), args...)
	require.Equal(t, c.sector, report.Table.SectorSize)
	got := map[int]soakEntry{}
	for _, p := range report.Partitions {
		e := soakEntry{
			start: p.StartLBA, sectors: p.SizeBytes / c.sector, typ: strings.TrimPrefix(p.Type, "0x"), active: p.Active,
		}
		e.typ, e.guid, e.name = strings.TrimPrefix(e.typ, "0"), strings.ToUpper(p.GUID), p.Name
		if c.gpt {
			// the report has none
			e.typ, e.attributes = strings.ToUpper(p.Type), fmt.Sprintf("%016X", c.part(p.Number).attributes)
		}
		got[p.Number] = e
	}
	require.Equal(t, c.wantTable(c.starts()), got)
}

func (c *soakCase) part(number int) *soakPart {
	return c.parts[slices.IndexFunc(c.parts, func(p *soakPart) bool { return p.number == number })]
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

// stays reports whether a partition off the boundary is not to move on its own account: the data are fine, or would lie
// on a multiple of a lower power of two.
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

// checkPlan requires a plan that keeps the rules, and twice the same.
func (c *soakCase) checkPlan(t *testing.T) {
	t.Helper()
	args := append([]string{"plan", c.source}, c.flags()...)
	c.plan = trueupJSON[jsonPlan](t, 0, args...)
	require.Equal(t, c.plan, trueupJSON[jsonPlan](t, 0, args...), "a plan depends on its image alone")
	c.placed = map[int]int64{}
	for _, p := range c.plan.Result.Partitions {
		c.placed[p.Number] = p.StartLBA
	}
	require.Len(t, c.placed, len(c.parts))
	end := int64(0)
	for _, p := range c.parts {
		if p.volume != nil {
			require.GreaterOrEqual(t, c.placed[p.number], end, "partition %d keeps its place in the order", p.number)
			end = c.placed[p.number] + p.sectors
			c.checkPlace(t, p)
		}
	}
	require.LessOrEqual(t, end*c.sector, c.plan.NewSizeBytes)
	if growth := c.plan.NewSizeBytes - c.plan.OldSizeBytes; growth != 0 {
		_, want := c.goal()
		require.Zero(t, c.plan.NewSizeBytes%mib, "growth ends on a whole MiB")
		require.Less(t, growth, int64(len(c.parts))*want+mib, "no more growth than each partition needs")
	}
}

// checkPlanOfFullFile requires the same plan of the same disk where zeros are stored.
func (c *soakCase) checkPlanOfFullFile(t *testing.T) {
	t.Helper()
	full := c.raw + ".full"
	disktest.Run(t, "cp", "--sparse=never", c.raw, full)
	defer os.Remove(full)
	plan := trueupJSON[jsonPlan](t, 0, append([]string{"plan", full}, c.flagsFor("raw")...)...)
	require.Equal(t, c.plan.Moves, plan.Moves, "a plan depends on what the disk holds")
	require.Equal(t, c.plan.Patches, plan.Patches, "a plan depends on what the disk holds")
}

// checkPlace requires that a partition is aligned if that was asked for, and that what moves goes to the boundary.
func (c *soakCase) checkPlace(t *testing.T, p *soakPart) {
	t.Helper()
	must, want := c.goal()
	to := c.placed[p.number]
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

func (c *soakCase) align(t *testing.T) {
	t.Helper()
	before := hashFolder(t, filepath.Dir(c.source))
	args := append([]string{"align", c.source, c.dest, "--to", c.to}, c.flags()...)
	answer := trueupJSON[jsonAlign](t, 0, args...)
	require.True(t, answer.Written)
	require.Equal(t, c.plan.Moves, answer.Moves)
	require.Equal(t, c.plan.Patches, answer.Patches)
	require.Equal(t, before, hashFolder(t, filepath.Dir(c.source)), "the source must not change")
	c.after = filepath.Join(t.TempDir(), "after.raw")
	disktest.Run(t, "qemu-img", "convert", "-f", qemuFormat(c.to), "-O", "raw", c.dest, c.after)
	info := disktest.Stat(t, c.after)
	require.Equal(t, c.plan.NewSizeBytes, info.Size())
}
