package cli

import (
	"errors"

	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/scan"
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

// openSource opens an image and reads its layout. Errors name the path as the user wrote it.
func openSource(path string, r realign.Reading) (*realign.Source, error) {
	s, err := realign.Open(path, r)
	if errors.Is(err, realign.ErrOpen) {
		return nil, scan.NotOpened(path, err)
	}
	return s, err
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

// spare refuses a report that would overwrite an input, or that has no place to go, before any work.
func (c *common) spare(images ...input) error {
	if c.out == "" {
		return nil
	}
	if err := store.TryFolder("--out", c.out); err != nil {
		return err
	}
	for _, i := range images {
		if name, ok := i.Uses(c.out); ok {
			return ondisk.In(ondisk.ErrUsage, "--out %s would overwrite %s, which the command reads", c.out, name)
		}
	}
	return nil
}

// reportMode has permissions before the umask.
const reportMode = 0o666

func writeFile(path string, b []byte) error {
	f, err := store.CreateReport(path, reportMode)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return f.End(err)
}
