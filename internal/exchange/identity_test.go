package exchange_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/journal"
)

// The disk of these tests has two volumes, each made by two programs.
const (
	pairSectors   = 20480
	volumeOnDisk  = 8192  // sectors
	secondAligned = 10240 // LBA
)

// pairs caches made disks.
var pairs sync.Map

// pair returns a disk with a FAT16, at an LBA, and an ext4. Disks of different names have the same partitions, and
// nothing else in common.
func pair(t *testing.T, name string, start uint32) []byte {
	t.Helper()
	disktest.Tool(t, "mkfs.fat")
	disktest.Tool(t, "mkfs.ext4")
	made, _ := pairs.LoadOrStore(fmt.Sprint(name, start), sync.OnceValue(func() []byte {
		return makePair(t, name, start)
	}))
	return slices.Clone(made.(func() []byte)())
}

func makePair(t *testing.T, name string, start uint32) []byte {
	t.Helper()
	ids := map[string][3]string{
		"ours":     {"1234abcd", "6b0d4ab0-5a0c-4b0e-9d3e-7f7b3f0a0001", "\x01\x02\x03\x04"},
		"theirs":   {"00c0ffee", "6b0d4ab0-5a0c-4b0e-9d3e-7f7b3f0a0002", "\x05\x06\x07\x08"},
		"unsigned": {"1234abcd", "6b0d4ab0-5a0c-4b0e-9d3e-7f7b3f0a0001", "\x00\x00\x00\x00"},
	}[name]
	d := tableforge.NewMBR(pairSectors,
		tableforge.Slot{Type: 6, Start: start, Sectors: volumeOnDisk},
		tableforge.Slot{Type: 0x83, Start: secondAligned + start, Sectors: volumeOnDisk})
	d.Put(0x1b8, []byte(ids[2])) // the signature of the disk
	v := disktest.Blank(t, "fat", volumeOnDisk*sectorSize)
	disktest.Run(t, "mkfs.fat", "-F", "16", "-s", "1", "-i", ids[0], v)
	d.Put(int64(start)*sectorSize, disktest.ReadFile(t, v))
	v = disktest.Blank(t, "ext4", volumeOnDisk*sectorSize)
	disktest.Run(t, "mkfs.ext4", "-q", "-U", ids[1], v)
	d.Put(int64(secondAligned+start)*sectorSize, disktest.ReadFile(t, v))
	return d
}

// pairExchanged returns the folder of such a disk that was exchanged.
func pairExchanged(t *testing.T, name string) (k kind, dir string) {
	t.Helper()
	k, dir = made["raw"].kind, t.TempDir()
	for n, start := range map[string]uint32{k.main: 63, partial(k.main): 2048} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, n), pair(t, name, start), 0o600))
	}
	k.published(t, dir)
	return k, dir
}

// put writes a copy of bytes at an offset of the disk.
func put(off int64, b ...byte) func(d forge.Bytes) {
	return func(d forge.Bytes) { d.Put(off, b) }
}

