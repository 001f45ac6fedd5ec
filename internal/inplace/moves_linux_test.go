package inplace

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/ondisk"
)

// TestJournalsOfOtherMedia opens what a plan names, which is not what it is given.
func TestJournalsOfOtherMedia(t *testing.T) {
	t.Parallel()
	f := newOnFiles(t, false)
	d, err := gate.OpenFolder(f.dir)
	require.NoError(t, err)
	defer d.Close()
	a := &Again{Held: &journal.Held{Dir: d, Base: "vm.img"}}
	part := Part{disk.Range{Len: 96 * sector}, "vm.img", 0, f.inode("vm.img")}
	sound := &Plan{Base: "vm.img", Files: []Part{part}}
	m, err := a.medium(sound)
	require.NoError(t, err)
	require.NoError(t, m.Close())
	_, err = a.medium(&Plan{Device: "/dev/absent"})
	require.ErrorIs(t, err, ondisk.ErrUsage)
	_, err = a.medium(&Plan{})
	require.ErrorIs(t, err, ondisk.ErrFormat)
	_, err = a.medium(&Plan{Base: "other", Files: sound.Files})
	require.ErrorIs(t, err, ondisk.ErrUsage)
	require.NoError(t, os.Mkdir(filepath.Join(f.dir, "folder"), 0o700))
	pipe := Part{part.Range, "pipe", 0, 0}
	require.NoError(t, unix.Mkfifo(filepath.Join(f.dir, pipe.Name), 0o600))
	pipe.Inode = f.inode(pipe.Name)
	_, err = a.medium(&Plan{Files: []Part{pipe}})
	require.ErrorContains(t, err, "another one has its name")
	for name, p := range map[string]Part{
		"a path":       {part.Range, "../" + filepath.Base(f.dir) + "/vm.img", 0, part.Inode},
		"absent":       {part.Range, "absent", 0, part.Inode},
		"a folder":     {part.Range, "folder", 0, f.inode("folder")},
		"another file": {part.Range, "vm.img", 0, part.Inode + 1},
		"too short":    {disk.Range{Len: 97 * sector}, "vm.img", 0, part.Inode},
	} {
		_, err = a.medium(&Plan{Files: []Part{p}})
		require.Error(t, err, name)
	}

	g := newOnFiles(t, false).middle()
	require.ErrorIs(t, g.again("resume", func(a *Again) { a.Device = device{} }), ondisk.ErrUsage)
	h, err := journal.Begin(d, "other", filepath.Join(f.dir, "other"), journal.InPlace, []byte("{"), 0)
	require.NoError(t, err)
	defer h.Close()
	_, err = (&Again{Held: h}).Resume(t.Context())
	require.ErrorIs(t, err, ondisk.ErrFormat)
}
