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

// Reading holds the user's options for reading an image. The zero value has no options.
type Reading struct {
	Format     string // required format
	SectorSize int64  // of the disk, in bytes
	Like       int64  // default sector size of a raw image, in bytes; 0 for its own
	Offset     int64  // of the disk in a raw file, in bytes
	Size       int64  // of the disk at Offset, in bytes; 0 for the rest of the file

	Claimed bool // this run has claimed the device, so no other program uses it

	Allow []string // folders that may hold parents and extents

	// Changed means that the disk itself will change, so overlays are also searched below its folder.
	Changed bool

	Remotes Remotes // connections to servers

	Unpacking Unpacking // of packed images

	// Writers lists the programs that have files open for writing. If it is nil, writers are not detected.
	Writers Writers
}

// Writers lists programs that have files open for writing.
type Writers = image.Writers

// FindWriters finds programs that have files open for writing, and loop devices. It must run before the process
// confines itself.
func FindWriters() Writers {
	out := image.FindWriters()
	for id, loop := range Looped() {
		if _, named := out[id]; !named {
			out[id] = sys.Writer{Program: loop}
		}
	}
	return out
}

// Options returns the options for opening the image. It returns an error for an unknown format or a missing folder.
func (r Reading) Options() (image.Options, error) {
	format := image.FormatName(r.Format)
	o := image.Options{Format: format, SectorSize: cmp.Or(r.SectorSize, r.Like)}
	o.Place = disk.Range{Off: r.Offset, Len: r.Size}
	if format != "" && !slices.Contains(image.Names(), format) {
		err := ondisk.NoChoice("--format", r.Format, image.Names()...)
		if slices.Contains([]string{"text", "json", "csv", "html"}, r.Format) {
			err = ondisk.In(ondisk.ErrUsage, "%w; the format of the result is -o %s", err, r.Format)
		}
		return o, err
	}
	if r.Offset != 0 {
		if format != "" && format != raw.Format.Name {
			return o, ondisk.In(ondisk.ErrUsage, "--offset is for a raw disk, and --format is %s", format)
		}
		o.Format = raw.Format.Name
	}
	err := o.AllowFolders(r.Allow)
	return o, err
}

// Formats lists the values of Reading.Format. It also accepts capitals and other usual names.
func Formats() []string { return image.Names() }

// Bytes is a flag value: a number of bytes, or 0 if the flag is not given.
type Bytes struct {
	n    *int64
	fits func(n int64) bool
	must string // the rule of fits, for users
}

// SectorSize returns the flag value of a sector size.
func SectorSize(n *int64) Bytes {
	return Bytes{n, func(n int64) bool { return n == 512 || n == 4096 }, "512 or 4096"}
}

// Offset returns the flag value of the offset of a disk in a raw file.
func Offset(n *int64) Bytes {
	return Bytes{n, func(n int64) bool { return n >= 0 && n%512 == 0 }, "a multiple of 512"}
}

func (b Bytes) String() string {
	if b.n == nil || *b.n == 0 {
		return ""
	}
	return strconv.FormatInt(*b.n, 10)
}

// Type returns the placeholder of the value in help texts.
func (b Bytes) Type() string { return "BYTES" }

// Set parses the argument.
func (b Bytes) Set(arg string) error {
	n, err := units.Parse(arg)
	if err != nil || !b.fits(n) {
		return errors.New("must be " + b.must)
	}
	*b.n = n
	return nil
}

// agrees returns an error if the sector size of an image differs from the user's.
func (r Reading) agrees(img *image.Image) error {
	if got := img.Disk.SectorSize(); r.SectorSize != 0 && got != r.SectorSize {
		return ondisk.Field("image", "sector size", 0, got,
			fmt.Sprintf("%d, from --sector-size (which only a raw image allows)",
				r.SectorSize))
	}
	return nil
}

// ErrOpen marks the error of an image that could not be opened.
var ErrOpen = errors.New("open")

// ErrComplete rejects allowed folders for a package, which references only its own files.
var ErrComplete = ondisk.In(ondisk.ErrUsage, "--allow-folder cannot be used for a package; leave it out")

