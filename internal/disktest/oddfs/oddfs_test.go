//go:build linux

package oddfs_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest/oddfs"
)

// Other programs confirm the deviations, independently of the tests of a copy.
func TestManners(t *testing.T) {
	for name, c := range map[string]struct {
		manners oddfs.Manners
		script  string
		says    string // on standard error; empty: the script succeeds
	}{
		"none": {oddfs.Manners{}, `echo text >a && ln a b && mv a c && cmp b c && rm b && test "$(cat c)" = text`, ""},
		"caseless": {
			oddfs.Manners{Caseless: true},
			`echo text >Name && test "$(cat NAME)" = text && rm name && ! test -e Name`, "",
		},
		"short": {oddfs.Manners{Short: true}, `seq 100000 >a && seq 100000 | cmp - a`, ""},
		"capacity": {
			oddfs.Manners{Capacity: 8 << 20},
			`truncate -s 6M a && test "$(df -k --output=avail . | tail -n 1)" -lt 2100 && rm a &&` +
				` test "$(df -k --output=avail . | tail -n 1)" -gt 8100`, "",
		},
		"no links": {
			oddfs.Manners{Fail: map[string]syscall.Errno{"link": syscall.EPERM}},
			`echo text >a && ln a b`,
			"Operation not permitted",
		},
		"no name": {
			oddfs.Manners{Fail: map[string]syscall.Errno{"unlink a": syscall.EIO}},
			`echo text >b && rm b && echo text >a && rm a`, "Input/output error",
		},
		"lost": {
			oddfs.Manners{Lost: map[string]syscall.Errno{"unlink": syscall.EIO}},
			`echo text >a; rm a; test -e a || echo gone >&2; false`, "gone",
		},
		"leases": {oddfs.Manners{Leases: true}, `echo text >a && exec 7<a && ln a b && cat a`, "Invalid argument"},
		"closed": { // the kernel tells of a closed file only after the program has gone on
			oddfs.Manners{Leases: true}, `echo text >a && ln a b && until cmp -s a b; do :; done`, "",
		},
		"upgrade": {oddfs.Manners{NoUpgrade: true}, `sqlite3 a "pragma busy_timeout=0; create table t(x)"`, "locked"},
		"locks": {
			oddfs.Manners{Mandatory: true}, `echo text >a && exec 7<>a && flock -x 7 && cat a`, "Permission denied",
		},
	} {
		t.Run(name, func(t *testing.T) {
			behind := t.TempDir()
			out, err := exec.Command("sh", "-c", `cd "$0" && `+c.script,
				oddfs.Mount(t, behind, c.manners)).CombinedOutput()
			if c.says == "" {
				require.NoError(t, err, "%s", out)
				return
			}
			require.Error(t, err)
			require.Contains(t, string(out), c.says)
		})
	}
}

// A mount shows the underlying folder, and ends with the test.
func TestMountShowsTheFolder(t *testing.T) {
	behind := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(behind, "file"), []byte("text"), 0o600))
	var mounted string
	t.Run("mounted", func(t *testing.T) {
		mounted = oddfs.Mount(t, behind, oddfs.Manners{})
		out, err := exec.Command("cat", filepath.Join(mounted, "file")).Output()
		require.NoError(t, err)
		require.Equal(t, "text", string(out))
	})
	require.NoFileExists(t, filepath.Join(mounted, "file"))
}
