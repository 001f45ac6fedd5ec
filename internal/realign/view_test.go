package realign

import (
	"bytes"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/ova"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/sys"
	"github.com/trueup/trueup/internal/verify"
)

// lentFile is a file of SOURCE.
type lentFile struct{ *bytes.Reader }

func (lentFile) Name() string { return "file" }

func lentFiles(rnd *rand.Rand, size int) (files []lentFile) {
	for range 2 {
		b := make([]byte, size)
		for i := range b {
			b[i] = byte(1 + rnd.IntN(255))
		}
		files = append(files, lentFile{bytes.NewReader(b)})
	}
	return files
}

// flatSource is a SOURCE whose files hold its disk byte for byte, and a plan with moves.
func flatSource() (*Source, *plan.Plan) {
	return &Source{Image: &image.Image{Image: &driver.Image{Flat: true}}}, &plan.Plan{Moves: []plan.Move{{}}}
}

// The files and the view together are the disk, and no byte is in both, or in a file twice.
func TestAViewIsTheWholeDisk(t *testing.T) {
	t.Parallel()
	const sector, sectors = 512, 400
	s, p := flatSource()
	for seed := range uint64(max(10, disktest.Sample(300))) {
		rnd := rand.New(rand.NewPCG(seed, 14))
		files := lentFiles(rnd, sectors*sector)
		var pieces []disk.Piece
		var patches []disk.Patch
		for at := int64(0); at < sectors; {
			r := disk.Range{Off: at * sector, Len: min(1+rnd.Int64N(60), sectors-at) * sector}
			if rnd.IntN(4) > 0 {
				from := rnd.Int64N(sectors - r.Len/sector + 1)
				pieces = append(pieces, disk.Piece{Range: r, Src: files[rnd.IntN(2)], At: from * sector})
			}
			if rnd.IntN(4) == 0 {
				b := bytes.Repeat([]byte{byte(seed)}, 1+rnd.IntN(int(r.Len)))
				patches = append(patches, disk.Patch{Off: r.Off + rnd.Int64N(1+r.Len-int64(len(b))), Old: b, New: b})
			}
			at += r.Len / sector
		}
		view := disk.Overlay(disk.New(sectors*sector, sector, disk.Pieces(sectors*sector, pieces, nil)), patches)
		want, err := ondisk.Bytes(view, 0, view.Size())
		require.NoError(t, err)

		lent, own, err := s.lent(p, view)
		require.NoError(t, err, "seed %d", seed)
		var all []disk.Piece
		for i, x := range lent {
			require.Zero(t, x.Off%sector+x.Len%sector+x.At%sector)
			require.False(t, shown(lent[:i], x), "seed %d: a byte of a file is shown twice", seed)
			if i == 0 && x.Off > 0 || i > 0 && x.Off > lent[i-1].End() {
				require.Zero(t, x.Off%align.Block, "seed %d: a block is cut", seed)
			}
			if i == 0 || x.Off > lent[i-1].End() {
				require.NotZero(t, x.At, "seed %d: it could be taken for a disk of its own", seed)
			}
			all = append(all, x)
			zero, err := ondisk.Bytes(own, x.Off, x.Len)
			require.NoError(t, err)
			require.True(t, ondisk.IsZero(zero), "seed %d: stored although a file holds it", seed)
		}
		for _, r := range disk.Gaps(disk.Range{Len: view.Size()}, lent) {
			all = append(all, disk.Piece{Range: r, Src: own, At: r.Off})
		}
		slices.SortFunc(all, func(a, b disk.Piece) int { return int(a.Off - b.Off) })
		disktest.CheckBytes(t, disk.New(view.Size(), sector, disk.Pieces(view.Size(), all, nil)), want)
	}
}

// A view does not begin a range with byte 0 of a file, because a disk that begins at the start of its files is not
// recognized as a view. A file with a changed last block is used without that block.
func TestAViewTakesNoFirstByte(t *testing.T) {
	t.Parallel()
	const size = 8 * align.Block
	first, second := lentFile{bytes.NewReader(make([]byte, size))}, lentFile{bytes.NewReader(make([]byte, size))}
	s, p := flatSource()
	pieces := []disk.Piece{{Range: disk.Range{Off: 2 * align.Block, Len: size}, Src: second}}
	moved := disk.New(3*size, 512, disk.Pieces(3*size, pieces, nil))
	lent, _, err := s.lent(p, moved)
	require.NoError(t, err)
	require.Equal(t, []disk.Piece{
		{Range: disk.Range{Off: 3 * align.Block, Len: size - align.Block}, Src: second, At: align.Block},
	}, lent)
	patched := disk.Overlay(disk.New(size, 512, disk.Whole(first, size)),
		[]disk.Patch{{Off: size - 1, Old: []byte{0}, New: []byte{1}}})
	lent, _, err = s.lent(p, patched)
	require.NoError(t, err)
	require.Equal(t, []disk.Piece{
		{Range: disk.Range{Off: align.Block, Len: size - 2*align.Block}, Src: first, At: align.Block},
	}, lent)
}

