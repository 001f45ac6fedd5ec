package realign

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"math/rand"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/filetest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// sized returns a raw disk whose table has sectors of a size. Its only partition begins at LBA 63 and is a FAT with
// such sectors.
func sized(t testing.TB, dir, scheme string, sector int64) string {
	t.Helper()
	const volume = 20 << 20
	part, raw := filepath.Join(dir, "part"), filepath.Join(dir, fmt.Sprintf("%s-%d.raw", scheme, sector))
	disktest.MakeBlank(t, part, volume)
	// Two reserved sectors put the clusters off the boundary with the start, so that a move improves both.
	disktest.Run(t, "mkfs.fat", "-F", "16", "-s", "1", "-a", "-R", "2", "-S", fmt.Sprint(sector), "-h", "63", part)
	var f forge.Bytes
	if scheme == "gpt" {
		e := tableforge.GPTEntry{First: 63, Last: 62 + uint64(volume/sector)}
		f = tableforge.NewGPT(sector, 32<<20/sector, 128, e)
	} else {
		f = tableforge.NewMBR(32<<20/512, tableforge.Slot{Type: 0x0e, Start: 63, Sectors: uint32(volume / sector)})
	}
	f.Put(63*sector, disktest.ReadFile(t, part))
	require.NoError(t, os.WriteFile(raw, f, 0o600))
	return raw
}

// reading opens a disk with command-line options.
func reading(t testing.TB, path string, r Reading) *Source {
	t.Helper()
	s, err := Open(path, r)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

// acceptable returns the refusal of a copy in a format.
func acceptable(t testing.TB, s *Source, g Goal) error {
	t.Helper()
	p, err := s.Plan(g)
	require.NoError(t, err)
	return Acceptable(p, g)
}

// A disk is only copied into images that can state its sector size, however that is known, with or without moves.
// Expected sizes are those of the tables as made.
func TestSectorsThatTheCopyHolds(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		scheme  string
		sector  int64
		reading Reading
		moves   bool // with a certain size
	}{
		{"gpt", 512, Reading{}, true},
		{"gpt", 4096, Reading{}, true},
		{"gpt", 4096, Reading{SectorSize: 4096}, true},
		{"gpt", 2048, Reading{}, false},
		{"mbr", 512, Reading{}, true},
		{"mbr", 1024, Reading{}, false},
		{"mbr", 2048, Reading{}, false},
		{"mbr", 4096, Reading{}, false},
		{"mbr", 4096, Reading{SectorSize: 4096}, true},
	} {
		s := reading(t, sized(t, dir, c.scheme, c.sector), c.reading)
		for _, to := range []string{"", "raw", "vhdx", "qcow2", "vmdk", "vhd", "vdi"} {
			// A VHDX states the sector size with which the disk is read: from a GPT, or from the option.
			stated := to == "vhdx" && c.sector == 4096 && (c.scheme == "gpt" || c.reading.SectorSize == c.sector)
			holds := c.sector == 512 || slices.Contains([]string{"", "raw"}, to) || stated
			name := fmt.Sprintf("%v to %q", c, to)
			require.Equal(t, holds, acceptable(t, s, Goal{Copy: true, To: to}) == nil, name)
			require.Equal(t, holds && c.moves, acceptable(t, s, Goal{To: to}) == nil, name)
		}
	}
}

// A GPT states its sector size, and an option that contradicts it is refused.
func TestSectorsThatContradictAGPT(t *testing.T) {
	dir := t.TempDir()
	for sector, ordered := range map[int64]int64{512: 4096, 4096: 512} {
		s := reading(t, sized(t, dir, "gpt", sector), Reading{SectorSize: ordered})
		require.Equal(t, sector, s.Image.Disk.SectorSize())
		err := acceptable(t, s, Goal{Copy: true})
		says := fmt.Sprintf("uses sectors of %d bytes, and --sector-size is %d", sector, ordered)
		require.ErrorContains(t, err, says)
		require.ErrorContains(t, err, "leave out --sector-size")
	}
}

