package exchange_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/exchange"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/ondisk"
)

// The source of an exchange is recognized as an original as long as it is whole, and the journal and another disk
// exist.
func TestOriginalBeside(t *testing.T) {
	t.Parallel()
	for name, k := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, _ := k.fresh(t)
			d, err := gate.OpenFolder(dir)
			require.NoError(t, err)
			defer d.Close()
			orig := exchange.OriginalOf(k.main, k.main)
			kept := func(base string) bool {
				t.Helper()
				w, err := exchange.OriginalBeside(d, base)
				require.NoError(t, err)
				return w != nil && w.Path == k.main && w.Phase == journal.Kept
			}
			require.False(t, kept(orig))
			k.published(t, dir)
			require.True(t, kept(orig))
			require.False(t, kept(k.main))
			require.False(t, kept("other.orig.vmdk"))
			written := func() bool {
				t.Helper()
				w, err := exchange.OriginalBeside(d, orig)
				require.NoError(t, err)
				return w.Written
			}
			require.False(t, written())
			data := filepath.Join(dir, k.kept(k.old[len(k.old)-1]))
			st := disktest.Stat(t, data)
			require.NoError(t, os.Chtimes(data, time.Unix(1e9, 0), time.Unix(1e9, 0)))
			require.True(t, written())
			require.NoError(t, os.Chtimes(data, st.ModTime(), st.ModTime()))
			require.False(t, written())

			away := func(file string) {
				t.Helper()
				there, gone := filepath.Join(dir, file), filepath.Join(t.TempDir(), "gone")
				require.NoError(t, os.Rename(there, gone))
				require.False(t, kept(orig), "%s is gone", file)
				b := disktest.ReadFile(t, gone)
				imagetest.Write(t, dir, file, append(b, 0))
				require.Equal(t, file == k.main, kept(orig), "%s is another file", file)
				require.NoError(t, os.Rename(gone, there))
				require.True(t, kept(orig))
			}
			for _, n := range k.old {
				away(k.kept(n))
			}
			away(k.main)
			require.NoError(t, os.Remove(filepath.Join(dir, k.main+journal.Suffix)))
			require.False(t, kept(orig))
		})
	}
}

// A kept original is not exchanged itself, nor is a disk of which it is a part.
func TestOriginalIsNotExchanged(t *testing.T) {
	t.Parallel()
	for name, k := range kinds {
		dir, _ := k.fresh(t)
		_, err := k.publish(dir)
		require.NoError(t, err, name)
		before := sums(t, dir)
		_, done, err := k.source(filepath.Join(dir, exchange.OriginalOf(k.main, k.main)))
		if done != nil {
			require.NoError(t, done())
		}
		require.ErrorContains(t, err, "it is the kept original of", name)
		require.Equal(t, before, sums(t, dir), name)
	}
}

// overlayOf makes an overlay with qemu-img.
func overlayOf(t *testing.T, at, base string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(at), 0o755))
	disktest.Run(t, "qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", base, at)
}

// TestOverlaysOfBothDisks makes overlays of the copy and of the kept original, in their folder, below it and in
// --allow-folder. No command removes the base of one.
func TestOverlaysOfBothDisks(t *testing.T) {
	t.Parallel()
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
					require.Len(t, d.Notes, 1)
					require.Equal(t, "overlays-elsewhere", d.Notes[0].Code)
					require.Equal(t, ondisk.Warn, d.Notes[0].Effect)
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

// TestOverlaysOfAnUnrecordedExchange makes an overlay of the original of an exchange that was killed before its end was
// recorded. An undo does not remove the name of its base.
func TestOverlaysOfAnUnrecordedExchange(t *testing.T) {
	t.Parallel()
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
