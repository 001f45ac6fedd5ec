package self

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

// The writer must have no method by which io.Copy passes the bound.
func TestAnswersAreBounded(t *testing.T) {
	t.Parallel()
	var b bounded
	_, reads := any(&b).(io.ReaderFrom)
	require.False(t, reads)
	_, err := b.Write(make([]byte, maxAnswer+1))
	require.ErrorContains(t, err, "a report above")
}
