package windows

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/ondisk"
)

// Hibernation finds a hibernated Windows: the kernel that wakes up has the old places of the volumes, and parts of
// their file systems, in memory.
var Hibernation = boot.Finder{Name: "hibernation", Find: findHibernation}

const hibernationFile = "hiberfil.sys"

// Signatures of the file, in capitals since Windows 8. Zeros reserve its space. Spec: libhibr, "Windows Hibernation
// File format"; ntfs-3g, libntfs-3g/volume.c, ntfs_volume_check_hiberfile.
var (
	// asleep are those of a system that wakes up. With fast startup it is the kernel of one that was shut down.
	asleep = []string{"HIBR", "RSTR", "HORM"} // written, on its way up, and kept for every start
	awake  = []string{"WAKE", "\x00\x00\x00\x00", ""}
)

// link begins the file of a partition that only names the partition with the real one.
const link = "LINK"

const shutDownFully = "start the guest, run \"powercfg /h off\" and then \"shutdown /s /t 0\" in it, and copy it again"

func findHibernation(g *boot.Guest) (boot.Found, error) {
	var linked, real []boot.Partition
	f, err := boot.Everywhere(func(g *boot.Guest, p boot.Partition, f *boot.Found) error {
		state, err := hibernation(g, p)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			const unknown = "it is not known whether a Windows is hibernated on the disk"
			if boot.Understood(err) {
				f.Sign(boot.NotKnown, p, boot.NoMove, "%s%s cannot be read", shown(hibernationFile), p.Of())
			}
			return f.Unread("hibernated", 0, unknown, err, shutDownFully)
		case upper(state) == link:
			linked = append(linked, p)
			return nil
		}
		real = append(real, p)
		judgeHibernation(f, p, state)
		return nil
	})(g)
	if err == nil && len(real) == 0 {
		for _, p := range linked {
			elsewhere(&f, p)
		}
	}
	return f, err
}

// hibernation returns the signature of the file in a partition.
func hibernation(g *boot.Guest, p boot.Partition) (string, error) {
	file, err := windowsFile(g, p, hibernationFile)
	if err != nil {
		return "", err
	}
	head, err := ondisk.Bytes(file, 0, min(file.Size(), int64(len(link))))
	return string(head), err
}

func judgeHibernation(f *boot.Found, p boot.Partition, state string) {
	name := shown(hibernationFile) + p.Of()
	switch {
	case slices.Contains(awake, upper(state)):
		f.Sign(boot.ShutDown, p, "", "%s holds no system", name)
	case slices.Contains(asleep, upper(state)):
		f.Sign(boot.Hibernated, p, boot.NoMove, "%s holds a system (%s), perhaps of a fast startup", name, upper(state))
		f.Issues = append(f.Issues, ondisk.Issue{
			Code: "hibernated", Effect: ondisk.Refuse, OnMove: true,
			Text: fmt.Sprintf("the Windows%s is hibernated, or was shut down with fast startup: it "+
				"would wake up with the old places of all partitions", p.Of()),
			Remedy: shutDownFully,
		})
	default:
		f.Sign(boot.NotKnown, p, boot.NoMove, "%s begins with % x, which is no known state", name, state)
		f.Unbootable("hibernated", 0,
			fmt.Sprintf("%s begins with % x, so it is not known whether it holds a hibernated Windows", name, state),
			shutDownFully)
	}
}

// elsewhere reports a link to a file that is on no partition of this disk.
func elsewhere(f *boot.Found, p boot.Partition) {
	text := fmt.Sprintf("%s%s names another disk, so it is not known whether its Windows is hibernated",
		shown(hibernationFile), p.Of())
	f.Sign(boot.NotKnown, p, boot.NoMove, "%s", text)
	f.Unbootable("hibernated", 0, text, shutDownFully)
}

// upper converts ASCII letters, and only these, to upper case.
func upper(s string) string {
	out := []byte(s)
	for i, c := range out {
		if c >= 'a' && c <= 'z' {
			out[i] = c - 'a' + 'A'
		}
	}
	return string(out)
}
