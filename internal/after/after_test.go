package after

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/ondisk"
)

// clerkEnv makes this process a clerk.
const clerkEnv = "TRUEUP_TEST_CLERK"

func TestMain(m *testing.M) {
	if os.Getenv(clerkEnv) == "" {
		os.Exit(m.Run())
	}
	if err := Serve(os.Stdin, os.Stdout); err != nil {
		fmt.Fprint(os.Stderr, err)
		os.Exit(1)
	}
}

// A clerk says how each command ended, and that one was interrupted. One that is gone is an error.
func TestClerk(t *testing.T) {
	t.Setenv(clerkEnv, "1")
	run := func(ctx context.Context, command ...string) (*Clerk, error) {
		c, err := Open(command)
		require.NoError(t, err)
		return c, c.Run(ctx, []byte("{}"))
	}
	c, err := run(t.Context(), "true")
	require.NoError(t, err)
	require.NoError(t, c.Run(t.Context(), nil), "a second row")
	require.NoError(t, c.Close())
	require.ErrorContains(t, c.Run(t.Context(), nil), "what runs the command ended")
	c, err = run(t.Context(), "false")
	require.EqualError(t, err, "exit status 1")
	require.NoError(t, c.Close())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c, err = run(ctx, "sleep", "1h")
	require.EqualError(t, err, "the command was interrupted")
	require.NoError(t, c.Close())
}

// A clerk whose answer nothing reads ends with an error, not by a signal.
func TestClerkWithoutReader(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer w.Close()
	require.NoError(t, r.Close())
	asked, err := json.Marshal(question{Words: []string{"true"}})
	require.NoError(t, err)
	var said bytes.Buffer
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), clerkEnv+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(asked), w, &said
	require.EqualError(t, cmd.Run(), "exit status 1")
	require.Contains(t, said.String(), "broken pipe")
}

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
