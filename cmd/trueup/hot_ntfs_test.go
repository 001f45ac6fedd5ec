package main

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
)

// ntfsFile is where a file lies: its record of the MFT, and its first cluster.
type ntfsFile struct {
	record, cluster int64
	size            int64
}

func findNTFS(t testing.TB, part string, args ...string) (f ntfsFile) {
	t.Helper()
	info := disktest.Output(t, "ntfsinfo", append(append([]string{"-v"}, args...), part)...)
	for what, to := range map[string]*int64{
		`Dumping Inode (\d+)`: &f.record, `(?s)attribute \$DATA .*?Data size:\s+(\d+)`: &f.size,
		`(?s)attribute \$DATA .*?Runlist:[^\n]*\n\s*0x0\s+(0x[0-9a-f]+)`: &f.cluster,
	} {
		n, err := strconv.ParseInt(match(t, info, what), 0, 64)
		require.NoError(t, err)
		*to = n
	}
	return f
}

// hotNTFS is a disk with an NTFS at sector 63 whose log tests replace.
type hotNTFS struct {
	disk     windowsDisk
	raw      string
	log, mft ntfsFile
}

const hotStart, hotSectors = 63, 100_000

// onRecord is an operation on a record of the MFT.
func (h *hotNTFS) onRecord(op uint16, n int64) []byte {
	return fsforge.OnRecord(op, n, h.mft.cluster, make([]byte, 8))
}

// align aligns the disk with records in its log behind the checkpoint.
func (h *hotNTFS) align(t *testing.T, pending ...[]byte) (r result, dest string) {
	t.Helper()
	source := filepath.Join(t.TempDir(), "source.raw")
	dest = filepath.Join(t.TempDir(), "dest.raw")
	disktest.Run(t, "cp", "--sparse=always", h.raw, source)
	l := fsforge.NewLogFile(h.log.size)
	for _, p := range pending {
		l.Add(p)
	}
	disktest.WriteAt(t, source, hotStart*sectorSize+h.log.cluster*4096, l.Sealed())
	return trueup(t, "align", source, dest), dest
}

// An NTFS that was in use when it was copied is aligned when the replay of its log writes to nothing that the move
// rewrites, and refused by name when it does.
func TestHotNTFS(t *testing.T) {
	t.Parallel()
	const system = "Windows/System32/config/SYSTEM"
	hive := mergeHive(t, disktest.Corpus(t, "regipy/SYSTEM_2.xz"), letters(hotStart*sectorSize))
	h := &hotNTFS{disk: windowsDisk{signature: windowsSignature, sectors: 120_000, volumes: []windowsVolume{{
		number: 1, kind: "ntfs", typ: "7", start: hotStart, sectors: hotSectors, loads: "NTLDR",
		files: map[string]string{system: hive},
	}}}}
	h.raw = h.disk.make(t)
	part := extract(t, h.raw, hotStart*sectorSize, hotSectors*sectorSize)
	h.log, h.mft = findNTFS(t, part, "-i", "2"), findNTFS(t, part, "-i", "0")
	file := findNTFS(t, part, "-F", "/"+system)
	b := disktest.ReadFile(t, hive)
	letterAt := file.cluster + int64(bytes.Index(b, mountedValue(windowsSignature, hotStart*sectorSize))/4096)
	for name, tc := range map[string]struct {
		pending [][]byte
		refused string
	}{
		"nothing pending":          {nil, ""},
		"another file grows":       {[][]byte{h.onRecord(0x09, 40)}, ""},
		"clusters of another file": {[][]byte{fsforge.OnCluster(0x08, file.cluster-1)}, ""},
		"the hive gets new runs": {
			[][]byte{h.onRecord(0x09, file.record)},
			"writes the file, record " + fmt.Sprint(file.record),
		},
		"the hive is deleted": {
			[][]byte{h.onRecord(0x03, file.record)},
			"writes the file, record " + fmt.Sprint(file.record),
		},
		"a letter of the hive":     {[][]byte{fsforge.OnCluster(0x08, letterAt)}, "patched bytes"},
		"the MFT grows":            {[][]byte{h.onRecord(0x09, 0)}, "writes $MFT, record 0"},
		"an operation of tomorrow": {[][]byte{h.onRecord(0x30, 40)}, "operation 0x30 at byte 0: not supported"},
	} {
		t.Run(name, func(t *testing.T) {
			r, dest := h.align(t, tc.pending...)
			if tc.refused != "" {
				require.Equal(t, 4, r.code, "%s%s", r.stdout, r.stderr)
				require.Contains(t, r.stderr, "$LogFile of NTFS")
				require.Contains(t, r.stderr, tc.refused)
				return
			}
			require.Equal(t, 0, r.code, "%s%s", r.stdout, r.stderr)
			require.Contains(t, r.stdout+r.stderr, "was in use when it was copied")
			// The tools of ntfs-3g refuse a log that is in use: they get the copy with an empty one.
			disktest.WriteAt(t, dest, 1<<20+h.log.cluster*4096, []byte(strings.Repeat("\xff", int(h.log.size))))
			after := exportHive(t, readGuestFile(t, dest, h.disk.volumes[0], 1<<20, system), `\MountedDevices`)
			before := exportHive(t, hive, `\MountedDevices`)
			old := mountedText(windowsSignature, hotStart*sectorSize)
			require.Positive(t, strings.Count(before, old))
			require.Equal(t, strings.ReplaceAll(before, old, mountedText(windowsSignature, 1<<20)), after)
		})
	}
}
