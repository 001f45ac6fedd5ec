package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/sys"
)

// openFlags holds the flags of undo, resume and finish.
type openFlags struct {
	*Base
	realign.GoOn
	journal string // of a move in place; "" means beside the disk
	below   belowFlags
}

// newOpen returns the command undo, resume or finish.
func newOpen(c *Base, name, short string) *cobra.Command {
	f := &openFlags{Base: c, GoOn: realign.GoOn{Command: name}}
	cmd := newCommand(name+" PATH...", short, f.run)
	cmd.Args = f.below.arguments
	addFlags(cmd,
		"require-sandbox", &f.RequireSandbox, "progress", &f.progress, "below", &f.below.folder,
		"dry-run", &f.below.dry,
	)
	if name != realign.Finish {
		addFlags(cmd, "journal", &f.journal)
	}
	if name != realign.Resume {
		addFlags(cmd, "force", &f.Force, "allow-folder", &f.Allow)
	}
	return cmd
}

// held is the locked journal of the disk at a path, or the reason why it is not locked.
type held struct {
	path   string
	work   *journal.Held
	device *store.Device // device of the disk; nil for files
	err    error         // wraps fs.ErrNotExist without a journal
}

// hold locks the journal of the disk at a path, and claims the device of the disk.
func (f *openFlags) hold(path string) *held {
	h := &held{path: path}
	switch h.work, h.err = journal.Hold(path, f.journal); {
	case h.err != nil:
		h.err = fmt.Errorf("%s: %w", path, h.err)
	case f.journal != "" && h.work.Work.Kind != "" && h.work.Work.Kind != journal.InPlace:
		h.err = Usage("--journal %s is not the journal of a move", f.journal)
	case h.work.Work.Kind == journal.InPlace && realign.IsDevice(path):
		h.device, h.err = store.OpenDisk(path)
	}
	return h
}

// handed lists the files of the source of a handover.
func (h *held) handed() (paths []string, err error) {
	if h.work == nil || h.work.Work.Kind != journal.Handover {
		return nil, nil
	}
	from, err := h.work.Handed()
	for _, f := range from.Files {
		paths = append(paths, f.Path)
	}
	return paths, err
}

// close releases the locks. Each record of the journal is already durable, and so is its removal.
func (h *held) close() {
	if h.work != nil {
		_ = h.work.Close() // see above: nothing to flush
	}
	_ = h.device.Close() // all writes have been flushed
}

// run completes or reverts the open exchanges and moves of disks.
func (f *openFlags) run(ctx context.Context, out, errOut io.Writer, paths []string) (err error) {
	if err = f.Apart("PATH", paths); err != nil {
		return err
	}
	f.Ending.Hold("")
	if f.below.folder != "" {
		return f.runBelow(ctx, out, errOut)
	}
	if f.journal, err = realign.JournalFile(f.journal, paths[0]); err != nil {
		return err
	}
	all := map[string]*held{}
	for _, path := range paths {
		if all[path] != nil {
			return Usage("%s is given twice; give it once", path)
		}
		h := f.hold(path)
		defer h.close()
		all[path] = h
	}
	f.Looped = realign.Looped()
	writes := append(slices.Clone(paths), f.journal)
	for _, path := range paths {
		from, err := all[path].handed()
		if err != nil {
			return err
		}
		writes = append(writes, from...)
	}
	err = f.Confine(ctx, errOut, slices.Concat(f.Allow, paths), writes)
	if err != nil {
		return err
	}
	for _, path := range paths { // before any disk is changed
		if errors.Is(all[path].err, fs.ErrNotExist) {
			return f.nothingOpen(path)
		}
	}
	if len(paths) == 1 {
		return f.goOnAt(ctx, out, errOut, all[paths[0]])
	}
	return f.Each(ctx, f.Command, paths, out, errOut, func(out io.Writer, path string) error {
		return f.goOnAt(ctx, out, errOut, all[path])
	})
}

// goOnAt continues the open work of one disk and prints the result. It releases the lock.
func (f *openFlags) goOnAt(ctx context.Context, out, errOut io.Writer, h *held) error {
	defer h.close()
	if h.err != nil {
		return h.err
	}
	done, err := f.goOn(ctx, errOut, h, false)
	if err != nil {
		return err
	}
	r := report.NewUnfinished(Head(f.Command), h.work.Work, done)
	if err := f.Emit(out, r, func(t *report.Text) { t.Unfinished(r) }); err != nil {
		return fmt.Errorf("%w; %s itself is done", err, f.Command)
	}
	return nil
}

// goOn continues open work, or with judge only checks whether it can.
func (f *openFlags) goOn(ctx context.Context, errOut io.Writer, h *held, judge bool) (journal.Done, error) {
	watched, end := f.Watched(errOut, f.Command, false)
	defer end()
	if h.work.Work.Kind == journal.InPlace && !judge {
		f.Ending.Hold(stoppingMove)
	}
	j := &realign.Job{Jobs: moveJobs, Progress: watched}
	how := f.GoOn
	how.Judge, how.Device, how.Writers = judge, h.device, f.writers
	done, err := j.GoOn(ctx, h.work, how)
	if err != nil {
		err = fmt.Errorf("%s: %w", h.path, err)
	}
	if h.work.Work.Kind == journal.InPlace {
		err = moveError(ctx, err)
	}
	return done, err
}

