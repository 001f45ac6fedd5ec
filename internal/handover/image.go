package handover

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/shell"
	"github.com/trueup/trueup/internal/sys"
	"github.com/trueup/trueup/internal/units"
)

// image is the disk of the guest: a qcow2 over the served disk. For a raw DEST the guest's data are in DEST, the
// external data file of the qcow2, each byte at its place on the disk.
type image struct {
	program string // qemu-img
	overlay string // absolute path of the qcow2
	data    string // absolute path of a raw DEST; "" if DEST is the qcow2
}

// imageOf returns the image of a DEST.
func imageOf(dest string) (i image, err error) {
	if i.program, err = sys.Tool("qemu-img", "qemu-utils"); err != nil {
		return i, err
	}
	path, err := filepath.Abs(dest)
	if st, failed := os.Stat(dest); failed == nil && st.Mode()&fs.ModeDevice != 0 {
		return i, ondisk.In(ondisk.ErrUsage, "DEST %s is a device, in which the overlay of a guest cannot keep its "+
			"data; hand over to a new .qcow2, and copy that to the device when the guest is switched off: %s", dest,
			shell.Command("convert", nil, "NEW.qcow2", dest))
	}
	switch strings.ToLower(filepath.Ext(dest)) {
	case ".qcow2":
		i.overlay = path
	case ".raw", ".img":
		i.data, i.overlay = path, path+".qcow2"
	default:
		return i, ondisk.In(ondisk.ErrUsage, "DEST %s: must be a name in .qcow2, .raw or .img", dest)
	}
	return i, err
}

const (
	maxAnswer = 1 << 20 // bytes of the output of qemu-img
	// reconnect is the time for which QEMU holds back requests while the server is away, in seconds. After it the
	// requests fail.
	reconnect = 60
	// maxBits bounds the bits of the bitmap. trueup verify reads no larger one.
	maxBits = 1 << 28
)

// node is a node of QEMU's block layer as JSON. Spec: QEMU, qapi/block-core.json, BlockdevOptions.
type node map[string]any

func (n node) String() string {
	text, _ := json.Marshal(n) // strings and numbers
	return "json:" + string(text)
}

// run runs a program and returns its standard output.
func run(ctx context.Context, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, said, err := sys.Output(ctx, cmd, maxAnswer)
	if err != nil {
		err = fmt.Errorf("%s %s: %w: %.500s", filepath.Base(program), args[0], err, bytes.TrimSpace(said))
	}
	return string(out), err
}

// backing returns the served disk at a socket as a backing file.
func backing(socket string) string {
	return node{"driver": "raw", "file": node{
		"driver": "nbd", "server": node{"type": "unix", "path": socket}, "reconnect-delay": reconnect,
	}}.String()
}

// remove removes files. One that is missing is no error: qemu-img can have removed it.
func remove(paths []string) (err error) {
	for _, path := range paths {
		if failed := os.Remove(path); !errors.Is(failed, fs.ErrNotExist) {
			err = errors.Join(err, failed)
		}
	}
	return err
}

// create makes an overlay of the disk at a socket, with a bitmap that records the writes of the guest.
func (i *image) create(ctx context.Context, socket string, size int64) (err error) {
	var made []string
	defer func() {
		if err != nil {
			err = ondisk.In(ondisk.ErrOutput, "DEST: %w", errors.Join(err, remove(made)))
		}
	}()
	for _, path := range i.files() {
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) //nolint:gosec // the disk of the user
		if err != nil {
			return err
		}
		made = append(made, path)
		if err := f.Close(); err != nil {
			return err
		}
	}
	if release, err := claim(i.overlay); err != nil {
		return fmt.Errorf("a handover needs a file system with locks: %w", err)
	} else if err = release(); err != nil {
		return err
	}
	args := []string{
		"create", "-q", "-f", "qcow2", "-F", "raw", "-b", backing(socket), i.overlay, strconv.FormatInt(size, 10),
	}
	if i.data != "" {
		args = slices.Insert(args, 1, "-o", "data_file="+i.data)
	}
	grain := 64 * units.KiB
	for size/grain > maxBits {
		grain *= 2
	}
	if _, err = run(ctx, i.program, args...); err == nil {
		_, err = run(ctx, i.program, "bitmap", "--add", "-g", strconv.FormatInt(grain, 10), "-f", "qcow2", i.overlay,
			bitmap)
	}
	if err == nil {
		err = i.sync()
	}
	return err
}

// files lists the files of the disk.
func (i *image) files() []string {
	if i.data == "" {
		return []string{i.overlay}
	}
	return []string{i.overlay, i.data}
}

