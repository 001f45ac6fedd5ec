package linux

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

// liloMap reads the map of a LILO: a file with the second stage, the table of kernels, and the sector lists of each
// kernel and initial RAM disk. The map, and all sectors it names, must lie in one partition.
//
// Spec: LILO 24, src/common.h, src/map.c, src/bsect.c, src/second.S.
type liloMap struct {
	g     *boot.Guest
	home  boot.Partition
	mode  liloMode
	file  *guestfile.File
	where []liloPiece    // pieces of the file, in disk order
	seen  map[int64]bool // sectors of the file already read, by their offset in it
	refs  []boot.Ref
	far   error // why no shift of its addresses can be written
	links []string
}

// liloPiece is a part of the file with its place on the disk.
type liloPiece struct {
	disk.Range

	off int64 // in the file
}

// Sizes and offsets.
const (
	liloMaxFile  = 2 << 20 // bytes of a map: 100 addresses a sector, for 200 MiB of kernels
	liloAddrLen  = 5       // bytes of an address
	liloLink     = 505     // address of the next sector of addresses, after 101 addresses
	atLiloKeys   = 26      // address of the parameters, in the second stage
	atLiloSum    = 504     // checksum over all bytes before it in the parameters
	atLiloArrays = 408     // starts of arrays in the parameters, all zeros without an array
	atLiloTable  = 492     // first address of the table of kernels, minus 4 for each sector of the table
	liloMaxTable = 12      // sectors of the table of kernels
	liloMaxName  = 16      // bytes of a kernel's name with its NUL
	liloIsKernel = 16      // flag of a kernel; without it, the entry is the boot sector of another system
)

// liloParams begins the second stage. Spec: src/common.h, BOOT_PARAMS_2.
type liloParams struct {
	Jump     [6]byte
	Magic    [4]byte
	Version  uint16
	MapStamp uint32
	Stage    uint16 // with flags in the high byte
	Serial   uint16
	Timeout  uint16
	Delay    uint16
	Message  uint16 // length of the message, or 0
	Keys     [liloAddrLen]byte
	Flags    byte
}

// open finds the file of the map. place is a byte of it on the disk.
func (m *liloMap) open(place int64) error {
	if kind := m.home.Volume.Kind; !slices.Contains([]volume.Kind{volume.Ext2, volume.Ext3, volume.Ext4}, kind) {
		return unsoundf("it lies in partition %d (%s), and trueup reads the file of the map only in ext", m.home.Number,
			kind)
	}
	files, err := m.g.Files(m.home)
	if err != nil {
		return m.unread(err)
	}
	for _, path := range []string{"boot/map", "map"} {
		m.file, err = files.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = m.place()
		}
		if err != nil {
			return m.unread(err)
		}
		if _, ok := m.offset(place); ok {
			return nil
		}
	}
	return unsoundf("the list of its second stage, at LBA %d, is in no file /boot/map of partition %d",
		place/liloSector, m.home.Number)
}

// place finds the ranges of the file. It finds none for a file too large for a map.
func (m *liloMap) place() error {
	m.where = nil
	if m.file.Size() > liloMaxFile {
		return nil
	}
	ranges, err := m.file.Where(0, m.file.Size())
	off := int64(0)
	for _, r := range ranges {
		m.where = append(m.where, liloPiece{disk.Range{Off: m.home.Off + r.Off, Len: r.Len}, off})
		off += r.Len
	}
	slices.SortFunc(m.where, func(a, b liloPiece) int { return cmp.Compare(a.Off, b.Off) })
	return err
}

// unread turns an error about the file system into a reason.
func (m *liloMap) unread(err error) error {
	if ondisk.Understood(err) || errors.Is(err, ondisk.ErrNoMatch) || errors.Is(err, fs.ErrInvalid) {
		return unsoundf("partition %d: %v", m.home.Number, err)
	}
	return err
}

// offset finds the sector of the file at a byte of the disk.
func (m *liloMap) offset(place int64) (off int64, ok bool) {
	i, _ := slices.BinarySearchFunc(m.where, place,
		func(p liloPiece, at int64) int { return cmp.Compare(p.End(), at+1) })
	if i == len(m.where) || place < m.where[i].Off || place+liloSector > m.where[i].End() {
		return 0, false
	}
	off = m.where[i].off + place - m.where[i].Off
	return off, off%liloSector == 0
}

