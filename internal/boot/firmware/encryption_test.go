package firmware_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disktest/boottest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/ondisk"
)

// A system that is encrypted as a whole could not be decrypted at other sectors: no permission lets it move.
func TestEncryptedSystems(t *testing.T) {
	signs := []byte{0x69, 0xa6, 0x34, 0x14, 0x46, 0xda, 0x69, 0x72}
	for name, c := range map[string]struct {
		put  func(f forge.Bytes)
		code *boot.Code
		says string
	}{
		"TrueCrypt": {
			func(f forge.Bytes) { f.Text(0, "\xea\x1e\x7c\x00\x00 TrueCrypt Boot Loader\r\n") },
			boot.Named("truecrypt"), "TrueCrypt",
		},
		"VeraCrypt": {
			func(f forge.Bytes) { f.Text(0, "\xea\x1e\x7c\x00\x00 VeraCrypt Boot Loader\r\n") },
			boot.Named("veracrypt"), "VeraCrypt",
		},
		"PGP":      {func(f forge.Bytes) { f.Text(0, "\xeb\x48\x90PGPGUARD") }, boot.Named("pgp"), "PGP"},
		"SafeBoot": {func(f forge.Bytes) { f.Text(0, "\xeb\x3c\x90SafeBoot") }, boot.Named("safeboot"), "SafeBoot"},
		"DiskCryptor, in the first track": {func(f forge.Bytes) {
			f.Text(0, "\xfa\x01\x02")
			f.Put(5*512+77, signs)
		}, boot.Unknown, "DiskCryptor"},
		"DiskCryptor, at the end of the disk": {func(f forge.Bytes) {
			f.Text(0, "\xfa\x01\x02")
			f.Put(int64(len(f))-20*512+7, signs)
		}, boot.Unknown, "DiskCryptor"},
	} {
		t.Run(name, func(t *testing.T) {
			f := tableforge.NewMBR(8000, tableforge.Slot{Type: 7, Flag: 0x80, Start: 63, Sectors: 4000})
			c.put(f)
			f.U32(tableforge.MBRSignature, 7)
			r := boottest.Read(t, f)
			require.Equal(t, c.code, r.Code)
			require.Len(t, r.Issues, 1)
			require.Equal(t, "encrypted-system", r.Issues[0].Code)
			require.Equal(t, ondisk.Refuse, r.Issues[0].Effect)
			require.True(t, r.Issues[0].OnMove)
			require.Contains(t, r.Issues[0].Text, c.says)
			require.NotContains(t, r.Issues[0].Remedy, "--allow-unbootable")
		})
	}
}
