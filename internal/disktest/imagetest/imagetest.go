// Package imagetest opens, writes and compares images, for the tests of formats and of packages that store images.
package imagetest

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/diskcopy"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
)

// Open opens an image until the test ends.
func Open(t *testing.T, path string) *image.Image {
	t.Helper()
	img, err := image.Open(path, image.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, img.Close()) })
	return img
}

// Noise returns n bytes in which runs of odd lengths are zero, like a half-empty disk. The first sector is data.
func Noise(seed uint64, n int) []byte {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	bits := rand.NewChaCha8(key)
	rnd := rand.New(bits)
	b := make([]byte, n)
	for off := 0; off < n; {
		run := min(1+rnd.IntN(150*1024), n-off)
		if off == 0 || rnd.IntN(2) == 0 {
			_, _ = bits.Read(b[off : off+run]) // never returns an error
		}
		off += run
	}
	return b
}

// Write writes a file and returns its path.
func Write(t *testing.T, dir, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	require.NoError(t, os.WriteFile(path, data, 0o644))
	return path
}

// SparseFile writes data without its zero blocks of 4 KiB.
func SparseFile(t *testing.T, path string, data []byte) {
	t.Helper()
	f, err := os.Create(path)
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, f.Truncate(int64(len(data))))
	for off := 0; off < len(data); off += 4096 {
		b := data[off:min(off+4096, len(data))]
		if len(bytes.Trim(b, "\x00")) > 0 {
			_, err := f.WriteAt(b, int64(off))
			require.NoError(t, err)
		}
	}
}

// Fill starts a copy of src and writes its whole disk, but does not publish it.
func Fill(t *testing.T, src *image.Image, path string, o store.CreateOptions, jobs int) *store.Output {
	t.Helper()
	out, err := store.Create(path, src.Disk.Size(), src, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, out.Discard()) })
	_, err = diskcopy.Run(t.Context(), src.Disk, out, diskcopy.Options{Jobs: jobs, Pack: out.Pack()})
	require.NoError(t, err)
	require.NoError(t, out.Finish())
	return out
}

// SameBytes requires that a job writes the same files on any number of processors.
func SameBytes(t *testing.T, src *image.Image, name string, kinds ...store.CreateOptions) {
	t.Helper()
	for _, o := range kinds {
		var first []byte
		for jobs := 1; jobs <= 8; jobs += 3 {
			dir := t.TempDir()
			require.NoError(t, Fill(t, src, filepath.Join(dir, name), o, jobs).Publish())
			var all []byte
			for _, name := range disktest.Names(t, dir) {
				b, err := os.ReadFile(filepath.Join(dir, name))
				require.NoError(t, err)
				all = append(append(all, name...), b...)
			}
			if first == nil {
				first = all
			}
			require.True(t, bytes.Equal(first, all), "%s %s with %d jobs", o.Format, o.Subformat, jobs)
		}
	}
}

// ReadsBack requires that a written disk reads as data before and after it has its name, and returns the image.
func ReadsBack(t *testing.T, out *store.Output, path string, data []byte) *image.Image {
	t.Helper()
	again, err := out.Reopen()
	require.NoError(t, err)
	disktest.CheckBytes(t, again.Disk, data)
	require.NoError(t, again.Close())
	require.NoFileExists(t, path)
	require.NoError(t, out.Publish())
	img := Open(t, path)
	disktest.CheckBytes(t, img.Disk, data)
	return img
}

// Copy writes a copy of src and publishes it.
func Copy(t *testing.T, src *image.Image, path string, o store.CreateOptions) {
	t.Helper()
	require.NoError(t, Fill(t, src, path, o, 4).Publish())
}

// Kinds lists all formats and subformats that can be written.
var Kinds = []store.CreateOptions{
	{Format: "raw"},
	{Format: "vmdk", Subformat: "monolithicSparse"},
	{Format: "vmdk", Subformat: "monolithicFlat"},
	{Format: "vmdk", Subformat: "vmfs"},
	{Format: "vmdk", Subformat: "twoGbMaxExtentSparse"},
	{Format: "vmdk", Subformat: "twoGbMaxExtentFlat"},
	{Format: "vmdk", Subformat: "streamOptimized"},
}

