package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// vmwareDescriptor is a descriptor as VMware's products write it, with an entry that is not known. The two verbs are
// for the createType and the extent line.
const vmwareDescriptor = `# Disk DescriptorFile
version=1
encoding="windows-1252"
CID=1234abcd
parentCID=ffffffff
isNativeSnapshot="no"
createType=%q

# Extent description
%s

# Change Tracking File
changeTrackPath="disk-ctk.vmdk"

# The Disk Data Base
#DDB

ddb.adapterType = "buslogic"
ddb.foo = "bar"
ddb.geometry.cylinders = "2"
ddb.geometry.heads = "255"
ddb.geometry.sectors = "63"
ddb.longContentID = "0f1e2d3c4b5a69788796a5b41234abcd"
ddb.toolsVersion = "8384"
ddb.uuid = "60 00 C2 9e 11 22 33 44-55 66 77 88 99 aa bb cc"
ddb.virtualHWVersion = "7"
`

// Where a sparse VMDK keeps its descriptor, in sectors. Virtual Disk Format 5.0, "Hosted Sparse Extent Header".
const (
	descriptorOffsetAt = 28
	descriptorSizeAt   = 36
)

// TestDescriptorOfTheResult looks at each line of the descriptor that align writes.
func TestDescriptorOfTheResult(t *testing.T) {
	t.Parallel()
	grows := madeDisks[2]
	require.Greater(t, grows.wantSectors, grows.sectors, "this test needs a disk that grows")
	raw := grows.make(t, t.TempDir())
	extents := map[diskFormat]string{
		formatSparse: `RW %d SPARSE "%s.vmdk"`,
		formatFlat:   `RW %d FLAT "%s-flat.vmdk" 0`,
		formatVMFS:   `RW %d VMFS "%s-flat.vmdk"`,
	}
	for f, line := range extents {
		t.Run(f.name, func(t *testing.T) {
			source := f.convert(t, raw, t.TempDir(), "disk", "buslogic")
			writeDescriptor(t, f, source, fmt.Sprintf(vmwareDescriptor, f.subformat, fmt.Sprintf(line, grows.sectors,
				"disk")))
			dest := filepath.Join(t.TempDir(), "aligned.vmdk")
			r := trueup(t, "align", source, dest)
			require.Equal(t, 0, r.code, r.stderr)

			text := readDescriptor(t, f, dest)
			requireKeptLines(t, text)
			requireNewIdentity(t, text)
			requireNewUUID(t, text)
			requireGeometry(t, text, grows.wantSectors)
			requireExtentLine(t, text, fmt.Sprintf(line, grows.wantSectors, "aligned"))
			require.NotContains(t, text, "changeTrackPath", "the copy has no change tracking file")
			require.NotContains(t, text, "disk.vmdk")
			require.NotContains(t, text, "disk-flat.vmdk")
		})
	}
}

// TestDescriptorWithoutIdentifiers reads what qemu-img refuses for want of a parentCID, and writes what qemu-img reads.
func TestDescriptorWithoutIdentifiers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		gone   []string
		opened bool // by qemu-img
	}{
		"no CID":       {[]string{"CID=1234abcd\n"}, true},
		"no parentCID": {[]string{"parentCID=ffffffff\n"}, false},
		"neither":      {[]string{"parentCID=ffffffff\n", "CID=1234abcd\n"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text := fmt.Sprintf(vmwareDescriptor, "monolithicFlat", fmt.Sprintf("RW %d FLAT \"x-flat.vmdk\" 0",
				xpSectors))
			for _, l := range c.gone {
				text = strings.Replace(text, l, "", 1)
			}
			source := flatImage(text)(t, t.TempDir())
			require.Equal(t, c.opened, exec.CommandContext(t.Context(), disktest.Tool(t, "qemu-img"), "info",
				source).Run() == nil)
			dest := filepath.Join(t.TempDir(), "copy.vmdk")
			r := trueup(t, "convert", source, dest)
			require.Equal(t, 0, r.code, r.stderr)
			require.Equal(t, !c.opened, strings.Contains(r.stderr+r.stdout, "has no parentCID line"), r.stderr)
			disktest.Run(t, "qemu-img", "compare", "-f", "raw", "-F", "vmdk", filepath.Join(filepath.Dir(source),
				"x-flat.vmdk"), dest)
		})
	}
}

