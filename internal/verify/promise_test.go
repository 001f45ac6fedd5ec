package verify_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/verify"
)

func readLayout(t *testing.T, d disk.Disk) *layout.Layout {
	t.Helper()
	l, err := layout.Read(d, table.Geometry{})
	require.NoError(t, err)
	require.NoError(t, l.ReadGaps(d))
	return l
}

// aligned returns the two-NTFS disk of the corpus, its plan, and the view: the partitions go to LBA 2048 and 4196352.
func aligned(t *testing.T) (*plan.Plan, *layout.Layout, disk.Disk) {
	t.Helper()
	src := disktest.Fixture(t, disktest.Fixtures(t)["two-ntfs-lba63-and-cylinder"])
	before := readLayout(t, src)
	p, err := plan.New(before, align.GoalFor(before, align.Boundary{}))
	require.NoError(t, err)
	return p, before, p.View(src)
}

func TestPromiseIsKept(t *testing.T) {
	p, before, view := aligned(t)
	after := readLayout(t, view)
	require.NoError(t, verify.Promise(p, before, after))
	require.NoError(t, verify.Stable(after, p.Goal))
	starts, err := verify.Starts(before, after)
	require.NoError(t, err)
	require.Equal(t, map[int]int64{1: 2048 * 512, 2: 4196352 * 512}, starts)
}

// Each of these copies has one thing wrong that a user would find out about in the guest.
func TestPromiseBroken(t *testing.T) {
	const entry1, entry2 = 446, 462
	const first, second = 2048 * 512, 4196352 * 512
	for _, tc := range []struct {
		name, want string
		off        int64
		bytes      []byte
	}{
		{"a partition elsewhere", "partition 1 is primary", entry1 + 8, []byte{0, 16, 0, 0}},
		{"a partition of another size", "partition 2 is primary", entry2 + 12, []byte{1}},
		{"another type", "partition 2 is primary 0x17", entry2 + 4, []byte{0x17}},
		{"not active any more", "partition 1 is primary", entry1, []byte{0}},
		{"a partition is gone", "1 partitions, want 2", entry2 + 4, []byte{0}},
		{"the volume is another", "partition 1 holds ntfs", first + 0x48, []byte{1, 2, 3, 4, 5, 6, 7, 8}},
		{"the volume is gone", "partition 2 holds unknown", second + 3, []byte("nothing ")},
		{
			"hidden sectors of the old place", "ntfs hidden sectors of partition 1 point to byte 32256", first + 0x1c,
			[]byte{63, 0, 0, 0},
		},
		{
			"the backup of the boot sector too", "ntfs hidden sectors, backup boot sector of partition 2",
			second + 4176899*512 + 0x1c,
			[]byte{1, 1, 1, 1},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, before, view := aligned(t)
			after := readLayout(t, disk.Overlay(view, []disk.Patch{{Off: tc.off, New: tc.bytes}}))
			err := verify.Promise(p, before, after)
			require.ErrorIs(t, err, verify.ErrDifferent)
			require.ErrorContains(t, err, tc.want)
		})
	}
}

// Every field of a partition, of its volume and of a reference is compared, whatever else is right.
func TestPromiseComparesEveryField(t *testing.T) {
	p, before, view := aligned(t)
	for name, change := range map[string]func(x *boot.Partition, r *boot.Ref){
		"number":               func(x *boot.Partition, _ *boot.Ref) { x.Number = 9 },
		"kind":                 func(x *boot.Partition, _ *boot.Ref) { x.Kind = table.Logical },
		"slot":                 func(x *boot.Partition, _ *boot.Ref) { x.Slot++ },
		"active":               func(x *boot.Partition, _ *boot.Ref) { x.Active = !x.Active },
		"type":                 func(x *boot.Partition, _ *boot.Ref) { x.Type = 0x83 },
		"GUID":                 func(x *boot.Partition, _ *boot.Ref) { x.GUID = "another" },
		"name":                 func(x *boot.Partition, _ *boot.Ref) { x.Name = "another" },
		"start":                func(x *boot.Partition, _ *boot.Ref) { x.Off += 1 << 20 },
		"size":                 func(x *boot.Partition, _ *boot.Ref) { x.Len += 512 },
		"kind of volume":       func(x *boot.Partition, _ *boot.Ref) { x.Volume.Kind = "ext4" },
		"UUID":                 func(x *boot.Partition, _ *boot.Ref) { x.Volume.UUID = "another" },
		"size of volume":       func(x *boot.Partition, _ *boot.Ref) { x.Volume.Size += 512 },
		"kind of reference":    func(_ *boot.Partition, r *boot.Ref) { r.Kind = "another" },
		"disk of reference":    func(_ *boot.Partition, r *boot.Ref) { r.Disk = 7 },
		"its partition":        func(_ *boot.Partition, r *boot.Ref) { r.Partition = 2 },
		"its file":             func(_ *boot.Partition, r *boot.Ref) { r.File = "another" },
		"its place":            func(_ *boot.Partition, r *boot.Ref) { r.Off += 4 },
		"what it points to":    func(_ *boot.Partition, r *boot.Ref) { r.Points += 512 },
		"its target":           func(_ *boot.Partition, r *boot.Ref) { r.Target = 2 },
		"from where it counts": func(_ *boot.Partition, r *boot.Ref) { r.FromRecord = true },
	} {
		after := readLayout(t, view)
		require.Equal(t, 1, after.Boot.Refs[0].Target)
		change(&after.Partitions[0], &after.Boot.Refs[0])
		require.ErrorIs(t, verify.Promise(p, before, after), verify.ErrDifferent, name)
	}
	after := readLayout(t, view)
	after.Boot.Refs = after.Boot.Refs[1:]
	require.ErrorContains(t, verify.Promise(p, before, after), "references, want")

	// An entry of a GPT has two types where a hybrid MBR mirrors it.
	for name, change := range map[string]func(x *boot.Partition){
		"": func(*boot.Partition) {}, "of the GPT": func(x *boot.Partition) { x.TypeGUID = "another" },
		"of the MBR": func(x *boot.Partition) { x.Type = 0x83 },
	} {
		after := readLayout(t, view)
		before.Partitions[0].Kind, after.Partitions[0].Kind = table.Entry, table.Entry
		change(&after.Partitions[0])
		require.Equal(t, name == "", verify.Promise(p, before, after) == nil, name)
	}
}

