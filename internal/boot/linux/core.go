package linux

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/ulikunitz/xz/lzma"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/ondisk"
)

// Places in core.img behind diskboot.img, where the decompressor begins. Spec: GRUB 2.06,
// grub-core/boot/i386/pc/startup_raw.S; include/grub/offsets.h, GRUB_DECOMPRESSOR_I386_PC_*.
const (
	atCompressed   = 0x08 // u32: bytes of the compressed kernel with its modules
	atUncompressed = 0x0c // u32
	decompressorAt = 0x8200
	maxCore        = 8 << 20 // bytes of a kernel with its modules; GRUB loads it below 16 MiB
)

// lzmaFrom is the code that passes the compressed kernel to the decoder: mov edi,100000h; mov esi,its place.
var lzmaFrom = []byte{0xbf, 0x00, 0x00, 0x10, 0x00, 0xbe}

// lzmaHeader describes the stream, which has no header of its own. Spec: GRUB 2.06, startup_raw.S (FIXED_PROPS: lc 3,
// lp 0, pb 2) and util/mkimage.c, compress_kernel_lzma.
func lzmaHeader(uncompressed uint32) []byte {
	h := binary.LittleEndian.AppendUint32([]byte{0x5d}, 1<<16) // the dictionary
	return binary.LittleEndian.AppendUint64(h, uint64(uncompressed))
}

// errBuild is returned for a core image of a build whose modules cannot be told apart.
var errBuild = errors.New("its core image is of a build that is not known")

// unpackCore returns the kernel with its modules of a core image, without diskboot.img.
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
	packed := io.MultiReader(bytes.NewReader(lzmaHeader(uncompressed)), bytes.NewReader(img[at:at+compressed]))
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

// Modules of a GRUB: a header, and objects behind each other. Spec: GRUB 2.06, include/grub/kernel.h.
const (
	modulesMagic = "mimg"
	infoLen32    = 12 // magic, offset of the first object, bytes of all: 32 bits each
	infoLen64    = 24 // the last two of 64 bits, at multiples of 8
	objectHeader = 8  // type and length with this header
	objMemdisk   = 1
	objConfig    = 2
	objPrefix    = 3
	maxObjects   = 4096
	maxText      = 64 << 10 // bytes of a script or name
	maxMemdisk   = 8 << 20  // bytes of all modules of a program
)

// built is what was put into a GRUB when it was built.
type built struct {
	script, prefix string
	memdisk        []byte // nil: none
}

// readModules finds the modules in b: at its start, or, of a kernel, wherever they stand.
func readModules(b []byte, wide bool) (out built, err error) {
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

func readObjects(b []byte) (out built) {
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

// inMemdisk returns the configuration of a GRUB whose prefix is its memory disk, which grub-mkstandalone makes as an
// archive of tar.
func (b built) inMemdisk() (string, error) {
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
	return "", errors.New("its memory disk holds no boot/grub/grub.cfg that is read")
}

// configOf describes where a GRUB 2 looks for its configuration.
func (b built) configOf(loader string, home int) boot.Config {
	c := boot.Config{Loader: loader, Syntax: boot.GRUB2, Home: home, Script: b.script, Prefix: b.prefix}
	if bytes.HasPrefix([]byte(b.prefix), []byte("(memdisk)")) {
		text, err := b.inMemdisk()
		if c.Script += text; err != nil {
			c.Why = err.Error()
		}
	}
	return c
}

// grub2Paths are the places of the configuration of a GRUB 2 that does not say where it is.
var grub2Paths = []string{"boot/grub/grub.cfg", "grub/grub.cfg", "boot/grub2/grub.cfg", "grub2/grub.cfg"}

// configure records where the GRUB 2 with a core image looks for its configuration. entries follow the sector of
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
	var all built
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
