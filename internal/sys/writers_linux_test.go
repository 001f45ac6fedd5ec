package sys

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/trueup/trueup/internal/disktest"
)

// fakeProc makes a folder like /proc of a process that has a file open, with flags as the kernel prints them.
func fakeProc(t *testing.T, pid, file, flags string) string {
	t.Helper()
	proc := t.TempDir()
	for _, d := range []string{"fd", "fdinfo"} {
		require.NoError(t, os.MkdirAll(filepath.Join(proc, pid, d), 0o700))
	}
	require.NoError(t, os.Symlink(file, filepath.Join(proc, pid, "fd", "4")))
	info := []byte("pos:\t0\nflags:\t" + flags + "\n")
	require.NoError(t, os.WriteFile(filepath.Join(proc, pid, "fdinfo", "4"), info, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(proc, pid, "comm"), []byte("VBoxHeadless\n"), 0o600))
	return proc
}

// A program that has a file open for writing is named; readers, this process, and what is no process are not. Spec:
// proc(5).
func TestWriters(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "disk")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	want, err := Stat(file)
	require.NoError(t, err)
	for _, c := range []struct {
		pid, flags string
		found      bool
	}{
		{"17", "0100002", true}, // O_RDWR
		{"17", "0100001", true}, // O_WRONLY
		{"17", "0100000", false},
		{"17", "", false},
		{"17", "none", false},
		{"self", "0100002", false},
		{fmt.Sprint(os.Getpid()), "0100002", false},
	} {
		var got []Writer
		Writers(fakeProc(t, c.pid, file, c.flags), func(w Writer) bool {
			got = append(got, w)
			return true
		})
		require.Equal(t, c.found, len(got) == 1, "%v", c)
		if c.found {
			require.Equal(t, Writer{17, "VBoxHeadless", want}, got[0])
		}
	}
	Writers(filepath.Join(file, "none"), func(Writer) bool { panic("there is no process") })
}

// The kernel knows of a writer in another process, and of none when that is gone. Readers count where the file is to be
// that of one program.
func TestFileIsWritten(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "disk")
	require.NoError(t, os.WriteFile(file, []byte("disk"), 0o600))
	open, err := os.Open(file)
	require.NoError(t, err)
	defer open.Close()
	yes, known := Of(open).Written()
	if !known {
		t.Skip("the file system has no leases that count")
	}
	require.False(t, yes)
	for redirection, want := range map[string]bool{"<": false, "<>": true} {
		cmd := exec.Command(disktest.Tool(t, "sh"), "-c", `exec 3`+redirection+`"$0"; echo open; read end`, file)
		in, err := cmd.StdinPipe()
		require.NoError(t, err)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		_, err = out.Read(make([]byte, 5))
		require.NoError(t, err)
		yes, known = Of(open).Written()
		require.True(t, known)
		require.Equal(t, want, yes, redirection)
		yes, known = Of(open).Shared()
		require.True(t, known)
		require.True(t, yes, redirection)
		named := false
		Writers("/proc", func(w Writer) bool {
			named = named || w.PID == cmd.Process.Pid && w.File.Size == 4 && w.Program == "sh"
			return true
		})
		require.Equal(t, want, named, redirection)
		require.NoError(t, in.Close())
		_ = cmd.Wait() // read fails at the end
		yes, _ = Of(open).Written()
		require.False(t, yes)
		yes, known = Of(open).Shared()
		require.True(t, known)
		require.False(t, yes)
	}
	kind, err := unix.FcntlInt(open.Fd(), unix.F_GETLEASE, 0)
	require.NoError(t, err)
	require.Equal(t, unix.F_UNLCK, kind, "it is given back")
}
