package ext

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest/filetest"
	"github.com/trueup/trueup/internal/ondisk"
)

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
