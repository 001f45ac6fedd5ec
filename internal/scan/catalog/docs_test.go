package catalog

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

const manual = "../../../docs/catalog.md"

// The questions of the manual are asked as they stand there, by another program than ours.
func TestQuestionsOfTheManual(t *testing.T) {
	text := disktest.ReadFile(t, manual)
	questions := regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	require.Len(t, questions, 3)

	c := fresh(t)
	r := begin(t, c)
	save(t, r, "/lib/aligned", image("aligned", 1<<20, file("x", 1)))
	save(t, r, "/lib/xp", image("xp", 32256, file("x", 2)))
	save(t, r, "/lib/also xp", image("also xp", 32256, file("x", 3)))
	save(t, r, "/lib/odd", image("odd", 70000*512, file("x", 4)))
	finish(t, r)
	r = begin(t, c)
	reuse(t, r, "/lib/aligned", file("x", 1))
	save(t, r, "/lib/xp", image("xp", 32768+512, file("x", 2)))
	save(t, r, "/lib/2003", image("2003", 32256, file("x", 5)))
	require.Equal(t, []string{"/lib/odd"}, removed(t, r, "/lib/also xp"))
	finish(t, r)

	require.Equal(t, "/lib/2003|misaligned|4|524288\n/lib/also xp|misaligned|4|524288\n/lib/xp|misaligned|4|524288",
		query(t, c, questions[0][1]))
	require.Equal(t, "new|/lib/2003|judged|misaligned\nremoved|/lib/odd|gone|\nchanged|/lib/xp|judged|misaligned",
		query(t, c, questions[1][1]))
	require.Equal(t, "63|2|2|209715200\n65|1|1|104857600", query(t, c, questions[2][1]))
}

// Every table, and every column of every view, is in the manual, and nothing else.
func TestTheManualNamesAllColumns(t *testing.T) {
	text := disktest.ReadFile(t, manual)
	c := fresh(t)
	columns := func(name string) []string {
		return strings.Fields(query(t, c, "SELECT name FROM pragma_table_info('"+name+"')"))
	}
	for _, view := range []string{"images", "partitions", "runs"} {
		_, section, ok := strings.Cut(string(text), "### `"+view+"`")
		require.True(t, ok, view)
		section, _, _ = strings.Cut(section, "\n#")
		var named []string
		for _, row := range regexp.MustCompile(`(?m)^\| ([a-z_, ]+) \| [A-Z ,]*\|`).FindAllStringSubmatch(section, -1) {
			named = append(named, strings.Split(row[1], ", ")...)
		}
		require.ElementsMatch(t, columns(view), named, view)
	}
	_, tables, ok := strings.Cut(string(text), "\n## Tables")
	require.True(t, ok)
	for table := range strings.FieldsSeq(query(t, c,
		"SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")) {
		require.Contains(t, tables, "\n| "+table+" |")
	}
}

// The tool reads what this package writes, and the numbers that mark the file are where the format has them.
func TestTheFileIsMarked(t *testing.T) {
	c := fresh(t)
	require.Equal(t, "1953658224\n4", query(t, c, "PRAGMA application_id; PRAGMA user_version"))
	out := disktest.Output(t, "sqlite3", "-json", c.file, "SELECT count(*) AS n FROM runs")
	require.JSONEq(t, `[{"n":0}]`, out)
}
