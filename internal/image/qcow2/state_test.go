package qcow2_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/qcow2forge"
	"github.com/trueup/trueup/internal/disktest/hostile"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
)

// created is an empty image of qemu-img, changed by qemu-io.
func created(t *testing.T, options, size string, commands ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk.qcow2")
	disktest.Run(t, "qemu-img", "create", "-q", "-f", "qcow2", "-o", options, path, size)
	args := []string{"-f", "qcow2"}
	for _, c := range commands {
		args = append(args, "-c", c)
	}
	if len(commands) > 0 {
		disktest.Run(t, "qemu-io", append(args, path)...)
	}
	return path
}

// Every state that a cluster or a subcluster can have, where no parent is.
func TestQcow2ClusterStates(t *testing.T) {
	commands := []string{
		"write -P 7 0 1M", "write -z 256k 512k", "write -P 9 300k 1k", "write -P 8 2M 64k", "discard 2M 64k",
		"write -c -P 6 3M 64k", "write -P 5 3100k 512", "write -z -u 4M 64k", "write -P 3 4095k 2k",
	}
	for _, o := range []string{
		"compat=1.1", "compat=0.10", "extended_l2=on", "extended_l2=on,cluster_size=16k", "lazy_refcounts=on",
		"preallocation=metadata",
		"preallocation=metadata,extended_l2=on", "preallocation=full", "preallocation=falloc,compat=0.10",
	} {
		t.Run(o, func(t *testing.T) {
			use := commands
			if o != "compat=1.1" {
				use = append(use[:5:5], commands[7:]...) // compressed writes need clusters of their own size
			}
			path := created(t, o, "5M", use...)
			img := imagetest.Open(t, path)
			disktest.CheckBytes(t, img.Disk, asRaw(t, path))
			imagetest.NoDamage(t, img)
		})
	}
}

// Marked zeros and holes need no reading, and are long.
func TestQcow2ZerosAreExtents(t *testing.T) {
	img := imagetest.Open(t,
		created(t, "compat=1.1", "64T", "write -P 7 0 1M", "write -z 256k 512k", "write -P 1 60T 64k"))
	for _, want := range []struct{ off, end int64 }{{256 * kib, 768 * kib}, {mib, 60 << 40}} {
		e, err := img.Disk.Extent(want.off, 64<<40-want.off)
		for err == nil && e.Zero && e.End() < want.end {
			n, err := img.Disk.Extent(e.End(), want.end-e.End())
			require.NoError(t, err)
			require.True(t, n.Zero)
			e.Len += n.Len
		}
		require.NoError(t, err)
		require.True(t, e.Zero)
		require.Equal(t, want.end, e.End())
	}
}

func TestQcow2Snapshots(t *testing.T) {
	path := created(t, "compat=1.1", "4M", "write -P 1 0 1M")
	for i := range 10 {
		disktest.Run(t, "qemu-img", "snapshot", "-c", fmt.Sprintf("state %d", i), path)
		disktest.Run(t, "qemu-io", "-f", "qcow2", "-c", fmt.Sprintf("write -P %d %dk 100k", 20+i, 70*i), path)
	}
	img := imagetest.Open(t, path)
	disktest.CheckBytes(t, img.Disk, asRaw(t, path))
	require.Equal(t, []string{"qcow2-snapshots"}, imagetest.Codes(img.Issues, ondisk.Note))
	require.Contains(t, img.Issues[0].Text, "10 internal snapshots")
	require.Contains(t, img.Details, driver.Detail{Name: "snapshots", Value: "10"})
	require.Contains(t, fmt.Sprint(img.Details), `"state 7", id "8"`)
	require.NotContains(t, fmt.Sprint(img.Details), `"state 8"`)
	imagetest.NoDamage(t, img)
	copied := writeQcow2(t, img, "v3")
	require.Empty(t, copied.Issues)
}

// The clusters of a bitmap are not orphans.
func TestQcow2Bitmaps(t *testing.T) {
	path := created(t, "compat=1.1", "256M")
	disktest.Run(t, "qemu-img", "bitmap", "--add", "-f", "qcow2", path, "backup")
	disktest.Run(t, "qemu-img", "bitmap", "--add", "-g", "512", "-f", "qcow2", path, "second")
	disktest.Run(t, "qemu-io", "-f", "qcow2", "-c", "write -P 1 0 9M", path)
	img := imagetest.Open(t, path)
	require.Equal(t, []string{"qcow2-bitmaps"}, imagetest.Codes(img.Issues, ondisk.Note))
	require.Contains(t, img.Issues[0].Text, "2 persistent bitmaps:")
	requireClean(t, img)
}

// The ranges of a bitmap equal those served by qemu-nbd.
func TestQcow2BitmapOfWrites(t *testing.T) {
	for _, granularity := range []string{"512", "64k", "1M"} {
		path := created(t, "compat=1.1,cluster_size=512", "9999872") // no multiple of 64 KiB
		disktest.Run(t, "qemu-img", "bitmap", "--add", "-g", "512", "-f", "qcow2", path, "other")
		disktest.Run(t, "qemu-img", "bitmap", "--add", "-g", granularity, "-f", "qcow2", path, "guest")
		disktest.Run(t, "qemu-io", "-f", "qcow2", "-c", "write 0 512", "-c", "write 700k 2M",
			"-c", "write 9999360 512", path)
		b, err := imagetest.Open(t, path).Bitmap("guest")
		require.NoError(t, err)
		require.True(t, b.Consistent)
		var written []disk.Range
		out := disktest.Run(t, "nbdinfo", "--json", "--map=qemu:dirty-bitmap:guest", "--", "[", "qemu-nbd", "-r",
			"-f", "qcow2", "-B", "guest", path, "]")
		var extents []struct{ Offset, Length, Type int64 }
		require.NoError(t, json.Unmarshal([]byte(out), &extents))
		for _, e := range extents {
			if e.Type == 1 {
				written = disk.Append(written, disk.Range{Off: e.Offset, Len: e.Length})
			}
		}
		require.Equal(t, written, b.Written)
		require.Greater(t, len(b.Written), 1)
		_, err = imagetest.Open(t, path).Bitmap("none")
		require.ErrorIs(t, err, ondisk.ErrReference)
	}
}

