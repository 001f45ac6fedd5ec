package fat

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/filetest"
	"github.com/trueup/trueup/internal/guestfile"
)

func TestFATLargeFolder(t *testing.T) {
	folder := bytes.Repeat([]byte{0}, 1<<21)
	for i := range filetest.ManyNames {
		copy(folder[i*32:], fmt.Sprintf("NAME%04XEXT ", i))
	}
	for _, k := range []fatKind{
		{size: "20M", args: []string{"-F", "16", "-s", "1"}},
		{size: "40M", args: []string{"-F", "32", "-s", "1"}},
	} {
		raw := disktest.ReadFile(t, makeFAT(t, k, map[string][]byte{"LARGE": folder}))
		raw[bytes.Index(raw, []byte("LARGE      "))+11] |= attrDir
		g := opened(t, filetest.Memory(raw))
		filetest.Cheap(t, lower{g}, g.(*fileSystem).meter, int64(len(folder))*(1+namesWeight),
			fmt.Sprintf("LARGE/NAME%04X.EXT", filetest.ManyNames-1))
	}
}

// lower asks with names in another case.
type lower struct{ guestfile.FS }

func (l lower) Open(path string) (*guestfile.File, error) { return l.FS.Open(strings.ToLower(path)) }

func (l lower) List(path string) ([]guestfile.Entry, error) { return l.FS.List(strings.ToLower(path)) }

// alone opens the files of one volume, with a budget of its own.
func alone(volume disk.Disk) (guestfile.FS, error) { return Open(guestfile.NewBudget(), volume) }

// opened is alone for a volume that can be opened.
func opened(t testing.TB, volume disk.Disk) guestfile.FS {
	t.Helper()
	g, err := alone(volume)
	require.NoError(t, err)
	return g
}