// complete returns an error if allowed folders or an offset were given for a disk of a package.
func (r Reading) complete(img *image.Image) error {
	switch {
	case img.Packaged() && r.Offset != 0:
		return ondisk.In(ondisk.ErrUsage, "--offset cannot be used for a package; leave it out")
	case img.Packaged() && len(r.Allow) > 0:
		return ErrComplete
	}
	return nil
}

// Open opens and reads an image or a disk of a package. Errors contain the path as the user wrote it.
func Open(path string, r Reading) (*Source, error) {
	o, err := r.Options()
	if err != nil {
		return nil, err
	}
	if path == "-" {
		return nil, ondisk.In(ondisk.ErrUsage, "an image cannot be read from a pipe; write it to a file first (for a "+
			"file named -, give ./-), or name a disk of an archive, as in vm.ova!disk1.vmdk")
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
	return Read(img, r)
}

// hasNoFolder reports whether an image has no folder with other files: an image on a server, or a Windows disk.
func hasNoFolder(path string) bool { return IsRemote(path) || sys.IsDrive(path) }

// openDrive opens and reads a disk by its Windows name.
func (r Reading) openDrive(path string, o image.Options) (*Source, error) {
	if len(r.Allow) > 0 {
		return nil, ondisk.In(ondisk.ErrUsage, "%s: --allow-folder cannot be used for a device; leave it out", path)
	}
	img, err := image.OpenDrive(path, o)
	if err != nil {
		return nil, ondisk.In(ErrOpen, "%s: %w", path, err)
	}
	return Read(img, r)
}

// Unopened returns the reason why an image could not be opened, which may be the unfinished work of a run.
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
			Code: "unfinished", Reason: fmt.Sprintf("it does not exist, and a move has left %q",
				path+image.Moving),
			Remedy: fmt.Sprintf("run trueup resume or trueup undo with %s and --journal FILE, the file given to "+
				"trueup move; trueup inspect %s can show it", shell.Quote(path), shell.Quote(path+image.Moving)),
		}
	}
	if names := journal.LeftAt(path); w == nil && len(names) > 0 && isAbsent(path) {
		return fmt.Errorf("%w; %s: repeat the command that wrote it, or remove it by hand", err, leftText(names))
	}
	return err
}

// Claimed returns an error if a file belongs to the unfinished work of another disk, such as a kept original. The
// commands undo, resume and finish need the name of that disk.
func Claimed(path string) error {
	c, err := journal.ClaimingAt(path)
	if c == nil {
		return err
	}
	return ondisk.In(ondisk.ErrUsage, "%s: %s: %s", path, c.Text(), c.Advice(path))
}

// LeftBehind describes hidden files that killed runs left of the file at path, or returns an empty string.
func LeftBehind(path string) string {
	names := journal.LeftAt(path)
	if len(names) == 0 {
		return ""
	}
	return leftText(names) + ": repeat the same command, which removes it; or remove it by hand"
}

func leftText(names []string) string {
	more := ""
	if len(names) > 1 {
		more = fmt.Sprintf(" and %d more", len(names)-1)
	}
	return fmt.Sprintf("a killed run has left the hidden file %.256q%s in the folder", names[0], more)
}

func isAbsent(path string) bool {
	_, err := sys.Lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}

// Folders lists the folders and devices that must be accessible to read the images. Images on a server and Windows
// disks need none.
func Folders(paths []string) (out []string) {
	for _, path := range paths {
		if !hasNoFolder(path) {
			out = append(out, ova.Roots(path)...)
		}
	}
	return out
}

// openMember opens and reads a disk of a package. Errors contain its path.
func openMember(p *ova.Package, d ova.Disk, r Reading) (*Source, error) {
	o, err := r.Options()
	if err != nil {
		return nil, err
	}
	img, err := p.Open(d, o)
	if err != nil {
		return nil, fmt.Errorf("%s!%s: %w", p.Path, d.Member, err)
	}
	return Read(img, r)
}

