// Package handover gives a guest its aligned disk while the disk is still being copied. It decodes no image: trueup
// serve serves the planned disk, qemu-img makes an overlay of it, on which the guest starts, QEMU streams the rest into
// the overlay, and trueup verify compares the result.
package handover

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/self"
	"github.com/trueup/trueup/internal/shell"
	"github.com/trueup/trueup/internal/sys"
	"github.com/trueup/trueup/internal/units"
)

// Handover is a run of the command handover.
type Handover struct {
	Source, Dest string   // as the user wrote them; Resume and Undo read Source from the journal
	Flags        []string // of the plan, for Start
	Socket       string   // path for the server; by default beside the overlay
	Pull         Pull
	Program      []string // starts QEMU; {} stands for the overlay
	Version      string   // of trueup
	Say          func(text string)
	Progress     Progress // nil for none
	Stderr       io.Writer

	plan   order
	held   *journal.Held
	state  state
	image  image
	server *self.Server
	ended  <-chan struct{} // closed when Program has ended; nil without a program
}

// Progress receives the progress of the stream.
type Progress interface {
	Begin(phase string, total int64)
	Add(n int64)
}

// order is the plan in the journal: all that a resumed run needs.
type order struct {
	journal.Handed
	Program string   // version of trueup
	Source  string   // absolute path
	Flags   []string // of trueup serve and verify
	Socket  string   // absolute path
	Pull    Pull
	Size    int64  // of the disk, bytes
	Digest  string // of the moves and patches
}

// state is the record of the journal behind its phase.
type state struct {
	Downtime float64       // seconds from the command to a disk on which the guest can start
	Proved   journal.Phase // of a raw DEST, whose overlay is removed next; 0 without a proof
}

// bitmap is the name of the bitmap that records the writes of the guest.
const bitmap = "guest"

// maxSocket bounds the path of a Unix socket in bytes, as trueup serve does.
const maxSocket = 103

// Start begins a handover and sees it through.
func (h *Handover) Start(ctx context.Context) (r *Result, err error) {
	began := time.Now()
	if err := h.prepare(ctx); err != nil {
		return nil, err
	}
	var served report.Serve
	if err := h.serve(ctx, &served); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, h.server.Close()) }()
	for _, f := range served.Findings {
		h.Say(fmt.Sprintf("%s: %s", f.Severity, f.Text))
	}
	h.plan.Size, h.plan.Digest = served.NewSize, digest(&served.Changes)
	if h.plan.Handed, err = h.handed(&served); err != nil {
		return nil, fmt.Errorf("SOURCE %s: %w", h.Source, err)
	}
	defer func() { err = errors.Join(err, h.held.Close()) }()
	if err := h.begin(); err != nil {
		return nil, err
	}
	if err := h.image.create(ctx, h.plan.Socket, h.plan.Size); err != nil {
		return nil, errors.Join(err, h.plan.Release(h.held.Plan()), h.held.Remove())
	}
	h.state.Downtime = time.Since(began).Seconds()
	if err := h.enter(journal.Given); err != nil {
		return nil, errors.Join(err, h.remove(ctx, true))
	}
	if served.Image.SectorSize != units.SectorSize {
		h.Say(fmt.Sprintf("SOURCE has sectors of %d bytes: give its device in QEMU logical_block_size=%[1]d",
			served.Image.SectorSize))
	}
	return h.goOn(ctx)
}

