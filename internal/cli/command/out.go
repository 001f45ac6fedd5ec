package command

import (
	"errors"

	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/scan"
)

// SettleOut decides where the report goes, before anything is read.
func (c *Base) SettleOut() (err error) {
	switch {
	case c.Out == "":
		return nil
	case store.Standard(c.Out):
		c.Out = ""
		return nil
	}
	c.Out, err = store.Place{Flag: "--out", Path: c.Out, Role: store.Report}.Settle()
	return err
}

// OpenSource opens an image and reads its layout. Errors name the path as the user wrote it.
func OpenSource(path string, r realign.Reading) (*realign.Source, error) {
	s, err := realign.Open(path, r)
	if errors.Is(err, realign.ErrOpen) {
		return nil, scan.NotOpened(path, err)
	}
	return s, err
}

// Open opens an image and makes sure that a report can be written without harm.
func (c *Base) Open(path string, r realign.Reading) (*realign.Source, error) {
	s, err := OpenSource(path, r)
	if err != nil {
		return nil, err
	}
	if err := c.Spare(s.Image); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Input is an image or a package that a command reads.
type Input interface {
	Uses(path string) (name string, ok bool)
}

// Spare refuses a report that would overwrite an input, or that has no place to go, before any work.
func (c *Base) Spare(images ...Input) error {
	if c.Out == "" {
		return nil
	}
	if err := store.TryFolder("--out", c.Out); err != nil {
		return err
	}
	for _, i := range images {
		if name, ok := i.Uses(c.Out); ok {
			return Usage("--out %s would overwrite %s, which the command reads", c.Out, name)
		}
	}
	return nil
}

// ReportMode has permissions before the umask.
const ReportMode = 0o666

// WriteFile writes a report to a file, complete or not at all.
func WriteFile(path string, b []byte) error {
	f, err := store.CreateReport(path, ReportMode)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return f.End(err)
}
