package main

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// corpusFile returns the path of an image of the corpus in a folder that can be written: with all files of its own
// folder when whole is set, because a descriptor needs its extents.
func corpusFile(t *testing.T, name string, whole bool) string {
	t.Helper()
	if whole {
		return filepath.Join(disktest.CorpusSet(t, filepath.Dir(name)), filepath.Base(name))
	}
	return disktest.Corpus(t, name)
}

// TestCorpusHugeDirectory gives trueup a VMDK header that asks for a huge grain directory; measure holds it to the
// budget of hostile input.
func TestCorpusHugeDirectory(t *testing.T) {
	t.Parallel()
	path := disktest.Corpus(t, "cdi/invalid-qcow-large-memory.img")
	answer := trueupJSON[jsonError](t, 1, "inspect", path)
	require.Contains(t, []string{"format", "limit"}, answer.Error.Code)

	require.Equal(t, 1, measure(t, []string{"inspect", path})[0].code)
}
