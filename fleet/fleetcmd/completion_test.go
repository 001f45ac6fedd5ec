package fleetcmd_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/fleet/fleetcmd"
)

// The shell completes files and folders where they are valid, the states of jobs, and nothing where only a server or
// the user has the values. The numbers are cobra's: 0 with files, 4 no files, 16 folders only.
func TestCompletion(t *testing.T) {
	for line, want := range map[string]string{
		"status ": ":4", "cancel ": ":4", "drain ": ":4", "report ": ":4", "version ": ":4", "serve ": ":4",
		"submit scan ": ":4", "submit align ": ":4", "submit exchange ": ":4", "worker --jobs ": ":4",
		"--nats ": ":4", "status --nats ": ":4", "status --datastore ": ":4", "submit scan --boundary ": ":4",
		"--nkey ": ":0", "worker --nkey ": ":0", "submit align --worklist ": ":0", "serve --tls-cert ": ":0",
		"worker --trueup ": ":0", "serve --store ": ":16", "worker --folder ": ":16",
		"worker --datastore ds": ":4", "worker --datastore ds7=/v": ":16", "submit align --datastore ds7=": ":16",
		"status --state ": "running queued done refused cancelled dead :4",
		"submit a":        "align\tQueue aligned copies of images, written beside them :4",
	} {
		var out, errOut bytes.Buffer
		args := append([]string{"__complete"}, strings.Split(line, " ")...)
		require.Zero(t, fleetcmd.Run(t.Context(), "v1", args, strings.NewReader(""), &out, &errOut), line)
		require.Equal(t, want, strings.Join(strings.Split(strings.TrimSpace(out.String()), "\n"), " "), line)
	}
}
