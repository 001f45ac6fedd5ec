package identify

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/volume"
)

// written is a forged image as a file, for the judges.
func written(t *testing.T, f forge.Bytes) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "volume")
	f.Write(t, path)
	return path
}

// blkid is what libblkid says about a file, by its names.
func blkid(t *testing.T, path string) map[string]string {
	t.Helper()
	// blkid escapes blanks for a shell.
	return equations(strings.ReplaceAll(disktest.Output(t, "blkid", "-p", "-o", "export", path), `\`, ""))
}

// equations are lines of the form NAME=value.
func equations(text string) map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			out[name] = value
		}
	}
	return out
}

// columns are lines of a name, blanks or a colon, and a value.
func columns(text string) map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), ":")
		if !ok {
			name, value, _ = strings.Cut(strings.Join(strings.Fields(line), " "), " ")
		}
		if _, known := out[name]; !known {
			out[strings.TrimSpace(name)] = strings.TrimSpace(value)
		}
	}
	return out
}

// detail is one of a volume's details, empty when it has none of that name.
func detail(v *volume.Volume, name string) string {
	for _, d := range v.Details {
		if d.Name == name {
			return d.Value
		}
	}
	return ""
}
