package cli

import (
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/realign"
)

// alignFlags holds the flags of align and convert, which write a copy to DEST.
type alignFlags struct {
	copyFlags
	to    realign.Target
	force bool
	dev   deviceFlags
}

// add adds the flags common to align and convert.
func (f *alignFlags) add(cmd *cobra.Command) {
	f.copyFlags.add(cmd)
	if !f.shifts {
		addFlags(cmd, "to-sector-size", realign.SectorSize(&f.Sectors))
	}
	addFlags(cmd,
		"offset", realign.Offset(&f.Offset), "spool", &f.unpacking.Spool, "to", &f.to, "force", &f.force,
		"overwrite-content", &f.dev.overwrite, "discard", &f.dev.discard,
	)
}

// newAlign returns the command align.
func newAlign(c *Base) *cobra.Command {
	f := &alignFlags{copyFlags: copyFlags{Base: c, command: "align"}}
	cmd := newCommand("align SOURCE DEST", "Write an aligned copy of a disk image that still boots", f.run)
	f.add(cmd)
	f.Add(cmd)
	addFlags(cmd, "skip-aligned", &f.skipAligned)
	return cmd
}

// run writes the copy of a disk or a package.
func (f *alignFlags) run(ctx context.Context, out, errOut io.Writer, args []string) error {
	src, dest := args[0], args[1]
	err := errors.Join(f.checkFlags(), f.checkDest(src, dest))
	if err == nil && f.shifts {
		f.to, err = f.to.AtOffset(dest)
	}
	if err != nil {
		return err
	}
	if realign.IsDevice(dest) { // claimed for this run, before the process confines itself
		if f.dev.claimed, err = store.Open(dest, append(f.With, src)...); err != nil {
			return err
		}
	}
	defer f.dev.claimed.Close()
	reads, writes := f.Reads(src), []string{f.sums}
	if f.dev.claimed == nil {
		f.unpacking.Spool = cmp.Or(f.unpacking.Spool, filepath.Dir(dest))
		writes = append(writes, dest)
	} else {
		reads = append(reads, dest) // already open for writing
	}
	if err := f.Confine(ctx, errOut, reads, writes); err != nil {
		return err
	}
	if realign.IsPackage(dest) {
		if f.to != (realign.Target{}) {
			return Usage("--to %s cannot be used for a package: its disks keep the format stated in the OVF; leave "+
				"it out", f.to)
		}
		if f.Sectors != 0 {
			return Usage("--to-sector-size cannot be used for a package: its machine presents sectors of 512 bytes; " +
				"leave it out")
		}
		return f.copyPackage(ctx, out, errOut, src, dest, f.making(dest))
	}
	return f.copyDisk(ctx, out, errOut, src, dest, f.making(dest))
}

// making returns the options of the copy.
func (f *alignFlags) making(dest string) *making {
	if f.dev.claimed != nil {
		m := &making{
			format: "raw", beside: f.dev.apart, hold: leavingDevice,
			to: realign.Device{Device: f.dev.claimed, Overwrite: f.dev.overwrite, Discard: f.dev.discard},
		}
		if !f.shifts {
			// The copy fills the device, with the backup GPT at its end, where firmware looks for it.
			m.size = func(n int64) int64 { return max(n, f.dev.claimed.Size) }
		}
		return m
	}
	return &making{format: f.to.Format, size: f.to.Size, to: realign.File{
		Path: dest, Format: f.to.Format, Subformat: f.to.Subformat, Force: f.force,
	}}
}

// deviceFlags holds the flags for a copy to a block device.
type deviceFlags struct {
	overwrite string
	discard   bool
	claimed   *store.Device // nil if DEST is a file
}

// checkDest refuses a DEST that cannot be written, and flags that do not fit it.
func (f *alignFlags) checkDest(src, dest string) error {
	if realign.IsPackage(dest) {
		for _, image := range append(f.With, src) {
			if err := realign.Local(image, "a copy that is a package"); err != nil {
				return err
			}
		}
	}
	if realign.IsRemote(dest) {
		return Usage("DEST %s is on a server, which trueup cannot write; name a file", dest)
	}
	return f.checkDevice(dest)
}

