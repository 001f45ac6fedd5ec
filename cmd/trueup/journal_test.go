package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/oddfs"
)

// TestOrderOfPublication holds an align to the order in which a loss of power does no harm: bytes are durable before a
// file has its name, the names of second files before that of DEST, and that one before the run ends.
func TestOrderOfPublication(t *testing.T) {
	t.Parallel()
	source := sampleDisk(t)
	var j oddfs.Journal
	mounted := oddfs.Mount(t, t.TempDir(), oddfs.Manners{Journal: &j})
	j.Restart(0)
	r := trueup(t, append([]string{"align", source, filepath.Join(mounted, "out.vmdk")}, toFlat...)...)
	require.Equal(t, 0, r.code, r.stderr)
	done := slices.DeleteFunc(j.Done(), func(op string) bool {
		return !slices.Contains([]string{"write", "fsync", "fsyncdir", "link out-flat.vmdk", "rename2 out.vmdk"}, op)
	})
	done = slices.Compact(done)
	require.Equal(t, []string{"fsync", "fsyncdir"}, done[:2], "the file system is asked before a byte is written")
	end := slices.Index(done, "link out-flat.vmdk")
	require.Equal(t, "fsync", done[end-1])
	require.Equal(t, []string{"link out-flat.vmdk", "fsyncdir", "rename2 out.vmdk", "fsyncdir"}, done[end:])
}

// mustSurface are the operations without which there is no copy, or none that survives a loss of power.
var mustSurface = []string{
	"create .out.vmdk.partial", "create .out-flat.vmdk.partial", "fsync", "fsyncdir", "truncate", "rename2 out.vmdk",
	"rename out.vmdk", "link out-flat.vmdk", "lock",
}

// TestEveryOperationOfDestFails has each operation on the file system of DEST fail in turn. DEST is complete
// afterwards, or what it was, and the run says which.
func TestEveryOperationOfDestFails(t *testing.T) {
	t.Parallel()
	source := sampleDisk(t)
	require.NoError(t, os.Chmod(source, 0o640)) // so that permissions have to be set
	good := t.TempDir()
	for name, flags := range map[string][]string{"flat": toFlat, "sparse": nil} {
		require.NoError(t, os.Mkdir(filepath.Join(good, name), 0o755))
		r := trueup(t, append([]string{"align", source, filepath.Join(good, name, "out.vmdk")}, flags...)...)
		require.Equal(t, 0, r.code, r.stderr)
	}
	// is reports whether the folder has a copy.
	is := func(dir, name string) bool {
		for _, file := range folderNames(t, filepath.Join(good, name)) {
			want := disktest.ReadFile(t, filepath.Join(good, name, file))
			if got, err := os.ReadFile(filepath.Join(dir, file)); err != nil || !bytes.Equal(got, want) {
				return false
			}
		}
		return true
	}
	for name, c := range map[string]struct {
		flags    []string
		old, new string
	}{"two files": {toFlat, "", "flat"}, "a file that is replaced": {[]string{"--force"}, "flat", "sparse"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var j oddfs.Journal
			behind, surfaced := t.TempDir(), 0
			dest := filepath.Join(oddfs.Mount(t, behind, oddfs.Manners{Journal: &j}), "out.vmdk")
			j.EachFails(func(bool) {
				require.NoError(t, removeAll(behind))
				if c.old != "" {
					require.NoError(t, os.CopyFS(behind, os.DirFS(filepath.Join(good, c.old))))
				}
				r := trueup(t, append([]string{"align", source, dest}, c.flags...)...)
				failed := j.Failed()
				said := fmt.Sprintf("%s: %d %s", failed, r.code, r.stderr)
				if r.code == 0 {
					require.True(t, is(behind, c.new), said)
					require.NotContains(t, mustSurface, failed, said)
					return
				}
				// Some of the last calls are the kernel's own, made in some runs only: then none was left to fail.
				require.NotEmpty(t, failed, said)
				require.NotEmpty(t, r.stderr)
				surfaced++
				if c.old != "" {
					require.True(t, is(behind, c.old) || is(behind, c.new), said)
					return
				}
				for _, left := range folderNames(t, behind) {
					require.True(t, strings.HasPrefix(left, "."), "%s: %s is left", said, left)
				}
			})
			require.Positive(t, surfaced)
		})
	}
}
