package opinion

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/self"
	"github.com/trueup/trueup/internal/units"
)

// Case is a copy that is to be judged.
type Case struct {
	Source, Dest string
	Judge        string   // one of Judges
	Reading      []string // flags of serve by which SOURCE is read
	Proof        []string // further flags of verify
	Sandbox      []string // flags of each command that reads an image
}

// served is the part of the report of trueup serve that a judge needs.
type served struct {
	Image struct {
		Format     string
		Size       int64 `json:"size_bytes"`
		SectorSize int64 `json:"sector_size_bytes"`
		Files      []struct{}
		Chain      []struct{}
	}
}

// programs are the judges by name: the program, and the package of Debian that has it.
var programs = map[string]struct{ program, debian string }{
	QemuImg:    {QemuImgProgram, QemuImgPackage},
	Libguestfs: {GuestfishProgram, GuestfishPackage},
}

// find returns the paths of the programs of all judges that are asked. A program that is missing is an error.
func (c *Case) find() (map[string]string, error) {
	found := map[string]string{}
	for _, judge := range []string{QemuImg, Libguestfs} {
		if c.Judge != judge && c.Judge != All {
			continue
		}
		x := programs[judge]
		path, err := exec.LookPath(x.program)
		if err != nil {
			return nil, ondisk.In(ondisk.ErrUnsupported,
				"%s is not installed; on Debian: apt install %s; --by %s does without it", x.program, x.debian,
				other(judge))
		}
		found[judge] = path
	}
	return found, nil
}

// other returns the other judge.
func other(judge string) string {
	if judge == QemuImg {
		return Libguestfs
	}
	return QemuImg
}

// Ask has trueup verify prove the copy, and all judges look at it. Warnings of these commands go to stderr.
func Ask(ctx context.Context, stderr io.Writer, c Case) (t Table, err error) {
	found, err := c.find()
	if err != nil {
		return nil, err
	}
	var source, dest served
	s, err := c.serve(ctx, &source, c.Source, c.Reading...)
	if err != nil {
		return nil, err
	}
	defer func() { err = closed(s, err) }()
	d, err := c.serve(ctx, &dest, c.Dest)
	if n := source.Image.SectorSize; err == nil && dest.Image.Format == "raw" && dest.Image.SectorSize != n {
		_ = d.Close() // nobody has read it
		d, err = c.serve(ctx, &dest, c.Dest, "--sector-size", strconv.FormatInt(n, 10))
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = closed(d, err) }()
	if _, err := os.Stat(c.Dest); err != nil {
		return nil, ondisk.In(ondisk.ErrUsage, "DEST: other programs cannot open it as a file: %w", err)
	}
	if len(dest.Image.Chain) > 0 {
		return nil, ondisk.In(ondisk.ErrUsage, "DEST %s is a snapshot, which other programs may take for complete; "+
			"consolidate it first", c.Dest)
	}
	own, err := c.verify(ctx, stderr)
	if err != nil {
		return nil, err
	}
	x := examined{copy: &dest, programs: found}
	if x.path, err = realPath(c.Dest); err == nil {
		if x.source, err = self.Socket(s.URI); err == nil {
			x.dest, err = self.Socket(d.URI)
		}
	}
	if err != nil {
		return nil, err
	}
	return append(Table{own}, x.judge(ctx)...), ctx.Err()
}

// serve starts a server of the disk of an image, with nothing moved.
func (c *Case) serve(ctx context.Context, v *served, image string, reading ...string) (*self.Server, error) {
	return self.Serve(ctx, v, slices.Concat([]string{"--as-is"}, c.Sandbox, reading, []string{"--", image})...)
}

// closed ends a server. Its error is that of the disk that the judges have read.
func closed(s *self.Server, err error) error {
	if closing := s.Close(); err == nil {
		return closing
	}
	return err
}

