// This part of the package writes copies to block devices: logical volumes, LUNs, RBD, zvols, loop devices. It detects
// whether a device is in use, claims it, and orders the writes so that a partial copy is never taken for a disk.

package store

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
)

// Device is a block device that this run has claimed for writing.
type Device struct {
	Path   string // as typed
	ID     string // persistent system ID; empty if the system has none
	Node   string // path of the device node after all links
	Size   int64  // bytes
	Sector int64  // bytes

	role       string // in messages: DEST, DISK
	file       *os.File
	number     string // major and minor number as in /sys: "8:1"
	partitions []string
	below      []string // numbers of the underlying devices
	files      []sys.ID // backing files, as of a loop device
	windows    []window // ranges of the backing files
}

// Open claims the device at path, after following all links, unless it is in use. It must run before the process
// confines itself, because /sys and /proc may be inaccessible afterwards.
//
// sources are the paths of the source; none of them may be the device.
func Open(path string, sources ...string) (*Device, error) {
	return open(&Device{Path: path, role: "DEST"}, sources, kernel{})
}

// OpenDisk is Open for a disk that is changed in place.
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
		return nil, ondisk.In(ondisk.ErrUsage, "%s is no longer a block device; run again", d)
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
		if src, err := sys.Stat(name); err == nil { // a missing source is reported elsewhere
			if err := cmp.Or(d.apart(name, src), d.aside(name, src, k)); err != nil {
				return nil, err
			}
		}
	}
	if err := d.unfinished(k); err != nil {
		return nil, err
	}
	if u := cmp.Or(k.looped(d.number), k.beside(d)); u != nil {
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

// unfinished refuses a loop device if its backing file has unfinished work, or is needed by such work.
func (d *Device) unfinished(k kernel) error {
	for _, n := range d.below {
		path := k.path(k.read(block(n), "loop/backing_file"))
		if st, err := sys.Stat(path); err != nil || !st.Mode.IsRegular() {
			continue
		}
		dir, err := gate.OpenFolder(filepath.Dir(path))
		if err != nil {
			continue // this user cannot reach the file
		}
		err = journal.MayWrite(dir, filepath.Base(path), path, fmt.Sprintf("%s shows %q, which cannot be written",
			d, path))
		_ = dir.Close() // only read
		if err != nil {
			return ondisk.In(ondisk.ErrOutput, "%w", err)
		}
	}
	return nil
}

// String returns the name of the device for messages.
func (d *Device) String() string { return d.role + " " + d.Path }

// busy returns the refusal of a device in use.
func (d *Device) busy(u *use) error {
	return &ondisk.Refusal{Code: "busy", Reason: d.String() + " is in use: " + u.text, Remedy: u.remedy}
}

func (d *Device) readOnly() error {
	return &ondisk.Refusal{
		Code: "output", Reason: d.String() + " is read-only",
		Remedy: "make it writable (blockdev --setrw), or name another device",
	}
}

// claim opens the device exclusively.
func (d *Device) claim() (err error) {
	d.file, err = sys.OpenDevice(d.Node)
	switch {
	case err == nil:
		return nil
	case sys.Claimed(err):
		return d.busy(&use{
			"it, or a partition of it, is mounted, used for swap, or part of an array, of LVM or of a mapped device",
			fmt.Sprintf("end that use (lsblk %s shows most of them), or name another device", d.Node),
		})
	case errors.Is(err, errors.ErrUnsupported):
		return ondisk.In(ondisk.ErrUnsupported, "%s: block devices are %w on this system; name a file", d,
			ondisk.ErrUnsupported)
	}
	return ondisk.In(ondisk.ErrOutput, "%s: %w", d, gate.PlainError(err))
}

// measure determines the properties of the opened device, and locks it against QEMU.
func (d *Device) measure(looked sys.Info) (err error) {
	f := sys.FromOS(d.file)
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
		_ = f.LockByte(sys.Shared, b) // device nodes may lie on a file system without locks
	}
	return nil
}

// Is reports whether an image consists of the device alone.
func (d *Device) Is(img *gate.Opened) bool {
	return len(img.Handles) == 1 && sys.NodeName(img.Handles[0].Info.Node) == d.number
}

// Close releases the device.
func (d *Device) Close() error {
	if d == nil || d.file == nil {
		return nil
	}
	err := sys.Release(d.file)
	d.file = nil
	return err
}

// Apart refuses a source if one of its files is the device, a partition of it, or an underlying file or device.
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

// aside refuses a source that shares bytes with the device through another loop device.
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

