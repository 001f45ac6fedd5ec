package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
)

// The tests here are about files that an align may remove or overwrite, and those that only look as if it might.

// toFlat makes any source a flat VMDK.
var toFlat = []string{"--to", "vmdk:monolithicFlat"}

// seededDisk writes a misaligned raw disk whose partition is full of what seed gives.
func seededDisk(t testing.TB, path, seed string) string {
	t.Helper()
	disk := tableforge.NewMBR(xpSectors, slot(0x83, trackSectors, 2000))
	disk.Put(trackSectors*sectorSize, noise(seed, 2000*sectorSize))
	disk.Write(t, path)
	return path
}

// flatDisk makes the flat VMDK NAME.vmdk of a disk of its own.
func flatDisk(t testing.TB, dir, name string) string {
	t.Helper()
	raw := seededDisk(t, filepath.Join(t.TempDir(), "disk.raw"), name)
	return formatFlat.convert(t, raw, dir, name, "ide")
}

// newReplace is an align of a raw disk over the flat VMDK x.vmdk in a folder of its own.
func newReplace(t testing.TB) fault {
	t.Helper()
	f := newFault(t, seededDisk(t, filepath.Join(t.TempDir(), "new.raw"), "new"))
	f.dest = flatDisk(t, filepath.Dir(f.dest), "x")
	return f
}

// secondDescriptor copies a descriptor: both name one extent now.
func secondDescriptor(t testing.TB, descriptor, name string) string {
	t.Helper()
	second := filepath.Join(filepath.Dir(descriptor), name)
	disktest.Run(t, "cp", descriptor, second)
	return second
}

// diskSum is the SHA-256 of the disk in an image, as QEMU reads it.
func diskSum(t testing.TB, f diskFormat, path string) string {
	t.Helper()
	return sha256Of(t, f.rawOf(t, path))
}

// requireSpared requires that an align is refused with an exit code and that no file of the folders changes.
func requireSpared(t *testing.T, want int, source, dest string, flags ...string) {
	t.Helper()
	there, here := linkedFolder(t, filepath.Dir(source)), linkedFolder(t, filepath.Dir(dest))
	r := trueup(t, append([]string{"align", source, dest, "--json"}, flags...)...)
	require.Equal(t, want, r.code, "%q: %s", flags, r.stderr)
	requireOneLine(t, r.stderr)
	require.Equal(t, there, linkedFolder(t, filepath.Dir(source)))
	require.Equal(t, here, linkedFolder(t, filepath.Dir(dest)))
}

// TestSourceHasAPartialName has sources that are called as a killed run would have left them.
func TestSourceHasAPartialName(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	raw := seededDisk(t, filepath.Join(dir, ".o.raw.partial"), "raw")
	for _, flags := range [][]string{nil, {"--force"}} {
		requireSpared(t, 4, raw, filepath.Join(dir, "o.raw"), flags...)
	}
	for _, extent := range []string{".x-flat.vmdk.partial", ".x-1-flat.vmdk.partial"} {
		dir := t.TempDir()
		source := flatDisk(t, dir, "source")
		require.NoError(t, os.Rename(flatName(source), filepath.Join(dir, extent)))
		replaceInFile(t, source, "source-flat.vmdk", extent)
		for _, flags := range [][]string{nil, {"--force"}, {"--to", "raw"}, {"--to", "vmdk:monolithicSparse"}} {
			requireSpared(t, 64, source, filepath.Join(dir, "x.vmdk"), flags...)
		}
	}
}

// flatName is the extent of a flat VMDK.
func flatName(descriptor string) string { return formatFlat.files(descriptor)[1] }

// TestForceOverTheSourcesExtent replaces descriptors whose extent is the source.
func TestForceOverTheSourcesExtent(t *testing.T) {
	t.Parallel()
	x := flatDisk(t, t.TempDir(), "x")
	second := secondDescriptor(t, x, "second.vmdk")
	for _, source := range []string{flatName(x), second} {
		for _, flags := range [][]string{nil, {"--to", "raw"}, toFlat, {"--to", "vmdk:monolithicSparse"}} {
			requireSpared(t, 64, source, x, append([]string{"--force"}, flags...)...)
		}
	}
}

// TestForceSparesSharedExtents replaces a DEST whose extent another descriptor names too.
func TestForceSparesSharedExtents(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string][]string{"flat": toFlat, "raw": {"--to", "raw"}} {
		t.Run(name, func(t *testing.T) {
			f := newReplace(t)
			other := secondDescriptor(t, f.dest, "other.vmdk")
			before := diskSum(t, formatFlat, other)
			f.requireNext(t, append([]string{"--force"}, flags...)...)
			require.Equal(t, before, diskSum(t, formatFlat, other))
			require.NotContains(t, folderNames(t, filepath.Dir(f.dest)), ".x-flat.vmdk.partial", "the mark")
		})
		t.Run(name+", alone", func(t *testing.T) {
			f := newReplace(t)
			extent := flatName(f.dest)
			f.requireNext(t, append([]string{"--force"}, flags...)...)
			require.NoFileExists(t, extent, "it is not needed")
		})
	}
}

// TestForceSparesOddNeighbours has other descriptors that a reader in a hurry would not understand, and that QEMU does.
func TestForceSparesOddNeighbours(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(t *testing.T, other string){
		"a long descriptor": func(t *testing.T, other string) {
			t.Helper()
			replaceInFile(t, other, "# Extent description\n", filler(100<<10)+"# Extent description\n")
		},
		"a path": func(t *testing.T, other string) {
			t.Helper()
			replaceInFile(t, other, `"x-flat.vmdk"`,
				fmt.Sprintf("%q", flatName(filepath.Join(filepath.Dir(other), "x.vmdk"))))
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newReplace(t)
			other := secondDescriptor(t, f.dest, "other.vmdk")
			change(t, other)
			before := diskSum(t, formatFlat, other)
			f.requireNext(t, append([]string{"--force"}, toFlat...)...)
			require.Equal(t, before, diskSum(t, formatFlat, other))
		})
	}
}

