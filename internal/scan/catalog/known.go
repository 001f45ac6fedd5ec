package catalog

import (
	"bytes"
	"context"
	"database/sql"
	"errors"

	"github.com/trueup/trueup/internal/scan/results"
)

// Known is the result of a file.
type Known struct {
	Ident  []byte         // identity of the file, in the form of the scan
	Image  *results.Image // nil for a file that is no image of its own
	Beside string         // files around it that the result depends on, in the form of the scan

	id     int64
	change results.Change
}

// Lookup returns the result of the file with an absolute path and these numbers, if it was found with the settings of
// this catalogue and may be used again. It compares the one file: that the others of Image.Files are Unchanged, and
// those Beside them, is for the caller to check. Image is as it was saved: its Path is that of an earlier command line.
func (r *Run) Lookup(path string, f results.File) (k Known, ok bool, err error) {
	k, packed, sum, ok, err := r.lookup(path, f)
	if err != nil || !ok || packed == nil {
		return k, ok, err
	}
	i, ok := decode(packed)
	if !ok || !bytes.Equal(Digest(i), sum) {
		return Known{}, false, nil // damaged: it is read and saved again
	}
	k.Image = i
	return k, true, nil
}

// lookup returns a row: packed is the JSON of its image, nil for a file that is not one, and sum its digest.
func (r *Run) lookup(path string, f results.File) (k Known, packed, sum []byte, ok bool, err error) {
	c := r.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := r.settle(path); err != nil {
		return k, nil, nil, false, err
	}
	var (
		was      results.File
		inode    int64
		image    bool
		reported []byte
		over     sql.NullBool
	)
	err = c.sql.known.QueryRowContext(context.Background(), path, c.settings).Scan(
		&k.id, &was.Size, &inode, &was.Modified, &was.Changed, &image, &k.Ident, &k.Beside, &sum, &reported, &over,
		&packed)
	was.Inode = unsigned(inode)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return Known{}, nil, nil, false, nil
	case err != nil:
		return Known{}, nil, nil, false, c.fail(err)
	case !Unchanged(was, f) || image != (packed != nil):
		return Known{}, nil, nil, false, nil
	case image:
		k.change = compare(sum, prior{digest: sum, reported: reported, ended: over.Bool}.base())
	}
	return k, packed, sum, true, nil
}

// Reuse notes that a result that Lookup gave was used again. The change is Same, unless the run that found the result
// made no report.
func (r *Run) Reuse(path string, k Known) (results.Change, error) {
	c := r.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if k.Image != nil {
		k.Image.Change = k.change
	}
	return k.change, r.put(entry{path: path, reuse: true, id: k.id, image: k.Image != nil})
}

// Save keeps the result of a file with an absolute path and numbers from before it was read, and returns, and notes in
// the image, how that differs from what was last reported of this path. It is on the disk within a second.
func (r *Run) Save(path string, f results.File, k Known) (results.Change, error) {
	e, err := r.entry(path, f, k)
	if err != nil {
		return "", r.c.fail(err)
	}
	c := r.c
	c.mu.Lock()
	defer c.mu.Unlock()
	var change results.Change
	if k.Image != nil {
		if err := r.settle(path); err != nil {
			return "", err
		}
		p, err := c.prior(context.Background(), path)
		if err != nil {
			return "", c.fail(err)
		}
		change = compare(e.digest, p.base())
		k.Image.Change = change
	}
	return change, r.put(e)
}

// prior is the state of a path in the catalogue.
type prior struct {
	id       int64 // 0: nothing
	image    bool
	digest   []byte // of the last result; nil for none
	reported []byte // of the last result that a run had which has ended, before the run of digest
	ended    bool   // that run has ended too
}

// base returns the digest that the next result is compared with.
func (p prior) base() []byte {
	if p.ended {
		return p.digest
	}
	return p.reported
}

func compare(now, base []byte) results.Change {
	switch {
	case base == nil:
		return results.New
	case bytes.Equal(now, base):
		return results.Same
	default:
		return results.Changed
	}
}

func (c *Catalog) prior(ctx context.Context, path string) (p prior, err error) {
	var over sql.NullBool
	err = c.sql.prior.QueryRowContext(ctx, path).Scan(&p.id, &p.image, &p.digest, &p.reported, &over)
	if errors.Is(err, sql.ErrNoRows) {
		return prior{}, nil
	}
	p.ended = over.Bool
	return p, err
}

// SQLite has no unsigned integers: numbers of devices and inodes are stored with their bits as they are.
func unsigned(n int64) uint64 { return uint64(n) } //nolint:gosec // the bits count, not the number

func signed(n uint64) int64 { return int64(n) } //nolint:gosec // the bits count, not the number
