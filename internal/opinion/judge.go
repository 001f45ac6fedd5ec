package opinion

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/trueup/trueup/internal/guestfs"
	"github.com/trueup/trueup/internal/qemuimg"
	"github.com/trueup/trueup/internal/units"
)

// question is what the clerk is asked.
type question struct {
	Judges []string
	Copy
	Folder string // of the clerk, with the sockets
}

// Copy is the copy that is judged, as other programs open it.
type Copy struct {
	Path, Format string            // of the file that users name
	Files        map[string]string // paths of files that still have other names, by the names that they will have
	SectorSize   int64
	Size         int64 // bytes of the disk
}

// Sockets in the folder of the clerk.
const (
	sourceSocket = "source"
	viewSocket   = "view"
	copySocket   = "copy"
)

var sockets = []string{sourceSocket, viewSocket, copySocket}

// judge asks all judges.
func (q question) judge(ctx context.Context) (t Table) {
	const slowest, least = units.MiB, time.Hour // a second
	limit := least + time.Duration(q.Size/slowest)*time.Second
	ctx, cancel := context.WithTimeoutCause(ctx, 2*limit, fmt.Errorf("no end within %v", 2*limit))
	defer cancel()
	if err := q.prepare(); err != nil {
		return Table{{"trueup", "opening the copy for other programs", err.Error(), Failed}}
	}
	if q.asks(QemuImg) {
		t = append(t, q.askQemuImg(ctx)...)
	}
	if q.asks(Libguestfs) {
		t = append(t, q.askLibguestfs(ctx, limit)...)
	}
	return t
}

func (q question) asks(judge string) bool {
	return slices.Contains(q.Judges, judge) || slices.Contains(q.Judges, All)
}

// prepare gives the copy a path at which other programs find all its files by their names. A descriptor names its
// extents by those that they get at the end.
func (q *question) prepare() (err error) {
	if q.Path, err = realPath(q.Path); err != nil || len(q.Files) < 2 {
		return err
	}
	main, folder := q.Path, filepath.Join(q.Folder, "named")
	if err := os.Mkdir(folder, 0o700); err != nil {
		return err
	}
	for name, path := range q.Files {
		if filepath.Base(name) != name {
			return fmt.Errorf("the copy has a file %q in another folder", name)
		}
		if path, err = realPath(path); err != nil {
			return err
		}
		if err := os.Symlink(path, filepath.Join(folder, name)); err != nil {
			return err
		}
		if path == main {
			q.Path = filepath.Join(folder, name)
		}
	}
	return nil
}

// realPath returns the absolute path of a file, through no link.
func realPath(path string) (string, error) {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", err
	}
	return filepath.Abs(path)
}

// find returns the path of a program.
func find(program string) (path string, found bool) {
	path, err := exec.LookPath(program)
	return path, err == nil
}

// askQemuImg has qemu-img check the container of the copy and compare its disk with the planned one.
func (q question) askQemuImg(ctx context.Context) (t Table) {
	const check, compare = "check of the container", "every byte against the planned disk"
	program, found := find(qemuimg.Program)
	if !found {
		return Table{absent(QemuImg, qemuimg.Program, qemuimg.Package)}
	}
	version, err := qemuimg.Version(ctx, program)
	if err != nil {
		return Table{{QemuImg, "its version", err.Error(), Failed}}
	}
	judge := QemuImg + " " + version
	dest := qemuimg.Image{Path: q.Path, Format: q.Format}
	c, err := qemuimg.Check(ctx, program, dest)
	switch {
	case err != nil:
		t = append(t, Row{judge, check, err.Error(), Failed})
	case !c.Supported:
		t = append(t, Row{judge, check, "it cannot check the format " + q.Format, NotLooked})
	case c.Errors > 0 || c.Corruptions > 0:
		t = append(t, Row{judge, check, fmt.Sprintf("errors: %d, corruptions: %d", c.Errors, c.Corruptions), Differs})
	case c.Leaks > 0:
		t = append(t, Row{judge, check, fmt.Sprintf("no error; lost clusters, which do no harm: %d", c.Leaks), Agrees})
	default:
		t = append(t, Row{judge, check, "no error", Agrees})
	}
	view := qemuimg.Image{Socket: filepath.Join(q.Folder, viewSocket), Format: "raw"}
	switch said, err := qemuimg.Compare(ctx, program, view, dest); {
	case err != nil:
		return append(t, Row{judge, compare, err.Error(), Failed})
	case said != "":
		return append(t, Row{judge, compare, said, Differs})
	}
	return append(t, Row{judge, compare, "identical", Agrees})
}

// askLibguestfs has libguestfs compare the files of source and copy.
func (q question) askLibguestfs(ctx context.Context, limit time.Duration) (t Table) {
	program, found := find(guestfs.Program)
	if !found {
		return Table{absent(Libguestfs, guestfs.Program, guestfs.Package)}
	}
	source := guestfs.Drive{Socket: filepath.Join(q.Folder, sourceSocket), SectorSize: q.SectorSize}
	dest := guestfs.Drive{Path: q.Path, Format: qemuimg.Driver(q.Format), SectorSize: q.SectorSize}
	// libguestfs follows links, so that it would not find extents. The size of a VHD it would round.
	if len(q.Files) > 1 || q.Format == "vhd" {
		dest = guestfs.Drive{Socket: filepath.Join(q.Folder, copySocket), SectorSize: q.SectorSize}
	}
	version, rows, err := guestfs.Compare(ctx, program, q.Folder, source, dest, limit)
	judge := Libguestfs
	if version != "" {
		judge += " " + version
	}
	for _, f := range rows {
		v := Agrees
		switch {
		case !f.Same:
			v = Differs
		case !f.Looked:
			v = NotLooked
		}
		t = append(t, Row{judge, f.Asked, f.Said, v})
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		t = append(t, Row{judge, "files of source and copy", err.Error(), Failed})
	}
	return t
}