// A view has at most as many stretches as QEMU can open files.
func TestAViewHasABound(t *testing.T) {
	t.Parallel()
	const apart = 4 * align.Block
	s, p := flatSource()
	file := lentFile{bytes.NewReader(make([]byte, 2*maxLent*apart))}
	for n, want := range map[int]bool{maxLent - 1: true, maxLent: false, 2*maxLent - 1: false} {
		var patches []disk.Patch
		for i := range int64(n) {
			patches = append(patches, disk.Patch{Off: (i + 1) * apart, Old: []byte{0}, New: []byte{7}})
		}
		whole := disk.New(file.Size(), 512, disk.Whole(file, file.Size()))
		lent, _, err := s.lent(p, disk.Overlay(whole, patches))
		if want {
			require.NoError(t, err)
			require.Len(t, lent, maxLent)
			continue
		}
		require.ErrorContains(t, err, "more than 256 stretches")
	}
}

// A disk that stretches of files cannot show is refused, with the needs of a copy.
func TestRefusedViews(t *testing.T) {
	t.Parallel()
	s, p := flatSource()
	file := lentFile{bytes.NewReader(make([]byte, 2*(maxShown+1)*512))}
	var scattered []disk.Piece
	for at := int64(0); at < file.Size(); at += 2 * 512 {
		scattered = append(scattered, disk.Piece{Range: disk.Range{Off: at, Len: 512}, Src: file, At: at})
	}
	for says, pieces := range map[string][]disk.Piece{
		"more than 256 stretches": scattered, "no block of its files": scattered[:10],
	} {
		_, _, err := s.lent(p, disk.New(file.Size(), 512, disk.Pieces(file.Size(), pieces, nil)))
		require.ErrorContains(t, err, says)
		require.ErrorContains(t, err, "refused")
	}
	broken := disk.New(1<<20, 512, func(int64) (disk.Run, error) { return disk.Run{}, disktest.ErrFault })
	_, _, err := s.lent(p, broken)
	require.ErrorIs(t, err, disktest.ErrFault)
}

// A view shows the disk of a copy, with warnings that a copy does not need. Other sources cannot have a view.
func TestJobOfAView(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	raw := oldLinux(t, dir)
	job := func(s *Source, g Goal) (Written, error) {
		p, err := s.Plan(g)
		require.NoError(t, err)
		return (&Job{Jobs: 1}).Write(t.Context(), s, p, View{Path: filepath.Join(dir, "view.vmdk")})
	}
	w, err := job(open(t, raw), Goal{})
	require.NoError(t, err)
	require.Equal(t, []string{"view", "view-writes"}, []string{w.Notes[0].Code, w.Notes[1].Code})
	flat := converted(t, raw, "copy.raw", "raw")
	disktest.Run(t, "qemu-img", "convert", "-f", "vmdk", "-O", "raw", filepath.Join(dir, "view.vmdk"), flat)
	requireAligned(t, raw, flat, "raw")
	was := disktest.Names(t, dir)
	_, err = job(open(t, flat), Goal{})
	require.ErrorIs(t, err, ondisk.ErrUsage)
	require.ErrorContains(t, err, "nothing moves")
	packed, _ := twoDisks(t)
	for says, path := range map[string]string{
		"this is qcow2": converted(t, raw, "disk.qcow2", "qcow2"), "a disk of a package": packed + "!one.vmdk",
		"as a view does": filepath.Join(dir, "view.vmdk"),
	} {
		s, err := Open(path, Reading{})
		require.NoError(t, err)
		defer s.Close()
		_, err = job(s, Goal{})
		require.ErrorContains(t, err, says)
	}
	require.Subset(t, append(was, "disk.qcow2"), disktest.Names(t, dir))
}

