package results

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A label is what a user wrote, and a row with labels comes from a file: neither reaches a terminal or a spreadsheet.
func TestLabelsAreEscaped(t *testing.T) {
	t.Parallel()
	i := NewImage("/x")
	i.State, i.Labels = Orphan, Labels{"host": {"=cmd\x1b[31m"}}
	require.NoError(t, i.Check())
	csv := written(t, func(w io.Writer) error { return write(w, csvFormat, NewSummary(), []*Image{i}) })
	require.Contains(t, csv, `,host==cmd\u001b[31m`)
	i.Labels = Labels{"=x": {"v"}}
	require.ErrorContains(t, i.Check(), `key "=x"`)
}

func TestLabels(t *testing.T) {
	t.Parallel()
	l, err := ParseLabels([]string{"host=esx1", "site=a=b"})
	require.NoError(t, err)
	require.Equal(t, Labels{"host": {"esx1"}, "site": {"a=b"}}, l)
	both := l.Merge(Labels{"host": {"esx0", "esx1"}})
	require.Equal(t, "host=esx0 host=esx1 site=a=b", both.String())
	require.Equal(t, "host=esx1 site=a=b", l.String(), "the row of one host stays")
	var many []string
	for n := range maxLabels + 1 {
		many = append(many, fmt.Sprintf("k%d=v", n))
	}
	for _, list := range [][]string{
		{"host"},
		{"=x"},
		{"Host=x"},
		{"a b=x"},
		{"host="},
		{"host=\xff"},
		{"host=a", "host=b"},
		{strings.Repeat("k", maxKey+1) + "=v"},
		{"k=" + strings.Repeat("v", maxValue+1)},
		many,
	} {
		_, err := ParseLabels(list)
		require.Error(t, err, "%q", list)
	}
	_, err = ParseLabels(many[:maxLabels])
	require.NoError(t, err)
}
