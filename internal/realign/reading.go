package realign

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/exchange"
	"github.com/trueup/trueup/internal/freespace"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/ova"
	"github.com/trueup/trueup/internal/image/raw"
	"github.com/trueup/trueup/internal/image/unpack"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/nbd"
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
		return nil, ondisk.In(ondisk.ErrUsage, "an image is not read from a pipe; write it to a file first (a file of "+
			"that name is ./-), or name a disk of an archive, as in vm.ova!disk1.vmdk")
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

// LeftBehind returns what a user should know of hidden files that killed runs have left of the file at a path; empty:
// there are none.
func LeftBehind(path string) string {
	names := journal.LeftAt(path)
	if len(names) == 0 {
		return ""
	}
	return leftText(names) + ": give the same command again, which removes what it left; or remove it by hand"
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

// Folders lists the folders and devices that reading the images needs.
func Folders(paths []string) (out []string) {
	for _, path := range paths {
		if !hasNoFolder(path) {
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

// unpacked opens an image that may be packed, by open. The error of one that is not is ErrNoMatch.
func (r Reading) unpacked(
	open func(ctx context.Context, way unpack.Way) (*image.Image, error),
) (*image.Image, error) {
	u := r.Unpacking
	way := unpack.Way{Spool: u.Spool, Warn: u.Warn}
	if !u.On {
		way.Refuse = func(kind string) error { return packedRefusal(kind, cmp.Or(u.Wanted, "this command")) }
	}
	var progress Progress // of all files of an archive
	way.Begin = func(size int64) {
		if progress == nil && u.Watch != nil {
			progress = u.Watch()
		}
		progress = watched(progress)
		progress.Begin(PhaseUnpack, size)
	}
	way.Add = func(n int64) { progress.Add(n) }
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

// Remotes are connections to exports of NBD by URI, each for one opening. They are made before the process confines
// itself, which cannot make any then.
type Remotes map[string][]connection

// connection is one to a server, or the error of making it.
type connection struct {
	file *nbd.File
	err  error
}

// maxRemotes bounds the connections.
const maxRemotes = 16

// Connect connects to the servers of those images that are exports; an error is that of opening the image. The end of
// ctx ends the connections. work is the path of the command.
func Connect(ctx context.Context, images []string, work string) (Remotes, error) {
	if err := CheckAddresses(images); err != nil {
		return nil, err
	}
	images = slices.DeleteFunc(slices.Clone(images), func(image string) bool { return !IsRemote(image) })
	if len(images) > maxRemotes {
		return nil, ondisk.In(ondisk.ErrUsage, "%d images of servers are given, and one run reads at most %d; give "+
			"fewer", len(images), maxRemotes)
	}
	all := Remotes{}
	for _, uri := range images {
		if isWeb(uri) {
			all.Close()
			return nil, refuseWeb(uri, work)
		}
		f, err := nbd.Open(ctx, uri)
		all[uri] = append(all[uri], connection{f, err})
	}
	return all, nil
}

// Close ends the connections that were not used.
func (r Remotes) Close() {
	for _, made := range r {
		for _, c := range made {
			if c.file != nil {
				_ = c.file.Close()
			}
		}
	}
	clear(r)
}

// openRemote opens and reads an export of a server.
func (r Reading) openRemote(uri string, o image.Options) (*Source, error) {
	made := r.Remotes[uri]
	switch {
	case len(made) == 0:
		return nil, ondisk.In(ondisk.ErrUnsupported, "%s: this command reads no images of servers; trueup convert "+
			"makes a file of it", uri)
	case len(r.Allow) > 0:
		return nil, ondisk.In(ondisk.ErrUsage, "%s: --allow-folder is for files; an image of a server names no others",
			uri)
	}
	r.Remotes[uri] = made[1:]
	img, err := (*image.Image)(nil), made[0].err
	if err == nil {
		img, err = image.OpenAlone(made[0].file, Shown(uri), o, nil)
	}
	if err != nil {
		return nil, ondisk.In(ErrOpen, "%s: %w", uri, err)
	}
	return Read(img, r)
}

// Local refuses an image of a server, and a disk of Windows, for work that needs a file.
func Local(path, work string) error {
	where, remedy := "on a server", "make a file of it with trueup convert, and name that"
	switch {
	case isWeb(path):
		return refuseWeb(path, work)
	case !hasNoFolder(path):
		return nil
	case sys.IsDrive(path):
		where = "a device of Windows"
	case work == "trueup report": // of results, which are no image
		remedy = "save it as a file"
	case work == "trueup scan":
		remedy = "give it to trueup inspect"
	}
	return fmt.Errorf("%s: %w", path, &ondisk.Refusal{
		Code: "unsupported", Reason: work + " needs a file, and this is " + where, Remedy: remedy,
	})
}

// IsRemote reports whether a word of a command line is the address of an export or of a web server, and no file.
func IsRemote(word string) bool { return nbd.IsURI(word) || isWeb(word) }

// isWeb reports whether a word of a command line is a web address, which trueup does not read.
func isWeb(word string) bool {
	scheme, _, ok := strings.Cut(word, "://")
	return ok && (strings.EqualFold(scheme, "http") || strings.EqualFold(scheme, "https"))
}

// refuseWeb returns the refusal of a web address, with the command line that reads it. work is the path of a command
// or the name of a flag.
func refuseWeb(uri, work string) error {
	command := strings.TrimPrefix(work, "trueup ")
	switch command {
	case "align", "convert", "verify":
		command += ` "$uri" DEST`
	case "inspect", "plan":
		command += ` "$uri"`
	case "scan":
		command = `inspect "$uri"`
	default:
		command = `align "$uri" DEST`
	}
	remedy := fmt.Sprintf("nbdkit serves it: nbdkit -U - curl %s --run 'trueup %s'", shell.Quote(Shown(uri)), command)
	if !shell.ForBash(runtime.GOOS) {
		remedy = "download it first; there is no nbdkit on this system"
	}
	return fmt.Errorf("%s: %w", Shown(uri), &ondisk.Refusal{
		Code: "unsupported", Reason: "trueup reads files and exports of NBD, and no web addresses", Remedy: remedy,
	})
}

// CheckAddresses refuses addresses with blanks: in a text it could not be seen where they and their secrets end.
func CheckAddresses(words []string) error {
	for _, word := range words {
		scheme, rest, _ := strings.Cut(word, "://")
		if !IsRemote(word) || strings.EqualFold(scheme, "nbd+unix") && strings.HasPrefix(rest, "/") {
			continue // which has no secret
		}
		if strings.ContainsFunc(word, func(r rune) bool { return r <= ' ' || r == 0x7F }) {
			return ondisk.In(ondisk.ErrUsage, "an address of %.10q has a blank or a control character, want %%20 and "+
				"the like", scheme)
		}
	}
	return nil
}

// hiddenQuery stands for the query of a web address, which may hold a signature.
const hiddenQuery = "?..."

// address finds URIs in a text: the scheme, all up to the last @, since a password may have any character, the place,
// and the query.
var address = ondisk.LazyPattern(`(?i)\b(https?|nbds?(?:\+\w+)?)://(\S*@)?([^\s?#]*)([?#]\S*[^\s"':;,.)\]])?`)

// Shown returns a text, such as a message or a URI, without what may be secret in its URIs.
func Shown(text string) string {
	if !strings.Contains(text, "://") {
		return text
	}
	return address().ReplaceAllStringFunc(text, func(uri string) string {
		part := address().FindStringSubmatch(uri)
		scheme, secret, rest, query := part[1]+"://", part[2], part[3], part[4]
		switch web := isWeb(uri); {
		case web && strings.ContainsAny(secret, "?#"): // what follows may be of the query
			return scheme + hiddenQuery + rest[len(strings.TrimRight(rest, `"':;,.)]`)):]
		case web && query != "":
			rest += hiddenQuery
		case !web && strings.HasPrefix(secret, "/"): // an address without a host, which has no password
			return scheme + Shown(secret+rest+query)
		case !web:
			rest = Shown(rest + query) // of several in one word
		}
		if secret != "" {
			scheme += "...@"
		}
		return scheme + rest
	})
}

// Survey reads of an image only what shows where its partitions start, some dozens of KiB. Layout is nil with an error.
func Survey(img *image.Image) (*Source, error) {
	s := &Source{Image: img, Damage: slices.Clone(img.Issues)}
	err := s.open()
	if err != nil {
		return s, err
	}
	if s.Layout, err = layout.Survey(img.Disk, s.geometry()); err != nil {
		return s, err
	}
	s.countSectors()
	return s, s.lookForHidden()
}

// lookForHidden finds data that read as zeros, on a disk where nothing else would be judged: only a VHD can hide some.
func (s *Source) lookForHidden() error {
	if s.Image.Format != "vhd" || s.Image.Check == nil || align.ContentOf(s.Layout) == "" {
		return nil
	}
	found, err := s.Image.Check()
	s.Damage = append(s.Damage, found...)
	s.hidesData()
	return err
}

// Complete reads what Survey left out. With all, it looks at the map of the image too, as inspect does.
func (s *Source) Complete(ctx context.Context, all bool) error {
	err := s.read()
	if err == nil && all {
		err = s.checkMap(ctx)
	}
	return err
}

// ByHead returns the note on a disk of which only the head was read.
func ByHead() ondisk.Issue {
	return ondisk.Issue{
		Code: "head", Effect: ondisk.Note,
		Text: "it is packed, and was judged by the first bytes that it unpacks to: volumes, how it boots, and " +
			"whether a copy can be made, are not known",
	}
}

// Head opens a packed image, and reads of it where its partitions start, as far as the first bytes show that. Nothing
// of it is unpacked but these, into memory. It has a layout only; no plan can be made of it. The caller closes the
// image.
func Head(ctx context.Context, path string, o image.Options) (*Source, error) {
	img, err := unpack.Open(ctx, path, o, unpack.Way{Head: true})
	if err != nil {
		return nil, err
	}
	s := &Source{Image: img}
	if s.Layout, err = layout.Head(img.Disk, s.geometry(), unpack.ErrBeyond); err != nil {
		img.Close()
		return nil, err
	}
	if !s.Guessed() {
		s.Layout.Size = img.Disk.Size()
	}
	if img.Unpacked.Size >= unpack.Unsaid {
		img.Unpacked.Size = 0
	}
	return s, nil
}

// Guessed reports whether format and size of a disk are not known: it seems to be raw, and the end of its file, which
// may have the footer of a VHD, was not unpacked.
func (s *Source) Guessed() bool { return s.Image.Format == raw.Format.Name && s.Image.Unpacked.Partly }

// Usage describes how an image stores its disk, for inspect.
type Usage struct {
	Map     *align.Usage // nil when the tables of the image are broken
	NonZero *int64       // bytes of data that are not zero; nil when they were not counted
	Issues  []ondisk.Issue
}

// readJobs is how many chunks are read at once.
const readJobs = 4

// Use walks over the map of the image, and reads its data where that is wanted or little. progress is that of reading
// the data; nil: nobody watches.
func (s *Source) Use(ctx context.Context, data bool, progress Progress) (*Usage, error) {
	return s.use(ctx, data, readJobs, progress)
}

func (s *Source) use(ctx context.Context, data bool, jobs int, progress Progress) (*Usage, error) {
	out := &Usage{}
	if err := Broken(align.Relevant(s.Damage, nil)); err != nil {
		return out, nil //nolint:nilerr // said already
	}
	u, err := align.Look(s.Image.Disk, s.Image.Child, s.parts())
	if err != nil {
		out.Issues = unreadable("unreadable-map", err)
		return out, nil
	}
	out.Map, out.Issues = u, u.Issues()
	if !data && !u.Small() {
		return out, nil
	}
	progress = watched(progress)
	progress.Begin("read", u.Data())
	n, err := align.NonZero(ctx, s.Image.Disk, jobs, progress.Add)
	switch {
	case errors.Is(err, context.Canceled):
		return nil, err
	case err != nil:
		out.Issues = append(out.Issues, unreadable("unreadable-data", err)...)
	default:
		out.NonZero = &n
	}
	return out, nil
}

// parts returns the partitions whose place in the file matters.
func (s *Source) parts() []align.Part {
	var out []align.Part
	for _, p := range s.Layout.Partitions {
		if align.HoldsVolume(p) {
			out = append(out, align.Part{Number: p.Number, Range: p.Range})
		}
	}
	return out
}

// checkMap finds what only a reader of all of a disk meets: the map of the image, and the data where they are little.
func (s *Source) checkMap(ctx context.Context) error {
	u, err := s.use(ctx, false, 1, nil) // one job, so that what is read does not depend on chance
	if err != nil {
		return err
	}
	for _, i := range u.Issues {
		if i.Effect == ondisk.Broken {
			s.Damage = append(s.Damage, i)
		}
	}
	return nil
}

// unreadable returns the issue of an image that only a reader of all of it finds broken.
func unreadable(code string, err error) []ondisk.Issue {
	return []ondisk.Issue{{
		Code: code, Effect: ondisk.Broken, Text: err.Error(),
		Remedy: "restore the image from a good copy", Err: err,
	}}
}

// Fragments counts the files of the volumes of the disk, and in how many pieces they lie.
func (s *Source) Fragments() ([]freespace.FragmentsOf, error) {
	if err := Broken(align.Relevant(s.Damage, nil)); err != nil {
		return nil, nil //nolint:nilerr // said already
	}
	var parts []freespace.Part
	if v := s.Layout.Volume; v != nil {
		parts = freespace.PartsOf(0, disk.Range{Len: s.Layout.Size}, v)
	}
	for _, p := range s.Layout.Partitions {
		if p.Volume != nil && align.HoldsVolume(p) {
			parts = append(parts, freespace.PartsOf(p.Number, p.Range, p.Volume)...)
		}
	}
	return freespace.Count(s.Image.Disk, parts)
}
