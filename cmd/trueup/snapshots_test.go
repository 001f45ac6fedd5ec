package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// snapshotKinds are the formats in which qemu-img makes an image that completes another one.
var snapshotKinds = []struct{ format, options string }{
	{"qcow2", ""},
	{"vmdk", "subformat=monolithicSparse"},
	{"vmdk", "subformat=twoGbMaxExtentSparse"},
}

// snapshotChain is a disk of three links, base, middle and top, of which each changes what the one below holds. All lie
// in one folder. raw is what a guest sees through the top.
func snapshotChain(t testing.TB, format, options string) (dir, raw string) {
	t.Helper()
	dir = t.TempDir()
	base := filepath.Join(dir, "base."+format)
	args := []string{"convert", "-f", "raw", "-O", format}
	if options != "" {
		args = append(args, "-o", options)
	}
	disktest.Run(t, "qemu-img", append(args, pairDisk(t), base)...)
	for i, name := range []string{"middle", "top"} {
		below := []string{"base", "middle"}[i] + "." + format
		args := []string{"create", "-q", "-f", format, "-F", format, "-b", below}
		if options != "" {
			args = append(args, "-o", options)
		}
		path := filepath.Join(dir, name+"."+format)
		disktest.Run(t, "qemu-img", append(args, path)...)
		// One change inside the partition at LBA 63, one across what the link below has written.
		disktest.Run(t, "qemu-io", "-f", format, "-c", "write -P "+[]string{"0x71", "0x72"}[i]+" "+[]string{
			"3M 200k",
			"3100k 100k",
		}[i],
			"-c", "write -P 0x55 "+[]string{"5M", "6M"}[i]+" 64k", path)
	}
	raw = filepath.Join(t.TempDir(), "top.raw")
	disktest.Run(t, "qemu-img", "convert", "-f", format, "-O", "raw", filepath.Join(dir, "top."+format), raw)
	return dir, raw
}

// TestSnapshotsAreFlattened takes a chain of three links for what it is: refused as it stands, one complete disk on
// request.
func TestSnapshotsAreFlattened(t *testing.T) {
	t.Parallel()
	for _, k := range snapshotKinds {
		t.Run(k.format+" "+k.options, func(t *testing.T) {
			dir, raw := snapshotChain(t, k.format, k.options)
			top := filepath.Join(dir, "top."+k.format)
			before := hashFolder(t, dir)

			r := trueup(t, "inspect", top)
			require.Equal(t, 3, r.code, r.stderr)
			require.Regexp(t, `Parent +middle`, r.stdout)
			require.Regexp(t, `Parent +base`, r.stdout)
			require.Equal(t, []string{"snapshot-child"}, refusalCodes(t, top))

			dest := filepath.Join(t.TempDir(), "flat."+k.format)
			for _, command := range []string{"align", "convert"} {
				r := trueup(t, command, top, dest)
				require.Equal(t, 4, r.code)
				requireOneLine(t, r.stderr)
				require.Contains(t, r.stderr, "--flatten")
			}
			require.Equal(t, 0, trueup(t, "convert", "--flatten", top, dest).code)
			disktest.Run(t, "qemu-img", "compare", "-f", "raw", "-F", k.format, raw, dest)
			require.NotContains(t, disktest.Run(t, "qemu-img", "info", "-f", k.format, dest), "backing file",
				"it is complete")

			require.Equal(t, 0, trueup(t, "align", "--flatten", "--force", top, dest).code)
			require.Equal(t, 0, trueup(t, "verify", top, dest).code)
			require.Equal(t, 0, trueup(t, "inspect", dest).code)
			require.Equal(t, before, hashFolder(t, dir), "no link of the chain was touched")

			// The base alone is not what the machine sees.
			require.Equal(t, []string{"snapshot-parent"}, refusalCodes(t, filepath.Join(dir, "base."+k.format)))
		})
	}
}

// TestBrokenChains are chains that are no disk any more. Each is refused by name, and none is read as if it were
// complete.
func TestBrokenChains(t *testing.T) {
	t.Parallel()
	for _, k := range snapshotKinds[:2] {
		dir, _ := snapshotChain(t, k.format, k.options)
		top := filepath.Join(dir, "top."+k.format)
		file := func(name string) string { return filepath.Join(dir, name+"."+k.format) }
		fails := func(name string, code int, says ...string) {
			t.Run(k.format+" "+name, func(t *testing.T) {
				for _, args := range [][]string{
					{"inspect", top},
					{"align", "--flatten", top, filepath.Join(t.TempDir(), "dest")},
				} {
					r := trueup(t, args...)
					require.Equal(t, code, r.code, "%s%s", r.stdout, r.stderr)
					requireOneLine(t, r.stderr)
					for _, s := range says {
						require.Contains(t, r.stderr, s)
					}
				}
			})
		}
		require.NoError(t, os.Rename(file("middle"), file("elsewhere")))
		fails("a link is missing", 4, "middle."+k.format, "missing")
		require.NoError(t, os.Symlink(file("elsewhere"), file("middle")))
		fails("a link of the file system stands for it", 1, "symbolic link")
		require.NoError(t, os.Remove(file("middle")))
		require.NoError(t, os.Rename(file("elsewhere"), file("middle")))
		if k.format == "vmdk" {
			replaceInFile(t, file("base"), "CID="+match(t, string(readAll(t, file("base"))), `\nCID=([0-9a-f]+)`),
				"CID=0badcafe")
			fails("the base was written since", 4, "0badcafe", "changed or replaced")
		}
		require.NoError(t, os.Remove(file("base")))
		require.NoError(t, os.Link(file("top"), file("base")))
		fails("a cycle", 1, "chain")
	}
}

func readAll(t testing.TB, path string) []byte {
	t.Helper()
	b := disktest.ReadFile(t, path)
	return b
}
