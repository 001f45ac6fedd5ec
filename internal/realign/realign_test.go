package realign

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/diskcopy"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
	"github.com/trueup/trueup/internal/verify"
)

const (
	sector   = 512
	diskSize = 24 << 20
)

// oldLinux is a raw disk like those of old Linux: an ext2 with files at LBA 63, followed by a partition with noise.
func oldLinux(t testing.TB, dir string) string {
	t.Helper()
	raw, files := filepath.Join(dir, "disk.img"), t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(files, "etc"), bytes.Repeat([]byte("text "), 100_000), 0o644))
	disktest.MakeBlank(t, raw, diskSize)
	disktest.RunInput(t, "label: dos\nlabel-id: 0x1234abcd\n63,20000,83\n20063,8000,da\n", "sfdisk", "-q", raw)
	disktest.Run(t, "mke2fs", "-q", "-F", "-t", "ext2", "-d", files, "-E", fmt.Sprintf("offset=%d", 63*sector), raw,
		"10000k")
	f, err := os.OpenFile(raw, os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	noise := make([]byte, 8000*sector)
	for i := range noise {
		noise[i] = byte(i*i>>9 | 1)
	}
	_, err = f.WriteAt(noise, 20063*sector)
	require.NoError(t, err)
	return raw
}

// converted converts a raw disk to a format with qemu-img.
func converted(t testing.TB, raw, name string, args ...string) string {
	t.Helper()
	path := filepath.Join(filepath.Dir(raw), name)
	disktest.Run(t, "qemu-img", slices.Concat([]string{"convert", "-f", "raw", "-O"}, args, []string{raw, path})...)
	return path
}

func open(t testing.TB, path string) *Source {
	t.Helper()
	img, err := image.Open(path, image.Options{})
	require.NoError(t, err)
	s, err := Read(img, Reading{})
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

// surveyed returns the survey of an image.
func surveyed(t *testing.T, path string) *Source {
	t.Helper()
	s, err := Survey(imagetest.Open(t, path))
	require.NoError(t, err)
	return s
}

// mustPlan plans a disk with the default goal.
func mustPlan(t testing.TB, s *Source) *Plan {
	t.Helper()
	p, err := s.Plan(Goal{})
	require.NoError(t, err)
	return p
}

// starts returns the starts and sizes of the partitions of a raw disk, in sectors, as sfdisk reads them.
func starts(t testing.TB, raw string) (out [][2]int64) {
	t.Helper()
	var table struct {
		Table struct {
			Partitions []struct{ Start, Size int64 }
		} `json:"partitiontable"`
	}
	require.NoError(t, json.Unmarshal([]byte(disktest.Output(t, "sfdisk", "-J", raw)), &table))
	for _, p := range table.Table.Partitions {
		out = append(out, [2]int64{p.Start, p.Size})
	}
	return out
}

func part(t testing.TB, raw string, where [2]int64) []byte {
	t.Helper()
	f, err := os.Open(raw)
	require.NoError(t, err)
	defer f.Close()
	b := make([]byte, where[1]*sector)
	_, err = f.ReadAt(b, where[0]*sector)
	require.NoError(t, err)
	return b
}

// requireAligned requires of a copy, as qemu-img and sfdisk read it, the partitions of raw at multiples of a mebibyte,
// and a sound file system according to e2fsck.
func requireAligned(t testing.TB, raw, copied, format string) {
	t.Helper()
	flat := filepath.Join(t.TempDir(), "copy.img")
	disktest.Run(t, "qemu-img", "convert", "-f", format, "-O", "raw", copied, flat)
	was, is := starts(t, raw), starts(t, flat)
	require.Len(t, is, len(was))
	for i := range was {
		require.Equal(t, was[i][1], is[i][1])
		require.Zero(t, is[i][0]%2048, "partition %d starts at %d", i+1, is[i][0])
		got, want := part(t, flat, is[i]), part(t, raw, was[i])
		if i == 0 { // the superblock has no hidden sectors
			system := filepath.Join(t.TempDir(), "system")
			require.NoError(t, os.WriteFile(system, got, 0o644))
			disktest.Run(t, "e2fsck", "-fn", system)
		}
		require.True(t, bytes.Equal(want, got), "partition %d has other bytes", i+1)
	}
}

func TestWriteAndVerify(t *testing.T) {
	raw := oldLinux(t, t.TempDir())
	for name, c := range map[string]struct {
		args []string
		qemu string
	}{
		"disk.raw":    {[]string{"raw"}, "raw"},
		"sparse.vmdk": {[]string{"vmdk"}, "vmdk"},
		"stream.vmdk": {[]string{"vmdk", "-o", "subformat=streamOptimized"}, "vmdk"},
		"split.vmdk":  {[]string{"vmdk", "-o", "subformat=twoGbMaxExtentSparse"}, "vmdk"},
		"disk.vhd":    {[]string{"vpc", "-o", "force_size=on"}, "vpc"},
		"disk.vhdx":   {[]string{"vhdx"}, "vhdx"},
		"disk.qcow2":  {[]string{"qcow2"}, "qcow2"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			disktest.Run(t, "cp", raw, filepath.Join(dir, "disk.img"))
			source := converted(t, filepath.Join(dir, "disk.img"), name, c.args...)
			dest := filepath.Join(t.TempDir(), "aligned-"+name)
			s := open(t, source)
			for _, full := range []bool{false, true} {
				p, err := s.Plan(Goal{Boundary: align.Kept})
				require.NoError(t, err)
				require.Len(t, p.Moves, 2)
				require.NoError(t, Acceptable(p, Goal{}))
				w, err := (&Job{Full: full, Jobs: 2}).Write(t.Context(), s, p, File{Path: dest, Force: true})
				require.NoError(t, err)
				require.Equal(t, s.Image.Format, w.Format)
				require.Equal(t, "aligned-"+name, w.Files[0])
				require.Positive(t, w.Copied)
				requireAligned(t, raw, dest, c.qemu)
			}
			p, diffs, err := (&Job{Jobs: 2}).Verify(t.Context(), s, open(t, dest), nil)
			require.NoError(t, err)
			require.Empty(t, diffs)
			require.Len(t, p.Moves, 2)

			again := open(t, dest) // nothing is left to do
			p, err = again.Plan(Goal{Boundary: align.Kept})
			require.NoError(t, err)
			require.Empty(t, p.Moves)
		})
	}
}

