package catalog

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/scan/results"
)

func TestRootsAreThoseBelowNoOther(t *testing.T) {
	require.Equal(t, []string{"/a", "/a-b", "/ab/c"},
		roots([]string{"/a/b/c", "/ab/c", "/a-b", "/a/", "/a/b", "/a", "/a-b/x"}))
	require.Equal(t, []string{"/"}, roots([]string{"/srv", "/", "/a/b"}))
}

// A list of paths can name every image itself. Held against each other, these would take minutes.
func TestRootsCanBeMany(t *testing.T) {
	var paths []string
	for n := range 100_000 {
		paths = append(paths, fmt.Sprintf("/srv/templates/%06d.vmdk", n))
	}
	spent := disktest.Spent()
	require.Len(t, roots(paths), len(paths))
	require.Less(t, spent(), 20*time.Second)
}

// A sum names the first places that could not be looked at, and counts all of them. So does the catalogue.
func TestARunCountsAllThatItCouldNotRead(t *testing.T) {
	c := fresh(t)
	r := begin(t, c, "/lib")
	s := results.NewSummary()
	s.Unreadable, s.UnreadableCount = []results.Unreadable{{Path: "/lib/x"}}, 1234
	require.NoError(t, r.Finish(s))
	require.Equal(t, "1234", query(t, c, "SELECT unreadable FROM runs"))
}

// Each count of a sum is in its own column.
func TestTheCountsOfARun(t *testing.T) {
	c := fresh(t)
	r := begin(t, c, "/lib")
	s := results.NewSummary()
	s.Images, s.Failed, s.Orphans, s.Originals, s.Packed, s.Accepted = 15, 1, 2, 3, 4, 5
	require.NoError(t, r.Finish(s))
	require.Equal(t, "15|1|2|3|4|5", query(t, c,
		"SELECT images, failed, orphans, originals, packed, accepted FROM runs"))
}
