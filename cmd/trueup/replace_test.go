package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
)

// These tests are about files that an align may remove or overwrite, and files that only look like that.

// toFlat are flags that make any source a flat VMDK.
var toFlat = []string{"--to", "vmdk:monolithicFlat"}

// seededDisk writes a misaligned raw disk whose partition is filled from seed.
func seededDisk(t testing.TB, path, seed string) string {
	t.Helper()
	disk := tableforge.NewMBR(xpSectors, slot(0x83, trackSectors, 2000))
	disk.Put(trackSectors*sectorSize, noise(seed, 2000*sectorSize))
	disk.Write(t, path)
	return path
}

// newReplace is an align of a raw disk over the flat VMDK x.vmdk in a new folder.
func newReplace(t testing.TB) fault {
	t.Helper()
	f := newFault(t, seededDisk(t, filepath.Join(t.TempDir(), "new.raw"), "new"))
	raw := seededDisk(t, filepath.Join(t.TempDir(), "disk.raw"), "x")
	f.dest = formatFlat.convert(t, raw, filepath.Dir(f.dest), "x", "ide")
	return f
}

// diskSum returns the SHA-256 of the disk in an image, as QEMU reads it.
func diskSum(t testing.TB, f diskFormat, path string) string {
	t.Helper()
	return sha256Of(t, f.rawOf(t, path))
}

// requireSpared requires that an align with --force is refused because DEST is in use, and that no file changes.
func requireSpared(t *testing.T, f fault, flags ...string) {
	t.Helper()
	before := hashFolder(t, filepath.Dir(f.dest))
	r := trueup(t, append([]string{"align", f.source, f.dest, "--json", "--force"}, flags...)...)
	require.Equal(t, 4, r.code, "%q: %s", flags, r.stderr)
	requireOneLine(t, r.stderr)
	require.Equal(t, f.before, hashFolder(t, filepath.Dir(f.source)))
	require.Equal(t, before, hashFolder(t, filepath.Dir(f.dest)))
}

// flatName is the extent of a flat VMDK.
func flatName(descriptor string) string { return formatFlat.files(descriptor)[1] }

// TestForceSparesUnreadableFiles has a descriptor of another user beside DEST.
func TestForceSparesUnreadableFiles(t *testing.T) {
	t.Parallel()
	f := newReplace(t)
	other := filepath.Join(filepath.Dir(f.dest), "other.vmdk")
	disktest.Run(t, "cp", f.dest, other) // both have the same extent now
	before := diskSum(t, formatFlat, other)
	closed := injection{call: "openat", spec: "error=EACCES", path: "other.vmdk"} // by its name in its folder
	r, hits := f.inject(t, closed, append([]string{"--force"}, toFlat...)...)
	require.Positive(t, hits)
	require.Equal(t, 0, r.code, r.stderr)
	require.Equal(t, before, diskSum(t, formatFlat, other))
}

// TestForceOverADiskInUse requires that align --force refuses a DEST that is open in QEMU, and changes no file.
func TestForceOverADiskInUse(t *testing.T) {
	t.Parallel()
	f := newReplace(t)
	holdOpen(t, "vmdk", f.dest)
	for _, flags := range [][]string{toFlat, {"--to", "raw"}} {
		requireSpared(t, f, flags...)
	}
	f.dest = seededDisk(t, filepath.Join(t.TempDir(), "old.raw"), "old")
	holdOpen(t, "raw", f.dest)
	requireSpared(t, f)
}

// TestKilledReplaceAndRename kills a run that has marked the old extent for removal. The user renames the old image;
// the next run meets the marks.
func TestKilledReplaceAndRename(t *testing.T) {
	t.Parallel()
	f := newReplace(t)
	before := diskSum(t, formatFlat, f.dest)
	killAt(t, f, "renameat", filepath.Base(f.partial()), append([]string{"--force"}, toFlat...)...)
	requireKept(t, f, "old.vmdk", before)
}

// TestKilledPublishAndRename kills a run after its publication: the new image is complete, and its extent has two
// names.
func TestKilledPublishAndRename(t *testing.T) {
	t.Parallel()
	// Under the second name, no scan of the folder finds it.
	for _, name := range []string{"prod.vmdk", "x.vmdk.bak"} {
		t.Run(name, func(t *testing.T) {
			f := newReplace(t)
			require.NoError(t, os.Remove(f.dest))
			require.NoError(t, os.Remove(flatName(f.dest)))
			killAt(t, f, "unlinkat", ".x-flat.vmdk.partial", toFlat...)
			first := f.source
			before := diskSum(t, formatFlat, f.dest)
			f.source = seededDisk(t, filepath.Join(t.TempDir(), "second.raw"), "second")
			prod := requireKept(t, f, name, before)
			require.Equal(t, 0, trueup(t, "verify", first, prod).code)
		})
	}
}

// killAt kills an align before its first call of a name on a file.
func killAt(t *testing.T, f fault, call, file string, flags ...string) {
	t.Helper()
	r, _ := f.inject(t, injection{call: call, spec: "signal=KILL:when=1", path: file}, flags...)
	require.Equal(t, 128+9, r.code, "no call was met: %s", r.stderr)
}

// requireKept renames DEST, aligns to the free name, and requires that the renamed image is whole.
func requireKept(t *testing.T, f fault, name, before string) string {
	t.Helper()
	kept := filepath.Join(filepath.Dir(f.dest), name)
	require.NoError(t, os.Rename(f.dest, kept))
	r := trueup(t, append([]string{"align", f.source, f.dest}, toFlat...)...)
	if r.code != 0 {
		require.Equal(t, 1, r.code, r.stderr)
		requireOneLine(t, r.stderr)
		require.Contains(t, r.stderr, "x-flat.vmdk")
		require.NoFileExists(t, f.dest)
	} else {
		require.Equal(t, 0, trueup(t, "verify", f.source, f.dest).code)
	}
	require.Equal(t, before, diskSum(t, formatFlat, kept))
	return kept
}
