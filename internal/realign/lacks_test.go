package realign

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/volume"
)

// Every finding of grade error counts: a malformed image is an error of its own, the first one for inspect and scan, and
// damage of the image keeps unknown content from being accepted. The others are reasons against a copy, which refuses
// for them.
func TestErrorsCount(t *testing.T) {
	t.Parallel()
	img := &image.Image{Image: &driver.Image{Disk: disktest.Memory(make([]byte, units.SectorSize))}}
	unfinished := &ondisk.Refusal{Code: "unfinished"}
	blank := &layout.Layout{Volume: &volume.Volume{Kind: volume.Unknown}, Blank: true, Boot: &boot.Result{}}
	unknown := &layout.Layout{Volume: &volume.Volume{Kind: volume.Unknown}, Boot: &boot.Result{}}
	known := &layout.Layout{Table: &table.Table{}, Boot: &boot.Result{}}
	for name, c := range map[string]struct {
		issue  ondisk.Issue
		layout *layout.Layout
		broken bool
		lacks  error
	}{
		"a note":                 {ondisk.Issue{Effect: ondisk.Note}, unknown, false, nil},
		"a warning":              {ondisk.Issue{Effect: ondisk.Warn, Err: ondisk.ErrFormat}, unknown, false, nil},
		"may not boot":           {ondisk.Issue{Effect: ondisk.Unbootable}, unknown, false, nil},
		"a malformed volume":     {ondisk.Issue{Effect: ondisk.BadVolume, Err: ondisk.ErrFormat}, unknown, true, nil},
		"broken":                 {ondisk.Issue{Effect: ondisk.Broken, Err: ondisk.ErrFormat}, unknown, true, ondisk.ErrFormat},
		"in use":                 {ondisk.Issue{Effect: ondisk.Refuse, Err: ondisk.ErrBusy}, unknown, false, nil},
		"refused":                {ondisk.Issue{Effect: ondisk.Refuse}, unknown, false, nil},
		"damaged":                {ondisk.Issue{Effect: ondisk.Refuse, Err: ondisk.ErrFormat}, unknown, false, ErrUnknown},
		"an unfinished copy":     {ondisk.Issue{Effect: ondisk.Refuse, Err: unfinished}, unknown, false, ErrUnknown},
		"unfinished, of nothing": {ondisk.Issue{Effect: ondisk.Refuse, Err: unfinished}, blank, false, nil},
		"damaged, and judged":    {ondisk.Issue{Effect: ondisk.Refuse, Err: ondisk.ErrFormat}, known, false, nil},
	} {
		s := &Source{Image: img, Layout: c.layout, Damage: []ondisk.Issue{c.issue}}
		require.Equal(t, c.broken, Broken(align.Relevant(s.Damage, nil)) != nil, name)
		require.ErrorIs(t, s.Lacks(), c.lacks, name)
	}
	s := open(t, imagetest.Write(t, t.TempDir(), "disk.img", append(image.Mark(512), make([]byte, units.MiB)...)))
	require.ErrorContains(t, s.Lacks(), "unfinished copy")
	require.NoError(t, (&Source{}).Lacks(), "it was not read")
}
