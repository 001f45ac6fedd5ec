// Package trial starts a disk under QEMU and records what its screen and serial port show. Nothing of the disk is
// decoded here, and nothing is written to it: QEMU reads it from a server, and keeps what the guest writes in a
// temporary file.
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
	QEMU       string        // program; empty: the usual one
	Disk       string        // URI of a server of NBD
	Firmware   string        // one of Firmwares
	Bus        string        // one of BusChoices
	Accel      string        // one of Accels
	Memory     int           // MiB
	Heads      int           // of the geometry that the BIOS reports; 0: its own choice
	Sectors    int           // per track
	Size       int64         // of the disk, for that geometry
	SectorSize int64         // of the disk; 0: the usual one
	Clock      time.Time     // what its clock shows at the start
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

// Accels are the choices of an accelerator. auto takes KVM where it works.
var Accels = []string{Auto, "kvm", emulation}

// emulation is the accelerator that runs everywhere.
const emulation = "tcg"

// own reports whether the accelerator is for this program to choose.
func own(accel string) bool { return accel == "" || accel == Auto }

type controller struct {
	name    string
	devices []string
	disk    string
}

// buses are the controllers, with their devices and the name of the disk's. Spec: QEMU, -device help.
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

// firmwares are the places of OVMF without Secure Boot, as distributions install it: program and empty variables.
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

// programs are the names of QEMU. The second is that of Red Hat.
var programs = []string{"qemu-system-x86_64", "/usr/libexec/qemu-kvm"}

// program returns the path of QEMU.
func (m *Machine) program() (path string, err error) {
	if m.QEMU != "" {
		if path, err = sys.Tool(m.QEMU, ""); err != nil {
			err = fmt.Errorf("--qemu %w; name QEMU's program, or leave the flag out", err)
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
			"the UEFI firmware OVMF is not installed, and the guest starts by UEFI; on Debian: apt install ovmf")
	}
	return firmwares[i], nil
}

// Ready returns the error of a machine that cannot be started here.
func (m *Machine) Ready() error {
	_, err := m.program()
	if m.Firmware == UEFI {
		_, missing := pflash()
		err = errors.Join(err, missing)
	}
	return err
}

// arguments returns the command line of QEMU, which speaks QMP on its standard input and output.
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

// disk returns the arguments of the disk and its controller. snapshot=on has QEMU write to a file that has no name any
// more when the guest starts. A failed request stops the guest, so that a fault of SOURCE is not taken for the guest's.
func (m *Machine) disk() (args []string) {
	i := slices.IndexFunc(buses, func(c controller) bool { return c.name == m.Bus })
	bus := buses[max(i, 0)]
	for _, device := range bus.devices {
		args = append(args, "-device", device)
	}
	device := bus.disk + ",drive=" + diskName + ",bootindex=1"
	if track := int64(m.Heads) * int64(m.Sectors) * units.SectorSize; track > 0 && m.Firmware == BIOS {
		// A BIOS knows at most 1024 cylinders.
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

// Names of the devices, and the bytes that the serial port can send between two looks at it: a power of 2.
const (
	diskName     = "disk"
	serialName   = "serial0"
	serialBuffer = 1 << 20
)

// escaped returns a value of an option of QEMU, in which a comma ends it.
func escaped(value string) string { return strings.ReplaceAll(value, ",", ",,") }

// Auto leaves a choice to the disk.
const Auto = "auto"

// Firmwares are the choices of a firmware.
var Firmwares = []string{Auto, BIOS, UEFI}

// BusChoices are the choices of a controller.
func BusChoices() []string { return append([]string{Auto}, Buses()...) }

// Result compares the runs.
func (t *Pair) Result(h report.Head) *Boot {
	return newBoot(h, t.Source, machineReport{
		Firmware: t.Machine.Firmware, Bus: t.Machine.Bus, Memory: int64(t.Machine.Memory) << 20,
		Seconds: t.Seconds,
	}, t.plan.Moved, &t.Before, t.After, t.moves()...)
}
