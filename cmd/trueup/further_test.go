package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/vhdforge"
	"github.com/trueup/trueup/internal/disktest/forge/vhdxforge"
)

// library is a chain of three links in three folders: vm/disk names lib/disk by a path, and that names deep/base. raw
// is
// what QEMU reads through the top.
type library struct{ root, top, raw, format string }

func newLibrary(t testing.TB, format string, names func(root string) (middle, base string)) library {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	for _, dir := range []string{"vm", "lib/deep"} {
		require.NoError(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
	}
	file := func(name string) string { return filepath.Join(root, name+"."+format) }
	disktest.Run(t, "qemu-img", "convert", "-f", "raw", "-O", format, pairDisk(t), file("lib/deep/base"))
	middle, base := names(root)
	for i, link := range [][2]string{{file("lib/disk"), base}, {file("vm/disk"), middle}} {
		disktest.Run(t, "qemu-img", "create", "-q", "-f", format, "-F", format, "-b", link[1], link[0])
		disktest.Run(t, "qemu-io", "-f", format, "-c", "write -P 0x7"+[]string{"1", "2"}[i]+" "+[]string{
			"3M 200k",
			"3100k 100k",
		}[i], link[0])
	}
	raw := filepath.Join(root, "top.raw")
	disktest.Run(t, "qemu-img", "convert", "-f", format, "-O", "raw", file("vm/disk"), raw)
	return library{root, file("vm/disk"), raw, format}
}

// path returns a path below the root.
func (l library) path(name string) string { return filepath.Join(l.root, name) }

// flags are those that allow folders below the root.
func (l library) flags(folders ...string) (out []string) {
	for _, folder := range folders {
		out = append(out, "--allow-folder", l.path(folder))
	}
	return out
}

// requireFlat requires that the commands read the chain as QEMU does, confined to what is allowed.
func (l library) requireFlat(t *testing.T, folders ...string) {
	t.Helper()
	needsLandlock(t)
	before := hashFolder(t, l.path("lib/deep"))
	dest := filepath.Join(t.TempDir(), "flat."+l.format)
	flags := append(l.flags(folders...), "--require-sandbox")
	run := func(code int, args ...string) string {
		t.Helper()
		r := trueup(t, append(args, flags...)...)
		require.Equal(t, code, r.code, "%s%s", r.stdout, r.stderr)
		return r.stdout
	}
	run(0, "convert", "--flatten", l.top, dest)
	disktest.Run(t, "qemu-img", "compare", "-f", "raw", "-F", l.format, l.raw, dest)
	run(0, "plan", "--flatten", l.top)
	run(0, "align", "--flatten", "--force", l.top, dest)
	run(0, "verify", l.top, dest)
	require.Equal(t, 0, trueup(t, "verify", l.raw, dest).code, "as QEMU reads it")
	require.Contains(t, run(3, "inspect", l.top), l.path("lib/deep/base."+l.format))
	run(4, "align", l.top, filepath.Join(t.TempDir(), "x."+l.format))
	serving(t, append(flags, "--as-is", l.top)...).requireServes(t, l.raw)
	for _, parent := range []string{"lib/disk.", "lib/deep/base."} {
		run(64, "align", "--flatten", "--force", l.top, l.path(parent+l.format))
		run(64, "inspect", l.top, "--out", l.path(parent+l.format))
	}
	require.Equal(t, before, hashFolder(t, l.path("lib/deep")), "no parent was touched")
}

// requireOutside requires that a command does not read a folder, and that it names it.
func (l library) requireOutside(t *testing.T, folder string, flags ...string) {
	t.Helper()
	r := trueup(t, append([]string{"inspect", l.top}, flags...)...)
	require.Equal(t, 1, r.code)
	requireOneLine(t, r.stderr)
	require.Contains(t, r.stderr, "reference not allowed")
	require.Contains(t, r.stderr, "--allow-folder "+l.path(folder)+"\n")
}

// TestParentsInFurtherFolders reads chains across folders where the user allows it, and nowhere else.
func TestParentsInFurtherFolders(t *testing.T) {
	t.Parallel()
	for name, names := range map[string]func(root string) (middle, base string){
		"absolute": func(root string) (string, string) {
			return root + "/lib/disk.qcow2",
				root + "/lib/deep/base.qcow2"
		},
		"relative": func(string) (string, string) { return "../lib/disk.qcow2", "deep/base.qcow2" },
		"dots":     func(string) (string, string) { return "./..//lib/./disk.qcow2", "../lib/deep/base.qcow2" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLibrary(t, "qcow2", names)
			l.requireOutside(t, "lib")
			l.requireOutside(t, "lib", l.flags("vm", "lib/deep")...)
			require.NoError(t, os.Symlink("lib", l.path("alias")))
			l.requireFlat(t, "alias")
		})
	}
}

