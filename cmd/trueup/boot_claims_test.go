package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// windows7Code is what a real Windows 7 wrote.
func windows7Code(t testing.TB) []byte {
	t.Helper()
	return readAt(t, disktest.Corpus(t, "vmdk-rs/monolithicFlat-flat.vmdk.xz"), 0, codeSize)
}

// debianCode is what install-mbr of Debian's package mbr writes.
func debianCode(t testing.TB) []byte {
	t.Helper()
	image := filepath.Join(t.TempDir(), "disk")
	require.NoError(t, os.WriteFile(image, make([]byte, 1<<20), 0o600))
	disktest.Run(t, "install-mbr", "--force", image)
	return readAt(t, image, 0, codeSize)
}

// altCode is syslinux's altmbr.bin, told to boot partition 1.
func altCode(t testing.TB) []byte {
	t.Helper()
	code := disktest.ReadFile(t, disktest.DataFile(t, "/usr/lib/syslinux/mbr/altmbr.bin"))
	return append(code[:codeSize-1], 1)
}

// TestClaimsAboutBootCode holds what inspect says about boot code against a boot: where it is said not to read CHS
// bytes, they are made wrong, and where it is said to hand its entry over, the hidden sectors are, without which
// syslinux finds itself only by that entry. That a wrong start CHS is fatal where it is read is shown by
// TestAlignedDiskBoots.
func TestClaimsAboutBootCode(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		code        func(testing.TB) []byte
		reads, over bool
	}{
		"windows-2000":    {windowsCode, true, true},
		"windows-7":       {windows7Code, false, false},
		"parted":          {chsBootCode, true, true},
		"debian-mbr":      {debianCode, false, true},
		"syslinux":        {lbaBootCode, false, true},
		"syslinux-altmbr": {altCode, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			d := bootDisk{code: tc.code, fat: 16, heads: 255}
			raw := d.build(t, t.TempDir())
			var claims struct {
				BootCode struct {
					Name      string `json:"name"`
					ReadsCHS  bool   `json:"reads_chs"`
					HandsOver bool   `json:"hands_entry_over"`
				} `json:"boot_code"`
			}
			got := trueup(t, "inspect", "--json", raw)
			require.NoError(t, json.Unmarshal([]byte(got.stdout), &claims), got.stderr)
			require.Equal(t, name, claims.BootCode.Name)
			require.Equal(t, []bool{tc.reads, tc.over}, []bool{claims.BootCode.ReadsCHS, claims.BootCode.HandsOver})
			if !tc.reads {
				disktest.WriteAt(t, raw, 0x1BE+1, []byte{5, 1, 0}) // LBA 315: no boot sector
			}
			require.Equal(t, booted, boot(t, raw, d.heads))
			// 1000 sectors in front, and not 63
			disktest.WriteAt(t, raw, trackSectors*sectorSize+0x1C, []byte{0xE8, 3, 0, 0})
			require.Equal(t, tc.over, boot(t, raw, d.heads) == booted)
		})
	}
}
