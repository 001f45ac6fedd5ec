// Command linux-mounts is the first process of a virtual machine in which the tests run trueup on file systems of
// Linux. It loads the modules that its archive brings, sets up the network of QEMU, and then does what it reads from a
// port: one request and one answer a line.
package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	port    = "/dev/vport*p1" // the first port of the only virtio-serial device
	address = "10.0.2.15"     // what QEMU's user network expects its guest to have
)

// Request is one thing to do. Op says which fields count.
type Request struct {
	Op                         string
	Source, Target, Type, Data string   // mount, as mount(2) has them; Target of umount
	Args                       []string // run
	Until                      string   // run: what follows happens as soon as a file of this name has bytes in it
	Beside                     []string // run: this program runs to its end, while the first one is stopped
	Signal                     unix.Signal
	Path                       string // list and sum: what to look at
}

// Answer is what came of it.
type Answer struct {
	Code           int // run: of the exit, or 128 and the signal
	Stdout, Stderr string
	Names          []string // list
	Beside         *Answer
	Error          string
}

func main() {
	err := start()
	if err == nil {
		err = serve()
	}
	fmt.Println("linux-mounts:", err)
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

func start() error {
	for target, kind := range map[string]string{"/proc": "proc", "/sys": "sysfs", "/dev": "devtmpfs", "/tmp": "tmpfs"} {
		if err := errors.Join(os.MkdirAll(target, 0o755), unix.Mount(kind, target, kind, 0, "")); err != nil {
			return fmt.Errorf("mount %s: %w", target, err)
		}
	}
	names, err := filepath.Glob("/modules/*.ko")
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := load(name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return network()
}

func load(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	err = unix.FinitModule(int(f.Fd()), "", 0)
	if errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENODEV) { // ENODEV: code for another processor
		return nil
	}
	return err
}

// network gives the first card its address, and enables the card and the loopback interface.
func network() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	card, err := unix.NewIfreq("eth0")
	if err != nil {
		return err
	}
	var ip [4]byte
	_, _ = fmt.Sscanf(address, "%d.%d.%d.%d", &ip[0], &ip[1], &ip[2], &ip[3])
	for _, set := range []struct {
		call uint
		to   []byte
	}{{unix.SIOCSIFADDR, ip[:]}, {unix.SIOCSIFNETMASK, []byte{255, 255, 255, 0}}} {
		if err := card.SetInet4Addr(set.to); err != nil {
			return err
		}
		if err := unix.IoctlIfreq(s, set.call, card); err != nil {
			return fmt.Errorf("address of the network card: %w", err)
		}
	}
	loop, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	for _, up := range []*unix.Ifreq{card, loop} {
		up.SetUint16(unix.IFF_UP)
		if err := unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, up); err != nil {
			return fmt.Errorf("network: %w", err)
		}
	}
	return unix.Close(s)
}

func filled(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Size() > 0
}

func serve() error {
	var ports []string
	for len(ports) == 0 { // the driver makes it on its own time
		time.Sleep(10 * time.Millisecond)
		ports, _ = filepath.Glob(port)
	}
	f, err := os.OpenFile(ports[0], os.O_RDWR, 0)
	if err != nil {
		return err
	}
	in, out := json.NewDecoder(bufio.NewReader(f)), json.NewEncoder(f)
	for {
		var r Request
		if err := in.Decode(&r); err != nil {
			return err
		}
		if r.Op == "off" {
			return errors.New("switched off")
		}
		a, err := r.answer()
		if err != nil {
			a.Error = err.Error()
		}
		if err := out.Encode(a); err != nil {
			return err
		}
	}
}

func (r Request) answer() (a Answer, err error) {
	switch r.Op {
	case "mount":
		if err := os.MkdirAll(r.Target, 0o755); err != nil {
			return a, err
		}
		return a, unix.Mount(r.Source, r.Target, r.Type, 0, r.Data)
	case "umount":
		return a, unix.Unmount(r.Target, 0)
	case "sync":
		unix.Sync()
		return a, nil
	case "run":
		return r.run()
	case "list":
		entries, err := os.ReadDir(r.Path)
		for _, e := range entries {
			a.Names = append(a.Names, e.Name())
		}
		return a, err
	case "empty":
		entries, err := os.ReadDir(r.Path)
		for _, e := range entries {
			err = errors.Join(err, os.RemoveAll(filepath.Join(r.Path, e.Name())))
		}
		return a, err
	case "sum":
		f, err := os.Open(r.Path)
		if err != nil {
			return a, err
		}
		defer f.Close()
		h := sha256.New()
		_, err = io.Copy(h, f)
		a.Stdout = fmt.Sprintf("%x", h.Sum(nil))
		return a, err
	}
	return a, fmt.Errorf("op %q", r.Op)
}

// run runs a program to its end.
func (r Request) run() (a Answer, err error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(r.Args[0], r.Args[1:]...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.Dir, cmd.Env = "/tmp", []string{"HOME=/tmp", "PATH=/:/bin:/sbin", "DM_DISABLE_UDEV=1"}
	if err := cmd.Start(); err != nil {
		return a, err
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	if r.Until != "" {
		for !filled(r.Until) && len(done) == 0 {
			time.Sleep(time.Millisecond)
		}
		signal := func(s os.Signal) { _ = cmd.Process.Signal(s) } // where it has ended the exit code reports it
		if len(r.Beside) > 0 {
			signal(unix.SIGSTOP)
			beside, err := Request{Op: "run", Args: r.Beside}.run()
			signal(unix.SIGCONT)
			if a.Beside = &beside; err != nil {
				return a, err
			}
		}
		if r.Signal != 0 {
			signal(r.Signal)
		}
	}
	if err := <-done; err != nil && !errors.As(err, new(*exec.ExitError)) {
		return a, err
	}
	status := cmd.ProcessState.Sys().(syscall.WaitStatus)
	a.Code = status.ExitStatus()
	if status.Signaled() {
		a.Code = 128 + int(status.Signal())
	}
	a.Stdout, a.Stderr = stdout.String(), stderr.String()
	return a, nil
}
