package align_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume"
)

// Exit codes are those of virt-alignment-scan(1): 0, 2 for less than 64 KiB, 3 for less than 4 KiB.
func TestVerdict(t *testing.T) {
	for _, tc := range []struct {
		name          string
		lba, boundary int64
		want          align.Verdict
		exit          int
	}{
		{"lba 63", 63, 65536, align.Misaligned, 3},
		{"lba 64 is on 32 KiB", 64, 65536, align.BelowBoundary, 2},
		{"lba 64 is enough for 32 KiB", 64, 32768, align.Aligned, 0},
		{"lba 128", 128, 65536, align.Aligned, 0},
		{"lba 128 against 1 MiB", 128, 1 << 20, align.BelowBoundary, 2},
		{"lba 2048 against 1 MiB", 2048, 1 << 20, align.Aligned, 0},
		{"lba 8 against 4 KiB", 8, 4096, align.Aligned, 0},
		{"lba 4 against 4 KiB", 4, 4096, align.Misaligned, 3},
		{"a cylinder boundary that happens to be on 4 KiB", 16065 * 8, 65536, align.BelowBoundary, 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := align.BoundaryOf(tc.boundary).Verdict(tc.lba * 512)
			require.Equal(t, tc.want, v)
			require.Equal(t, tc.exit, v.ExitCode())
		})
	}
}

func TestAllowedBoundaries(t *testing.T) {
	for n, ok := range map[int64]bool{
		4096: true, 65536: true, 1 << 20: true, 1 << 30: true, 2048: false, 1 << 31: false, 0: false, -4096: false,
		5000: false, 3 << 20: false,
	} {
		assert.Equal(t, ok, align.BoundaryOf(n).Check() == nil, n)
	}
}

func of(t *testing.T, fixture string) *layout.Layout {
	t.Helper()
	l, err := layout.Read(disktest.Fixture(t, disktest.Fixtures(t)[fixture]), table.Geometry{})
	require.NoError(t, err)
	return l
}

// With the boundary auto, partitions off 64 KiB move: to 64 KiB if the boot code reads CHS, otherwise to 1 MiB.
func TestGoal(t *testing.T) {
	for _, tc := range []struct {
		fixture              string
		boundary, must, want int64
	}{
		{"xp-lba63-one-ntfs", 0, 65536, 65536},
		{"ext3-saturated-chs", 0, 65536, 1 << 20},
		{"xp-lba63-one-ntfs", 4096, 4096, 4096},
	} {
		require.Equal(t, align.Goal{Must: align.BoundaryOf(tc.must), Want: align.BoundaryOf(tc.want)},
			align.GoalFor(of(t, tc.fixture), align.BoundaryOf(tc.boundary)))
	}
}

// The worst partition decides; an extended one only contains others.
func TestOverall(t *testing.T) {
	require.Equal(t, align.Misaligned, align.Overall(of(t, "logical-chain"), align.DefaultBoundary))
	require.Equal(t, align.BelowBoundary, align.Overall(of(t, "unused-slots"), align.DefaultBoundary))
	require.Equal(t, align.Aligned, align.Overall(of(t, "unused-slots"), align.BoundaryOf(32768)))
	l := of(t, "logical-chain")
	l.Partitions = l.Partitions[1:2]
	require.Equal(t, table.Extended, l.Partitions[0].Kind)
	require.Equal(t, align.NothingToJudge, align.Overall(l, align.DefaultBoundary))
	require.Equal(t, align.NoPartitions, align.ContentOf(l))
}

// A newcomer reads the fault and its cost, in numbers that fit the volume.
func TestTextOfFindings(t *testing.T) {
	part := func(lba int64, v volume.Volume) *layout.Layout {
		return &layout.Layout{Partitions: []boot.Partition{{
			Partition: table.Partition{Range: disk.Range{Off: lba * 512, Len: 1 << 20}, Number: 1, Kind: table.Primary},
			Volume:    &v,
		}}}
	}
	for _, tc := range []struct {
		name string
		l    *layout.Layout
		code string
		want string
	}{
		{
			"4 KiB clusters", part(63, vol(volume.NTFS, 4096, 0)), "misaligned",
			"each 4 KiB cluster touches two 4 KiB blocks of the storage instead of one",
		},
		{
			"32 KiB clusters", part(63, vol(volume.FAT16, 32768, 0)), "misaligned",
			"each 32 KiB cluster touches 9 blocks of 4 KiB of the storage instead of 8",
		},
		{"blocks of ext", part(63, vol(volume.Ext3, 4096, 0)), "misaligned", "each 4 KiB block touches two"},
		{
			"blocks of 1 KiB", part(63, vol(volume.Ext3, 1024, 0)), "misaligned",
			"one 1 KiB block in 4 lies across two 4 KiB blocks",
		},
		{
			"below the boundary", part(64, vol(volume.NTFS, 4096, 0)), "below-boundary",
			"32 KiB past a multiple of 64 KiB",
		},
		{
			"data of a fat", part(128, vol(volume.FAT32, 4096, 1024*9)),
			"nested-misaligned", "first fat32 cluster is at byte 74752, 1024 bytes past",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := align.Check(tc.l, align.Goal{Must: align.DefaultBoundary, Want: align.Kept})
			require.Len(t, got, 1)
			require.Equal(t, tc.code, got[0].Code)
			require.Equal(t, "partition 1", got[0].Subject)
			require.Contains(t, got[0].Text, tc.want)
		})
	}
}

// An issue about a move is not reported if nothing moves, or only another partition.
func TestRelevantIssues(t *testing.T) {
	issues := []ondisk.Issue{
		{Code: "always", Effect: ondisk.Warn},
		{Code: "when 1 moves", Effect: ondisk.Unbootable, OnMove: true, Partition: 1},
		{Code: "when any moves", Effect: ondisk.Refuse, OnMove: true},
	}
	codes := func(moves map[int]bool) []string {
		var out []string
		for _, f := range align.Relevant(issues, moves) {
			out = append(out, f.Code)
		}
		return out
	}
	require.Equal(t, []string{"always"}, codes(nil))
	require.Equal(t, []string{"always"}, codes(map[int]bool{1: false}))
	require.Equal(t, []string{"always", "when any moves"}, codes(map[int]bool{2: true}))
	require.Equal(t, []string{"always", "when 1 moves", "when any moves"}, codes(map[int]bool{1: true}))
	l := of(t, "xp-lba63-one-ntfs")
	l.Issues = []ondisk.Issue{
		{Code: "size", Text: "too large", Effect: ondisk.Warn},
		{Code: "size", Text: "too large", Effect: ondisk.Refuse, OnMove: true},
	}
	found := align.Check(l, align.Goal{Must: align.DefaultBoundary})
	require.Len(t, found, 2, "the start, and once what is too large")
	require.Equal(t, ondisk.Refuse, found[1].Effect)
	require.Equal(t, align.Error, align.FromIssue(issues[1]).Severity)
	require.Equal(t, align.Warning, align.FromIssue(issues[0]).Severity)
	require.Equal(t, align.Info, align.FromIssue(ondisk.Issue{}).Severity)
}
