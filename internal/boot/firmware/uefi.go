package firmware

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
)

// removable lists the loaders that firmware starts if none of its boot entries works, one for each machine type. Spec:
// UEFI 2.10, 3.5.1.1.
var removable = []string{"BOOTX64.EFI", "BOOTIA32.EFI", "BOOTAA64.EFI", "BOOTARM.EFI", "BOOTRISCV64.EFI"}

// Limits for an EFI system partition.
const (
	maxFolders = 64 // of \EFI
	maxLoaders = 8  // named in a report
)

// UEFI finds how UEFI firmware boots, and reports the positions in the firmware's memory.
var UEFI = boot.Finder{Name: "uefi", Find: boot.Everywhere(systemPartition)}

func systemPartition(g *boot.Guest, p boot.Partition, f *boot.Found) error {
	if !boot.IsESP(p) {
		return nil
	}
	l, err := startable(g, p)
	if err != nil && !ondisk.Understood(err) && !errors.Is(err, ondisk.ErrNoMatch) {
		return err
	}
	const starts = "UEFI firmware starts a loader from partition %d, the EFI system partition"
	switch {
	case errors.Is(err, ondisk.ErrNoMatch):
		f.Link(p.Number, starts+", whose files trueup cannot read", p.Number)
	case err != nil:
		f.Link(p.Number, starts+", whose files trueup cannot read: %v", p.Number, err)
	default:
		startedBy(f, l, p.Number)
	}
	entries(f, l, err == nil, p.Number)
	if err == nil {
		return nil
	}
	_, used, aerr := g.Area(p) // zeros mean an unformatted partition
	if used {
		g.Configured(boot.Config{
			Loader: fmt.Sprintf("the loader that UEFI firmware starts from partition %d", p.Number), Home: p.Number,
			Why: boot.WhyUnseen(p, err),
		})
	}
	return aerr
}

// efiLoaders are the programs on an EFI system partition that firmware can start.
type efiLoaders struct {
	fallback []string // at the removable path, which needs no boot entry
	named    []string // of systems, started only by a boot entry
	more     int      // loaders of systems missing from named
}

// startable finds the programs in their standard folders: \EFI\BOOT, one folder for each vendor, and
// \EFI\Microsoft\Boot.
func startable(g *boot.Guest, p boot.Partition) (l efiLoaders, err error) {
	files, err := g.Files(p)
	if err != nil {
		return l, err
	}
	folders, err := listed(files, "EFI")
	if err != nil {
		return l, err
	}
	for _, e := range folders[:min(len(folders), maxFolders)] {
		path := "EFI/" + e.Name
		if strings.EqualFold(e.Name, "Microsoft") {
			path += "/Boot"
		}
		if !e.Dir {
			continue
		}
		programs, err := listed(files, path)
		if err != nil {
			return l, err
		}
		l.add(path, programs)
	}
	return l, nil
}

// listed returns the entries of a folder, or none if it is absent.
func listed(files guestfile.FS, path string) ([]guestfile.Entry, error) {
	e, err := files.List(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return e, err
}

func (l *efiLoaders) add(folder string, programs []guestfile.Entry) {
	for _, e := range programs {
		name := `\` + strings.ReplaceAll(folder+"/"+e.Name, "/", `\`)
		named := func(n string) bool { return strings.EqualFold(n, e.Name) }
		switch {
		case e.Dir || !strings.EqualFold(name[max(0, len(name)-4):], ".efi"):
		case strings.EqualFold(folder, "EFI/BOOT"):
			if slices.ContainsFunc(removable, named) {
				l.fallback = append(l.fallback, name)
			}
		case len(l.named) == maxLoaders:
			l.more++
		default:
			l.named = append(l.named, name)
		}
	}
}

func startedBy(f *boot.Found, l efiLoaders, partition int) {
	names := strings.Join(l.named, ", ")
	if l.more > 0 {
		names += fmt.Sprintf(" and %d more", l.more)
	}
	if len(l.named) > 0 {
		f.Link(partition, "boot entries of UEFI firmware can name %s on partition %d, the EFI system partition",
			names, partition)
	}
	fallback := strings.Join(l.fallback, " or ")
	switch {
	case len(l.fallback) > 0 && len(l.named) > 0:
		f.Link(partition, "UEFI firmware without such an entry starts %s from partition %d", fallback, partition)
	case len(l.fallback) > 0:
		f.Link(partition, "UEFI firmware starts %s from partition %d, the EFI system partition", fallback, partition)
	case len(l.named) == 0:
		f.Link(partition,
			"partition %d, the EFI system partition, holds no loader where UEFI firmware looks for one", partition)
	}
}

// entries reports the positions in the firmware's memory: a boot entry stores the GUID, number, start and size of its
// partition. EDK2, the base of the firmware of most virtual machines, uses only the GUID of the usual short entry and
// boots a moved partition. It compares an entry with a full device path byte by byte (both measured with OVMF 2022.11),
// and other firmware may do so with every entry. A loader in \EFI\BOOT needs no entry. known reports whether the files
// could be read.
func entries(f *boot.Found, l efiLoaders, known bool, partition int) {
	const code, text = "efi-boot-entries", "boot entries in the firmware's memory (NVRAM, not on this disk) store " +
		"the start of the EFI system partition, and keep the old start"
	const anew = "if the machine does not boot from the copy, choose the loader's file in the firmware's menu, or " +
		"recreate the entry from a rescue system (efibootmgr, bcdboot)"
	if known && len(l.fallback) == 0 && len(l.named) > 0 {
		f.Warn(code, partition, text+", and there is no fallback loader in \\EFI\\BOOT", anew)
		return
	}
	remedy := anew
	if len(l.fallback) > 0 {
		remedy = fmt.Sprintf("if the machine does not boot from the copy, start %s in the firmware's menu, and let "+
			"its system recreate the entry", l.fallback[0])
	}
	f.Issues = append(f.Issues, ondisk.Issue{
		Code: code, Effect: ondisk.Note, OnMove: true, Partition: partition, Text: text,
		Remedy: remedy,
	})
}
