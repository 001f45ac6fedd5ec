package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/library"
)

// Ctrl-C before there is anything to tell leaves a report that says so.
func TestScanInterruptedAtOnce(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "disk.raw"), make([]byte, 1<<20), 0o644))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c := &common{}
	root := newRoot("test", c)
	var out, errs bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&errs)
	root.SetArgs([]string{"scan", "-o", "json", "--isolation", "none", dir})
	cmd, err := root.ExecuteContextC(ctx)
	require.Equal(t, exitError, finish(err, c, cmd.Name(), &out, &errs))
	var sum library.Summary
	require.NoError(t, json.Unmarshal(out.Bytes(), &sum), out.String())
	require.False(t, sum.Complete)
	require.Zero(t, sum.Images)
	require.Equal(t, exitError, sum.ExitCode)
	require.Contains(t, errs.String(), "interrupted")
}
