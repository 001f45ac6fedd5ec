package ext

import (
	"bytes"
	"encoding/binary"
	"errors"
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

// equalReplayed compares a volume as read with one replayed by e2fsck, except for the journal and the superblock.
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

				// The log is advanced, so that its end is before its start.
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
			case i == 0 && block > 1124: // after the superblock
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
		raw[at[committed-1]+block-100] ^= 1 // e2fsck continues before a wrong commit, and Linux mounts no more
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

// Sizes of structures. Spec: Linux, include/linux/jbd2.h.
func TestSizes(t *testing.T) {
	for want, v := range map[int]any{12: header{}, 1024: superblock{}, 60: commitBlock{}} {
		require.Equal(t, want, binary.Size(v), "%T", v)
	}
}

// TestAfter compares sequence numbers, which wrap. Spec: Linux, include/linux/jbd2.h, tid_gt.
func TestAfter(t *testing.T) {
	for _, x := range []struct {
		a, b uint32
		want bool
	}{
		{1, 1, false},
		{2, 1, true},
		{1, 2, false},
		{0, ^uint32(0), true},
		{^uint32(0), 0, false},
		{1 << 31, 1, true},
		{1, 1 << 30, false},
	} {
		require.Equal(t, x.want, after(x.a, x.b), x)
	}
}

const blockSize = 1024

// forged is a journal of 16 blocks without checksums, for a volume of 100: transaction 7 in its blocks 3 to 6 holds
// blocks 5 and 9, transaction 8 revokes block 9. Spec: Linux, Documentation/filesystems/ext4/journal.rst.
func forged() []byte {
	b := make([]byte, 16*blockSize)
	put := func(block int, words ...uint32) {
		for i, w := range words {
			binary.BigEndian.PutUint32(b[block*blockSize+4*i:], w)
		}
	}
	put(0, Magic, superV2, 0, blockSize, 16, 1, 7, 3, 0, 0, incompatRevoke)
	put(3, Magic, descriptor, 7, 5, tagEscaped, 0, 0, 0, 0, 9, tagSameUUID|tagLast)
	put(4, 0, 0x11111111)
	put(5, 0x22222222)
	put(6, Magic, commit, 7)
	put(7, Magic, revocation, 8, 20, 9)
	put(8, Magic, commit, 8)
	return b
}

var forgedFor = Volume{Block: blockSize, Blocks: 100}

func TestForged(t *testing.T) {
	log, err := Read(filetest.Memory(forged()), forgedFor)
	require.NoError(t, err)
	five := Write{Range: disk.Range{Off: 5 * blockSize, Len: blockSize}, At: 4 * blockSize, Escaped: true, Sequence: 7}
	require.Equal(t, &Log{First: 7, Last: 8, Writes: []Write{five}}, log)
	require.Equal(t, "transaction 7 holds its block 5", five.String())

	require.Nil(t, log.Conflict([]disk.Range{{Off: 0, Len: 5 * blockSize}, {Off: 6 * blockSize, Len: 90 * blockSize}}))
	require.Equal(t, &five, log.Conflict([]disk.Range{{Off: 0, Len: 1}, {Off: 6*blockSize - 1, Len: 8}}))
	require.Nil(t, log.Conflict(nil))

	volume := filetest.Memory(make([]byte, 100*blockSize))
	after := log.Overlay(volume, filetest.Memory(forged()))
	raw, err := ondisk.Bytes(after, 5*blockSize-4, 12)
	require.NoError(t, err)
	require.Equal(t, []byte{0, 0, 0, 0, 0xc0, 0x3b, 0x39, 0x98, 0x11, 0x11, 0x11, 0x11}, raw)
	require.True(t, isZero(t, after, 0, 5*blockSize) && isZero(t, after, 6*blockSize, 94*blockSize))
}

func isZero(t *testing.T, d disk.Disk, off, n int64) bool {
	t.Helper()
	raw, err := ondisk.Bytes(d, off, n)
	require.NoError(t, err)
	return ondisk.IsZero(raw)
}

// TestHostile changes one number of a journal at a time.
func TestHostile(t *testing.T) {
	for name, a := range map[string]struct {
		block, at int
		value     uint32
		want      string // of the error; empty: nothing is replayed from the place on
		writes    int
	}{
		"no magic":                    {0, 0, 1, "magic 0x1", 0},
		"a type of old":               {0, 4, 2, "type 2, want 3 or 4", 0},
		"blocks of another size":      {0, 12, 2048, "block size 2048, want 1024", 0},
		"more blocks than the file":   {0, 16, 17, "block count 17, want at most 16", 0},
		"no first block":              {0, 20, 0, "first block 0, want 1 to 15", 0},
		"first block behind the end":  {0, 20, 16, "first block 16, want 1 to 15", 0},
		"start in the superblock":     {0, 20, 4, "start 3, want 0, or 4 to 15", 0},
		"start behind the end":        {0, 28, 16, "start 16", 0},
		"nothing to replay":           {0, 28, 0, "", 0},
		"fast commits":                {0, 40, incompatRevoke | 0x20, "features 0x0, 0x21, 0x0: not supported", 0},
		"checksums of whole commits":  {0, 36, 1, "features 0x1", 0},
		"asynchronous commits":        {0, 40, 4, "features 0x0, 0x4", 0},
		"a feature for writers":       {0, 44, 1, "features 0x0, 0x1, 0x1", 0},
		"two kinds of checksums":      {0, 40, 0x18, "version 2 or of version 3", 0},
		"checksums of no type":        {0, 40, 0x10, "checksum type 0, want 4", 0},
		"another sequence":            {0, 24, 6, "", 0},
		"a descriptor of other times": {3, 8, 6, "", 0},
		"a block of no type":          {3, 4, 9, "", 0},
		"a tag behind the volume":     {3, 12, 100, "block of a tag 100, want less than 100", 0},
		"a tag without an end":        {3, 40, tagSameUUID, "blocks of the log 16, want at most 15", 0},
		"no commit":                   {6, 8, 9, "", 0},
		"revocations behind a block":  {7, 12, 1025, "bytes of revoked blocks 1025, want at most 1024", 0},
		"no revocation":               {7, 12, 16, "", 2},
		"fewer bytes than a header":   {7, 12, 0, "", 2},
		"a revocation of no block":    {7, 16, 1000, "", 2},
		"no second commit":            {8, 0, 0, "", 2},
	} {
		raw := forged()
		binary.BigEndian.PutUint32(raw[a.block*blockSize+a.at:], a.value)
		log, err := Read(filetest.Memory(raw), forgedFor)
		if a.want != "" {
			require.ErrorContains(t, err, a.want, name)
			require.Equal(t, strings.Contains(a.want, "features"), errors.Is(err, ondisk.ErrUnsupported), name)
			continue
		}
		require.NoError(t, err, name)
		require.Len(t, log.Writes, a.writes, name)
	}
}

func FuzzJournal(f *testing.F) {
	summed := forged()
	summed[0x50] = crc32cType
	binary.BigEndian.PutUint32(summed[0x28:], incompatCsum3|journal64Bit|incompatRevoke)
	filetest.Fuzz(f, [][]byte{forged(), summed}, func(t *testing.T, changed disk.Disk) {
		t.Helper()
		raw, err := ondisk.Bytes(changed, 0, changed.Size())
		require.NoError(t, err)
		sealed(raw)
		src := filetest.Memory(raw)
		log, err := Read(&ondisk.Metered{Source: src, Budget: &ondisk.Budget{Limit: 1 << 26}}, forgedFor)
		if err != nil {
			return
		}
		require.LessOrEqual(t, len(log.Writes), len(raw)/blockSize)
		volume := filetest.Memory(make([]byte, 100*blockSize))
		_, err = ondisk.Bytes(log.Overlay(volume, src), 0, volume.Size())
		require.NoError(t, err)
	})
}

// sealed makes most checksums right, without which no input gets past the superblock.
func sealed(raw []byte) {
	be := binary.BigEndian
	if be.Uint32(raw[0x28:])&incompatCsum3 == 0 {
		return
	}
	be.PutUint32(raw[atSuperSum:], sumWithout(^uint32(0), raw[:1024], atSuperSum))
	seed := crc32c(^uint32(0), raw[0x30:0x40])
	for at := blockSize; at < len(raw); at += blockSize {
		b := raw[at : at+blockSize]
		switch be.Uint32(b[4:]) {
		case commit:
			be.PutUint32(b[atCommitSum:], sumWithout(seed, b, atCommitSum))
		case descriptor:
			sum := crc32c(crc32c(seed, b[8:12]), raw[min(at+blockSize, len(raw)-blockSize):][:blockSize])
			be.PutUint32(b[24:], sum) // of the first tag
			be.PutUint32(b[16:], tagLast)
			fallthrough
		case revocation:
			be.PutUint32(b[blockSize-tailLen:], sumWithout(seed, b, blockSize-tailLen))
		}
	}
}

// TestSealed holds the checksums that the fuzz target makes: with them a journal is read to its end.
func TestSealed(t *testing.T) {
	raw := forged()
	raw[0x50] = crc32cType
	binary.BigEndian.PutUint32(raw[0x28:], incompatCsum3|journal64Bit|incompatRevoke)
	binary.BigEndian.PutUint32(raw[6*blockSize:], 0)
	copy(raw[5*blockSize:], raw[8*blockSize:])
	binary.BigEndian.PutUint32(raw[5*blockSize+8:], 7)
	sealed(raw)
	log, err := Read(filetest.Memory(raw), forgedFor)
	require.NoError(t, err)
	require.Len(t, log.Writes, 1)
}
