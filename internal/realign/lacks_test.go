package realign

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/volume"
)

// Every finding of grade error counts: what is broken is an error of its own, and damage of the image keeps unknown
// content from being accepted. The others are reasons against a copy, which refuses for them.
func TestErrorsCount(t *testing.T) {
	t.Parallel()
	unfinished := &ondisk.Refusal{Code: "unfinished"}
	blank := &layout.Layout{Volume: &volume.Volume{Kind: volume.Unknown}, Blank: true, Boot: &boot.Result{}}
	unknown := &layout.Layout{Volume: &volume.Volume{Kind: volume.Unknown}, Boot: &boot.Result{}}
	known := &layout.Layout{Table: &table.Table{}, Boot: &boot.Result{}}
	for name, c := range map[string]struct {
		issue         ondisk.Issue
		layout        *layout.Layout
		broken, lacks bool
	}{
		"a note":                 {ondisk.Issue{Effect: ondisk.Note}, unknown, false, false},
		"a warning":              {ondisk.Issue{Effect: ondisk.Warn, Err: ondisk.ErrFormat}, unknown, false, false},
		"may not boot":           {ondisk.Issue{Effect: ondisk.Unbootable}, unknown, false, false},
		"a malformed volume":     {ondisk.Issue{Effect: ondisk.BadVolume, Err: ondisk.ErrFormat}, unknown, true, false},
		"broken":                 {ondisk.Issue{Effect: ondisk.Broken, Err: ondisk.ErrFormat}, unknown, true, true},
		"in use":                 {ondisk.Issue{Effect: ondisk.Refuse, Err: ondisk.ErrBusy}, unknown, false, false},
		"refused":                {ondisk.Issue{Effect: ondisk.Refuse}, unknown, false, false},
		"damaged":                {ondisk.Issue{Effect: ondisk.Refuse, Err: ondisk.ErrFormat}, unknown, false, true},
		"an unfinished copy":     {ondisk.Issue{Effect: ondisk.Refuse, Err: unfinished}, unknown, false, true},
		"unfinished, of nothing": {ondisk.Issue{Effect: ondisk.Refuse, Err: unfinished}, blank, false, false},
		"damaged, and judged":    {ondisk.Issue{Effect: ondisk.Refuse, Err: ondisk.ErrFormat}, known, false, false},
	} {
		s := &Source{Image: &image.Image{}, Layout: c.layout, Damage: []ondisk.Issue{c.issue}}
		require.Equal(t, c.broken, Broken(align.Relevant(s.Damage, nil)) != nil, name)
		require.Equal(t, c.lacks, s.Lacks() != nil, name)
		if c.lacks {
			require.ErrorIs(t, s.Lacks(), ErrUnknown, name)
		}
	}
	s := open(t, imagetest.Write(t, t.TempDir(), "disk.img", append(image.Mark(512), make([]byte, units.MiB)...)))
	require.ErrorContains(t, s.Lacks(), "unfinished copy")
	require.NoError(t, (&Source{}).Lacks(), "it was not read")
}
