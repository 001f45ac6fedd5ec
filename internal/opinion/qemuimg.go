package opinion

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"

	"github.com/trueup/trueup/internal/sys"
)

// disk is what a judge opens: a file, or what a socket serves by NBD.
type disk struct {
	path       string // absolute
	socket     string // of a server of NBD, instead of a path; the format is raw
	format     string // as trueup names formats
	sectorSize int64  // bytes
}

// drivers are QEMU's names of formats.
var drivers = map[string]string{
	"raw": "raw", "vmdk": "vmdk", "vdi": "vdi", "vhd": "vpc", "vhdx": "vhdx", "qcow2": "qcow2",
}

// errFormat marks a format for which qemu-img has no driver.
var errFormat = errors.New("qemu-img has no driver for this format")

// spec returns the disk as a pseudo-protocol of QEMU, which names each driver. Spec: QEMU,
// docs/system/qemu-block-drivers and qapi/block-core.json, BlockdevOptions.
func (d disk) spec() (string, error) {
	driver, ok := drivers[d.format]
	if !ok {
		return "", fmt.Errorf("%w: %q", errFormat, d.format)
	}
	file := map[string]any{"driver": "file", "filename": d.path}
	if d.socket != "" {
		driver = "raw"
		file = map[string]any{
			"driver": "nbd", "export": "",
			"server": map[string]string{"type": "unix", "path": d.socket},
		}
	} else if st, err := os.Stat(d.path); err == nil && st.Mode()&os.ModeDevice != 0 {
		file["driver"] = "host_device"
	}
	options := map[string]any{"driver": driver, "file": file}
	if driver == "vpc" {
		options["force_size_calc"] = "current_size" // geometry would round the size of the disk
	}
	text, err := json.Marshal(options)
	return "json:" + string(text), err
}

// versionOf returns the version of qemu-img.
func versionOf(ctx context.Context, program string) (string, error) {
	e, err := run(ctx, program, "--version")
	if err != nil {
		return "", err
	}
	text, found := strings.CutPrefix(e.out, "qemu-img version ")
	version, _, _ := strings.Cut(strings.TrimSpace(text), " ")
	if e.code != 0 || !found || version == "" {
		return "", e.odd()
	}
	return version, nil
}

// checked is the result of a check of an image's tables.
type checked struct {
	supported           bool // false for a format that qemu-img does not check
	errors, corruptions int64
	leaks               int64 // clusters that nothing uses, which do no harm
}

// Exit codes of qemu-img check. Spec: docs/tools/qemu-img.rst, "check".
const (
	checkSound       = 0
	checkCorrupt     = 2
	checkLeaks       = 3
	checkUnsupported = 63
)

// check has qemu-img check the tables of an image.
func check(ctx context.Context, program string, d disk) (c checked, err error) {
	spec, err := d.spec()
	if err != nil {
		return c, err
	}
	e, err := run(ctx, program, "check", "--output=json", spec)
	if err != nil {
		return c, err
	}
	return e.checked()
}

// checked returns what a check reported.
func (e ended) checked() (c checked, err error) {
	switch e.code {
	case checkUnsupported:
		return c, nil
	case checkSound, checkCorrupt, checkLeaks:
	default:
		return c, e.odd()
	}
	var found struct {
		Errors      *int64 `json:"check-errors"`
		Corruptions int64  `json:"corruptions"`
		Leaks       int64  `json:"leaks"`
	}
	if err := json.Unmarshal([]byte(e.out), &found); err != nil || found.Errors == nil {
		return c, e.odd()
	}
	c = checked{true, *found.Errors, found.Corruptions, found.Leaks}
	if sound := c.errors == 0 && c.corruptions == 0; sound != (e.code != checkCorrupt) {
		return checked{}, e.odd() // its exit code contradicts its report
	}
	return c, nil
}

// compareDisks has qemu-img compare every byte of two disks. said is what differs; empty: nothing.
func compareDisks(ctx context.Context, program string, a, b disk) (said string, err error) {
	left, err := a.spec()
	if err != nil {
		return "", err
	}
	right, err := b.spec()
	if err != nil {
		return "", err
	}
	e, err := run(ctx, program, "compare", left, right)
	if err != nil {
		return "", err
	}
	return e.compared()
}

// mismatch finds the place of a difference.
var mismatch = regexp.MustCompile(`Content mismatch at offset [0-9]{1,20}!`).FindString

// compared returns what differs. Spec: docs/tools/qemu-img.rst, "compare".
func (e ended) compared() (said string, err error) {
	words := strings.TrimSpace(e.out)
	switch {
	case e.code == 0 && words == "Images are identical." && e.err == "":
		return "", nil
	case e.code == 0 && strings.Contains(words+e.err, "Image size mismatch"):
		return "the disks differ in size", nil // beyond the smaller one there are zeros
	case e.code == 1 && mismatch(words) != "":
		return mismatch(words), nil
	}
	return "", e.odd()
}

// ended is how a run of qemu-img ended.
type ended struct {
	what     string
	code     int
	out, err string
}

// odd returns the error of an end that no documentation has.
func (e ended) odd() error {
	words := strings.Join(strings.Fields(e.err+" "+e.out), " ")
	if words == "" {
		words = "nothing"
	}
	return fmt.Errorf("%s ended with exit code %d and printed %.300q", e.what, e.code, words)
}

// run runs qemu-img until ctx ends. An exit code is no error.
func run(ctx context.Context, program string, args ...string) (ended, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, said, err := sys.Ask(ctx, cmd, mostWords)
	e := ended{
		what: QemuImg + " " + strings.TrimLeft(args[0], "-"), out: string(out), err: strings.TrimSpace(string(said)),
	}
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		return e, fmt.Errorf("%s: %w", e.what, err)
	}
	e.code = cmd.ProcessState.ExitCode()
	return e, nil
}

// mostWords bounds the output of qemu-img, in bytes.
const mostWords = 64 << 10
