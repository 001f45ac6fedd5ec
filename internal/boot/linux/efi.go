package linux

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
)

// EFI finds where the GRUBs look for their configuration that UEFI firmware starts.
var EFI = boot.Finder{Name: "grub of uefi", Find: boot.Everywhere(findEFI)}

// Limits of the programs of an EFI system partition that are looked into.
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

// unreadable records a program of an EFI system partition that cannot be looked into. That the partition as a whole
// cannot be read, firmware.UEFI says.
func unreadable(g *boot.Guest, p boot.Partition, path string, err error) error {
	if !boot.Understood(err) {
		return tolerable(err) // a folder without entries
	}
	g.Configured(boot.Config{
		Loader: fmt.Sprintf("the loader %s of partition %d", path, p.Number), Home: p.Number, Why: err.Error(),
	})
	return nil
}

// program records the configuration of a GRUB in a file. Other programs have no modules.
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

// modulesOf returns the section with the modules of a GRUB; nil if a program has none. wide reports a processor of 64
// bits. Spec: Microsoft PE format, "COFF File Header", "Section Table"; GRUB 2.06, util/mkimage.c, "mods".
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
