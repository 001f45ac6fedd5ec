package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/ondisk"
)

// maxBelow bounds the journals that Below lists, and maxDeep the folders one in the other.
const (
	maxBelow = 1 << 16
	maxDeep  = 64
)

// walk lists the disks with a journal below a folder.
type walk struct {
	device uint64 // of the first folder
	disks  []string
	unread map[string]error
}

// Below lists the paths of the disks in a folder and below that have a journal beside them, by their names. It follows
// no link below the folder, and stays on its file system. unread has the error of each folder that is not searched, by
// its path.
func Below(folder string) (disks []string, unread map[string]error, err error) {
	d, err := gate.OpenFolder(folder)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", folder, gate.PlainError(err))
	}
	defer d.Close()
	st, err := d.At.Stat(".")
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", folder, err)
	}
	w := walk{device: st.Device, unread: map[string]error{}}
	err = w.look(d, folder, 0)
	return w.disks, w.unread, err
}

// look lists the disks of a folder, and then those of the folders in it.
func (w *walk) look(d *gate.Folder, at string, deep int) error {
	var inner []string
	journals, err := d.Names(func(n string) bool {
		st, err := d.At.Lstat(n)
		switch {
		case err != nil || !st.Mode.IsDir():
		case st.Device == w.device:
			inner = append(inner, n)
		default:
			path := filepath.Join(at, n)
			w.unread[path] = fmt.Errorf("%s: %w", path, &ondisk.Refusal{
				Code: "file-system", Reason: "the folder lies on another file system", Remedy: "name it with --below",
			})
		}
		return err == nil && st.Mode.IsRegular() && strings.HasSuffix(n, Suffix) && n != Suffix
	})
	for _, n := range journals {
		w.disks = append(w.disks, filepath.Join(at, strings.TrimSuffix(n, Suffix)))
	}
	switch {
	case err != nil:
		w.unread[at] = fmt.Errorf("%s: %w", at, err)
	case len(w.disks) > maxBelow:
		return ondisk.In(ondisk.ErrLimit, "%s: more than %d journals so far; give a smaller folder", at, maxBelow)
	case deep == maxDeep && len(inner) > 0:
		w.unread[at] = ondisk.In(ondisk.ErrLimit, "%s: %d folders one in the other, and there are more", at, maxDeep)
		return nil
	}
	slices.Sort(inner)
	for _, n := range inner {
		path := filepath.Join(at, n)
		sub, err := d.At.Enter(n)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue // it went in the meantime
		case err != nil:
			w.unread[path] = fmt.Errorf("%s: %w", path, err)
			continue
		}
		folder := gate.NewFolder(sub)
		if err := errors.Join(w.look(folder, path, deep+1), folder.Close()); err != nil {
			return err
		}
	}
	return nil
}
