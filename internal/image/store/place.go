package store

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
	"github.com/trueup/trueup/internal/units"
)

// Place is a path where a command wants to write a file.
type Place struct {
	Flag string // name for messages: DEST, --out or --script
	Path string // as typed
	Copy bool   // an image or a package, which --force may replace; otherwise a text, which may replace a text
	// Mine reports whether trueup wrote a text and nobody has edited it since. If Mine is nil, any text may be
	// replaced.
	Mine func(io.Reader) (bool, error)
}

// Resolve checks whether a command may write to a path. All commands use it for all files. It returns the final path: a
// report is written through links.
func (p Place) Resolve() (string, error) {
	if err := p.checkName(); err != nil {
		return "", err
	}
	st, err := os.Lstat(p.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return p.Path, p.checkFolder()
	case err != nil:
		return "", ondisk.In(ondisk.ErrOutput, "%s %s: %w", p.Flag, p.Path, gate.PlainError(err))
	case st.Mode()&fs.ModeSymlink != 0:
		return p.resolveLink()
	}
	return p.Path, p.checkFile(p.Path, st)
}

// refuse returns the error of a path that can never be valid.
func (p Place) refuse(format string, args ...any) error {
	return ondisk.In(ondisk.ErrUsage, "%s %s %w", p.Flag, p.Path, fmt.Errorf(format, args...))
}

// checkName returns an error for a path that cannot name the file: a folder, standard output, an open descriptor, or
// the name of an image, a machine's file or a journal.
func (p Place) checkName() error {
	switch {
	case p.Path == "":
		return ondisk.In(ondisk.ErrUsage, "%s is empty, must be the name of a file", p.Flag)
	case os.IsPathSeparator(p.Path[len(p.Path)-1]) || slices.Contains([]string{".", ".."}, filepath.Base(p.Path)):
		return p.folder()
	case p.Path == "-":
		return p.refuse("cannot be standard output here (for a file of that name, write ./-)")
	case descriptor(p.Path) != "":
		return p.refuse("is an open descriptor of a process, must be the name of a file")
	}
	if err := sys.CheckName(filepath.Base(p.Path)); err != nil {
		return p.refuse("%w", err)
	}
	if whose := p.nameOf(p.Path); whose != "" {
		return p.refuse("has the name of %s; name another file", whose)
	}
	return nil
}

// nameOf returns the kind of file that a path names if this purpose must not use it, otherwise an empty string.
func (p Place) nameOf(path string) string {
	switch {
	case !p.Copy && image.Named(path, image.SmallestBare):
		return "an image"
	case slices.Contains(machineFiles, strings.ToLower(filepath.Ext(path))):
		return "a virtual machine's own file"
	case strings.EqualFold(filepath.Ext(path), journal.Suffix):
		return "a journal of trueup"
	}
	return ""
}

// machineFiles lists extensions of files that a machine or a package needs next to its images.
var machineFiles = []string{
	".vmx", ".vmxf", ".nvram", ".vmsd", ".vmsn", ".vmss", ".vmem", ".vmtx", ".mf", ".cert",
	".vbox", ".vbox-prev", ".vmcx", ".vmrs", ".vmgs", ".lck",
}

// checkFolder returns an error if the folder of the path is missing or is a file.
func (p Place) checkFolder() error {
	st, err := os.Stat(filepath.Dir(p.Path))
	switch {
	case err == nil && st.IsDir():
		return nil
	case err == nil:
		err = errors.New("it is not a folder")
	case errors.Is(err, fs.ErrNotExist):
		err = fmt.Errorf("%w; create it first", gate.PlainError(err))
	default:
		err = gate.PlainError(err)
	}
	return ondisk.In(ondisk.ErrOutput, "folder of %s %s: %w", p.Flag, p.Path, err)
}

func (p Place) folder() error {
	name := "report.txt"
	if p.Copy {
		name = "aligned.vmdk"
	}
	return p.refuse("is a folder: name the file, such as %s", filepath.Join(p.Path, name))
}

// resolveLink checks the target of a link. Only a text is written through a link, because a copy would replace the
// link.
func (p Place) resolveLink() (string, error) {
	real, err := filepath.EvalSymlinks(p.Path)
	var st fs.FileInfo
	if err == nil {
		st, err = os.Lstat(real)
	}
	switch {
	case err != nil:
		to, _ := os.Readlink(p.Path)
		return "", p.refuse("is a link to %s (%w); name the file itself", to, gate.PlainError(err))
	case p.Copy || !st.Mode().IsRegular():
		return "", p.refuse("is a link to %s; name the file itself", real)
	}
	if whose := p.nameOf(real); whose != "" {
		return "", p.refuse("is a link to %s, which has the name of %s; name another file", real, whose)
	}
	return real, p.checkFile(real, st)
}

// checkFile checks an existing file, after all links.
func (p Place) checkFile(path string, st fs.FileInfo) error {
	switch {
	case st.IsDir():
		return p.folder()
	case !st.Mode().IsRegular():
		return p.refuse("is a device, a pipe or another special file; name a file")
	case p.Copy:
		return nil // Create checks whether it may be replaced
	}
	if err := p.spareImage(path); err != nil {
		return err
	}
	return p.spareText(path)
}

