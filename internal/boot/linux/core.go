package linux

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/ulikunitz/xz/lzma"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
)

// Offsets in core.img after diskboot.img, where the decompressor begins. Spec: GRUB 2.06,
// grub-core/boot/i386/pc/startup_raw.S; include/grub/offsets.h, GRUB_DECOMPRESSOR_I386_PC_*.
const (
	atCompressed   = 0x08 // u32: bytes of the compressed kernel with its modules
	atUncompressed = 0x0c // u32
	decompressorAt = 0x8200
	maxCore        = 8 << 20 // bytes of a kernel with its modules; GRUB loads it below 16 MiB
)

// lzmaFrom is the code that passes the compressed kernel to the decoder: mov edi,100000h; mov esi,address.
var lzmaFrom = []byte{0xbf, 0x00, 0x00, 0x10, 0x00, 0xbe}

// errBuild means a core image of an unknown build, whose modules cannot be located.
var errBuild = errors.New("its core image is of an unknown build")

// unpackCore returns the kernel and its modules from a core image without diskboot.img.
func unpackCore(img []byte) ([]byte, error) {
	call := bytes.Index(img, lzmaFrom)
	if call < 0 || call+len(lzmaFrom)+4 > len(img) {
		return nil, errBuild
	}
	compressed := int64(binary.LittleEndian.Uint32(img[atCompressed:]))
	uncompressed := binary.LittleEndian.Uint32(img[atUncompressed:])
	at := int64(binary.LittleEndian.Uint32(img[call+len(lzmaFrom):])) - decompressorAt
	if at <= int64(call) || at > int64(len(img)) || compressed > int64(len(img))-at || uncompressed > maxCore {
		return nil, errBuild
	}
	// The LZMA stream has no header. Spec: GRUB 2.06, startup_raw.S (FIXED_PROPS: lc 3, lp 0, pb 2) and
	// util/mkimage.c, compress_kernel_lzma.
	header := binary.LittleEndian.AppendUint32([]byte{0x5d}, 1<<16) // dictionary size
	header = binary.LittleEndian.AppendUint64(header, uint64(uncompressed))
	packed := io.MultiReader(bytes.NewReader(header), bytes.NewReader(img[at:at+compressed]))
	r, err := lzma.NewReader(packed)
	if err != nil {
		return nil, fmt.Errorf("%w (%w)", errBuild, err)
	}
	out := make([]byte, uncompressed)
	if _, err := io.ReadFull(r, out); err != nil {
		return nil, fmt.Errorf("%w (%w)", errBuild, err)
	}
	return out, nil
}

// The modules of GRUB: a header, followed by a sequence of objects. Spec: GRUB 2.06, include/grub/kernel.h.
const (
	modulesMagic = "mimg"
	infoLen32    = 12 // magic, offset of the first object, total bytes: 32 bits each
	infoLen64    = 24 // the last two have 64 bits, at multiples of 8
	objectHeader = 8  // type, and length including this header
	objMemdisk   = 1
	objConfig    = 2
	objPrefix    = 3
	maxObjects   = 4096
	maxText      = 64 << 10 // bytes of a script or name
	maxMemdisk   = 8 << 20  // bytes of all modules of a program
)

// embedded is the data embedded in a GRUB image by its installer.
type embedded struct {
	script, prefix string
	memdisk        []byte // nil if the image has no memory disk
}

// readModules finds the modules in b: at its start, or anywhere in a kernel.
func readModules(b []byte, wide bool) (out embedded, err error) {
	n := infoLen32
	if wide {
		n = infoLen64
	}
	for at := 0; ; at++ {
		next := bytes.Index(b[at:], []byte(modulesMagic))
		if next < 0 || at+next+n > len(b) {
			return out, errBuild
		}
		at += next
		first, size := infoOf(b[at:], wide)
		if first == uint64(n) && size >= first && size <= uint64(len(b)-at) { //nolint:gosec // at is in b
			return readObjects(b[at+n : at+int(size)]), nil //nolint:gosec // it is at most the length of b
		}
	}
}

