//go:build !linux

package sandbox

import (
	"os"
	"time"
)

// needsLinux is the note on all that a worker or a command lacks on this system.
const needsLinux = "limits of resources and the restriction of files and calls need Linux"

// restrict does nothing: the worker is a process of its own, which the parent ends if it takes too long.
func restrict(s setup) Isolation {
	return Isolation{Wanted: s.Level, Achieved: Process, Layers: []string{}, Note: needsLinux}
}

// Confine would restrict this process to the files of an Access.
func Confine(Access) Isolation {
	return Isolation{Wanted: Sandbox, Achieved: None, Layers: []string{}, Note: needsLinux}
}

func keepDescriptors() {} // os opens all for this process alone

func verify(int, *Isolation) {}

// doing returns nothing: the state of a worker is not known here.
func doing(int) string { return "" }

func killed(*os.ProcessState) bool { return false }

func peak(*os.ProcessState) int64 { return 0 }

func renewCPU(time.Duration) error { return nil }

func watchCPU() {}