// spareImage returns an error if the file is an image, or if an image in its folder needs it.
func (p Place) spareImage(path string) error {
	id, err := image.Identify(path, nil)
	if err != nil {
		return fmt.Errorf("%s %s: %w", p.Flag, p.Path, err)
	}
	if id.Kind != image.Other && id.Kind != image.Bare {
		return p.refuse("would overwrite an image (%s); name another file", id.Format)
	}
	dir, err := gate.OpenFolder(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("%s %s: %w", p.Flag, p.Path, err)
	}
	defer dir.Close()
	if err := journal.MayWrite(dir, filepath.Base(path), p.Path, p.Flag+" "+p.Path+" cannot be written"); err != nil {
		return err
	}
	user, err := image.UserOf(dir, filepath.Base(path))
	if err != nil {
		return fmt.Errorf("%s %s: %w", p.Flag, p.Path, err)
	}
	if user != "" {
		return p.refuse("would overwrite a file that %s needs; name another file", user)
	}
	return nil
}

// textSample is the number of bytes that isText examines.
const textSample = 64 * units.KiB

// spareText returns an error if a report would overwrite a file that is not text, or a text that the user may have
// edited.
func (p Place) spareText(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("%s %s: %w", p.Flag, p.Path, gate.PlainError(err))
	}
	defer f.Close()
	head, err := sample(f)
	mine := true
	if err == nil && len(head) > 0 && isText(head) && p.Mine != nil {
		mine, err = p.Mine(io.MultiReader(bytes.NewReader(head), f))
	}
	switch {
	case err != nil:
		return fmt.Errorf("%s %s: %w", p.Flag, p.Path, gate.PlainError(err))
	case len(head) > 0 && !isText(head):
		return p.refuse("would overwrite a file that is not text and may be an image; name another file")
	case p.Mine == nil && bytes.HasPrefix(head, []byte("#!")):
		return p.refuse("would overwrite a program; name another file")
	case !mine:
		return p.refuse("was edited, or not written by trueup; name another file, or remove it")
	}
	return nil
}

func sample(r io.Reader) ([]byte, error) { return io.ReadAll(io.LimitReader(r, textSample)) }

// isText reports whether the first bytes of a file are text. A disk begins with code or zeros.
func isText(head []byte) bool {
	for cut := range utf8.UTFMax { // the sample may end within a character
		if cut <= len(head) && utf8.Valid(head[:len(head)-cut]) {
			return bytes.IndexByte(head, 0) < 0
		}
	}
	return false
}

// maxLinks bounds the links of a path, as in the kernel.
const maxLinks = 40

// descriptors matches folders that list the open files of a process.
var descriptors = ondisk.LazyPattern(`^(/proc/.+|/dev)/fd$`)

// descriptor returns the path of an open file of a process, after all links: for /dev/stdout it is /proc/PID/fd/1. It
// returns an empty string for any other path. Such a path must not be written: it is not the location that the user
// means.
func descriptor(path string) string {
	for range maxLinks {
		dir, err := filepath.EvalSymlinks(filepath.Dir(path))
		if err != nil {
			return ""
		}
		path = filepath.Join(dir, filepath.Base(path))
		if descriptors().MatchString(dir) {
			return path
		}
		to, err := os.Readlink(path)
		if err != nil {
			return ""
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(dir, to)
		}
		path = to
	}
	return ""
}

// Standard reports whether a path means standard output: -, /dev/stdout, /proc/self/fd/1, or a link to one of them.
func Standard(path string) bool {
	name := descriptor(path)
	return path == "-" || name == "/dev/fd/1" || name == fmt.Sprintf("/proc/%d/fd/1", os.Getpid())
}

// TryFolder tests whether a file can be created in the folder of a path, before hours of work that would end in an
// error.
func TryFolder(flag, path string) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".trueup-*")
	if err != nil {
		return ondisk.In(ondisk.ErrOutput, "folder of %s %s: %w", flag, path, err)
	}
	return ondisk.OutputError(errors.Join(f.Close(), os.Remove(f.Name())), "%s %s", flag, path)
}

// Use is a file that a run reads or writes, with the flag for messages.
type Use struct{ Flag, Path string }

// Apart returns an error if a written file is one of the others, because one would overwrite the other. It ignores
// empty paths.
func Apart(written Use, others ...Use) error {
	for _, other := range others {
		if written.Path != "" && other.Path != "" && SameFile(written.Path, other.Path) {
			return ondisk.In(ondisk.ErrUsage, "%s %s would overwrite %s %s; name another file",
				written.Flag, written.Path, other.Flag, other.Path)
		}
	}
	return nil
}

