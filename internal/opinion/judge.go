// Package opinion checks a copy with other programs: qemu-img reads its container and compares its disk with the one
// that trueup reads, and libguestfs compares the files in source and copy. They share no code with trueup. This package
// decodes no image: trueup serve and trueup verify do that, each in its own process.
package opinion

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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
func (r *Judge) Text(t *report.Text) { t.Say("judge", r) }

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