// TestFurtherFoldersBehindLinks follows links of the folder that the user names, and none below it.
func TestFurtherFoldersBehindLinks(t *testing.T) {
	t.Parallel()
	l := newLibrary(t, "qcow2", func(root string) (string, string) {
		require.NoError(t, os.Symlink("deep", filepath.Join(root, "lib/link")))
		return "../lib/disk.qcow2", root + "/lib/link/base.qcow2"
	})
	r := trueup(t, append(l.flags("lib"), "inspect", l.top)...)
	require.Equal(t, 1, r.code)
	requireOneLine(t, r.stderr)
	require.Contains(t, r.stderr, "is a link or no folder")
	require.Equal(t, 3, trueup(t, append(l.flags("lib/link", "lib"), "inspect", l.top)...).code)

	require.NoError(t, os.Rename(l.path("lib/disk.qcow2"), l.path("lib/real.qcow2")))
	require.NoError(t, os.Symlink("real.qcow2", l.path("lib/disk.qcow2")))
	r = trueup(t, append(l.flags("lib"), "inspect", l.top)...)
	require.Equal(t, 1, r.code)
	require.Contains(t, r.stderr, "is a symbolic link")
}

// TestParentsOfVMDKInFurtherFolders finds parents by their paths, those of Windows by their names, and compares their
// content identifiers.
func TestParentsOfVMDKInFurtherFolders(t *testing.T) {
	t.Parallel()
	l := newLibrary(t, "vmdk", func(root string) (string, string) {
		return root + "/lib/disk.vmdk",
			root + "/lib/deep/base.vmdk"
	})
	r := trueup(t, "inspect", l.top)
	require.Equal(t, 1, r.code, "a child of the parent's name is not its own parent")
	require.Contains(t, r.stderr, "in the chain already")
	l.requireFlat(t, "lib")

	windows := `C:\VMs\disk.vmdk` + strings.Repeat(" ", len(l.path("lib/disk.vmdk"))-len(`C:\VMs\disk.vmdk`))
	replaceInFile(t, l.top, `"`+l.path("lib/disk.vmdk")+`"`, `"`+strings.TrimSpace(windows)+`"`+strings.Repeat(" ",
		len(windows)-len(strings.TrimSpace(windows))))
	require.NoError(t, os.Rename(l.top, l.path("vm/child.vmdk")))
	l.top = l.path("vm/child.vmdk")
	r = trueup(t, "inspect", l.top)
	require.Equal(t, 4, r.code)
	requireOneLine(t, r.stderr)
	require.Contains(t, r.stderr, "name its folder with --allow-folder")
	require.Equal(t, 3, trueup(t, append(l.flags("lib"), "inspect", l.top)...).code)

	for _, lock := range []string{"lib/disk.vmdk.lck", "lib/deep/base.vmem"} {
		require.NoError(t, os.Mkdir(l.path(lock), 0o755))
		r = trueup(t, append(l.flags("lib"), "align", "--flatten", l.top, filepath.Join(t.TempDir(), "x.vmdk"))...)
		require.Equal(t, 4, r.code, r.stderr)
		require.Contains(t, r.stderr, "in a further folder of the image")
		require.NoError(t, os.Remove(l.path(lock)))
	}

	require.NoError(t, os.Mkdir(l.path("other"), 0o755))
	require.NoError(t, os.WriteFile(l.path("other/disk.vmdk"), readAll(t, l.path("lib/disk.vmdk")), 0o644))
	r = trueup(t, append(l.flags("lib", "other"), "inspect", l.top)...)
	require.Equal(t, 4, r.code)
	require.Contains(t, r.stderr, "allow the folder of the right one only")
	replaceInFile(t, l.path("other/disk.vmdk"), "CID="+match(t, string(readAll(t, l.path("other/disk.vmdk"))),
		`\nCID=([0-9a-f]+)`), "CID=0badcafe")
	r = trueup(t, append(l.flags("other", "lib/deep"), "inspect", l.top)...)
	require.Equal(t, 4, r.code)
	require.Contains(t, r.stderr, "0badcafe")
}

