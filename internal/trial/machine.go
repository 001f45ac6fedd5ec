// Package trial starts a disk under QEMU and records its screen and serial port. It decodes nothing on the disk and
// writes nothing to it: QEMU reads the disk from a server and stores guest writes in a temporary file.
package trial

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/self"
	"github.com/trueup/trueup/internal/sys"
	"github.com/trueup/trueup/internal/units"
)

// Machine is a computer with one disk.
type Machine struct {
	QEMU       string        // program; "" means the default
	Disk       string        // URI of an NBD server
	Firmware   string        // one of Firmwares
	Bus        string        // one of BusChoices
	Accel      string        // one of Accels
	Memory     int           // MiB
	Heads      int           // of the geometry in the BIOS; 0 means its own choice
	Sectors    int           // per track
	Size       int64         // of the disk, for that geometry
	SectorSize int64         // of the disk; 0 means the default
	Clock      time.Time     // clock of the machine at the start
	Limit      time.Duration // of the run
	Settle     time.Duration // time without changes after which a screen has settled; 0 means the default
	Patience   time.Duration // for an answer of QEMU; 0 means the default
}

// Firmware of a machine.
const (
	BIOS = "bios"
	UEFI = "uefi"
)

// Defaults of a machine.
const (
	DefaultLimit  = 2 * time.Minute
	DefaultMemory = 1024    // MiB
	maxWrites     = 2 << 30 // bytes of the temporary file
)

// Accels lists the accelerators. auto uses KVM if it works.
var Accels = []string{Auto, "kvm", emulation}

// emulation is the accelerator that works everywhere.
const emulation = "tcg"

// own reports whether trueup chooses the accelerator.
func own(accel string) bool { return accel == "" || accel == Auto }

type controller struct {
	name    string
	devices []string
	disk    string
}

// buses lists the controllers with their devices and the device of the disk. Spec: QEMU, -device help.
var buses = []controller{
	{"ide", nil, "ide-hd,bus=ide.0"},
	{"sata", []string{"ahci,id=hba"}, "ide-hd,bus=hba.0"},
	{"lsi", []string{"lsi53c895a,id=hba"}, "scsi-hd,bus=hba.0"},
	{"lsisas", []string{"mptsas1068,id=hba"}, "scsi-hd,bus=hba.0"},
	{"pvscsi", []string{"pvscsi,id=hba"}, "scsi-hd,bus=hba.0"},
	{"virtio", nil, "virtio-blk-pci"},
	{"nvme", nil, "nvme,serial=trial"},
}

// Buses returns the names of the controllers.
func Buses() (names []string) {
	for _, b := range buses {
		names = append(names, b.name)
	}
	return names
}

// firmwares lists the paths of OVMF without Secure Boot in distributions: program and empty variables.
var firmwares = [][2]string{
	{"/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_VARS_4M.fd"}, // Debian, Ubuntu
	{"/usr/share/OVMF/OVMF_CODE.fd", "/usr/share/OVMF/OVMF_VARS.fd"},
	{"/usr/share/edk2/ovmf/OVMF_CODE.fd", "/usr/share/edk2/ovmf/OVMF_VARS.fd"},                     // Fedora
	{"/usr/share/qemu/ovmf-x86_64-4m-code.bin", "/usr/share/qemu/ovmf-x86_64-4m-vars.bin"},         // SUSE
	{"/usr/share/qemu/ovmf-x86_64-code.bin", "/usr/share/qemu/ovmf-x86_64-vars.bin"},               // SUSE
	{"/usr/share/edk2/x64/OVMF_CODE.4m.fd", "/usr/share/edk2/x64/OVMF_VARS.4m.fd"},                 // Arch
	{"/usr/share/edk2-ovmf/x64/OVMF_CODE.fd", "/usr/share/edk2-ovmf/x64/OVMF_VARS.fd"},             // Arch
	{"/usr/share/qemu/edk2-x86_64-code.fd", "/usr/share/qemu/edk2-i386-vars.fd"},                   // QEMU's own
	{"/usr/local/share/qemu/edk2-x86_64-code.fd", "/usr/local/share/qemu/edk2-i386-vars.fd"},       // QEMU's own
	{"/opt/homebrew/share/qemu/edk2-x86_64-code.fd", "/opt/homebrew/share/qemu/edk2-i386-vars.fd"}, // QEMU's own
}

