package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// An export is read as its file is, in confinement: reports and copies are the same.
func TestRemoteSource(t *testing.T) {
	t.Parallel()
	src := filepath.Join(t.TempDir(), "xp.vmdk")
	require.NoError(t, os.WriteFile(src, disktest.ReadFile(t, "../../testdata/xp-lba63.vmdk"), 0o600))
	uri := serving(t, "--as-is", src).URI
	in := func(name string) string { return filepath.Join(filepath.Dir(src), name) }

	r := trueup(t, "inspect", "--require-sandbox", "--list", uri)
	require.Equal(t, 3, r.code, r.stderr)
	require.Empty(t, r.stderr)
	require.Contains(t, r.stdout, "63  7832     7770  3.79 MiB   7  NTFS/exFAT/HPFS  512 (off 4K)")
	require.Contains(t, trueup(t, "plan", "--require-sandbox", uri).stdout, "1 partition moves")

	r = trueup(t, "align", "--require-sandbox", uri, in("remote.img"))
	require.Zero(t, r.code, r.stderr)
	require.Zero(t, trueup(t, "align", "--to", "raw", src, in("local.img")).code)
	disktest.Run(t, "cmp", in("local.img"), in("remote.img"))
	require.Zero(t, trueup(t, "verify", "--require-sandbox", uri, in("remote.img")).code)
	require.Zero(t, trueup(t, "verify", src, in("remote.img")).code)
	require.Zero(t, trueup(t, "convert", "--to", "qcow2", uri, in("remote.qcow2")).code)
	require.Zero(t, trueup(t, "verify", uri, in("remote.qcow2")).code)

	for want, args := range map[string][]string{
		"--replace needs a file":          {"align", "--replace", uri},
		"--in-place needs a file":         {"align", "--in-place", uri},
		"--view needs a file":             {"align", "--view", uri, in("view.vmdk")},
		"--resumable needs a file":        {"align", "--resumable", uri, in("x.img")},
		"--boot-trial needs a file":       {"align", "--boot-trial", uri, in("x.img")},
		"--second-opinion needs a file":   {"convert", "--second-opinion", "qemu", uri, in("x.img")},
		"a copy that is a package needs":  {"align", uri, in("x.ova")},
		"is an image of a server, which":  {"align", src, uri},
		"this command reads no images of": {"serve", uri},
		"it has no such export":           {"inspect", uri + "&"},
		"--allow-folder is for files":     {"inspect", "--allow-folder", in("."), uri},
	} {
		r := trueup(t, args...)
		require.NotZero(t, r.code, want)
		require.Contains(t, r.stderr, want)
	}
	require.NoFileExists(t, in("x.img"))
}
