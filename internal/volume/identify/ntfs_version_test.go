package identify

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/volume"
)

// ntfsinfo reads the version of a volume from the same record.
func TestNTFSVersion(t *testing.T) {
	raw := disktest.Materialize(t, disk.New(4<<20, 512,
		func(int64) (disk.Run, error) { return disk.Run{Len: 4 << 20}, nil }))
	disktest.Run(t, "mkntfs", "--quiet", "--fast", "--force", "--label", "version", raw)
	info := disktest.Output(t, "ntfsinfo", "--mft", "--force", raw)
	want := regexp.MustCompile(`Volume Version: (\S+)`).FindStringSubmatch(info)
	require.Len(t, want, 2)
	b := disktest.ReadFile(t, raw)
	v, err := Probe(disktest.ShortDisk(b, int64(len(b))), 0)
	require.NoError(t, err)
	require.Equal(t, "version", v.Label)
	require.Contains(t, v.Details, volume.Detail{Name: "version", Value: want[1]})
}
