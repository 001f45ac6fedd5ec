package catalog

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/scan/results"
)

// ten thousand images of two partitions, as one run.
const many = 10_000

func benchFile(n int) results.File { return file(fmt.Sprintf("template-%05d.vmdk", n), uint64(n)) }

func benchPath(n int) string {
	return fmt.Sprintf("/srv/library/folder-%03d/template-%05d.vmdk", n%100, n)
}

func benchRun(b *testing.B, path string, f func(*Run)) {
	b.Helper()
	c, err := Open(path, v1)
	require.NoError(b, err)
	r, err := c.Begin([]string{"/srv"}, noon)
	require.NoError(b, err)
	f(r)
	s := results.NewSummary()
	s.Complete = true
	require.NoError(b, r.Finish(s))
	require.NoError(b, c.Close())
}

func saveMany(b *testing.B, path string, images bool) {
	b.Helper()
	benchRun(b, path, func(r *Run) {
		for n := range many {
			k := Known{Ident: []byte("vmdk sparse")}
			if images {
				k.Image = image(benchPath(n), 32256+int64(n%2)*33280, benchFile(n))
			}
			_, err := r.Save(benchPath(n), benchFile(n), k)
			require.NoError(b, err)
		}
	})
}

func size(b *testing.B, path string) float64 {
	b.Helper()
	st := disktest.Stat(b, path)
	return float64(st.Size()) / (1 << 20)
}

func BenchmarkSave(b *testing.B) {
	for name, images := range map[string]bool{"images": true, "other files": false} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				path := filepath.Join(b.TempDir(), "c")
				saveMany(b, path, images)
				b.ReportMetric(size(b, path), "MiB")
			}
		})
	}
}

func BenchmarkSaveAgain(b *testing.B) {
	path := filepath.Join(b.TempDir(), "c")
	saveMany(b, path, true)
	for b.Loop() {
		saveMany(b, path, true)
	}
	b.ReportMetric(size(b, path), "MiB")
}

func BenchmarkReuse(b *testing.B) {
	path := filepath.Join(b.TempDir(), "c")
	saveMany(b, path, true)
	for b.Loop() {
		benchRun(b, path, func(r *Run) {
			for n := range many {
				k, ok, err := r.Lookup(benchPath(n), benchFile(n))
				require.NoError(b, err)
				require.True(b, ok)
				_, err = r.Reuse(benchPath(n), k)
				require.NoError(b, err)
			}
		})
	}
}

// A whole library of 100,000 images that is gone. Memory is that of pages.
func BenchmarkRemoved(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		path := filepath.Join(b.TempDir(), "c")
		benchRun(b, path, func(r *Run) {
			for n := range 10 * many {
				i := results.NewImage(benchPath(n))
				i.Fail("io", "read at 0x0: input/output error")
				_, err := r.Save(benchPath(n), benchFile(n), Known{Image: i})
				require.NoError(b, err)
			}
		})
		b.StartTimer()
		benchRun(b, path, func(r *Run) {
			n := 0
			for _, err := range r.Removed(func(string) bool { return false }) {
				require.NoError(b, err)
				n++
			}
			require.Equal(b, 10*many, n)
		})
	}
}
