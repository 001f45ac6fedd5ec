package linux

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/fs/ext"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

// Hibernation finds a Linux hibernated into a swap file. In a swap partition, its prober finds it.
var Hibernation = boot.Finder{Name: "hibernation of Linux", Find: findHibernation}

// swapFiles lists the usual paths. Sources: Ubuntu, subiquity and cloud-init (swap.img); Calamares, module fstab
// (swapfile, swap/swapfile); dphys-swapfile(8) of Raspberry Pi OS (var/swap).
var swapFiles = []string{"swapfile", "swap.img", "swap/swapfile", "var/swap"}

const (
	maxSwapFiles = 32 // paths looked up in each file system
	maxSwapDepth = 8  // path elements that may be a mount point of another file system
)

func findHibernation(g *boot.Guest) (boot.Found, error) {
	var listed []string
	f, err := eachView(g, func(_ boot.Partition, files guestfile.FS, _ *boot.Found) error {
		text, err := content(files, "etc/fstab")
		listed = append(listed, listedSwap(text)...)
		return err
	})
	if err != nil {
		return f, err
	}
	listed = listed[:min(len(listed), maxSwapFiles)]
	found, err := eachView(g, func(p boot.Partition, files guestfile.FS, f *boot.Found) error {
		return hibernated(p, files, listed, f)
	})
	f.Add(found)
	return f, err
}

// eachView calls do for each readable state of the files of a partition. A damaged file system ends only its own
// search.
func eachView(g *boot.Guest, do func(boot.Partition, guestfile.FS, *boot.Found) error) (boot.Found, error) {
	return boot.Everywhere(func(g *boot.Guest, p boot.Partition, f *boot.Found) error {
		files, err := g.Files(p)
		if err != nil {
			return tolerable(err) // the search for configurations records it
		}
		for _, view := range views(files) {
			err := do(p, view, f)
			if ondisk.Understood(err) {
				if !g.Missed(p) { // otherwise the search for configurations has recorded the partition
					g.NotSeen(p, searched, err)
				}
			} else if tolerable(err) != nil {
				return err
			}
		}
		return nil
	})(g)
}

// views returns the readable states of the files: before the journal replay for a loader, and after it for Linux.
func views(files guestfile.FS) []guestfile.FS {
	if open, ok := files.(*ext.Replayed); ok && open.Unread == nil {
		return []guestfile.FS{files, open.Before}
	}
	return []guestfile.FS{files}
}

// content returns the text of a small file, empty if it does not exist.
func content(files guestfile.FS, name string) (string, error) {
	f, err := files.Open(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil
	case err != nil:
		return "", err
	case f.Size() > maxConfigSize:
		return "", fmt.Errorf("file %.256q of %d bytes: %w of a configuration", f.Path, f.Size(), ondisk.ErrLimit)
	}
	b, err := ondisk.Bytes(f, 0, f.Size())
	return string(b), err
}

// listedSwap returns the paths of swap files in an fstab. A file system can be mounted on any folder of a path, so
// every tail of the path is a candidate.
func listedSwap(fstab string) (paths []string) {
	for line := range strings.Lines(fstab) {
		w := words(strings.TrimRight(line[:min(len(line), maxConfigLine)], "\r\n"))
		if len(w) < 3 || w[2] != "swap" || !strings.HasPrefix(w[0], "/") || strings.HasPrefix(w[0], "/dev/") {
			continue
		}
		elements := strings.Split(strings.TrimPrefix(path.Clean(w[0]), "/"), "/")
		for i := range elements[:min(len(elements), maxSwapDepth)] {
			paths = append(paths, path.Join(elements[i:]...))
		}
		if len(paths) >= maxSwapFiles {
			break
		}
	}
	return paths
}

// hibernated reports the swap files of a file system that hold a hibernated Linux. An unreadable file does not hide
// others.
func hibernated(p boot.Partition, files guestfile.FS, paths []string, f *boot.Found) (broken error) {
	if strings.HasPrefix(string(p.Volume.Kind), "ext") {
		paths = slices.Concat(swapFiles, paths)
	}
	for _, name := range paths {
		issues, err := asleepIn(files, name)
		if tolerable(err) != nil {
			return err
		}
		if ondisk.Understood(err) {
			broken = err
		}
		for _, i := range issues {
			name := fmt.Sprintf("the swap file %.256q%s", "/"+name, p.Suffix())
			i.Text = name + ": " + i.Text
			if !slices.ContainsFunc(f.Issues, func(x ondisk.Issue) bool { return x.Text == i.Text }) {
				f.Issues = append(f.Issues, i)
				f.Sign(boot.Hibernated, p, boot.NoMove, "%s holds a hibernated Linux", name)
			}
		}
	}
	return broken
}

// asleepIn returns the issues of a swap file.
func asleepIn(files guestfile.FS, name string) ([]ondisk.Issue, error) {
	file, err := files.Open(name)
	if err != nil {
		return nil, err
	}
	v, err := volume.SwapArea.Probe(file)
	if err != nil {
		return nil, err
	}
	return v.Issues, nil
}
