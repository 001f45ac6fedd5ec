// Package opinion checks a copy with other programs: qemu-img reads its container and compares its disk with the one
// that trueup reads, and libguestfs compares the files in source and copy. They share no code with trueup. This package
// decodes no image: trueup serve and trueup verify do that, each in its own process.
package opinion

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
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

// Names of the judges.
const (
	QemuImg    = "qemu-img"
	Libguestfs = "libguestfs"
	All        = "all"
)

// Judges returns the valid names of judges.
func Judges() []string { return []string{All, QemuImg, Libguestfs} }

// Verdict is the result of a judge on one object.
type Verdict string

// Verdicts.
const (
	Agrees    Verdict = "agrees"
	Differs   Verdict = "differs"
	NotLooked Verdict = "not_looked_at" // the judge cannot read it
	Failed    Verdict = "failed"        // the judge did not finish
)

// Row is one result of a judge. The words of a judge are untrusted.
type Row struct {
	Judge   string  `json:"judge"` // with its version
	Asked   string  `json:"asked"`
	Said    string  `json:"said"`
	Verdict Verdict `json:"verdict"`
}

// Table holds all results, trueup's first.
type Table []Row

// of returns the rows with a verdict.
func (t Table) of(v Verdict) Table {
	return slices.DeleteFunc(slices.Clone(t), func(r Row) bool { return r.Verdict != v })
}

// Differs reports whether a judge found a difference.
func (t Table) Differs() bool { return len(t.of(Differs)) > 0 }

// words returns the rows as one text.
func (t Table) words() string {
	all := make([]string, 0, len(t))
	for _, r := range t {
		all = append(all, r.Judge+", "+r.Asked+": "+r.Said)
	}
	return strings.Join(all, "; ")
}

// Err returns the error of a table without an overall verdict: a judge failed, or only trueup examined the copy.
func (t Table) Err() error {
	if failed := t.of(Failed); len(failed) > 0 && !t.Differs() {
		judge, _, _ := strings.Cut(failed[0].Judge, " ")
		return ondisk.In(ondisk.ErrUnsupported, "no second opinion: %s; to use only the other judge, add --by %s",
			failed.words(), other(judge))
	}
	looked := slices.ContainsFunc(t, func(r Row) bool {
		return r.Judge != "trueup" && (r.Verdict == Agrees || r.Verdict == Differs)
	})
	if !looked && !t.Differs() {
		return ondisk.In(ondisk.ErrUnsupported, "no second opinion, because no judge checked anything: %s", t.words())
	}
	return nil
}

// Judge is the result of the command judge.
type Judge struct {
	report.Head
	Source   string `json:"source"`
	Dest     string `json:"dest"`
	Agree    bool   `json:"agree"` // no judge found a difference
	Answers  Table  `json:"answers"`
	ExitCode int    `json:"exit_code"`
}

// NewJudge reports the answers of the judges.
func NewJudge(h report.Head, source, dest string, t Table) *Judge {
	r := &Judge{Head: h, Source: source, Dest: dest, Agree: !t.Differs(), Answers: t}
	if !r.Agree {
		r.ExitCode = report.ExitDiffers
	}
	return r
}

// Text prints the answers, and whether all agree.
func (r *Judge) Text(t *report.Text) {
	for _, x := range r.Answers {
		verdict := fmt.Sprintf("%-13s", strings.ReplaceAll(string(x.Verdict), "_", " "))
		switch x.Verdict {
		case Differs, Failed:
			verdict = t.Paint(report.Red, verdict)
		case Agrees:
			verdict = t.Paint(report.Green, verdict)
		case NotLooked:
		}
		fmt.Fprintf(t.W, "  %s  ", verdict)
		t.Para(17, "%s, %s: %s", report.SafeMessage(x.Judge), report.SafeMessage(x.Asked), report.SafeMessage(x.Said))
	}
	if r.Agree {
		fmt.Fprintf(t.W, "%s: no judge found a difference\n", report.Safe(r.Dest))
		return
	}
	fmt.Fprintf(t.W, "%s: %s\n", report.Safe(r.Dest), t.Paint(report.Red, "a judge found a difference"))
}

// Case is a copy to be judged.
type Case struct {
	Source, Dest string
	Judge        string   // one of Judges
	Reading      []string // flags of serve for reading SOURCE
	Proof        []string // further flags of verify
	Sandbox      []string // flags of each command that reads an image
}

// diskAt returns the disk at the socket of its server.
func diskAt(s *self.Server, sectorSize int64) (disk, error) {
	socket, err := self.Socket(s.URI)
	return disk{socket: socket, format: "raw", sectorSize: sectorSize}, err
}

