package grub_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/boot/boottest"
	"github.com/trueup/trueup/internal/boot/grub"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/ondisk"
)

// putGrub4DOS writes what the MBR of grub4dos has of its own: a reader of the table, and the message that its installer
// knows it by.
func putGrub4DOS(f forge.Bytes) {
	f.Put(0, []byte{0xbe, 0xbe, 0x07, 0xb4, 0x42, 0xcd, 0x13, 0xb8, 0x01, 0x02})
	f.Text(0x1a0, "Missing MBR-helper.")
}

// grub4dos finds GRLDR by its name, and boots from the partition that holds it, whichever is active.
func TestGrub4DOS(t *testing.T) {
	volume, grldr := filepath.Join(t.TempDir(), "fat"), filepath.Join(t.TempDir(), "grldr")
	require.NoError(t, os.WriteFile(volume, make([]byte, 40000*512), 0o600))
	require.NoError(t, os.WriteFile(grldr, []byte("a loader"), 0o600))
	disktest.Run(t, "mkfs.fat", "-F", "16", "-h", "63", volume)
	disktest.Run(t, "mcopy", "-i", volume, grldr, "::/grldr")
	files, err := os.ReadFile(volume)
	require.NoError(t, err)
	f := tableforge.NewMBR(60000, tableforge.Slot{Type: 6, Flag: 0x80, Start: 63, Sectors: 40000},
		tableforge.Slot{Type: 7, Start: 40063, Sectors: 10000})
	f.Put(63*512, files)
	putGrub4DOS(f)
	r := boottest.Read(t, f)
	require.Equal(t, grub.ForDOS, r.Code)
	require.Equal(t, []boot.Link{
		{Text: "grub4dos in sector 0 loads LBA 1 to 15, and looks for GRLDR in every partition"}, {Partition: 1, Text: "GRLDR lies in partition 1"},
	}, r.Chain)
	for _, i := range r.Issues {
		require.NotEqual(t, "boot-code", i.Code)
		require.NotEqual(t, "grub4dos", i.Code)
	}
}

func TestGrub4DOSInsideOfAPartition(t *testing.T) {
	f := tableforge.NewMBR(8000, tableforge.Slot{Type: 0x83, Start: 15, Sectors: 4000})
	putGrub4DOS(f)
	r := boottest.Read(t, f)
	require.Len(t, r.Issues, 1)
	require.Equal(t, ondisk.Unbootable, r.Issues[0].Effect)
}
