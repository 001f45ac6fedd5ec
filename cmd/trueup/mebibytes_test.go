package main

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// TestWholeMebibytes writes the disk of a cloud: a fixed VHD with a whole number of MiB.
func TestWholeMebibytes(t *testing.T) {
	t.Parallel()
	raw := pairDisk(t)
	for _, command := range []string{"convert", "align"} {
		dest := filepath.Join(t.TempDir(), "azure.vhd")
		answer := trueupJSON[jsonAlign](t, 0, command, "--to", "vhd:fixed,align=1M", raw, dest)
		require.Zero(t, answer.NewSizeBytes%(1<<20))
		info := disktest.Run(t, "qemu-img", "info", "--output=json", "-f", "vpc", dest)
		require.Contains(t, info, fmt.Sprintf(`"virtual-size": %d,`, answer.NewSizeBytes))
		st := disktest.Stat(t, dest)
		require.Equal(t, answer.NewSizeBytes+512, st.Size())
		require.Equal(t, 0, trueup(t, "verify", raw, dest).code)
	}
	gpt := filepath.Join(t.TempDir(), "gpt.raw")
	disktest.Run(t, "truncate", "-s", "10486272", gpt)
	disktest.RunInput(t, "label: gpt\nstart=2048, size=4096\n", "sfdisk", "-q", gpt)
	for _, command := range []string{"convert", "align"} {
		dest := filepath.Join(t.TempDir(), "azure.vhd")
		answer := trueupJSON[jsonAlign](t, 0, command, "--to", "vhd:fixed,align=1M", gpt, dest)
		require.Equal(t, int64(11<<20), answer.NewSizeBytes)
		require.Equal(t, 0, trueup(t, "verify", gpt, dest).code)
		back := filepath.Join(t.TempDir(), "back.raw")
		disktest.Run(t, "qemu-img", "convert", "-f", "vpc", "-O", "raw", dest, back)
		require.Contains(t, disktest.Run(t, "sgdisk", "-v", back), "No problems found",
			"the backup of the table stands at the end")
	}
}