// An image of another program has a GPT of 4096 bytes but sectors of 512: it is only copied, into formats that can
// state the size.
func TestContainersThatShowOtherSectors(t *testing.T) {
	dir := t.TempDir()
	raw := sized(t, dir, "gpt", 4096)
	for name, args := range map[string][]string{
		"a.qcow2": {"qcow2"}, "a.vmdk": {"vmdk"}, "flat.vmdk": {"vmdk", "-o", "subformat=monolithicFlat"},
		"a.vdi": {"vdi"}, "fixed.vhd": {"vpc", "-o", "subformat=fixed,force_size=on"}, "a.vhdx": {"vhdx"},
	} {
		t.Run(name, func(t *testing.T) {
			path := converted(t, raw, name, args...)
			s := open(t, path)
			require.EqualValues(t, 512, s.Image.StatedSectors())
			require.EqualValues(t, 4096, s.Image.Disk.SectorSize())
			require.True(t, slices.ContainsFunc(s.Issues(), func(i ondisk.Issue) bool {
				return i.Code == codeSectors && i.Effect == ondisk.Warn
			}))
			require.Equal(t, name == "a.vhdx", acceptable(t, s, Goal{}) == nil, "in its own format")
			x := surveyed(t, path)
			require.Equal(t, s.sectors(Goal{}), x.sectors(Goal{}), "a scan says the same")
			for _, to := range []string{"raw", "vhdx"} {
				s := open(t, path)
				g := Goal{To: to}
				p, err := s.Plan(g)
				require.NoError(t, err)
				require.NoError(t, Acceptable(p, g))
				dest := filepath.Join(t.TempDir(), "copy."+to)
				_, err = (&Job{Jobs: 1, Full: true}).Write(t.Context(), s, p, File{Path: dest, Format: to})
				require.NoError(t, err)
				copied := open(t, dest)
				require.EqualValues(t, 4096, copied.Image.Disk.SectorSize())
				require.Equal(t, map[string]int64{"raw": 0, "vhdx": 4096}[to], copied.Image.StatedSectors())
				require.Zero(t, copied.Layout.Partitions[0].Off%(1<<20))
				_, diffs, err := (&Job{Jobs: 1}).Verify(t.Context(), s, copied, nil)
				require.NoError(t, err)
				require.Empty(t, diffs)
			}
		})
	}
}

// TestVHDXThatStatesOtherSectors has an MBR of 512-byte sectors in a VHDX whose metadata state 4096: its machine finds
// no partition. inspect and scan call it malformed, and only its bytes are copied. Spec: [MS-VHDX] 2.6.2.4.
func TestVHDXThatStatesOtherSectors(t *testing.T) {
	dir := t.TempDir()
	path := converted(t, sized(t, dir, "mbr", 512), "a.vhdx", "vhdx")
	require.NoError(t, Broken(align.Relevant(open(t, path).Layout.Issues, nil)))
	b := disktest.ReadFile(t, path)
	// LogicalSectorSize, 8141BF1D-A96F-4709-BA47-F233A8FAAB5F, in the table that begins with "metadata".
	table := bytes.Index(b, []byte("metadata"))
	require.Positive(t, table)
	guid := []byte{0x1d, 0xbf, 0x41, 0x81, 0x6f, 0xa9, 0x09, 0x47, 0xba, 0x47, 0xf2, 0x33, 0xa8, 0xfa, 0xab, 0x5f}
	entry := table + bytes.Index(b[table:], guid)
	require.Greater(t, entry, table)
	at := table + int(binary.LittleEndian.Uint32(b[entry+16:]))
	require.EqualValues(t, 512, binary.LittleEndian.Uint32(b[at:]))
	binary.LittleEndian.PutUint32(b[at:], 4096)
	require.NoError(t, os.WriteFile(path, b, 0o600))

	x := surveyed(t, path)
	for _, s := range []*Source{open(t, path), x} {
		err := Broken(align.Relevant(s.Layout.Issues, nil))
		require.ErrorIs(t, err, ondisk.ErrFormat)
		require.ErrorContains(t, err, "uses sectors of 512 bytes, and the VHDX states 4096")
	}
	require.Error(t, acceptable(t, open(t, path), Goal{}))
	require.NoError(t, acceptable(t, open(t, path), Goal{Copy: true, To: "raw"}))
}

