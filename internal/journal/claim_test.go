package journal_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/sys"
)

// plan is what the journals of exchanges and of moves hold of the names of files: names in base64, see package
// exchange, and as text, see package inplace.
type plan struct {
	Old, New []file   `json:",omitempty"`
	Files    []moving `json:",omitempty"`
}

type file struct {
	Name, Other []byte
	Inode       uint64
	Size        int64
	Modified    int64
}

type moving struct{ Name string }

// Each file that open work needs is known by its name, and an original also by its inode where it was renamed, unless
// another file has got that inode since.
func TestClaiming(t *testing.T) {
	disktest.OnUnix(t, "inodes")
	t.Parallel()
	dir := t.TempDir()
	d, err := gate.OpenFolder(dir)
	require.NoError(t, err)
	defer d.Close()
	old := func(name, other string) file {
		st, err := sys.Lstat(imagetest.Write(t, dir, other, []byte(other)))
		require.NoError(t, err)
		return file{[]byte(name), []byte(other), st.Inode, st.Size, st.Modified}
	}
	begin := func(disk, kind string, p plan) {
		b, err := json.Marshal(p)
		require.NoError(t, err)
		area := map[string]int64{journal.InPlace: 2 * journal.MaxPlan}[kind] // of which a claim reads nothing
		h, err := journal.Begin(d, disk, filepath.Join(dir, disk), kind, b, area)
		require.NoError(t, err)
		if kind == journal.Exchange {
			require.NoError(t, h.Enter(journal.Kept))
		}
		require.NoError(t, h.Close())
	}
	begin("a.vmdk", journal.Exchange, plan{
		Old: []file{old("a.vmdk", "a.orig.vmdk"), old("a-flat.vmdk", "a.orig-flat.vmdk"), old("data", "data.orig")},
		New: []file{
			{Name: []byte("a.vmdk"), Other: []byte(".a.vmdk.partial")},
			{Name: []byte("a-f001.vmdk"), Other: []byte(".a-f001.vmdk.partial")},
		},
	})
	begin("b.vmdk", journal.InPlace, plan{Files: []moving{{"b-f001.vmdk"}, {"b-f002.vmdk"}}})
	begin("c.raw", "other", plan{Files: []moving{{"source.raw"}}}) // of another version
	imagetest.Write(t, dir, "torn.raw.trueup", []byte("no journal"))

	for name, want := range map[string]string{
		"a.orig.vmdk":          `it is the kept original of "a.vmdk"`,
		"a.orig-flat.vmdk":     `it is the kept original of "a.vmdk"`,
		"data.orig":            `it is the kept original of "a.vmdk"`,
		"a-f001.vmdk":          `it is a file of the disk "a.vmdk": `,
		".a-f001.vmdk.partial": `it is a file of the disk "a.vmdk": `,
		"b-f002.vmdk":          `it is a file of the disk "b.vmdk": `,
		"a.vmdk":               "", "b.vmdk": "", "source.raw": "", "other.raw": "", "a.orig": "",
	} {
		c, err := journal.Claiming(d, "none", name)
		require.NoError(t, err)
		if want == "" {
			require.Nil(t, c, name)
			continue
		}
		require.NotNil(t, c, name)
		require.Contains(t, c.Text(), want)
		require.Equal(t, name, c.File)
	}
	c, err := journal.ClaimingAt(filepath.Join(dir, "data.orig"))
	require.NoError(t, err)
	require.ErrorContains(t, c.Refusal("DEST", filepath.Join(dir, "data.orig")),
		"trueup undo "+filepath.Join(dir, "a.vmdk"))

	renamed := filepath.Join(dir, "renamed")
	require.NoError(t, os.Rename(filepath.Join(dir, "data.orig"), renamed))
	c, err = journal.Claiming(d, "renamed")
	require.NoError(t, err)
	require.NotNil(t, c)
	require.NoError(t, os.Chtimes(renamed, time.Unix(1e9, 0), time.Unix(1e9, 0)))
	c, err = journal.Claiming(d, "renamed")
	require.NoError(t, err)
	require.Nil(t, c, "a later file with the inode of a removed one")
	_, err = journal.ClaimingAt(filepath.Join(dir, "none", "x"))
	require.ErrorIs(t, err, os.ErrNotExist)
}
