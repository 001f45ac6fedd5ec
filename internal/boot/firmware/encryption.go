package firmware

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// Encryption finds the loaders of encrypted systems. The key holds for sectors that count from the start of the disk,
// and a header has the absolute start of what is encrypted: no password opens a copy in which that has moved. Spec:
// TrueCrypt, "Volume Format Specification" and Boot/Windows/BootEncryptedIo.cpp (units of XTS).
var Encryption = boot.Finder{Name: "encryption", Find: findEncryption}

// Loaders of system encryption, by their names in the code. Spec: TrueCrypt 7.1a and VeraCrypt,
// Boot/Windows/BootSector.asm; The Sleuth Kit, tsk/util/detect_encryption.c.
var (
	TrueCrypt = &boot.Code{
		ID: "truecrypt", Name: "TrueCrypt", Encrypts: true,
		Known: boot.Says("TrueCrypt Boot Loader"),
	}
	VeraCrypt = &boot.Code{
		ID: "veracrypt", Name: "VeraCrypt", Encrypts: true,
		Known: boot.Says("VeraCrypt Boot Loader"),
	}
	PGP = &boot.Code{
		ID: "pgp", Name: "PGP or Symantec Drive Encryption", Encrypts: true, Known: boot.Says("\xeb\x48\x90PGPGUARD"),
	}
	SafeBoot = &boot.Code{
		ID: "safeboot", Name: "SafeBoot or McAfee Endpoint Encryption", Encrypts: true,
		Known: boot.Either(boot.Says("SafeBoot"), boot.Says("Safeboot")),
	}
)

// diskCryptor are both signatures of the configuration in DiskCryptor's loader. Spec: DiskCryptor,
// boot/include/bootloader.h.
var diskCryptor = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, 0x1434a669), 0x7269da46)

// loaderArea is the part of either end of the disk that is searched for the loader of DiskCryptor: it lies in the first
// track, or in the last sectors.
const loaderArea = 64 * units.KiB

func findEncryption(g *boot.Guest) (f boot.Found, err error) {
	name := g.Code.Name
	if !g.Code.Encrypts {
		if name, err = encryptedBesides(g); name == "" {
			return f, err
		}
	}
	f.Link(0, "%s asks for a password and decrypts the disk", name)
	f.Issues = append(f.Issues, ondisk.Issue{
		Code: "encrypted-system", Effect: ondisk.Refuse, OnMove: true,
		Text: fmt.Sprintf("the loader of %s is in sector 0: the system is encrypted by units that "+
			"count from the start of the disk, and no password would open a copy in which they moved", name),
		Remedy: "decrypt the system in the guest for good, and copy again; or copy the disk as it is with " +
			"trueup convert",
	})
	return f, nil
}

// encryptedBesides names an encryption that does not show in sector 0, whose code is unknown.
func encryptedBesides(g *boot.Guest) (string, error) {
	if g.Code != boot.Unknown && !g.Code.Generic {
		return "", nil
	}
	n := min(loaderArea, g.Disk.Size())
	for _, off := range []int64{0, g.Disk.Size() - n} {
		b, err := ondisk.Bytes(g.Disk, off, n)
		if err != nil {
			return "", ondisk.Legible(err)
		}
		if bytes.Contains(b, diskCryptor) {
			return "DiskCryptor", nil
		}
	}
	return "", nil
}