// TestAnotherDiskAtThePath has other disks in place of the copy and of the original, as the same file or as another
// one. Without --force, neither command removes the other side. A disk changed by normal use is still the same disk.
func TestAnotherDiskAtThePath(t *testing.T) {
	t.Parallel()
	fat, ext := int64(2048*sectorSize), int64((secondAligned+2048)*sectorSize)
	for name, c := range map[string]struct {
		do   func(t *testing.T, d forge.Bytes)
		says string // empty: it is the same disk
	}{
		"same": {do: func(*testing.T, forge.Bytes) {}},
		"another disk": {
			do:   func(t *testing.T, d forge.Bytes) { t.Helper(); copy(d, pair(t, "theirs", 2048)) },
			says: `the identifier of the disk is "0x08070605", and was "0x04030201"`,
		},
		"a wiped signature": {
			do:   func(_ *testing.T, d forge.Bytes) { put(0x1b8, 0, 0, 0, 0)(d) },
			says: `the identifier of the disk is "", and was "0x04030201"`,
		},
		"a FAT made anew": {
			do: func(t *testing.T, d forge.Bytes) {
				t.Helper()
				n := volumeOnDisk * sectorSize
				copy(d[fat:], pair(t, "theirs", 2048)[fat:fat+int64(n)])
			},
			says: "its partition 1 holds another volume (fat16 00C0-FFEE), and held fat16 1234-ABCD",
		},
		"an ext4 made anew": {
			do: func(t *testing.T, d forge.Bytes) { t.Helper(); copy(d[ext:], pair(t, "theirs", 2048)[ext:]) },
			says: "its partition 2 holds another volume (ext4 6b0d4ab0-5a0c-4b0e-9d3e-7f7b3f0a0002), and held ext4 " +
				"6b0d4ab0-5a0c-4b0e-9d3e-7f7b3f0a0001",
		},
		"a label of a FAT": {do: func(_ *testing.T, d forge.Bytes) { put(fat+43, []byte("NEW LABEL  ")...)(d) }},
	} {
		for _, anew := range []bool{false, true} {
			k, dir := pairExchanged(t, "ours")
			path := filepath.Join(dir, k.main)
			d := forge.Bytes(disktest.ReadFile(t, path))
			c.do(t, d)
			if anew {
				require.NoError(t, os.Rename(path, filepath.Join(t.TempDir(), "away")))
			}
			overwrite(t, path, d)
			before := look(t, dir)
			err := k.command(dir, "finish", false)
			if c.says == "" {
				require.NoError(t, err, name)
				require.Equal(t, []string{k.main}, disktest.Names(t, dir), name)
				continue
			}
			require.ErrorContains(t, err, c.says, name)
			require.Equal(t, before, look(t, dir), name)
			require.NoError(t, k.command(dir, "finish", true), name)
			require.Equal(t, []string{k.main}, disktest.Names(t, dir), name)
		}
	}
}

// TestFirstSignature has Windows write the disk signature: a finish succeeds.
func TestFirstSignature(t *testing.T) {
	t.Parallel()
	k, dir := pairExchanged(t, "unsigned")
	disktest.WriteAt(t, filepath.Join(dir, k.main), 0x1b8, []byte{1, 2, 3, 4})
	require.NoError(t, k.command(dir, "finish", false))
	require.Equal(t, []string{k.main}, disktest.Names(t, dir))
}

// TestHalfADisk zeroes one of two volumes of the remaining disk: no command continues, with any flag.
func TestHalfADisk(t *testing.T) {
	t.Parallel()
	for command, start := range map[string]int64{"undo": 63, "finish": 2048} {
		for part, from := range map[string]int64{"1": start, "2": secondAligned + start} {
			for _, force := range []bool{false, true} {
				k, dir := pairExchanged(t, "ours")
				path := filepath.Join(dir, k.main)
				if command == "undo" {
					path = filepath.Join(dir, k.kept(k.main))
				}
				zero(t, path, int(from*sectorSize), volumeOnDisk*sectorSize)
				before := look(t, dir)
				err := k.command(dir, command, force)
				require.ErrorContains(t, err, "its partition "+part+" held a volume", "%s %v", command, force)
				require.Equal(t, before, look(t, dir), "%s %v", command, force)
			}
		}
	}
}

// TestFileThatNothingIdentifies has another file in place of a copy without known content: a finish needs --force.
func TestFileThatNothingIdentifies(t *testing.T) {
	t.Parallel()
	k := kinds["raw"]
	dir, _ := k.fresh(t)
	k.published(t, dir)
	path := filepath.Join(dir, k.main)
	b := disktest.ReadFile(t, path)
	require.NoError(t, os.Rename(path, filepath.Join(t.TempDir(), "away")))
	overwrite(t, path, b)
	before := look(t, dir)
	require.ErrorContains(t, k.command(dir, "finish", false), "nothing on it identifies the disk")
	require.Equal(t, before, look(t, dir))
	require.NoError(t, k.command(dir, "finish", true))
	require.Equal(t, k.new, disktest.Names(t, dir))
}

