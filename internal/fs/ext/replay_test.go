package ext

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/filetest"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
)

// journalKinds are file systems and formats of journals that debugfs writes.
var journalKinds = []struct {
	name, open string
	args       []string
}{
	{"ext3, 1 KiB blocks", "journal_open", []string{"-t", "ext3", "-b", "1024"}},
	{"ext4, checksums 2", "journal_open -c -v 2", []string{"-t", "ext4", "-b", "2048", "-O", "^64bit"}},
	{"ext4, checksums 3", "journal_open -c -v 3", []string{"-t", "ext4", "-b", "4096", "-O", "^64bit"}},
	{"ext4, 64 bits", "journal_open", []string{"-t", "ext4", "-b", "4096", "-O", "64bit,^metadata_csum"}},
	{"ext4, 64 bits, checksums 2", "journal_open -c -v 2", []string{"-t", "ext4", "-b", "1024", "-O", "64bit"}},
	{"ext4, 64 bits, checksums 3", "journal_open -c -v 3", []string{"-t", "ext4", "-b", "4096", "-O", "64bit"}},
}

// withJournal makes a volume whose journal holds random transactions: blocks that are written, revoked, written again,
// that begin as blocks of a journal do, and a last transaction without its end.
func withJournal(t testing.TB, open string, args []string, seed uint64) []byte {
	t.Helper()
	img := makeExt(t, extKind{size: "8M", args: args},
		filetest.WriteTree(t, map[string][]byte{"file": filetest.Noise(seed, 9000)}))
	raw := disktest.ReadFile(t, img)
	block := int64(1024) << binary.LittleEndian.Uint32(raw[superAt+0x18:])
	r := rand.New(rand.NewPCG(seed, 1))
	dir, script := t.TempDir(), open+"\n"
	last := 2 + r.IntN(6)
	for i := range last + 1 {
		numbers := r.Perm(60)[:1+r.IntN(40)]
		var list, revoked []string
		var content []byte
		for _, n := range numbers {
			list = append(list, fmt.Sprint(int64(len(raw))/block-100+int64(n)))
			b := filetest.Noise(seed*100+uint64(i), int(block))
			b[4] = byte(n)
			if r.IntN(4) == 0 {
				binary.BigEndian.PutUint32(b, 0xc03b3998)
			}
			content = append(content, b...)
		}
		if r.IntN(3) == 0 {
			list, content = append(list, "0"), append(content, bytes.Repeat([]byte{byte(i + 1)}, int(superAt))...)
			content = append(content, raw[superAt:max(block, superAt)]...)
		}
		for range r.IntN(8) {
			revoked = append(revoked, fmt.Sprint(int64(len(raw))/block-100+int64(r.IntN(60))))
		}
		path := filepath.Join(dir, fmt.Sprint(i))
		require.NoError(t, os.WriteFile(path, content, 0o600))
		// With blocks and revocations in one transaction, debugfs writes the next one over its commit.
		if len(revoked) > 0 && i > 0 {
			script += "journal_write -r " + strings.Join(revoked, ",") + "\n"
		}
		script += "journal_write -b " + strings.Join(list, ",")
		if i == last {
			script += " -c"
		}
		script += " " + path + "\n"
	}
	path := filepath.Join(dir, "script")
	require.NoError(t, os.WriteFile(path, []byte(script+"journal_close\n"), 0o600))
	out := disktest.Run(t, "debugfs", "-w", "-f", path, img)
	require.NotContains(t, out, "invalid")
	raw = disktest.ReadFile(t, img)
	return raw
}

// journalPlaces returns where the blocks of the journal lie.
func journalPlaces(t testing.TB, raw []byte) (at []int64, block int64) {
	t.Helper()
	f, err := openAsIs(guestfile.NewBudget(), filetest.Memory(raw))
	require.NoError(t, err)
	file, err := f.journal()
	require.NoError(t, err)
	for off := int64(0); off < file.Size(); off += f.block {
		run, err := file.Run(off)
		require.NoError(t, err)
		at = append(at, run.Off)
	}
	return at, f.block
}

// equalReplayed holds a volume as it is read against the one that e2fsck replays, but for the journal and the
// superblock.
func equalReplayed(t testing.TB, raw []byte) *Replayed {
	t.Helper()
	g := alone.Sound(t, filetest.Memory(raw))
	after, ok := g.(*Replayed)
	require.True(t, ok)
	img := filepath.Join(t.TempDir(), "replayed")
	require.NoError(t, os.WriteFile(img, raw, 0o600))
	disktest.Run(t, "e2fsck", "-p", "-E", "journal_only", img)
	want := disktest.ReadFile(t, img)
	got := make([]byte, len(raw))
	require.NoError(t, ondisk.ReadFull(after.FS.(*fileSystem).volume, got, 0))
	at, block := journalPlaces(t, raw)
	for _, b := range [][]byte{want, got} {
		clear(b[superAt : superAt+1024])
		for _, place := range at {
			clear(b[place : place+block])
		}
	}
	if !bytes.Equal(want, got) {
		for i := range want {
			require.Equal(t, want[i], got[i], "byte %#x, %v", i, after.Log)
		}
	}
	for off := int64(0); off < int64(len(want)); off += block {
		whole := disk.Range{Off: off, Len: block}
		if held := after.Log.Conflict([]disk.Range{whole}); held == nil && !slices.Contains(at, off) && off > superAt {
			require.True(t, bytes.Equal(raw[off:off+block], want[off:off+block]), "no write names the block at %#x",
				off)
		}
	}
	return after
}

