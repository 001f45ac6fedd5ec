package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/hostile"
)

// poolDisks are what Linux makes of disks of 32 MiB in a guest: a and b become a volume group, the others members
// of arrays, and h an own physical volume, whose extents are aligned where it becomes a partition at LBA 63: 63 and 65
// sectors are 64 KiB.
const poolDisks = "abcdefgh"

// poolCommands are what a shell runs in the guest, with @a for the disk a.
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

// poolReport is the part of an inspection that these tests look at.
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

// testPools holds what inspect says about volumes made by a real Linux against LVM and mdadm. lvs are the lines of
// that.
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

// requirePV holds a physical volume against the header that pvck reads, and its logical volumes against what lvs said.
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
