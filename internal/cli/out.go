package cli

import (
	"fmt"
	"os"
	"path/filepath"
)

// spare refuses a report that would overwrite what the command reads.
func (c *common) spare(images ...*source) error {
	for _, s := range images {
		if name, ok := s.img.Uses(c.out); ok {
			return fmt.Errorf("%w: --out %s would overwrite %s of the image %s", errUsage, c.out, name, s.img.Path)
		}
	}
	return nil
}

// spareFiles refuses a report that would overwrite what the command writes: files, beside dest.
func (c *common) spareFiles(dest string, files []string) error {
	if c.out == "" {
		return nil
	}
	here, err := os.Stat(filepath.Dir(dest))
	if err != nil {
		return fmt.Errorf("folder of DEST: %w", err)
	}
	there, err := os.Stat(filepath.Dir(c.out))
	for _, f := range files {
		if err == nil && os.SameFile(here, there) && filepath.Base(c.out) == f {
			return fmt.Errorf("%w: --out %s would overwrite %s of DEST", errUsage, c.out, f)
		}
	}
	return nil
}
