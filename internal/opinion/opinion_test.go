package opinion

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/ondisk"
)

func TestErrorOfATable(t *testing.T) {
	t.Parallel()
	row := func(v Verdict) Row { return Row{QemuImg + " 9", "all", "words", v} }
	own := Row{"trueup", "all", "identical", Agrees}
	for name, c := range map[string]struct {
		table   Table
		differs bool
		want    string // in the error; empty for none
	}{
		"one agrees":                     {Table{own, row(Agrees), row(NotLooked)}, false, ""},
		"none looked":                    {Table{own, row(NotLooked)}, false, "no judge checked anything"},
		"trueup alone":                   {Table{own}, false, "no judge checked anything"},
		"one failed":                     {Table{own, row(Agrees), row(Failed)}, false, "add --by libguestfs"},
		"one differs, and one fails":     {Table{own, row(Failed), row(Differs)}, true, ""},
		"trueup differs, and one agrees": {Table{{"trueup", "all", "words", Differs}, row(Agrees)}, true, ""},
	} {
		require.Equal(t, c.differs, c.table.Differs(), name)
		err := c.table.Err()
		if c.want == "" {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorContains(t, err, c.want, name)
		require.ErrorIs(t, err, ondisk.ErrUnsupported, name)
	}
}
