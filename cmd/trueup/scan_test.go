package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// manyEnv is the number of files for TestScanOfManyFiles.
const manyEnv = "TRUEUP_MANY_FILES"

// TestScanOfManyFiles limits the memory of a scan independently of the number of files that are not images.
func TestScanOfManyFiles(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("makes many files")
	}
	n := 20_000
	if disktest.Exhaustive {
		n = 100_000
	}
	if text := os.Getenv(manyEnv); text != "" {
		var err error
		n, err = strconv.Atoi(text)
		require.NoError(t, err)
	}
	dir := t.TempDir()
	for i := range n {
		f, err := os.Create(filepath.Join(dir, fmt.Sprintf("a-file-that-is-no-image-%07d.txt", i)))
		require.NoError(t, err)
		if i%10 == 0 {
			_, err = f.WriteString("text")
		}
		require.NoError(t, errors.Join(err, f.Close()))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "disk"), offDisk(), 0o644))
	m := launched(t, [][]string{{"scan", "-o", "json", dir}})[0]
	s := readRows(t, string(m.Stdout))
	require.Len(t, s.rows, 1)
	require.Equal(t, n, s.sum.Skipped)
	t.Logf("%d files: %d MiB, %v", n, m.RSS>>20, m.CPU)
	require.LessOrEqual(t, m.RSS, int64(maxRSS))
	require.Less(t, m.CPU, time.Duration(n)*time.Millisecond/2)
}

func TestScanFilesFromManyNames(t *testing.T) {
	t.Parallel()
	dir := manyDisks(t, 200)
	var list strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&list, "%s/folder-%02d/disk-%03d.raw\n", dir, i/10, i)
	}
	file := filepath.Join(t.TempDir(), "list")
	require.NoError(t, os.WriteFile(file, []byte(list.String()), 0o644))
	// Other tests check lines like these, and their schema takes long.
	m := launched(t, [][]string{{"scan", "-o", "json", "--files-from", file}})[0]
	require.Less(t, m.CPU, 20*time.Second, "a second, when each name is looked at once")
	require.Equal(t, 1, m.Code)
	r := result{stdout: string(m.Stdout)}
	require.Equal(t, 10_001, strings.Count(r.stdout, "\n"))
	require.Equal(t, 200, strings.Count(r.stdout, `"state":"judged"`))
	require.Equal(t, 9800, strings.Count(r.stdout, `"message":"no such file or directory; check the path"`))
}

// TestReportOfManyRows has more rows than a report can hold in memory.
func TestReportOfManyRows(t *testing.T) {
	t.Parallel()
	s := scan(t, manyDisks(t, 1))
	row, sum, _ := strings.Cut(strings.TrimSuffix(s.stdout, "\n"), "\n")
	const n = 8000
	for _, of := range []string{"images", "misaligned"} {
		sum = strings.Replace(sum, `"`+of+`":1,`, fmt.Sprintf(`"%s":%d,`, of, n), 1)
	}
	var text strings.Builder
	for k := range n {
		text.WriteString(strings.ReplaceAll(row, "disk-000", fmt.Sprintf("disk-%d", k)) + "\n")
	}
	size := text.Len()
	lines := hostFile(t, text.String()+sum+"\n")
	m := launched(t, [][]string{{"report", "-o", "csv", "host=a", lines}})[0]
	require.Equal(t, 3, m.Code, "%s", m.Stderr)
	require.Equal(t, n+1, bytes.Count(m.Stdout, []byte("\n")))
	require.Less(t, m.RSS, int64(64<<20), "of %d bytes of rows", size)
}

// TestScanOfADevice compares a device that shows a file with the file.
func TestScanOfADevice(t *testing.T) {
	t.Parallel()
	device := disktest.LoopDevice(t, smallDisk(t, filepath.Join(t.TempDir(), "disk.img"), trackSectors))
	require.Equal(t, "judged misaligned", wordsOf(scan(t, device).rows[device]))
}

// TestScanOfAFileThatGrows requires that an image that is written during the scan gets no verdict.
func TestScanOfAFileThatGrows(t *testing.T) {
	t.Parallel()
	path := smallDisk(t, filepath.Join(t.TempDir(), "disk.img"), trackSectors)
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	defer f.Close()
	stop, stopped := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				stopped <- nil
				return
			default:
			}
			if _, err := f.Write(make([]byte, sectorSize)); err != nil {
				stopped <- err
				return
			}
			time.Sleep(20 * time.Microsecond) // or it would fill the disk
		}
	}()
	disktest.WaitFor(t, "a scan that has seen the growth", func() bool {
		return wordsOf(scan(t, filepath.Dir(path)).rows[path]) == "failed changed"
	})
	close(stop)
	require.NoError(t, <-stopped)
	require.Equal(t, "judged misaligned", wordsOf(scan(t, path).rows[path]))
}

// TestAction runs the script of the GitHub action like a workflow.
func TestAction(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	dir, temp := manyDisks(t, 2), t.TempDir()
	run := func(failOn string) (outputs map[string]string) {
		kept := filepath.Join(t.TempDir(), "output")
		cmd := exec.Command("bash", disktest.DataFile(t, filepath.Join(root, "scripts/action.sh")))
		cmd.Env = append(os.Environ(), "ACTION="+root, "PATHS="+dir+"\n", "FAIL_ON="+failOn, "RUNNER_TEMP="+temp,
			"GITHUB_OUTPUT="+kept)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		outputs = map[string]string{}
		for line := range strings.Lines(string(disktest.ReadFile(t, kept))) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			outputs[key] = value
		}
		return outputs
	}
	for failOn, want := range map[string][2]string{"": {"3", "2"}, "never": {"0", "0"}} {
		out := run(failOn)
		require.Equal(t, want[0], out["exit-code"])
		require.Equal(t, []string{"junit.xml", "report.html", "report.txt", "results.ndjson"},
			folderNames(t, out["folder"]))
		require.Contains(t, string(disktest.ReadFile(t, filepath.Join(out["folder"], "junit.xml"))),
			`tests="2" failures="`+want[1]+`"`)
	}
	require.Equal(t, map[string]string{"exit-code": "64"}, run("nonsense"))
}
