package realign

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/diskcopy"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/disktest/oddfs"
	"github.com/trueup/trueup/internal/image/ova"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/ovf"
	"github.com/trueup/trueup/internal/units"
)

// outcome is the result of a job, or its error.
type outcome struct{ Found, Error string }

// jobs are the jobs in a folder; they write to "copy".
var jobs = map[string]func(ctx context.Context, dir string) (string, error){
	"a disk": func(ctx context.Context, dir string) (string, error) {
		s, err := Open(filepath.Join(dir, "one.vmdk"), Reading{})
		if err != nil {
			return "", err
		}
		defer s.Close()
		p, err := s.Plan(Goal{})
		if err != nil {
			return "", err
		}
		to := File{Path: filepath.Join(dir, "copy", "one.qcow2"), Format: "qcow2"}
		w, err := (&Job{Full: true, Jobs: 1}).Write(ctx, s, p, to)
		return fmt.Sprint(w.Files, w.Copied), err
	},
	"what is beside a disk": readJob("held/one.vmdk"),
	"a disk of an archive":  readJob("vm.ova!one.vmdk"),
	"an archive":            packageJob("vm.ova", "copy.ova"),
	"a folder":              packageJob("vm.ovf", "copy.ovf"),
	"a comparison":          comparePackages,
}

// parts are texts that outcomes must contain if no call fails.
var parts = map[string]string{"what is beside a disk": "busy snapshot-parent"}

// mayFail is the number of calls of each kind that may fail without effect: on the source those of a lock and of files
// that cannot be images, on the copy those of a trial, and of second names.
var mayFail = map[string]map[string]int{
	"what is beside a disk": {"open": 2, "opendir": 1, "read": 1},
	"a disk of an archive":  {"read": 1},
	"a disk":                {"link": 1, "lock": 5, "open": 6, "opendir": 1, "read": 3},
	"an archive":            {"link": 1, "lock": 6, "open": 1, "read": 5},
	"a folder":              {"link": 1, "lock": 8, "open": 3, "read": 5, "unlink": 3},
	"a comparison":          {"opendir": 4, "read": 10, "readdir": 1}, // reads the new positions again
}

// readJob opens a disk, and returns the codes of the issues beside it.
func readJob(path string) func(ctx context.Context, dir string) (string, error) {
	return func(_ context.Context, dir string) (codes string, err error) {
		s, err := Open(filepath.Join(dir, path), Reading{})
		if err != nil {
			return "", err
		}
		defer s.Close()
		for _, i := range s.Beside {
			codes += i.Code + " "
		}
		return codes, nil
	}
}

// packageJob copies a package.
func packageJob(from, to string) func(ctx context.Context, dir string) (string, error) {
	return func(ctx context.Context, dir string) (found string, err error) {
		src, err := OpenPackage(filepath.Join(dir, from))
		if err != nil {
			return "", err
		}
		defer func() { err = errors.Join(err, src.Close()) }()
		p, err := PlanPackage(src, Reading{}, Goal{})
		if err != nil {
			return "", err
		}
		defer p.Close()
		w, err := (&Job{Full: true, Jobs: 1}).WritePackage(ctx, p, File{Path: filepath.Join(dir, "copy", to)})
		return fmt.Sprint(w.Files, w.Copied, w.Dropped, w.Issues), err
	}
}

// comparePackages compares the aligned archive with the other.
func comparePackages(ctx context.Context, dir string) (found string, err error) {
	s, d, err := OpenPackages(filepath.Join(dir, "vm.ova"), filepath.Join(dir, "aligned.ova"))
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, s.Close(), d.Close()) }()
	others, err := (&Job{Jobs: 1}).VerifyPackages(ctx, s, d, Reading{}, func(v DiskVerified) {
		found += fmt.Sprintln(filepath.Base(v.Source), filepath.Base(v.Dest), len(v.Plan.Moves), v.Differences)
	})
	return fmt.Sprint(found, others), err
}

// order is a job and its folder. With Few it runs with more and more open files until it succeeds.
type order struct {
	Job, Dir string
	Few      bool
}

// do does a job.
func (o order) do(ctx context.Context) (found outcome) {
	var err error
	if o.Few {
		err = disktest.FewDescriptors(func() error {
			_, err := jobs[o.Job](ctx, o.Dir)
			if errors.Is(err, ondisk.ErrNoMatch) { // what cannot be opened is not a package
				err = syscall.EMFILE
			}
			return err
		})
	} else {
		found.Found, err = jobs[o.Job](ctx, o.Dir)
	}
	if err != nil {
		return outcome{Error: err.Error()}
	}
	return found
}

