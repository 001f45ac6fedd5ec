package windows

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/hive"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume"
	"github.com/trueup/trueup/internal/volume/identify"
)

// BCD finds the devices in the BCD stores of Windows Vista and later. Each device names a partition of an MBR disk by
// disk signature and byte offset, and the boot manager compares both.
var BCD = hives{"bcd", repairBCD, bootStores, findDevices}.finder()

// bootStores returns the paths of the stores for BIOS and for UEFI, which can lie on an MBR disk too.
func bootStores(*boot.Guest, boot.Partition) ([]string, error) {
	return []string{"Boot/BCD", "EFI/Microsoft/Boot/BCD"}, nil
}

// device is a partition of an MBR disk in an element. It follows the GUID of additional options, or is nested in
// another device: a file of a RAM disk lies on a partition. Sources: mistyprojects.co.uk, BCDEdit,
// device_partition.htm; BCD-SYS, Linux/update_device.sh. The names come from ReactOS, boot/environ/include/bl.h.
type device struct {
	Type      uint32 // 6: partition
	Flags     uint32
	Size      uint32 // of the device, bytes: 0x48
	_         uint32
	Offset    uint64 // of the partition, bytes
	_         uint64
	LocalType uint32 // of the partition's container; 0 for a disk, others for RAM disks, files, virtual disks
	Style     uint32 // 1: MBR
	Signature uint32 // of the disk
	_         [28]byte
}

const (
	devicePartition = 6
	deviceLength    = 0x48
	deviceOffset    = 0x10 // of the field Offset
	deviceUnit      = 4    // alignment of a device in bytes
	localDisk       = 0
	styleMBR        = 1

	maxElements     = 4096
	maxElementBytes = 4 << 20 // of all elements of a store
)

// devices finds the partitions of MBR disks in the data of an element, and returns their byte offsets. Lengths around a
// nested device differ by kind and version, so it searches for a pattern: these 20 bytes do not occur by chance.
func devices(data []byte) (at []int64, found []device) {
	var d device
	for i := 0; i+deviceLength <= len(data); i += deviceUnit {
		if binary.LittleEndian.Uint32(data[i:]) != devicePartition ||
			binary.LittleEndian.Uint32(data[i+8:]) != deviceLength {
			continue
		}
		ondisk.Fill(data[i:i+deviceLength], binary.LittleEndian, &d)
		if d.LocalType == localDisk && d.Style == styleMBR && ondisk.IsZero(data[i+0xc:i+0x10]) &&
			ondisk.IsZero(data[i+0x18:i+0x20]) {
			at, found = append(at, int64(i)), append(found, d)
		}
	}
	return at, found
}

