package qcow2_test

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/qcow2forge"
	"github.com/trueup/trueup/internal/disktest/hostile"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/ondisk"
)

// qemuCheck is what qemu-img finds: an exit code of 2 or 3 says that it found something.
func qemuCheck(t *testing.T, path string) (corruptions, leaks int) {
	t.Helper()
	out, err := exec.Command(disktest.Tool(t, "qemu-img"), "check", "--output=json", "-f", "qcow2", path).Output()
	if exit := new(exec.ExitError); err != nil {
		require.True(t, errors.As(err, &exit) && (exit.ExitCode() == 2 || exit.ExitCode() == 3), "%v", err)
	}
	var found struct{ Corruptions, Leaks int }
	require.NoError(t, json.Unmarshal(out, &found))
	return found.Corruptions, found.Leaks
}

// What we say of the tables is what qemu-img says.
func TestQcow2CheckAgreesWithQemuImg(t *testing.T) {
	for _, tc := range []struct {
		name               string
		change             func(q *qcow2forge.File)
		code, text         string
		effect             ondisk.Effect
		corruptions, leaks int
	}{
		{
			"clusters that are not used", func(q *qcow2forge.File) { q.Append(make([]byte, 3*64*kib)) },
			"orphaned-data", "3 clusters (192 KiB)", ondisk.Note, 0, 3,
		},
		{
			"an entry less", func(q *qcow2forge.File) { q.SetEntry(0, 0) }, "orphaned-data", "1 clusters (64 KiB)",
			ondisk.Note, 0, 1,
		},
		{
			"no refcount", func(q *qcow2forge.File) { q.SetRefcount(6, 0) }, "qcow2-refcounts",
			"1 clusters in use whose refcount is 0; first: the cluster at 0x60000 has refcount 0 and 1 use",
			ondisk.Warn, 1, 0,
		},
		{
			"two entries to one cluster", func(q *qcow2forge.File) { q.SetEntry(9, q.Entry(8)); q.SetRefcount(14, 0) },
			"qcow2-tables", "2 uses", ondisk.Broken, 3, 0,
		},
		{
			"data in a table", func(q *qcow2forge.File) { q.SetEntry(20, uint64(q.RefBlock)|qcow2forge.Copied) },
			"qcow2-tables", "as a table and as data", ondisk.Broken, 1, 0,
		},
		{
			"refcount block outside", func(q *qcow2forge.File) { q.BE64(q.RefTable+8, 1<<40) }, "qcow2-refcounts",
			"1 damaged entries of the refcount table", ondisk.Warn, 1, 0,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			data := imagetest.Noise(70, 2*mib)
			for i := range data {
				data[i] |= 1 // no cluster is zero
			}
			clear(data[20*64*kib : 21*64*kib])
			q := qcow2forge.New(data, 16)
			tc.change(q)
			path := imagetest.Write(t, t.TempDir(), "disk.qcow2", q.Bytes)
			issues, err := imagetest.Open(t, path).Check()
			require.NoError(t, err)
			require.Equal(t, []string{tc.code}, imagetest.Codes(issues, ondisk.Note), "%v", issues)
			require.Equal(t, tc.effect, issues[0].Effect)
			require.Contains(t, issues[0].Text, tc.text)
			require.Equal(t, tc.effect == ondisk.Broken, errors.Is(issues[0].Err, ondisk.ErrFormat))
			corruptions, leaks := qemuCheck(t, path)
			require.Equal(t, tc.leaks, leaks)
			require.Equal(t, tc.corruptions > 0, corruptions > 0, "%d corruptions", corruptions)
		})
	}
}

// Refcounts have 1 to 64 bits. A table loses an entry, so that one cluster of data is orphaned.
func TestQcow2RefcountsOfAllSizes(t *testing.T) {
	for order := range 7 {
		t.Run(fmt.Sprintf("%d bits", 1<<order), func(t *testing.T) {
			path := created(t, fmt.Sprintf("refcount_bits=%d,cluster_size=4k", 1<<order), "4M", "write -P 7 0 3M")
			b := disktest.ReadFile(t, path)
			l1 := binary.BigEndian.Uint64(b[qcow2forge.L1:])
			l2 := binary.BigEndian.Uint64(b[l1:]) &^ qcow2forge.Copied
			clear(b[l2+8*77 : l2+8*78])
			require.NoError(t, os.WriteFile(path, b, 0o644))
			issues, err := imagetest.Open(t, path).Check()
			require.NoError(t, err)
			require.Equal(t, []string{"orphaned-data"}, imagetest.Codes(issues, ondisk.Note))
			require.Contains(t, issues[0].Text, "1 clusters (4 KiB)")
			_, leaks := qemuCheck(t, path)
			require.Equal(t, 1, leaks)
		})
	}
}

