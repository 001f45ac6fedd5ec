//go:build !linux

package sandbox

import (
	"os"
	"time"

	"github.com/trueup/trueup/internal/sys"
)

// needsLinux is the note on the layers that are missing on this system.
const needsLinux = "the restriction of files and calls to those of a worker needs Linux"

// restrict sets the limits that this system supports, which are less than a sandbox. The parent ends a worker that
// takes too long.
func restrict(s setup) Isolation {
	iso := Isolation{Wanted: s.Level, Achieved: Process, Layers: []string{}, Note: needsLinux}
	layers, err := sys.Restrict(s.Limits.Data, s.Level != Sandbox)
	iso.Layers = append(iso.Layers, layers...)
	if err != nil && !sys.Unsupported(err) {
		iso.lacks("restriction", err)
	}
	return iso
}

// Confine would restrict this process to the files of an Access.
func Confine(Access) Isolation {
	return Isolation{Wanted: Sandbox, Achieved: None, Layers: []string{}, Note: needsLinux}
}

func keepDescriptors() error { return nil } // package os opens all files close-on-exec

func killed(*os.ProcessState) bool { return false }

func peak(*os.ProcessState) int64 { return 0 }

func renewCPU(time.Duration) error { return nil }

func polled(pipe *os.File) *os.File { return pipe }

func watchCPU() {}
