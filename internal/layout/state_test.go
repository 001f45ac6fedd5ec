package layout_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/boottest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/disktest/forge/volumeforge"
	"github.com/trueup/trueup/internal/table"
)

// Volumes of the tools that make them, closed and not, as these tools judge them too.
func TestStateByVolumes(t *testing.T) {
	t.Parallel()
	dirtyFAT := func(at int64) func(forge.Bytes) { return func(f forge.Bytes) { f[at] |= 1 } }
	for name, tc := range map[string]struct {
		make  string                   // the command that makes the volume
		open  func(volume forge.Bytes) // nil: debugfs leaves it open
		debug string
		judge string // a command, and what it prints of a volume that is open
		says  string
	}{
		"fat12": {"mkfs.fat -F 12 -s 32", dirtyFAT(0x25), "", "fsck.fat -n", "Dirty bit is set"},
		"ext2":  {"mke2fs -q -t ext2", nil, "ssv state 0", "dumpe2fs -h", "not clean"},
		"ext4":  {"mke2fs -q -t ext4", nil, "feature needs_recovery", "dumpe2fs -h", "needs_recovery"},
		"fat16": {"mkfs.fat -F 16", dirtyFAT(0x25), "", "fsck.fat -n", "Dirty bit is set"},
		"fat32": {"mkfs.fat -F 32", dirtyFAT(0x41), "", "fsck.fat -n", "Dirty bit is set"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const sectors = 80_000
			volume := filepath.Join(t.TempDir(), "volume")
			require.NoError(t, os.WriteFile(volume, make([]byte, sectors*512), 0o600))
			run := func(command string) string {
				words := append(strings.Fields(command), volume)
				// some fail on what is open
				out, _ := exec.Command(disktest.Tool(t, words[0]), words[1:]...).CombinedOutput()
				return string(out)
			}
			state := func() boot.State {
				b := disktest.ReadFile(t, volume)
				f := tableforge.NewMBR(2048+sectors, slot(0x83, 2048, sectors))
				f.Put(2048*512, b)
				l := readDisk(t, boottest.Disk(f), table.Geometry{})
				bare := readDisk(t, boottest.Disk(b), table.Geometry{})
				require.Equal(t, l.Boot.State, bare.Boot.State, "without a table")
				return l.Boot.State
			}
			run(tc.make)
			require.NotContains(t, run(tc.judge), tc.says)
			if name == "fat12" { // DOS has no mark on it
				require.Equal(t, boot.NotKnown, state())
			} else {
				require.Equal(t, boot.ShutDown, state())
			}
			if tc.open == nil {
				disktest.Run(t, "debugfs", "-w", "-R", tc.debug, volume)
			} else {
				b := disktest.ReadFile(t, volume)
				tc.open(b)
				require.NoError(t, os.WriteFile(volume, b, 0o600))
			}
			require.Contains(t, run(tc.judge), tc.says)
			require.Equal(t, boot.Running, state())
		})
	}
}

// What is open or not known outweighs what is closed, and nothing at all is not known.
func TestOverallState(t *testing.T) {
	for want, signs := range map[boot.State][]boot.State{
		boot.NotKnown:   {boot.ShutDown, boot.NotKnown},
		boot.Running:    {boot.ShutDown, boot.Running, boot.NotKnown},
		boot.Hibernated: {boot.Running, boot.Hibernated, boot.ShutDown},
		boot.ShutDown:   {boot.ShutDown, boot.ShutDown},
	} {
		var all []boot.Sign
		for _, s := range signs {
			all = append(all, boot.Sign{State: s})
		}
		require.Equal(t, want, boot.Overall(all))
	}
	require.Equal(t, boot.NotKnown, boot.Overall(nil))
}

// A disk of a file system whose mark is not read is not taken for one that was shut down.
func TestStateThatIsNotRead(t *testing.T) {
	t.Parallel()
	f := make(forge.Bytes, 1<<20)
	volumeforge.PutXFS(f, 0, 2048)
	l := readDisk(t, boottest.Disk(f), table.Geometry{})
	require.Equal(t, boot.NotKnown, l.Boot.State)
	require.Len(t, l.Boot.Signs, 1)
}

