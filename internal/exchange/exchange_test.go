package exchange_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/exchange"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/ondisk"
)

// A disk is exchanged for its copy; an undo restores the same bytes and names, and a finish does not touch the copy.
func TestExchange(t *testing.T) {
	t.Parallel()
	disktest.Tool(t, "qemu-img")
	for name, k := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, before := k.fresh(t)
			path := filepath.Join(dir, k.main)
			was := disktest.Stat(t, path)
			r := k.published(t, dir)
			require.Equal(t, filepath.Join(dir, exchange.OriginalOf(k.main, k.main)), r.Original)
			k.requireExchanged(t, dir)
			require.NoError(t, k.command(dir, "undo", false))
			require.Equal(t, before, sums(t, dir))
			if is, err := os.Stat(path); len(k.old) == 1 {
				require.NoError(t, err)
				require.True(t, os.SameFile(was, is), "it is the very file")
			}

			dir, _ = k.fresh(t)
			k.published(t, dir)
			done, err := k.goOn(dir, "finish", exchange.Options{})
			require.NoError(t, err)
			require.Len(t, done.Removed, len(k.old))
			require.ElementsMatch(t, k.new, disktest.Names(t, dir))
			require.Equal(t, "new", shows(t, filepath.Join(dir, k.main)))
		})
	}
}

// The journal records that the original is being removed, so that no undo follows.
func TestFinishIsNoted(t *testing.T) {
	t.Parallel()
	k := kinds["raw"]
	dir, _ := k.fresh(t)
	_, err := k.publish(dir)
	require.NoError(t, err)
	h, err := journal.Hold(filepath.Join(dir, k.main), "")
	require.NoError(t, err)
	defer h.Close()
	_, err = exchange.Finish(t.Context(), h, exchange.Options{})
	require.NoError(t, err)
	require.Equal(t, []byte{byte(journal.Finishing)}, h.Record())
}

// Later writes of the guest are only lost by an undo with --force, and do not affect a finish.
func TestGuestWroteSince(t *testing.T) {
	t.Parallel()
	disktest.Tool(t, "qemu-img")
	for _, name := range []string{"raw", "flat"} {
		k := kinds[name]
		exchanged := func() (dir, path string, before map[string]string) {
			dir, before = k.fresh(t)
			k.published(t, dir)
			path = filepath.Join(dir, k.new[len(k.new)-1])
			disktest.WriteAt(t, path, 1, []byte("mm"))
			require.NoError(t, os.Chtimes(path, time.Unix(1e9, 0), time.Unix(1e9, 0)))
			return dir, filepath.Join(dir, k.main), before
		}
		dir, path, before := exchanged()
		err := k.command(dir, "undo", false)
		require.ErrorContains(t, err, "was written after the exchange")
		require.Equal(t, "new", shows(t, path))
		require.NoError(t, k.command(dir, "undo", true))
		require.Equal(t, before, sums(t, dir))

		dir, path, _ = exchanged()
		require.NoError(t, k.command(dir, "finish", false))
		require.Equal(t, "new", shows(t, path))
	}
}

// The commands refuse work that would break a snapshot or a running machine, or lose the only disk.
func TestCommandsRefuse(t *testing.T) {
	t.Parallel()
	disktest.Tool(t, "qemu-img")
	k := kinds["flat"]
	for name, c := range map[string]struct {
		do      func(dir string) error
		command string
		says    string
	}{
		"undo of a running machine": {func(dir string) error {
			return os.Mkdir(filepath.Join(dir, "vm.vmdk.lck"), 0o700)
		}, "undo", "has the disk open"},
		"finish without the disk": {func(dir string) error {
			return os.Remove(filepath.Join(dir, "vm-flat.vmdk"))
		}, "finish", "the original is the only copy"},
		"finish of a disk that uses the original": {func(dir string) error {
			b, err := os.ReadFile(filepath.Join(dir, "vm.orig.vmdk"))
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, "vm.vmdk"), b, 0o600)
			}
			return err
		}, "finish", "a file of the original"},
		"finish of a changed original": {func(dir string) error {
			return os.Chtimes(filepath.Join(dir, "vm.orig-flat.vmdk"), time.Unix(1e9, 0), time.Unix(1e9, 0))
		}, "finish", "was written after the exchange"},
		"undo without the original": {func(dir string) error {
			return os.Remove(filepath.Join(dir, "vm.orig-flat.vmdk"))
		}, "undo", "find it by its inode"},
	} {
		dir, _ := k.fresh(t)
		k.published(t, dir)
		require.NoError(t, c.do(dir), name)
		before := disktest.Names(t, dir)
		err := k.command(dir, c.command, false)
		require.ErrorContains(t, err, c.says, name)
		require.Equal(t, before, disktest.Names(t, dir), name)
	}
}

