package catalog

import (
	"context"
	"database/sql"
	"errors"
)

// ended reports whether the run is over that has written the last result of image i.
const ended = `(SELECT finished IS NOT NULL FROM run WHERE run.id = i.result_run)`

// lost selects the images that no run has seen since run ?1 began, and those that a run has found lost which was killed
// before its report.
const lost = `((i.digest IS NOT NULL AND i.last_run < ?1) OR
	(i.digest IS NULL AND i.reported IS NOT NULL AND i.result_run <> ?1 AND NOT ` + ended + `))`

// prepared are the statements that run once or more for each file.
type prepared struct {
	known, prior                   *sql.Stmt
	addFile, setFile, again        *sql.Stmt
	addImage, setImage, imageAgain *sql.Stmt
	setResult, dropResult          *sql.Stmt
	addPartition, dropPartitions   *sql.Stmt
	missing, gone, stale           *sql.Stmt
}

func (p *prepared) all() map[**sql.Stmt]string {
	return map[**sql.Stmt]string{
		&p.known: `SELECT f.id, f.size_bytes, f.inode, f.modified_ns, f.changed_ns, f.is_image, f.ident, f.beside,
			i.digest, i.reported, ` + ended + `, r.json
			FROM file f LEFT JOIN image i ON i.id = f.id LEFT JOIN result r ON r.id = f.id
			WHERE f.path = ? AND f.settings = ?`,
		&p.prior: `SELECT f.id, i.id IS NOT NULL, i.digest, i.reported, ` + ended + `
			FROM file f LEFT JOIN image i ON i.id = f.id WHERE f.path = ?`,

		&p.addFile: `INSERT INTO file (size_bytes, device, inode, modified_ns, changed_ns, is_image, ident, beside,
			settings, last_run, path)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		&p.setFile: `UPDATE file SET size_bytes = ?, device = ?, inode = ?, modified_ns = ?, changed_ns = ?,
			is_image = ?, ident = ?, beside = ?, settings = ?, last_run = max(last_run, ?) WHERE path = ?`,
		&p.again: `UPDATE file SET last_run = max(last_run, ?) WHERE id = ? AND path = ?`,

		&p.addImage: `INSERT INTO image (state, verdict, format, subformat, size_bytes, stored_bytes, priority_class,
			cost_percent, error_code, error, content, digest, reported, result_run, first_run, last_run,
			changed_run, id) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?14, ?14, ?14, ?15)`,
		&p.setImage: `UPDATE image SET state = ?1, verdict = ?2, format = ?3, subformat = ?4, size_bytes = ?5,
			stored_bytes = ?6, priority_class = ?7, cost_percent = ?8, error_code = ?9, error = ?10, content = ?11,
			changed_run = CASE WHEN digest IS ?12 THEN changed_run ELSE ?14 END, digest = ?12, reported = ?13,
			result_run = ?14, last_run = max(last_run, ?14) WHERE id = ?15`,
		&p.imageAgain: `UPDATE image AS i SET last_run = max(last_run, ?1), reported = CASE WHEN ` + ended + `
			THEN digest ELSE reported END, result_run = ?1 WHERE id = ?2`,

		&p.setResult:      `INSERT OR REPLACE INTO result (id, json) VALUES (?, ?)`,
		&p.dropResult:     `DELETE FROM result WHERE id = ?`,
		&p.dropPartitions: `DELETE FROM partition WHERE image = ?`,
		&p.addPartition: `INSERT INTO partition (image, disk, nth, member, number, kind, type, start_lba, start_bytes,
			size_bytes, volume, label, verdict) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,

		&p.missing: `SELECT f.path, f.last_run >= ?1, i.id, i.format, i.subformat, i.size_bytes, i.stored_bytes
			FROM file f CROSS JOIN image i ON i.id = f.id WHERE ` + inside + ` AND ` + lost + ` ORDER BY f.path`,
		&p.gone: `UPDATE image AS i SET state = 'gone', verdict = NULL, content = NULL, priority_class = NULL,
			cost_percent = NULL, error_code = NULL, error = NULL, reported = CASE WHEN ` + ended + `
			THEN digest ELSE reported END, digest = NULL, result_run = ?1,
			changed_run = CASE WHEN digest IS NULL THEN changed_run ELSE ?1 END WHERE id = ?2 AND ` + lost,
		&p.stale: `UPDATE file SET settings = NULL WHERE id = ? AND is_image = 1`,
	}
}

func (p *prepared) prepare(ctx context.Context, c *sql.Conn) error {
	if err := p.close(); err != nil {
		return err
	}
	for to, text := range p.all() {
		s, err := c.PrepareContext(ctx, text)
		if err != nil {
			return err
		}
		*to = s
	}
	return nil
}

func (p *prepared) close() (err error) {
	for s := range p.all() {
		if *s != nil {
			err = errors.Join(err, (*s).Close())
			*s = nil
		}
	}
	return err
}
