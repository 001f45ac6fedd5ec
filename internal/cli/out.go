package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/trueup/trueup/internal/image/ova"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/realign"
)

// settleOut decides where the report goes, before anything is read.
func (c *common) settleOut() (err error) {
	switch {
	case c.out == "":
		return nil
	case store.Standard(c.out):
		c.out = ""
		return nil
	}
	c.out, err = store.Place{Flag: "--out", Path: c.out, Role: store.Report}.Settle()
	return err
}

// openSource opens an image and reads what is on it. Errors name the path as the user wrote it.
func openSource(path string, r realign.Reading) (*realign.Source, error) {
	o, err := r.Options()
	if err != nil {
		return nil, err
	}
	if path == "-" {
		return nil, ondisk.In(errUsage, "only trueup convert reads from a pipe; write the image to a file first (a file of that name is ./-)")
	}
	img, err := ova.OpenImage(path, o)
	if err != nil {
		return nil, noImage(path, err)
	}
	return realign.Read(img, r)
}

// open opens an image and makes sure that a report can be written without harm.
func (c *common) open(path string, r realign.Reading) (*realign.Source, error) {
	s, err := openSource(path, r)
	if err != nil {
		return nil, err
	}
	if err := c.spare(s.Image); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// input is an image or a package that a command reads.
type input interface {
	Uses(path string) (name string, ok bool)
}

// spare refuses a report that would overwrite what the command reads, or that has no place to go: better now than when a
// copy has been made.
func (c *common) spare(images ...input) error {
	if c.out == "" {
		return nil
	}
	if err := writable("--out", c.out); err != nil {
		return err
	}
	for _, i := range images {
		if name, ok := i.Uses(c.out); ok {
			return ondisk.In(errUsage, "--out %s would overwrite %s, which the command reads", c.out, name)
		}
	}
	return nil
}

// writable tries whether a file can be made where a flag wants one, before hours of work that would end in an error.
func writable(flag, path string) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".trueup-*")
	if err != nil {
		return ondisk.In(ondisk.ErrOutput, "folder of %s %s: %w", flag, path, err)
	}
	if err := errors.Join(f.Close(), os.Remove(f.Name())); err != nil {
		return ondisk.In(ondisk.ErrOutput, "%s %s: %w", flag, path, err)
	}
	return nil
}

// reportMode and scriptMode are what the umask takes from. A script can be run.
const (
	reportMode = 0o666
	scriptMode = 0o777
)

func writeFile(path string, b []byte) error {
	f, err := store.CreateReport(path, reportMode)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return f.End(err)
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
			return ondisk.In(errUsage, "--out %s would overwrite %s of DEST", c.out, f)
		}
	}
	return nil
}
