package ext

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/filetest"
	"github.com/trueup/trueup/internal/guestfile"
)

func TestExtLargeFolder(t *testing.T) {
	const block, entry = 4096, 28
	var folder []byte
	for i := range filetest.ManyNames {
		name := fmt.Sprintf("name number %05d", i)
		start, length := len(folder)%block, entry
		if start+2*entry > block || i == filetest.ManyNames-1 {
			length = block - start // the last entry has all that is left
		}
		e := binary.LittleEndian.AppendUint32(nil, 13)
		e = append(binary.LittleEndian.AppendUint16(e, uint16(length)), byte(len(name)), 1)
		folder = append(folder, append(e, name...)...)
		folder = append(folder, make([]byte, length-8-len(name))...)
	}
	require.Zero(t, len(folder)%block)
	img := makeExt(t, extKind{size: "16M", args: []string{"-t", "ext4", "-b", "4096", "-O", "^metadata_csum"}},
		filetest.WriteTree(t, map[string][]byte{"large": folder}))
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	disktest.Run(t, "debugfs", "-w", "-R", "write "+file+" file", img)
	disktest.Run(t, "debugfs", "-w", "-R", "set_inode_field large mode 040755", img)
	require.Contains(t, disktest.Output(t, "debugfs", "-R", "stat <13>", img), "Type: regular")
	require.Equal(t, filetest.ManyNames, strings.Count(disktest.Output(t, "debugfs", "-R", "ls -p /large", img),
		"/name number "))
	g := opened(t, filetest.RawImage(t, img))
	filetest.Cheap(t, g, g.(*fileSystem).meter, int64(len(folder)),
		fmt.Sprintf("large/name number %05d", filetest.ManyNames-1))
}

// alone opens the files of one volume, with a budget of its own.
func alone(volume disk.Disk) (guestfile.FS, error) { return Open(guestfile.NewBudget(), volume) }

// opened is alone for a volume that can be opened.
func opened(t testing.TB, volume disk.Disk) guestfile.FS {
	t.Helper()
	g, err := alone(volume)
	require.NoError(t, err)
	return g
}

// Sorting the runs of a file takes longer than reading them, and a volume can have many such files.
func TestFilesOfManyRunsCost(t *testing.T) {
	m := &blockMap{fs: &fileSystem{meter: guestfile.NewBudget().Of(nil)}, runs: filetest.ManyRuns()}
	filetest.EndsWithin(t, 100, m.disjoint)
}

// s_backup_bgs ends at 0x254. Spec: Linux, Documentation/filesystems/ext4/super.rst.
func TestStructSize(t *testing.T) { require.Equal(t, 0x254, binary.Size(super{})) }
