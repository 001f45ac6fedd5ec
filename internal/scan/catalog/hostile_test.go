package catalog

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/scan/results"
	"github.com/trueup/trueup/internal/sys"
)

// used makes a catalogue with some results and gives its bytes.
func used(t *testing.T, path string) []byte {
	t.Helper()
	c, err := Open(path, v1)
	require.NoError(t, err)
	r := begin(t, c)
	for n := range 100 {
		p := fmt.Sprintf("/lib/%d", n)
		save(t, r, p, image(p, 32256, file("x", uint64(n))))
	}
	finish(t, r)
	require.NoError(t, c.Close())
	out := disktest.ReadFile(t, path)
	return out
}

func contents(path string) []byte {
	if st, err := os.Stat(path); err != nil || !st.Mode().IsRegular() {
		return nil // to open a pipe would wait for a writer
	}
	out, err := os.ReadFile(path)
	if err != nil {
		panic(err)
	}
	return out
}

// TestRefusedPlaces names files that cannot be made.
func TestRefusedPlaces(t *testing.T) {
	_, err := Open(filepath.Join(t.TempDir(), "none", "c"), v1)
	require.ErrorContains(t, err, "its folder: no such file or directory: make it first, or name another file")
	_, err = Open("", v1)
	require.EqualError(t, err, "catalogue : no name given")
	_, err = Open("/proc/trueup-catalogue", v1)
	require.ErrorContains(t, err,
		"cannot be opened or written: make the file and its folder readable and writable, or name another file")
}

// Views and indexes of the user, and an empty file, are fine.
func TestWhatIsAccepted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c")
	used(t, path)
	disktest.Run(t, disktest.Tool(t, "sqlite3"), path,
		"CREATE VIEW mine AS SELECT path FROM images; CREATE INDEX i ON image (verdict); CREATE TABLE "+
			"note (path, text)")
	require.Equal(t, results.Same, reuse(t, begin(t, catalogue(t, path, v1)), "/lib/7", file("x", 7)))
	empty := filepath.Join(t.TempDir(), "c")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	begin(t, catalogue(t, empty, v1))
}

// Bytes of a catalogue are exchanged: each call ends, with a result or an error of one line. What Lookup gives is what
// was saved.
func TestDamagedCatalogues(t *testing.T) {
	folder := t.TempDir()
	sound := used(t, filepath.Join(folder, "sound"))
	rounds := 300
	if testing.Short() {
		rounds = 40
	}
	refused, known := 0, 0
	for seed := range rounds {
		random := rand.New(rand.NewPCG(6, uint64(seed)))
		bad := append([]byte{}, sound...)
		for range 1 + random.IntN(200) {
			at := random.IntN(len(bad))
			if random.IntN(4) == 0 {
				at = random.IntN(4096)&^7 + 100 // the schema
			}
			bad[at] = byte(random.IntN(256))
		}
		path := filepath.Join(folder, fmt.Sprint(seed))
		require.NoError(t, os.WriteFile(path, bad, 0o600))
		hits, err := useDamaged(t, path)
		known += hits
		if err != nil {
			refused++
			require.NotContains(t, err.Error(), "\n", "seed %d", seed)
			require.Contains(t, err.Error(), "catalogue "+path+": ", "seed %d", seed)
		}
		require.NoError(t, os.Remove(path))
	}
	require.Positive(t, refused)
	require.Positive(t, known)
}

// useDamaged does what a scan does, and counts the images that were known.
func useDamaged(t *testing.T, path string) (hits int, err error) {
	t.Helper()
	c, err := Open(path, v1)
	if err != nil {
		return 0, err
	}
	defer func() { _ = c.Close() }() // it may repeat the error of a run
	r, err := c.Begin([]string{"/lib"}, noon)
	if err != nil {
		return 0, err
	}
	for n := range 100 {
		p := fmt.Sprintf("/lib/%d", n)
		want := image(p, 32256, file("x", uint64(n)))
		k, ok, err := r.Lookup(p, file("x", uint64(n)))
		if err != nil {
			return hits, err
		}
		if ok && k.Image != nil {
			hits++
			require.Equal(t, Digest(want), Digest(k.Image))
			_, err = r.Reuse(p, k)
		} else {
			_, err = r.Save(p, file("x", uint64(n)), Known{Image: want})
		}
		if err != nil {
			return hits, err
		}
	}
	for _, err := range r.Removed(func(string) bool { return false }) {
		if err != nil {
			return hits, err
		}
	}
	return hits, r.Finish(results.NewSummary())
}

