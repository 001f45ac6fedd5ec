package image

import (
	"github.com/trueup/trueup/internal/ondisk"
)

// markText begins the first sector of a device to which a copy is being written, or was when its run ended.
const markText = "trueup: unfinished copy\n" +
	"A copy of a disk was being written to this device and did not come to its end.\n" +
	"What stood here before is gone. Run the same trueup command again.\n"

// Mark returns the first sector of a device with an unfinished copy. It has the signature of no table and no volume.
func Mark(sector int64) []byte {
	b := make([]byte, sector)
	copy(b, markText)
	return b
}

// Marked reports whether a disk begins with the mark of an unfinished copy.
func (img *Image) Marked() (bool, error) {
	b := make([]byte, len(markText))
	if img.Disk.Size() < int64(len(b)) {
		return false, nil
	}
	if err := ondisk.ReadFull(img.Disk, b, 0); err != nil {
		return false, err
	}
	return string(b) == markText, nil
}

// noteMark keeps a device with an unfinished copy from being taken for a disk.
func (img *Image) noteMark() error {
	marked, err := img.Marked()
	if !marked {
		return err
	}
	text := "it holds an unfinished copy, which trueup was writing to it when that run ended"
	remedy := "run the command that was writing it once more; what stood on it before is gone"
	img.Issues = append(img.Issues, ondisk.Issue{
		Code: "unfinished", Effect: ondisk.Refuse, Text: text, Remedy: remedy,
		Err: &ondisk.Refusal{Code: "unfinished", Reason: text, Remedy: remedy},
	})
	return nil
}
