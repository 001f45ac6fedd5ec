package realign

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/exchange"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/ova"
	"github.com/trueup/trueup/internal/image/unpack"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/shell"
	"github.com/trueup/trueup/internal/sys"
	"github.com/trueup/trueup/internal/units"
)

// Reading is what the user states about an image that is read. The zero value states nothing.
type Reading struct {
	Format     string // that the image must have
	SectorSize int64  // of the disk, bytes
	Like       int64  // sector size of a raw image when the user says none, bytes; 0 for its own

	Claimed bool // this run has claimed the device, and knows that it is free

	Allow []string // folders in which parents and extents may lie

	// Changed reports that the disk itself changes, so that overlays are looked for below its folder, too.
	Changed bool

	Remotes Remotes // connections to servers

	Unpacking Unpacking // of packed images

	// Writers are the programs that have files open for writing; nil: nobody has looked for them, and nobody does.
	Writers Writers
}

// Writers names the programs that have files open for writing.
type Writers = image.Writers

// FindWriters looks for them, and for loop devices. It has to run before the process confines itself.
func FindWriters() Writers {
	out := image.FindWriters()
	for id, loop := range Looped() {
		if _, named := out[id]; !named {
			out[id] = sys.Writer{Program: loop}
		}
	}
	return out
}

// Options returns the options of opening the image. A format or folder that does not exist is refused.
func (r Reading) Options() (image.Options, error) {
	format := image.FormatName(r.Format)
	o := image.Options{Format: format, SectorSize: cmp.Or(r.SectorSize, r.Like)}
	if format != "" && !slices.Contains(image.Names(), format) {
		err := ondisk.NoChoice("--format", r.Format, image.Names()...)
		if slices.Contains([]string{"text", "json", "csv", "html"}, r.Format) {
			err = ondisk.In(ondisk.ErrUsage, "%w; the format of the result is -o %s", err, r.Format)
		}
		return o, err
	}
	err := o.AllowFolders(r.Allow)
	return o, err
}

// Formats lists what Reading.Format accepts, in capitals or under another usual name too.
func Formats() []string { return image.Names() }

// SectorSize is the sector size of a disk as an argument of a command line, in bytes. 0 stands for no argument.
type SectorSize int64

func (s *SectorSize) String() string {
	if *s == 0 {
		return ""
	}
	return strconv.FormatInt(int64(*s), 10)
}

// Type is the word that help texts show for the argument.
func (s *SectorSize) Type() string { return "BYTES" }

// Set parses the argument.
func (s *SectorSize) Set(arg string) error {
	n, err := units.Parse(arg)
	if err != nil || (n != 512 && n != 4096) {
		return fmt.Errorf("sector size %q, want 512 or 4096", arg)
	}
	*s = SectorSize(n)
	return nil
}

// Flags returns the flags of a command line that reads the image in the same way, whatever its format.
func (r Reading) Flags() []string {
	var out []string
	if r.SectorSize != 0 {
		out = append(out, "--sector-size", (*SectorSize)(&r.SectorSize).String())
	}
	for _, folder := range r.Allow {
		out = append(out, "--allow-folder", folder)
	}
	return out
}

// Arguments returns all flags of a command line that reads the same image.
func (r Reading) Arguments() []string {
	if r.Format == "" {
		return r.Flags()
	}
	return append(r.Flags(), "--format", r.Format)
}

// agrees refuses an image whose sectors have another size than the user states.
func (r Reading) agrees(img *image.Image) error {
	if got := img.Disk.SectorSize(); r.SectorSize != 0 && got != r.SectorSize {
		return ondisk.Field("image", "sector size", 0, got,
			fmt.Sprintf("%d, as --sector-size says (only a raw image can be read with another size than its own)",
				r.SectorSize))
	}
	return nil
}

// ErrOpen marks the error of an image that could not be opened.
var ErrOpen = errors.New("open")

// ErrComplete marks folders that are allowed for a package, which names its own files only.
var ErrComplete = ondisk.In(ondisk.ErrUsage, "--allow-folder is for disks outside of packages: a package is complete, "+
	"and its disks name no other files; leave it out")

// complete refuses folders that a disk of a package does not reach.
func (r Reading) complete(img *image.Image) error {
	if img.Packaged() && len(r.Allow) > 0 {
		return errors.Join(ErrComplete, img.Close())
	}
	return nil
}

