package vmdk

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
)

// A descriptor of 4096 extents is opened, and each of its files once. A disk that is malformed whatever its extents
// hold is refused before they are looked for.
func TestExtentsOpenTheirFilesOnce(t *testing.T) {
	for kind, c := range map[string]struct {
		line   string
		opened int
		want   error
	}{
		splitFlat:        {`RW 8 FLAT "part%d.vmdk" 0`, maxExtents, nil},
		splitSparse:      {`RW 8 SPARSE "part%d.vmdk"`, 1, ondisk.ErrFormat},
		monolithicSparse: {`RW 8 SPARSE "part%d.vmdk"`, 1, ondisk.ErrFormat},
	} {
		t.Run(kind, func(t *testing.T) {
			var lines strings.Builder
			for i := range maxExtents {
				fmt.Fprintf(&lines, c.line+"\n", i)
			}
			text := vmdkforge.Descriptor(kind, lines.String())
			opened := 0
			_, err := open(&driver.Source{
				File: disktest.NewMemFile("disk.vmdk", []byte(text), int64(len(text))),
				Open: func(name string) (driver.File, error) {
					opened++
					return disktest.NewMemFile(name, nil, 4096), nil
				},
			})
			require.ErrorIs(t, err, c.want)
			require.Equal(t, c.opened, opened)
		})
	}
}