// TestEveryCallOfAJobFails fails each call on the file system of a source and a copy in turn. The job ends as if
// nothing had failed, or returns the error, and leaves no copy or a whole one.
func TestEveryCallOfAJobFails(t *testing.T) {
	if oddfs.Answered(t, func(o order) outcome { return o.do(t.Context()) }) {
		return
	}
	if disktest.Raced {
		t.Skip("its processes have one goroutine each")
	}
	t.Parallel()
	made := t.TempDir()
	smallPackage(t, made)
	held := filepath.Join(made, "held")
	require.NoError(t, os.Mkdir(held, 0o755))
	require.NoError(t, os.Link(filepath.Join(made, "one.vmdk"), filepath.Join(held, "one.vmdk")))
	require.NoError(t, os.WriteFile(filepath.Join(held, "one.vmdk.lck"), nil, 0o644))
	disktest.Run(t, "qemu-img", "create", "-q", "-f", "vmdk", "-b", filepath.Join(held, "one.vmdk"), "-F", "vmdk",
		filepath.Join(held, "top.vmdk"))
	for job := range jobs {
		t.Run(job, func(t *testing.T) {
			t.Parallel()
			var j oddfs.Journal
			behind := t.TempDir()
			require.NoError(t, os.CopyFS(behind, os.DirFS(made)))
			mounted, copied := oddfs.Mount(t, behind, oddfs.Manners{Journal: &j}), filepath.Join(behind, "copy")
			ask := oddfs.Asker[order, outcome](t)
			require.NoError(t, os.MkdirAll(copied, 0o755))
			require.Empty(t, ask(order{job, behind, true}).Error)
			var want outcome
			var files map[string]string
			j.EachFails(func(fails bool) {
				require.NoError(t, os.RemoveAll(copied))
				require.NoError(t, os.Mkdir(copied, 0o755))
				got, now := ask(order{job, mounted, false}), map[string]string{}
				for _, name := range disktest.Names(t, copied) {
					b := disktest.ReadFile(t, filepath.Join(copied, name))
					if strings.HasPrefix(name, ".") {
						continue // a name that could not be removed
					}
					now[name] = fmt.Sprintf("%x", sha256.Sum256(b))
				}
				switch {
				case !fails:
					require.Empty(t, got.Error)
					requireSynced(t, job, j.Done())
					require.Contains(t, got.Found, parts[job])
					want, files = got, now
				case got.Error == "":
					j.Ignored()
					require.Equal(t, want, got, "%s failed", j.Failed())
					require.Equal(t, files, now, "%s failed", j.Failed())
				default:
					// A failed check only leads to its own message.
					if kind, _, _ := strings.Cut(j.Failed(), " "); !slices.Contains([]string{"lookup", "getattr"},
						kind) &&
						!strings.Contains(got.Error, "exists") &&
						!strings.Contains(got.Error, "is not a package") &&
						!strings.Contains(got.Error, ondisk.ErrNoMatch.Error()) {
						require.Contains(t, got.Error, syscall.EIO.Error(), "%s failed", j.Failed())
					}
					for name, sum := range now {
						require.Equal(t, files[name], sum, "%s failed: %s", j.Failed(), name)
					}
				}
			})
			j.RequireNoticed(t, mayFail[job])
			ask(order{job, oddfs.Mount(t, behind, oddfs.Failing("flush", syscall.EIO)), false}) // each close fails
		})
	}
}

// requireSynced requires that each file of a package is durable after its last byte, and before it has its name.
func requireSynced(t *testing.T, job string, done []string) {
	t.Helper()
	files, ok := map[string]int{"an archive": 1, "a folder": 4}[job]
	if !ok {
		return
	}
	at := max(lastOf(done, "write"), lastOf(done, "truncate"))
	require.Positive(t, at)
	synced := 0
	for _, op := range done[at:] {
		if op == "fsync" {
			synced++
		} else if strings.HasPrefix(op, "link") || strings.HasPrefix(op, "rename") {
			break
		}
	}
	require.Equal(t, files, synced, done[at:])
}

func lastOf(all []string, one string) int {
	last := -1
	for i, x := range all {
		if x == one {
			last = i
		}
	}
	return last
}

// smallPackage makes a package of two disks in a folder, as an OVF with a manifest and as an archive, and the aligned
// copy of the archive.
func smallPackage(t *testing.T, dir string) {
	t.Helper()
	for name, start := range map[string]uint32{"one": 63, "two": 2048} {
		f := tableforge.NewMBR(4096, tableforge.Slot{Type: 0xda, Start: start, Sectors: 300})
		f.Text(int64(start+7)*units.SectorSize, "the data of "+name)
		raw := filepath.Join(t.TempDir(), "disk.img")
		require.NoError(t, os.WriteFile(raw, f, 0o644))
		path := filepath.Join(dir, name+".vmdk")
		disktest.Run(t, "qemu-img", "convert", "-f", "raw", "-O", "vmdk", "-o", "subformat=streamOptimized", raw, path)
	}
	text := strings.ReplaceAll(envelope, "25165824", fmt.Sprint(4096*units.SectorSize))
	text = strings.ReplaceAll(text, ` ovf:size="%d"`, "")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "vm.ovf"), []byte(text), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "vm.cert"), []byte("signed"), 0o644))
	all := []string{"vm.ovf", "one.vmdk", "two.vmdk"}
	var manifest strings.Builder
	for _, name := range all {
		b := disktest.ReadFile(t, filepath.Join(dir, name))
		fmt.Fprintf(&manifest, "SHA256(%s)= %x\n", name, sha256.Sum256(b))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "vm.mf"), []byte(manifest.String()), 0o644))
	all = slices.Insert(all, 1, "vm.mf", "vm.cert")
	disktest.Run(t, "tar", append([]string{"-C", dir, "--format=ustar", "-cf", filepath.Join(dir, "vm.ova")},
		all...)...)
	found, err := packageJob("vm.ova", "../aligned.ova")(t.Context(), dir)
	require.NoError(t, err)
	require.Contains(t, found, "aligned.ova")
}

// A capacity contradicts a larger disk, and one that is smaller by a whole unit.
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

// twoDisks is an OVA, packed by tar, of two disks made by qemu-img: a misaligned one at LBA 63 and an aligned one. raw
// is the first.
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

	// A disk that stays misaligned was copied, and is not an aligned copy of another disk.
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

// After an error, nothing of a package is left.
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

// The disks of a machine are planned together.
func TestMachinesOf(t *testing.T) {
	packed, _ := twoDisks(t)
	src, err := ova.Open(packed, nil)
	require.NoError(t, err)
	defer src.Close()
	m := MachinesOf(src, Goal{}, func(d ova.Disk) (*Source, error) { return openMember(src, d, Reading{}) })
	require.Len(t, m, 1)
}
