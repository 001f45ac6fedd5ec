package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// A package whose OVF is wrong about a disk: align corrects it for a disk that it writes anew, carries it along for one
// that is copied as it is, and verify agrees with align.
func TestPackageWithWrongNumbers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		old, with string
		code      string // of the finding
		after     string // in the OVF of the copy
	}{
		"capacity of a disk that moves": {
			`ovf:capacity="8" `, `ovf:capacity="7" `, "ovf-capacity",
			`ovf:capacity="8" `,
		},
		"capacity of a disk that is aligned": {
			`ovf:capacity="8388608"`, `ovf:capacity="8388096"`, "ovf-capacity",
			`ovf:capacity="8388096"`,
		},
		"size of a file that is aligned": {`ovf:size = '%[2]d'`, `ovf:size = '5'`, "ovf-file-size", `ovf:size = '5'`},
		"size of a file that is no disk": {`ovf:size="%[3]d"`, `ovf:size="5"`, "ovf-file-size", `ovf:size="5"`},
	} {
		t.Run(name, func(t *testing.T) {
			p := twoDisks(t)
			require.Contains(t, p.text, c.old)
			p.text = strings.Replace(p.text, c.old, c.with, 1)
			source, dest := p.ova(t), filepath.Join(t.TempDir(), "out.ova")
			findings := trueupJSON[jsonPackageInspect](t, 3, "inspect", source).Findings
			require.Len(t, findings, 1)
			require.Equal(t, c.code, findings[0].Code)
			trueupJSON[jsonPackageAlign](t, 0, "align", source, dest)
			is, _ := unpack(t, dest)
			text := disktest.ReadFile(t, filepath.Join(is, "vm.ovf"))
			require.Contains(t, string(text), c.after)
			require.True(t, trueupJSON[jsonPackageVerify](t, 0, "verify", source, dest).Equal)
		})
	}
}

// A manifest that names what is not there, or leaves out what is: inspect says so, though it reads no digests.
func TestManifestThatDoesNotFit(t *testing.T) {
	t.Parallel()
	for line, c := range map[string]struct {
		with  string
		codes []string
	}{
		"SHA256(vm.nvram)=":   {"SHA256(gone.iso)=", []string{"manifest-file-missing", "manifest-incomplete"}},
		"SHA256(disk1.vmdk)=": {"SHA256(vm.nvram)  =", []string{"manifest-incomplete"}}, // which has two digests then
	} {
		t.Run(line, func(t *testing.T) {
			source, dest := twoDisks(t).ova(t), filepath.Join(t.TempDir(), "out.ova")
			text := disktest.ReadFile(t, source)
			require.Equal(t, 1, strings.Count(string(text), line))
			require.NoError(t, os.WriteFile(source, []byte(strings.Replace(string(text), line, c.with, 1)), 0o644))
			var codes []string
			for _, f := range trueupJSON[jsonPackageInspect](t, 3, "inspect", source).Findings {
				codes = append(codes, f.Code)
			}
			require.Equal(t, c.codes, codes)
			require.Equal(t, "verify", trueupJSON[jsonError](t, 1, "align", source, dest).Error.Code)
			require.Empty(t, folderNames(t, filepath.Dir(dest)))
		})
	}
}

// A command for one disk lists those of the package in a form that a shell takes.
func TestPackageWhereOneDiskIsWanted(t *testing.T) {
	t.Parallel()
	path := twoDisks(t).ova(t)
	for _, args := range [][]string{{"plan", path}, {"align", path, "out.vmdk"}, {"plan", path + "!other.vmdk"}} {
		r := trueup(t, args...)
		require.Equal(t, 64, r.code)
		require.Contains(t, r.stderr, "one of")
		require.Contains(t, r.stderr, "'"+path+"!disk1.vmdk', '"+path+"!disk2.vmdk'")
	}
	require.Equal(t, 0, trueup(t, "plan", path+"!disk1.vmdk").code)
}