// sync makes the disk and its names durable.
func (i *image) sync() error {
	for _, path := range append(i.files(), filepath.Dir(i.overlay)) {
		f, err := os.Open(path) //nolint:gosec // the disk of the user
		if err != nil {
			return err
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil && !sys.Unsupported(err) {
			return err
		}
	}
	return nil
}

// description is the part of qemu-img info that counts here.
type description struct {
	Backing string `json:"backing-filename"`
	Format  struct {
		Data struct {
			Bitmaps []struct {
				Name  string   `json:"name"`
				Flags []string `json:"flags"`
			} `json:"bitmaps"`
		} `json:"data"`
	} `json:"format-specific"`
}

// closedWell reports whether the last program that wrote the overlay has saved the bitmap.
func (d *description) closedWell() bool {
	for _, b := range d.Format.Data.Bitmaps {
		if b.Name == bitmap {
			return !slices.Contains(b.Flags, "in-use")
		}
	}
	return false
}

// describe returns the description of the overlay, which may be open elsewhere.
func (i *image) describe(ctx context.Context) (d description, err error) {
	out, err := run(ctx, i.program, "info", "-U", "-f", "qcow2", "--output=json", i.overlay)
	if err == nil {
		err = json.Unmarshal([]byte(out), &d)
	}
	return d, err
}

// extent is a part of the overlay. Spec: QEMU, qapi/block-core.json, MapEntry.
type extent struct {
	Start   int64 `json:"start"`
	Len     int64 `json:"length"`
	Present *bool `json:"present"` // allocated in the overlay; missing before QEMU 6.1
	Zero    bool  `json:"zero"`
	Data    bool  `json:"data"`
}

// unlocked returns a file without the locks of QEMU.
func unlocked(path string) node { return node{"driver": "file", "filename": path, "locking": "off"} }

// each calls visit for the extents of the overlay without its backing file. The overlay may be open elsewhere.
func (i *image) each(ctx context.Context, visit func(extent) error) error {
	disk := node{"driver": "qcow2", "backing": nil, "file": unlocked(i.overlay)}
	if i.data != "" {
		disk["data-file"] = unlocked(i.data)
	}
	cmd := exec.CommandContext(ctx, i.program, "map", "-U", "--output=json", disk.String())
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return err
	}
	all := json.NewDecoder(out)
	_, err = all.Token() // [
	for err == nil && all.More() {
		var e extent
		if err = all.Decode(&e); err == nil && e.Present == nil {
			err = ondisk.In(ondisk.ErrUnsupported, "qemu-img map does not show allocation; install QEMU 6.1 or later")
		}
		if err == nil {
			err = visit(e)
		}
	}
	if err != nil {
		_ = cmd.Process.Kill()
	}
	if failed := cmd.Wait(); failed != nil && (err == nil || errors.Is(err, io.EOF)) {
		err = fmt.Errorf("qemu-img map: %w", failed)
	}
	return err
}

// errFound ends a walk of the extents.
var errFound = errors.New("extent found")

// has reports whether the overlay has a cluster of the given state: allocated, or not.
func (i *image) has(ctx context.Context, allocated bool) (bool, error) {
	err := i.each(ctx, func(e extent) error {
		if *e.Present == allocated {
			return errFound
		}
		return nil
	})
	if errors.Is(err, errFound) {
		return true, nil
	}
	return false, err
}

// claim keeps all programs from opening a file until release is called. It returns ErrBusy if one has it open.
func claim(path string) (release func() error, err error) {
	return lock(sys.Exclusive, gate.QEMUBytes, path)
}

// guard lets programs read the disk, and keeps them from writing it until release is called. It returns ErrBusy if one
// has it open for writing.
func (i *image) guard() (release func() error, err error) {
	return lock(sys.Shared, []int64{gate.QEMURead, gate.QEMUNoWriter}, i.files()...)
}

// lock locks bytes of files until release is called.
func lock(kind sys.LockKind, all []int64, paths ...string) (release func() error, err error) {
	var held []*os.File
	release = func() (err error) {
		for _, f := range held {
			err = errors.Join(err, sys.Release(f))
		}
		return err
	}
	for _, path := range paths {
		f, err := os.OpenFile(path, os.O_RDWR, 0) //nolint:gosec // the disk of the user
		if err == nil {
			held = append(held, f)
			err = lockBytes(sys.FromOS(f), kind, all)
		}
		if sys.Locked(err) || errors.Is(err, ondisk.ErrBusy) {
			err = ondisk.In(ondisk.ErrBusy, "%s: a program has it open", path)
		}
		if err != nil {
			return nil, errors.Join(err, release())
		}
	}
	return release, nil
}

// lockBytes locks bytes of a file. For shared locks, it returns ErrBusy if a program has the file open for writing.
func lockBytes(f *sys.File, kind sys.LockKind, all []int64) error {
	written := func() error {
		busy, err := f.LockedByte(gate.QEMUWrite)
		if kind == sys.Shared && busy {
			return ondisk.ErrBusy
		}
		return err
	}
	err := written() // before a lock, which would hinder that program
	for _, b := range all {
		if err == nil {
			err = f.LockByte(kind, b)
		}
	}
	return cmp.Or(err, written())
}

// settle writes zeros to a raw DEST where the overlay has zero clusters: the data file can have old bytes there.
func (i *image) settle(ctx context.Context) error {
	f, err := os.OpenFile(i.data, os.O_RDWR, 0)
	if err != nil {
		return ondisk.In(ondisk.ErrOutput, "DEST: %w", err)
	}
	blank := make([]byte, units.MiB)
	err = i.each(ctx, func(e extent) error {
		if e.Data || !e.Zero {
			return nil
		}
		if err := sys.FromOS(f).Punch(e.Start, e.Len); !sys.Unsupported(err) {
			return err
		}
		for at := e.Start; at < e.Start+e.Len; at += int64(len(blank)) {
			if _, err := f.WriteAt(blank[:min(int64(len(blank)), e.Start+e.Len-at)], at); err != nil {
				return err
			}
		}
		return nil
	})
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return ondisk.In(ondisk.ErrOutput, "DEST: %w", err)
	}
	return nil
}