// Fits refuses a disk that is larger than the device, or has another sector size.
func (d *Device) Fits(size, sector int64) error {
	switch {
	case sector != d.Sector:
		return &ondisk.Refusal{
			Code: "unsupported",
			Reason: fmt.Sprintf("DEST %s has sectors of %d bytes, and the disk has sectors of %d bytes: its "+
				"partitions would not be found", d.Path, d.Sector, sector),
			Remedy: fmt.Sprintf("for this device, trueup align --to-sector-size %d rewrites the partition table; or "+
				"name a device with sectors of the same size, or write a file", d.Sector),
		}
	case size > d.Size:
		return &ondisk.Refusal{
			Code: "output",
			Reason: fmt.Sprintf("DEST %s is too small: the disk needs %d bytes, and the device has %d",
				d.Path, size, d.Size),
			Remedy: "enlarge the device, or name a larger one",
		}
	}
	return nil
}

// kernel reads device information from /sys and /proc below a root.
type kernel struct{ root string }

func (k kernel) path(parts ...string) string {
	return filepath.Join(append([]string{k.root, "/"}, parts...)...)
}

// read returns the text of a file without the final newline, or an empty string on error.
func (k kernel) read(parts ...string) string {
	b, err := os.ReadFile(k.path(parts...))
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(string(b), "\n")
}

