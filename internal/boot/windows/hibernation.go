package windows

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/ondisk"
)

// Hibernation finds a hibernated Windows: the kernel that wakes up has the old places of the volumes, and parts of
// their file systems, in memory.
var Hibernation = boot.Finder{Name: "hibernation", Find: boot.Everywhere(findHibernation)}

const hibernationFile = "hiberfil.sys"

// Magic numbers of the file, in capitals in some versions only. Spec: libhibr, "Windows Hibernation File format".
const (
	hibernated = "HIBR" // with fast startup too, which is the kernel of a system that was shut down
	resuming   = "RSTR" // a wake-up that did not come to its end
	awake      = "WAKE" // the file of an earlier sleep
)

func findHibernation(g *boot.Guest, p boot.Partition, f *boot.Found) error {
	const unknown = "it is not known whether a Windows is hibernated on the disk"
	file, err := windowsFile(g, p, hibernationFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var head []byte
	if err == nil {
		head, err = ondisk.Bytes(file, 0, min(file.Size(), int64(len(hibernated))))
	}
	if err != nil {
		return f.Unread("hibernated", 0, unknown, err, shutDown)
	}
	switch state := string(upper(head)); {
	case state == hibernated || state == resuming:
		f.Issues = append(f.Issues, ondisk.Issue{
			Code: "hibernated", Effect: ondisk.Refuse, OnMove: true,
			Text: fmt.Sprintf("the Windows of partition %d is hibernated, or was shut down with fast startup: it would wake "+
				"up with the old places of all partitions", p.Number),
			Remedy: "shut Windows down cleanly, without fast startup (powercfg /h off), and copy again",
		})
	case state != awake && !ondisk.IsZero(head):
		f.Warn("hibernated", 0,
			fmt.Sprintf("%s of partition %d begins with % x, which says nothing known of a hibernated Windows",
				shown(hibernationFile), p.Number, head), shutDown)
	}
	return nil
}

// upper converts ASCII letters, and only these, to upper case.
func upper(b []byte) []byte {
	out := make([]byte, len(b))
	for i, c := range b {
		if c >= 'a' && c <= 'z' {
			c -= 'a' - 'A'
		}
		out[i] = c
	}
	return out
}
