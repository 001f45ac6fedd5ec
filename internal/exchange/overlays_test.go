package exchange_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/exchange"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/ondisk"
)

// goOn runs a command on the disk of a folder with options.
func (k kind) goOn(dir, command string, o exchange.Options) (d journal.Done, err error) {
	h, err := journal.Hold(filepath.Join(dir, k.main), "")
	if err != nil {
		return d, err
	}
	defer h.Close()
	if command == "undo" {
		return exchange.Undo(context.Background(), h, o)
	}
	return exchange.Finish(context.Background(), h, o)
}

// overlayOf makes an overlay as qemu-img does.
func overlayOf(t *testing.T, at, base string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(at), 0o755))
	disktest.Run(t, "qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", base, at)
}

// TestOverlaysOfBothDisks makes overlays of the copy and of the kept original, in their folder, below it and in a
// folder that the user names. No command takes away the base of one.
func TestOverlaysOfBothDisks(t *testing.T) {
	t.Parallel()
	disktest.Tool(t, "qemu-img")
	disktest.Tool(t, "mkfs.fat")
	m := made["raw"]
	orig := m.kept(m.main)
	for name, c := range map[string]struct {
		base    string
		refused []string // commands
	}{
		"of the copy":           {m.main, []string{"undo"}},
		"of the original":       {orig, []string{"undo", "finish"}},
		"of neither of the two": {"other.img", nil},
	} {
		for where, up := range map[string]string{"ov.qcow2": "", "sub/deep/ov.qcow2": "../../", "../ov.qcow2": "vm/"} {
			for _, command := range []string{"undo", "finish"} {
				dir := filepath.Join(t.TempDir(), "vm")
				require.NoError(t, os.Rename(exchanged(t, "raw"), dir))
				require.NoError(t, os.WriteFile(filepath.Join(dir, "other.img"), make([]byte, 1<<20), 0o600))
				overlayOf(t, filepath.Join(dir, where), up+c.base)
				o := exchange.Options{}
				if where == "../ov.qcow2" {
					o.Search = []string{filepath.Dir(dir)}
				}
				before := look(t, dir)
				d, err := m.goOn(dir, command, o)
				if !slices.Contains(c.refused, command) {
					require.NoError(t, err, "%s %s %s", command, name, where)
					requireElsewhere(t, d)
					continue
				}
				require.ErrorContains(t, err, "needs the disk \""+c.base+"\"", "%s %s %s", command, name, where)
				require.ErrorContains(t, err, filepath.Base(where))
				require.Equal(t, before, look(t, dir), "%s %s %s", command, name, where)
				o.Force = true
				_, err = m.goOn(dir, command, o)
				require.Equal(t, up == "", err != nil, "%s --force %s %s", command, name, where)
			}
		}
	}
}

// requireElsewhere requires the warning of folders that were not searched, and no other.
func requireElsewhere(t *testing.T, d journal.Done) {
	t.Helper()
	require.Len(t, d.Notes, 1)
	require.Equal(t, "overlays-elsewhere", d.Notes[0].Code)
	require.Equal(t, ondisk.Warn, d.Notes[0].Effect)
}

// TestOverlaysOfAnUnrecordedExchange makes an overlay of the original of an exchange that was killed before its end was
// recorded. An undo does not take the name of its base away.
func TestOverlaysOfAnUnrecordedExchange(t *testing.T) {
	t.Parallel()
	disktest.Tool(t, "qemu-img")
	disktest.Tool(t, "mkfs.fat")
	m, dir := made["raw"], exchanged(t, "raw")
	path := filepath.Join(dir, m.main)
	h, err := journal.Hold(path, "")
	require.NoError(t, err)
	plan := slices.Clone(h.Plan())
	require.NoError(t, h.Remove())
	again, err := journal.Begin(h.Dir, m.main, path, journal.Exchange, plan, 0)
	require.NoError(t, err)
	require.NoError(t, errors.Join(again.Close(), h.Close()))
	overlayOf(t, filepath.Join(dir, "sub", "ov.qcow2"), "../"+m.kept(m.main))
	before := look(t, dir)
	_, err = m.goOn(dir, "undo", exchange.Options{})
	require.ErrorContains(t, err, "needs the disk \""+m.kept(m.main)+"\"")
	require.Equal(t, before, look(t, dir))
}
