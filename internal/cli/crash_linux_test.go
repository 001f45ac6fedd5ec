package cli

import (
	"os"
	"os/exec"
	"runtime/debug"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// crashEnv makes the test binary crash in the way that its value names.
const crashEnv = "TRUEUP_TEST_CRASH"

// crashes are ends that Go's runtime gives the exit status 2.
var crashes = map[string]func(){
	"memory": func() {
		limit := unix.Rlimit{Cur: 1 << 20, Max: 1 << 20}
		if err := unix.Setrlimit(unix.RLIMIT_DATA, &limit); err != nil {
			panic(err)
		}
		if len(make([]byte, 1<<30)) == 0 {
			return
		}
	},
	"stack": func() {
		debug.SetMaxStack(1 << 20)
		var down func(n int) int
		down = func(n int) int { return down(n+1) + n }
		down(0)
	},
	"panic": func() {
		go func() { panic("of a goroutine") }()
		select {}
	},
	"quit": func() {
		_ = unix.Kill(os.Getpid(), unix.SIGQUIT)
		select {}
	},
}

// A crash never ends with 2 or any other code that is a verdict, and leaves no core file.
func TestCrashIsNoVerdict(t *testing.T) {
	if crash, ok := crashes[os.Getenv(crashEnv)]; ok {
		AbortOnCrash()
		crash()
		t.Fatal("is still alive")
	}
	for name := range crashes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command("/proc/self/exe", "-test.run=^TestCrashIsNoVerdict$")
			cmd.Env = append(os.Environ(), crashEnv+"="+name)
			cmd.Dir = t.TempDir()
			out, err := cmd.CombinedOutput()
			require.Error(t, err)
			status := cmd.ProcessState.Sys().(syscall.WaitStatus)
			require.True(t, status.Signaled(), "%v\n%s", err, out)
			require.Equal(t, syscall.SIGABRT, status.Signal(), "%s", out)
			require.False(t, status.CoreDump())
		})
	}
}
