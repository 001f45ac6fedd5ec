package oddfs

import (
	"fmt"
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

// All kinds of calls whose failure went unnoticed are reported together, except those that a test expects.
func TestRequireNoticedNamesAllKinds(t *testing.T) {
	j := &Journal{ignored: map[string]map[int]bool{
		"link": {1: true}, "read": {2: true}, "unlink": {1: true, 3: true}, "write": {4: true, 7: true},
	}}
	q := &quiet{TB: t}
	j.RequireNoticed(q, map[string]int{"read": 1, "unlink": 1, "write": 2})
	require.Contains(t, q.said, "was map[link:map[1:true] unlink:map[1:true 3:true]]\n")
	q.said = ""
	j.RequireNoticed(q, map[string]int{"link": 1, "read": 1, "unlink": 2, "write": 2})
	require.Empty(t, q.said)
}
