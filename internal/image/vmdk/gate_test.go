package vmdk

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
)

// TestFewFilesAreOpened gives descriptors with more extent files than may be open at once.
func TestFewFilesAreOpened(t *testing.T) {
	for kind, c := range map[string]struct {
		line string
		want error
	}{
		monolithicFlat:   {`RW 8 FLAT "part%d.vmdk" 0`, ondisk.ErrLimit},
		monolithicSparse: {`RW 8 SPARSE "part%d.vmdk"`, ondisk.ErrFormat},
	} {
		t.Run(kind, func(t *testing.T) {
			var lines strings.Builder
			for i := range maxExtents {
				fmt.Fprintf(&lines, c.line+"\n", i)
			}
			text := disktest.VMDKDescriptor(kind, lines.String())
			opened := 0
			_, err := open(&driver.Source{
				File: &memFile{name: "disk.vmdk", data: []byte(text), size: int64(len(text))},
				Open: func(name string) (driver.File, error) {
					opened++
					return &memFile{name: name, size: 4096}, nil
				},
			})
			require.ErrorIs(t, err, c.want)
			require.LessOrEqual(t, opened, maxFiles)
		})
	}
}
