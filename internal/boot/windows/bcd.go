package windows

import (
	"encoding/binary"
	"fmt"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/hive"
	"github.com/trueup/trueup/internal/ondisk"
)

// BCD finds the devices in the stores of the boot manager of Windows Vista and later. Each names a partition of an MBR
// disk by disk signature and byte offset, and the boot manager compares both.
var BCD = hives{"bcd", repairBCD, bootStores, findDevices}.finder()

// bootStores returns the paths of a store: that of BIOSes, and that of UEFI, which can lie on an MBR disk too.
func bootStores(*boot.Guest, boot.Partition) ([]string, error) {
	return []string{"Boot/BCD", "EFI/Microsoft/Boot/BCD"}, nil
}

// device is a partition of an MBR disk as an element names it. It stands behind the GUID of additional options, or
// inside of another device: a file of a RAM disk lies on a partition. Sources:
// mistyprojects.co.uk, BCDEdit, device_partition.htm; BCD-SYS, Linux/update_device.sh. The names are those of ReactOS,
// boot/environ/include/bl.h.
type device struct {
	Type      uint32 // 6: partition
	Flags     uint32
	Size      uint32 // of the device, bytes: 0x48
	_         uint32
	Offset    uint64 // of the partition, bytes
	_         uint64
	LocalType uint32 // of what the partition lies on; 0: a disk, others are RAM disks, files, virtual disks
	Style     uint32 // 1: MBR
	Signature uint32 // of the disk
	_         [28]byte
}

const (
	devicePartition = 6
	deviceLength    = 0x48
	deviceOffset    = 0x10 // of the field Offset
	deviceUnit      = 4    // devices start at multiples of it
	localDisk       = 0
	styleMBR        = 1

	maxElements     = 4096
	maxElementBytes = 4 << 20 // of all elements of a store
)

// devices returns the byte offsets in the data of an element at which a partition of an MBR disk is named. All lengths
// between the outside and a nested device differ by kind and version, so the shape is searched: 20 bytes of it do not
// occur by chance.
func devices(data []byte) (at []int64, found []device) {
	var d device
	for i := 0; i+deviceLength <= len(data); i += deviceUnit {
		if binary.LittleEndian.Uint32(data[i:]) != devicePartition ||
			binary.LittleEndian.Uint32(data[i+8:]) != deviceLength {
			continue
		}
		if _, err := binary.Decode(data[i:i+deviceLength], binary.LittleEndian, &d); err != nil {
			panic(err) // a variable-size struct: our own bug
		}
		if d.LocalType == localDisk && d.Style == styleMBR && ondisk.IsZero(data[i+0xc:i+0x10]) &&
			ondisk.IsZero(data[i+0x18:i+0x20]) {
			at, found = append(at, int64(i)), append(found, d)
		}
	}
	return at, found
}

// store is the state of a walk through a store.
type store struct {
	*guestHive
	elements int   // seen
	bytes    int64 // of them
	starts   map[int]bool
	order    []int // the partitions named, in the order of the store; starts tells those that a Windows starts from
}

func findDevices(h *guestHive, f *boot.Found) error {
	s := &store{guestHive: h, starts: map[int]bool{}}
	err := s.walk()
	for _, n := range s.order {
		if s.starts[n] {
			f.Link(n, "%s of partition %d starts Windows in partition %d", shown(h.file.Path), h.p.Number, n)
		} else {
			f.Link(n, "%s of partition %d names partition %d", shown(h.file.Path), h.p.Number, n)
		}
	}
	return err
}

// walk visits Objects\{guid}\Elements\xxxxxxxx, value Element.
func (s *store) walk() error {
	objects, err := s.Key("Objects")
	if err != nil {
		return err
	}
	return each(objects.Subkeys(), func(object *hive.Key) error {
		elements, err := ifThere(object.Subkey("Elements"))
		if elements == nil {
			return err
		}
		return each(elements.Subkeys(), s.element)
	})
}

// regBinary is the type of a value.
const regBinary = 3

func (s *store) element(k *hive.Key) error {
	v, err := ifThere(k.Value("Element"))
	if v == nil {
		return err
	}
	s.elements, s.bytes = s.elements+1, s.bytes+v.Size
	if s.elements > maxElements || s.bytes > maxElementBytes {
		return fmt.Errorf("boot configuration: %w of %d elements and %d bytes", ondisk.ErrLimit, maxElements,
			maxElementBytes)
	}
	if v.Type != regBinary {
		return nil
	}
	data, err := v.Data()
	if err != nil {
		return err
	}
	at, found := devices(data)
	for i, d := range found {
		if d.Signature != s.g.Signature {
			if err := s.other(elementKind(k.Name), v, at[i]+deviceOffset, d.Signature, ""); err != nil {
				return err
			}
			continue
		}
		target, err := s.ref(elementKind(k.Name), v, at[i]+deviceOffset)
		if err != nil {
			return err
		}
		s.names(target, k.Name == osDevice && at[i] == deviceFirst)
	}
	return nil
}

// osDevice is the element of a loader that names the partition of its Windows, where the device is the first thing in
// it. One inside of another is that of a file, such as the RAM disk of a recovery system.
const (
	osDevice    = "21000001"
	deviceFirst = 0x10 // behind the GUID
)

// names records that a partition is named (0: none), and whether a Windows starts from it.
func (s *store) names(n int, starts bool) {
	if n == 0 {
		return
	}
	if _, ok := s.starts[n]; !ok {
		s.order, s.starts[n] = append(s.order, n), false
	}
	s.starts[n] = s.starts[n] || starts
}

// elementKind names an element by its number. Any other name is text from the image, and is not repeated.
func elementKind(name string) string {
	if len(name) != 8 {
		return "bcd device"
	}
	for _, c := range []byte(name) {
		if (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'f') {
			return "bcd device"
		}
	}
	return "bcd device " + name
}
