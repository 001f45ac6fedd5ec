package device

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// TestDiskOfAnyOffsets writes and clears ranges that are not whole sectors, on devices of both sizes of sectors: what
// lies beside them stays.
func TestDiskOfAnyOffsets(t *testing.T) {
	for _, sector := range []string{"512", "4096"} {
		t.Run(sector, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "device")
			want := make([]byte, 3<<20)
			r := rand.NewChaCha8([32]byte{1})
			_, _ = r.Read(want)
			require.NoError(t, os.WriteFile(file, want, 0o600))
			out, err := exec.Command(disktest.Tool(t, "losetup"), "-f", "--show", "--sector-size", sector,
				file).CombinedOutput()
			if err != nil {
				t.Skipf("no loop device on this machine: %s", out)
			}
			path := strings.TrimSpace(string(out))
			t.Cleanup(func() { disktest.Run(t, "losetup", "-d", path) })
			d, err := OpenDisk(path)
			require.NoError(t, err)
			defer d.Close()
			require.Equal(t, file, d.ID)
			x, err := d.Disk()
			require.NoError(t, err)
			defer x.Close()
			require.Equal(t, int64(len(want)), x.End())
			require.NoError(t, x.Truncate(x.End()))
			require.Error(t, x.Truncate(x.End()+512))
			rnd := rand.New(r)
			for range 60 {
				n := 1 + rnd.Int64N([]int64{40, 5000, 1 << 20}[rnd.IntN(3)])
				off := rnd.Int64N(x.End() - n)
				if rnd.IntN(2) == 0 {
					require.NoError(t, x.Zero(off, n))
					clear(want[off : off+n])
				} else {
					b := make([]byte, n)
					_, _ = r.Read(b)
					_, err := x.WriteAt(b, off)
					require.NoError(t, err)
					copy(want[off:], b)
				}
				got := make([]byte, n)
				_, err := x.ReadAt(got, off)
				require.NoError(t, err)
				require.Equal(t, want[off:off+n], got)
			}
			require.NoError(t, x.Sync())
			now, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Equal(t, want, now)
		})
	}
}