// requireKeptLines requires the lines that have nothing to do with the move.
func requireKeptLines(t *testing.T, text string) {
	t.Helper()
	for _, line := range []string{
		"version=1", `encoding="UTF-8"`, "parentCID=ffffffff", `ddb.adapterType = "buslogic"`, `ddb.foo = "bar"`,
		`ddb.geometry.heads = "255"`, `ddb.geometry.sectors = "63"`, `ddb.toolsVersion = "8384"`,
		`ddb.virtualHWVersion = "7"`,
	} {
		require.Equal(t, 1, strings.Count("\n"+text, "\n"+line+"\n"), "%s in\n%s", line, text)
	}
}

// requireNewIdentity requires a content ID that a child of the old disk does not accept.
func requireNewIdentity(t *testing.T, text string) {
	t.Helper()
	cid := match(t, text, `(?m)^CID=([0-9a-f]{8})$`)
	require.NotContains(t, []string{"1234abcd", "ffffffff", "fffffffe"}, cid)
	long := match(t, text, `(?m)^ddb\.longContentID = "([0-9a-f]{32})"$`)
	require.True(t, strings.HasSuffix(long, cid), "the long content ID %s ends with the short one, %s", long, cid)
	require.NotEqual(t, "0f1e2d3c4b5a69788796a5b4", strings.TrimSuffix(long, cid))
}

// requireNewUUID requires a UUID with VMware's prefix: two disks of one UUID confuse a virtual machine that has both.
func requireNewUUID(t *testing.T, text string) {
	t.Helper()
	uuid := match(t, text, `(?m)^ddb\.uuid = "(60 00 C2 9[0-9a-f](?: [0-9a-f]{2}){4}-[0-9a-f]{2}(?: [0-9a-f]{2}){7})"$`)
	require.NotEqual(t, "60 00 C2 9e 11 22 33 44-55 66 77 88 99 aa bb cc", uuid)
}

// requireGeometry requires as many cylinders as qemu-img gives to a disk of this size with the same heads and sectors.
func requireGeometry(t *testing.T, text string, sectors int64) {
	t.Helper()
	model := filepath.Join(t.TempDir(), "model.vmdk")
	disktest.Run(t, "qemu-img", "create", "-f", "vmdk", "-o", "adapter_type=buslogic", model,
		fmt.Sprint(sectors*sectorSize))
	line := regexp.MustCompile(`ddb\.geometry\.cylinders = "\d+"`)
	require.Equal(t, line.FindString(readDescriptor(t, formatSparse, model)), line.FindString(text))
}

// requireExtentLine requires the one extent, and a comment in front of it: QEMU 7.2 counts an extent twice that follows
// an empty line.
func requireExtentLine(t *testing.T, text, want string) {
	t.Helper()
	lines := strings.Split(text, "\n")
	var found []int
	for i, line := range lines {
		if strings.HasPrefix(line, "RW ") {
			found = append(found, i)
		}
	}
	require.Len(t, found, 1, text)
	require.Equal(t, want, lines[found[0]])
	require.Equal(t, "# Extent description", lines[found[0]-1])
}

// readDescriptor returns the descriptor's text without the zeros behind it.
func readDescriptor(t testing.TB, f diskFormat, path string) string {
	t.Helper()
	if f != formatSparse {
		data := disktest.ReadFile(t, path)
		return string(bytes.TrimRight(data, "\x00"))
	}
	off, size := embeddedDescriptor(t, path)
	data := readAt(t, path, off, size)
	text, _, _ := bytes.Cut(data, []byte{0})
	return string(text)
}

// writeDescriptor replaces the descriptor.
func writeDescriptor(t testing.TB, f diskFormat, path, text string) {
	t.Helper()
	if f != formatSparse {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
		return
	}
	off, size := embeddedDescriptor(t, path)
	padded := make([]byte, size)
	require.Less(t, copy(padded, text), int(size))
	disktest.WriteAt(t, path, off, padded)
}

// embeddedDescriptor is where a sparse VMDK has its descriptor, in bytes.
func embeddedDescriptor(t testing.TB, path string) (off, size int64) {
	t.Helper()
	header := readAt(t, path, 0, sectorSize)
	require.Equal(t, "KDMV", string(header[:4]))
	off = int64(binary.LittleEndian.Uint64(header[descriptorOffsetAt:])) * sectorSize
	size = int64(binary.LittleEndian.Uint64(header[descriptorSizeAt:])) * sectorSize
	require.Positive(t, off)
	require.Positive(t, size)
	return off, size
}
