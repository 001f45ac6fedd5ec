package catalog

import (
	"context"
	"database/sql"
	_ "embed" // the schema
	"fmt"
	"strings"
)

// Numbers that mark a file as a catalogue. The first is at byte 68 of the file, the second at byte 60 (SQLite file
// format, 1.3).
const (
	applicationID = 0x74727570 // "trup"
	schemaVersion = 4
)

// schema is documented in docs/catalog.md.
//
//go:embed schema.sql
var schema string

// statements are those of the schema, as SQLite stores them.
func statements() []string {
	return strings.Split(strings.TrimSuffix(strings.TrimSpace(schema), ";"), ";\n\n")
}

// marks identify a database.
type marks struct {
	application, version int
	objects              int // tables, views and so on
}

func readMarks(ctx context.Context, c *sql.Conn) (m marks, err error) {
	const ask = `SELECT application_id, user_version, (SELECT count(*) FROM sqlite_schema) FROM ` +
		`pragma_application_id, pragma_user_version`
	err = c.QueryRowContext(ctx, ask).Scan(&m.application, &m.version, &m.objects)
	return m, err
}

// settle makes the tables where there are none, and refuses another database. Two runs may do it at once, so it looks
// again when it has the lock.
func (c *Catalog) settle(ctx context.Context) error {
	m, err := readMarks(ctx, c.conn)
	if err != nil {
		return err
	}
	if m == (marks{}) {
		return c.transaction(ctx, func() error {
			if m, err = readMarks(ctx, c.conn); err != nil || m != (marks{}) {
				return err
			}
			return c.create(ctx)
		})
	}
	switch {
	case m.application != applicationID:
		return foreign{fmt.Errorf("a database of another program (application_id 0x%x, want 0x%x): name another file",
			m.application, applicationID)}
	case m.version > schemaVersion:
		return fmt.Errorf("made by a newer trueup (schema %d, this one knows %d): use that one, or name another file",
			m.version, schemaVersion)
	case m.version < schemaVersion:
		return fmt.Errorf("schema %d, want %d: %s", m.version, schemaVersion, moveAway)
	}
	return c.compareSchema(ctx)
}

func (c *Catalog) create(ctx context.Context) error {
	marks := fmt.Sprintf("PRAGMA application_id = %d; PRAGMA user_version = %d", applicationID, schemaVersion)
	for _, s := range append(statements(), marks) {
		if _, err := c.conn.ExecContext(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// compareSchema refuses a database with other tables or a trigger. Views and indexes that the user has added do no
// harm.
func (c *Catalog) compareSchema(ctx context.Context) error {
	rows, err := c.conn.QueryContext(ctx, `SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL`)
	if err != nil {
		return err
	}
	defer rows.Close()
	missing := map[string]bool{}
	for _, s := range statements() {
		missing[s] = true
	}
	for rows.Next() {
		var kind, name, text string
		if err := rows.Scan(&kind, &name, &text); err != nil {
			return err
		}
		if kind == "trigger" {
			return fmt.Errorf("it has the trigger %q, which trueup did not make: remove it with sqlite3, or %s", name,
				moveAway)
		}
		delete(missing, text)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	if len(missing) > 0 {
		return fmt.Errorf("%d of its tables and views are not those of schema %d: %s", len(missing), schemaVersion,
			moveAway)
	}
	return nil
}