// watcher calls a function when a phase begins.
type watcher func(phase string)

func (w watcher) Begin(phase string, _ int64) { w(phase) }
func (watcher) Add(int64)                     {}

// An error while DEST is made leaves nothing of it.
func TestNothingIsLeft(t *testing.T) {
	for name, c := range map[string]struct {
		when string // the phase of the error
		does func(t *testing.T, source, partial string, cancel func())
		want error
		text string
	}{
		"the storage returns another byte": {when: diskcopy.PhaseProve, does: func(t *testing.T, _, partial string,
			_ func(),
		) {
			t.Helper()
			disktest.WriteAt(t, partial, 22_000*sector, []byte("other"))
		}, want: verify.ErrDifferent, text: "storage or memory of this machine is faulty; nothing was published"},
		"the source changes": {when: diskcopy.PhaseCopy, does: func(t *testing.T, source, _ string, _ func()) {
			t.Helper()
			disktest.WriteAt(t, source, 63*sector, []byte("new"))
			require.NoError(t, os.Chtimes(source, time.Time{}, time.Unix(1, 0)))
		}, want: ondisk.ErrChanged},
		"it is interrupted while it is copied": {when: diskcopy.PhaseCopy, does: func(_ *testing.T, _, _ string,
			cancel func(),
		) {
			cancel()
		}, want: context.Canceled},
		"it is interrupted while it is compared": {when: diskcopy.PhaseProve, does: func(_ *testing.T, _, _ string,
			cancel func(),
		) {
			cancel()
		}, want: context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			dir, to := t.TempDir(), t.TempDir()
			s := open(t, oldLinux(t, dir))
			p := mustPlan(t, s)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			j := Job{Full: true, Jobs: 2, Progress: watcher(func(phase string) {
				if phase == c.when {
					c.does(t, s.Path(), filepath.Join(to, ".copy.raw.partial"), cancel)
				}
			})}
			_, err := j.Write(ctx, s, p, File{Path: filepath.Join(to, "copy.raw"), Format: "raw"})
			require.ErrorIs(t, err, c.want)
			require.ErrorContains(t, err, c.text)
			require.Empty(t, disktest.Names(t, to))
		})
	}
}

// A copy without moves has the same bytes, also in another format.
func TestCopy(t *testing.T) {
	dir := t.TempDir()
	raw := oldLinux(t, dir)
	s := open(t, raw)
	p, err := s.Plan(Goal{Copy: true})
	require.NoError(t, err)
	require.Empty(t, p.Moves)
	dest := filepath.Join(dir, "copy.img")
	_, err = (&Job{Full: true, Jobs: 2}).Write(t.Context(), s, p, File{Path: dest, Format: "qcow2"})
	require.NoError(t, err)
	disktest.Run(t, "qemu-img", "compare", "-f", "raw", "-F", "qcow2", raw, dest)
}

