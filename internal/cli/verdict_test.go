package cli

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/poolforge"
	"github.com/trueup/trueup/internal/disktest/forge/qcow2forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/disktest/forge/vhdforge"
	"github.com/trueup/trueup/internal/disktest/forge/vhdxforge"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
	"github.com/trueup/trueup/internal/disktest/forge/volumeforge"
	"github.com/trueup/trueup/internal/units"
)

// verdictDisks is the number of random disks of TestOneVerdict. One of verdictCopies is also copied.
const (
	verdictDisks  = 1000
	verdictCopies = 8
)

// judged holds the fields in the JSON of inspect, plan, align and of a row of scan that decide about a move.
type judged struct {
	Path, Verdict string
	Exit          int             `json:"exit_code"`
	Refusals      []any           `json:"refusals"`
	Advice        json.RawMessage `json:"advice"`
	Moved         int             `json:"moved"`
	Disks         []struct {
		Advice json.RawMessage
		Fix    *struct{ Moves, Refusals []any }
	}
	Priority *struct{ Command string }
}

// action returns the action of an advice, or "none".
func action(t *testing.T, advice json.RawMessage) string {
	t.Helper()
	var a struct{ Action string }
	if advice == nil { // a row omits it
		return "none"
	}
	require.NoError(t, json.Unmarshal(advice, &a))
	return a.Action
}

// randomDisk returns a disk with one to four partitions at starts of real guests, with volumes in most.
func randomDisk(rng *rand.Rand) forge.Bytes {
	starts := []uint32{34, 40, 56, 63, 64, 100, 126, 128, 2047, 2048, 2049}
	types := []byte{0x83, 7, 6, 0x82, 0x8e, 0xfd, 0xb}
	var slots []tableforge.Slot
	next := starts[rng.IntN(len(starts))]
	for range 1 + rng.IntN(4) {
		slots = append(slots, tableforge.Slot{Type: types[rng.IntN(len(types))], Start: next, Sectors: agreeSectors})
		next += agreeSectors + []uint32{0, 1, 16, 63, 80, 144}[rng.IntN(6)]
	}
	f := tableforge.NewMBR(int(next)+[]int{0, 100, 4096}[rng.IntN(3)], slots...)
	if rng.IntN(2) == 0 {
		f[0x1be+16*rng.IntN(len(slots))] = 0x80 // active
	}
	kinds := []string{"nothing", "ext2", "ntfs", "fat16", "xfs", "md 1.2", "noise", "lvm", "btrfs"}
	for _, s := range slots {
		agreeVolumes[kinds[rng.IntN(len(kinds))]](f, int64(s.Start), agreeSectors)
	}
	return f
}

// TestOneVerdict requires that inspect, plan, align and all reports of a scan of random disks have the same verdict and
// advice: texts, JSON, CSV, ranks, scripts, commands of a worklist and exit codes.
func TestOneVerdict(t *testing.T) {
	t.Chdir(t.TempDir())
	rng := rand.New(rand.NewPCG(36, 3))
	disks := disktest.Sample(verdictDisks)
	for n := range disks {
		writeSparse(t, fmt.Sprintf("d%03d.img", n), randomDisk(rng))
	}
	// One scan only: the allocated bytes of new files, which count for a rank, change while the kernel writes them.
	trueup(t, "scan", "--isolation", "none", "-o", "json", "--out", "rows", "--script", "fix.sh", ".")
	inCSV := map[string]map[string]string{}
	lines, err := csv.NewReader(strings.NewReader(trueup(t, "report", "-o", "csv", "rows").stdout)).ReadAll()
	require.NoError(t, err)
	for _, line := range lines[1:] {
		fields := map[string]string{}
		for i, column := range lines[0] {
			fields[column] = line[i]
		}
		inCSV[fields["path"]] = fields
	}
	script := strings.Split(string(disktest.ReadFile(t, "fix.sh")), "\n")
	ranks := map[string]string{}
	for line := range strings.Lines(trueup(t, "report", "rows").stdout) { // of the table: rank first, path last
		if words := strings.Fields(line); len(words) > 6 && strings.HasPrefix(words[len(words)-1], "d") {
			ranks[words[len(words)-1]] = words[0]
		}
	}
	rows := 0
	for line := range strings.Lines(string(disktest.ReadFile(t, "rows"))) {
		r := judged{}
		require.NoError(t, json.Unmarshal([]byte(line), &r))
		if len(r.Disks) != 1 {
			continue
		}
		rows++
		in, plan := judged{}, judged{}
		end := trueup(t, "inspect", "--json", "--allow-unknown", r.Path)
		require.NoError(t, json.Unmarshal([]byte(end.stdout), &in), end.stdout)
		require.Equal(t, in.Exit, end.code, r.Path)
		require.Equal(t, map[string]int{"misaligned": 3, "below_boundary": 2}[in.Verdict], end.code, line)
		require.Equal(t, in.Verdict, r.Verdict, r.Path)
		require.Equal(t, r.Verdict, inCSV[r.Path]["verdict"], r.Path)
		require.Equal(t, action(t, in.Advice), action(t, r.Disks[0].Advice), r.Path)
		if rank := inCSV[r.Path]["rank"]; rank != "" {
			require.Equal(t, rank, ranks[r.Path], r.Path)
		}

		proposed := r.Priority != nil && r.Priority.Command != ""
		require.Equal(t, proposed, inCSV[r.Path]["command"] != "", r.Path)
		require.Equal(t, proposed, slices.ContainsFunc(script, func(s string) bool {
			return strings.Contains(s, "align ") && strings.Contains(s, r.Path)
		}), r.Path)
		end = trueup(t, "plan", "--json", r.Path)
		require.NoError(t, json.Unmarshal([]byte(end.stdout), &plan), end.stdout)
		require.Len(t, plan.Refusals, len(in.Refusals), r.Path)
		require.Equal(t, len(plan.Refusals) > 0, end.code == ExitRefused, r.Path)
		if fix := r.Disks[0].Fix; fix != nil {
			require.Len(t, fix.Moves, plan.Moved, r.Path)
			require.Len(t, plan.Refusals, len(fix.Refusals), r.Path)
		}
		proposes := slices.Contains([]string{"align", "optional"}, action(t, in.Advice))
		require.Equal(t, proposes && plan.Moved > 0 && end.code == 0, proposed, line)
		if rows%verdictCopies == 0 {
			requireCopy(t, r.Path, in, plan, end.code)
		}
	}
	require.Equal(t, disks, rows)
}