// SameFile reports whether two paths lead to one file, or would if the file existed.
func SameFile(a, b string) bool {
	there, err := os.Stat(a)
	if other, oerr := os.Stat(b); err == nil && oerr == nil {
		return os.SameFile(there, other)
	}
	here, err := os.Stat(filepath.Dir(a))
	other, oerr := os.Stat(filepath.Dir(b))
	return err == nil && oerr == nil && os.SameFile(here, other) && filepath.Base(a) == filepath.Base(b)
}

// SpareFiles returns an error if a written file would overwrite one of DEST's files, in the folder of DEST.
func SpareFiles(written Use, dest string, files []string) error {
	for _, f := range files {
		if err := Apart(written, Use{"DEST", filepath.Join(filepath.Dir(dest), f)}); err != nil {
			return err
		}
	}
	return nil
}

// OutputFolders lists the folders in which files at these paths are written: the folder of each path, and the folder of
// a link's target. It skips devices and targets that are not regular files.
func OutputFolders(paths ...string) (out []string) {
	for _, path := range paths {
		folder, err := filepath.EvalSymlinks(filepath.Dir(path))
		if path == "" || path == "-" || err != nil || folder == "/dev" {
			continue
		}
		out = append(out, folder)
		if real, err := filepath.EvalSymlinks(path); err == nil {
			if st, err := os.Stat(real); err == nil && st.Mode().IsRegular() {
				out = append(out, filepath.Dir(real))
			}
		}
	}
	return out
}

// ReportFile is a report that gets its name when it is complete. Until then it has a unique name, because an existing
// file could be an image. It is locked, so that later runs can distinguish it from a leftover of a killed run.
type ReportFile struct {
	*os.File
	path string
}

// CreateReport starts a report at a path returned by Resolve. It gets the permissions of the replaced report, otherwise
// mode, reduced by the umask.
func CreateReport(path string, mode fs.FileMode) (*ReportFile, error) {
	if err := removeStaleReports(path); err != nil {
		return nil, ondisk.In(ondisk.ErrOutput, "%s: leftover of a killed run: %w", path, err)
	}
	partial := filepath.Join(filepath.Dir(path), fmt.Sprintf(".%s.%d.partial", filepath.Base(path), os.Getpid()))
	for {
		f, err := os.OpenFile(partial, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
		if err != nil {
			return nil, ondisk.In(ondisk.ErrOutput, "%w", err)
		}
		// A file system without locks leaves its stale files to the user.
		_ = sys.FromOS(f).LockWaiting(sys.Exclusive)
		if !namedBy(partial, f) { // another run removed it as stale before it was locked
			_ = f.Close()
			continue
		}
		old, err := os.Stat(path)
		if err == nil {
			err = f.Chmod(old.Mode().Perm())
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, ondisk.In(ondisk.ErrOutput, "%w", errors.Join(err, os.Remove(partial), f.Close()))
		}
		return &ReportFile{f, path}, nil
	}
}

// End publishes the report, unless err is set. In both cases it leaves no other file behind. It checks an existing file
// at the path again, because the run may have created it after Resolve, for example as a kept original.
func (f *ReportFile) End(err error) error {
	err = errors.Join(err, f.Close())
	if st, there := os.Lstat(f.path); there == nil && err == nil {
		settled := func(io.Reader) (bool, error) { return true, nil }
		if bad := (Place{Flag: "report", Path: f.path, Mine: settled}).checkFile(f.path, st); bad != nil {
			err = errors.New(bad.Error()) // the work is done, so this is neither a refusal nor wrong usage
		}
	}
	if err == nil {
		err = os.Rename(f.Name(), f.path)
	}
	if err != nil {
		return ondisk.In(ondisk.ErrOutput, "%w", errors.Join(err, os.Remove(f.Name())))
	}
	return nil
}

// namedBy reports whether a path leads to an open file.
func namedBy(path string, f *os.File) bool {
	named, err := os.Lstat(path)
	open, openErr := f.Stat()
	return err == nil && openErr == nil && os.SameFile(named, open)
}

// removeStaleReports removes leftovers of a report from killed runs. A locked file is in use, and a file that is not
// text was never a report.
func removeStaleReports(path string) error {
	mine := regexp.MustCompile(`^\.` + regexp.QuoteMeta(filepath.Base(path)) + `\.[0-9]+\.partial$`)
	dir, err := gate.OpenFolder(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Names(mine.MatchString)
	if err != nil {
		return err
	}
	for _, n := range names {
		if err := removeStaleReport(dir, n, filepath.Join(filepath.Dir(path), n)); err != nil {
			return err
		}
	}
	return nil
}

func removeStaleReport(d *gate.Folder, name, path string) error {
	stale, err := openStale(d, name)
	if err != nil {
		return nil // a file of another user, or removed
	}
	f := stale.OSFile(path)
	defer f.Close()
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() || stale.Lock(sys.Exclusive) != nil {
		return nil // no regular file, or in use
	}
	head, err := sample(f)
	if err != nil || !isText(head) || !namedBy(path, f) {
		return err
	}
	if err := d.Remove(name); !errors.Is(err, fs.ErrPermission) {
		return err
	}
	return nil
}