// verify has trueup prove the copy.
func (c *Case) verify(ctx context.Context, stderr io.Writer) (Row, error) {
	var proof struct {
		Equal       bool
		Differences []struct{ Text string }
	}
	_, err := self.Run(ctx, stderr, &proof, "verify",
		slices.Concat(c.Sandbox, c.Reading, c.Proof, []string{"--", c.Source, c.Dest})...)
	row := Row{Judge: "trueup", Asked: "every byte against the planned disk", Said: "identical", Verdict: Agrees}
	if err == nil && !proof.Equal {
		row.Verdict, row.Said = Differs, "it differs"
		if len(proof.Differences) > 0 {
			row.Said = proof.Differences[0].Text
		}
	}
	return row, err
}

// examined is a copy and the sockets at which trueup serves it and its source.
type examined struct {
	path         string // of DEST, absolute
	copy         *served
	source, dest string // sockets
	programs     map[string]string
}

// judge asks the judges. A hung program is ended after an hour and a second for each MiB.
func (x *examined) judge(ctx context.Context) (t Table) {
	const slowest, least = units.MiB, time.Hour // a second
	limit := least + time.Duration(x.copy.Image.Size/slowest)*time.Second
	ctx, cancel := context.WithTimeoutCause(ctx, 2*limit, fmt.Errorf("no end within %v", 2*limit))
	defer cancel()
	if program := x.programs[QemuImg]; program != "" {
		t = append(t, x.askQemuImg(ctx, program)...)
	}
	if program := x.programs[Libguestfs]; program != "" {
		t = append(t, x.askLibguestfs(ctx, program, limit)...)
	}
	return t
}

// realPath returns the absolute path of a file, through no link.
func realPath(path string) (string, error) {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", err
	}
	return filepath.Abs(path)
}

// askQemuImg has qemu-img check the container of the copy and compare the disk that it reads there with the disk that
// trueup reads.
func (x *examined) askQemuImg(ctx context.Context, program string) (t Table) {
	const check, compare = "check of the container", "every byte against the disk that trueup reads"
	version, err := Version(ctx, program)
	if err != nil {
		return Table{{QemuImg, "its version", err.Error(), Failed}}
	}
	judge := QemuImg + " " + version
	dest := Image{Path: x.path, Format: x.copy.Image.Format}
	c, err := Check(ctx, program, dest)
	switch {
	case err != nil:
		t = append(t, Row{judge, check, err.Error(), Failed})
	case !c.Supported:
		t = append(t, Row{judge, check, "it cannot check the format " + x.copy.Image.Format, NotLooked})
	case c.Errors > 0 || c.Corruptions > 0:
		t = append(t, Row{judge, check, fmt.Sprintf("errors: %d, corruptions: %d", c.Errors, c.Corruptions), Differs})
	case c.Leaks > 0:
		t = append(t, Row{judge, check, fmt.Sprintf("no error; lost clusters, which do no harm: %d", c.Leaks), Agrees})
	default:
		t = append(t, Row{judge, check, "no error", Agrees})
	}
	switch said, err := CompareImages(ctx, program, Image{Socket: x.dest, Format: "raw"}, dest); {
	case err != nil:
		return append(t, Row{judge, compare, err.Error(), Failed})
	case said != "":
		return append(t, Row{judge, compare, said, Differs})
	}
	return append(t, Row{judge, compare, "identical", Agrees})
}

// askLibguestfs has libguestfs compare the files of source and copy.
func (x *examined) askLibguestfs(ctx context.Context, program string, limit time.Duration) (t Table) {
	folder, err := os.MkdirTemp("", "trueup-judge-")
	if err != nil {
		return Table{{Libguestfs, "files of source and copy", err.Error() + "; TMPDIR can name another place", Failed}}
	}
	defer os.RemoveAll(folder) // guestfish removes its files there, unless it hung
	img := x.copy.Image
	source := Drive{Socket: x.source, SectorSize: img.SectorSize}
	dest := Drive{Path: x.path, Format: Driver(img.Format), SectorSize: img.SectorSize}
	// libguestfs follows links, so that it would not find extents. The size of a VHD it would round.
	if len(img.Files) > 1 || img.Format == "vhd" {
		dest = Drive{Socket: x.dest, SectorSize: img.SectorSize}
	}
	version, rows, err := Compare(ctx, program, folder, source, dest, limit)
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
	if err != nil && ctx.Err() == nil {
		t = append(t, Row{judge, "files of source and copy", err.Error(), Failed})
	}
	return t
}