// requireCopy aligns as planned, and requires that the verdict of the copy is not worse, and that its plan moves
// nothing.
func requireCopy(t *testing.T, path string, in, plan judged, code int) {
	t.Helper()
	dest := path + ".aligned"
	end := trueup(t, "align", "--json", path, dest)
	require.Equal(t, code, end.code, "%s: %s", path, end.stderr)
	if code != 0 {
		return
	}
	var copied judged
	require.NoError(t, json.Unmarshal([]byte(end.stdout), &copied))
	require.Equal(t, plan.Moved, copied.Moved, path)
	after := trueup(t, "inspect", "--allow-unknown", dest).code
	require.LessOrEqual(t, after, in.Exit, path)
	again := judged{Moved: -1}
	require.NoError(t, json.Unmarshal([]byte(trueup(t, "plan", "--json", dest).stdout), &again))
	require.Zero(t, again.Moved, "the plan of the copy of %s moves more", path)
}

// agreeSectors is the size of a volume below, in sectors.
const agreeSectors = 6000

// agreeVolumes maps kinds to functions that make such a volume at a place of a disk.
var agreeVolumes = map[string]func(f forge.Bytes, lba, sectors int64){
	"apfs": volumeforge.PutAPFS, "btrfs": volumeforge.PutBtrfs, "exfat": fsforge.PutExFAT,
	"ext2": fsforge.PutExt, "f2fs": volumeforge.PutF2FS, "fat16": fsforge.PutFAT16,
	"hfs": volumeforge.PutHFS, "hfsplus": volumeforge.PutHFSPlus,
	"hpfs": volumeforge.PutHPFS, "iso9660": volumeforge.PutISO9660, "jfs": volumeforge.PutJFS,
	"ntfs": fsforge.PutNTFS, "refs": volumeforge.PutReFS, "reiserfs": volumeforge.PutReiserFS,
	"ufs1": volumeforge.PutUFS1, "ufs2": volumeforge.PutUFS2, "xfs": volumeforge.PutXFS,
	"lvm":       inside(func(f forge.Bytes) { poolforge.PutLVM(f, poolforge.LVMText, 512) }),
	"md 1.0":    inside(func(f forge.Bytes) { poolforge.PutMD1(f, "1.0", 64) }),
	"md 1.2":    inside(func(f forge.Bytes) { poolforge.PutMD1(f, "1.2", 64) }),
	"bcache":    inside(func(f forge.Bytes) { poolforge.PutBcache(f, 16) }),
	"zfs":       inside(poolforge.PutZFS),
	"bitlocker": inside(func(f forge.Bytes) { poolforge.PutBitLocker(f, "PC C:") }),
	"luks1":     inside(func(f forge.Bytes) { poolforge.PutLUKS1(f, 4096, 1000) }),
	"luks2":     inside(func(f forge.Bytes) { poolforge.PutLUKS2(f, poolforge.LUKS2Text("1048576", "1000"), 16<<10) }),
	"disklabel": inside(func(f forge.Bytes) {
		tableforge.PutDisklabel(f, 512, tableforge.Slice{Start: 16, Sectors: 64, Type: 7})
	}),
	"noise":   inside(func(f forge.Bytes) { f.Text(0, "something that is not known") }),
	"nothing": func(forge.Bytes, int64, int64) {},
}

