package plan_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/verify"
)

// refusing returns a disk of one partition, and a stored position of it that cannot hold another place.
func refusing(t *testing.T, loss string) (disk.Disk, *layout.Layout) {
	t.Helper()
	d := disktest.Memory(tableforge.NewMBR(20_000, slot(0x83, 63, 2000)))
	l := read(t, d)
	l.Boot.Refs = append(l.Boot.Refs, boot.Ref{
		Kind: "position", Partition: 1, File: "file", At: []disk.Range{{Off: 70 * sector, Len: 4}},
		Raw: []byte("63!!"), Points: 63 * sector, Target: 1, Loss: loss, Remedy: "make it again",
		Encode: func([]byte, int64) ([]byte, error) { return nil, ondisk.ErrLimit },
	})
	return d, l
}

// A guest that boots without a position is aligned, and its user hears what stays.
func TestAPositionThatOnlyCostsSomething(t *testing.T) {
	d, l := refusing(t, "the manual is not found")
	p := newPlan(t, l, kept)
	require.Empty(t, p.Refusals(false))
	require.False(t, p.Idle())
	p.Grow(l, p.Size+mib)
	require.Len(t, p.Moves, 1)
	for _, patch := range p.Patches {
		require.Less(t, patch.Off, int64(sector), "nothing but the table changes")
	}
	r := p.References(l)[0]
	require.False(t, r.Follows())
	require.Equal(t, r.Points, r.To)
	require.Contains(t, r.Stays, "byte 1048576 cannot be written there: limit exceeded")
	notes := coded(p.Notes, "reference-stays")
	require.Len(t, notes, 1)
	require.Equal(t, align.Warning, notes[0].Severity)
	require.Equal(t, 1, notes[0].Partition)
	require.Contains(t, notes[0].Text, "position in \"file\" of partition 1 is not changed, so the manual is not "+
		"found: ")
	require.Equal(t, "make it again", notes[0].Remedy)

	after := read(t, p.View(d))
	stays := l.Boot.Refs[0]
	stays.Target = 0
	after.Boot.Refs = append(after.Boot.Refs, stays)
	again, err := plan.At(l, map[int]int64{1: mib}, false)
	require.NoError(t, err)
	require.NoError(t, verify.Promise(again, l, after))
}

// One without which it does not boot refuses the plan.
func TestAPositionThatCannotFollow(t *testing.T) {
	_, l := refusing(t, "")
	p := newPlan(t, l, kept)
	require.Len(t, p.Refusals(true), 1)
	require.Equal(t, "limit", p.Refusals(true)[0].Code)
}

// What cannot be rewritten points where it did, though its target moves.
func TestAPositionThatIsOnlyKnown(t *testing.T) {
	_, l := refusing(t, "")
	l.Boot.Refs[0].Encode = nil
	p := newPlan(t, l, kept)
	require.Len(t, p.Moves, 1)
	require.Equal(t, l.Boot.Refs[0].Points, p.References(l)[0].To)
}

// A place that is remembered in a file, where no partition starts now and one will, is mentioned.
func TestStrayReferences(t *testing.T) {
	stray := boot.Ref{Kind: "letter", File: "file", Points: mib}
	for name, c := range map[string]struct {
		change func(r *boot.Ref)
		notes  int
	}{
		"a letter":                         {func(*boot.Ref) {}, 1},
		"of a place that stays empty":      {func(r *boot.Ref) { r.Points = 2 * mib }, 0},
		"of a partition":                   {func(r *boot.Ref) { r.Target = 1 }, 0},
		"of another disk":                  {func(r *boot.Ref) { r.Disk = 7 }, 0},
		"a boot sector, which is no place": {func(r *boot.Ref) { r.File = "" }, 0},
	} {
		l := read(t, disktest.Memory(tableforge.NewMBR(20_000, slot(0x83, 63, 2000))))
		r := stray
		c.change(&r)
		l.Boot.Refs = []boot.Ref{r}
		p := newPlan(t, l, kept)
		notes := coded(p.Notes, "stray-reference")
		require.Len(t, notes, c.notes, name)
		require.True(t, c.notes == 0 || notes[0].Partition == 1, name)
	}
}

// A checksum covers two positions. It is made once, of both as they become, and again when the disk grows.
func TestChecksumOfTwoPositions(t *testing.T) {
	d := disktest.Memory(tableforge.NewMBR(20_000, slot(0x83, 63, 2000)))
	l := read(t, d)
	const at = 70 * sector
	made := 0
	seal := &boot.Seal{
		Name: "a log", At: []disk.Range{{Off: at, Len: 3}}, Raw: []byte{1, 2, 3},
		Make: func(b []byte) { b[2], made = b[0]+b[1], made+1 },
	}
	for i, becomes := range []byte{10, 20} {
		l.Boot.Refs = append(l.Boot.Refs, boot.Ref{
			Kind: "position", Partition: 1, File: "file", At: []disk.Range{{Off: at + int64(i), Len: 1}},
			Raw: seal.Raw[i:][:1], Points: 63 * sector, Target: 1, Seals: []*boot.Seal{seal},
			Encode: func([]byte, int64) ([]byte, error) { return []byte{becomes}, nil },
		})
	}
	p := newPlan(t, l, kept)
	require.Equal(t, 1, made) // it can be of many MiB, and thousands of references can share it
	for range 2 {
		sealed := 0
		for _, x := range p.Patches {
			if x.Reason == "checksum of a log" {
				sealed++
			}
		}
		require.Equal(t, 1, sealed)
		b, err := ondisk.Bytes(p.View(d), at+p.Moves[0].Delta(), 3)
		require.NoError(t, err)
		require.True(t, bytes.Equal([]byte{10, 20, 30}, b), "%v", b)
		p.Grow(l, p.Size+mib)
	}
	require.Equal(t, 1, made, "an MBR stays the same on a larger disk")
}