// TestExtentsInFurtherFolders reads a VMDK whose descriptor names its extents by paths, as QEMU does, where the user
// allows that. What would have to rename or write these files refuses the disk.
func TestExtentsInFurtherFolders(t *testing.T) {
	t.Parallel()
	needsLandlock(t)
	for _, subformat := range []string{"monolithicFlat", "twoGbMaxExtentSparse", "twoGbMaxExtentFlat"} {
		t.Run(subformat, func(t *testing.T) {
			t.Parallel()
			root, err := filepath.EvalSymlinks(t.TempDir())
			require.NoError(t, err)
			l := library{root, filepath.Join(root, "vm/disk.vmdk"), pairDisk(t), "vmdk"}
			for _, dir := range []string{"vm", "lib/deep"} {
				require.NoError(t, os.MkdirAll(l.path(dir), 0o755))
			}
			disktest.Run(t, "qemu-img", "convert", "-f", "raw", "-O", "vmdk", "-o", "subformat="+subformat, l.raw,
				l.top)
			text := string(readAll(t, l.top))
			extent := match(t, text, `(?m)^RW .*"(.+)"`)
			require.NoError(t, os.Rename(l.path("vm/"+extent), l.path("lib/deep/"+extent)))
			dest, flags := filepath.Join(t.TempDir(), "copy.vmdk"), append(l.flags("lib"), "--require-sandbox")
			for _, name := range []string{l.path("lib/deep/" + extent), "../lib/deep/" + extent} {
				require.NoError(t, os.WriteFile(l.top, []byte(strings.Replace(text, extent, name, 1)), 0o644))
				disktest.Run(t, "qemu-img", "compare", "-f", "raw", "-F", "vmdk", l.raw, l.top)
				l.requireOutside(t, "lib/deep")
				l.requireOutside(t, "lib/deep", l.flags("vm")...)
				for _, c := range [][]string{
					{"convert", "--force", l.top, dest},
					{"verify", l.top, dest},
					{"plan", l.top},
					{"align", "--force", l.top, dest},
					{"verify", l.top, dest},
				} {
					r := trueup(t, append(c, flags...)...)
					require.Equal(t, 0, r.code, "%q: %s", c, r.stderr)
				}
				require.Equal(t, 0, trueup(t, "verify", l.raw, dest).code, "as QEMU reads it")
				require.Contains(t, trueup(t, append([]string{"inspect", "--json", l.top}, flags...)...).stdout,
					l.path("lib/deep/"+extent))
				serving(t, append(flags, "--as-is", l.top)...).requireServes(t, l.raw)
			}
			vm, deep := hashFolder(t, l.path("vm")), hashFolder(t, l.path("lib/deep"))
			for _, how := range []string{"replace", "move"} {
				r := trueup(t, append([]string{how, l.top}, l.flags("lib")...)...)
				require.Equal(t, 4, r.code, r.stderr)
				requireOneLine(t, r.stderr)
				require.Regexp(t, "lies in another folder than the disk.*trueup align SOURCE DEST|"+
					"hold the disk byte for byte", r.stderr, how)
			}
			r := trueup(t, append(l.flags("lib"), "view", l.top, l.path("vm/view.vmdk"))...)
			require.NotEqual(t, 0, r.code, "a view names files of its own folder only")
			r = trueup(t, append(l.flags("lib"), "convert", "--force", "--to", "raw", l.top,
				l.path("lib/deep/"+extent))...)
			require.Equal(t, 64, r.code, "it is a file of SOURCE: %s", r.stderr)
			require.Equal(t, vm, hashFolder(t, l.path("vm")))
			require.Equal(t, deep, hashFolder(t, l.path("lib/deep")))
			require.NoError(t, os.Mkdir(l.path("lib/deep/"+extent+".lck"), 0o755))
			r = trueup(t, append(l.flags("lib"), "convert", "--force", l.top, dest)...)
			require.Equal(t, 4, r.code, r.stderr)
			require.Contains(t, r.stderr, "in a further folder of the image")
		})
	}
}

