package cli

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/scan"
	"github.com/trueup/trueup/internal/scan/catalog"
	"github.com/trueup/trueup/internal/scan/results"
)

// runStore is the catalogue of a scan, and its run there.
type runStore struct {
	all *catalog.Catalog
	*catalog.Run
}

// openStore opens the catalogue and begins a run.
func (s *scanning) openStore() error {
	if err := store.CheckUpgrade(s.catalog); err != nil {
		return err
	}
	j, err := s.inspector()
	if err != nil {
		return err
	}
	options := fmt.Sprintf("boundary=%d storage=%s", j.Boundary, j.Storage)
	if j.Check {
		options += " check"
	}
	c, err := catalog.Open(s.catalog, catalog.Settings{Version: s.version, Options: options})
	switch {
	case errors.Is(err, catalog.ErrForeign):
		return ondisk.In(errUsage, "%w", err)
	case err != nil:
		return err
	}
	s.store = &runStore{all: c}
	if s.store.Run, err = c.Begin(scan.Places(s.paths), time.Now()); err != nil {
		return err
	}
	s.summary.Changes = &results.Changes{Since: s.store.Since}
	return nil
}

// removed hands over the images that are known and not there any more.
func (s *runStore) removed(row func(*results.Image) error) error {
	there := func(path string) bool {
		_, err := os.Lstat(path)
		return err == nil
	}
	for i, err := range s.Removed(there) {
		if err != nil {
			return err
		}
		if err := row(i); err != nil {
			return err
		}
	}
	return nil
}

func (s *runStore) close() error {
	if s == nil {
		return nil // it could not be opened
	}
	return s.all.Close()
}
