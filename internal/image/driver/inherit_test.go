package driver

import (
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/ondisk"
)

// A child has the issues of its parent that matter to a copy, and its check walks both.
func TestInherit(t *testing.T) {
	t.Parallel()
	issues := func(text string) []ondisk.Issue {
		return []ondisk.Issue{{Effect: ondisk.Note, Text: "note " + text}, {Effect: ondisk.Warn, Text: text}}
	}
	check := func(text string, err error) func() ([]ondisk.Issue, error) {
		return func() ([]ondisk.Issue, error) { return issues(text), err }
	}
	errOwn, errParent := errors.New("own"), errors.New("parent")
	img := &Image{Issues: issues("a"), Check: check("b", nil)}
	img.Inherit(&Image{Issues: issues("c"), Check: check("d", nil)})
	require.True(t, img.Child)
	require.Equal(t, append(issues("a"), ondisk.Issue{Effect: ondisk.Warn, Text: "in the parent: c"}), img.Issues)
	found, err := img.Check()
	require.NoError(t, err)
	require.Equal(t, append(issues("b"), ondisk.Issue{Effect: ondisk.Warn, Text: "in the parent: d"}), found)

	img = &Image{Check: check("", errOwn)}
	img.Inherit(&Image{Check: check("", errParent)})
	_, err = img.Check()
	require.ErrorIs(t, err, errOwn)
	img = &Image{Check: check("", nil)}
	img.Inherit(&Image{Check: check("", errParent)})
	_, err = img.Check()
	require.ErrorIs(t, err, errParent)
	img = &Image{}
	img.Inherit(&Image{Check: check("e", nil)})
	found, err = img.Check()
	require.NoError(t, err)
	require.Len(t, found, 1)
	img = &Image{}
	img.Inherit(&Image{})
	require.Nil(t, img.Check)
}

// A unit ends as a file does.
func TestUnpackedUnitEnds(t *testing.T) {
	t.Parallel()
	u := NewUnpacked(4, 4, func(b []byte, _ int64) error {
		copy(b, "data")
		return nil
	})
	for off, want := range map[int64]int{1: 3, 3: 1, 4: 0, 5: 0} {
		n, err := u.Unit(7).ReadAt(make([]byte, 4), off)
		require.ErrorIs(t, err, io.EOF)
		require.Equal(t, want, n, "%d", off)
	}
}
