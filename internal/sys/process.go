package sys

import (
	"os"
	"syscall"
)

// Interrupt is the signal of Ctrl-C.
const Interrupt = syscall.SIGINT

// Terminate is the signal that asks a program to end.
const Terminate = syscall.SIGTERM

// BrokenPipe is the signal of a write to a pipe whose reader is gone.
const BrokenPipe = syscall.SIGPIPE

// EndSignals returns the signals that ask a program to end.
func EndSignals() []os.Signal {
	return []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP}
}

// ExitCode returns the exit code of shells for a program that a signal has ended.
func ExitCode(s os.Signal) int {
	number, _ := s.(syscall.Signal)
	return 128 + int(number)
}