// inside adapts a function that fills a volume to one that fills a part of a disk.
func inside(put func(f forge.Bytes)) func(f forge.Bytes, lba, sectors int64) {
	return func(f forge.Bytes, lba, sectors int64) { put(f[lba*units.SectorSize:][:sectors*units.SectorSize]) }
}

// agreePlaces lists disks with a place for a volume.
var agreePlaces = map[string]struct {
	lba  int64
	disk func() forge.Bytes
}{
	"bare":   {0, func() forge.Bytes { return make(forge.Bytes, agreeSectors*units.SectorSize) }},
	"lba 63": {63, func() forge.Bytes { return agreeDisk(63, 7) }},
	"1 MiB":  {2048, func() forge.Bytes { return agreeDisk(2048, 0x83) }},
	"gpt": {40, func() forge.Bytes {
		one := tableforge.GPTEntry{First: 40, Last: 40 + agreeSectors - 1, Name: "one"}
		return tableforge.NewGPT(units.SectorSize, 40+agreeSectors+100, 128, one)
	}},
}

func agreeDisk(lba uint32, typ byte) forge.Bytes {
	one := tableforge.Slot{Type: typ, Start: lba, Sectors: agreeSectors}
	return tableforge.NewMBR(int(lba)+agreeSectors+100, one)
}

// TestCommandsAgree requires of inspect, plan and scan one verdict, one error and one class of exit codes for a file:
// forged volumes of each kind, sound and damaged, on forged tables, and in forged containers.
func TestCommandsAgree(t *testing.T) {
	t.Parallel()
	for _, kind := range slices.Sorted(maps.Keys(agreeVolumes)) {
		t.Run(kind, func(t *testing.T) {
			for _, place := range slices.Sorted(maps.Keys(agreePlaces)) {
				p := agreePlaces[place]
				f := p.disk()
				agreeVolumes[kind](f, p.lba, agreeSectors)
				requireAgreement(t, place, f)
				rng := differRand(kind, place)
				at := p.lba*units.SectorSize + rng.Int64N(600)
				if rng.IntN(2) == 0 {
					at += 1024 // one of many superblocks
				}
				f[at] ^= 1 << rng.IntN(8)
				requireAgreement(t, fmt.Sprintf("%s, %#x is % x", place, at, f[at]), f)
			}
		})
	}
	t.Run("vmfs", func(t *testing.T) { // whose signatures are far after its start
		const sectors = 48000
		for _, lba := range []uint32{63, 2048} {
			f := tableforge.NewMBR(int(lba)+sectors, tableforge.Slot{Type: 0xfb, Start: lba, Sectors: sectors})
			poolforge.PutVMFS(f[lba*512:], 5, 14, 61)
			requireAgreement(t, fmt.Sprint("lba ", lba), f)
		}
	})
	t.Run("containers", func(t *testing.T) {
		for _, place := range slices.Sorted(maps.Keys(agreePlaces)) {
			f := agreePlaces[place].disk()
			agreeVolumes["ext2"](f, agreePlaces[place].lba, agreeSectors)
			for name, c := range map[string]forge.Bytes{
				"qcow2":     qcow2forge.New(f, 16).Bytes,
				"vhd":       vhdforge.New(f, vhdforge.Layout{}).Bytes,
				"fixed vhd": vhdforge.NewFixed(f).Bytes,
				"vhdx":      vhdxforge.New(vhdxforge.Layout{Size: int64(len(f))}).Bytes,
				"vmdk":      vmdkforge.NewSparse(f).Bytes,
				"stream":    vmdkforge.NewStream(f, vmdkforge.StreamLayout{}).Bytes,
			} {
				requireAgreement(t, place+" in "+name, c)
			}
		}
	})
}

func requireAgreement(t *testing.T, what string, f forge.Bytes) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk.img")
	writeSparse(t, path, f)
	end, in := inspectJSON(t, path)
	for _, text := range badEnd(end, in) {
		t.Errorf("%s: inspect: %s", what, text)
	}
	for _, d := range disagreements(t, path, end, in) {
		if acceptedBy(&mutant{}, d) >= 0 {
			continue
		}
		t.Errorf("%s: %s: %s", what, d.kind, d.text)
	}
}