// open returns an error if unfinished work on the disk blocks other runs, and adds an issue for other unfinished work.
func (s *Source) open() error {
	of := image.InPackage{Path: s.Path(), Base: s.Image.Base}
	if s.Image.Packaged() {
		of = s.Image.Package // the journal belongs to the package
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

// original adds an issue if the disk is the kept original of an exchange. It returns an error in the middle of the
// exchange.
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
		Code: "original", Effect: ondisk.Note, Text: fmt.Sprintf("it is the kept original of %q", disk),
		Remedy: w.Issue().Remedy,
	}
	if w.Written {
		i.Code, i.Effect = "original-written", ondisk.Warn
		i.Text += ", and was written after the exchange, by a guest or another program"
		i.Remedy = fmt.Sprintf("if a machine runs from it, switch the machine to %q, or restore the disk with the "+
			"new data: %s; %s --force discards the new data", disk, w.Command("undo"), w.Command("finish"))
	}
	s.Beside = append(s.Beside, i)
	return nil
}

// PhaseUnpack is the phase in which an image is unpacked, measured in packed bytes.
const PhaseUnpack = "unpack"

// Unpacking holds the options for packed images. With the zero value, none is read.
type Unpacking struct {
	On     bool
	Spool  string          // folder for unpacked data; if empty, only archives of plain files are read
	Run    context.Context //nolint:containedctx // of the command, whose end ends the unpacking
	Watch  func() Progress // called when unpacking begins; may return nil
	Warn   func(message string)
	Ended  func() // called after an image is unpacked
	Wanted string // name of the command
}

// unpacked calls open for an image that may be packed. open returns ErrNoMatch for any other image.
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

// openLocal opens an image of this machine, which may be packed, or a disk of a package.
func (r Reading) openLocal(path string, o image.Options) (*image.Image, error) {
	img, err := r.unpacked(func(ctx context.Context, way unpack.Way) (*image.Image, error) {
		return unpack.Open(ctx, path, o, way)
	})
	if errors.Is(err, ondisk.ErrNoMatch) {
		return ova.OpenImage(path, o)
	}
	return img, err
}

// packedRefusal returns the error of a packed image for a command that needs an unpacked file.
func packedRefusal(kind, work string) error {
	return &ondisk.Refusal{
		Code: "unsupported", Reason: fmt.Sprintf("%s needs an image in a plain file, not in %s", work, kind),
		Remedy: "write it to a file with trueup convert, and name that file",
	}
}

// Remotes maps URIs to connections to NBD exports, each for one opening. They are made before the process confines
// itself, because it can make none afterwards.
type Remotes map[string][]connection

// connection is a connection to a server, or the error of the attempt.
type connection struct {
	file *nbd.File
	err  error
}

// maxRemotes bounds the connections.
const maxRemotes = 16

// Connect connects to the servers of the exports among images. A failed connection becomes an error of opening the
// image. The end of ctx closes the connections. work is the path of the command.
func Connect(ctx context.Context, images []string, work string) (Remotes, error) {
	if err := CheckAddresses(images); err != nil {
		return nil, err
	}
	images = slices.DeleteFunc(slices.Clone(images), func(image string) bool { return !IsRemote(image) })
	if len(images) > maxRemotes {
		return nil, ondisk.In(ondisk.ErrUsage, "%d images on servers are given, and %d are allowed; give fewer",
			len(images), maxRemotes)
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

// Close closes the unused connections.
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
		return nil, ondisk.In(ondisk.ErrUnsupported, "%s: this command cannot read an image on a server; write it to "+
			"a file with trueup convert", uri)
	case len(r.Allow) > 0:
		return nil, ondisk.In(ondisk.ErrUsage, "%s: --allow-folder cannot be used for a server; leave it out", uri)
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

// Local returns an error for an image on a server, or a Windows disk, because the command work needs a file.
func Local(path, work string) error {
	where, remedy := "on a server", "write it to a file with trueup convert, and name that file"
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
		remedy = "run trueup inspect on it"
	}
	return fmt.Errorf("%s: %w", path, &ondisk.Refusal{
		Code: "unsupported", Reason: work + " needs a file, and this is " + where, Remedy: remedy,
	})
}

// IsRemote reports whether a command-line argument is the address of an export or of a web server.
func IsRemote(word string) bool { return nbd.IsURI(word) || isWeb(word) }

// isWeb reports whether a command-line argument is a web address. trueup does not read these.
func isWeb(word string) bool {
	scheme, _, ok := strings.Cut(word, "://")
	return ok && (strings.EqualFold(scheme, "http") || strings.EqualFold(scheme, "https"))
}

// refuseWeb returns the refusal of a web address with a command line that can read it. work is the path of a command or
// the name of a flag.
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
	remedy := fmt.Sprintf("use nbdkit: nbdkit -U - curl %s --run 'trueup %s'", shell.Quote(Shown(uri)), command)
	if !shell.ForBash(runtime.GOOS) {
		remedy = "download it first; there is no nbdkit on this system"
	}
	return fmt.Errorf("%s: %w", Shown(uri), &ondisk.Refusal{
		Code: "unsupported", Reason: "trueup cannot read web addresses, only files and NBD exports", Remedy: remedy,
	})
}