// Each wrong field of a bitmap is refused, and a bitmap that was not saved has no ranges.
func TestQcow2DamagedBitmaps(t *testing.T) {
	path := created(t, "compat=1.1", "256M")
	disktest.Run(t, "qemu-img", "bitmap", "--add", "-f", "qcow2", path, "guest")
	disktest.Run(t, "qemu-io", "-f", "qcow2", "-c", "write 0 9M", path)
	img := disktest.ReadFile(t, path)
	name := bytes.LastIndex(img, []byte("guest"))
	entry := int64(name) - 24
	table := int64(binary.BigEndian.Uint64(img[entry:]))
	for at, tc := range map[int64]struct { // fields by the specification, "Bitmap directory"
		put  []byte
		says string
	}{
		entry:      {[]byte{1}, "table offset"},
		entry + 11: {[]byte{2}, "bitmap_table_size"},
		entry + 16: {[]byte{7}, "type"},
		entry + 17: {[]byte{8}, "granularity_bits"},
		table:      {[]byte{0, 0xFF}, "entry"},
	} {
		broken := bytes.Clone(img)
		copy(broken[at:], tc.put)
		require.NoError(t, os.WriteFile(path, broken, 0o600))
		_, err := imagetest.Open(t, path).Bitmap("guest")
		require.ErrorIs(t, err, ondisk.ErrFormat, tc.says)
		require.ErrorContains(t, err, tc.says)
	}
	img[entry+15] |= 1 // in use
	require.NoError(t, os.WriteFile(path, img, 0o600))
	b, err := imagetest.Open(t, path).Bitmap("guest")
	require.NoError(t, err)
	require.False(t, b.Consistent)
	require.Empty(t, b.Written)
}

func TestQcow2IsRefusedByName(t *testing.T) {
	secret := "secret,id=s,data=abc123"
	dir := t.TempDir()
	for _, tc := range []struct {
		name  string
		args  []string
		class error
		says  string
	}{
		{
			"luks",
			[]string{"--object", secret, "-o", "encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10"},
			ondisk.ErrUnsupported, "encryption LUKS",
		},
		{
			"aes",
			[]string{"--object", secret, "-o", "encrypt.format=aes,encrypt.key-secret=s"},
			ondisk.ErrUnsupported,
			"encryption AES",
		},
		{
			"data outside",
			[]string{"-o", "data_file=" + filepath.Join(t.TempDir(), "outside.raw")},
			ondisk.ErrReference, "outside.raw",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.name == "luks" && testing.Short() {
				t.Skip("its key takes seconds to derive")
			}
			path := filepath.Join(dir, tc.name+".qcow2")
			disktest.RunLUKS(t, append(append([]string{"create", "-q", "-f", "qcow2"}, tc.args...), path, "1M")...)
			_, err := image.Open(path, image.Options{})
			require.ErrorContains(t, err, tc.says)
			require.ErrorIs(t, err, tc.class)
		})
	}
}

// The same job gives the same bytes, on any number of processors.
func TestQcow2IsDeterministic(t *testing.T) {
	data := imagetest.Noise(9, 9*mib)
	copy(data[2*mib:], bytes.Repeat([]byte("packs well "), 300000))
	src := imagetest.Open(t, imagetest.Write(t, t.TempDir(), "src.img", data))
	for _, kind := range qcow2Kinds {
		imagetest.SameBytes(t, src, "copy.qcow2", store.CreateOptions{Format: "qcow2", Subformat: kind})
	}
}

// Data on a MiB of the disk are on 4 KiB of the file, for any cluster size of the source.
func TestQcow2PlacesAreAligned(t *testing.T) {
	path := created(t, "cluster_size=512", "4M", "write -P 7 512 3M")
	img := writeQcow2(t, imagetest.Open(t, path), "v3")
	for off := int64(0); off < 3*mib; off += mib {
		run, err := img.Disk.(disk.Mapped).Run(off)
		require.NoError(t, err)
		require.Zero(t, run.Off%4096)
	}
}

// qemuCheck is the result of qemu-img check: an exit code of 2 or 3 means a finding.
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

// Our findings about the tables equal those of qemu-img.
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

// An unlisted snapshot leaves its clusters behind.
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
	// gives the current state its own L2 table
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

func TestHostileQcow2(t *testing.T) { hostile.Check(t, hostile.Qcow2(), imagetest.Issues) }

// The hostile images differ from a valid one only in their changes.
func TestForgedQcow2IsValid(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.qcow2")
	qcow2forge.New(hostile.Disk(), 16).Write(t, path)
	require.Contains(t, disktest.Run(t, "qemu-img", "check", "-f", "qcow2", path), "No errors were found")
}