// sector reads a sector of the map at a byte of the disk. Reading it again is an error.
func (m *liloMap) sector(place int64, what string) (off int64, b []byte, err error) {
	off, ok := m.offset(place)
	switch {
	case !ok:
		return 0, nil, unsoundf("%s is at LBA %d, outside of %q", what, place/liloSector, m.file.Path)
	case m.seen[off]:
		return 0, nil, unsoundf("%s is at LBA %d, as another part of its map", what, place/liloSector)
	}
	m.seen[off] = true
	b, err = ondisk.Bytes(m.file, off, liloSector)
	return off, b, err
}

// refer adds a reference: n bytes at each of some offsets of the file. Its first address points to a byte of the disk.
func (m *liloMap) refer(kind string, points, n int64, shift liloShift, offs ...int64) error {
	r := boot.Ref{
		Kind: kind, Partition: m.home.Number, File: m.file.Path, Off: offs[0], Points: points, Target: m.home.Number,
	}
	for _, off := range offs {
		at, raw, err := m.g.At(m.home, m.file, off, n)
		if err != nil {
			return err
		}
		r.At, r.Raw = append(r.At, at...), append(r.Raw, raw...)
	}
	m.add(r, shift)
	return nil
}

// add adds a reference that a shift moves. An address already out of the loader's reach makes the map unwritable.
func (m *liloMap) add(r boot.Ref, shift liloShift) {
	if err := shift(slices.Clone(r.Raw), 0); err != nil && m.far == nil {
		m.far = unsoundf("%v: a BIOS may not reach it", err)
	}
	r.Encode = m.encoder(r.Points, shift)
	m.refs = append(m.refs, r)
}

// address decodes the address of one sector, and returns its byte offset on the disk.
func (m *liloMap) address(b []byte) (place int64, err error) {
	a, err := m.next(&liloHigh{}, b)
	if err == nil && a.sectors != 1 {
		err = unsoundf("the address of LBA %d has %d sectors, must have 1", a.lba, a.sectors)
	}
	return a.lba * liloSector, err
}

// next decodes the next address of a row, which must lie in the partition.
func (m *liloMap) next(high *liloHigh, b []byte) (liloAddr, error) {
	a, err := high.decode(b, m.mode)
	if err != nil {
		return a, err
	}
	if a.lba*liloSector < m.home.Off || (a.lba+a.sectors)*liloSector > m.home.End() {
		return a, unsoundf("it names LBA %d to %d, not all in partition %d, where the map lies", a.lba,
			a.lba+a.sectors-1, m.home.Number)
	}
	return a, nil
}

// read follows the list of the second stage, in the sector at a byte of the disk.
func (m *liloMap) read(place int64, one *liloFirst) error {
	off, list, err := m.sector(place, "the list of its second stage")
	if err != nil {
		return err
	}
	const end = liloSector - len(liloMagic)
	if string(list[end:]) != liloMagic {
		return unsoundf("LBA %d does not hold the list of its second stage", place/liloSector)
	}
	var two *liloParams
	var first, n int64 // of the list
	for ; n < int64(end)/4; n++ {
		lba := int64(binary.LittleEndian.Uint32(list[4*n:]))
		if lba == 0 {
			break
		}
		at, b, err := m.sector(lba*liloSector, fmt.Sprintf("sector %d of its second stage", n+1))
		if err != nil {
			return err
		}
		if n == 0 {
			first = at
			if two, err = readLiloParams(b, one); err != nil {
				return err
			}
		}
	}
	if two == nil || n == int64(end)/4 {
		return unsoundf("the list of its second stage has no sectors, or no end")
	}
	points := int64(binary.LittleEndian.Uint32(list)) * liloSector
	if err := m.refer("LILO list of its second stage", points, n*4, m.shiftNumbers, off); err != nil {
		return err
	}
	return m.readParameters(two, first)
}

func readLiloParams(b []byte, one *liloFirst) (*liloParams, error) {
	p := &liloParams{}
	ondisk.Fill(b[:binary.Size(p)], binary.LittleEndian, p)
	if p.Magic != one.Magic || p.Version != one.Version || p.MapStamp != one.MapStamp || p.Stage&0xff != liloStage2 {
		return nil, unsoundf("its list does not lead to a second stage of the same map")
	}
	return p, nil
}