// A copy by another program in a container without sector sizes is a difference, though all bytes are equal.
func TestVerifyFindsLostSectors(t *testing.T) {
	raw := sized(t, t.TempDir(), "gpt", 4096)
	other := open(t, converted(t, raw, "a.qcow2", "qcow2"))
	_, diffs, err := (&Job{Jobs: 1}).Verify(t.Context(), open(t, raw), other, nil)
	require.NoError(t, err)
	require.Len(t, diffs, 1)
	require.Contains(t, diffs[0].Text, "the format qcow2 cannot record that")
}

// A device shows its disk with its own sector size: a GPT of another size is copied elsewhere, and not moved in place.
func TestDeviceThatShowsOtherSectors(t *testing.T) {
	raw := sized(t, t.TempDir(), "gpt", 4096)
	for sector, fits := range map[string]bool{"512": false, "4096": true} {
		s := open(t, disktest.LoopDevice(t, raw, "-b", sector))
		require.EqualValues(t, 4096, s.Image.Disk.SectorSize())
		require.Equal(t, fits, s.staysAsShown() == nil, sector)
		require.Len(t, s.sectors(Goal{}), 1)
		require.Equal(t, fits, s.sectors(Goal{})[0].Effect == ondisk.Note, sector)
		require.NoError(t, acceptable(t, s, Goal{To: "raw"}))
		require.Error(t, acceptable(t, s, Goal{To: "qcow2"}))
	}
}

// A chain of logical partitions moves with each sector size: sfdisk reads the result on a device with such sectors, and
// finds each partition on the boundary with its bytes.
func TestLogicalPartitionsMoveInTheirSectors(t *testing.T) {
	for _, sector := range []int64{512, 4096} {
		t.Run(fmt.Sprint(sector), func(t *testing.T) {
			dir := t.TempDir()
			const size, parts = 48 << 20, 3
			raw := filepath.Join(dir, "chain.raw")
			f := make(forge.Bytes, size)
			length := uint32(6 << 20 / sector)
			box := 63 + length + 5
			tableforge.PutSlot(f, 0, 0, tableforge.Slot{Type: 0x83, Start: 63, Sectors: length})
			tableforge.PutSlot(f, 0, 1, tableforge.Slot{Type: 0x05, Start: box, Sectors: uint32(size/sector) - box})
			next := 63 + length + 7 // of the second record, from the extended partition on
			record := int64(box) * sector / 512
			one := tableforge.Slot{Type: 0x83, Start: 63, Sectors: length}
			tableforge.PutEBR(f, record, one, tableforge.Slot{Type: 0x05, Start: next, Sectors: 63 + length})
			tableforge.PutEBR(f, record+int64(next)*sector/512, one, tableforge.Slot{})
			at := []int64{63 * sector, int64(box+63) * sector, int64(box+next+63) * sector}
			for i, off := range at {
				f.Put(off, filetest.Noise(uint64(i), 6<<20))
			}
			require.NoError(t, os.WriteFile(raw, f, 0o600))
			s := reading(t, raw, Reading{SectorSize: sector})
			g := Goal{To: "raw"}
			p, err := s.Plan(g)
			require.NoError(t, err)
			require.NoError(t, Acceptable(p, g))
			require.Len(t, p.Moves, parts)
			dest := filepath.Join(dir, "copy.raw")
			_, err = (&Job{Jobs: 1, Full: true}).Write(t.Context(), s, p, File{Path: dest, Format: "raw"})
			require.NoError(t, err)
			var dump struct {
				Table struct {
					SectorSize int64 `json:"sectorsize"`
					Partitions []struct{ Start, Size int64 }
				} `json:"partitiontable"`
			}
			out := disktest.Output(t, "sfdisk", "--json", disktest.LoopDevice(t, dest, "-b", fmt.Sprint(sector)))
			require.NoError(t, json.Unmarshal([]byte(out), &dump))
			require.Equal(t, sector, dump.Table.SectorSize)
			require.Len(t, dump.Table.Partitions, parts+1)
			now := disktest.ReadFile(t, dest)
			for i, n := range []int{0, 2, 3} { // 1 is the extended one
				start := dump.Table.Partitions[n].Start * sector
				require.Zero(t, start%(1<<20))
				require.EqualValues(t, length, dump.Table.Partitions[n].Size)
				require.True(t, bytes.Equal(f[at[i]:][:6<<20], now[start:][:6<<20]), "partition %d", n)
			}
		})
	}
}