// Open opens an image, or a disk of a package, and reads it. Errors name it as the user did.
func Open(path string, r Reading) (*Source, error) {
	o, err := r.Options()
	if err != nil {
		return nil, err
	}
	if path == "-" {
		return nil, ondisk.In(ondisk.ErrUsage, "only trueup convert reads from a pipe; "+
			"write the image to a file first (a file of that name is ./-)")
	}
	if IsRemote(path) {
		return r.openRemote(path, o)
	}
	if sys.IsDrive(path) {
		return r.openDrive(path, o)
	}
	img, err := r.openLocal(path, o)
	if err != nil {
		return nil, ondisk.In(ErrOpen, "%s: %w", path, Unopened(path, err))
	}
	if err := r.complete(img); err != nil {
		return nil, err
	}
	return Read(img, r)
}

// hasNoFolder reports whether nothing lies beside what a path names: an image of a server, or a disk of Windows.
func hasNoFolder(path string) bool { return IsRemote(path) || sys.IsDrive(path) }

// openDrive opens and reads a disk that Windows has a name for.
func (r Reading) openDrive(path string, o image.Options) (*Source, error) {
	if len(r.Allow) > 0 {
		return nil, ondisk.In(ondisk.ErrUsage, "%s: --allow-folder is for files; a device names no others", path)
	}
	img, err := image.OpenDrive(path, o)
	if err != nil {
		return nil, ondisk.In(ErrOpen, "%s: %w", path, err)
	}
	return Read(img, r)
}

// Unopened returns why an image could not be opened: what a run has left open can be the cause.
func Unopened(path string, err error) error {
	w, _ := journal.At(path)
	switch {
	case w.Refusal() != nil:
		return w.Refusal()
	case w != nil && errors.Is(err, fs.ErrNotExist):
		i := w.Issue()
		return &ondisk.Refusal{Code: i.Code, Reason: "it is not there; " + i.Text, Remedy: i.Remedy}
	}
	if w == nil && isAbsent(path) && !isAbsent(path+image.Moving) {
		return &ondisk.Refusal{
			Code: "unfinished", Reason: fmt.Sprintf("it is not there, and a move in place has left %q",
				path+image.Moving),
			Remedy: fmt.Sprintf("give trueup resume or trueup undo with %s and --journal FILE, as the move was begun; "+
				"trueup inspect %s can name the file", shell.Quote(path), shell.Quote(path+image.Moving)),
		}
	}
	if names := journal.LeftAt(path); w == nil && len(names) > 0 && isAbsent(path) {
		return fmt.Errorf("%w; %s: give the command that wrote it again, or remove it by hand", err, leftText(names))
	}
	return err
}

// Claimed returns the error of a file that belongs to the open work of another disk, such as a kept original: undo,
// resume and finish take the name of that disk.
func Claimed(path string) error {
	c, err := journal.ClaimingAt(path)
	if c == nil {
		return err
	}
	return ondisk.In(ondisk.ErrUsage, "%s: %s: %s", path, c.Text(), c.Advice(path))
}

// left notes hidden files that killed runs have left of the files of the disk: nothing else names them.
func (s *Source) left() {
	if s.Image.Packaged() || s.Image.Dir == nil || s.Image.OnDevice() {
		return
	}
	var names []string
	for _, f := range s.Image.Handles {
		if f.Level == 0 && s.Image.Dir.Holds(f) {
			names = append(names, journal.LeftOf(s.Image.Dir, f.Name())...)
		}
	}
	if len(names) > 0 {
		s.Beside = append(s.Beside, ondisk.Issue{
			Code: "left-behind", Effect: ondisk.Note, Text: leftText(names), Remedy: leftRemedy,
		})
	}
}

const leftRemedy = "give the same command again, which removes what it left; or remove it by hand"

// LeftBehind returns what a user should know of hidden files that killed runs have left of the file at a path; empty:
// there are none.
func LeftBehind(path string) string {
	names := journal.LeftAt(path)
	if len(names) == 0 {
		return ""
	}
	return leftText(names) + ": " + leftRemedy
}

func leftText(names []string) string {
	more := ""
	if len(names) > 1 {
		more = fmt.Sprintf(" and %d more", len(names)-1)
	}
	return fmt.Sprintf("a run that was killed has left the hidden file %.256q%s in the folder", names[0], more)
}

func isAbsent(path string) bool {
	_, err := sys.Lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}

// Folders lists the folders and devices that reading the images needs. Standard input is open already.
func Folders(paths []string) (out []string) {
	for _, path := range paths {
		if path != "-" && !hasNoFolder(path) {
			out = append(out, ova.Roots(path)...)
		}
	}
	return out
}

// openMember opens a disk of a package and reads it. Errors name it as the user can.
func openMember(p *ova.Package, d ova.Disk, r Reading) (*Source, error) {
	o, err := r.Options()
	if err != nil {
		return nil, err
	}
	img, err := p.Open(d, o)
	if err != nil {
		return nil, fmt.Errorf("%s!%s: %w", p.Path, d.Member, err)
	}
	if err := r.complete(img); err != nil {
		return nil, err
	}
	return Read(img, r)
}