// TestReplayAsE2fsck reads volumes as e2fsck leaves them that replays their journals.
func TestReplayAsE2fsck(t *testing.T) {
	t.Parallel()
	seeds := uint64(2)
	if testing.Short() {
		seeds = 1
	}
	for i, k := range journalKinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			for seed := range seeds {
				raw := withJournal(t, k.open, k.args, seed+uint64(10*i))
				before := equalReplayed(t, raw)
				require.NotEmpty(t, before.Log.Writes)

				// The log is moved on, so that its end lies in front of its start.
				at, block := journalPlaces(t, raw)
				ring, was, by := at[1:], [][]byte{}, len(at)-4
				for _, place := range ring {
					was = append(was, bytes.Clone(raw[place:place+block]))
				}
				for i := range ring {
					copy(raw[ring[(i+by)%len(ring)]:], was[i])
				}
				be, super := binary.BigEndian, raw[at[0]:at[0]+1024]
				require.EqualValues(t, len(at), be.Uint32(super[0x10:]))
				start := int(be.Uint32(super[0x1c:]))
				be.PutUint32(super[0x1c:], uint32((start-1+by)%len(ring)+1))
				if be.Uint32(super[0x28:])&0x18 != 0 {
					be.PutUint32(super[0xfc:], 0)
					be.PutUint32(super[0xfc:], ^crc32.Checksum(super, crc32.MakeTable(crc32.Castagnoli)))
				}
				require.Len(t, equalReplayed(t, raw).Log.Writes, len(before.Log.Writes), "wrapped")
			}
		})
	}
}

// TestReplayOfBrokenJournals changes one byte of each block of a log with checksums. A wrong
// checksum counts up to the last commit.
func TestReplayOfBrokenJournals(t *testing.T) {
	t.Parallel()
	for _, k := range []int{1, 5} {
		raw := withJournal(t, journalKinds[k].open, journalKinds[k].args, 7)
		at, block := journalPlaces(t, raw)
		committed := 0
		for i, place := range at[1:] {
			if binary.BigEndian.Uint64(raw[place:]) == 0xc03b399800000002 {
				committed = i + 1
			}
		}
		require.Greater(t, committed, 30)
		for i, place := range at[:committed+10] {
			raw[place+block-100] ^= 1
			v := alone.Sound(t, filetest.Memory(raw))
			open, ok := v.(*Replayed)
			require.True(t, ok)
			switch {
			case i == 0 && block > 1124: // behind the superblock
				require.NoError(t, open.Unread)
			case i <= committed:
				require.ErrorIs(t, open.Unread, ondisk.ErrFormat, i)
				require.ErrorContains(t, open.Unread, "checksum")
				require.Equal(t, open.Before, open.FS, "as the disk has it")
			default:
				require.NoError(t, open.Unread, i)
			}
			raw[place+block-100] ^= 1
		}
		raw[at[committed-1]+block-100] ^= 1 // e2fsck goes on in front of a wrong commit, and Linux mounts no more
		img := filepath.Join(t.TempDir(), "broken")
		require.NoError(t, os.WriteFile(img, raw, 0o600))
		require.Contains(t, disktest.Run(t, "e2fsck", "-p", "-E", "journal_only", img), "Journal checksum error")
	}
}

// TestReplayOfLinux reads the files of a volume that Linux has mounted, from a copy of the moment.
func TestReplayOfLinux(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("mounts need root")
	}
	dir := filetest.WriteTree(t, map[string][]byte{
		"old":       filetest.Noise(1, 5000),
		"dir/moved": filetest.Noise(2, 70_000),
	})
	img, mnt, hot := makeExt(t, extKind{size: "32M", args: []string{"-t", "ext4", "-b", "4096"}}, dir), t.TempDir(),
		filepath.Join(t.TempDir(), "hot")
	if out, err := exec.Command("mount", "-o", "loop", img, mnt).CombinedOutput(); err != nil {
		t.Skipf("no loop mount: %s", out)
	}
	defer func() { disktest.Run(t, "umount", mnt) }()
	for i := range 200 {
		require.NoError(t, os.WriteFile(filepath.Join(mnt, fmt.Sprint("new", i)), filetest.Noise(3, 4000+i), 0o600))
	}
	require.NoError(t, os.Rename(filepath.Join(mnt, "dir/moved"), filepath.Join(mnt, "here")))
	require.NoError(t, os.Remove(filepath.Join(mnt, "old")))
	disktest.Run(t, "sync", mnt) // the journal is written, and little else
	disktest.Run(t, "cp", img, hot)
	raw := disktest.ReadFile(t, hot)

	after := equalReplayed(t, raw)
	names, err := after.List("")
	require.NoError(t, err)
	require.Len(t, names, 200+3)
	f := filetest.File(t, after, "here")
	require.ErrorContains(t, f.Fixed, "journal")
	got, err := ondisk.Bytes(f, 0, f.Size())
	require.NoError(t, err)
	require.Equal(t, filetest.Noise(2, 70_000), got)
	_, err = after.Open("old")
	require.ErrorIs(t, err, fs.ErrNotExist)
	// Before has no journal, and debugfs reads none. A sync of another program can have written the folder to its
	// place.
	listed := strings.Contains(disktest.Run(t, "debugfs", "-n", "-R", "ls -p", hot), "/old/")
	_, err = after.Before.Open("old")
	require.Equal(t, listed, err == nil, "as the disk has it: %v", err)
}
