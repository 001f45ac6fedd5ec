package volume

import (
	"encoding/binary"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// SwapArea finds a swap area of Linux.
var SwapArea = Prober{
	Kinds: []Traits{{Kind: Swap, InSlice: true}},
	Probe: probeSwap,
}

// swapHeader stands 1024 bytes into the first page, in the byte order of the machine. Spec: Linux,
// include/linux/swap.h, union swap_header.
type swapHeader struct {
	Version  uint32
	LastPage uint32
	_        uint32 // bad pages
	UUID     [16]byte
	Label    [16]byte
}

const (
	swapWhat      = "swap header"
	atSwapHeader  = 1024
	swapSignature = 10 // bytes at the end of the first page
	swapMaxPage   = 64 << 10

	// TuxOnIce writes this at the start, and leaves the signature. Spec: libblkid, swap.c.
	tuxOnIce = "\xed\xc3\x02\xe9\x98\x56\xe5\x0c"
)

func probeSwap(d disk.Disk) (*Volume, error) {
	for page := int64(4 << 10); page <= min(swapMaxPage, d.Size()); page *= 2 {
		b, err := ondisk.Bytes(d, page-swapSignature, swapSignature)
		if err != nil {
			return nil, err
		}
		switch s := Text(b); s {
		case "SWAPSPACE2", "SWAP-SPACE", "S1SUSPEND", "S2SUSPEND", "ULSUSPEND", "LINHIB0001":
			return readSwap(d, page, s)
		}
	}
	return nil, ondisk.ErrNoMatch
}

// readSwap reads a swap area by its signature.
func readSwap(d disk.Disk, page int64, signature string) (*Volume, error) {
	b, err := ondisk.Bytes(d, 0, page)
	if err != nil {
		return nil, err
	}
	v := &Volume{Kind: Swap, Size: d.Size(), BlockSize: page}
	asleep := signature[0] != 'S' || signature[1] != 'W' || string(b[:len(tuxOnIce)]) == tuxOnIce
	if signature == "SWAP-SPACE" {
		v.Add("version", "0")
	} else if err := readHeader(v, b, asleep); err != nil {
		return nil, err
	}
	if page != 4<<10 {
		v.Add("page size", units.Format(page))
	}
	if asleep {
		v.Add("hibernated", signature)
		v.Issues = append(v.Issues, ondisk.Issue{
			Code: "hibernated-linux", Effect: ondisk.Refuse, OnMove: true, DiskWide: true,
			Text:   "the swap area holds a hibernated Linux, which knows the old partition table",
			Remedy: "start the guest and shut it down instead of suspending it",
		})
	}
	return v, nil
}

// readHeader reads the header of version 1. The header of a hibernated system is not checked: its signature is enough.
func readHeader(v *Volume, b []byte, asleep bool) error {
	var h swapHeader
	ondisk.MustFill(b[atSwapHeader:], binary.LittleEndian, &h)
	if h.Version != 1 {
		ondisk.MustFill(b[atSwapHeader:], binary.BigEndian, &h)
	}
	switch {
	case h.Version != 1 && asleep:
		return nil
	case h.Version != 1:
		return ondisk.ErrNoMatch
	case h.LastPage == 0 && !asleep:
		return ondisk.Field(swapWhat, "last page", atSwapHeader+4, 0, "1 or more")
	}
	v.Add("version", "1")
	v.UUID, v.Label = UUID(h.UUID), Text(h.Label[:])
	if h.LastPage > 0 {
		v.Size = (int64(h.LastPage) + 1) * v.BlockSize
	}
	return nil
}