// programs lists the names of QEMU. The second is for Red Hat.
var programs = []string{"qemu-system-x86_64", "/usr/libexec/qemu-kvm"}

// program returns the path of QEMU.
func (m *Machine) program() (path string, err error) {
	if m.QEMU != "" {
		if path, err = sys.Tool(m.QEMU, ""); err != nil {
			err = fmt.Errorf("--qemu %w; name the QEMU program, or omit the flag", err)
		}
		return path, err
	}
	for _, name := range programs {
		found, missing := sys.Tool(name, "qemu-system-x86")
		if missing == nil {
			return found, nil
		}
		err = cmp.Or(err, missing)
	}
	return "", err
}

// pflash returns the files of the UEFI firmware.
func pflash() ([2]string, error) {
	i := slices.IndexFunc(firmwares, func(files [2]string) bool {
		return !slices.ContainsFunc(files[:], func(file string) bool {
			_, err := os.Stat(file)
			return err != nil
		})
	})
	if i < 0 {
		return [2]string{}, ondisk.In(ondisk.ErrUnsupported,
			"the guest starts by UEFI, but the UEFI firmware OVMF is not installed; on Debian: apt install ovmf")
	}
	return firmwares[i], nil
}

// Ready returns an error if the machine cannot be started here.
func (m *Machine) Ready() error {
	_, err := m.program()
	if m.Firmware == UEFI {
		_, missing := pflash()
		err = errors.Join(err, missing)
	}
	return err
}

// arguments returns the command line of QEMU, with QMP on its standard input and output.
func (m *Machine) arguments() ([]string, error) {
	kind := "pc"
	if m.Firmware == UEFI && m.Bus != "ide" {
		kind = "q35"
	}
	args := []string{
		"-nodefaults", "-no-user-config", "-S", "-no-shutdown", "-boot", "strict=on", "-machine", kind, "-cpu",
		"Nehalem", "-smp", "1", "-m", strconv.Itoa(cmp.Or(m.Memory, DefaultMemory)), "-sandbox",
		"on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny", "-display", "none", "-vga", "std",
		"-nic", "none", "-rtc", "base=" + m.Clock.UTC().Format("2006-01-02T15:04:05") + ",clock=vm", "-chardev",
		"stdio,id=qmp,signal=off", "-mon", "chardev=qmp,mode=control", "-chardev",
		fmt.Sprintf("ringbuf,id=%s,size=%d", serialName, serialBuffer), "-serial", "chardev:" + serialName,
	}
	switch m.Accel {
	case "", Auto:
		args = append(args, "-accel", "kvm", "-accel", "tcg,tb-size=128")
	case emulation:
		args = append(args, "-accel", "tcg,tb-size=128")
	default:
		args = append(args, "-accel", m.Accel)
	}
	if m.Firmware == UEFI {
		files, err := pflash()
		if err != nil {
			return nil, err
		}
		args = append(args, "-drive", "if=pflash,unit=0,format=raw,readonly=on,file="+escaped(files[0]),
			"-drive", "if=pflash,unit=1,format=raw,snapshot=on,file="+escaped(files[1]))
	}
	return append(args, m.disk()...), nil
}

// disk returns the arguments of the disk and its controller. With snapshot=on, QEMU writes to a temporary file, already
// unlinked when the guest starts. A failed request stops the guest, so that a fault of SOURCE is not mistaken for a
// guest failure.
func (m *Machine) disk() (args []string) {
	i := slices.IndexFunc(buses, func(c controller) bool { return c.name == m.Bus })
	bus := buses[max(i, 0)]
	for _, device := range bus.devices {
		args = append(args, "-device", device)
	}
	device := bus.disk + ",drive=" + diskName + ",bootindex=1"
	if track := int64(m.Heads) * int64(m.Sectors) * units.SectorSize; track > 0 && m.Firmware == BIOS {
		// A BIOS supports at most 1024 cylinders.
		device += fmt.Sprintf(",lcyls=%d,lheads=%d,lsecs=%d", min(max(m.Size/track, 1), 1024), m.Heads, m.Sectors)
	}
	server := fmt.Sprintf("file.driver=nbd,file.server.type=fd,file.server.str=%d", diskFD)
	if m.SectorSize > units.SectorSize {
		device += fmt.Sprintf(",logical_block_size=%d,physical_block_size=%d", m.SectorSize, m.SectorSize)
	}
	return append(args,
		"-drive", "if=none,id="+diskName+",snapshot=on,cache=unsafe,rerror=stop,werror=stop,driver=raw,"+server,
		"-device", device)
}

