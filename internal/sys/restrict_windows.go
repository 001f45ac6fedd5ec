package sys

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/windows"
)

// Restrict restricts this process for good, and returns the layers that are in force: it can have no more than so many
// bytes of memory and start no program, and unless it is to write it is of low integrity, so that Windows refuses it
// changes of files and of other processes. err says what is missing.
func Restrict(memory int64, writes bool) (layers []string, err error) {
	err = intoJob(memory)
	if err == nil {
		layers = append(layers, "job-object")
	}
	if writes {
		return layers, err
	}
	low := lowerIntegrity()
	switch {
	case low == nil:
		layers = append(layers, "low-integrity")
	case err == nil:
		err = low
	default:
		err = fmt.Errorf("%w; %w", err, low)
	}
	return layers, err
}

// intoJob puts this process into a job of its own, whose handle stays open until the process ends.
// Spec: JOBOBJECT_EXTENDED_LIMIT_INFORMATION (Microsoft).
func intoJob(memory int64) error {
	job, err := windows.CreateJobObject(nil, nil)
	if err != nil {
		return fmt.Errorf("job object: %w", err)
	}
	var limits windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION
	limits.BasicLimitInformation.LimitFlags = windows.JOB_OBJECT_LIMIT_ACTIVE_PROCESS |
		windows.JOB_OBJECT_LIMIT_PROCESS_MEMORY | windows.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE |
		windows.JOB_OBJECT_LIMIT_DIE_ON_UNHANDLED_EXCEPTION
	limits.BasicLimitInformation.ActiveProcessLimit = 1
	limits.ProcessMemoryLimit = uintptr(memory)
	const size = uint32(unsafe.Sizeof(limits))
	_, err = windows.SetInformationJobObject(job, windows.JobObjectExtendedLimitInformation,
		uintptr(unsafe.Pointer(&limits)), size)
	if err == nil {
		err = windows.AssignProcessToJobObject(job, windows.CurrentProcess())
	}
	var inForce windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION
	if err == nil {
		err = windows.QueryInformationJobObject(job, windows.JobObjectExtendedLimitInformation,
			uintptr(unsafe.Pointer(&inForce)), size, nil)
	}
	if err == nil && inForce.ProcessMemoryLimit != limits.ProcessMemoryLimit {
		err = errors.New("it has no limits")
	}
	if err != nil {
		return fmt.Errorf("job object: %w", err)
	}
	return nil
}

// lowerIntegrity lowers the integrity of this process. Spec: Mandatory Integrity Control (Microsoft).
func lowerIntegrity() error {
	err := lower()
	if err != nil {
		return fmt.Errorf("low integrity: %w", err)
	}
	return nil
}

func lower() error {
	var token windows.Token
	const access = windows.TOKEN_ADJUST_DEFAULT | windows.TOKEN_QUERY
	if err := windows.OpenProcessToken(windows.CurrentProcess(), access, &token); err != nil {
		return err
	}
	defer token.Close()
	sid, err := windows.CreateWellKnownSid(windows.WinLowLabelSid)
	if err != nil {
		return err
	}
	label := windows.Tokenmandatorylabel{
		Label: windows.SIDAndAttributes{Sid: sid, Attributes: windows.SE_GROUP_INTEGRITY},
	}
	err = windows.SetTokenInformation(token, windows.TokenIntegrityLevel, (*byte)(unsafe.Pointer(&label)), label.Size())
	if err != nil {
		return err
	}
	got := make([]byte, 256)
	var n uint32
	err = windows.GetTokenInformation(token, windows.TokenIntegrityLevel, &got[0], uint32(len(got)), &n)
	if err == nil && !(*windows.Tokenmandatorylabel)(unsafe.Pointer(&got[0])).Label.Sid.Equals(sid) {
		err = errors.New("the integrity of the process did not change")
	}
	return err
}
