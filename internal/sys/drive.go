package sys

import (
	"runtime"
	"strconv"
	"strings"
)

// Drive describes a disk that Windows has opened.
type Drive struct {
	Name    string // without folders: PhysicalDrive0
	Size    int64  // bytes
	Sector  int64  // bytes that a read has to be aligned to
	Offline bool   // Windows does not use the disk
	Fixed   bool   // its medium is not removable
}

// IsDrive reports whether a path is the name that Windows has for a disk. On other systems none is.
func IsDrive(path string) bool {
	_, ok := driveName(path)
	return ok && runtime.GOOS == "windows"
}

// driveNames is the folder of names of devices. Source: Naming Files, Paths, and Namespaces (Microsoft).
const driveNames, drivePrefix = `\\.\`, "PhysicalDrive"

// driveName returns the name of the disk that a path names, without the folder.
func driveName(path string) (string, bool) {
	name, ok := strings.CutPrefix(strings.ReplaceAll(path, "/", `\`), driveNames)
	if !ok || len(name) < len(drivePrefix) || !strings.EqualFold(name[:len(drivePrefix)], drivePrefix) {
		return "", false
	}
	number := name[len(drivePrefix):]
	n, err := strconv.ParseUint(number, 10, 16)
	if err != nil || strconv.FormatUint(n, 10) != number {
		return "", false
	}
	return drivePrefix + number, true
}
