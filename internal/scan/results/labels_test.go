package results

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/scan/labels"
)

// A label is what a user wrote, and a row with labels comes from a file: neither reaches a terminal or a spreadsheet.
func TestLabelsAreEscaped(t *testing.T) {
	t.Parallel()
	i := NewImage("/x")
	i.State, i.Labels = Orphan, labels.Labels{"host": {"=cmd\x1b[31m"}}
	require.NoError(t, i.Check())
	csv := written(t, func(w io.Writer) error { return write(w, csvFormat, NewSummary(), []*Image{i}) })
	require.Contains(t, csv, `,host==cmd\u001b[31m`)
	i.Labels = labels.Labels{"=x": {"v"}}
	require.ErrorContains(t, i.Check(), `the key "=x"`)
}
