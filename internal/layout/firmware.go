package layout

import (
	"github.com/trueup/trueup/internal/ondisk"
)

// espType is the type of an EFI system partition. Spec: UEFI 2.10, table 5.7.
const espType = "c12a7328-f81f-11d2-ba4b-00a0c93ec93b"

// checkFirmware says what lies outside of the disk and remembers places on it: the boot entries of a UEFI firmware name their
// partition by GUID, number, start and size. Firmware finds \EFI\BOOT without them.
func (l *Layout) checkFirmware() {
	for _, p := range l.Partitions {
		if p.TypeGUID != espType {
			continue
		}
		l.Issues = append(l.Issues, ondisk.Issue{
			Code: "efi-boot-entries", Effect: ondisk.Note, OnMove: true, Partition: p.Number,
			Text:   "boot entries in the firmware's memory (NVRAM, not on this disk) store the old start of the EFI system partition",
			Remedy: "a machine that does not boot from the copy by itself does so from \\EFI\\BOOT; let its system write the entry again",
		})
	}
}