// checkDevice refuses flags that do not apply to a device, and device flags without a device.
func (f *alignFlags) checkDevice(dest string) error {
	if !realign.IsDevice(dest) {
		if at, err := filepath.Abs(dest); err == nil && amongDevices(at) {
			return Usage("DEST %s: no such device; name an existing device, or a file outside /dev", dest)
		}
		if f.dev.overwrite != "" || f.dev.discard {
			return Usage("--overwrite-content and --discard need a block device, and DEST %s is none; name one, or "+
				"leave them out", dest)
		}
		return nil
	}
	for _, x := range []struct {
		given bool
		what  string
	}{
		{f.force, "replace --force with --overwrite-content"},
		{f.sums != "", "--checksums cannot be used for a device; leave it out, and run sha256sum on the device"},
		{
			f.to.Format != "" && f.to.Format != "raw" || f.to.Round != 0,
			"a device holds a raw disk of its own size; leave out --to " + f.to.String(),
		},
		{realign.IsPackage(dest), "its name ends like that of a package; name the device itself"},
	} {
		if x.given {
			return Usage("DEST %s is a block device: %s", dest, x.what)
		}
	}
	return nil
}

// amongDevices reports whether a path names a missing file in /dev. A new file there would be in memory.
func amongDevices(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist) && strings.HasPrefix(path, "/dev/") && !strings.HasPrefix(path, "/dev/shm/")
}

// apart refuses disks of --with that are stored on DEST.
func (d *deviceFlags) apart(others realign.Others) error {
	for _, o := range others {
		if err := d.claimed.Apart(&o.Image.Opened); err != nil {
			return err
		}
	}
	return nil
}

// leavingDevice is the message of an interrupted copy to a device, see ending.Hold.
const leavingDevice = "leaving the device unchanged"

// convert is the name of the command that copies without a move.
const convert = "convert"

// newConvert returns the command convert or offset.
func newConvert(c *Base, command, short string) *cobra.Command {
	f := &alignFlags{copyFlags: copyFlags{Base: c, command: command, shifts: command == "offset"}}
	f.Copy = true
	cmd := newCommand(command+" SOURCE DEST", short, f.run)
	f.add(cmd)
	if !f.shifts {
		addFlags(cmd, "repair-table", &f.RepairTable, "skip-free", &f.SkipFree)
	}
	addReading(cmd, &f.Reading)
	addFlags(cmd, "flatten", &f.Flatten)
	return cmd
}

// viewFlags holds the flags of view.
type viewFlags struct {
	copyFlags
	force bool
}

// newView returns the command view.
func newView(c *Base) *cobra.Command {
	f := &viewFlags{copyFlags: copyFlags{Base: c, command: "view"}}
	cmd := newCommand("view SOURCE DEST", "Write a VMDK that shows a disk image aligned", f.run)
	f.add(cmd)
	f.AddPlaces(cmd)
	addFlags(cmd, "with", &f.With, "skip-aligned", &f.skipAligned, "force", &f.force)
	return cmd
}

// run writes a view. VMDK is the only format that refers to ranges of other files.
func (f *viewFlags) run(ctx context.Context, out, errOut io.Writer, args []string) error {
	src, dest := args[0], args[1]
	if err := f.checkFlags(); err != nil {
		return err
	}
	if _, err := f.Options(); err != nil {
		return err
	}
	if !strings.EqualFold(filepath.Ext(dest), ".vmdk") {
		return Usage("DEST %s must end in .vmdk: a view is a VMDK", dest)
	}
	for _, other := range f.With {
		if err := realign.Local(other, "trueup view"); err != nil {
			return err
		}
	}
	if err := f.Confine(ctx, errOut, f.Reads(src), []string{dest, f.sums}); err != nil {
		return err
	}
	return f.copyDisk(ctx, out, errOut, src, dest, &making{
		format: "vmdk", to: realign.View{Path: dest, Force: f.force},
	})
}
