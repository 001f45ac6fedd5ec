package flags

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/trueup/trueup/internal/cli/command"
)

// logMode keeps the names of images from others.
const logMode = 0o600

// OpenLog opens the file of a log to add to it. What is neither empty nor a log is refused: it may be a disk.
func OpenLog(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE, logMode)
	if err != nil {
		return nil, command.Usage("--log: %w", err)
	}
	if err := isLog(file); err != nil {
		file.Close()
		return nil, command.Usage("--log %s: %w", path, err)
	}
	return file, nil
}

func isLog(file *os.File) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return errors.New("it is no file; want one, or - for standard error")
	}
	head := make([]byte, 16)
	n, err := file.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	for _, begins := range []string{`{"time":"`, "time="} {
		if n == 0 || bytes.HasPrefix(head[:n], []byte(begins)) {
			return nil
		}
	}
	return fmt.Errorf("it begins with %q, and a log with time=; name another file", head[:n])
}