// A snapshot that is not listed any more leaves its clusters behind.
func TestQcow2LostSnapshotIsOrphaned(t *testing.T) {
	path := created(t, "compat=1.1", "4M", "write -P 1 0 1M")
	disktest.Run(t, "qemu-img", "snapshot", "-c", "state", path)
	disktest.Run(t, "qemu-io", "-f", "qcow2", "-c", "write -P 2 0 640k", path)
	imagetest.NoDamage(t, imagetest.Open(t, path))
	b := disktest.ReadFile(t, path)
	clear(b[qcow2forge.Snapshots : qcow2forge.SnapTable+8])
	lost := imagetest.Write(t, t.TempDir(), "lost.qcow2", b)
	issues, err := imagetest.Open(t, lost).Check()
	require.NoError(t, err)
	require.Equal(t, []string{"orphaned-data"}, imagetest.Codes(issues, ondisk.Note))
	// Ten clusters of data, their L2 table, the snapshot's L1 table, the snapshot table. qemu-img counts the six
	// clusters
	// whose refcount is one too high, too.
	require.Contains(t, issues[0].Text, "13 clusters")
	_, leaks := qemuCheck(t, lost)
	require.Equal(t, 13+6, leaks)
}

// A file that is cut anywhere is not read as if it were whole.
func TestTruncatedQcow2(t *testing.T) {
	q := qcow2forge.New(hostile.Disk(), 16)
	imagetest.CutShort(t, q.Bytes, []int64{
		4, 72, 104, 112, 512, q.RefTable, q.RefBlock, q.L1, q.L2, q.L2 + 1<<16, q.End - 8192, q.End - 1<<16,
	}, func(dir string, cut []byte) string { return imagetest.Write(t, dir, "disk.qcow2", cut) })

	small, dir := qcow2forge.New(imagetest.Noise(71, mib), 12), t.TempDir()
	for n := int64(1000); n < small.End; n += 1000 {
		issues, err := imagetest.Issues(t, imagetest.Write(t, dir, "disk.qcow2", small.Bytes[:n]), "")
		if err != nil {
			require.ErrorIs(t, err, ondisk.ErrFormat, "%d of %d bytes", n, small.End)
			continue
		}
		require.NotEmpty(t, imagetest.Codes(issues, ondisk.Broken), "%d of %d bytes", n, small.End)
	}
}

// A snapshot shares most L2 tables with the present state, and each cluster in them counts for both. An entry that was
// bent to such a cluster is one use too many.
func TestQcow2EntryThatLeadsToAClusterOfASharedTable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.qcow2")
	disktest.Run(t, "qemu-img", "create", "-q", "-f", "qcow2", "-o", "cluster_size=1k", path, "1M")
	disktest.Run(t, "qemu-io", "-f", "qcow2", "-c", "write -P 1 0 1M", path)
	disktest.Run(t, "qemu-img", "snapshot", "-c", "before", path)
	// gives the present state an L2 table of its own
	disktest.Run(t, "qemu-io", "-f", "qcow2", "-c", "write -P 2 0 1k", path)
	issues, err := imagetest.Open(t, path).Check()
	require.NoError(t, err)
	require.Empty(t, imagetest.Codes(issues, ondisk.Note), "%v", issues)

	b := disktest.ReadFile(t, path)
	const place = 0x00ff_ffff_ffff_fe00
	table := func(i uint64) uint64 {
		return binary.BigEndian.Uint64(b[binary.BigEndian.Uint64(b[40:])+8*i:]) & place
	}
	copy(b[table(0):][:8], b[table(2):][:8])
	require.NoError(t, os.WriteFile(path, b, 0o600))
	corruptions, _ := qemuCheck(t, path)
	require.Positive(t, corruptions)
	issues, err = imagetest.Open(t, path).Check()
	require.NoError(t, err)
	require.Equal(t, []string{"qcow2-tables"}, imagetest.Codes(issues, ondisk.Warn), "%v", issues)
	require.ErrorContains(t, issues[0].Err, "has refcount 2 and 3 uses")
}
