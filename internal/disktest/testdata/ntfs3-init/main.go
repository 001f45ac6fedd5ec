// This program is the only process of a Linux guest: it mounts each of its disks as NTFS by ntfs3, prints what is on it
// or why it cannot be mounted, and ends the guest.
package main

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

func main() {
	if err := syscall.Mount("devtmpfs", "/dev", "devtmpfs", 0, ""); err != nil {
		fmt.Printf("\nntfs3 failed: %v end\n", err)
	}
	for letter := 'a'; letter <= 'z'; letter++ {
		device := fmt.Sprintf("/dev/vd%c", letter)
		if _, err := os.Stat(device); err != nil {
			break
		}
		text, err := mount(device)
		if err != nil {
			text = err.Error()
		}
		fmt.Printf("\nntfs3 %c: %s end\n", letter, text)
	}
	syscall.Sync()
	if err := syscall.Reboot(syscall.LINUX_REBOOT_CMD_RESTART); err != nil {
		fmt.Printf("\nntfs3 failed: %v end\n", err)
	}
}

// mount has a volume replayed, and returns a sum of the names and sizes on it.
func mount(device string) (string, error) {
	if err := syscall.Mount(device, "/root", "ntfs3", syscall.MS_NOATIME, ""); err != nil {
		return "", fmt.Errorf("mount: %w", err)
	}
	sum, n := sha256.New(), 0
	walked := filepath.WalkDir("/root", func(path string, d fs.DirEntry, err error) error {
		n++
		fmt.Fprintf(sum, "%s %v", path, err)
		if info, err := d.Info(); err == nil && !d.IsDir() {
			fmt.Fprintf(sum, " %d", info.Size())
		}
		fmt.Fprintln(sum)
		return nil
	})
	if err := syscall.Unmount("/root", 0); err != nil {
		return "", fmt.Errorf("umount: %w", err)
	}
	return fmt.Sprintf("%d names, %x", n, sum.Sum(nil)[:8]), walked
}
