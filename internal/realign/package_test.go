package realign

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/diskcopy"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/image/ova"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/ovf"
)

// A capacity contradicts a disk that is larger, or smaller by a whole unit.
func TestCapacityIssues(t *testing.T) {
	for name, c := range map[string]struct {
		capacity, unit, size int64
		issues               int
	}{
		"equal":                {8 << 20, 1, 8 << 20, 0},
		"too small":            {8<<20 - 1, 1, 8 << 20, 1},
		"too large":            {8<<20 + 1, 1, 8 << 20, 1},
		"rounded up to a GiB":  {1 << 30, 1 << 30, 8 << 20, 0},
		"a GiB too large":      {2 << 30, 1 << 30, 1 << 30, 1},
		"chosen at deployment": {-1, 1, 8 << 20, 0},
	} {
		t.Run(name, func(t *testing.T) {
			d := ova.Disk{Member: "a.vmdk", Disks: []ovf.Disk{{ID: "d", Capacity: c.capacity, Unit: c.unit}}}
			require.Len(t, CapacityIssues(d, c.size), c.issues)
		})
	}
}

const envelope = `<?xml version="1.0"?>
<Envelope xmlns="http://schemas.dmtf.org/ovf/envelope/1" xmlns:ovf="http://schemas.dmtf.org/ovf/envelope/1">
  <References>
    <File ovf:id="f1" ovf:href="one.vmdk" ovf:size="%d"/>
    <File ovf:id="f2" ovf:href="two.vmdk" ovf:size="%d"/>
  </References>
  <DiskSection><Info>Disks</Info>
    <Disk ovf:diskId="d1" ovf:fileRef="f1" ovf:capacity="25165824"
     ovf:format="http://www.vmware.com/interfaces/specifications/vmdk.html#streamOptimized"/>
    <Disk ovf:diskId="d2" ovf:fileRef="f2" ovf:capacity="25165824"
     ovf:format="http://www.vmware.com/interfaces/specifications/vmdk.html#streamOptimized"/>
  </DiskSection>
  <VirtualSystem ovf:id="vm"><Info>VM</Info></VirtualSystem>
</Envelope>
`

// twoDisks is an OVA, as tar packs it, of two disks that qemu-img made: one at LBA 63 and one that is aligned. raw is
// the first.
func twoDisks(t *testing.T) (packed, raw string) {
	t.Helper()
	dir := t.TempDir()
	raw = oldLinux(t, dir)
	one := converted(t, raw, "one.vmdk", "vmdk", "-o", "subformat=streamOptimized")
	blank := filepath.Join(dir, "blank.img")
	disktest.MakeBlank(t, blank, diskSize)
	disktest.RunInput(t, "2048,8000,83\n", "sfdisk", "-q", blank)
	two := converted(t, blank, "two.vmdk", "vmdk", "-o", "subformat=streamOptimized")
	var sizes []any
	for _, path := range []string{one, two} {
		st := disktest.Stat(t, path)
		sizes = append(sizes, st.Size())
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "vm.ovf"), fmt.Appendf(nil, envelope, sizes...), 0o644))
	packed = filepath.Join(dir, "vm.ova")
	disktest.Run(t, "tar", "-C", dir, "--format=ustar", "-cf", packed, "vm.ovf", "one.vmdk", "two.vmdk")
	return packed, raw
}

func TestPackage(t *testing.T) {
	packed, raw := twoDisks(t)
	src, err := ova.Open(packed, nil)
	require.NoError(t, err)
	defer src.Close()
	p, err := PlanPackage(src, Reading{}, Goal{})
	require.NoError(t, err)
	defer p.Close()
	require.Len(t, p.Disks, 2)
	require.Len(t, p.Disks[0].Plan.Moves, 2)
	require.Empty(t, p.Disks[1].Plan.Moves)

	dir := t.TempDir()
	dest := filepath.Join(dir, "copy.ova")
	w, err := (&Job{Full: true, Jobs: 2}).WritePackage(t.Context(), p, File{Path: dest})
	require.NoError(t, err)
	require.Equal(t, []string{"copy.ova"}, w.Files)
	require.Positive(t, p.Disks[0].Copied)
	disktest.Run(t, "tar", "-C", dir, "-xf", dest)
	requireAligned(t, raw, filepath.Join(dir, "one.vmdk"), "vmdk")
	want := disktest.ReadFile(t, filepath.Join(filepath.Dir(packed), "two.vmdk"))
	got := disktest.ReadFile(t, filepath.Join(dir, "two.vmdk"))
	require.Equal(t, want, got, "a disk that does not move is copied as it is")

	verified := func(path string) (others []string, diffs []Difference) {
		s, d, err := OpenPackages(packed, path)
		require.NoError(t, err)
		defer s.Close()
		defer d.Close()
		others, err = (&Job{Jobs: 2}).VerifyPackages(t.Context(), s, d, Reading{}, func(v DiskVerified) {
			require.NotNil(t, v.Plan)
			diffs = append(diffs, v.Differences...)
		})
		require.NoError(t, err)
		return others, diffs
	}
	others, diffs := verified(dest)
	require.Empty(t, others)
	require.Empty(t, diffs)

	// A disk that stayed misaligned is what was copied, and is no aligned copy of another disk.
	disktest.Run(t, "cp", filepath.Join(dir, "one.vmdk"), filepath.Join(dir, "two.vmdk"))
	disktest.Run(t, "tar", "-C", dir, "--format=ustar", "-cf", dest, "vm.ovf", "one.vmdk", "two.vmdk")
	s, d, err := OpenPackages(packed, dest)
	require.NoError(t, err)
	defer s.Close()
	defer d.Close()
	_, err = (&Job{Jobs: 2}).VerifyPackages(t.Context(), s, d, Reading{},
		func(v DiskVerified) { diffs = append(diffs, v.Differences...) })
	require.NoError(t, err)
	require.NotEmpty(t, diffs)

	_, _, err = OpenPackages(packed, raw)
	require.ErrorIs(t, err, ondisk.ErrNoMatch)
	_, _, err = OpenPackages(raw, packed)
	require.ErrorIs(t, err, ondisk.ErrNoMatch)
}

// What goes wrong leaves nothing of a package either.
func TestNothingIsLeftOfAPackage(t *testing.T) {
	packed, _ := twoDisks(t)
	for _, phase := range []string{diskcopy.PhaseCopy, diskcopy.PhaseProve} {
		src, err := ova.Open(packed, nil)
		require.NoError(t, err)
		p, err := PlanPackage(src, Reading{}, Goal{})
		require.NoError(t, err)
		dir := t.TempDir()
		ctx, cancel := context.WithCancel(t.Context())
		j := Job{Full: true, Jobs: 2, Progress: watcher(func(now string) {
			if now == phase {
				cancel()
			}
		})}
		_, err = j.WritePackage(ctx, p, File{Path: filepath.Join(dir, "copy.ova")})
		require.ErrorIs(t, err, context.Canceled, phase)
		require.Empty(t, disktest.Names(t, dir))
		p.Close()
		require.NoError(t, src.Close())
	}
}

// A machine whose disks are planned together.
func TestMachinesOf(t *testing.T) {
	packed, _ := twoDisks(t)
	src, err := ova.Open(packed, nil)
	require.NoError(t, err)
	defer src.Close()
	m := MachinesOf(src, Goal{}, func(d ova.Disk) (*Source, error) { return openMember(src, d, Reading{}) })
	require.Len(t, m, 1)
}
