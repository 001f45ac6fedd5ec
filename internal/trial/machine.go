// Package trial starts a disk under QEMU and records its screen and serial port. It decodes nothing on the disk and
// writes nothing to it: QEMU reads the disk from a server and stores guest writes in a temporary file.
package trial

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/report"
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

// Result returns the comparison of the runs.
func (t *Pair) Result(h report.Head) *Boot {
	return newBoot(h, t.Source, machineReport{
		Firmware: t.Machine.Firmware, Bus: t.Machine.Bus, Memory: int64(t.Machine.Memory) << 20,
		Seconds: t.Seconds,
	}, t.plan.Moved, &t.Before, t.After, t.moves()...)
}
