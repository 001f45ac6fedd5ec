//go:build !linux

package sys

import (
	"os"
	"os/exec"
	"time"
)

// Self returns the file of this program.
func Self() (string, error) { return os.Executable() }

// Tie does nothing: this system cannot end a program with the one that started it.
func Tie(*exec.Cmd) (release func()) { return func() {} }

// Apart does nothing.
func Apart(*exec.Cmd) {}

// TerminateGroup ends the program alone.
func TerminateGroup(cmd *exec.Cmd) error { return cmd.Process.Kill() }

// KillGroup ends the program alone.
func KillGroup(cmd *exec.Cmd) error { return cmd.Process.Kill() }

// EndGroup does nothing.
func EndGroup(int) {}

// Unprivileged changes nothing.
func Unprivileged(*exec.Cmd, string) error { return nil }

// Work is not known.
func Work(int, int) (ran time.Duration, known bool) { return 0, false }
