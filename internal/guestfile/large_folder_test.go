package guestfile

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// manyNames is how many names the large folders have. Tools take minutes to make such a folder: here a file gets its contents, and then the
// kind of a folder.
const manyNames = 50_000

// cheap holds the lookup of the last name, and of one that is not there, to the size of the folder, twice, in reads and work; everything else
// that a lookup does is done once. That is a few milliseconds.
func cheap(t *testing.T, g FS, m metered, folder int64, last string) {
	t.Helper()
	before := m.Budget.Spent()
	f, err := g.Open(last)
	require.NoError(t, err)
	require.Equal(t, last, f.Path)
	require.Less(t, m.Budget.Spent()-before, 3*folder)
	before = m.Budget.Spent()
	_, err = g.Open("large/nothing")
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.Less(t, m.Budget.Spent()-before, 3*folder)
	list, err := g.List("large")
	require.NoError(t, err)
	require.Len(t, list, manyNames)
}

func TestExtLargeFolder(t *testing.T) {
	const block, entry = 4096, 28
	var folder []byte
	for i := range manyNames {
		name := fmt.Sprintf("name number %05d", i)
		start, length := len(folder)%block, entry
		if start+2*entry > block || i == manyNames-1 {
			length = block - start // the last entry has all that is left
		}
		e := binary.LittleEndian.AppendUint32(nil, 13)
		e = append(binary.LittleEndian.AppendUint16(e, uint16(length)), byte(len(name)), 1)
		folder = append(folder, append(e, name...)...)
		folder = append(folder, make([]byte, length-8-len(name))...)
	}
	require.Zero(t, len(folder)%block)
	img := makeExt(t, extKind{size: "16M", args: []string{"-t", "ext4", "-b", "4096", "-O", "^metadata_csum"}}, writeTree(t, map[string][]byte{"large": folder}))
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	disktest.Run(t, "debugfs", "-w", "-R", "write "+file+" file", img)
	disktest.Run(t, "debugfs", "-w", "-R", "set_inode_field large mode 040755", img)
	require.Contains(t, disktest.Output(t, "debugfs", "-R", "stat <13>", img), "Type: regular")
	require.Equal(t, manyNames, strings.Count(disktest.Output(t, "debugfs", "-R", "ls -p /large", img), "/name number "))
	g, err := Ext(rawImage(t, img))
	require.NoError(t, err)
	cheap(t, g, g.(*extFS).meter, int64(len(folder)), fmt.Sprintf("large/name number %05d", manyNames-1))
}

func TestFATLargeFolder(t *testing.T) {
	folder := bytes.Repeat([]byte{0}, 1<<21)
	for i := range manyNames {
		copy(folder[i*32:], fmt.Sprintf("NAME%04XEXT ", i))
	}
	for _, k := range []fatKind{{size: "20M", args: []string{"-F", "16", "-s", "1"}}, {size: "40M", args: []string{"-F", "32", "-s", "1"}}} {
		raw, err := os.ReadFile(makeFAT(t, k, map[string][]byte{"LARGE": folder}))
		require.NoError(t, err)
		raw[bytes.Index(raw, []byte("LARGE      "))+11] |= fatAttrDir
		g, err := FAT(memory(raw))
		require.NoError(t, err)
		cheap(t, lower{g}, g.(*fatFS).meter, int64(len(folder))*(1+fatNames), fmt.Sprintf("LARGE/NAME%04X.EXT", manyNames-1))
	}
}

// lower asks with names in another case.
type lower struct{ FS }

func (l lower) Open(path string) (*File, error)   { return l.FS.Open(strings.ToLower(path)) }
func (l lower) List(path string) ([]Entry, error) { return l.FS.List(strings.ToLower(path)) }
