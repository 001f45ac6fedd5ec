package cli

import (
	"context"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/report"
)

// belowFlags choose the disks of undo, resume and finish by a folder.
type belowFlags struct {
	folder string
	dry    bool
}

// belowHelp explains them.
const belowHelp = `With --below DIR the disks are all those in DIR and below that have a journal beside them; links are
not followed, and folders on other file systems are left, too. All are judged first and listed. Then the command runs
for those to which it applies, and leaves the others, each with the reason; the exit code is 4 if there is one.
--dry-run ends with the list.`

func (b *belowFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&b.folder, "below", "", "take all disks with a journal in `DIR` and below")
	cmd.Flags().BoolVar(&b.dry, "dry-run", false, "with --below, only judge the disks")
}

// arguments demands paths, or none with --below.
func (b *belowFlags) arguments(cmd *cobra.Command, args []string) error {
	switch {
	case b.folder == "" && b.dry:
		return Usage("--dry-run is for --below DIR; for one disk, trueup inspect shows which commands apply")
	case b.folder == "":
		return Several("PATH")(cmd, args)
	case len(args) > 0:
		return Usage("--below finds the disks itself; leave out %s", args[0])
	}
	return nil
}

// runBelow goes on with the open work of all disks below a folder to which the command applies.
func (f *openFlags) runBelow(ctx context.Context, out, errOut io.Writer) error {
	folder := f.below.folder
	f.looped = realign.Looped()
	f.allow = append(f.allow, folder)                 // overlays of one disk can lie beside another
	writes := []string{filepath.Join(folder, "disk")} // any in it
	if err := f.Confine(ctx, errOut, slices.Clone(f.allow), writes); err != nil {
		return err
	}
	disks, kept, err := journal.Below(folder)
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
	paths := slices.Sorted(maps.Keys(kept)) // folders among them
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
	return f.Each(ctx, f.command, paths, out, errOut, func(out io.Writer, path string) error {
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
			done := journal.Done{Text: f.command + " applies; nothing was changed"}
			r := report.NewUnfinished(Head(f.command), journal.Work{Path: path}, done)
			return f.Emit(out, r, func(*report.Text) {})
		}
		return f.goOnAt(ctx, out, errOut, f.hold(path))
	})
}

// judge returns why the command would be refused for a disk. Nothing is changed.
func (f *openFlags) judge(ctx context.Context, errOut io.Writer, disk string) error {
	h := f.hold(disk)
	defer h.close()
	if h.err != nil {
		return h.err
	}
	_, err := f.goOn(ctx, errOut, h, true)
	return err
}

// list returns the lines of the disks that are judged. With JSON, each disk has an object instead.
func (f *openFlags) list(paths []string, kept map[string]error) string {
	if f.JSON() || f.Quiet {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d of %d apply:\n", len(paths)-len(kept), len(paths))
	for _, path := range paths {
		does := f.command
		if kept[path] != nil {
			does = "leave"
		}
		fmt.Fprintf(&b, "  %-7s %s\n", does, report.Safe(path))
	}
	return b.String() + "\n"
}
