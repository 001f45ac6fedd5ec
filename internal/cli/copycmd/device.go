package copycmd

import (
	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/cli/command"
	"github.com/trueup/trueup/internal/realign"
)

// deviceFlags are those of a copy onto a block device.
type deviceFlags struct {
	device    bool
	overwrite string
	discard   bool
	claimed   *realign.Device // nil: DEST is a file
}

// deviceHelp explains them.
const deviceHelp = `With --device, DEST is a block device of Linux, such as a logical volume, a LUN or a loop device.
It must not be in use, and it must be blank or named by --overwrite-content: the refusal prints that flag with what the
device holds. The disk fills the device. Its first sector is written last, after the proof of all else; until then it
holds a mark, and a run that ends before leaves the device marked as unfinished. Zeros are written by the device itself
where it can do that; --discard gives their space back.`

func (d *deviceFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.BoolVar(&d.device, "device", false, "DEST is a block device, which is overwritten")
	f.StringVar(&d.overwrite, "overwrite-content", "", "overwrite a device that holds `WHAT`, as the refusal has it")
	f.BoolVar(&d.discard, "discard", false, "discard on the device what is zero")
}

// checkDevice refuses flags that a device cannot follow, and those of a device without one.
func (f *alignFlags) checkDevice(src, dest string) error {
	if !f.dev.device {
		if f.dev.overwrite != "" || f.dev.discard {
			return command.Usage("--overwrite-content and --discard are about a block device; add --device")
		}
		return nil
	}
	for _, x := range []struct {
		given bool
		what  string
	}{
		{f.force, "--force replaces a file; a device is overwritten with --overwrite-content"},
		{f.replace, "--replace gives the copy the names of SOURCE"},
		{f.view, "--view writes a VMDK beside SOURCE, and no device"},
		{f.sums != "", "--checksums lists files; use sha256sum for a device"},
		{
			f.to.Format != "" && f.to.Format != "raw" || f.to.Round != 0,
			"--to " + f.to.String() + ": a device holds a raw disk of its own size",
		},
		{realign.IsPackage(dest), "DEST has the name of a package"},
		{src == "-", "SOURCE must be a file or a device, not a pipe"},
	} {
		if x.given {
			return command.Usage("--device does not fit: %s", x.what)
		}
	}
	return nil
}

// claim opens DEST for this run alone, before the process confines itself.
func (d *deviceFlags) claim(dest string, sources ...string) (err error) {
	if !d.device {
		return nil
	}
	if d.claimed, err = realign.OpenDevice(dest, sources...); err == nil {
		d.claimed.Overwrite, d.claimed.Discard = d.overwrite, d.discard
	}
	return err
}

// apart refuses disks of --with that lie on DEST.
func (d *deviceFlags) apart(others realign.Others) error {
	if !d.device {
		return nil
	}
	for _, o := range others {
		if err := d.claimed.Apart(&o.Image.Opened); err != nil {
			return err
		}
	}
	return nil
}

// reads adds a device to what the process may read.
func (d *deviceFlags) reads(dest string, images []string) []string {
	if d.device {
		return append(images, dest)
	}
	return images
}

// writes lists the files that the process may write: a device is open already.
func (d *deviceFlags) writes(dest, sums string) []string {
	if d.device {
		return []string{sums}
	}
	return []string{dest, sums}
}

// size returns what gives the disk its size.
func (d *deviceFlags) size(file func(int64) int64) func(int64) int64 {
	if d.device {
		return d.claimed.Grown
	}
	return file
}

// removing is what an interrupted copy does.
const removing = "removing the unfinished copy"

// ends returns what an interrupted run does.
func (d *deviceFlags) ends() string {
	if d.device {
		return "leaving the device as it is"
	}
	return removing
}