// dosDisk is a raw disk like DOS made them: code that reads CHS, and one active FAT16 from the second track to the end
// of the last of 1023 cylinders.
func dosDisk(t *testing.T, dir string, heads, track int64) (path string, size int64) {
	t.Helper()
	path = filepath.Join(dir, "disk.img")
	sectors := min(1023*heads*track, 80_000/(heads*track)*heads*track)
	disktest.MakeBlank(t, path, sectors*sector)
	disktest.RunInput(t, fmt.Sprintf("o\nn\np\n1\n%d\n%d\nt\n6\na\nw\n", track, sectors-1), "fdisk",
		"--compatibility=dos", "--units=sectors", "--heads", strconv.FormatInt(heads, 10),
		"--sectors", strconv.FormatInt(track, 10), path)
	disktest.Run(t, "mkfs.fat", "-F", "16", "-g", fmt.Sprintf("%d/%d", heads, track),
		"-h", strconv.FormatInt(track, 10), "--offset", strconv.FormatInt(track, 10), path,
		strconv.FormatInt((sectors-track)/2, 10))
	code, err := ondisk.Bytes(disktest.Fixture(t, disktest.Fixtures(t)["xp-lba63-one-ntfs"]), 0, 440)
	require.NoError(t, err)
	disktest.WriteAt(t, path, 0, code)
	return path, sectors * sector
}

// told returns the heads and sectors in the metadata of an image, read by none of trueup's code, or else those of the
// end of its first partition.
func told(t *testing.T, path string) (heads, sectors int64) {
	t.Helper()
	b := disktest.ReadFile(t, path)
	number := func(key string) int64 {
		m := regexp.MustCompile(`ddb\.geometry\.` + key + ` = "(\d+)"`).FindSubmatch(b)
		require.NotNil(t, m, "%s", key)
		n, err := strconv.ParseInt(string(m[1]), 10, 64)
		require.NoError(t, err)
		return n
	}
	switch filepath.Ext(path) {
	case ".vhd": // VHD 1.0, "Hard Disk Footer Format": cylinders, heads and sectors at byte 56
		foot := b[len(b)-512:]
		require.LessOrEqual(t, binary.BigEndian.Uint16(foot[56:]), uint16(1024), "more would be translated")
		return int64(foot[58]), int64(foot[59])
	case ".vmdk":
		return number("heads"), number("sectors")
	case ".vdi": // VirtualBox, VDICore.h, VDIHEADER1PLUS
		return int64(binary.LittleEndian.Uint32(b[0x1cc:])), int64(binary.LittleEndian.Uint32(b[0x1d0:]))
	}
	flat := filepath.Join(t.TempDir(), "flat.raw")
	disktest.Run(t, "qemu-img", "convert", "-O", "raw", path, flat)
	entry := disktest.ReadFile(t, flat)[446:462]
	return int64(entry[5]) + 1, int64(entry[6] & 63)
}

