package windows_test

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest/boottest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/ondisk"
)

// menu is a boot.ini with these lines in its list.
func menu(lines ...string) []byte {
	return []byte("[boot loader]\r\ntimeout=30\r\ndefault=multi(0)disk(0)rdisk(0)partition(2)\\WINDOWS\r\n" +
		"[operating systems]\r\n" + strings.Join(lines, "\r\n") + "\r\n")
}

// saved is a boot sector with that many sectors in front of it.
func saved(hidden uint32) forge.Bytes {
	b := make(forge.Bytes, 512)
	b.Put(0, []byte{0xeb, 0x3c, 0x90})
	b.U16(0x0b, 512)
	b.U32(0x1c, hidden)
	b.U16(510, 0xaa55)
	return b
}

func TestBootIni(t *testing.T) {
	r := boottest.Read(t, windowsDisk(t, map[string][]byte{"BOOT.INI": menu(
		`MULTI(0)DISK(0)RDISK(0)PARTITION(2)\WINNT="Windows 2000"`,
		`multi(0)disk(0)rdisk(0)partition(7)\WINDOWS="gone"`,
		`multi(0)disk(0)rdisk(1)partition(9)\WINDOWS="another disk"`,
		`scsi(0)disk(0)rdisk(0)partition(8)\WINDOWS="another way"`,
	)}))
	require.Equal(t, 1,
		strings.Count(links(r), `2 \boot.ini of partition 1 starts Windows from partition(2), which is partition 2`),
		"once")
	got := boottest.Issues(r, "boot-ini")
	require.Len(t, got, 1)
	require.Equal(t, ondisk.Note, got[0].Effect, "it was broken before")
	require.Contains(t, got[0].Text, "partition(7)")
	require.Empty(t, stored(r))
}

// Saved boot sectors know their place as those at the start of a partition do.
func TestSavedBootSectors(t *testing.T) {
	lilo := saved(63)
	lilo.Text(6, "LILO")
	noBPB := saved(63)
	noBPB.U16(0x0b, 0)
	disk := windowsDisk(t, map[string][]byte{
		"boot.ini": menu(`C:\="MS-DOS"`, `C:\linux.bin="Linux"`,
			`c:\cmdcons\bootsect.dat="Recovery Console" /cmdcons`, `C:\gone.bin="gone"`),
		"BOOTSECT.DOS":         saved(63),
		"bootsect.lnx":         lilo,
		"bootsect.bak":         noBPB,
		"linux.bin":            saved(40063),
		"CMDCONS/BOOTSECT.DAT": append(saved(77), make([]byte, 7680)...),
		"other.bin":            saved(63),
	})
	r := boottest.Read(t, disk)
	const kind = "hidden sectors, saved boot sector"
	require.Equal(t, []string{kind + ": 32256 follows 1", kind + ": 39424 stays", kind + ": 20512256 follows 2"},
		fates(stored(r)))
	var files []string
	for _, ref := range stored(r) {
		files = append(files, ref.File)
		require.Equal(t, int64(0x1c), ref.Off)
		require.Equal(t, uint32(ref.Points/512), binary.LittleEndian.Uint32(disk[ref.At[0].Off:]))
	}
	require.Equal(t, []string{"BOOTSECT.DOS", "CMDCONS/BOOTSECT.DAT", "linux.bin"}, files)
	got := boottest.Issues(r, "saved-boot-sector")
	require.Len(t, got, 1)
	require.Contains(t, got[0].Text, "LILO")
	b, err := stored(r)[0].Encode(nil, 1<<20)
	require.NoError(t, err)
	require.Equal(t, []byte{0, 8, 0, 0}, b)
}
