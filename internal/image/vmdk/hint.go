package vmdk

import (
	"bytes"

	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
)

// ParentHint is the parent that the VMDK in f names, empty when it names none or is no VMDK.
func ParentHint(f driver.File) string {
	head := make([]byte, min(f.Size(), 1024))
	if err := ondisk.ReadFull(f, head, 0); err != nil || !detect(head, nil) {
		return ""
	}
	d, err := descriptorOf(f, head)
	if err != nil {
		return ""
	}
	hint, _ := d.get("parentfilenamehint")
	return hint
}

// descriptorOf reads the text of any VMDK that has one.
func descriptorOf(f driver.File, head []byte) (*descriptor, error) {
	if bytes.HasPrefix(head, []byte(magicSparse)) {
		x := &sparse{file: f}
		if _, err := ondisk.Decode(f, 0, &x.h); err != nil {
			return nil, err
		}
		return x.descriptor()
	}
	text, err := ondisk.Bytes(f, 0, min(f.Size(), maxText))
	if err != nil {
		return nil, err
	}
	return parseDescriptor(text)
}