// TestAnotherGPT gives a GPT, or an entry of it, another GUID.
func TestAnotherGPT(t *testing.T) {
	t.Parallel()
	k := made["raw"].kind
	v := disktest.Blank(t, "volume", volumeOnDisk*sectorSize)
	disktest.Run(t, "mkfs.fat", "-F", "16", "-s", "1", v)
	for what, c := range map[string]struct {
		args []string
		says string
	}{
		"another GUID of the disk": {[]string{"-U", "R"}, "the identifier of the disk is"},
		"another GUID of an entry": {[]string{"-u", "1:R"}, "the GUID of its partition 1 is"},
		"another name of an entry": {[]string{"-c", "1:boot"}, ""},
	} {
		dir := t.TempDir()
		for n, start := range map[string]int64{k.main: 63, partial(k.main): 2048} {
			path := disktest.Blank(t, n, pairSectors*sectorSize)
			disktest.Run(t, "sgdisk", "-a", "1", "-n", fmt.Sprintf("1:%d:+%d", start, volumeOnDisk-1), path)
			disktest.WriteAt(t, path, start*sectorSize, disktest.ReadFile(t, v))
			require.NoError(t, os.Rename(path, filepath.Join(dir, n)))
		}
		k.published(t, dir)
		disktest.Run(t, "sgdisk", append(c.args, filepath.Join(dir, k.main))...)
		err := k.command(dir, "finish", false)
		if c.says == "" {
			require.NoError(t, err, what)
			continue
		}
		require.ErrorContains(t, err, c.says, what)
		require.NoError(t, k.command(dir, "finish", true), what)
	}
}

// TestJournalWithoutIdentifiers continues with a journal of an earlier version: missing identifiers are not compared.
func TestJournalWithoutIdentifiers(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"undo", "finish"} {
		k, dir := pairExchanged(t, "ours")
		path := filepath.Join(dir, k.main)
		h, err := journal.Hold(path, "")
		require.NoError(t, err)
		fields := regexp.MustCompile(`"(ID|GUID|UUID|Root)":("[^"]*"|true),?`)
		require.Len(t, fields.FindAll(h.Plan(), -1), 10)
		old := regexp.MustCompile(`,}`).ReplaceAll(fields.ReplaceAll(h.Plan(), nil), []byte("}"))
		require.NoError(t, h.Remove())
		require.NoError(t, h.Close())
		d, err := gate.OpenFolder(dir)
		require.NoError(t, err)
		h, err = journal.Begin(d, k.main, path, journal.Exchange, old, 0)
		require.NoError(t, err)
		require.NoError(t, h.Enter(journal.Kept))
		require.NoError(t, h.Close())
		if command == "finish" {
			overwrite(t, path, pair(t, "theirs", 2048))
		}
		require.NoError(t, k.command(dir, command, false), command)
		require.Equal(t, []string{k.main}, disktest.Names(t, dir), command)
	}
}

// TestSuperblocksAreNotEnough zeroes all of a volume except the sectors that identify it.
func TestSuperblocksAreNotEnough(t *testing.T) {
	t.Parallel()
	k := made["raw"].kind
	for mkfs, c := range map[string]struct {
		args []string
		code byte
		head int // bytes
	}{
		"mkfs.fat":  {[]string{"-F", "16", "-s", "1"}, 6, 512},
		"mkfs.ext4": {[]string{"-q", "-F"}, 0x83, 2048},
		"mkntfs":    {[]string{"-F", "-Q", "-q", "-s", "512"}, 7, 512},
	} {
		v := disktest.Blank(t, "volume", volumeSectors*sectorSize)
		disktest.Run(t, mkfs, append(c.args, v)...)
		for command, start := range map[string]uint32{"undo": 63, "finish": 2048} {
			for _, force := range []bool{false, true} {
				dir := t.TempDir()
				for n, start := range map[string]uint32{k.main: 63, partial(k.main): 2048} {
					d := tableforge.NewMBR(diskSectors,
						tableforge.Slot{Type: c.code, Start: start, Sectors: volumeSectors})
					d.Put(int64(start)*sectorSize, disktest.ReadFile(t, v))
					require.NoError(t, os.WriteFile(filepath.Join(dir, n), d, 0o600))
				}
				_, err := k.publish(dir)
				require.NoError(t, err, mkfs)
				path := filepath.Join(dir, k.main)
				if command == "undo" {
					path = filepath.Join(dir, k.kept(k.main))
				}
				was := disktest.Stat(t, path).ModTime()
				zero(t, path, int(start)*sectorSize+c.head, (volumeSectors-1)*sectorSize-c.head)
				require.NoError(t, os.Chtimes(path, was, was))
				before := look(t, dir)
				require.ErrorContains(t, k.command(dir, command, force), "the root folder of its partition 1",
					"%s %s %v", mkfs, command, force)
				require.Equal(t, before, look(t, dir))
			}
		}
	}
}
