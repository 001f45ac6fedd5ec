package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// noise returns size random-looking bytes that depend only on the seed.
func noise(seed string, size int) []byte {
	data := make([]byte, size)
	_, _ = rand.NewChaCha8(sha256.Sum256([]byte(seed))).Read(data) // never returns an error
	return data
}

func readAt(t testing.TB, path string, off, size int64) []byte {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	data := make([]byte, size)
	_, err = f.ReadAt(data, off)
	require.NoError(t, err)
	return data
}

// replaceInFile replaces the only occurrence of old. It drops the zero padding of qemu-img's descriptors, which a text
// file must not have.
func replaceInFile(t testing.TB, path, old, new string) {
	t.Helper()
	data := disktest.ReadFile(t, path)
	text := strings.TrimRight(string(data), "\x00")
	require.Equal(t, 1, strings.Count(text, old), "%q in\n%s", old, text)
	require.NoError(t, os.WriteFile(path, []byte(strings.Replace(text, old, new, 1)), 0o644))
}

func sha256Of(t testing.TB, path string) string {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	sum := sha256.New()
	_, err = io.Copy(sum, f)
	require.NoError(t, err)
	return hex.EncodeToString(sum.Sum(nil))
}

// hashFolder returns name, time stamp and SHA-256 of every file of a folder. If two results are equal, nothing was
// written there.
func hashFolder(t testing.TB, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	state := map[string]string{}
	for _, entry := range entries {
		info, err := entry.Info()
		require.NoError(t, err)
		state[entry.Name()] = fmt.Sprintf("%s %s", info.ModTime(), sha256Of(t, filepath.Join(dir, entry.Name())))
	}
	return state
}
