package labels

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLabels(t *testing.T) {
	t.Parallel()
	l, err := ParseAll([]string{"host=esx1", "site=a=b"})
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
		_, err := ParseAll(list)
		require.Error(t, err, "%q", list)
	}
	_, err = ParseAll(many[:maxLabels])
	require.NoError(t, err)
}
