package catalog

import (
	"bytes"
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/trueup/trueup/internal/scan/results"
)

// Results wait, so that many share one transaction: bounded by number, bytes of JSON and time. A crowd of other
// processes can add the time for which they hold the catalogue.
const (
	maxBatch = 256
	maxBytes = 8 << 20
	maxWait  = 200 * time.Millisecond
)

// queue holds the results that wait to be written.
type queue struct {
	entries []entry
	done    map[string]bool // paths of entries
	bytes   int
	timer   *time.Timer
	err     error // of the last attempt: nothing is written after it
}

// entry is one result, ready to be written.
type entry struct {
	path       string
	reuse      bool  // only note that it was seen
	id         int64 // of the file, for reuse
	image      bool
	file       []any // columns but for the run and the path
	row        []any // columns of the image up to content
	json       []byte
	digest     []byte
	partitions [][]any // columns but for the image
}

// entry makes columns of a result.
func (r *Run) entry(path string, f results.File, k Known) (e entry, err error) {
	e = entry{path: path, image: k.Image != nil}
	known := settled(f, r.started)
	if i := k.Image; i != nil {
		for _, f := range i.Files {
			known = known && settled(f, r.started)
		}
		if known = known && !i.Fleeting; known {
			if e.json, err = encode(i); err != nil {
				return e, err
			}
			known = e.json != nil
		}
		e.describe(i)
	}
	settings := sql.NullInt64{Int64: r.c.settings, Valid: known}
	ident := k.Ident
	if ident == nil {
		ident = []byte{}
	}
	e.file = []any{f.Size, signed(f.Device), signed(f.Inode), f.Modified, f.Changed, e.image, ident, k.Beside, settings}
	return e, nil
}

// describe fills the columns for users' queries.
func (e *entry) describe(i *results.Image) {
	e.digest = Digest(i)
	var class, cost, failure, message any
	if i.Priority != nil {
		class, cost = i.Priority.Class, i.Priority.Cost
	}
	if i.Error != nil {
		failure, message = i.Error.Code, i.Error.Message
	}
	e.row = []any{
		string(i.State), null(string(i.Verdict)), null(i.Format), null(i.Subformat), i.Size, i.Stored, class, cost,
		failure, message, null(string(i.Content)),
	}
	for d, disk := range i.Disks {
		for n, p := range disk.Partitions {
			volume, label := content(p)
			e.partitions = append(e.partitions, []any{
				d + 1, n + 1, null(disk.Member), p.Number, p.Kind, p.Type, p.StartLBA, p.Start, p.Size, null(volume),
				null(label), null(string(p.Verdict)),
			})
		}
	}
}

// null returns no value for an empty text.
func null(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// put adds an entry. The lock is held.
func (r *Run) put(e entry) error {
	q := &r.queue
	if q.err != nil {
		return q.err
	}
	q.entries = append(q.entries, e)
	q.done[e.path] = true
	q.bytes += len(e.json)
	if len(q.entries) >= maxBatch || q.bytes >= maxBytes {
		return r.flush()
	}
	if q.timer == nil {
		q.timer = time.AfterFunc(maxWait, r.tick)
	}
	return nil
}

// tick writes the results that have waited long enough. The next call of the run returns its error.
func (r *Run) tick() {
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	_ = r.flush()
}

// settle writes the results that wait if a path is among them. The lock is held.
func (r *Run) settle(path string) error {
	if r.queue.done[path] {
		return r.flush()
	}
	return nil
}

// flush writes all results that wait, or none with an error. The lock is held.
func (r *Run) flush() error {
	q := &r.queue
	if q.timer != nil {
		q.timer.Stop()
		q.timer = nil
	}
	if q.err != nil || len(q.entries) == 0 {
		return q.err
	}
	ctx := context.Background()
	q.err = r.c.fail(r.c.patiently(func() error {
		return r.c.transaction(ctx, func() error {
			for _, e := range q.entries {
				if err := r.write(ctx, e); err != nil {
					return err
				}
			}
			return nil
		})
	}))
	clear(q.done)
	clear(q.entries) // lets go of their memory
	q.entries, q.bytes = q.entries[:0], 0
	return q.err
}

func (r *Run) write(ctx context.Context, e entry) error {
	s := &r.c.sql
	switch {
	case e.reuse && e.image:
		return execute(ctx, s.imageAgain, r.id, e.id)
	case e.reuse:
		return execute(ctx, s.again, r.id, e.id, e.path)
	}
	p, err := r.c.prior(ctx, e.path)
	if err != nil {
		return err
	}
	if p.id, err = r.writeFile(ctx, e, p.id); err != nil {
		return err
	}
	if e.json == nil && p.image {
		if err := execute(ctx, s.dropResult, p.id); err != nil {
			return err
		}
	}
	if !e.image {
		return nil
	}
	return r.writeImage(ctx, e, p)
}

func (r *Run) writeFile(ctx context.Context, e entry, id int64) (int64, error) {
	args := slices.Concat(e.file, []any{r.id, e.path})
	if id != 0 {
		return id, execute(ctx, r.c.sql.setFile, args...)
	}
	res, err := r.c.sql.addFile.ExecContext(ctx, args...)
	if err != nil {
		return 0, err
	}
	return res.LastInsertId()
}

func (r *Run) writeImage(ctx context.Context, e entry, p prior) error {
	s := &r.c.sql
	to := s.addImage
	if p.image {
		to = s.setImage
	}
	if err := execute(ctx, to, slices.Concat(e.row, []any{e.digest, p.base(), r.id, p.id})...); err != nil {
		return err
	}
	if e.json != nil {
		if err := execute(ctx, s.setResult, p.id, e.json); err != nil {
			return err
		}
	}
	if bytes.Equal(e.digest, p.digest) {
		return nil
	}
	if p.image {
		if err := execute(ctx, s.dropPartitions, p.id); err != nil {
			return err
		}
	}
	for _, columns := range e.partitions {
		if err := execute(ctx, s.addPartition, append([]any{p.id}, columns...)...); err != nil {
			return err
		}
	}
	return nil
}

func execute(ctx context.Context, s *sql.Stmt, args ...any) error {
	_, err := s.ExecContext(ctx, args...)
	return err
}
