package nbd

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
)

// URI returns the address of the default export for clients. Spec: NetworkBlockDevice/nbd, doc/uri.md.
func URI(a net.Addr) string {
	if a.Network() == "unix" {
		path := strings.NewReplacer("%2F", "/", "+", "%20").Replace(url.QueryEscape(a.String()))
		return "nbd+unix:///?socket=" + path
	}
	return "nbd://" + a.String() + "/"
}

// Place is the address for clients. The zero value means the socket of LISTEN_FDS, or otherwise a socket in a new
// folder.
type Place struct {
	Socket   string // path of a new Unix socket
	TCP      string // HOST:PORT, a loopback address
	Anywhere bool   // TCP may be reachable from other machines
}

// Listen listens at the place.
func (p Place) Listen() (net.Listener, error) {
	l, err := Activated()
	switch {
	case l != nil && p != Place{}:
		return nil, errors.Join(l.Close(), ondisk.In(ondisk.ErrUsage, "--socket and --listen conflict with the "+
			"socket of LISTEN_FDS; leave them out, or unset LISTEN_FDS"))
	case l != nil || err != nil:
		return l, err
	case p.Socket != "":
		return ListenUnix(p.Socket)
	case p.TCP != "":
		return listenTCP(p.TCP, p.Anywhere)
	}
	return ListenPrivate()
}

// ListenPrivate listens on a socket in a new folder, both accessible only to this user. Closing the listener removes
// them.
func ListenPrivate() (net.Listener, error) {
	folder, err := os.MkdirTemp("", "trueup-nbd-") // mode 0700
	if err != nil {
		return nil, fmt.Errorf("folder of the socket: %w; set TMPDIR to another folder", err)
	}
	l, err := ListenUnix(filepath.Join(folder, "socket"))
	if err != nil {
		return nil, errors.Join(err, os.Remove(folder))
	}
	return &private{Listener: l, folder: folder}, nil
}

// private is a listener with a folder of its own.
type private struct {
	net.Listener
	folder string
	once   sync.Once
	err    error
}

// Close closes the listener, and removes socket and folder.
func (p *private) Close() error {
	p.once.Do(func() { p.err = errors.Join(p.Listener.Close(), os.Remove(p.folder)) })
	return p.err
}

// maxSocketPath limits the path of a Unix socket in bytes, on all systems. Spec: sys/un.h, sun_path.
const maxSocketPath = 103

// ListenUnix listens on a socket accessible only to this user, by its absolute path. Closing the listener removes it.
func ListenUnix(path string) (l net.Listener, err error) {
	if path, err = filepath.Abs(path); err != nil { // Linux would treat @name as a socket without permissions
		return nil, err
	}
	if len(path) > maxSocketPath {
		return nil, ondisk.In(ondisk.ErrUsage, "the path of the socket has %d bytes, must have at most %d: "+
			"%s", len(path),
			maxSocketPath, path)
	}
	if _, err := os.Lstat(path); err == nil {
		return nil, ondisk.In(ondisk.ErrUsage, "socket %s: exists; name another path, or remove it if it is the "+
			"socket of an ended server", path)
	}
	if _, err := os.Stat(filepath.Dir(path)); err != nil {
		return nil, ondisk.In(ondisk.ErrOutput, "folder of the socket %s: %w; create it first", path, sys.Cause(err))
	}
	sys.Private(func() { l, err = net.Listen("unix", path) })
	return l, err
}

// listenTCP listens on an address of this machine. anywhere allows addresses other than loopback.
func listenTCP(address string, anywhere bool) (net.Listener, error) {
	host, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	if err != nil {
		return nil, ondisk.In(ondisk.ErrUsage, "%w; must be HOST:PORT, for example 127.0.0.1:10809", err)
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	if a, ok := l.Addr().(*net.TCPAddr); !anywhere && (!ok || !a.IP.IsLoopback()) {
		return nil, errors.Join(l.Close(), ondisk.In(ondisk.ErrUsage,
			"--listen %q is not a loopback address: every machine with access to it could read the disk; to allow "+
				"that, add --listen-anywhere", host))
	}
	return l, nil
}

// Activated returns the listener passed by systemd or a similar program, or nil without one. Spec: sd_listen_fds(3).
func Activated() (net.Listener, error) {
	const first = 3 // SD_LISTEN_FDS_START
	if os.Getenv("LISTEN_PID") != strconv.Itoa(os.Getpid()) {
		return nil, nil //nolint:nilnil // see above
	}
	if n := os.Getenv("LISTEN_FDS"); n != "1" {
		return nil, ondisk.In(ondisk.ErrUsage, "LISTEN_FDS %q, must be 1 (one socket)", n)
	}
	f := os.NewFile(first, "the socket of LISTEN_FDS")
	l, err := net.FileListener(f)
	return l, errors.Join(err, f.Close())
}

// Leftovers lists the files and folders that closing a listener removes.
func Leftovers(l net.Listener) []string {
	switch l := l.(type) {
	case *private:
		return append(Leftovers(l.Listener), l.folder)
	case *net.UnixListener:
		return []string{l.Addr().String()}
	}
	return nil
}
