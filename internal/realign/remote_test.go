package realign

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/ondisk"
)

// One run has few connections.
func TestRemotesAreFew(t *testing.T) {
	t.Parallel()
	absent := "nbd+unix:///?socket=" + filepath.Join(t.TempDir(), "absent")
	images := []string{"a.img"}
	for range maxRemotes {
		images = append(images, absent)
	}
	r, err := Connect(t.Context(), images, "trueup inspect")
	require.NoError(t, err)
	require.Len(t, r[absent], maxRemotes)
	require.Error(t, r[absent][0].err)
	_, err = Connect(t.Context(), append(images, absent), "trueup inspect")
	require.ErrorIs(t, err, ondisk.ErrUsage)
}

// A refusal has the remedy that helps the work.
func TestLocal(t *testing.T) {
	t.Parallel()
	require.NoError(t, Local("a.img", "trueup serve"))
	for work, want := range map[string]string{
		"trueup report": "on a server; save it as a file",
		"trueup scan":   "give it to trueup inspect",
		"trueup bench":  "make a file of it with trueup convert, and name that",
	} {
		err := Local("nbd://host/a", work)
		require.ErrorContains(t, err, work+" needs a file, and this is ")
		require.Regexp(t, want+"$", err.Error())
	}
}