// Names of the devices, and the serial output between two reads, in bytes: a power of 2.
const (
	diskName     = "disk"
	serialName   = "serial0"
	serialBuffer = 1 << 20
)

// escaped returns a QEMU option value with doubled commas, because a comma ends it.
func escaped(value string) string { return strings.ReplaceAll(value, ",", ",,") }

// Auto derives a choice from the disk.
const Auto = "auto"

// Firmwares lists the choices of firmware.
var Firmwares = []string{Auto, BIOS, UEFI}

// BusChoices returns the choices of a controller.
func BusChoices() []string { return append([]string{Auto}, Buses()...) }

// Types of partitions. Spec: UEFI 2.10, 5.3.3 and 5.2.2; GRUB manual, "BIOS installation".
const (
	typeESP      = "c12a7328-f81f-11d2-ba4b-00a0c93ec93b"
	typeESPofMBR = "0xef"
	typeBIOSBoot = "21686148-6449-6e6f-744e-656564454649"
)

// fit completes a machine for its disk. It keeps values that are set.
func (m *Machine) fit(d *report.Disk) {
	t := d.Table
	m.Heads, m.Sectors, m.Size, m.SectorSize = t.Heads, t.Sectors, d.Size, t.SectorSize
	if cmp.Or(m.Firmware, Auto) == Auto {
		m.Firmware = firmwareOf(d)
	}
	if cmp.Or(m.Bus, Auto) != Auto {
		return
	}
	// Every guest has a driver for IDE, because its CD drive was on it. QEMU has no LSI53C1030, the lsilogic of VMware.
	switch {
	case t.SectorSize > units.SectorSize:
		m.Bus = "nvme" // IDE has sectors of 512 bytes, and OVMF no driver for the SCSI controllers
	case m.Firmware == UEFI:
		m.Bus = "sata"
	default:
		m.Bus = "ide"
	}
}

// with returns the machine with the geometry of a container, or with its own if g is nil.
func (m Machine) with(g *report.Geometry) Machine {
	if g != nil {
		m.Heads, m.Sectors = int(g.Heads), int(g.Sectors)
	}
	return m
}

// firmwareOf returns the firmware that starts a disk. Code in sector 0 of a GPT starts nothing without a BIOS boot
// partition, but some tools write it to every disk.
func firmwareOf(d *report.Disk) string {
	var esp, biosBoot, active bool
	for _, part := range d.Partitions {
		esp = esp || part.Type == typeESP || part.Type == typeESPofMBR
		biosBoot = biosBoot || part.Type == typeBIOSBoot
		active = active || part.Active
	}
	code := d.Boot.Name != "" && d.Boot.Name != "empty"
	switch {
	case !esp, code && biosBoot, code && active && d.Table.Scheme == "mbr":
		return BIOS
	}
	return UEFI
}

// Pair is a trial: a machine that starts the disk as it is and then the aligned disk.
type Pair struct {
	Machine Machine
	Seconds int      // of a run
	Settle  int      // time without changes that ends a run, in seconds
	Reading []string // flags for reading SOURCE
	Moving  []string // flags for the move
	AsIs    bool     // start only the disk as it is
	Source  string
	Say     func(text string) // receives messages about the progress of runs

	plan   report.Plan
	Before Film
	After  *Film // nil without a change, or if the machine of the first run failed
}

// Disks of a trial: SOURCE itself and the planned disk.
const (
	Source  = "source"
	Aligned = "aligned"
)

// changes reports whether the aligned disk differs from the source.
func (t *Pair) changes() bool { return t.plan.Moved > 0 || len(t.plan.Patches) > 0 }