// A disk that maps a device may be that device: it is copied, but not moved in place, exchanged, or shown by a view.
func TestMapsOfDevicesAreOnlyCopied(t *testing.T) {
	t.Parallel()
	raw := smallDisk(t)
	dir := filepath.Dir(raw)
	for kind, extent := range map[string]string{
		"fullDevice":                  `RW 8192 FLAT "disk.img" 0`,
		"partitionedDevice":           `RW 8192 FLAT "disk.img" 0`,
		"vmfsRaw":                     `RW 8192 VMFSRAW "disk.img"`,
		"vmfsRDM":                     `RW 8192 VMFSRDM "disk.img"`,
		"vmfsRDMP":                    `RW 8192 VMFSRDM "disk.img"`,
		"vmfsRawDeviceMap":            `RW 8192 VMFSRDM "disk.img"`,
		"vmfsPassthroughRawDeviceMap": `RW 8192 VMFSRDM "disk.img"`,
		"custom":                      `RW 8192 VMFSRDM "disk.img"`,
	} {
		path := filepath.Join(dir, kind+".vmdk")
		require.NoError(t, os.WriteFile(path, []byte(vmdkforge.Descriptor(kind, extent)), 0o600))
		s := open(t, path)
		p := mustPlan(t, s)
		was, names := content(t, raw), disktest.Names(t, dir)
		for way, run := range map[string]func() (Written, error){
			"in place": func() (Written, error) { return (&Job{Jobs: 1}).MoveInPlace(t.Context(), s, p, Move{}) },
			"exchange": func() (Written, error) {
				return (&Job{Jobs: 1}).Write(t.Context(), s, p, Replace{})
			},
			"view": func() (Written, error) {
				return (&Job{Jobs: 1}).Write(t.Context(), s, p, View{Path: filepath.Join(dir, "view.vmdk")})
			},
		} {
			_, err := run()
			require.ErrorContains(t, err, "it maps a device", "%s, %s", kind, way)
			require.Equal(t, "unsupported", Code(err))
			require.Equal(t, was, content(t, raw))
			require.Equal(t, names, disktest.Names(t, dir))
		}
		_, err := (&Job{Jobs: 1}).Write(t.Context(), s, p, File{Path: filepath.Join(t.TempDir(), "copy.vmdk")})
		require.NoError(t, err)
		require.NoError(t, os.Remove(path))
	}
}

// held reports whether QEMU could not open a file for writing. Spec: QEMU block/file-posix.c, RAW_LOCK_SHARED_BASE.
func held(t *testing.T, path string) bool {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	locked, err := sys.FromOS(f).LockedByte(201)
	require.NoError(t, err)
	return locked
}

// A served disk is the planned one, and its source is locked until the end; a change of the source is found.
func TestServedDisk(t *testing.T) {
	t.Parallel()
	raw := oldLinux(t, t.TempDir())
	s := open(t, raw)
	p := mustPlan(t, s)
	view, err := s.View(p)
	require.NoError(t, err)
	want, err := io.ReadAll(io.NewSectionReader(view, 0, view.Size()))
	require.NoError(t, err)
	v, err := s.Serve(t.Context(), p)
	require.NoError(t, err)
	disktest.CheckBytes(t, v.Disk, want)
	require.True(t, held(t, raw))
	require.NoError(t, v.Fit())
	require.NoError(t, os.Chtimes(raw, time.Unix(1, 0), time.Unix(1, 0)))
	require.ErrorIs(t, v.Fit(), ondisk.ErrChanged)
	v.Close()
	require.False(t, held(t, raw))
}

// A disk that cannot be copied is not served, and its source is not locked.
func TestDisksThatAreNotServed(t *testing.T) {
	t.Parallel()
	raw := oldLinux(t, t.TempDir())
	s := open(t, raw)
	p := mustPlan(t, s)
	p.Patches[0].Old = append([]byte{^p.Patches[0].Old[0]}, p.Patches[0].Old[1:]...)
	_, err := s.Serve(t.Context(), p)
	require.ErrorIs(t, err, verify.ErrDifferent)
	require.False(t, held(t, raw))

	dir := t.TempDir()
	smallPackage(t, dir)
	one := filepath.Join(dir, "one.vmdk")
	b := disktest.ReadFile(t, one)
	require.NoError(t, os.WriteFile(one, append(b, make([]byte, 512)...), 0o644)) // not the digest in the manifest
	m := member(t, filepath.Join(dir, "vm.ovf")+"!one.vmdk")
	p = mustPlan(t, m)
	_, err = m.Serve(t.Context(), p)
	require.ErrorIs(t, err, ova.ErrDigest)
	require.False(t, held(t, one))
}