// prepare checks the arguments of Start and completes the plan.
func (h *Handover) prepare(ctx context.Context) (err error) {
	if err := h.tools(ctx); err != nil {
		return err
	}
	for _, path := range h.image.files() {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			return ondisk.In(ondisk.ErrOutput, "%s exists; name a new file for DEST", path)
		}
	}
	if err := journal.MayChange(h.Source, "handover: SOURCE is needed as it is"); err != nil {
		return err
	}
	// QEMU's options end at a comma.
	if strings.ContainsFunc(h.image.overlay, func(r rune) bool {
		return strings.ContainsRune(`,"\`, r) || unicode.IsControl(r) || r == unicode.ReplacementChar
	}) {
		return ondisk.In(ondisk.ErrUsage, "DEST %q: a comma, a quotation mark, a backslash or a control character "+
			"cannot be handed to QEMU; name it otherwise", h.image.overlay)
	}
	h.plan.Program, h.plan.Flags, h.plan.Pull = h.Version, h.Flags, h.Pull
	if h.plan.Source, err = filepath.Abs(h.Source); err != nil {
		return err
	}
	if h.Socket == "" {
		h.Socket = h.image.overlay + ".socket"
	}
	if h.plan.Socket, err = filepath.Abs(h.Socket); err != nil {
		return err
	}
	return h.monitored()
}

// monitored completes the monitor of the plan, and bounds its names.
func (h *Handover) monitored() (err error) {
	p := &h.plan.Pull
	if len(h.Program) > 0 {
		p.Monitor, p.Domain = strings.TrimSuffix(h.plan.Socket, ".socket")+".qmp", ""
	}
	if p.Monitor != "" {
		p.Monitor, err = filepath.Abs(p.Monitor)
	}
	for _, path := range []string{h.plan.Socket, p.Monitor} {
		if len(path) > maxSocket {
			return ondisk.In(ondisk.ErrUsage, "the socket %s has a path of %d bytes, at most %d are allowed; name a "+
				"shorter one with --socket or --qmp", path, len(path), maxSocket)
		}
	}
	all := strings.Join(append(h.plan.Flags, h.plan.Source, h.plan.Socket, p.Monitor, p.Domain), " ")
	if !utf8.ValidString(all) {
		return ondisk.In(ondisk.ErrUsage, "%q: a name that is not UTF-8 does not fit into the journal; rename it", all)
	}
	return err
}

// tools finds DEST and the programs of the handover.
func (h *Handover) tools(ctx context.Context) (err error) {
	if h.image, err = imageOf(h.Dest); err != nil {
		return err
	}
	if h.Pull.Domain != "" {
		if _, err := sys.Tool("virsh", "libvirt-clients"); err != nil {
			return err
		}
		if _, err := run(ctx, "virsh", "dominfo", h.Pull.Domain); err != nil {
			return err
		}
	}
	if len(h.Program) > 0 {
		if _, err := sys.Tool(h.Program[0], ""); err != nil {
			return err
		}
		if !strings.Contains(strings.Join(h.Program[1:], " "), "{}") {
			return ondisk.In(ondisk.ErrUsage, "no argument behind -- has {}, which stands for the disk; give it to "+
				"QEMU, as in -drive file={},format=qcow2")
		}
	}
	return nil
}

// serve starts the server of the planned disk at the socket of the plan.
func (h *Handover) serve(ctx context.Context, to *report.Serve) (err error) {
	args := slices.Concat([]string{"--socket", h.plan.Socket}, h.plan.Flags, []string{"--", h.plan.Source})
	if h.server, err = self.Serve(ctx, to, args...); err != nil {
		return err
	}
	if err := h.plan.Pull.admit(ctx, h.plan.Socket); err != nil {
		return errors.Join(err, h.server.Close())
	}
	return nil
}

// digest returns the SHA-256 of the moves and patches of a plan.
func digest(c *report.Changes) string {
	text, _ := json.Marshal(c) // numbers and strings
	return fmt.Sprintf("%x", sha256.Sum256(text))
}

// planned returns an error if a plan of SOURCE is not the one of the handover.
func (h *Handover) planned(c *report.Changes) error {
	switch {
	case digest(c) == h.plan.Digest:
		return nil
	case h.plan.Program != h.Version:
		return ondisk.In(ondisk.ErrUnsupported, "version %s of trueup began the handover, and plans another disk; "+
			"resume it with that one", h.plan.Program)
	}
	return ondisk.In(ondisk.ErrChanged, "the plan of SOURCE differs from the one of the handover, since a disk of "+
		"--with changed; bring it back as it was")
}

// handed identifies the files of SOURCE. The journal claims the files in its own folder by name.
func (h *Handover) handed(served *report.Serve) (from journal.Handed, err error) {
	i := &served.Image
	real, err := filepath.EvalSymlinks(h.plan.Source)
	if err != nil {
		return from, err
	}
	from.Format = i.Format
	switch {
	case len(i.Chain) > 0:
		from.Stays = "a snapshot, whose parents other disks may need"
	case i.Unpacked != nil:
		from.Stays = "compressed"
	case slices.Contains(h.plan.Flags, "--offset"):
		from.Stays = "a part of a larger file"
	}
	for _, f := range served.Findings {
		if f.Code == "view" { // see driver.CodeView
			from.Stays = "a view of the file of another disk"
		}
	}
	for _, f := range i.Files {
		path := f.Name
		if !filepath.IsAbs(path) {
			path = filepath.Join(filepath.Dir(real), path)
		}
		st, err := sys.Lstat(path)
		if err != nil {
			return from, err
		}
		file := journal.HandedFile{Path: path, Size: st.Size, Modified: st.Modified}
		if !st.Mode.IsRegular() { // the times of a device are those of its node
			from.Stays, file.Modified = "a block device or a link", 0
		}
		if filepath.Dir(path) == filepath.Dir(h.image.overlay) {
			file.Name = filepath.Base(path)
		}
		from.Files = append(from.Files, file)
	}
	return from, nil
}

// begin writes the journal of DEST. A journal beside SOURCE claims it, if the one of DEST, in another folder, does not.
func (h *Handover) begin() (err error) {
	if h.held, err = h.journal(h.Dest, journal.Handover); err != nil {
		return err
	}
	f := h.plan.Files[0]
	if f.Modified == 0 { // a block device has no journal beside it
		return nil
	}
	own := filepath.Base(h.Dest)
	if f.Name == "" {
		own = filepath.Base(f.Path)
		claim, err := h.journal(f.Path, journal.HandedOver)
		if errors.Is(err, ondisk.ErrOutput) {
			h.Say(fmt.Sprintf("warning: other commands of trueup may change SOURCE meanwhile: %v", err))
			return nil
		}
		if err = errors.Join(err, claim.Close()); err != nil {
			return errors.Join(err, h.held.Remove())
		}
	}
	// Of two runs at once, each writes its journals first: at least one finds those of the other.
	d, err := gate.OpenFolder(filepath.Dir(f.Path))
	if err == nil {
		err = journal.OnlyOwn(d, own, filepath.Base(f.Path), f.Path, "SOURCE cannot be handed over")
		_ = d.Close() // only read
	}
	if err != nil {
		return errors.Join(err, h.plan.Release(h.held.Plan()), h.held.Remove())
	}
	return nil
}

// journal writes a journal with the plan beside a disk.
func (h *Handover) journal(path, kind string) (*journal.Held, error) {
	d, err := gate.OpenFolder(filepath.Dir(path))
	if err != nil {
		return nil, ondisk.In(ondisk.ErrOutput, "folder of %s: %w", path, err)
	}
	defer d.Close()
	text, err := json.Marshal(&h.plan)
	if err != nil {
		return nil, err
	}
	return journal.Begin(d, filepath.Base(path), path, kind, text, 0)
}

// enter durably records a phase with the state.
func (h *Handover) enter(p journal.Phase) error {
	text, err := json.Marshal(&h.state)
	if err != nil {
		return err
	}
	return h.held.Enter(p, text...)
}

// hold locks the journal of DEST and reads its plan.
func (h *Handover) hold(ctx context.Context) (err error) {
	if err := h.tools(ctx); err != nil {
		return err
	}
	h.held, err = journal.Hold(h.Dest, "")
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return ondisk.In(ondisk.ErrUsage, "%s: no handover is open: there is no journal %s", h.Dest,
			journal.PathOf(h.Dest))
	case err != nil:
		return fmt.Errorf("%s: %w", h.Dest, err)
	case !h.held.Work.Through():
		return fmt.Errorf("%s: %w", h.Dest, &ondisk.Refusal{
			Code: "unfinished", Reason: h.held.Work.Text, Remedy: h.held.Work.Issue().Remedy,
		})
	}
	if err := json.Unmarshal(h.held.Plan(), &h.plan); err != nil {
		return ondisk.In(ondisk.ErrFormat, "journal of %s: %w", h.Dest, err)
	}
	if r := h.held.Record(); len(r) > 1 {
		if err := json.Unmarshal(r[1:], &h.state); err != nil {
			return ondisk.In(ondisk.ErrFormat, "journal of %s: %w", h.Dest, err)
		}
	}
	h.Source = h.plan.Source
	if h.Pull.Monitor != "" || h.Pull.Domain != "" {
		h.plan.Pull.Monitor, h.plan.Pull.Domain = h.Pull.Monitor, h.Pull.Domain
	}
	return h.monitored()
}

// Resume goes on with an interrupted handover. It serves the same disk at the same address.
func (h *Handover) Resume(ctx context.Context) (r *Result, err error) {
	defer func() { err = errors.Join(err, h.held.Close()) }()
	if err := h.hold(ctx); err != nil {
		return nil, err
	}
	switch h.held.Work.Phase {
	case journal.Given:
	case journal.Alone, journal.Differing:
		if _, err := os.Lstat(h.image.overlay); err == nil || h.state.Proved == 0 {
			return h.prove(ctx)
		}
		if err := h.enter(h.state.Proved); err != nil {
			return nil, err
		}
		fallthrough
	default:
		return nil, &ondisk.Refusal{Code: "unfinished", Reason: h.held.Work.Text, Remedy: h.held.Work.Resume}
	}
	if whole, err := h.whole(ctx); err != nil {
		return nil, err
	} else if whole { // SOURCE is not needed any more
		return h.alone(ctx)
	}
	if err := freeSocket(ctx, h.plan.Socket); err != nil {
		return nil, err
	}
	if err := h.plan.Unchanged(); err != nil {
		return nil, fmt.Errorf("%w; what the guest wrote is in %s, which cannot be completed without the SOURCE as "+
			"it was", err, h.Dest)
	}
	var p report.Plan
	args := slices.Concat(h.plan.Flags, []string{"--", h.plan.Source})
	if _, err = self.Run(ctx, h.Stderr, &p, "plan", args...); err == nil { // QEMU reads as soon as the server listens
		err = h.planned(&p.Changes)
	}
	if err == nil {
		err = h.serve(ctx, &report.Serve{})
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", h.Dest, err)
	}
	defer func() { err = errors.Join(err, h.server.Close()) }()
	h.plan.Pull.unpause = true
	return h.goOn(ctx)
}

// Undo removes DEST, unless a guest wrote to it. With discard, it removes DEST with what the guest wrote.
func (h *Handover) Undo(ctx context.Context, discard bool) (w journal.Work, d journal.Done, err error) {
	defer func() { err = errors.Join(err, h.held.Close()) }()
	if err := h.hold(ctx); err != nil {
		return w, d, err
	}
	w = h.held.Work
	if w.Undo != "" {
		return w, d, &ondisk.Refusal{Code: "unfinished", Reason: w.Text, Remedy: w.Undo}
	}
	changed := h.plan.Unchanged()
	if changed != nil && discard {
		return w, d, &ondisk.Refusal{
			Code: "unfinished", Reason: fmt.Sprintf("%v, so %s may be the only disk", changed, h.Dest),
			Remedy: "bring the source back as it was, or remove DEST and its journal by hand",
		}
	}
	d.Text = "the source is as it was"
	if changed != nil {
		d.Text = "no guest had used the disk; " + changed.Error()
	}
	for _, path := range h.image.files() {
		d.Removed = append(d.Removed, filepath.Base(path))
	}
	if err = h.remove(ctx, discard); err == nil {
		err = freeSocket(ctx, h.plan.Socket)
	}
	return w, d, err
}

// remove removes the files of the disk and the journal, unless a program has the disk open, or, without discard, a
// guest may have written to it.
func (h *Handover) remove(ctx context.Context, discard bool) (err error) {
	// Before a guest could start, the overlay can be incomplete.
	discard = discard || h.held.Work.Phase == journal.Begun
	for _, path := range h.image.files() {
		release, missing := claim(path)
		switch {
		case missing == nil:
			defer func() { err = errors.Join(err, release()) }()
		case !errors.Is(missing, fs.ErrNotExist):
			return missing
		case !discard:
			return h.used(path + " was moved or removed")
		}
	}
	if !discard {
		if err := h.unused(ctx); err != nil {
			return err
		}
	}
	for _, path := range h.image.files() {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return errors.Join(h.plan.Release(h.held.Plan()), h.held.Remove())
}

// unused returns a refusal if a guest may have written to the overlay.
func (h *Handover) unused(ctx context.Context) error {
	d, err := h.image.describe(ctx)
	if err != nil {
		return cmp.Or(ctx.Err(), h.used("qemu-img cannot read it"))
	}
	if allocated, err := h.image.has(ctx, true); err != nil || allocated || !d.closedWell() {
		return cmp.Or(err, h.used("a guest may have written to it"))
	}
	return nil
}

// used refuses to remove DEST.
func (h *Handover) used(why string) error {
	remedy := shell.Command("handover", []string{"--undo", "--discard-writes"}, h.Dest) + " removes it"
	if h.held.Work.Resume == "" {
		remedy += "; " + h.held.Work.Command("resume") + " goes on"
	}
	return &ondisk.Refusal{Code: "unfinished", Reason: fmt.Sprintf("%s stays: %s", h.Dest, why), Remedy: remedy}
}

// goOn waits until DEST has all bytes, and proves it.
func (h *Handover) goOn(ctx context.Context) (*Result, error) {
	if err := h.start(ctx); err != nil {
		return nil, fmt.Errorf("%w; %s stays, and %s goes on", err, h.Dest, h.held.Work.Command("resume"))
	}
	h.Say(h.howToStart())
	err := h.stream(ctx)
	switch {
	case ctx.Err() != nil:
		return nil, h.interrupted(ctx)
	case err != nil:
		return nil, fmt.Errorf("%s: %w; %s goes on", h.Dest, err, h.held.Work.Command("resume"))
	}
	return h.alone(ctx)
}

// alone records that DEST has all bytes, ends the server, and proves DEST.
func (h *Handover) alone(ctx context.Context) (*Result, error) {
	err := h.enter(journal.Alone)
	if err == nil && h.server != nil {
		err = h.server.Close()
	}
	if err != nil {
		return nil, err
	}
	return h.prove(ctx)
}

// interruptedError is the end of a run by a signal.
type interruptedError struct{ remedy string }

func (e *interruptedError) Error() string  { return context.Canceled.Error() }
func (e *interruptedError) Unwrap() error  { return context.Canceled }
func (e *interruptedError) Remedy() string { return e.remedy }

// interrupted removes DEST if no guest has used it.
func (h *Handover) interrupted(ctx context.Context) error {
	switch err := h.remove(context.WithoutCancel(ctx), false); {
	case err == nil:
		return &interruptedError{"nothing was handed over, and no file is left"}
	case errors.Is(err, ondisk.ErrBusy):
		return &interruptedError{fmt.Sprintf("%v, and DEST stays; %s goes on", err, h.held.Work.Command("resume"))}
	default:
		return &interruptedError{err.Error()}
	}
}

// prove waits until the guest is switched off, and compares DEST with the planned disk, but for the writes of the
// guest.
func (h *Handover) prove(ctx context.Context) (r *Result, err error) {
	release, err := h.closed(ctx)
	switch {
	case ctx.Err() != nil:
		return nil, &interruptedError{fmt.Sprintf("the guest needs %[2]s no more, but the proof does; %[3]s proves "+
			"%[1]s when the guest is switched off", h.Dest, h.Source, h.held.Work.Command("resume"))}
	case err != nil:
		return nil, err
	}
	defer func() { err = errors.Join(err, release()) }()
	if err := h.plan.Unchanged(); err != nil {
		return nil, fmt.Errorf("%w; %s has all bytes, and cannot be proved without the SOURCE as it was", err, h.Dest)
	}
	if h.image.data != "" {
		if err := h.image.settle(ctx); err != nil {
			return nil, err
		}
	}
	if err := h.held.Close(); err != nil { // trueup verify refuses a disk with a locked journal
		return nil, err
	}
	var v report.Verify
	args := append([]string{"--except-bitmap", bitmap}, h.plan.Flags...)
	_, err = self.Run(ctx, h.Stderr, &v, "verify", append(args, "--", h.plan.Source, h.image.overlay)...)
	if err == nil && h.image.data != "" {
		if _, err = run(ctx, h.image.program, "compare", "-q", "-U", "-f", "raw", "-F", "qcow2", h.image.data,
			h.image.overlay); err != nil {
			err = ondisk.In(ondisk.ErrOutput, "DEST differs from the disk that the guest used: %w", err)
		}
	}
	if err == nil {
		err = cmp.Or(h.plan.Unchanged(), h.planned(&v.Disks[0].Changes))
	}
	if err != nil {
		return nil, fmt.Errorf("%w; %s proves it again", err, h.held.Work.Command("resume"))
	}
	held, err := journal.Hold(h.Dest, "")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", h.Dest, err)
	}
	h.held = held
	r = h.result(&v)
	h.state.Proved = map[string]journal.Phase{full: journal.Kept, partial: journal.Unproved}[r.Proof]
	switch {
	case r.Proof == differs:
		return r, h.enter(journal.Differing)
	case h.image.data != "":
		if err = h.enter(journal.Alone); err == nil {
			err = errors.Join(os.Remove(h.image.overlay), h.held.SyncFolder())
		}
	}
	if err == nil {
		err = h.enter(h.state.Proved)
	}
	return r, err
}

// closed waits until no program has DEST open for writing, and keeps it so until release is called.
func (h *Handover) closed(ctx context.Context) (release func() error, err error) {
	for told := false; ; told = true {
		release, err := h.image.guard()
		if !errors.Is(err, ondisk.ErrBusy) {
			return release, err
		}
		if !told {
			h.Say(h.Dest + " has all bytes; the proof waits until the guest is switched off")
		}
		if err := wait(ctx); err != nil {
			return nil, err
		}
	}
}

// interval is the time between two looks at DEST or QEMU.
const interval = 500 * time.Millisecond

// wait returns after an interval, or at the end of the context with its error.
func wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(interval):
		return nil
	}
}

// patience is the number of intervals that the server of a killed run has to notice the end of its parent.
const patience = 20

// freeSocket removes the socket of a server that was killed.
func freeSocket(ctx context.Context, path string) error {
	st, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case st.Mode().Type() != fs.ModeSocket:
		return ondisk.In(ondisk.ErrOutput, "%s is not a socket; rename it", path)
	}
	for range patience {
		c, err := net.Dial("unix", path)
		if sys.NoServer(err) {
			err = os.Remove(path)
		}
		if c == nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		}
		if err := errors.Join(c.Close(), wait(ctx)); err != nil {
			return err
		}
	}
	return ondisk.In(ondisk.ErrBusy, "a server answers at %s; end it", path)
}

// Result is the result of a handover.
type Result struct {
	report.Head
	Source string `json:"source"`
	Dest   string `json:"dest"`
	report.Changes
	Proof       string              `json:"proof"` // one of the constants below
	Guest       *report.GuestWrites `json:"guest"` // writes to DEST
	Downtime    float64             `json:"downtime_seconds"`
	Differences []report.Difference `json:"differences"`
	ExitCode    int                 `json:"exit_code"`

	Finish string `json:"-"` // command line
	disk   *report.VerifiedDisk
}

// Proofs of a copy.
const (
	full    = "full"
	partial = "partial" // the writes of the guest are unknown
	differs = "differs"
)

// result returns the result of the comparison of DEST.
func (h *Handover) result(v *report.Verify) *Result {
	d := v.Disks[0]
	r := &Result{
		Source: h.Source, Dest: h.Dest, Changes: d.Changes, Proof: differs, Guest: d.Guest, Differences: d.Differences,
		Downtime: math.Round(h.state.Downtime*100) / 100, ExitCode: v.ExitCode, disk: d,
	}
	switch {
	case v.Equal:
		r.Proof, r.Finish = full, h.held.Work.Command("finish")
	case len(d.Differences) == 0:
		r.Proof, r.Finish, r.ExitCode = partial, h.held.Work.Command("finish", "--force"), 0
	}
	return r
}

// Text prints the result.
func (r *Result) Text(t *report.Text) {
	t.Verify(&report.Verify{Disks: []*report.VerifiedDisk{r.disk}})
	t.Say("handover", r)
}