// TestParentsOfVHDInFurtherFolders finds the parent of a differencing disk by the last name of its stored path in the
// folder that the user allows, and compares its identity. Both show what stands in the child where that has it.
func TestParentsOfVHDInFurtherFolders(t *testing.T) {
	t.Parallel()
	needsLandlock(t)
	below, over := offDisk(), offDisk()
	copy(over[1<<20:2<<20], noise("over", 1<<20))
	own := func(sector int64) bool { return sector >= 2048 && sector < 4096 }
	link := map[string]string{
		"parent_linkage": "{" + strings.ToUpper(vhdxforge.DataWriteGUID) + "}", "relative_path": `..\lib\base.vhdx`,
	}
	vhdx := func(l vhdxforge.Layout) *vhdxforge.File {
		l.Size = int64(len(below))
		return vhdxforge.New(l)
	}
	const other = "00000000-0000-4000-8000-000000000001"
	child := vhdx(vhdxforge.Layout{DataWrite: other, Parent: link})
	child.AddBlock(1, vhdxforge.Present, over[1<<20:2<<20])
	for format, c := range map[string]struct{ parent, stranger, child []byte }{
		"vhd": {
			vhdforge.New(below, vhdforge.Layout{ID: 0xb0}).Bytes, vhdforge.New(below, vhdforge.Layout{ID: 0xb2}).Bytes,
			vhdforge.New(over, vhdforge.Layout{
				ID: 0xb1, Stored: own, Parent: &vhdforge.Parent{
					ID: 0xb0, Relative: `..\lib\base.vhd`,
					Absolute: `C:\lib\base.vhd`,
				},
			}).Bytes,
		},
		"vhdx": {
			vhdx(vhdxforge.Layout{}).Fill(below).Bytes, vhdx(vhdxforge.Layout{DataWrite: other}).Fill(below).Bytes,
			child.Bytes,
		},
	} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			folder := t.TempDir()
			put := func(name string, b []byte) string {
				path := filepath.Join(folder, name+"."+format)
				require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
				require.NoError(t, os.WriteFile(path, b, 0o644))
				return path
			}
			lib := filepath.Dir(put("lib/base", c.parent))
			top, want, dest := put("vm/top", c.child), filepath.Join(folder, "want.raw"),
				filepath.Join(folder, "flat.raw")
			require.NoError(t, os.WriteFile(want, over, 0o644))
			r := trueup(t, "inspect", top)
			require.Equal(t, 4, r.code, r.stdout)
			requireOneLine(t, r.stderr)
			require.Contains(t, r.stderr, "name its folder with --allow-folder")
			flags := []string{"--allow-folder", lib, "--require-sandbox"}
			r = trueup(t, append([]string{"convert", "--flatten", "--to", "raw", top, dest}, flags...)...)
			require.Equal(t, 0, r.code, r.stderr)
			require.Equal(t, sha256Of(t, want), sha256Of(t, dest))
			require.Equal(t, 0, trueup(t, append([]string{"verify", top, dest}, flags...)...).code)

			put("lib/base", c.stranger)
			r = trueup(t, append([]string{"inspect", top}, flags...)...)
			require.Equal(t, 4, r.code, r.stdout)
			require.Contains(t, r.stderr, "it was changed or replaced")
		})
	}
}

// TestScanReadsParentsBelowItsPaths has the workers read parents in any folder below a PATH, and nowhere else. Rows
// that depend on another folder are not taken over.
func TestScanReadsParentsBelowItsPaths(t *testing.T) {
	t.Parallel()
	l := newLibrary(t, "qcow2", func(root string) (string, string) {
		return root + "/lib/disk.qcow2",
			"deep/base.qcow2"
	})
	needsLandlock(t)
	last := filepath.Join(t.TempDir(), "last.ndjson")
	for _, c := range []struct {
		paths []string
		want  string
		code  int
	}{
		{[]string{"vm"}, "reference", 1},
		{[]string{"vm", "lib"}, "", 3},
		{[]string{""}, "", 3},
		{[]string{"vm", "lib/deep"}, "reference", 1},
		{[]string{"vm", "lib"}, "", 3},
	} {
		var paths []string
		for _, p := range c.paths {
			paths = append(paths, l.path(p))
		}
		s := scan(t, append(append(since(last), "--require-sandbox"), paths...)...)
		require.Equal(t, c.code, s.code, s.stderr)
		row := s.rows[l.top]
		require.NotNil(t, row, c.paths)
		if c.want == "" {
			require.Nil(t, row.Error, c.paths)
			require.Equal(t, []string{l.path("lib/disk.qcow2"), l.path("lib/deep/base.qcow2")}, row.Parents)
			continue
		}
		require.Equal(t, c.want, row.Error.Code, c.paths)
		require.Contains(t, row.Error.Message, "--allow-folder "+l.path("lib"))
	}
}
