package after

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/ondisk"
)

// A clerk whose caller ended before it had asked, or in the middle of that, runs nothing.
func TestNoQuestionNoCommand(t *testing.T) {
	t.Parallel()
	const whole = `{"Words": ["/absent/program"], "Report": "e30="}`
	for n := range len(whole) {
		var out bytes.Buffer
		require.NoError(t, Serve(strings.NewReader(whole[:n]), &out))
		require.Empty(t, out.String(), whole[:n])
	}
	var out bytes.Buffer
	require.NoError(t, Serve(strings.NewReader(whole), &out))
	require.NotEmpty(t, out.String())
}

func TestWords(t *testing.T) {
	t.Parallel()
	words, err := Words(" true \t a  b ")
	require.NoError(t, err)
	require.Equal(t, []string{"true", "a", "b"}, words)
	for _, wrong := range []string{" ", "true 'a b'", "true $HOME", "true | cat", "true *", "/absent/program"} {
		_, err := Words(wrong)
		require.ErrorIs(t, err, ondisk.ErrUsage, wrong)
	}
}
