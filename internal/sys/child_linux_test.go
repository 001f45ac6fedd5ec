package sys

import (
	"os"
	"os/exec"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/trueup/trueup/internal/disktest"
)

// idleEnv makes TestIdle the process that becomes idle.
const idleEnv = "TRUEUP_TEST_IDLE"

// A process becomes idle as a whole, or says why not: too few descriptors, or a kernel that denies it.
func TestIdle(t *testing.T) {
	if os.Getenv(idleEnv) != "" {
		runtime.LockOSThread() // strace counts the calls of a thread
		require.ErrorIs(t, disktest.FewDescriptors(Idle), unix.EPERM)
		require.NoError(t, disktest.FewDescriptors(Idle))
		const ofThread, idle = 1, 3 << 13
		is, _, errno := unix.Syscall(unix.SYS_IOPRIO_GET, ofThread, 0, 0)
		require.Zero(t, errno)
		require.EqualValues(t, idle, is)
		return
	}
	cmd := exec.Command(disktest.Tool(t, "strace"), "-f", "-qq", "-o", os.DevNull,
		"-e", "inject=ioprio_set:error=EPERM:when=1", os.Args[0], "-test.run=^TestIdle$")
	cmd.Env = append(os.Environ(), idleEnv+"=1")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}
