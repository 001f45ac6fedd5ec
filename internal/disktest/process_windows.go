package disktest

import (
	"errors"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
)

// FewDescriptors does nothing: Windows has no limit of open files.
func FewDescriptors(func() error) error { return errors.ErrUnsupported }

var getThreadTimes = windows.NewLazySystemDLL("kernel32.dll").NewProc("GetThreadTimes")

func threadTime() time.Duration {
	var created, exited, kernel, user windows.Filetime
	done, _, err := getThreadTimes.Call(uintptr(windows.CurrentThread()), uintptr(unsafe.Pointer(&created)),
		uintptr(unsafe.Pointer(&exited)), uintptr(unsafe.Pointer(&kernel)), uintptr(unsafe.Pointer(&user)))
	if done == 0 {
		panic(err) // the arguments are right
	}
	const unit = 100 * time.Nanosecond
	total := func(f windows.Filetime) time.Duration {
		return time.Duration(uint64(f.HighDateTime)<<32|uint64(f.LowDateTime)) * unit
	}
	return total(kernel) + total(user)
}