// store is the state of a walk through a BCD store.
type store struct {
	*guestHive
	elements int   // number of elements so far
	bytes    int64 // size of these elements
	starts   map[int]bool
	order    []int // the named partitions in store order; starts marks the start partitions of Windows
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

// regBinary is REG_BINARY, the type of a registry value with binary data.
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

// osDevice is the element of a loader that names the partition of its Windows, by a device at the start of the data. A
// nested device belongs to a file, such as the RAM disk of a recovery system.
const (
	osDevice    = "21000001"
	deviceFirst = 0x10 // after the GUID
)

// names records a named partition, unless n is 0, and whether Windows starts from it.
func (s *store) names(n int, starts bool) {
	if n == 0 {
		return
	}
	if _, ok := s.starts[n]; !ok {
		s.order, s.starts[n] = append(s.order, n), false
	}
	s.starts[n] = s.starts[n] || starts
}

// elementKind describes an element by its number. Any other name is text from the image, and is not repeated.
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

// BootIni reads the menu of NTLDR. It counts partitions, so no move breaks it. Its other entries start boot sectors
// saved in files, which store a position.
var BootIni = boot.Finder{Name: "boot.ini", Find: boot.Everywhere(findBootIni)}

const (
	maxBootIni    = 64 << 10 // bytes; NTLDR itself reads far less
	maxSaved      = 64       // saved boot sectors of a partition
	maxSavedBytes = 64 << 10 // bytes of one: some include the following sectors

	repairIni = "correct \\boot.ini in the guest"
)

func findBootIni(g *boot.Guest, p boot.Partition, f *boot.Found) error {
	if !p.Active || !p.InMBR() {
		return nil
	}
	files, err := windowsFiles(g, p)
	if err != nil {
		if ondisk.Understood(err) || errors.Is(err, ondisk.ErrNoMatch) {
			return nil // findWindows reports it
		}
		return err
	}
	var menu []byte
	file, err := ifThere(files.Open("boot.ini"))
	if file != nil {
		if file.Size() > maxBootIni {
			f.NotSeen(p.Number, `\boot.ini`,
				fmt.Sprintf("it has %d bytes, and only the first %d were read", file.Size(), maxBootIni))
		}
		menu, err = ondisk.Bytes(file, 0, min(file.Size(), maxBootIni))
	}
	if err := f.Unread("boot-ini", p.Number, fmt.Sprintf("\\boot.ini of partition %d cannot be read", p.Number), err,
		repairIni); err != nil {
		return err
	}
	if p.Kind == table.Primary { // in a hybrid MBR, it counts the protective partitions too
		checkArc(f, g, p, menu)
	}
	names, err := savedSectors(files, menu)
	if err := f.Unread("saved-boot-sector", p.Number, fmt.Sprintf("the root of partition %d cannot be read", p.Number),
		err, repairDisk); err != nil {
		return err
	}
	for _, name := range names {
		if err := savedSector(f, g, p, name); err != nil {
			return err
		}
	}
	return nil
}

// arcPath is NTLDR's name for a folder: disk r of the BIOS and partition n, counted over the used and not extended
// partitions, primary ones first. scsi() and signature() name disks in other ways.
var arcPath = ondisk.LazyPattern(`(?i)multi\(\d{1,3}\)disk\(\d{1,3}\)rdisk\((\d{1,3})\)partition\((\d{1,3})\)`)

// savedPath matches a path on C: at the start of a menu line.
var savedPath = ondisk.LazyPattern(`(?im)^[ \t]*c:\\([^/:*?"<>|=\r\n]{1,128}?)[ \t]*=`)

// checkArc compares the partition numbers in boot.ini with the existing partitions. All moves keep numbers and order.
func checkArc(f *boot.Found, g *boot.Guest, p boot.Partition, menu []byte) {
	counted := arcPartitions(g)
	said := map[string]bool{}
	for _, m := range arcPath().FindAllSubmatch(menu, maxSaved) {
		number := string(m[2])
		n, err := strconv.Atoi(number)
		if string(m[1]) != "0" || said[number] || err != nil {
			continue
		}
		said[number] = true
		if n >= 1 && n <= len(counted) {
			f.Link(counted[n-1], "\\boot.ini of partition %d starts Windows from partition(%d), which is partition %d",
				p.Number, n, counted[n-1])
			continue
		}
		f.Issues = append(f.Issues, ondisk.Issue{
			Code: "boot-ini", Effect: ondisk.Note, Partition: p.Number, Remedy: repairIni,
			Text: fmt.Sprintf("\\boot.ini names partition(%d) of the first disk, which has %d", n, len(counted)),
		})
	}
}

// arcPartitions returns the partition numbers in NTLDR's counting order.
func arcPartitions(g *boot.Guest) []int {
	var out []int
	for _, kind := range []table.Kind{table.Primary, table.Logical, table.Entry} {
		for _, p := range g.Partitions {
			if p.Kind == kind {
				out = append(out, p.Number)
			}
		}
	}
	return out
}

// savedName matches the usual names of files with a boot sector: BOOTSECT.DOS of the Windows setup, bootsect.lnx and
// others.
var savedName = ondisk.LazyPattern(`(?i)^bootsect\.[^.]{1,16}$`)

// savedPaths returns the files started by the menu.
func savedPaths(menu []byte) []string {
	var names []string
	for _, m := range savedPath().FindAllSubmatch(menu, maxSaved+1) {
		names = append(names, strings.ToLower(strings.ReplaceAll(string(m[1]), `\`, "/")))
	}
	return names
}

// savedSectors returns the files in the root that hold boot sectors, sorted by name.
func savedSectors(files guestfile.FS, menu []byte) ([]string, error) {
	names := savedPaths(menu)
	entries, err := files.List("")
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if !e.Dir && savedName().MatchString(e.Name) {
			names = append(names, strings.ToLower(e.Name))
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) > maxSaved {
		return nil, fmt.Errorf("%w of %d saved boot sectors", ondisk.ErrLimit, maxSaved)
	}
	return names, nil
}

// savedSector reads a file that may hold a boot sector.
func savedSector(f *boot.Found, g *boot.Guest, p boot.Partition, name string) error {
	what := fmt.Sprintf("the boot sector saved in %s of partition %d cannot be read", shown(name), p.Number)
	file, err := windowsFile(g, p, name)
	if err != nil {
		return f.Unread("saved-boot-sector", 0, what, err, repairIni)
	}
	if file.Size() < 512 || file.Size() > maxSavedBytes {
		return nil
	}
	b, err := ondisk.Bytes(file, 0, 512)
	if err != nil {
		return err
	}
	if c := g.Loader(b[:boot.CodeLen]); c.Absolute {
		f.Warn("saved-boot-sector", 0, fmt.Sprintf("%s in %s of partition %d finds its files by absolute sectors",
			c.Name, shown(name), p.Number),
			"reinstall that loader on the copy, and save its boot sector again")
		return nil
	}
	if !hasHidden(b) {
		return nil
	}
	r := boot.Ref{
		Kind: "hidden sectors, saved boot sector", Partition: p.Number, File: file.Path, Off: volume.AtHidden,
		Encode: boot.EncodeSectors(512),
	}
	if r.At, r.Raw, err = g.At(p, file, r.Off, 4); err != nil {
		return f.Unread("saved-boot-sector", 0, what, err, repairIni)
	}
	r.Points = int64(binary.LittleEndian.Uint32(r.Raw)) * 512
	aim(g, &r)
	kept := fileRefs{g: g, p: p, file: file, code: "saved-boot-sector", refs: []boot.Ref{r}}
	return kept.keep(f)
}

// hasHidden reports whether a sector is a boot sector with a BIOS parameter block for 512-byte sectors. Only then does
// the field at 1ch hold the hidden sectors.
func hasHidden(b []byte) bool {
	jump := b[0] == 0xeb || b[0] == 0xe9
	return jump && b[510] == 0x55 && b[511] == 0xaa && binary.LittleEndian.Uint16(b[0x0b:]) == 512
}

// Recovery finds the places of the recovery system in ReAgent.xml. Elements such as WinreLocation name a partition by
// its byte offset in decimal, on GPT disks too. A wrong offset disables only the recovery system.
var Recovery = boot.Finder{Name: "winre", Find: boot.Everywhere(findRecovery)}

// recoveryFiles are the paths of ReAgent.xml: in Windows, and next to the recovery system itself.
var recoveryFiles = []string{"Windows/System32/Recovery/ReAgent.xml", "Recovery/WindowsRE/ReAgent.xml"}

const (
	reenable = "run reagentc /disable and reagentc /enable after the first boot of the copy"

	maxRecovery     = 64 << 10 // bytes of the file; it usually has about 1200
	maxRecoveryTags = 64
)

func findRecovery(g *boot.Guest, p boot.Partition, f *boot.Found) error {
	if !identify.Traits(p.Volume.Kind).Windows {
		return nil
	}
	for _, path := range recoveryFiles {
		file, err := windowsFile(g, p, path)
		var refs []boot.Ref
		if err == nil {
			refs, err = recoveryRefs(g, p, file)
		}
		var kept boot.Found // at most warnings
		what := fmt.Sprintf("%s of partition %d cannot be read", shown(path), p.Number)
		if err := kept.Unread("winre", 0, what, err, reenable); err != nil {
			return err
		}
		for i := range kept.Issues {
			kept.Issues[i].Text += ": the recovery system may be disabled"
		}
		r := fileRefs{g: g, p: p, file: file, code: "winre", refs: refs}
		if err := r.keep(&kept); err != nil {
			return err
		}
		f.Refs = append(f.Refs, kept.Refs...)
		for _, i := range kept.Issues {
			f.Warn(i.Code, i.Partition, i.Text, i.Remedy)
		}
	}
	return nil
}

func recoveryRefs(g *boot.Guest, p boot.Partition, file *guestfile.File) ([]boot.Ref, error) {
	if file.Size() > maxRecovery {
		return nil, fmt.Errorf("%w of %d bytes", ondisk.ErrLimit, maxRecovery)
	}
	raw, err := ondisk.Bytes(file, 0, file.Size())
	if err != nil {
		return nil, err
	}
	text, in := decodeText(raw)
	var refs []boot.Ref
	for _, l := range locations(text) {
		if len(refs) == maxRecoveryTags {
			return nil, fmt.Errorf("%w of %d places", ondisk.ErrLimit, maxRecoveryTags)
		}
		if l.offset == 0 || !onThisDisk(g, l) {
			continue
		}
		r := boot.Ref{
			Kind: "winre " + l.name, Partition: p.Number, File: file.Path, Off: in.start + int64(l.from*in.unit),
			Points: l.offset,
		}
		if r.At, r.Raw, err = g.At(p, file, r.Off, int64((l.to-l.from)*in.unit)); err != nil {
			return nil, err
		}
		if aim(g, &r); r.Target != 0 {
			r.Encode = stretch{in, l.tag - l.from, l.number - l.from, l.to - l.from}.encode
			r.Loss, r.Remedy = "the recovery system may be disabled", reenable
		}
		refs = append(refs, r)
	}
	return refs, nil
}

// onThisDisk reports whether a location is on this disk. The id is the signature of an MBR disk, in decimal; the guid
// belongs to a GPT. A missing one is 0.
func onThisDisk(g *boot.Guest, l location) bool {
	guid := strings.ToLower(strings.Trim(l.guid, "{}"))
	if strings.Trim(guid, "0-") != "" {
		// No specification defines this GUID. In known files, it is the GUID of the disk.
		return guid == g.GUID ||
			slices.ContainsFunc(g.Partitions, func(p boot.Partition) bool { return p.GUID == guid })
	}
	n, err := strconv.ParseUint(l.id, 10, 32)
	return err != nil || n == 0 || (g.Scheme == table.MBR || g.Hybrid()) && n == uint64(g.Signature)
}

// stretch is a tag up to the end of its number, with the white space before it. White space between tags has no
// meaning, so it absorbs a change in the length of the number. The fields count characters.
type stretch struct {
	in               script
	tag, number, end int
}

// encode writes a byte offset in decimal.
func (s stretch) encode(raw []byte, to int64) ([]byte, error) {
	digits := []byte(strconv.FormatInt(to, 10))
	spare := s.tag + s.end - s.number - len(digits) // remaining white space
	if spare < 0 {
		return nil, fmt.Errorf("a number of %d digits: %w of %d, for which there is room", len(digits), ondisk.ErrLimit,
			len(digits)+spare)
	}
	if s.tag == 0 { // leading zeros do not change the number
		digits = append(bytes.Repeat([]byte("0"), spare), digits...)
		spare = 0
	}
	out := s.in.encode(bytes.Repeat([]byte(" "), max(0, spare-s.tag)))
	out = append(out, raw[max(0, s.tag-spare)*s.in.unit:s.number*s.in.unit]...)
	return append(out, s.in.encode(digits)...), nil
}

// script is the encoding of a text. Only its ASCII characters are searched.
type script struct {
	start int64 // of the first character, after a byte order mark
	unit  int   // bytes of a character; in UTF-8 each byte counts as one
	low   int   // index of the byte with the ASCII code in a character
}

// decodeText returns a byte for each character of a UTF-8 or UTF-16 text: the ASCII code, or 0xff. The first bytes
// determine the encoding, since UTF-16 has a mark or begins with a declaration. Spec: XML 1.0, appendix F.
func decodeText(raw []byte) ([]byte, script) {
	switch {
	case bytes.HasPrefix(raw, []byte{0xff, 0xfe}), bytes.HasPrefix(raw, []byte{'<', 0, '?', 0}):
		return decodeWide(raw, 0)
	case bytes.HasPrefix(raw, []byte{0xfe, 0xff}), bytes.HasPrefix(raw, []byte{0, '<', 0, '?'}):
		return decodeWide(raw, 1)
	case bytes.HasPrefix(raw, []byte{0xef, 0xbb, 0xbf}):
		return raw[3:], script{start: 3, unit: 1}
	}
	return raw, script{unit: 1}
}

func decodeWide(raw []byte, low int) ([]byte, script) {
	s := script{unit: 2, low: low}
	if raw[low] == 0xff { // the mark U+FEFF
		s.start = 2
	}
	raw = raw[s.start:]
	text := make([]byte, len(raw)/2)
	for i := range text {
		if text[i] = raw[2*i+low]; raw[2*i+1-low] != 0 {
			text[i] = 0xff
		}
	}
	return text, s
}

// encode encodes ASCII characters.
func (s script) encode(text []byte) []byte {
	out := make([]byte, len(text)*s.unit)
	for i, c := range text {
		out[i*s.unit+s.low] = c
	}
	return out
}

// location is a tag of ReAgent.xml that names a partition: <WinreLocation path="\Recovery\WindowsRE" id="0"
// offset="1048576" guid="{...}"/>. The places are character indexes in the text.
type location struct {
	name   string
	id     string
	guid   string
	offset int64 // bytes
	from   int   // start of the white space before the tag
	tag    int
	number int
	to     int // end of the number
}

// recoveryTag matches a comment, or a tag with its name and attributes, each after white space. It covers the subset of
// XML in such files. The last group is the end of a tag; without it the tag is the rest of the text.
var recoveryTag = ondisk.LazyPattern(`(?s)[ \t\r\n]*(?:<!--(?:.*?-->|.*)|` +
	`<([A-Za-z]*)((?:"[^"]*"|'[^']*'|[^>"'])*)(?:(>)|.*))`)

var recoveryAttribute = ondisk.LazyPattern(`^[ \t\r\n]*([A-Za-z]+)=("[^"]*"|'[^']*')`)

// locations finds the tags whose names end in "Location" and that have an offset.
func locations(text []byte) (out []location) {
	for _, m := range recoveryTag().FindAllSubmatchIndex(text, -1) {
		if m[6] < 0 {
			continue
		}
		l := location{name: string(text[m[2]:m[3]]), from: m[0], tag: m[2] - 1}
		if l.read(text[:m[5]], m[4]); l.to > 0 && strings.HasSuffix(l.name, "Location") {
			out = append(out, l)
		}
	}
	return out
}

// read parses the attributes of a tag in text, from byte at on.
func (l *location) read(text []byte, at int) {
	for {
		m := recoveryAttribute().FindSubmatchIndex(text[at:])
		if m == nil {
			return
		}
		from, to := at+m[4]+1, at+m[5]-1
		value := string(text[from:to])
		switch string(text[at+m[2] : at+m[3]]) {
		case "id":
			l.id = value
		case "guid":
			l.guid = value
		case "offset":
			if n, err := strconv.ParseUint(value, 10, 63); err == nil && l.to == 0 {
				l.offset, l.number, l.to = int64(n), from, to
			}
		}
		at += m[1]
	}
}