// A partition of unknown bytes, perhaps encrypted, is not taken for one that was closed. Zeros and loaders show
// nothing.
func TestStateBesideUnknownContent(t *testing.T) {
	t.Parallel()
	const other = 4096
	noise := slices.Repeat([]byte("noise of no volume"), 500)
	file := filepath.Join(t.TempDir(), "volume")
	require.NoError(t, os.WriteFile(file, make([]byte, (other-63)*512), 0o600))
	disktest.Run(t, "mke2fs", "-q", "-t", "ext2", file)
	closed := disktest.ReadFile(t, file)
	for name, tc := range map[string]struct {
		kind    byte
		content []byte
		want    boot.State
	}{
		"noise":      {0x83, noise, boot.NotKnown},
		"zeros":      {0x83, nil, boot.ShutDown},
		"PReP":       {0x41, noise, boot.ShutDown},
		"noise late": {0x83, append(make([]byte, 1024), noise...), boot.ShutDown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := tableforge.NewMBR(2*other, slot(0x83, 63, other-63), slot(tc.kind, other, other))
			f.Put(63*512, closed)
			f.Put(other*512, tc.content)
			l := readDisk(t, boottest.Disk(f), table.Geometry{})
			require.Equal(t, tc.want, l.Boot.State, l.Boot.Signs)
		})
	}
}

// An NTFS shows its state in its log and in hiberfil.sys, whether it has a partition or the whole image. mkntfs leaves
// a log of FF, which is a new one.
func TestStateOfAnNTFS(t *testing.T) {
	t.Parallel()
	const sectors = 24_000
	volume := filepath.Join(t.TempDir(), "volume")
	require.NoError(t, os.WriteFile(volume, make([]byte, sectors*512), 0o600))
	disktest.Run(t, "mkntfs", "-q", "-F", "-f", "-c", "4096", "-p", "2048", "-H", "16", "-S", "63", volume,
		strconv.Itoa(sectors-1))
	fresh := disktest.ReadFile(t, volume)
	at := bytes.Index(fresh, bytes.Repeat([]byte{0xff}, 64<<10))
	require.Zero(t, at%4096)
	end := at + len(fresh[at:]) - len(bytes.TrimLeft(fresh[at:], "\xff"))
	open := slices.Clone(fresh)
	copy(open[at:], fsforge.NewLogFile(int64(end-at)).Sealed())
	hibernated := filepath.Join(t.TempDir(), "hibernated")
	require.NoError(t, os.WriteFile(hibernated, fresh, 0o600))
	file := filepath.Join(t.TempDir(), "hiberfil.sys")
	require.NoError(t, os.WriteFile(file, []byte("HIBR"+strings.Repeat("x", 8192)), 0o600))
	disktest.Run(t, "ntfscp", hibernated, file, "hiberfil.sys")
	for name, tc := range map[string]struct {
		volume []byte
		want   boot.State
		says   string
	}{
		"new":        {fresh, boot.ShutDown, "the log of the NTFS is"},
		"open":       {open, boot.Running, "the log of the NTFS is open"},
		"hibernated": {disktest.ReadFile(t, hibernated), boot.Hibernated, `holds a hibernated system (HIBR)`},
	} {
		f := tableforge.NewMBR(2048+sectors, slot(7, 2048, sectors))
		f.Put(2048*512, tc.volume)
		l := readDisk(t, boottest.Disk(f), table.Geometry{})
		require.Equal(t, tc.want, l.Boot.State, name)
		bare := readDisk(t, boottest.Disk(tc.volume), table.Geometry{})
		require.Nil(t, bare.Table)
		require.Equal(t, tc.want, bare.Boot.State, "%s, without a table", name)
		var said []string
		for _, s := range bare.Boot.Signs {
			require.Zero(t, s.Partition)
			said = append(said, s.Text)
		}
		require.Contains(t, strings.Join(said, "\n"), tc.says)
		require.NotContains(t, strings.Join(said, "\n"), "partition")
	}
}