// nothingOpen returns the error of a path without a journal. The disk may name a journal elsewhere, or be the kept
// original of an exchange.
func (f *openFlags) nothingOpen(path string) error {
	if f.journal != "" {
		return Usage("no journal %s", f.journal)
	}
	if err := realign.Claimed(path); err != nil {
		return err
	}
	s, err := OpenSource(path, realign.Reading{})
	if err == nil {
		s.Close()
	}
	if realign.Code(err) == "unfinished" {
		return err
	}
	text := fmt.Sprintf("%s: nothing to undo, resume or finish: no journal %s", path, journal.PathOf(path))
	if left := realign.LeftBehind(path); left != "" {
		text += "; " + left
	}
	return Usage("%s", text)
}

// belowFlags holds the flags of undo, resume and finish for a folder.
type belowFlags struct {
	folder string
	dry    bool
}

// arguments requires paths, or no paths with --below.
func (b *belowFlags) arguments(cmd *cobra.Command, args []string) error {
	switch {
	case b.folder == "":
		return Several("PATH")(cmd, args)
	case len(args) > 0:
		return Usage("--below DIR takes no PATH; leave out %s", args[0])
	}
	return nil
}

// runBelow continues the open work of all disks below a folder to which the command applies.
func (f *openFlags) runBelow(ctx context.Context, out, errOut io.Writer) error {
	folder := f.below.folder
	f.Looped = realign.Looped()
	f.Allow = append(f.Allow, folder)                 // overlays of one disk can be beside another
	writes := []string{filepath.Join(folder, "disk")} // any file in the folder
	if err := f.Confine(ctx, errOut, slices.Clone(f.Allow), writes); err != nil {
		return err
	}
	disks, kept, err := disksBelow(folder)
	if err != nil {
		return err
	}
	for _, disk := range disks {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := f.judge(ctx, errOut, disk); err != nil {
			kept[disk] = err
		}
	}
	paths := slices.Sorted(maps.Keys(kept)) // includes folders
	for _, disk := range disks {
		if kept[disk] == nil {
			paths = append(paths, disk)
		}
	}
	list := f.list(paths, kept)
	if len(paths) == 0 && list != "" {
		_, err := fmt.Fprintf(out, "no disk in %s or below has a journal\n", report.Safe(folder))
		return WrapStdout(err)
	}
	return f.Each(ctx, f.Command, paths, out, errOut, func(out io.Writer, path string) error {
		if _, err := io.WriteString(out, list); err != nil {
			return WrapStdout(err)
		}
		list = ""
		switch {
		case kept[path] != nil:
			return kept[path]
		case f.below.dry && !f.JSON():
			return nil
		case f.below.dry:
			done := journal.Done{Text: f.Command + " is possible; nothing was changed"}
			r := report.NewUnfinished(Head(f.Command), journal.Work{Path: path}, done)
			return f.Emit(out, r, func(*report.Text) {})
		}
		return f.goOnAt(ctx, out, errOut, f.hold(path))
	})
}

// maxBelow bounds the number of journals that disksBelow lists.
const maxBelow = 1 << 16

// disksBelow lists the disks in a folder and its subfolders that have a journal beside them, sorted by name. It follows
// no link below the folder and stays on its file system. unread maps the path of each unsearched folder to its error.
func disksBelow(folder string) (disks []string, unread map[string]error, err error) {
	top, err := sys.Stat(folder)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", folder, err)
	}
	unread = map[string]error{}
	root := folder + string(filepath.Separator) + "." // the folder behind a link
	err = filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		switch st, gone := sys.Lstat(path); {
		case err != nil && path == root:
			return fmt.Errorf("%s: %w", folder, sys.Cause(err))
		case errors.Is(gone, fs.ErrNotExist): // removed in the meantime
		case err != nil:
			unread[path] = fmt.Errorf("%s: %w", path, sys.Cause(err))
		case st.Mode.IsDir() && st.Device != top.Device:
			unread[path] = fmt.Errorf("%s: %w", path, &ondisk.Refusal{
				Code: "unsupported", Reason: "the folder is on another file system", Remedy: "name it with --below",
			})
			return fs.SkipDir
		case !st.Mode.IsRegular() || !strings.HasSuffix(path, journal.Suffix) || e.Name() == journal.Suffix:
		case len(disks) == maxBelow:
			return ondisk.In(ondisk.ErrLimit, "%s: more than %d journals; name a smaller folder", folder, maxBelow)
		default:
			disks = append(disks, strings.TrimSuffix(path, journal.Suffix))
		}
		return nil
	})
	return disks, unread, err
}

// judge returns the reason why the command would refuse a disk. It changes nothing.
func (f *openFlags) judge(ctx context.Context, errOut io.Writer, disk string) error {
	h := f.hold(disk)
	defer h.close()
	if h.err != nil {
		return h.err
	}
	_, err := f.goOn(ctx, errOut, h, true)
	return err
}

// list returns one line for each judged disk. With JSON it returns "", because each disk has an object.
func (f *openFlags) list(paths []string, kept map[string]error) string {
	if f.JSON() || f.Quiet {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d of %d can be done:\n", len(paths)-len(kept), len(paths))
	for _, path := range paths {
		does := f.Command
		if kept[path] != nil {
			does = "leave"
		}
		fmt.Fprintf(&b, "  %-7s %s\n", does, report.Safe(path))
	}
	return b.String() + "\n"
}