// readParameters reads the sector of keys and parameters. Its address is in the second stage, at byte two of the file.
// Spec: src/common.h, MENUTABLE.
func (m *liloMap) readParameters(p *liloParams, two int64) error {
	place, err := m.address(p.Keys[:])
	if err != nil {
		return err
	}
	if err := m.refer("LILO pointer to its parameters", place, liloAddrLen, m.shiftAt(0), two+atLiloKeys); err != nil {
		return err
	}
	off, b, err := m.sector(place, "the sector of its parameters")
	if err != nil {
		return err
	}
	if sum := liloSum(b[:atLiloSum]); sum != binary.LittleEndian.Uint32(b[atLiloSum:]) {
		return unsoundf("its parameters, at LBA %d, do not have their checksum, %#x", place/liloSector, sum)
	}
	sectors, line, err := m.findTable(b)
	if err != nil {
		return err
	}
	// The addresses of message and default command line precede those of the table.
	message := atLiloTable - 4*sectors - 2*liloAddrLen
	places, points := []int64{}, line
	if p.Message != 0 {
		places = append(places, message)
		if points, err = m.address(b[message:]); err != nil {
			return err
		}
		if _, err := m.section("message", points); err != nil {
			return err
		}
	} else if !ondisk.IsZero(b[message : message+liloAddrLen]) {
		return unsoundf("it has the address of a message of no length")
	}
	for i := range sectors + 1 {
		places = append(places, message+(i+1)*liloAddrLen)
	}
	if err := m.refer("LILO parameters", points, liloSector, m.shiftAt(places...).sealed(atLiloSum), off); err != nil {
		return err
	}
	return m.readTable(sectors)
}

// findTable finds the number of sectors in the table of kernels. They follow the first sector of the map, which holds
// the default command line and lies at byte line of the disk.
func (m *liloMap) findTable(b []byte) (sectors, line int64, err error) {
	for sectors = 1; sectors <= liloMaxTable; sectors++ {
		at := atLiloTable - 4*sectors
		if line, err = m.address(b[at-liloAddrLen:]); err != nil || !m.follows(b[at-liloAddrLen:], sectors+1) {
			continue
		}
		// A bit for each array follows the starts of arrays.
		if !ondisk.IsZero(b[atLiloArrays : at-2*liloAddrLen]) {
			return 0, 0, errLiloRAID
		}
		return sectors, line, nil
	}
	return 0, 0, unsoundf("its parameters do not name the first sectors of %q, which hold the table of kernels",
		m.file.Path)
}

// follows reports whether n addresses point to the first sectors of the map in order.
func (m *liloMap) follows(b []byte, n int64) bool {
	for i := range n {
		place, err := m.address(b[i*liloAddrLen:])
		if off, ok := m.offset(place); err != nil || !ok || off != i*liloSector {
			return false
		}
	}
	return true
}

// section reads a row of addresses, starting in the sector at a byte of the disk. It returns the number of sectors they
// name.
func (m *liloMap) section(what string, place int64) (sectors int64, err error) {
	var offs []int64
	var high liloHigh
	points := int64(0)
	for more := true; more; { // each round reads another sector of the file
		off, b, err := m.sector(place, "a list of sectors, of "+what+",")
		if err != nil {
			return 0, err
		}
		offs = append(offs, off)
		more, err = liloPage(b, func(b []byte) error {
			a, err := m.next(&high, b)
			if sectors == 0 {
				points = a.lba * liloSector
			}
			sectors += a.sectors
			return err
		}, func(b []byte) error {
			place, err = m.address(b)
			return err
		})
		if err != nil {
			return 0, err
		}
	}
	if sectors == 0 {
		return 0, unsoundf("the list of sectors of %s is empty", what)
	}
	return sectors, m.refer("LILO list of sectors of "+what, points, liloSector, m.shiftPages, offs...)
}

// liloKernel is an entry of the table of kernels. Spec: src/common.h, IMAGE_DESCR.
type liloKernel struct {
	Name    string
	At      int64 // offset in the table of the fields after the password
	RAMDisk uint32
	Initrd  int64 // place of the address rows, in bytes of the disk
	Start   int64
	Flags   uint16
}

// Offsets in an entry, after name and password.
const (
	atLiloInitrd = 4
	atLiloStart  = 9
	atLiloFlags  = 14
	liloTail     = 18
)

