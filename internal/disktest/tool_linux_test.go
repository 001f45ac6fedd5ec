package disktest

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A loop device that has partitions of a program before is not taken, and one of a test leaves none.
func TestLoopDevicesAreClean(t *testing.T) {
	file := func() string {
		path := filepath.Join(t.TempDir(), "disk")
		require.NoError(t, os.WriteFile(path, make([]byte, 1<<20), 0o600))
		return path
	}
	parts := func(device string) []string {
		found, err := filepath.Glob("/sys/block/" + filepath.Base(device) + "/*/partition")
		require.NoError(t, err)
		return found
	}
	// Another program leaves a partition, which is mounted or open.
	out, err := exec.Command("flock", LoopLock(), "losetup", "-f", "--show", file()).Output()
	if err != nil {
		t.Skip("no loop device on this machine")
	}
	left := strings.TrimSpace(string(out))
	if out, err := exec.Command(Tool(t, "addpart"), left, "1", "8", "8").CombinedOutput(); err != nil {
		Run(t, "losetup", "-d", left)
		t.Skipf("no partitions of loop devices on this machine: %s", out)
	}
	Run(t, "losetup", "-d", left)
	defer Run(t, "delpart", left, "1")
	require.Len(t, parts(left), 1, "the partition stays")

	first, second := "", ""
	t.Run("of a test", func(t *testing.T) {
		first, second = LoopDevice(t, file()), LoopDevice(t, file())
		for _, device := range []string{first, second} {
			require.NotEqual(t, left, device)
			require.Empty(t, parts(device))
			Run(t, "addpart", device, "1", "8", "8")
		}
	})
	require.Empty(t, parts(first), "it is detached without partitions")
	require.Empty(t, parts(second))
	require.Len(t, parts(left), 1, "the partitions of others are theirs")
}

func TestProcessorTimeIsOfTheGoroutine(t *testing.T) {
	done := make(chan struct{})
	var other time.Duration
	go func() {
		defer close(done)
		other = ProcessorTime(func() { // uses the processor for a moment that a clock of processor time sees
			began := threadTime()
			for threadTime()-began < 50*time.Millisecond {
				runtime.KeepAlive(began)
			}
		})
	}()
	mine := ProcessorTime(func() { <-done })
	require.Less(t, mine, other, "a goroutine that waits uses no processor time")
}

func TestScaledTime(t *testing.T) {
	require.Equal(t, time.Second, scaledBy(2*time.Second, 2*yardstickUsual), "a machine of half the speed")
	require.Equal(t, time.Second, scaledBy(time.Second, yardstickUsual/2), "a faster machine is held to no less")
	require.Equal(t, leastBudget-1, Scaled(leastBudget-1))
	require.LessOrEqual(t, Scaled(time.Hour), time.Hour)
	require.Positive(t, Scaled(time.Hour))
}
