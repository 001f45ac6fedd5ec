package sandbox_test

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/scan/sandbox"
)

// BenchmarkCall is what a request costs that asks for nothing.
func BenchmarkCall(b *testing.B) {
	for _, level := range []sandbox.Level{sandbox.Process, sandbox.Sandbox} {
		b.Run(string(level), func(b *testing.B) {
			w, err := sandbox.Start(b.Context(), sandbox.Options{Args: []string{asWorker}, Level: level})
			require.NoError(b, err)
			request := []byte("echo x")
			for b.Loop() {
				if _, err := w.Call(b.Context(), request); err != nil {
					b.Fatal(err)
				}
			}
			require.NoError(b, w.Close())
		})
	}
}

// BenchmarkStart is what a worker costs, with few roots and with many.
func BenchmarkStart(b *testing.B) {
	dir := b.TempDir()
	var roots []string
	for i := range 10_000 {
		roots = append(roots, filepath.Join(dir, strconv.Itoa(i)))
	}
	fill(b, roots)
	for name, o := range map[string]sandbox.Options{
		"process":               {Level: sandbox.Process},
		"sandbox, one root":     {Level: sandbox.Sandbox, Roots: []string{dir}},
		"sandbox, 1000 roots":   {Level: sandbox.Sandbox, Roots: roots[:1000]},
		"sandbox, 10,000 roots": {Level: sandbox.Sandbox, Roots: roots},
	} {
		b.Run(name, func(b *testing.B) {
			o.Args = []string{asWorker}
			for b.Loop() {
				w, err := sandbox.Start(b.Context(), o)
				require.NoError(b, err)
				require.NoError(b, w.Close())
			}
		})
	}
}

// BenchmarkConfine is what a command costs that confines itself, in a process of its own each time: half of them take
// no longer.
func BenchmarkConfine(b *testing.B) {
	dir := b.TempDir()
	var took []time.Duration
	for b.Loop() {
		took = append(took, inConfinement(b, "", sandbox.Access{Read: []string{dir}, Write: []string{dir}}).Took)
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "µs/median")
	b.ReportMetric(float64(took[0].Microseconds()), "µs/least")
}

// fill makes files of one byte.
func fill(b *testing.B, paths []string) {
	b.Helper()
	for _, path := range paths {
		require.NoError(b, os.WriteFile(path, []byte("x"), 0o600))
	}
}