// CheckAddresses returns an error for an address with blanks, because the end of the address and its secrets could not
// be found in a text.
func CheckAddresses(words []string) error {
	for _, word := range words {
		scheme, rest, _ := strings.Cut(word, "://")
		if !IsRemote(word) || strings.EqualFold(scheme, "nbd+unix") && strings.HasPrefix(rest, "/") {
			continue // it has no secret
		}
		if strings.ContainsFunc(word, func(r rune) bool { return r <= ' ' || r == 0x7F }) {
			return ondisk.In(ondisk.ErrUsage, "an address of %.10q has a blank or a control character: write a blank "+
				"as %%20", scheme)
		}
	}
	return nil
}

// hiddenQuery replaces the query of a web address, which may contain a signature.
const hiddenQuery = "?..."

// address matches URIs in a text: the scheme, everything up to the last @ (a password may have any character), the host
// and path, and the query.
var address = ondisk.LazyPattern(`(?i)\b(https?|nbds?(?:\+\w+)?)://(\S*@)?([^\s?#]*)([?#]\S*[^\s"':;,.)\]])?`)

// Shown returns a text, such as a message or a URI, without secrets in its URIs.
func Shown(text string) string {
	if !strings.Contains(text, "://") {
		return text
	}
	return address().ReplaceAllStringFunc(text, func(uri string) string {
		part := address().FindStringSubmatch(uri)
		scheme, secret, rest, query := part[1]+"://", part[2], part[3], part[4]
		switch web := isWeb(uri); {
		case web && strings.ContainsAny(secret, "?#"): // the text after it may belong to the query
			return scheme + hiddenQuery + rest[len(strings.TrimRight(rest, `"':;,.)]`)):]
		case web && query != "":
			rest += hiddenQuery
		case !web && strings.HasPrefix(secret, "/"): // an address without a host, which has no password
			return scheme + Shown(secret+rest+query)
		case !web:
			rest = Shown(rest + query) // one word may have several
		}
		if secret != "" {
			scheme += "...@"
		}
		return scheme + rest
	})
}

// Survey reads only the start offsets of the partitions of an image, some dozens of KiB. Layout is nil if reading
// it failed.
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

// lookForHidden finds data that read as zeros, if the disk seems to have nothing to judge. Only a VHD can hide data.
func (s *Source) lookForHidden() error {
	if s.Image.Format != "vhd" || s.Image.Check == nil || align.ContentOf(s.Layout) == "" {
		return nil
	}
	found, err := s.Image.Check()
	s.Damage = append(s.Damage, found...)
	s.hidesData()
	return err
}

// Complete reads everything that Survey left out. With all it also checks the map of the image, like inspect.
func (s *Source) Complete(ctx context.Context, all bool) error {
	err := s.read()
	if err == nil && all {
		err = s.checkMap(ctx)
	}
	return err
}

