package oddfs

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// quiet takes what a check says.
type quiet struct {
	testing.TB
	said string
}

func (q *quiet) Errorf(format string, args ...any) { q.said += fmt.Sprintf(format, args...) }
func (*quiet) FailNow()                            {}

// All calls whose failure nothing has noticed are named at once, but for those that a test knows of.
func TestRequireNoticedNamesAllCalls(t *testing.T) {
	j := &Journal{ignored: map[string]bool{
		"link a": true, "read a #1": true, "read b #2": true, "unlink dir/a #1": true, "unlink dir/a #3": true,
	}}
	q := &quiet{TB: t}
	j.RequireNoticed(q, map[string]int{"read": 2, "unlink dir/*": 1})
	require.Contains(t, q.said, "[link a unlink dir/a #3]\n")
	q.said = ""
	j.RequireNoticed(q, map[string]int{"link": 1, "read ?": 2, "unlink dir/a": 2})
	require.Empty(t, q.said)
}

// A call fails by its file and its number there, whatever others come between.
func TestCallsFailByTheirFile(t *testing.T) {
	j := &Journal{}
	for _, others := range []int{0, 3} {
		j.restart(0, call{"read", "a", 2})
		for range others {
			require.Zero(t, j.note("read", "", "b"))
			require.Zero(t, j.note("lookup", "a", ""))
		}
		require.Zero(t, j.note("read", "", "a"))
		require.Equal(t, syscall.EIO, j.note("read", "", "a"))
		require.Zero(t, j.note("read", "", "a"))
		require.Equal(t, "read", j.Failed())
		j.Ignored()
	}
	require.Equal(t, map[string]bool{"read a #2": true}, j.ignored)
}