// A source that cannot be exchanged is refused before any name changes.
func TestSourcesThatAreRefused(t *testing.T) {
	t.Parallel()
	k, qemu := kinds["flat"], disktest.Tool(t, "qemu-img")
	external := func(dir string) error {
		c := exec.Command(qemu, "create", "-q", "-f", "qcow2", "-o", "data_file=d.raw,data_file_raw=on", "q.qcow2",
			"4M")
		c.Dir = dir
		return c.Run()
	}
	for name, c := range map[string]struct {
		do   func(dir string) error
		open string
		says string
	}{
		"a hard link": {func(dir string) error {
			return os.Link(filepath.Join(dir, "vm-flat.vmdk"),
				filepath.Join(dir, "x"))
		}, "", "hard links"},
		"a link": {
			func(dir string) error { return os.Symlink("vm.vmdk", filepath.Join(dir, "l.vmdk")) },
			"l.vmdk", "is a link to",
		},
		"a second disk": {second("other.vmdk"), "", `"other.vmdk" also refers to its files`},
		"an old backup": {func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "vm.orig-flat.vmdk"), nil,
				0o600)
		}, "", "exists, and the original would get this name"},
		"data in another file":  {external, "q.qcow2", `"d.raw", and trueup cannot write another file name`},
		"an external data file": {external, "d.raw", `"q.qcow2" also refers to its files`},
		"an extent":             {func(string) error { return nil }, "vm-flat.vmdk", ` also refers to its files`},
		"a name without room for that of the original": {func(dir string) error {
			return os.Rename(filepath.Join(dir, k.main), filepath.Join(dir, longName))
		}, longName, "would have 256 bytes, at most 255 are allowed; rename the disk"},
		"work of others": {func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "vm.vmdk.trueup"), filler,
				0o600)
		}, "", "cannot be read as one"},
	} {
		dir, _ := k.fresh(t)
		require.NoError(t, c.do(dir), name)
		before := sums(t, dir)
		if c.open == "" {
			c.open = k.main
		}
		img := imagetest.Open(t, filepath.Join(dir, c.open))
		_, err := exchange.New(img)
		require.ErrorContains(t, err, c.says, name)
		require.Equal(t, before, sums(t, dir), name)
	}
}

// longName is one byte too long for the names of an exchange: .NAME.orig.vmdk.exchange.
var longName = strings.Repeat("n", 236) + ".vmdk"

var filler = []byte("a text of the user's, which is no journal")

// second copies the descriptor: both refer to the same extent.
func second(name string) func(dir string) error {
	return func(dir string) error {
		b, err := os.ReadFile(filepath.Join(dir, "vm.vmdk"))
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, name), b, 0o600)
	}
}

// The name of an original keeps the rest of the name after the stem of the disk.
func TestOriginalOf(t *testing.T) {
	t.Parallel()
	for _, c := range [][3]string{
		{"vm.vmdk", "vm.vmdk", "vm.orig.vmdk"},
		{"vm.vmdk", "vm-flat.vmdk", "vm.orig-flat.vmdk"},
		{"vm.vmdk", "vm-ctk.vmdk", "vm.orig-ctk.vmdk"},
		{"vm.vmdk", "data.bin", "data.orig.bin"},
		{"disk", "disk", "disk.orig"},
		{"a.b.img", "a.b.img", "a.b.orig.img"},
	} {
		require.Equal(t, c[2], exchange.OriginalOf(c[0], c[1]))
		if c[0] == c[1] {
			require.Equal(t, c[0], exchange.DiskOf(c[2]))
		}
	}
}

// FuzzJournalOfAnExchange runs any plan: names outside the folder stay.
func FuzzJournalOfAnExchange(f *testing.F) {
	f.Add([]byte(`{"Old":[{"Name":"dm0=","Other":"dm8="}],"New":[{"Name":"dm0=","Other":"dnA="}]}`), uint8(0))
	f.Add([]byte(`{"Old":[{"Name":"dm0=","Other":"Li4vdm8="}],"New":[{"Name":"dm0=","Other":"dnA="}]}`), uint8(1))
	f.Fuzz(func(t *testing.T, plan []byte, command uint8) {
		above := t.TempDir()
		dir := filepath.Join(above, "in")
		require.NoError(t, os.Mkdir(dir, 0o700))
		imagetest.Write(t, above, "vo", []byte("outside"))
		path := imagetest.Write(t, dir, "vm", make([]byte, 512))
		img, err := image.Open(path, image.Options{})
		require.NoError(t, err)
		defer img.Close()
		h, err := journal.Begin(img.Dir, "vm", path, journal.Exchange, plan, 0)
		require.NoError(t, err)
		_, err = exchange.OriginalBeside(img.Dir, "vm.orig")
		require.NotErrorIs(t, err, ondisk.ErrNoMatch)
		_, err = commands[[]string{"undo", "resume", "finish"}[command%3]](t.Context(), h, exchange.Options{})
		if err != nil {
			require.NotEqual(t, ondisk.ErrNoMatch, err)
		}
		require.NoError(t, h.Close())
		require.FileExists(t, filepath.Join(above, "vo"))
	})
}