// Shows checks the data of the image under a name, after opening it again.
func Shows(t *testing.T, path string, want []byte) {
	t.Helper()
	img, err := image.Open(path, image.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, img.Close()) }()
	got := make([]byte, len(want))
	require.Equal(t, int64(len(want)), img.Disk.Size())
	_, err = img.Disk.ReadAt(got, 0)
	require.NoError(t, err)
	disktest.EqualBytes(t, want, got)
}

// Rebase returns an image whose backing file has any name, which is not opened here.
func Rebase(t *testing.T, dir, name, base, format string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	disktest.Run(t, "qemu-img", "create", "-q", "-f", "qcow2", path, "1M")
	disktest.Run(t, "qemu-img", "rebase", "-u", "-f", "qcow2", "-b", base, "-F", format, path)
	return path
}

// NoDamage walks the tables of an image.
func NoDamage(t *testing.T, img *image.Image) {
	t.Helper()
	issues, err := img.Check()
	require.NoError(t, err)
	require.Empty(t, issues)
}

// Codes returns the codes of issues with at least an effect.
func Codes(issues []ondisk.Issue, least ondisk.Effect) []string {
	out := []string{}
	for _, i := range issues {
		if i.Effect >= least {
			out = append(out, i.Code)
		}
	}
	return out
}

// Hash returns the SHA-256 of the disk of an image.
func Hash(t *testing.T, img *image.Image) string {
	t.Helper()
	h := sha256.New()
	_, err := io.Copy(h, io.NewSectionReader(img.Disk, 0, img.Disk.Size()))
	require.NoError(t, err)
	return hex.EncodeToString(h.Sum(nil))
}

// RefusesReference requires that err is a refusal of a reference and contains text.
func RefusesReference(t *testing.T, err error, text string) {
	t.Helper()
	var r *ondisk.Refusal
	require.ErrorAs(t, err, &r)
	require.Equal(t, "reference", r.Code)
	require.ErrorContains(t, err, text)
}

// EveryCallFails requires that each failing call ends the writing of a disk of size bytes, of which a MiB in each step
// is written. It returns the last calls of a writing without failures.
func EveryCallFails(t *testing.T, format driver.Format, sub string, size, step int64, last int) []string {
	t.Helper()
	piece := make([]byte, 1<<20)
	var b *disktest.Blind
	disktest.EveryFault(t, format.Name+" "+sub, func(f *disktest.Faults) error {
		b = &disktest.Blind{Faults: f}
		target, err := format.Create(b, size, driver.Options{Subformat: sub, SectorSize: 512})
		if err != nil {
			return err
		}
		for off := int64(0); off < size; off += step {
			if err := target.Reserve(off, int64(len(piece))); err != nil {
				return err
			}
			if _, err := target.WriteAt(piece, off); err != nil {
				return err
			}
		}
		return target.Finish()
	})
	return b.Calls[len(b.Calls)-last:]
}

// Issues opens an image, reads its first sector, walks its tables and returns all issues.
func Issues(t *testing.T, path, format string) ([]ondisk.Issue, error) {
	t.Helper()
	img, err := image.Open(path, image.Options{Format: format})
	if err != nil {
		return nil, err
	}
	defer func() { require.NoError(t, img.Close()) }()
	if err := ondisk.ReadFull(img.Disk, make([]byte, 512), 0); err != nil {
		return nil, err
	}
	if img.Check == nil {
		return img.Issues, nil
	}
	found, err := img.Check()
	return append(img.Issues, found...), err
}

// CutShort truncates a file at, before and after each border of its structures. The result cannot be opened, or its
// check finds it broken. write makes an image of it in a folder and returns its path.
func CutShort(t *testing.T, file []byte, borders []int64, write func(dir string, cut []byte) string) {
	t.Helper()
	for _, b := range borders {
		for _, n := range []int64{b - 1, b, b + 1} {
			issues, err := Issues(t, write(t.TempDir(), file[:n]), "")
			if err != nil {
				require.ErrorIs(t, err, ondisk.ErrFormat, "%d of %d bytes", n, len(file))
				continue
			}
			require.NotEmpty(t, Codes(issues, ondisk.Broken), "%d of %d bytes", n, len(file))
		}
	}
}