func infoOf(b []byte, wide bool) (first, size uint64) {
	if wide {
		return binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:])
	}
	return uint64(binary.LittleEndian.Uint32(b[4:])), uint64(binary.LittleEndian.Uint32(b[8:]))
}

func readObjects(b []byte) (out embedded) {
	for n := 0; len(b) >= objectHeader && n < maxObjects; n++ {
		kind, size := binary.LittleEndian.Uint32(b), int64(binary.LittleEndian.Uint32(b[4:]))
		if size < objectHeader || size > int64(len(b)) {
			break
		}
		body := b[objectHeader:size]
		text, _, _ := bytes.Cut(body[:min(len(body), maxText)], []byte{0})
		switch kind {
		case objConfig:
			out.script += string(text) + "\n"
		case objPrefix:
			out.prefix = string(text)
		case objMemdisk:
			out.memdisk = body
		}
		b = b[size:]
	}
	return out
}

// inMemdisk returns the configuration in the memory disk, a tar archive made by grub-mkstandalone.
func (b embedded) inMemdisk() (string, error) {
	r := tar.NewReader(bytes.NewReader(b.memdisk))
	for range maxObjects {
		h, err := r.Next()
		if err != nil {
			break
		}
		if h.Name != "boot/grub/grub.cfg" && h.Name != "./boot/grub/grub.cfg" {
			continue
		}
		if h.Size > maxText {
			return "", fmt.Errorf("%s in its memory disk has %d bytes: %w of %d", h.Name, h.Size, ondisk.ErrLimit,
				maxText)
		}
		text, err := io.ReadAll(io.LimitReader(r, maxText))
		return string(text), err
	}
	return "", errors.New("its memory disk has no readable boot/grub/grub.cfg")
}

// configOf describes where GRUB 2 looks for its configuration.
func (b embedded) configOf(loader string, home int) boot.Config {
	c := boot.Config{Loader: loader, Syntax: boot.GRUB2, Home: home, Script: b.script, Prefix: b.prefix}
	if bytes.HasPrefix([]byte(b.prefix), []byte("(memdisk)")) {
		text, err := b.inMemdisk()
		if c.Script += text; err != nil {
			c.Why = err.Error()
		}
	}
	return c
}

// grub2Paths are the usual paths of GRUB 2's configuration, for an image of an unknown build.
var grub2Paths = []string{"boot/grub/grub.cfg", "grub/grub.cfg", "boot/grub2/grub.cfg", "grub2/grub.cfg"}

// configure records where the GRUB 2 of a core image looks for its configuration. entries locate the sectors after
// diskboot.img.
func (r *grubReader) configure(img grubImage, entries []grubEntry) error {
	loader := "GRUB 2 in " + img.place
	if !r.g.Starts(img.Partition) {
		return nil
	}
	var core []byte
	for _, e := range entries {
		b, err := ondisk.Bytes(r.g.Disk, ondisk.I64(e.Start)*grubSector, int64(e.Sectors)*grubSector)
		if err != nil {
			return err
		}
		core = append(core, b...)
	}
	var all embedded
	kernel, err := unpackCore(core)
	if err == nil {
		all, err = readModules(kernel, false)
	}
	if err != nil {
		r.g.Configured(boot.Config{Loader: loader, Syntax: boot.GRUB2, Paths: grub2Paths, Anywhere: true})
		return nil //nolint:nilerr // of such a build the usual places are searched
	}
	r.g.Configured(all.configOf(loader, img.Number))
	return nil
}

// EFI finds the configuration of every GRUB that UEFI firmware starts.
var EFI = boot.Finder{Name: "grub of uefi", Find: boot.Everywhere(findEFI)}

// Limits for the programs examined on an EFI system partition.
const (
	maxPrograms   = 16
	maxEFIFolders = 64
	maxSections   = 64
)

