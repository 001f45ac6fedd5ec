package cli

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/realign"
)

// deviceFlags are those of a copy onto a block device.
type deviceFlags struct {
	overwrite string
	discard   bool
	claimed   *realign.Device // nil: DEST is a file
}

// deviceHelp explains copies onto devices.
const deviceHelp = `DEST can be a block device of Linux, such as a logical volume, a LUN or a loop device. It must not
be in use, and it must be blank or named by --overwrite-content: the refusal prints that flag with what the device
holds. The disk fills the device. Its first sector is written last, after the proof of all else; until then it holds a
mark, and a run that ends before leaves the device marked as unfinished. Zeros are written by the device itself where it
can do that; --discard gives their space back.`

func (d *deviceFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&d.overwrite, "overwrite-content", "", "overwrite a device that holds `WHAT`, as the refusal has it")
	f.BoolVar(&d.discard, "discard", false, "discard on the device what is zero")
}

// checkDest refuses a DEST that cannot be written, and flags that it cannot follow.
func (f *alignFlags) checkDest(src, dest string) error {
	if realign.IsPackage(dest) {
		for _, image := range append(f.With, src) {
			if err := realign.Local(image, "a copy that is a package"); err != nil {
				return err
			}
		}
	}
	if realign.IsRemote(dest) {
		return Usage("DEST %s is an image of a server, which trueup only reads; name a file", dest)
	}
	return f.checkDevice(src, dest)
}

// checkDevice refuses flags that a device cannot follow, and those of a device without one.
func (f *alignFlags) checkDevice(src, dest string) error {
	if !realign.IsDevice(dest) {
		if at, err := filepath.Abs(dest); err == nil && amongDevices(at) {
			return Usage("DEST %s: there is no such device; name one that is there, or a file elsewhere", dest)
		}
		if f.dev.overwrite != "" || f.dev.discard {
			return Usage("--overwrite-content and --discard are for a block device, and DEST %s is none; name "+
				"one", dest)
		}
		return nil
	}
	for _, x := range []struct {
		given bool
		what  string
	}{
		{f.force, "a device is overwritten with --overwrite-content; leave out --force"},
		{f.sums != "", "--checksums lists files, and sha256sum reads a device; leave it out"},
		{
			f.to.Format != "" && f.to.Format != "raw" || f.to.Round != 0,
			"it holds a raw disk of its own size; leave out --to " + f.to.String(),
		},
		{realign.IsPackage(dest), "its name is one of a package; name the device itself"},
		{src == "-", "a device is not written from a pipe; store SOURCE in a file first"},
	} {
		if x.given {
			return Usage("DEST %s is a block device: %s", dest, x.what)
		}
	}
	return nil
}

// amongDevices reports whether a path names a file that is not there, in the folder of the devices: it would lie in
// memory.
func amongDevices(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist) && strings.HasPrefix(path, "/dev/") && !strings.HasPrefix(path, "/dev/shm/")
}

// claim opens a DEST that is a device for this run alone, before the process confines itself.
func (d *deviceFlags) claim(dest string, sources ...string) (err error) {
	if !realign.IsDevice(dest) {
		return nil
	}
	if d.claimed, err = realign.OpenDevice(dest, sources...); err == nil {
		d.claimed.Overwrite, d.claimed.Discard = d.overwrite, d.discard
	}
	return err
}

// apart refuses disks of --with that lie on DEST.
func (d *deviceFlags) apart(others realign.Others) error {
	for _, o := range others {
		if err := d.claimed.Apart(&o.Image.Opened); err != nil {
			return err
		}
	}
	return nil
}

// leaving is what an interrupted copy onto a device does.
const leaving = "leaving the device as it is"