// A packed row that grows without end is no row.
func TestDecodeIsBounded(t *testing.T) {
	packed, err := deflate(make([]byte, maxResult+1))
	require.NoError(t, err)
	_, ok := decode(packed)
	require.False(t, ok)
	long := image("a", 65536, file("a", 1))
	long.Findings = append(long.Findings, long.Disks[0].Findings...)
	long.Parents = []string{strings.Repeat("x", maxResult)}
	packed, err = encode(long)
	require.NoError(t, err)
	require.Nil(t, packed, "it is noted, and read again by the next run")
}

// fill saves until that fails, and prints how many were saved before the last batch.
func fill(path, _ string) error {
	c, err := Open(path, v1)
	if err != nil {
		return err
	}
	r, err := c.Begin([]string{"/lib"}, noon)
	if err != nil {
		return err
	}
	for n := range 100_000 {
		p := fmt.Sprintf("/lib/%d", n)
		if _, err := r.Save(p, file("x", uint64(n)), Known{Image: image(p, 65536, file("x", uint64(n)))}); err != nil {
			fmt.Fprintln(os.Stdout, n/maxBatch)
			return err
		}
	}
	return nil
}

// inNamespace runs fill with a file system of its own, made by a shell script that has the folder as $1, and gives what
// both printed.
func inNamespace(t *testing.T, folder, mount, after string) (out string) {
	t.Helper()
	unshare := disktest.Tool(t, "unshare")
	if err := exec.Command(unshare, "-rm", "true").Run(); err != nil {
		t.Skip("no name spaces for mounts here")
	}
	cmd := exec.Command(unshare, "-rm", "sh", "-c", mount+` && { "$0"; `+after+`; }`, os.Args[0], folder)
	cmd.Env = append(os.Environ(), asChild+"=fill", childFile+"="+filepath.Join(folder, "c"))
	raw, err := cmd.CombinedOutput()
	require.NoError(t, err, string(raw))
	return string(raw)
}

func TestNoSpaceLeft(t *testing.T) {
	disktest.Tool(t, "sqlite3")
	out := inNamespace(t, t.TempDir(), `mount -t tmpfs -o size=3m tmpfs "$1"`,
		`sqlite3 "$1/c" 'PRAGMA integrity_check; SELECT count(*) FROM images' || sqlite3 "file:$1/c?immutable=1" `+
			`'SELECT count(*) FROM images'`)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	require.Len(t, lines, 4, out)
	require.Contains(t, lines[1],
		"/c: no space left on its file system: make room and scan again; what was saved before is kept")
	require.Equal(t, "ok", lines[2])
	var batches, kept int
	_, err := fmt.Sscan(lines[0], &batches)
	require.NoError(t, err)
	_, err = fmt.Sscan(lines[3], &kept)
	require.NoError(t, err)
	require.Positive(t, batches)
	require.GreaterOrEqual(t, kept, (batches-1)*maxBatch, "all but the batch that did not fit")
}

func TestReadOnly(t *testing.T) {
	folder := t.TempDir()
	used(t, filepath.Join(folder, "c"))
	out := inNamespace(t, folder, `mount --bind "$1" "$1" && mount -o remount,ro,bind "$1"`, "true")
	require.Contains(t, out, "/c: cannot be opened or written: make the file and its folder readable and writable, or "+
		"name another file (read-only file system)")
	require.Equal(t, 1, strings.Count(out, "\n"), out)
}

// Where a file system is not known to be local, there is no log and no shared memory beside the catalogue, and a log
// that came with it is worked in.
func TestOtherFileSystems(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c")
	used(t, path)
	c, err := open(path, v1, func(string) (bool, error) { return false, nil }, patience)
	require.NoError(t, err)
	r := begin(t, c)
	require.Equal(t, results.Same, reuse(t, r, "/lib/7", file("x", 7)))
	save(t, r, "/lib/new", image("new", 65536, file("x", 7)))
	written(t, r)
	left, err := filepath.Glob(path + "-*")
	require.NoError(t, err)
	require.Empty(t, left)
	require.Equal(t, "delete\n101", query(t, c, "PRAGMA journal_mode; SELECT count(*) FROM images"),
		"others can read it")
	require.NoError(t, c.Close())

	wal, err := sys.SharesMemory("/proc")
	require.NoError(t, err)
	require.False(t, wal)
	wal, err = sys.SharesMemory("/dev/shm")
	require.NoError(t, err)
	require.True(t, wal)
	require.Equal(t, "wal", query(t, catalogue(t, path, v1), "PRAGMA journal_mode"), "and back")
}
