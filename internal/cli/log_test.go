package cli

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// logged is a line of a log.
type logged struct {
	Msg, Level, Command, Error string
	Args                       []string
	Exit                       int             `json:"exit_code"`
	Result                     json.RawMessage `json:"result"`
}

// A log has a line for each beginning and for each end, with the result that the command printed.
func TestLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	source := dummyDisk(t, "", "DUMMYVOL")
	dest := filepath.Join(t.TempDir(), "dest.img")
	logs := []string{"--log", path}
	runs := [][]string{
		{"inspect", source},
		{"align", source, dest, "--allow-unbootable"},
		{"align", source, dest},
		{"inspect", "absent"},
		{"scan", source, "--isolation", "none"},
	}
	var ends []ended
	for _, run := range runs {
		ends = append(ends, trueup(t, append(append(run, "--json"), logs...)...))
	}
	lines := strings.SplitAfter(strings.TrimSuffix(string(disktest.ReadFile(t, path)), "\n"), "\n")
	require.Len(t, lines, 2*len(runs))
	for i, run := range runs {
		var begins, end logged
		require.NoError(t, json.Unmarshal([]byte(lines[2*i]), &begins))
		require.NoError(t, json.Unmarshal([]byte(lines[2*i+1]), &end))
		require.Equal(t, []string{"begins", "ended", run[0], run[0]}, []string{
			begins.Msg, end.Msg, begins.Command,
			end.Command,
		})
		require.Contains(t, begins.Args, run[1])
		require.Equal(t, ends[i].code, end.Exit, ends[i].stderr)
		printed := strings.TrimSpace(ends[i].stdout)
		if run[0] == "scan" {
			printed = printed[strings.LastIndex(printed, "\n")+1:] // the summary
		}
		if end.Error != "" {
			require.Equal(t, "ERROR", end.Level)
			require.Equal(t, "trueup: "+end.Error+"\n", ends[i].stderr)
			require.Contains(t, printed, `"error"`)
			continue
		}
		require.JSONEq(t, printed, string(end.Result))
	}
}
