// This part of the package writes copies onto block devices: logical volumes, LUNs, RBD, zvols, loop devices. It finds
// out whether a device is in use, claims it, and writes the copy in an order in which half of it is never taken for a
// disk.

package store

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
)

// Device is a block device that this run has claimed, to write it.
type Device struct {
	Path   string // as typed
	ID     string // by which the system knows it, also after a restart; empty where it knows none
	Node   string // of the device, at the end of all links
	Size   int64  // bytes
	Sector int64  // bytes

	role       string // in messages: DEST, DISK
	file       *os.File
	number     string // as the kernel's files have it: "8:1"
	partitions []string
	below      []string // numbers of the devices that it lies on
	files      []sys.ID // that it shows, as a loop device does
	windows    []window // through which it shows them
}

// Open claims the device that a path leads to, through all links, unless it is in use. It runs before the process
// confines itself: after that /sys and /proc may be out of reach.
//
// sources are the paths of what is read, none of which may be the device.
func Open(path string, sources ...string) (*Device, error) {
	return open(&Device{Path: path, role: "DEST"}, sources, kernel{})
}

// OpenDisk is Open for a disk that is changed in its place.
func OpenDisk(path string) (*Device, error) {
	return open(&Device{Path: path, role: "DISK"}, nil, kernel{})
}