// A disk that boots by CHS shows the machine the same heads and sectors before and after, in any format, and keeps its
// size for other programs.
func TestMachineOfAGuestThatReadsCHS(t *testing.T) {
	qemu := map[string]string{
		"raw": "raw", "vhd": "vpc", "vmdk": "vmdk", "vdi": "vdi", "qcow2": "qcow2", "vhdx": "vhdx",
	}
	for _, tc := range []struct {
		from, to     string
		heads, track int64
		warned       string
	}{
		{"vhd", "", 4, 17, ""},
		{"vhd", "vhd:fixed", 4, 17, ""},
		{"vhd", "vmdk", 4, 17, ""},
		{"vhd", "vdi", 4, 17, ""},
		{"vhd", "qcow2", 4, 17, ""},
		{"raw", "vhd", 4, 17, ""},
		{"raw", "", 4, 17, ""},
		{"raw", "vhd", 16, 63, ""},
		{"raw", "vmdk:monolithicFlat", 16, 63, ""},
		{"qcow2", "vdi", 64, 32, ""},
		{"raw", "vmdk", 255, 63, ""},
		{"raw", "vhd", 255, 63, "the disk boots by a geometry of 255 heads and 63 sectors, and a BIOS reports 4 heads"},
		{"vmdk", "vmdk", 16, 63, ""},
	} {
		t.Run(fmt.Sprintf("%s to %s, %d heads", tc.from, tc.to, tc.heads), func(t *testing.T) {
			dir := t.TempDir()
			source, size := dosDisk(t, dir, tc.heads, tc.track)
			if tc.from != "raw" {
				source = converted(t, source, "disk."+tc.from, qemu[tc.from])
			}
			s := open(t, source)
			require.True(t, s.Layout.ReadsCHS())
			p := mustPlan(t, s)
			require.Len(t, p.Moves, 1)
			require.Greater(t, p.Size, size)
			target, err := ParseTarget(tc.to)
			require.NoError(t, err)
			name, _, _ := strings.Cut(tc.to, ":")
			if name == "" {
				name = tc.from
			}
			dest := filepath.Join(dir, "aligned."+name)
			to := File{Path: dest, Format: target.Format, Subformat: target.Subformat}
			w, err := (&Job{Full: true, Jobs: 1}).Write(t.Context(), s, p, to)
			require.NoError(t, err)
			var said []string
			for _, n := range w.Notes {
				if n.Code == "container-geometry" {
					said = append(said, n.Text)
				}
			}
			if tc.warned != "" {
				require.Len(t, said, 1)
				require.Contains(t, said[0], tc.warned)
				return
			}
			require.Empty(t, said)
			heads, sectors := told(t, dest)
			require.Equal(t, []int64{tc.heads, tc.track}, []int64{heads, sectors})
			require.Contains(t, disktest.Output(t, "qemu-img", "info", "-f", qemu[name], dest),
				fmt.Sprintf("(%d bytes)", p.Size))
		})
	}
}

// A move within a fixed VHD or a flat VMDK shows the machine the same geometry as a copy.
func TestMachineAfterAMoveInPlace(t *testing.T) {
	for name, args := range map[string][]string{
		"disk.vhd":  {"vpc", "-o", "subformat=fixed"},
		"disk.vmdk": {"vmdk", "-o", "subformat=monolithicFlat,adapter_type=ide"},
	} {
		raw, _ := dosDisk(t, t.TempDir(), 4, 17)
		source := converted(t, raw, name, args...)
		if strings.HasSuffix(name, "vmdk") { // qemu-img assumes 16 heads and 63 sectors for every IDE disk
			b := regexp.MustCompile(`heads = "16"`).ReplaceAll(disktest.ReadFile(t, source), []byte(`heads = "4"`))
			b = regexp.MustCompile(`sectors = "63"`).ReplaceAll(b, []byte(`sectors = "17"`))
			require.NoError(t, os.WriteFile(source, b, 0o600))
		}
		s := open(t, source)
		p := mustPlan(t, s)
		_, err := (&Job{Jobs: 1}).MoveInPlace(t.Context(), s, p, Move{})
		require.NoError(t, err)
		heads, sectors := told(t, source)
		require.Equal(t, []int64{4, 17}, []int64{heads, sectors}, name)
		if strings.HasSuffix(name, "vmdk") {
			require.Contains(t, string(disktest.ReadFile(t, source)), "ddb.geometry.biosCylinders = \"1024\"")
		}
		require.Empty(t, imagetest.Codes(open(t, source).Image.Issues, ondisk.Warn))
	}
}