// ByHead returns the note for a disk whose head alone was read.
func ByHead() ondisk.Issue {
	return ondisk.Issue{
		Code: "head", Effect: ondisk.Note,
		Text: "it is compressed, and only its first bytes were unpacked: volumes, boot path, and whether it can be " +
			"copied are not known",
	}
}

// Head opens a packed image, and reads the start offsets of its partitions from its first bytes. Only these are
// unpacked, into memory. The source has a layout only and cannot be planned. The caller closes the image.
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
	if img.Unpacked.Size >= unpack.UnknownSize {
		img.Unpacked.Size = 0
	}
	return s, nil
}

// Guessed reports whether the format and size of a disk are uncertain: it seems to be raw, but the end of its file,
// possibly with the footer of a VHD, was not unpacked.
func (s *Source) Guessed() bool { return s.Image.Format == raw.Format.Name && s.Image.Unpacked.Partly }

// Usage describes for inspect how an image stores its disk.
type Usage struct {
	Map     *align.Usage // nil if the tables of the image are broken
	Layout  *layout.Layout
	NonZero *int64 // bytes of data that are not zero; nil if they were not counted
	Issues  []ondisk.Issue
}

// readJobs is the number of chunks that are read concurrently.
const readJobs = 4

// Use reads the map of the image. It also reads the data if data is set or the data are small. progress reports the
// reading of data, and may be nil.
func (s *Source) Use(ctx context.Context, data bool, progress Progress) (*Usage, error) {
	return s.use(ctx, data, readJobs, progress)
}

func (s *Source) use(ctx context.Context, data bool, jobs int, progress Progress) (*Usage, error) {
	out := &Usage{Layout: s.Layout}
	if err := Broken(align.Relevant(s.Damage, nil)); err != nil {
		return out, nil //nolint:nilerr // reported already
	}
	var u *align.Usage
	seen, err := s.InFiles()
	if err == nil {
		u, err = align.Look(s.Image.Disk, s.Image.Child, partsOf(seen))
	}
	if err != nil {
		out.Issues = unreadable("unreadable-map", err)
		return out, nil
	}
	u.Whole.Shifted = seen.Shift != 0
	out.Map, out.Layout, out.Issues = u, seen, u.Issues()
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

// InFiles returns the layout with the starts that the storage sees. They differ from the starts on the disk if a
// hypervisor runs flat files in place, and the disk does not begin on a block of its file.
func (s *Source) InFiles() (*layout.Layout, error) {
	img := s.Image
	even := img.Subformat == "fixed" && slices.Contains([]string{"vhd", "vhdx"}, img.Format)
	flat := img.Format == "vmdk" && slices.Contains(flatKinds, img.Subformat) || s.reading.Offset != 0
	if img.Child || img.Packaged() || img.Unpacked != nil || !even && !flat {
		return s.Layout, nil
	}
	return align.InFiles(img.Disk, s.Layout, even)
}

// partsOf returns the partitions whose location in the file matters.
func partsOf(l *layout.Layout) []align.Part {
	var out []align.Part
	for _, p := range l.Partitions {
		if align.HoldsVolume(p) {
			out = append(out, align.Part{Number: p.Number, Range: p.Range, Shifted: p.Shift != 0})
		}
	}
	return out
}

// checkMap finds faults that only a complete reading shows: in the map of the image, and in its data if they are small.
func (s *Source) checkMap(ctx context.Context) error {
	u, err := s.use(ctx, false, 1, nil) // with one job, reading is deterministic
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

// unreadable returns the issue of an image in which a complete reading found a fault.
func unreadable(code string, err error) []ondisk.Issue {
	return []ondisk.Issue{{
		Code: code, Effect: ondisk.Broken, Text: err.Error(),
		Remedy: "restore the image from a good copy", Err: err,
	}}
}

// Fragments counts the files of the disk's volumes and their fragments. It returns nil for a broken container.
func (s *Source) Fragments() ([]freespace.FragmentsOf, error) {
	if err := Broken(align.Relevant(s.Damage, nil)); err != nil {
		return nil, nil //nolint:nilerr // reported already
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
