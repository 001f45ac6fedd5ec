package opinion

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
)

// disk is the input of a judge: a file, or an NBD export at a socket.
type disk struct {
	path       string // absolute
	socket     string // of an NBD server, instead of a path; the format is raw
	format     string // in trueup's notation
	sectorSize int64  // in bytes
}

// drivers maps formats to QEMU's driver names.
var drivers = map[string]string{
	"raw": "raw", "vmdk": "vmdk", "vdi": "vdi", "vhd": "vpc", "vhdx": "vhdx", "qcow2": "qcow2",
}

// errFormat marks a format without a driver in qemu-img.
var errFormat = errors.New("qemu-img has no driver for this format")

// spec returns the disk as a json: pseudo-protocol of QEMU, which names each driver. Spec: QEMU,
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
		options["force_size_calc"] = "current_size" // the geometry would round the size of the disk
	}
	text, err := json.Marshal(options)
	return "json:" + string(text), err
}

// isVersion matches a judge's output for --version.
var isVersion = ondisk.LazyPattern(`^(?:qemu-img version|guestfish) ([0-9][0-9A-Za-z.+~-]{0,40})\b`)

// versionOf returns the version of a judge.
func versionOf(ctx context.Context, program string) (string, error) {
	e, err := run(ctx, program, "--version")
	if err != nil {
		return "", err
	}
	m := isVersion().FindStringSubmatch(e.out)
	if e.code != 0 || m == nil {
		return "", e.unexpected()
	}
	return m[1], nil
}

// askQemuImg checks the container of the copy with qemu-img, and compares the disk in it with the disk that trueup
// reads.
func askQemuImg(ctx context.Context, program string, file, read disk) (t Table) {
	version, err := versionOf(ctx, program)
	ours, errRead := read.spec()
	theirs, errFile := file.spec()
	if err := errors.Join(err, errRead, errFile); err != nil {
		return Table{{QemuImg, "its version and the names of the disks", err.Error(), Failed}}
	}
	for _, q := range []struct {
		asked string
		args  []string
		said  func(e ended) (string, Verdict)
	}{
		{"check of the container", []string{"check", theirs}, ended.checked},
		{"every byte against the disk that trueup reads", []string{"compare", ours, theirs}, ended.compared},
	} {
		row := Row{Judge: QemuImg + " " + version, Asked: q.asked, Verdict: Failed}
		if e, err := run(ctx, program, q.args...); err != nil {
			row.Said = err.Error()
		} else {
			row.Said, row.Verdict = q.said(e)
		}
		t = append(t, row)
	}
	return t
}

// faults finds all counts in the output of a check. Source: QEMU, qemu-img.c, dump_human_image_check.
var faults = regexp.MustCompile(`[0-9]{1,20} (errors|leaked clusters) were found on the image`).FindAllString

// checked returns the result of a check of an image's tables. The output must match the exit code. Spec:
// docs/tools/qemu-img.rst, "check".
func (e ended) checked() (said string, v Verdict) {
	const sound, corrupt, leaks, unsupported = 0, 2, 3, 63
	found := strings.Join(faults(e.out, -1), ", ")
	leaked := found != "" && !strings.Contains(found, "errors")
	switch {
	case e.code == sound && found == "" && strings.Contains(e.out, "No errors were found on the image."):
		return "no errors", Agrees
	case e.code == corrupt && found != "" && !leaked:
		return found, Differs
	case e.code == leaks && leaked:
		return found + ", which are harmless", Agrees
	case e.code == unsupported:
		return "it cannot check the format", NotLooked
	}
	return e.unexpected().Error(), Failed
}

// mismatch finds the offset of a difference.
var mismatch = regexp.MustCompile(`Content mismatch at offset [0-9]{1,20}!`).FindString

// compared returns the result of a comparison of two disks. Spec: docs/tools/qemu-img.rst, "compare".
func (e ended) compared() (said string, v Verdict) {
	words := strings.TrimSpace(e.out)
	switch {
	case e.code == 0 && words == "Images are identical." && e.err == "":
		return "identical", Agrees
	case e.code == 0 && strings.Contains(words+e.err, "Image size mismatch"):
		return "the disks differ in size", Differs // beyond the smaller one there are zeros
	case e.code == 1 && mismatch(words) != "":
		return mismatch(words), Differs
	}
	return e.unexpected().Error(), Failed
}

// ended is the result of a judge's run.
type ended struct {
	what     string
	code     int
	out, err string
}

// unexpected returns the error for an undocumented result.
func (e ended) unexpected() error {
	words := strings.Join(strings.Fields(e.err+" "+e.out), " ")
	if words == "" {
		words = "nothing"
	}
	return fmt.Errorf("%s ended with exit code %d and printed %.300q", e.what, e.code, words)
}

// run runs a judge until ctx ends. A non-zero exit code is no error.
func run(ctx context.Context, program string, args ...string) (ended, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, said, err := sys.Output(ctx, cmd, mostWords)
	e := ended{
		what: filepath.Base(program) + " " + strings.TrimLeft(args[0], "-"), out: string(out),
		err: strings.TrimSpace(string(said)),
	}
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		return e, fmt.Errorf("%s: %w", e.what, err)
	}
	e.code = cmd.ProcessState.ExitCode()
	return e, nil
}

// mostWords limits the output of a judge that ends by itself, in bytes.
const mostWords = 64 << 10
