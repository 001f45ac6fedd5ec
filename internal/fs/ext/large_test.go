package ext

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/filetest"
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
