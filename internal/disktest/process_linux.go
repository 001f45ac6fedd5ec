package disktest

import (
	"errors"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// OrdinaryUser takes root's rights over files from the thread of a test until its end. A folder is given to the user;
// it must be open, because only root may be able to reach it.
func OrdinaryUser(t testing.TB, folder string) {
	t.Helper()
	if os.Geteuid() != 0 {
		return
	}
	const ordinary = 65534
	require.NoError(t, os.Chown(folder, ordinary, ordinary))
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	t.Cleanup(func() { _, _ = unix.SetfsuidRetUid(0) })
	_, err := unix.SetfsuidRetUid(ordinary)
	require.NoError(t, err)
}

// mostFiles is more than the number of files that a test has open.
const mostFiles = 256

// FewDescriptors runs a function with a limit of no open files, then one, then two …, until it succeeds. It returns any
// error other than a lack of descriptors. The process must be idle otherwise.
func FewDescriptors(run func() error) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	for most := range uint64(mostFiles) {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: most, Max: limit.Max}); err != nil {
			return err
		}
		err := run()
		switch {
		case errors.Is(err, unix.EMFILE):
		case err == nil && most == 0:
			return errors.New("no file is opened")
		default:
			return errors.Join(err, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
		}
	}
	return errors.New("descriptors stay open")
}

func threadTime() time.Duration {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &usage); err != nil {
		panic(err) // the arguments are right
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
