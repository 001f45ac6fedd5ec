// This program is the first and only process of a Linux guest that a test boots. It loads the drivers that lie beside
// it, mounts the file system that the kernel's command line names (root=UUID=…) and says the checksum of all its files
// on the console.
package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

func main() {
	text, err := run()
	if err != nil {
		text = "trueup-init: " + err.Error()
	}
	// The console may not be ready to write at once, and a second line costs nothing.
	fmt.Print("\n", text, "\n")
	time.Sleep(1 << 62) // an end of this process would be a panic of the kernel
}

func run() (string, error) {
	for _, m := range [][2]string{{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}} {
		if err := syscall.Mount(m[0], m[1], m[0], 0, ""); err != nil {
			return "", fmt.Errorf("mount %s: %w", m[1], err)
		}
	}
	const consoleOff = 6 // SYSLOG_ACTION_CONSOLE_OFF: the kernel's messages must not stand in the middle of ours
	if _, err := syscall.Klogctl(consoleOff, nil); err != nil {
		return "", fmt.Errorf("klogctl: %w", err)
	}
	if err := loadModules(); err != nil {
		return "", err
	}
	device, err := rootDevice()
	if err != nil {
		return "", err
	}
	if err := syscall.Mount(device, "/root", "ext4", syscall.MS_RDONLY, ""); err != nil {
		return "", fmt.Errorf("mount %s: %w", device, err)
	}
	sum, err := treeSum("/root")
	return "trueup-root: " + sum + " " + device + " end", err
}

// loadModules loads the modules in the order of their names.
func loadModules() error {
	const finitModule = 313 // of amd64
	names, err := filepath.Glob("/modules/*.ko")
	if err != nil {
		return err
	}
	for _, name := range names {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		none := []byte{0}
		_, _, no := syscall.Syscall(finitModule, f.Fd(), uintptr(unsafe.Pointer(&none[0])), 0)
		if no != 0 && !errors.Is(no, syscall.EEXIST) {
			return fmt.Errorf("%s: %w", name, no)
		}
		if err := f.Close(); err != nil {
			return err
		}
	}
	return nil
}

// rootDevice waits for the disk: drivers look for disks on their own.
func rootDevice() (string, error) {
	line, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return "", err
	}
	_, rest, found := strings.Cut(string(line), "root=UUID=")
	fields := strings.Fields(rest)
	if !found || len(fields) == 0 {
		return "", fmt.Errorf("no root=UUID= in %q", line)
	}
	want, err := hex.DecodeString(strings.ReplaceAll(fields[0], "-", ""))
	if err != nil {
		return "", err
	}
	for range 400 {
		all, err := os.ReadDir("/sys/class/block")
		if err != nil {
			return "", err
		}
		for _, e := range all {
			if device := "/dev/" + e.Name(); isExt(device, want) {
				return device, nil
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	return "", errors.New("no file system has the UUID " + fields[0])
}

// isExt looks at the superblock of ext, 1024 bytes into the device: magic at 38h, UUID at 68h.
func isExt(device string, uuid []byte) bool {
	f, err := os.Open(device)
	if err != nil {
		return false
	}
	defer f.Close()
	super := make([]byte, 1024)
	if _, err := f.ReadAt(super, 1024); err != nil {
		return false
	}
	return super[0x38] == 0x53 && super[0x39] == 0xef && bytes.Equal(super[0x68:0x78], uuid)
}

// treeSum is a checksum of the names, lengths and contents of all files, in the order of their names.
func treeSum(root string) (string, error) {
	sum := sha256.New()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		fmt.Fprintf(sum, "%s %d\n", strings.TrimPrefix(path, root), info.Size())
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(sum, f)
		return err
	})
	return hex.EncodeToString(sum.Sum(nil)), err
}