func findEFI(g *boot.Guest, p boot.Partition, _ *boot.Found) error {
	if !boot.IsESP(p) {
		return nil
	}
	files, err := g.Files(p)
	if err != nil {
		return tolerable(err)
	}
	folders, err := files.List("EFI")
	if err != nil {
		return tolerable(err)
	}
	left := maxPrograms
	for _, e := range folders[:min(len(folders), maxEFIFolders)] {
		if !e.Dir || e.Name == "." || e.Name == ".." {
			continue
		}
		path := "EFI/" + e.Name
		programs, err := files.List(path)
		if err != nil {
			return unreadable(g, p, path, err)
		}
		for _, x := range programs {
			name := strings.ToLower(x.Name)
			if x.Dir || !strings.HasSuffix(name, ".efi") || left == 0 {
				continue
			}
			left--
			if err := program(g, p, files, path, x.Name); err != nil {
				return err
			}
		}
	}
	return nil
}

// unreadable records a program of an EFI system partition that cannot be read. firmware.UEFI reports a wholly
// unreadable partition.
func unreadable(g *boot.Guest, p boot.Partition, path string, err error) error {
	if !ondisk.Understood(err) {
		return tolerable(err) // a folder without entries
	}
	g.Configured(boot.Config{
		Loader: fmt.Sprintf("the loader %s of partition %d", path, p.Number), Home: p.Number, Why: err.Error(),
	})
	return nil
}

// program records the configuration of GRUB in an EFI program. Other programs have no modules.
func program(g *boot.Guest, p boot.Partition, files guestfile.FS, folder, name string) error {
	f, err := files.Open(folder + "/" + name)
	if err != nil {
		return unreadable(g, p, folder+"/"+name, err)
	}
	mods, wide, err := modulesOf(f)
	if err != nil || mods == nil {
		return ondisk.Legible(err)
	}
	loader := fmt.Sprintf(`GRUB 2 in \%s\%s of partition %d`, strings.ReplaceAll(folder, "/", `\`), name, p.Number)
	all, err := readModules(mods, wide)
	if err != nil {
		g.Configured(boot.Config{Loader: loader, Syntax: boot.GRUB2, Paths: grub2Paths, Anywhere: true})
		return nil //nolint:nilerr // of such a build the usual places are searched
	}
	c := all.configOf(loader, p.Number)
	c.Paths = []string{folder + "/grub.cfg"} // $cmdpath
	g.Configured(c)
	return nil
}

// modulesOf returns the section with GRUB's modules, or nil if the program has none. wide reports a 64-bit processor.
// Spec: Microsoft PE format, "COFF File Header", "Section Table"; GRUB 2.06, util/mkimage.c, "mods".
func modulesOf(f *guestfile.File) (mods []byte, wide bool, err error) {
	head, err := ondisk.Bytes(f, 0, min(f.Size(), 4096))
	if err != nil || len(head) < 0x40 || string(head[:2]) != "MZ" {
		return nil, false, err
	}
	at := int64(binary.LittleEndian.Uint32(head[0x3c:]))
	if at+24 > int64(len(head)) || string(head[at:at+4]) != "PE\x00\x00" {
		return nil, false, nil
	}
	count := min(int64(binary.LittleEndian.Uint16(head[at+6:])), maxSections)
	table := at + 24 + int64(binary.LittleEndian.Uint16(head[at+20:]))
	for i := range count {
		s := table + i*40
		if s+40 > int64(len(head)) {
			break
		}
		if string(head[s:s+8]) != "mods\x00\x00\x00\x00" {
			continue
		}
		size, place := int64(binary.LittleEndian.Uint32(head[s+16:])), int64(binary.LittleEndian.Uint32(head[s+20:]))
		if place > f.Size() || size > f.Size()-place || size > maxMemdisk {
			return nil, false, nil
		}
		machine := binary.LittleEndian.Uint16(head[at+4:])
		wide := machine == 0x8664 || machine == 0xaa64 || machine == 0x5064 || machine == 0x6264
		mods, err := ondisk.Bytes(f, place, size)
		return mods, wide, err
	}
	return nil, false, nil
}