// open refuses a disk on which a run has left work open that keeps others from it, and notes other work.
func (s *Source) open() error {
	of := image.InPackage{Path: s.Path(), Base: s.Image.Base}
	if s.Image.Packaged() {
		of = s.Image.Package // that of its package counts
	}
	if s.asked || of.Base == "" || s.Image.Under != "" { // a package with files in folders is not exchanged
		return nil
	}
	s.asked = true
	if err := journal.Incomplete(s.Image.Dir, of.Base, of.Path); err != nil {
		return err
	}
	base, _ := strings.CutSuffix(of.Base, image.Moving)
	w, err := journal.Beside(s.Image.Dir, base)
	if err == nil && w == nil && !s.Image.Packaged() {
		err = s.midMove()
	}
	if err == nil && w == nil {
		return s.original(of)
	}
	if w == nil {
		return err
	}
	w.Path = strings.TrimSuffix(of.Path, image.Moving)
	s.Beside = append(s.Beside, w.Issue())
	return w.Refusal()
}

// original notes that the disk is the kept one of an exchange, and refuses it in the middle of that.
func (s *Source) original(of image.InPackage) error {
	w, err := exchange.OriginalBeside(s.Image.Dir, of.Base)
	if w == nil {
		return err
	}
	disk := w.Path
	w.Path = strings.TrimSuffix(of.Path, of.Base) + disk
	if err := w.Refusal(); err != nil {
		return err
	}
	s.Original, s.Written = true, w.Written
	i := ondisk.Issue{
		Code: "original", Effect: ondisk.Note, Text: fmt.Sprintf("it is the original of %q, kept", disk),
		Remedy: w.Issue().Remedy,
	}
	if w.Written {
		i.Code, i.Effect = "original-written", ondisk.Warn
		i.Text += ", and was written since the exchange, by a guest or another program"
		i.Remedy = fmt.Sprintf("if a machine runs from it, have it run from %q, or bring it back as it is now: %s; "+
			"%s --force loses what was written", disk, w.Command("undo"), w.Command("finish"))
	}
	s.Beside = append(s.Beside, i)
	return nil
}

// PhaseUnpack is the phase of a run that unpacks an image, by packed bytes.
const PhaseUnpack = "unpack"

// Unpacking says how packed images are read. The zero value reads none.
type Unpacking struct {
	On     bool
	Spool  string          // folder for what is unpacked; empty: only archives of plain files are read
	Run    context.Context //nolint:containedctx // of the command, whose end ends the unpacking
	Watch  func() Progress // called when unpacking begins; what it returns may be nil
	Warn   func(message string)
	Ended  func() // called when an image is unpacked
	Wanted string // what the command is called
}

// Flags returns the flags of a command line that unpacks in the same folder.
func (u Unpacking) Flags() []string { return []string{"--spool", shell.Quote(u.Spool)} }

// unpacked opens an image that may be packed, by open. The error of one that is not is ErrNoMatch.
func (r Reading) unpacked(
	open func(ctx context.Context, way unpack.Way) (*image.Image, error),
) (*image.Image, error) {
	u := r.Unpacking
	way := unpack.Way{Spool: u.Spool, Warn: u.Warn}
	if !u.On {
		way.Refuse = func(kind string) error { return packedRefusal(kind, cmp.Or(u.Wanted, "this command")) }
	}
	var watched Progress
	way.Begin = func(size int64) {
		if watched == nil && u.Watch != nil {
			watched = u.Watch()
		}
		if watched != nil {
			watched.Begin(PhaseUnpack, size)
		}
	}
	way.Add = func(n int64) {
		if watched != nil {
			watched.Add(n)
		}
	}
	ctx := u.Run
	if ctx == nil {
		ctx = context.Background()
	}
	img, err := open(ctx, way)
	if u.Ended != nil {
		u.Ended()
	}
	return img, err
}

// openLocal opens an image of this machine, which may be a disk of a package, or packed.
func (r Reading) openLocal(path string, o image.Options) (*image.Image, error) {
	img, err := r.unpacked(func(ctx context.Context, way unpack.Way) (*image.Image, error) {
		return unpack.Open(ctx, path, o, way)
	})
	if errors.Is(err, ondisk.ErrNoMatch) {
		return ova.OpenImage(path, o)
	}
	return img, err
}

// packedRefusal returns the error of a packed image for work that needs a file of its own.
func packedRefusal(kind, work string) error {
	return &ondisk.Refusal{
		Code: "unsupported", Reason: fmt.Sprintf("%s needs an image in a file of its own, and this one is packed (%s)",
			work, kind),
		Remedy: "make a file of it with trueup convert, and name that",
	}
}