// The costs in a plan equal the size in qemu-img's view of the source, and are at least the size of the copy.
func TestCost(t *testing.T) {
	dir := t.TempDir()
	path := oldLinux(t, dir)
	var runs []struct {
		Length int64
		Zero   bool
	}
	qemu := disktest.Run(t, "qemu-img", "map", "-f", "raw", "--output=json", path)
	require.NoError(t, json.Unmarshal([]byte(qemu), &runs))
	var data int64
	for _, r := range runs {
		if !r.Zero {
			data += r.Length
		}
	}
	s := open(t, path)
	p := mustPlan(t, s)
	plain, err := s.Cost(p)
	require.NoError(t, err)
	require.InEpsilon(t, data, plain.Read, 0.01, "holes of less than a chunk may count as data")
	require.Equal(t, plain.Write+plain.Write/100, plain.Need)
	w, err := (&Job{Full: true, Jobs: 2}).Write(t.Context(), s, p, File{Path: filepath.Join(dir, "copy.img")})
	require.NoError(t, err)
	require.LessOrEqual(t, w.Copied, plain.Write+2<<20, "chunks of the target are larger than a cluster")
	require.Greater(t, 2*w.Copied, plain.Write)
}

// BenchmarkWrite copies 64 MiB, noise and text alternately, with flush and proof, for profiles.
func BenchmarkWrite(b *testing.B) {
	const size = 64 << 20
	data := bytes.Repeat([]byte("Some text of a guest, line after line.\n"), size/39+1)[:size]
	for off := 0; off < size; off += 2 << 20 {
		_, _ = rand.NewChaCha8([32]byte{byte(off >> 20)}).Read(data[off : off+1<<20])
	}
	raw := filepath.Join(b.TempDir(), "disk.raw")
	require.NoError(b, os.WriteFile(raw, data, 0o600))
	for _, to := range []string{"raw", "vmdk:monolithicSparse", "vmdk:streamOptimized", "qcow2:compressed"} {
		b.Run(to, func(b *testing.B) {
			s := open(b, raw)
			p, err := s.Plan(Goal{Copy: true})
			require.NoError(b, err)
			t, err := ParseTarget(to)
			require.NoError(b, err)
			j := &Job{Full: true, Jobs: runtime.GOMAXPROCS(0)}
			to := File{Path: filepath.Join(b.TempDir(), "copy"), Format: t.Format, Subformat: t.Subformat}
			b.SetBytes(size)
			b.ReportAllocs()
			for b.Loop() {
				_, err := j.Write(b.Context(), s, p, to)
				require.NoError(b, err)
				require.NoError(b, os.Remove(to.Path))
			}
		})
	}
}

// After a copy that is large compared to the memory, little of both files is cached, after a small one all of DEST.
// Data that were cached before stay.
func TestLargeCopyPassesTheMemory(t *testing.T) {
	const size = 128 << 20
	raw := filepath.Join(t.TempDir(), "disk.raw")
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(i>>12 | 1)
	}
	require.NoError(t, os.WriteFile(raw, data, 0o600))
	source, err := os.Open(raw)
	require.NoError(t, err)
	defer source.Close()
	disktest.OnUnix(t, "caches")
	require.NoError(t, source.Sync())
	if !sys.FromOS(source).Uncache() {
		t.Skip("memory is the storage here, or the kernel does not say what it keeps")
	}
	kept := func(path string) (n int64) {
		_, err := fmt.Sscan(disktest.Run(t, "fincore", "-b", "-n", "-r", "-o", "RES", path), &n)
		require.NoError(t, err)
		return n
	}
	const half = size / 2 // of smaller runs, the data since the last notice to the kernel stay
	for _, c := range []struct {
		memory       int64
		source, dest bool // stay cached
	}{
		{1, false, false},
		{1 << 50, true, true},
		{1, true, false}, // SOURCE is cached since the copy before
	} {
		s := open(t, raw)
		p, err := s.Plan(Goal{Copy: true})
		require.NoError(t, err)
		dest := filepath.Join(t.TempDir(), "copy")
		j := &Job{Full: true, Jobs: 2, memory: c.memory}
		_, err = j.Write(t.Context(), s, p, File{Path: dest, Format: "raw"})
		require.NoError(t, err)
		require.Equal(t, c.source, kept(raw) > half, "%d", kept(raw))
		require.Equal(t, c.dest, kept(dest) > half, "%d", kept(dest))
	}
}
