package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
)

// TestScanOfUnreadableFolders runs as a user who has no rights: root can read everything.
func TestScanOfUnreadableFolders(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("only root can become another user")
	}
	s := &shelf{t, openFolder(t)}
	off := offDisk()
	for _, name := range []string{
		"fine/a.img", "locked/a.img", "listed/a.img", "listed/b.img", "entered/a.img",
		"file.img", "notes", "fine/.hidden/a.img",
	} {
		s.put(name, off)
	}
	for name, mode := range map[string]os.FileMode{
		"locked": 0o700, "listed": 0o744, "entered": 0o711,
		"file.img": 0o600, "notes": 0o600,
	} {
		require.NoError(t, os.Chmod(s.path(name), mode))
	}
	cmd := exec.Command(disktest.Tool(t, "setpriv"), "--reuid=65534", "--regid=65534", "--clear-groups", programFor(t),
		"scan", "-o", "json", ".")
	cmd.Dir = s.dir
	out, err := cmd.Output()
	exit := &exec.ExitError{}
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 1, exit.ExitCode(), "%s", exit.Stderr)
	rows, sum := linesOfScan(t, strings.NewReader(string(out)))
	require.Equal(t, map[string]string{"fine/a.img": isOff, "fine/.hidden/a.img": isOff, "file.img": "failed io"},
		rowsOf(t, rows))
	var places []string
	for _, u := range sum.Unreadable {
		require.Equal(t, "io", u.Error.Code)
		places = append(places, u.Path)
	}
	require.ElementsMatch(t, []string{"locked", "listed", "entered", "notes"}, places)
	require.True(t, sum.Complete)
}

// openFolder is a folder of the test that every user can enter.
func openFolder(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		require.NoError(t, os.Chmod(d, 0o755))
	}
	return dir
}

// programFor is a copy of the program that every user can run.
func programFor(t testing.TB) string {
	t.Helper()
	from, err := os.Open(builtPath)
	require.NoError(t, err)
	defer from.Close()
	path := filepath.Join(openFolder(t), "trueup")
	to, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o755)
	require.NoError(t, err)
	_, err = io.Copy(to, from)
	require.NoError(t, errors.Join(err, to.Close()))
	return path
}

// manyEnv makes TestScanOfManyFiles look at so many files.
const manyEnv = "TRUEUP_MANY_FILES"

// TestScanOfManyFiles holds the memory of a scan to a bound that does not grow with the files of a folder that are no
// images.
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
	rows, sum := linesOfScan(t, strings.NewReader(string(m.Stdout)))
	require.Len(t, rows, 1)
	require.Equal(t, n, sum.Skipped)
	t.Logf("%d files: %d MiB, %v", n, m.RSS>>20, m.CPU)
	require.LessOrEqual(t, m.RSS, int64(maxRSS))
	require.Less(t, m.CPU, time.Duration(n)*time.Millisecond/2)
}

// TestScanOfADevice compares a device that shows a file with the file.
func TestScanOfADevice(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	s.put("disk.img", offDisk())
	device := disktest.LoopDevice(t, s.path("disk.img"))
	s.requireRows(map[string]string{device: isOff}, device)
}

// TestScanOfAPipe requires an answer where a reader would wait for a writer.
func TestScanOfAPipe(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	disktest.Run(t, "mkfifo", s.path("pipe"))
	s.requireRows(map[string]string{"pipe": "failed unsupported"}, "pipe")
	s.requireRows(map[string]string{"/dev/null": "failed unsupported"}, "/dev/null")
}

// TestScanOfFilesByTheShell has descriptors and extents named one beside the other, as scan *.vmdk does.
func TestScanOfFilesByTheShell(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	off := offDisk()
	s.put("a.vmdk", flatText("monolithicFlat", "a-flat.vmdk"))
	s.put("a-flat.vmdk", off)
	s.put("b.vmdk", vmdkforge.NewSparse(off).Bytes)
	s.put("lone-flat.vmdk", off)
	s.put("c.img", off)
	s.requireRows(map[string]string{"a.vmdk": isOff, "b.vmdk": isOff, "lone-flat.vmdk": "orphan"}, "a-flat.vmdk",
		"a.vmdk", "b.vmdk", "lone-flat.vmdk")
	s.requireRows(map[string]string{"a-flat.vmdk": isOff}, "a-flat.vmdk")
	sameAsInspect(t, s.dir, "a-flat.vmdk")
	s.requireRows(map[string]string{"c.img": isOff, "./b.vmdk": isOff}, "c.img", "./b.vmdk")
}

// TestScanOfAFileThatGrows requires that what was written meanwhile is no verdict.
func TestScanOfAFileThatGrows(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	s.put("disk.img", offDisk())
	f, err := os.OpenFile(s.path("disk.img"), os.O_APPEND|os.O_WRONLY, 0)
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
		rows, _ := scanJSON(t, s.dir, ".")
		require.Len(t, rows, 1)
		return rows[0].String() == "failed changed"
	})
	close(stop)
	require.NoError(t, <-stopped)
	s.requireRows(map[string]string{"disk.img": isOff}, ".")
}

// TestShards requires that the rows of all shards are those of one scan, each once. What the file system has allocated
// for a file is its own affair: it may not have written it yet.
func TestShards(t *testing.T) {
	t.Parallel()
	k := newEveryKind(t)
	rows := func(s scanResult) map[string]string {
		for _, i := range s.rows {
			i.Stored = 0
			for n := range i.Files {
				i.Files[n].Allocated = 0
			}
		}
		return s.same(t)
	}
	whole := scan(t, k.dir)
	require.Empty(t, whole.sum.Shard)
	union := map[string]string{}
	const n = 4
	for shard := range n {
		s := scan(t, "--shard", fmt.Sprintf("%d/%d", shard+1, n), k.dir)
		require.Equal(t, fmt.Sprintf("%d/%d", shard+1, n), s.sum.Shard)
		require.Equal(t, whole.sum.Images, s.sum.Images+s.sum.Others)
		for path, row := range rows(s) {
			require.NotContains(t, union, path, "it is in two shards")
			union[path] = row
		}
	}
	require.Equal(t, rows(whole), union)
	r := trueup(t, "scan", "--shard", "2/4", k.dir)
	require.Contains(t, r.stdout, "Shard 2/4: the other shards have ")
}
