//go:build linux || darwin || freebsd

package sys

import "golang.org/x/sys/unix"

// NoCore keeps this process from leaving a core file, which would hold what it has read.
func NoCore() {
	var core unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_CORE, &core) == nil {
		core.Cur = 0
		_ = unix.Setrlimit(unix.RLIMIT_CORE, &core) // lowering is always allowed
	}
}

// Private runs a function whose new files and sockets only this user can use, and not run.
func Private(f func()) {
	const all = 0o177
	defer unix.Umask(unix.Umask(all))
	f()
}
