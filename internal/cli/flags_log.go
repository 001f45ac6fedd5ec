package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// logMode keeps the names of images from others.
const logMode = 0o600

// logLine begins a line of a log.
var logLine = regexp.MustCompile(`^\{"time":"\d{4}-\d\d-\d\dT\d\d:\d\d:`)

// OpenLog opens the file of a log to add to it. What is neither empty nor a log is refused, since it may be a disk, and
// so is what the run names in another place: it reads that, or gives the name to another file.
func OpenLog(path string, args []string) (*os.File, error) {
	if arg := alsoNamed(path, args); arg != "" {
		return nil, Usage("--log %s is also %s; name another file", path, arg)
	}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE, logMode)
	if err != nil {
		return nil, Usage("--log: %w", err)
	}
	if err := readyLog(file); err != nil {
		file.Close()
		return nil, Usage("--log %s: %w", path, err)
	}
	return file, nil
}

// alsoNamed returns the argument that leads to the same file, also as the value of another flag or as a disk of a
// package.
func alsoNamed(path string, args []string) string {
	info, statErr := os.Stat(path)
	whole, absErr := filepath.Abs(path)
	for _, arg := range args {
		value := arg
		if strings.HasPrefix(arg, "--") {
			var flag string
			flag, value, _ = strings.Cut(arg, "=")
			if flag == "--log" {
				continue
			}
		}
		packed, _, _ := strings.Cut(value, "!")
		for _, other := range []string{value, packed} {
			also, err := os.Stat(other)
			if statErr == nil && err == nil && os.SameFile(info, also) {
				return arg
			}
			if abs, err := filepath.Abs(other); err == nil && absErr == nil && abs == whole {
				return arg
			}
		}
	}
	return ""
}

// readyLog requires that a file is a log, and ends a line that was cut.
func readyLog(file *os.File) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return errors.New("it is not a regular file; name one, or - for standard error")
	}
	if info.Size() == 0 {
		return nil
	}
	head, last := make([]byte, 32), make([]byte, 1)
	n, err := file.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if !logLine.Match(head[:n]) {
		return fmt.Errorf("it begins with %q, and a log with {\"time\":; name another file", head[:n])
	}
	if _, err := file.ReadAt(last, info.Size()-1); err != nil || last[0] == '\n' {
		return err
	}
	_, err = file.WriteString("\n")
	return err
}