func open(d *Device, sources []string, k kernel) (*Device, error) {
	node, err := filepath.EvalSymlinks(d.Path)
	var st sys.Info
	if err == nil {
		st, err = sys.Lstat(node)
	}
	switch {
	case err != nil:
		return nil, ondisk.In(ondisk.ErrOutput, "%s: %w", d, gate.PlainError(err))
	case st.Mode.Type() != fs.ModeDevice:
		return nil, ondisk.In(ondisk.ErrUsage, "%s is no block device any more; run again", d)
	}
	d.Node, d.number = node, sys.NodeName(st.Node)
	if err := k.known(d); err != nil {
		return nil, err
	}
	d.ID = k.id(d.number)
	d.partitions = k.partitions(d.number)
	d.below, d.files = k.below(d.number)
	d.windows = k.windows(d.below)
	for _, name := range sources {
		if src, err := sys.Stat(name); err == nil { // one that is not there has its own error
			if err := cmp.Or(d.apart(name, src), d.aside(name, src, k)); err != nil {
				return nil, err
			}
		}
	}
	if err := d.unfinished(k); err != nil {
		return nil, err
	}
	if u := cmp.Or(k.inUse(d.number), k.beside(d)); u != nil {
		return nil, d.busy(u)
	}
	if k.read(block(d.number), "ro") == "1" {
		return nil, d.readOnly()
	}
	if err := d.claim(); err != nil {
		return nil, err
	}
	if u := k.writer(d.number); u != nil {
		return nil, errors.Join(d.busy(u), d.Close())
	}
	if err := d.measure(st); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// unfinished refuses a loop device over a file on which a run has left work open, or which such work needs.
func (d *Device) unfinished(k kernel) error {
	for _, n := range d.below {
		path := k.path(k.read(block(n), "loop/backing_file"))
		if st, err := sys.Stat(path); err != nil || !st.Mode.IsRegular() {
			continue
		}
		dir, err := gate.OpenFolder(filepath.Dir(path))
		if err != nil {
			continue // what this user cannot reach
		}
		who := fmt.Sprintf("%s shows %q, which cannot be written", d, path)
		w, err := journal.Beside(dir, filepath.Base(path))
		var c *journal.Claim
		if err == nil && w == nil {
			c, err = journal.Claiming(dir, filepath.Base(path))
		}
		_ = dir.Close() // it was read
		switch {
		case err != nil:
			return ondisk.In(ondisk.ErrOutput, "%s: %w", d, err)
		case c != nil:
			return c.Refusal(who, path)
		case w != nil && (w.Kind != "" || w.Blocks):
			w.Path = path
			i := w.Issue()
			return &ondisk.Refusal{Code: i.Code, Reason: who + ": " + i.Text, Remedy: i.Remedy}
		}
	}
	return nil
}

// String names the device for a message.
func (d *Device) String() string { return d.role + " " + d.Path }

// busy returns the refusal of a device that is in use.
func (d *Device) busy(u *use) error {
	return &ondisk.Refusal{Code: "busy", Reason: d.String() + " is in use: " + u.text, Remedy: u.remedy}
}

func (d *Device) readOnly() error {
	return &ondisk.Refusal{
		Code: "output", Reason: d.String() + " is read-only",
		Remedy: "make it writable (blockdev --setrw), or name another device",
	}
}

// claim opens the device so that the kernel gives it to no other use.
func (d *Device) claim() (err error) {
	d.file, err = sys.OpenDevice(d.Node)
	switch {
	case err == nil:
		return nil
	case sys.Claimed(err):
		return d.busy(&use{
			"the kernel keeps it for another use, such as a mount in another namespace",
			"end that, or name another device",
		})
	case errors.Is(err, errors.ErrUnsupported):
		return ondisk.In(ondisk.ErrUnsupported, "%s: block devices are %w on this system; name a file", d,
			ondisk.ErrUnsupported)
	}
	return ondisk.In(ondisk.ErrOutput, "%s: %w", d, gate.PlainError(err))
}

// measure looks at what was opened, and keeps QEMU from it.
func (d *Device) measure(looked sys.Info) (err error) {
	f := sys.Of(d.file)
	st, err := f.Stat()
	if err == nil && st.Node != looked.Node {
		err = fmt.Errorf("%w: another device has its name", ondisk.ErrChanged)
	}
	if err == nil {
		d.Size, err = f.DeviceSize()
	}
	sector := 0
	if err == nil {
		sector, err = f.SectorSize()
	}
	d.Sector = int64(sector)
	if file, ok := f.LoopFile(); ok {
		d.files = append(d.files, file)
	}
	readOnly := false
	if err == nil {
		readOnly, err = f.ReadOnly()
	}
	switch {
	case err != nil:
		return ondisk.In(ondisk.ErrOutput, "%s: %w", d, err)
	case readOnly:
		return d.readOnly()
	case d.Size == 0:
		return ondisk.In(ondisk.ErrOutput, "%s has 0 bytes: there is no medium in the device", d)
	}
	for _, b := range []int64{gate.QEMURead, gate.QEMUWrite} {
		if locked, err := f.LockedByte(b); err == nil && locked {
			return d.busy(&use{
				"it is open in QEMU or read by another run (a lock on its node)", "shut the virtual machine down",
			})
		}
	}
	for _, b := range gate.QEMUBytes {
		_ = f.LockByte(sys.Shared, b) // a file system of nodes that knows no locks is no reason to stop
	}
	return nil
}

// Is reports whether an image is the device, and nothing else.
func (d *Device) Is(img *gate.Opened) bool {
	return len(img.Handles) == 1 && sys.NodeName(img.Handles[0].Info.Node) == d.number
}

// Close gives the device back.
func (d *Device) Close() error {
	if d == nil || d.file == nil {
		return nil
	}
	err := d.file.Close()
	d.file = nil
	return err
}

// Apart refuses a source of which a file is the device, a part of it, or what it lies on.
func (d *Device) Apart(src *gate.Opened) error {
	for _, f := range src.Local() {
		if err := d.apart(f.Name(), f.Info); err != nil {
			return err
		}
	}
	return nil
}

func (d *Device) apart(name string, src sys.Info) error {
	number, device := sys.NodeName(src.Node), src.Mode.Type() == fs.ModeDevice
	var how string
	switch {
	case device && number == d.number:
		how = "is SOURCE"
	case device && slices.Contains(d.partitions, number):
		how = "has SOURCE as its partition"
	case device && slices.Contains(d.below, number), slices.Contains(d.files, src.ID):
		how = fmt.Sprintf("lies on %q of SOURCE", name)
	default:
		return nil
	}
	return d.neverWritten(how)
}

// aside refuses a source that shows bytes of the device through another loop device.
func (d *Device) aside(name string, src sys.Info, k kernel) error {
	if src.Mode.Type() != fs.ModeDevice {
		return nil
	}
	numbers, _ := k.below(sys.NodeName(src.Node))
	for _, w := range k.windows(numbers) {
		if slices.ContainsFunc(d.windows, w.overlaps) {
			return d.neverWritten(fmt.Sprintf("shows the same bytes as %q of SOURCE", name))
		}
	}
	return nil
}

func (d *Device) neverWritten(how string) error {
	return ondisk.In(ondisk.ErrUsage, "%s %s, and SOURCE is never written; name another DEST", d, how)
}

// Fits refuses a disk that is larger than the device, or has sectors of another size.
func (d *Device) Fits(size, sector int64) error {
	switch {
	case sector != d.Sector:
		return &ondisk.Refusal{
			Code: "unsupported",
			Reason: fmt.Sprintf("DEST %s has sectors of %d bytes, and the disk has sectors of %d bytes: its "+
				"partitions would not be found", d.Path, d.Sector, sector),
			Remedy: "name a device with sectors of the same size, or write a file",
		}
	case size > d.Size:
		return &ondisk.Refusal{
			Code: "output",
			Reason: fmt.Sprintf("DEST %s is too small: the disk needs %d bytes, and the device has %d",
				d.Path, size, d.Size),
			Remedy: "enlarge the device, or name another",
		}
	}
	return nil
}