// programs maps judges to their programs and Debian packages.
var programs = map[string]struct{ program, debian string }{
	QemuImg: {"qemu-img", "qemu-utils"}, Libguestfs: {"guestfish", "libguestfs-tools"},
}

// find returns the paths of the programs of all selected judges. A missing program is an error.
func (c *Case) find() (map[string]string, error) {
	found := map[string]string{}
	for _, judge := range []string{QemuImg, Libguestfs} {
		if c.Judge != judge && c.Judge != All {
			continue
		}
		path, err := sys.Tool(programs[judge].program, programs[judge].debian)
		if err != nil {
			return nil, fmt.Errorf("%w; to do without it, add --by %s", err, other(judge))
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

// Ask proves the copy with trueup verify, and collects the results of all judges. Warnings of these commands go to
// stderr.
func Ask(ctx context.Context, stderr io.Writer, c Case) (t Table, err error) {
	found, err := c.find()
	if err != nil {
		return nil, err
	}
	var source, dest report.Serve
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
		return nil, ondisk.In(ondisk.ErrUsage, "DEST must be a file that other programs can open: %w", err)
	}
	if len(dest.Image.Chain) > 0 {
		return nil, ondisk.In(ondisk.ErrUsage, "DEST %s is a snapshot, which other programs may mistake for a "+
			"complete disk; consolidate it first", c.Dest)
	}
	own, err := c.verify(ctx, stderr)
	if err != nil {
		return nil, err
	}
	path, err := realPath(c.Dest)
	if err != nil {
		return nil, err
	}
	original, errS := diskAt(s, source.Image.SectorSize)
	read, errD := diskAt(d, dest.Image.SectorSize)
	if err := errors.Join(errS, errD); err != nil {
		return nil, err
	}
	file := disk{path: path, format: dest.Image.Format, sectorSize: dest.Image.SectorSize}
	// A hanging program is ended after an hour plus a second for each MiB.
	limit := time.Hour + time.Duration(dest.Image.Size/units.MiB)*time.Second
	within, cancel := context.WithTimeoutCause(ctx, 2*limit, fmt.Errorf("no end within %v", 2*limit))
	defer cancel()
	t = Table{own}
	if program := found[QemuImg]; program != "" {
		t = append(t, askQemuImg(within, program, file, read)...)
	}
	if program := found[Libguestfs]; program != "" {
		// libguestfs follows links, so it would not find extents. It would round the size of a VHD.
		if len(dest.Image.Files) > 1 || file.format == "vhd" {
			file = read
		}
		t = append(t, askLibguestfs(within, program, original, file, limit)...)
	}
	return t, ctx.Err()
}

// serve starts a server for the disk of an image, without moving anything.
func (c *Case) serve(ctx context.Context, v *report.Serve, image string, reading ...string) (*self.Server, error) {
	return self.Serve(ctx, v, slices.Concat([]string{"--as-is"}, c.Sandbox, reading, []string{"--", image})...)
}

// closed ends a server. An error of the server concerns the disk that the judges have read.
func closed(s *self.Server, err error) error {
	if closing := s.Close(); err == nil {
		return closing
	}
	return err
}

// verify proves the copy with trueup.
func (c *Case) verify(ctx context.Context, stderr io.Writer) (Row, error) {
	var proof report.Verify
	_, err := self.Run(ctx, stderr, &proof, "verify",
		slices.Concat(c.Sandbox, c.Reading, c.Proof, []string{"--", c.Source, c.Dest})...)
	row := Row{Judge: "trueup", Asked: "every byte against the planned disk", Said: "identical", Verdict: Agrees}
	if err == nil && !proof.Equal {
		row.Verdict, row.Said = Differs, "it differs"
		for _, d := range proof.Disks {
			row.Said = d.Differences[0].Text
		}
	}
	return row, err
}

// realPath returns the absolute path of a file without symbolic links.
func realPath(path string) (string, error) {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", err
	}
	return filepath.Abs(path)
}

// askLibguestfs compares the files of source and copy with libguestfs.
func askLibguestfs(ctx context.Context, program string, source, dest disk, limit time.Duration) (t Table) {
	version, err := versionOf(ctx, program)
	folder := ""
	if err == nil {
		if folder, err = os.MkdirTemp("", "trueup-judge-"); err != nil {
			err = fmt.Errorf("%w; to use another folder, set TMPDIR", err)
		}
	}
	if err == nil {
		defer os.RemoveAll(folder) // guestfish removes its files there, unless it hung
		t, err = compareFiles(ctx, program, folder, source, dest, limit)
	}
	if err != nil && ctx.Err() == nil {
		t = append(t, Row{Asked: "files of source and copy", Said: err.Error(), Verdict: Failed})
	}
	for n := range t {
		t[n].Judge = strings.TrimSpace(Libguestfs + " " + version)
	}
	return t
}