// names lists a folder. It returns nil on error.
func (k kernel) names(parts ...string) (out []string) {
	entries, _ := os.ReadDir(k.path(parts...))
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// block returns the folder of a device number. Spec: Documentation/ABI/stable/sysfs-block of Linux.
func block(number string) string { return filepath.Join("sys/dev/block", number) }

// use describes the use of a device that prevents writing, and its remedy.
type use struct{ text, remedy string }

// partitions lists the numbers of the kernel's partitions of a device.
func (k kernel) partitions(number string) (out []string) {
	for _, n := range k.names(block(number)) {
		if k.read(block(number), n, "partition") != "" {
			out = append(out, k.read(block(number), n, "dev"))
		}
	}
	return out
}

// disk returns the number of the disk of a partition, or an empty string for other devices.
func (k kernel) disk(number string) string {
	if k.read(block(number), "partition") == "" {
		return ""
	}
	real, err := filepath.EvalSymlinks(k.path(block(number)))
	if err != nil {
		return ""
	}
	b, _ := os.ReadFile(filepath.Join(filepath.Dir(real), "dev"))
	return strings.TrimSpace(string(b))
}

// whose describes n from the view of a device: itself, one of its partitions, or its disk.
func (k kernel) whose(number, n string) string {
	switch n {
	case number:
		return "it"
	case k.disk(number):
		return "its disk " + k.name(n)
	}
	return "its partition " + k.name(n)
}

// name returns the kernel's name of a device: sda1, dm-0.
func (k kernel) name(number string) string {
	real, err := filepath.EvalSymlinks(k.path(block(number)))
	if err != nil {
		return number
	}
	return filepath.Base(real)
}

// related lists a device, its partitions, and the disk if the device is a partition.
func (k kernel) related(number string) []string {
	out := append([]string{number}, k.partitions(number)...)
	if disk := k.disk(number); disk != "" {
		out = append(out, disk)
	}
	return out
}

// looped finds a loop device backed by a device, a partition of it, or its disk. The kernel does not claim these for a
// loop device, while any other use makes the claim of this run fail.
func (k kernel) looped(number string) *use {
	for loop, file := range k.loops() {
		st, err := sys.Stat(k.path(file))
		if err != nil || st.Node == 0 {
			continue
		}
		if n := sys.NodeName(st.Node); slices.Contains(k.related(number), n) {
			return &use{
				k.whose(number, n) + " is shown by the loop device " + loop,
				"remove that first (losetup -d), or name another device",
			}
		}
	}
	return nil
}

// Looped maps files to the loop devices that they back. It must run before the process confines itself.
func Looped() map[sys.ID]string { return kernel{}.shown() }

// shown maps files to loop devices. It gets the file from each loop device, because the name of the file may be
// outdated, or belong to another namespace. If this user may not open the device, it uses the name.
func (k kernel) shown() map[sys.ID]string {
	out := map[sys.ID]string{}
	for loop, file := range k.loops() {
		id, ok := sys.ID{}, false
		if f, err := os.Open(k.path("dev", loop)); err == nil {
			id, ok = sys.FromOS(f).LoopFile()
			_ = f.Close() // only read
		}
		if st, err := sys.Stat(k.path(file)); err == nil && !ok {
			id, ok = st.ID, true
		}
		if ok {
			out[id] = "/dev/" + loop
		}
	}
	return out
}

// loops maps loop devices to their backing files. Spec: Documentation/ABI/testing/sysfs-block-loop of Linux.
func (k kernel) loops() map[string]string {
	out := map[string]string{}
	for _, n := range k.names("sys/class/block") {
		if file := k.read("sys/class/block", n, "loop/backing_file"); file != "" {
			out[n] = file
		}
	}
	return out
}

// maxBelow bounds the number of underlying devices. A stack of arrays, LVM and encryption has a handful.
const maxBelow = 4096

// below lists the numbers of a device and its underlying devices, and the backing files of the loop devices among them.
func (k kernel) below(number string) (numbers []string, files []sys.ID) {
	add := func(n string) {
		if n != "" && !slices.Contains(numbers, n) && len(numbers) < maxBelow {
			numbers = append(numbers, n)
		}
	}
	add(number)
	for next := 0; next < len(numbers); next++ { //nolint:intrange // the list grows
		at := block(numbers[next])
		for _, s := range k.names(at, "slaves") {
			add(k.read(at, "slaves", s, "dev"))
		}
		add(k.disk(numbers[next]))
		if file := k.read(at, "loop/backing_file"); file != "" {
			if st, err := sys.Stat(k.path(file)); err == nil && st.Node != 0 {
				add(sys.NodeName(st.Node))
			} else if err == nil {
				files = append(files, st.ID)
			}
		}
	}
	return numbers, files
}

// window is the range of a backing file or device that a loop device shows.
type window struct {
	loop     string // its number
	file     sys.ID
	node     uint64
	off, end int64
}

// overlaps reports whether two loop devices share bytes.
func (w window) overlaps(x window) bool {
	return w.loop != x.loop && w.node == x.node && (w.node != 0 || w.file == x.file) && w.off < x.end && x.off < w.end
}

// id returns the persistent ID of a device: the identifier of a volume or LUN, or the backing file of a loop device.
// Spec: Documentation/ABI/testing/sysfs-block-dm, sysfs-block-loop, sysfs-class-scsi_device of Linux.
func (k kernel) id(number string) string {
	for _, at := range []string{"dm/uuid", "device/wwid", "wwid", "loop/backing_file"} {
		if id := k.read(block(number), at); id != "" {
			return id
		}
	}
	return ""
}

// windows returns the windows of the loop devices among numbers.
func (k kernel) windows(numbers []string) (out []window) {
	for _, n := range numbers {
		st, err := sys.Stat(k.path(k.read(block(n), "loop/backing_file")))
		if err != nil || st.Mode.IsDir() { // the path is the root if it is not a loop device
			continue
		}
		w := window{n, st.ID, st.Node, 0, math.MaxInt64}
		w.off, _ = strconv.ParseInt(k.read(block(n), "loop/offset"), 10, 64)
		if limit, _ := strconv.ParseInt(k.read(block(n), "loop/sizelimit"), 10, 64); limit > 0 {
			w.end = w.off + limit
		}
		out = append(out, w)
	}
	return out
}

// beside finds another loop device that shares bytes with the device.
func (k kernel) beside(d *Device) *use {
	for loop := range k.loops() {
		number := k.read("sys/class/block", loop, "dev")
		if slices.Contains(d.below, number) {
			continue
		}
		for _, x := range k.windows([]string{number}) {
			if slices.ContainsFunc(d.windows, x.overlaps) {
				return &use{
					"the loop device " + loop + " shows bytes of it, too",
					"remove that first (losetup -d), or name another device",
				}
			}
		}
	}
	return nil
}

// writer finds another process that has a device, a partition of it, or its disk open for writing, as far as this user
// may see. QEMU does not claim devices.
func (k kernel) writer(number string) (found *use) {
	numbers := k.related(number)
	sys.Writers(k.path("proc"), func(w sys.Writer) bool {
		if w.File.Mode.Type() != fs.ModeDevice || !slices.Contains(numbers, sys.NodeName(w.File.Node)) {
			return true
		}
		found = &use{
			fmt.Sprintf("%s is open for writing in process %d (%q)", k.whose(number, sys.NodeName(w.File.Node)), w.PID,
				w.Program),
			"end that program, or name another device",
		}
		return false
	})
	return found
}

// known returns an error if /sys does not list the device.
func (k kernel) known(d *Device) error {
	if _, err := os.Stat(k.path(block(d.number))); errors.Is(err, fs.ErrNotExist) {
		return ondisk.In(ondisk.ErrUnsupported, "%s: /sys does not list the device %s, so trueup cannot tell "+
			"whether it is in use; run trueup with /sys mounted", d, d.number)
	}
	return nil
}