// readTable reads the table of kernels.
func (m *liloMap) readTable(sectors int64) error {
	size := sectors * liloSector
	b, err := ondisk.Bytes(m.file, liloSector, size)
	if err != nil {
		return m.unread(err)
	}
	atSum := size - 4
	if sum := liloSum(b[:atSum]); sum != binary.LittleEndian.Uint32(b[atSum:]) {
		return unsoundf("its table of kernels does not have its checksum, %#x", sum)
	}
	kernels, err := m.kernels(b[:atSum])
	if err != nil {
		return err
	}
	var places []int64
	read := map[int64]bool{}
	for _, k := range kernels {
		places = append(places, k.At+atLiloStart)
		if k.RAMDisk > 0 {
			places = append(places, k.At+atLiloInitrd)
		}
		if !read[k.Start] { // an alias has the addresses of another name
			read[k.Start] = true
			if err := m.readKernel(k); err != nil {
				return err
			}
		}
	}
	return m.refer("LILO table of kernels", kernels[0].Start, size, m.shiftAt(places...).sealed(atSum), liloSector)
}

// readKernel reads the sector lists of a kernel and of its initial RAM disk.
func (m *liloMap) readKernel(k liloKernel) error {
	if k.Flags&liloIsKernel == 0 {
		return unsoundf("it also starts another system, %q, by the boot sector", k.Name)
	}
	sectors, err := m.section(fmt.Sprintf("kernel %q", k.Name), k.Start)
	if err != nil {
		return err
	}
	link := fmt.Sprintf("the map of LILO has kernel %q, %d sectors", k.Name, sectors)
	if k.RAMDisk > 0 {
		if sectors, err = m.section(fmt.Sprintf("the initial RAM disk of %q", k.Name), k.Initrd); err != nil {
			return err
		}
		link += fmt.Sprintf(", and an initial RAM disk of %d", sectors)
	}
	m.links = append(m.links, link)
	return nil
}

// liloPasswords are the possible lengths of a password in bytes: a SHA-1, or two CRCs, depending on the build.
var liloPasswords = []int64{20, 8}

// kernels decodes the table. Only one password length can fit: at the address of a kernel, the other length finds zeros
// or text.
func (m *liloMap) kernels(b []byte) (list []liloKernel, err error) {
	for _, password := range liloPasswords {
		list, bad := m.kernelsOf(b, password)
		if bad == nil {
			return list, nil
		}
		err = cmp.Or(err, bad)
	}
	return nil, err
}

// liloName decodes the name of a kernel: printable characters, with zeros behind them.
func liloName(b []byte) (name string, ok bool) {
	name, rest, ended := strings.Cut(string(b), "\x00")
	return name, ended && strings.Trim(rest, "\x00") == "" &&
		!strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r > '~' })
}

// kernelsOf decodes a table whose passwords have the given length. Zeros follow the last entry.
func (m *liloMap) kernelsOf(b []byte, password int64) (list []liloKernel, err error) {
	head := liloMaxName + password
	at := int64(0)
	for ; at+head+liloTail <= int64(len(b)) && b[at] != 0; at += head + liloTail {
		name, ok := liloName(b[at : at+liloMaxName])
		tail := b[at+head:][:liloTail]
		k := liloKernel{
			Name: name, At: at + head, RAMDisk: binary.LittleEndian.Uint32(tail),
			Flags: binary.LittleEndian.Uint16(tail[atLiloFlags:]),
		}
		if !ok {
			return nil, unsoundf("entry %d of its table of kernels has no name", len(list)+1)
		}
		if k.Start, err = m.address(tail[atLiloStart:]); err != nil {
			return nil, err
		}
		if initrd := tail[atLiloInitrd:atLiloStart]; (k.RAMDisk > 0) == ondisk.IsZero(initrd) {
			return nil, unsoundf("size and address of the initial RAM disk of kernel %q contradict each other",
				k.Name)
		}
		if k.RAMDisk > 0 {
			if k.Initrd, err = m.address(tail[atLiloInitrd:]); err != nil {
				return nil, err
			}
		}
		list = append(list, k)
	}
	if len(list) == 0 || !ondisk.IsZero(b[at:]) {
		return nil, unsoundf("its table of kernels is empty, or does not end in zeros")
	}
	return list, nil
}