// A reference that stays as found may lie in a partition that moves: which one it points into is not promised.
func TestPromiseOfAReferenceThatStays(t *testing.T) {
	p, before, view := aligned(t)
	after := readLayout(t, view)
	was, is := &before.Boot.Refs[0], &after.Boot.Refs[0]
	was.Encode, is.Points, is.Target = nil, was.Points, 0
	require.NoError(t, verify.Promise(p, before, after))
}

// What moved lies on the boundary; what did not may lie anywhere.
func TestPromiseOfTheBoundary(t *testing.T) {
	p, before, _ := aligned(t)
	stay := plan.Copy(before.Size)
	stay.Goal = p.Goal
	require.NoError(t, verify.Promise(stay, before, before), "nothing moves")
	for _, m := range p.Moves {
		stay.Moves = append(stay.Moves, plan.Move{Partition: m.Partition, From: m.From, To: m.From, Len: m.Len})
	}
	require.ErrorContains(t, verify.Promise(stay, before, before), "off the boundary of 64K")
}

func TestUnsettledResult(t *testing.T) {
	src := disktest.Fixture(t, disktest.Fixtures(t)["two-ntfs-lba63-and-cylinder"])
	before := readLayout(t, src)
	err := verify.Stable(before, align.GoalFor(before, align.Boundary{}))
	require.ErrorIs(t, err, verify.ErrDifferent)
	require.ErrorContains(t, err, "would move again")
	goal := align.Goal{Must: align.SmallestBoundary, Want: align.Kept, Only: []int{7}}
	require.ErrorIs(t, verify.Stable(before, goal), plan.ErrSelection)
}

// A damaged GPT would be written right again, though nothing moves.
func TestUnsettledTable(t *testing.T) {
	src := disktest.Fixture(t, disktest.Fixtures(t)["gpt"])
	l := readLayout(t, src)
	goal := align.GoalFor(l, align.Boundary{})
	p, err := plan.New(l, goal)
	require.NoError(t, err)
	view := p.View(src)
	require.NoError(t, verify.Stable(readLayout(t, view), goal))
	damaged := readLayout(t, disk.Overlay(view, []disk.Patch{{Off: view.Size() - 512 + 16, New: []byte{1, 2, 3, 4}}}))
	require.True(t, damaged.Damaged())
	require.NoError(t, verify.Stable(damaged, goal), "what is damaged stays so unless it is to be mended")
	goal.Mend = true
	err = verify.Stable(damaged, goal)
	require.ErrorIs(t, err, verify.ErrDifferent)
	require.ErrorContains(t, err, "would change again")
}

func TestStartsOfOtherDisks(t *testing.T) {
	_, before, view := aligned(t)
	other := func(name string) *layout.Layout {
		return readLayout(t, disktest.Fixture(t, disktest.Fixtures(t)[name]))
	}
	for name, after := range map[string]*layout.Layout{
		"another scheme":         other("gpt"),
		"no table":               readLayout(t, empty(4<<30)),
		"a partition is missing": other("xp-lba63-one-ntfs"),
	} {
		_, err := verify.Starts(before, after)
		require.ErrorIs(t, err, verify.ErrDifferent, name)
	}
	_, err := verify.Starts(readLayout(t, empty(4<<30)), readLayout(t, view))
	require.ErrorIs(t, err, verify.ErrDifferent)
	_, err = verify.Starts(readLayout(t, empty(4<<30)), readLayout(t, empty(4<<30)))
	require.NoError(t, err, "neither has a table")
}
