package cli

import (
	"encoding/json"
	"os"
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

// A log is added to, also where its last line was cut.
func TestLogGrows(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	require.Equal(t, 0, trueup(t, "version", "--log", path).code)
	require.Equal(t, 0, trueup(t, "version", "--log", path).code)
	text := string(disktest.ReadFile(t, path))
	require.Equal(t, 4, strings.Count(text, "\n"), text)
	require.NoError(t, os.WriteFile(path, []byte(text[:len(text)-5]), 0o600)) // the disk was full
	require.Equal(t, 0, trueup(t, "version", "--log", path).code)
	require.Contains(t, string(disktest.ReadFile(t, path)), text[:len(text)-5]+"\n{\"time\":\"")
	r := trueup(t, "inspect", "absent", "--log", "-")
	require.Contains(t, r.stderr, `"msg":"ended","command":"inspect"`)
	require.Contains(t, r.stderr, `"exit_code":1,"error":"absent: no such file or directory"`)
}

// What is no log is not written to, and nothing is done without a log that was asked for.
func TestRefusedLogs(t *testing.T) {
	source := dummyDisk(t, "", "DUMMYVOL")
	other := dummyDisk(t, "", "DUMMYVOL")
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(source, link))
	before := disktest.ReadFile(t, source)
	for path, want := range map[string]string{
		source: "is also " + source, other: "it begins with", link: "is also " + source, "DEST": "is also ",
		"SUMS": "is also --checksums=", t.TempDir(): "is a directory", os.DevNull: "it is not a regular file",
		"/absent/log": "no such file",
	} {
		dest, sums := filepath.Join(t.TempDir(), "dest.img"), filepath.Join(t.TempDir(), "sums")
		path = strings.NewReplacer("DEST", dest, "SUMS", sums).Replace(path)
		r := trueup(t, "convert", source, dest, "--checksums", sums, "--log", path)
		require.Equal(t, 64, r.code, r.stderr)
		require.Contains(t, r.stderr, want)
		require.NoFileExists(t, dest)
		require.NoFileExists(t, sums)
	}
	require.Equal(t, before, disktest.ReadFile(t, source))
}
