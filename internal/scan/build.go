package scan

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"strings"
)

// buildOf returns the version as rows name it. Builds that share a version with others, since it was
// not set or the sources had changed, differ by the hash of the program.
func buildOf(version string) (string, error) {
	if version != "devel" && version != "unknown" && !strings.HasSuffix(version, "-dirty") {
		return version, nil
	}
	path, err := os.Executable()
	if err != nil {
		return "", err
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s %x", version, h.Sum(nil)[:8]), nil
}
