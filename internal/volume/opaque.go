package volume

import (
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// The kinds of this file move as opaque bytes, or are refused; nothing inside is read.

var luks = Prober{Name: string(LUKS), Probe: func(d disk.Disk) (*Volume, error) {
	// Spec: LUKS1 and LUKS2 on-disk format: magic at 0, version at 6.
	if b, err := start(d); err != nil || string(b[:6]) != "LUKS\xba\xbe" {
		return nil, orNoMatch(err)
	}
	return &Volume{Kind: LUKS, Size: d.Size()}, nil
}}

var bitLocker = Prober{Name: string(BitLocker), Probe: func(d disk.Disk) (*Volume, error) {
	// Spec: libbde documentation, "Volume header". The encrypted inner boot sector keeps the old place, and the TPM of the
	// guest measures what a move changes.
	if b, err := start(d); err != nil || string(b[3:11]) != "-FVE-FS-" {
		return nil, orNoMatch(err)
	}
	v := &Volume{Kind: BitLocker, Size: d.Size()}
	v.note("bitlocker", ondisk.Unbootable, "BitLocker: the encrypted boot sector keeps the old place of the volume, and the guest will ask for the recovery key",
		"decrypt the volume in the guest, or suspend BitLocker and have the recovery key at hand")
	return v, nil
}}

var swap = Prober{Name: string(Swap), Probe: func(d disk.Disk) (*Volume, error) {
	// Spec: Linux, include/linux/swap.h and kernel/power/swap.c: a signature in the last ten bytes of the first page.
	const page, size = 4096, 10
	if d.Size() < page {
		return nil, ondisk.ErrNoMatch
	}
	b, err := ondisk.Bytes(d, page-size, size)
	if err != nil {
		return nil, err
	}
	v := &Volume{Kind: Swap, Size: d.Size(), BlockSize: page}
	switch zeroTerminated(b) {
	case "SWAPSPACE2", "SWAP-SPACE":
		return v, nil
	case "S1SUSPEND", "S2SUSPEND", "ULSUSPEND", "LINHIB0001":
		v.Issues = append(v.Issues, ondisk.Issue{
			Code: "hibernated-linux", Effect: ondisk.Refuse, OnMove: true, DiskWide: true,
			Text:   "the swap area holds a hibernated Linux, which knows the old partition table",
			Remedy: "start the guest and shut it down instead of suspending it",
		})
		return v, nil
	}
	return nil, ondisk.ErrNoMatch
}}

// start reads the first sector.
func start(d disk.Disk) ([]byte, error) {
	if d.Size() < units.SectorSize {
		return nil, ondisk.ErrNoMatch
	}
	return ondisk.Bytes(d, 0, units.SectorSize)
}

func orNoMatch(err error) error {
	if err == nil {
		err = ondisk.ErrNoMatch
	}
	return err
}