// fdiskedSize is the size of the disks that fdisk makes here, in bytes.
const fdiskedSize = 64 << 20

// fdisked makes a disk whose table fdisk writes in sectors of a size, from lines of an sfdisk script.
func fdisked(t *testing.T, raw, label string, sector int64, lines []string) {
	t.Helper()
	disktest.MakeBlank(t, raw, fdiskedSize)
	script := filepath.Join(t.TempDir(), "script")
	text := fmt.Sprintf("label: %s\nunit: sectors\nsector-size: %d\n%s\n", label, sector, strings.Join(lines, "\n"))
	require.NoError(t, os.WriteFile(script, []byte(text), 0o600))
	disktest.RunInput(t, "I\n"+script+"\nw\n", "fdisk", "--sector-size", fmt.Sprint(sector), "--wipe", "never", raw)
}

// listed returns the partitions that fdisk reads in sectors of a size: start and length in bytes.
func listed(t *testing.T, raw string, sector int64) (out [][2]int64) {
	t.Helper()
	text := disktest.Run(t, "fdisk", "--sector-size", fmt.Sprint(sector), "-l", "-o", "Start,Sectors,Type", raw)
	for _, m := range regexp.MustCompile(`(?m)^ *(\d+) +(\d+) (.*)$`).FindAllStringSubmatch(text, -1) {
		start, _ := strconv.ParseInt(m[1], 10, 64)
		n, _ := strconv.ParseInt(m[2], 10, 64)
		if start > 0 && n > 0 && !strings.HasPrefix(m[3], "Extended") {
			out = append(out, [2]int64{start * sector, n * sector})
		}
	}
	return out
}

