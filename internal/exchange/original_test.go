package exchange_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/exchange"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/journal"
)

// The source of an exchange is known as an original as long as it is whole, and the journal and another disk are there.
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
			_, err = k.publish(dir)
			require.NoError(t, err)
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

// An original that is kept is not exchanged itself, nor is a disk of which it is a part.
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
		require.ErrorContains(t, err, "it is the original of", name)
		require.Equal(t, before, sums(t, dir), name)
	}
}