// moves returns the moved partitions with their places in guest output.
func (t *Pair) moves() (out []Move) {
	before, after := t.Machine.with(t.plan.BIOS.Source), t.Machine.with(t.plan.BIOS.Result)
	for _, x := range t.plan.Moves {
		out = append(out, Move{
			Before: Start{x.From / units.SectorSize, int64(before.Heads), int64(before.Sectors)},
			After:  Start{x.To / units.SectorSize, int64(after.Heads), int64(after.Sectors)},
		})
	}
	return out
}

// Run computes the plan, unless AsIs is set, and starts both disks one after the other. A failing source invalidates
// both runs. Its server outlives the second run, to detect a change in between.
func (t *Pair) Run(ctx context.Context, stderr io.Writer) (err error) {
	of := []string{"--", t.Source}
	t.plan = report.Plan{BIOS: &report.Geometries{}, Result: &report.Disk{}}
	var exit int
	if t.AsIs {
		var r report.Inspect
		_, err = self.Run(ctx, stderr, &r, "inspect", slices.Concat(t.Reading, of)...)
		t.plan.Result = &r.Disk
	} else {
		exit, err = self.Run(ctx, stderr, &t.plan, "plan", slices.Concat(t.Reading, t.Moving, of)...)
	}
	if err != nil {
		return err
	}
	if exit != 0 {
		return &self.Error{Exit: exit, Code: "internal", Message: "trueup plan gave no reason"}
	}
	t.Machine.fit(t.plan.Result)
	t.Machine.Limit, t.Machine.Settle = time.Duration(t.Seconds)*time.Second, time.Duration(t.Settle)*time.Second
	if err := t.Machine.Ready(); err != nil {
		return err
	}
	source, err := self.Serve(ctx, &struct{}{}, slices.Concat([]string{"--as-is"}, t.Reading, of)...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, source.Close()) }()
	hung, err := t.runs(ctx, source)
	if hung && err == nil {
		t.Say("the accelerator does not work here; starting again with emulation")
		t.Machine.Accel = emulation
		_, err = t.runs(ctx, source)
	}
	return err
}

// runs starts both disks with one accelerator. hung reports whether emulation may do better.
func (t *Pair) runs(ctx context.Context, source *self.Server) (hung bool, err error) {
	t.After = nil
	t.Before, hung, err = t.film(ctx, t.Machine.with(t.plan.BIOS.Source), Source, source)
	if err != nil || hung || !t.changes() {
		return hung, err
	}
	if moot(&t.Before) {
		t.Say("the aligned disk: skipped, because there is nothing to compare it with")
		return false, nil
	}
	view, err := self.Serve(ctx, &struct{}{}, slices.Concat(t.Reading, t.Moving, []string{"--", t.Source})...)
	if err != nil {
		return false, err
	}
	after, hung, err := t.film(ctx, t.Machine.with(t.plan.BIOS.Result), Aligned, view)
	t.After = &after
	hung = hung || after.Accel != t.Before.Accel // both runs must use the same accelerator
	return hung, errors.Join(err, view.Close())
}

// film runs a served disk. hung reports that an accelerator chosen by trueup could not start, failed while the guest
// ran, or showed nothing: if KVM opens and hangs, not even the firmware appears.
func (t *Pair) film(ctx context.Context, m Machine, disk string, s *self.Server) (f Film, hung bool, err error) {
	m.Disk = s.URI
	name := "the disk " + map[string]string{Source: "as it is", Aligned: "aligned"}[disk]
	t.Say(fmt.Sprintf("boots %s: %s, %s, limit %d s", name, m.Firmware, m.Bus, t.Seconds))
	f, err = m.Run(ctx)
	if own(m.Accel) && ctx.Err() == nil {
		failed := errors.Is(err, errNoQMP)
		if failed || err == nil && f.Accel != emulation && (f.Ended == Broken || running(&f) && mute(&f)) {
			return f, true, nil
		}
	}
	if err == nil {
		t.Say(fmt.Sprintf("%s: %s after %.0f s (%s)", name, f.Ended.words(), f.Took.Seconds(), f.Accel))
	}
	return f, false, err
}