// randomDisk makes a disk with partitions at random places, and data at both ends of each. Unless whole, they start and
// end anywhere in sectors of 512 bytes.
func randomDisk(t *testing.T, r *rand.Rand, label string, sector int64, whole bool) string {
	t.Helper()
	step := int64(1)
	if whole {
		step = 4096 / sector
	}
	var lines []string
	at := 2 << 20 / sector
	add := func(options string) {
		at += step * r.Int63n(200)
		n := step * (8 + r.Int63n(300))
		lines = append(lines, fmt.Sprintf("start=%d, size=%d%s", at, n, options))
		at += n
	}
	for range 1 + r.Intn(3) {
		add("")
	}
	if label == "dos" && r.Intn(2) == 0 {
		first := at + step*r.Int63n(100)
		lines, at = append(lines, ""), first
		box := len(lines) - 1
		for range 1 + r.Intn(3) {
			at += step * (1 + r.Int63n(3)) // room for the boot record
			add("")
		}
		lines[box] = fmt.Sprintf("start=%d, size=%d, type=5", first, at+step*r.Int63n(9)-first)
	}
	raw := filepath.Join(t.TempDir(), "random.raw")
	fdisked(t, raw, label, sector, lines)
	f, err := os.OpenFile(raw, os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	for _, p := range listed(t, raw, sector) {
		for _, off := range []int64{p[0], p[0] + p[1] - 512} {
			noise := make([]byte, 512)
			r.Read(noise)
			_, err := f.WriteAt(noise, off)
			require.NoError(t, err)
		}
	}
	return raw
}

// resectored writes the disk in sectors of another size to a file, or returns the refusal.
func resectored(t *testing.T, raw string, sector int64, g Goal) (dest string, err error) {
	t.Helper()
	s, err := Open(raw, Reading{SectorSize: sector})
	if err != nil {
		return "", err
	}
	defer s.Close()
	p, err := s.PlanAmong(nil, g, nil)
	if err == nil {
		err = Acceptable(p, g)
	}
	if err != nil {
		return "", err
	}
	dest = filepath.Join(t.TempDir(), "dest.raw")
	_, err = (&Job{Jobs: 1, Full: true, Dest: dest}).Write(t.Context(), s, p, File{Path: dest, Format: "raw"})
	if err != nil {
		return "", err
	}
	d, err := Open(dest, Reading{SectorSize: g.Sectors})
	require.NoError(t, err)
	defer d.Close()
	_, diffs, err := (&Job{Jobs: 1}).Verify(t.Context(), s, d, nil)
	require.NoError(t, err)
	require.Empty(t, diffs)
	return dest, nil
}

// Random disks keep the bytes of their partitions in sectors of the other size, and have their old bytes after the way
// back. fdisk makes and reads the tables.
func TestRandomDisksInBothSectorSizes(t *testing.T) {
	for i := range disktest.Sample(150) {
		r := rand.New(rand.NewSource(int64(i)))
		label, sector, whole := []string{"gpt", "dos"}[r.Intn(2)], []int64{512, 4096}[r.Intn(2)], r.Intn(3) > 0
		t.Run(fmt.Sprintf("%d: %s of %d", i, label, sector), func(t *testing.T) {
			raw := randomDisk(t, r, label, sector, whole || sector == 4096)
			was, other := listed(t, raw, sector), 512+4096-sector
			g := Goal{Copy: whole || sector == 4096, Sectors: other}
			dest, err := resectored(t, raw, sector, g)
			require.NoError(t, err)
			is := listed(t, dest, other)
			require.Len(t, is, len(was))
			before, after := disktest.ReadFile(t, raw), disktest.ReadFile(t, dest)
			for k, p := range was {
				require.Equal(t, units.AlignUp(p[1], other), is[k][1])
				require.True(t, g.Copy && is[k][0] == p[0] || !g.Copy && is[k][0]%(64<<10) == 0)
				require.True(t, bytes.Equal(before[p[0]:p[0]+p[1]], after[is[k][0]:is[k][0]+p[1]]), "partition %d", k)
			}
			if g.Copy {
				back, err := resectored(t, dest, other, Goal{Copy: true, Sectors: sector})
				require.NoError(t, err)
				extended := slices.Contains([]byte{before[450], before[466], before[482], before[498]}, 5)
				if sector == 512 && extended {
					require.Equal(t, was, listed(t, back, sector)) // boot records stay on whole sectors
					return
				}
				require.True(t, bytes.Equal(before, disktest.ReadFile(t, back)), "the way back")
			}
		})
	}
}

// A disk with a damaged table is refused, or its copy in other sectors has the partitions that fdisk reads in it.
func TestMutantsInBothSectorSizes(t *testing.T) {
	disktest.Tool(t, "fdisk")
	copied := 0
	for i := range disktest.Sample(500) {
		label, sector := []string{"gpt", "dos"}[i%2], []int64{512, 4096}[i/2%2]
		t.Run(fmt.Sprintf("%d: %s of %d", i, label, sector), func(t *testing.T) {
			r := rand.New(rand.NewSource(int64(i)))
			raw := randomDisk(t, r, label, sector, true)
			f, err := os.OpenFile(raw, os.O_RDWR, 0)
			require.NoError(t, err)
			defer f.Close()
			const end = 64 << 20
			places := []int64{446, 446, sector, 2 * sector, end - sector, end - sector - 16384}
			for _, p := range listed(t, raw, sector) {
				places = append(places, p[0]-4096+446)
			}
			var b [1]byte
			for range 1 + r.Intn(2) {
				at := places[r.Intn(len(places))] + r.Int63n(64)
				_, err := f.ReadAt(b[:], at)
				require.NoError(t, err)
				b[0] ^= byte(1 << r.Intn(8))
				_, err = f.WriteAt(b[:], at)
				require.NoError(t, err)
			}
			other := 512 + 4096 - sector
			dest, err := resectored(t, raw, sector, Goal{Copy: true, Sectors: other, RepairTable: r.Intn(2) == 0})
			if err == nil {
				copied++
				require.Equal(t, listed(t, raw, sector), listed(t, dest, other))
			}
		})
	}
	require.NotZero(t, copied)
}

// The copies of a GPT can differ in the size of their headers. One larger than a sector of the copy is refused.
func TestHeaderLargerThanASector(t *testing.T) {
	raw := filepath.Join(t.TempDir(), "disk.raw")
	const size = 64 << 20
	fdisked(t, raw, "gpt", 4096, []string{"start=256, size=100"})
	b := disktest.ReadFile(t, raw)[size-4096:]
	binary.LittleEndian.PutUint32(b[12:], 4096)
	clear(b[16:20])
	binary.LittleEndian.PutUint32(b[16:], crc32.ChecksumIEEE(b))
	disktest.WriteAt(t, raw, size-4096, b)
	_, err := resectored(t, raw, 4096, Goal{Copy: true, Sectors: 512})
	require.ErrorContains(t, err, "the backup GPT has a header of 4096 bytes")
}

// A link of a single sector stays one, although its boot record moves up, since readers end a chain at an empty link.
func TestShortLinkOfABootRecord(t *testing.T) {
	f := make(forge.Bytes, 16<<20)
	tableforge.PutSlot(f, 0, 0, tableforge.Slot{Type: 0x05, Start: 2048, Sectors: 20000})
	tableforge.PutEBR(f, 2048, tableforge.Slot{Type: 0x83, Start: 8, Sectors: 4097},
		tableforge.Slot{Type: 0x05, Start: 4105, Sectors: 1})
	tableforge.PutEBR(f, 2048+4105, tableforge.Slot{Type: 0x83, Start: 63, Sectors: 4096}, tableforge.Slot{})
	raw := filepath.Join(t.TempDir(), "disk.raw")
	require.NoError(t, os.WriteFile(raw, f, 0o600))
	dest, err := resectored(t, raw, 512, Goal{Copy: true, Sectors: 4096})
	require.NoError(t, err)
	require.Equal(t, [][2]int64{{2056 * 512, 4104 * 512}, {6216 * 512, 4096 * 512}}, listed(t, dest, 4096))
}

// A device with room for the new backup GPT, but less than a file would get, is proved with its size.
func TestDeviceOfTheLeastSize(t *testing.T) {
	dir := t.TempDir()
	raw, dest := filepath.Join(dir, "disk.raw"), filepath.Join(dir, "dest.raw")
	const size, device = 64 << 20, 64<<20 + 8192
	fdisked(t, raw, "gpt", 512, []string{fmt.Sprintf("start=2048, size=%d", size/512-2048-33)})
	s := open(t, raw)
	g := Goal{Copy: true, Sectors: 4096}
	p, err := s.PlanAmong(nil, g, func(int64) int64 { return device })
	require.NoError(t, err)
	require.NoError(t, Acceptable(p, g))
	_, err = (&Job{Jobs: 1}).Write(t.Context(), s, p, File{Path: dest, Format: "raw"})
	require.NoError(t, err)
	_, diffs, err := (&Job{Jobs: 1}).Verify(t.Context(), s, open(t, disktest.LoopDevice(t, dest, "-b", "4096")), nil)
	require.NoError(t, err)
	require.Empty(t, diffs)
}

// The protective entry of a hybrid MBR begins at LBA 1 in each sector size, as Linux requires.
func TestHybridBeginsAtLBA1(t *testing.T) {
	raw := filepath.Join(t.TempDir(), "disk.raw")
	fdisked(t, raw, "gpt", 4096, []string{"start=256, size=100"})
	f := make(forge.Bytes, 512)
	tableforge.PutSlot(f, 0, 0, tableforge.Slot{Type: 0xee, Start: 1, Sectors: 255})
	tableforge.PutSlot(f, 0, 1, tableforge.Slot{Type: 0x83, Start: 256, Sectors: 100})
	disktest.WriteAt(t, raw, 446, f[446:512])
	dest, err := resectored(t, raw, 4096, Goal{Copy: true, Sectors: 512})
	require.NoError(t, err)
	b := disktest.ReadFile(t, dest)
	require.EqualValues(t, 1, binary.LittleEndian.Uint32(b[454:]))
	require.EqualValues(t, 2048, binary.LittleEndian.Uint32(b[470:]))
}
