package ova_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/diskcopy"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/image/ova"
	"github.com/trueup/trueup/internal/image/store"
)

// atPhase does something when a phase of a copy begins.
type atPhase func(phase string)

func (f atPhase) Begin(phase string, _ int64) { f(phase) }
func (atPhase) Add(int64)                     {}

// A package is opened anew whenever it is read back. One whose file is gone by then is an error, at any step.
func TestPackagesThatAreGone(t *testing.T) {
	disktest.OnUnix(t, "names of open files")
	t.Parallel()
	own, disk, notes := text("vm.ovf", envelope(`ovf:href="disk.vmdk"`)), sparse("disk.vmdk"), text("notes.txt", "mine")
	manifest := text("vm.mf", sum("SHA256", disk)+sum("SHA256", notes)+sum("SHA256", own))
	src := openedPackage(t, archived(t, own, disk, manifest, notes))
	fine := func() error { return nil }
	steps := 0
	for ; ; steps++ {
		dir := t.TempDir()
		left := steps
		_, err := rewritten(t, src, filepath.Join(dir, "out.ova"), atPhase(func(string) {
			if left--; left == -1 {
				_ = os.Remove(filepath.Join(dir, ".out.ova.partial")) // the copy must notice
			}
		}), fine)
		if left >= 0 {
			require.NoError(t, err)
			break
		}
		require.ErrorIs(t, err, fs.ErrNotExist, "step %d", steps)
	}
	require.Greater(t, steps, 2, "a copy and digests")
	dir := t.TempDir()
	_, err := rewritten(t, src, filepath.Join(dir, "out.ova"), diskcopy.Unwatched{}, func() error {
		return os.Remove(filepath.Join(dir, ".out.ova.partial"))
	})
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// rewritten writes a package in which one disk is copied by a job.
func rewritten(
	t *testing.T, src *ova.Package, path string, p diskcopy.Progress, job func() error,
) (*ova.Output, error) {
	t.Helper()
	img := opened(t, src.Path)
	rewrite := map[string]ova.Rewrite{"disk.vmdk": {Source: img, Size: img.Disk.Size()}}
	out, err := ova.Create(path, src, ova.CreateOptions{Rewrite: rewrite})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, out.Discard()) })
	return out, out.Write(t.Context(), p, func(_ string, create ova.CreateDisk) error {
		if err := job(); err != nil {
			return err
		}
		o, err := create(store.CreateOptions{})
		if err != nil {
			return err
		}
		if _, err = diskcopy.Run(t.Context(), img.Disk, o, diskcopy.Options{Jobs: 1}); err != nil {
			return err
		}
		return o.Finish()
	})
}

// What is on the storage is read back, and held against what was written.
func TestPackagesAreReadBack(t *testing.T) {
	disktest.OnUnix(t, "what others do to a file that is written")
	t.Parallel()
	own, disk, notes := text("vm.ovf", envelope(`ovf:href="disk.vmdk"`)), sparse("disk.vmdk"), text("notes.txt", "mine")
	votes, signature := text("votes.txt", "ours"), text("vm.cert", "signed")
	manifest := text("vm.mf", sum("SHA256", disk)+sum("SHA256", votes)+sum("SHA256", notes)+sum("SHA256", own))
	fine := func() error { return nil }
	header := func(f forge.Bytes, name string) forge.Bytes {
		for at := 0; ; at += 512 {
			if strings.HasPrefix(string(f[at:]), name+"\x00") {
				return f[at:]
			}
		}
	}
	resum := func(h forge.Bytes) {
		h.Text(148, "        ")
		n := 0
		for _, b := range h[:512] {
			n += int(b)
		}
		h.Text(148, fmt.Sprintf("%06o\x00 ", n))
	}
	for name, c := range map[string]struct {
		phase string
		spoil func(f forge.Bytes)
		says  string
	}{
		"nothing": {"", nil, ""},
		"a copied file": {
			diskcopy.PhaseProve, func(f forge.Bytes) { header(f, "notes.txt").Text(512, "x") },
			`"notes.txt" differs from the data written`,
		},
		"the ovf": {diskcopy.PhaseDigest, func(f forge.Bytes) {
			header(f, "vm.ovf").Text(512+int64(strings.Index(string(own.Data), "d1")), "dX")
		}, "differs in its texts"},
		"a header": {
			diskcopy.PhaseDigest, func(f forge.Bytes) { header(f, "notes.txt").Text(148, "x") },
			"read back out.ova",
		},
		"a name": {diskcopy.PhaseDigest, func(f forge.Bytes) {
			h := header(f, "notes.txt")
			h.Text(0, "totes")
			resum(h)
		}, "differs in its members"},
		"a size": {diskcopy.PhaseDigest, func(f forge.Bytes) {
			h := header(f, "notes.txt")
			h.Text(124, "00000000005")
			resum(h)
		}, "differs in its members"},
		"others' places": {diskcopy.PhaseDigest, func(f forge.Bytes) {
			a, b := header(f, "notes.txt"), header(f, "votes.txt")
			a.Text(0, "votes")
			b.Text(0, "notes")
			resum(a)
			resum(b)
		}, "differs in its members"},
		"one more": {diskcopy.PhaseDigest, func(f forge.Bytes) {
			end := f[len(f)-1024:]
			copy(end, header(f, "notes.txt")[:512])
			end.Text(0, "votez.txt")
			end.Text(124, "00000000000")
			resum(end)
		}, "differs in its members"},
		"the end too soon": {
			diskcopy.PhaseDigest, func(f forge.Bytes) { clear(header(f, "notes.txt")[:512]) },
			"differs in its members",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			src := openedPackage(t, archived(t, own, disk, manifest, signature, votes, notes))
			dir := t.TempDir()
			partial := filepath.Join(dir, ".out.ova.partial")
			spoiled := false
			p := atPhase(func(phase string) {
				if phase != c.phase || spoiled {
					return
				}
				spoiled = true
				b := disktest.ReadFile(t, partial)
				c.spoil(b)
				f, err := os.OpenFile(partial, os.O_WRONLY, 0) // a file that is cut and written again is another damage
				require.NoError(t, err)
				_, err = f.WriteAt(b, 0)
				require.NoError(t, errors.Join(err, f.Close()))
			})
			out, err := rewritten(t, src, filepath.Join(dir, "out.ova"), p, fine)
			if c.says != "" {
				require.ErrorIs(t, err, ova.ErrDigest)
				require.ErrorContains(t, err, c.says)
				return
			}
			require.NoError(t, err)
			require.NoError(t, out.Publish())
			require.Equal(t, []string{"vm.cert"}, out.Dropped)
			require.Equal(t, "certificate-dropped", out.Issues()[0].Code)
			again := openedPackage(t, filepath.Join(dir, "out.ova"))
			require.NoError(t, again.Check(t.Context(), diskcopy.Unwatched{}))
			st := disktest.Stat(t, again.Path)
			last := again.Members[len(again.Members)-1]
			require.Equal(t, "notes.txt", last.Name)
			require.Zero(t, st.Size()%512)
			b := disktest.ReadFile(t, again.Path)
			require.Equal(t, make([]byte, 1024), b[len(b)-1024:], "two blocks of zeros end an archive")
		})
	}
	src := openedPackage(t, archived(t, own, disk, manifest, notes))
	failed := errors.New("the job failed")
	out := filepath.Join(t.TempDir(), "out.ova")
	_, err := rewritten(t, src, out, diskcopy.Unwatched{}, func() error { return failed })
	require.ErrorIs(t, err, failed)
}