// TestForceSparesWhatItCannotRead has a descriptor of another user beside DEST.
func TestForceSparesWhatItCannotRead(t *testing.T) {
	t.Parallel()
	f := newReplace(t)
	other := secondDescriptor(t, f.dest, "other.vmdk")
	before := diskSum(t, formatFlat, other)
	closed := injection{call: "openat", spec: "error=EACCES", path: "other.vmdk"} // as it is called from its folder
	r, hits := f.inject(t, closed, append([]string{"--force"}, toFlat...)...)
	require.Positive(t, hits)
	require.Equal(t, 0, r.code, r.stderr)
	require.Equal(t, before, diskSum(t, formatFlat, other))
}

// TestForceOverADiskInUse requires that a DEST which a program or a snapshot needs stays.
func TestForceOverADiskInUse(t *testing.T) {
	t.Parallel()
	for name, use := range map[string]func(t *testing.T, dest string){
		"lock": func(t *testing.T, dest string) {
			t.Helper()
			require.NoError(t, os.Mkdir(dest+".lck", 0o755))
		},
		"snapshot": func(t *testing.T, dest string) {
			t.Helper()
			child := filepath.Join(filepath.Dir(dest), "x-000001.vmdk")
			disktest.Run(t, "qemu-img", "create", "-q", "-f", "vmdk", "-F", "vmdk", "-b", dest, child)
		},
		"QEMU": func(t *testing.T, dest string) {
			t.Helper()
			holdOpen(t, "vmdk", dest)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newReplace(t)
			use(t, f.dest)
			for _, flags := range [][]string{toFlat, {"--to", "raw"}} {
				requireSpared(t, 4, f.source, f.dest, append([]string{"--force"}, flags...)...)
			}
		})
	}
	t.Run("QEMU, raw", func(t *testing.T) {
		f := newReplace(t)
		f.dest = seededDisk(t, filepath.Join(t.TempDir(), "old.raw"), "old")
		holdOpen(t, "raw", f.dest)
		requireSpared(t, 4, f.source, f.dest, "--force")
	})
}

// TestKilledReplaceAndRename kills a run that has marked the old extent for removal. The user keeps the old image under
// another name; the next run meets the marks.
func TestKilledReplaceAndRename(t *testing.T) {
	t.Parallel()
	f := newReplace(t)
	before := diskSum(t, formatFlat, f.dest)
	killAt(t, f, "renameat", filepath.Base(f.partial()), append([]string{"--force"}, toFlat...)...)
	requireKept(t, f, "old.vmdk", before)
}

// TestKilledPublishAndRename kills a run behind its publication: the new image is complete, and its extent has two
// names.
func TestKilledPublishAndRename(t *testing.T) {
	t.Parallel()
	// Under the second name no scan of the folder finds it.
	for _, name := range []string{"prod.vmdk", "x.vmdk.bak"} {
		t.Run(name, func(t *testing.T) { killedPublishAndRename(t, name) })
	}
}

func killedPublishAndRename(t *testing.T, name string) {
	t.Helper()
	f := newReplace(t)
	require.NoError(t, os.Remove(f.dest))
	require.NoError(t, os.Remove(flatName(f.dest)))
	killAt(t, f, "unlinkat", ".x-flat.vmdk.partial", toFlat...)
	first := f.source
	before := diskSum(t, formatFlat, f.dest)
	f.source = seededDisk(t, filepath.Join(t.TempDir(), "second.raw"), "second")
	prod := requireKept(t, f, name, before)
	require.Equal(t, 0, trueup(t, "verify", first, prod).code)
}

// killAt kills an align in front of its first call of a name that has to do with a file.
func killAt(t *testing.T, f fault, call, file string, flags ...string) {
	t.Helper()
	r, _ := f.inject(t, injection{call: call, spec: "signal=KILL:when=1", path: file}, flags...)
	require.Equal(t, 128+9, r.code, "no call was met: %s", r.stderr)
}

// requireKept renames DEST, aligns to the name that is free now, and requires that the renamed image is whole.
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

// TestPermissionsOfTheCopy requires that no other user can read from the copy what the source kept from him.
func TestPermissionsOfTheCopy(t *testing.T) {
	t.Parallel()
	f := newReplace(t)
	require.NoError(t, os.Chmod(f.source, 0o600))
	f.before = hashFolder(t, filepath.Dir(f.source))
	f.requireNext(t, append([]string{"--force"}, toFlat...)...)
	for _, name := range folderNames(t, filepath.Dir(f.dest)) {
		info := disktest.Stat(t, filepath.Join(filepath.Dir(f.dest), name))
		require.Equal(t, os.FileMode(0o600), info.Mode(), name)
	}
}

// TestOddNamesOfDest has names that a descriptor cannot hold: only the flat VMDK has to name its extent.
func TestOddNamesOfDest(t *testing.T) {
	t.Parallel()
	source := seededDisk(t, filepath.Join(t.TempDir(), "disk.raw"), "disk")
	for _, stem := range []string{"a:b", `a"b`} {
		f := newFault(t, source)
		dir := filepath.Dir(f.dest)
		requireSpared(t, 64, source, filepath.Join(dir, stem+".vmdk"), toFlat...)
		require.Empty(t, folderNames(t, dir))
		for _, to := range []string{"raw", "vmdk:monolithicSparse"} {
			f.dest = filepath.Join(dir, stem+"."+to[:3])
			f.requireNext(t, "--to", to)
		}
	}
}
