package image_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/disktest/oddfs"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/gate"
)

// parts are texts that answers must contain if no call fails.
var parts = map[string][]string{
	"an image with a parent": {
		"top.vmdk", "{base.vmdk vmdk monolithicFlat", "lock of an ESXi host",
		"\nbase-flat.vmdk",
	},
	"an image that is a parent": {"snapshot-parent", "lock of an ESXi host"},
	"another user of an image":  {"cut.ovf"},
	"users of a file": {
		"base-flat.vmdk: base.vmdk, base.vmdk, true", "base.vmdk: , top.vmdk, true",
		"disk.ovf", "box: cut.ovf, cut.ovf, true", "part.img.000000000: cut.ovf, cut.ovf, true",
	},
	"kinds of files":         {"box: ", "[base-flat.vmdk]", "[base.vmdk]"},
	"the files of a package": {fmt.Sprint("member.img", boxSize), "\nfiles: 3", "snapshot-parent"},
	"an image in an archive": {fmt.Sprint("base.vmdk", len(flatText)), fmt.Sprint("base-flat.vmdk", boxSize)},
}

// mayFail is the number of calls of each kind that may fail without effect: an unreadable file is opened again to
// report the reason, and a file that cannot be an image needs no second check.
var mayFail = map[string]map[string]int{
	"an image with a parent":    {"open": 4, "read": 3},
	"an image that is a parent": {"open": 4, "read": 3},
	"users of a file":           {"open": 4, "read": 3},
	"another user of an image":  {"open": 3, "read": 3},
	"the files of a package":    {"open": 3, "read": 3},
}

// question is one of questions, and its folder. Few asks it with more and more open files.
type question struct {
	Text, Dir string
	Few       bool
}

// answer answers the question.
func (q question) answer() (a answer) {
	var err error
	if q.Few {
		err = disktest.FewDescriptors(func() error { _, err := questions[q.Text](q.Dir); return err })
	} else {
		a.Found, err = questions[q.Text](q.Dir)
	}
	if err != nil {
		return answer{Error: err.Error()}
	}
	return a
}

// answer is the result of a question, or its error.
type answer struct {
	Found []string
	Error string
}

// where the members of the file "box" are.
const (
	boxDescriptor = 512
	boxDisk       = 4096
	boxSize       = 64 * sector
)

// questions are queries on a folder. Each answer contains everything that the query can find.
var questions = map[string]func(dir string) ([]string, error){
	"an image with a parent": func(dir string) ([]string, error) {
		var sums []string
		digest := func(_ context.Context, name string, f driver.File) error {
			_, err := io.Copy(io.Discard, io.NewSectionReader(f, 0, f.Size()))
			sums = append(sums, name)
			return err
		}
		img, err := image.Open(filepath.Join(dir, "top.vmdk"), image.Options{Digest: digest})
		if err != nil {
			return nil, err
		}
		found, err := everythingOf(img)
		err = errors.Join(err, img.CheckDigests(context.Background()), img.Unchanged(), img.Close())
		return append(found, sums...), err
	},
	"an image that is a parent": func(dir string) ([]string, error) {
		img, err := image.Open(filepath.Join(dir, "base.vmdk"), image.Options{})
		if err != nil {
			return nil, err
		}
		found, err := everythingOf(img)
		return found, errors.Join(err, img.Close())
	},
	"another user of an image": func(dir string) ([]string, error) {
		img, err := image.Open(filepath.Join(dir, "part.img.000000000"), image.Options{})
		if err != nil {
			return nil, err
		}
		user, err := img.OtherUser()
		return []string{user}, errors.Join(err, img.Close())
	},
	"users of a file": func(dir string) ([]string, error) {
		d, err := gate.OpenFolder(dir)
		if err != nil {
			return nil, err
		}
		var found []string
		var errs []error
		for _, name := range []string{"base-flat.vmdk", "base.vmdk", "member.img", "box", "part.img.000000000"} {
			extent, err1 := image.ExtentOf(d, name, "")
			user, err2 := image.UserOf(d, name)
			named, err3 := image.IsNamed(d, name)
			errs = append(errs, err1, err2, err3)
			found = append(found, fmt.Sprint(name, ": ", extent, ", ", user, ", ", named))
		}
		return found, errors.Join(append(errs, d.Close())...)
	},
	"kinds of files": func(dir string) ([]string, error) {
		var found []string
		var errs []error
		for _, name := range []string{"base.vmdk", "base-flat.vmdk", "top.vmdk", "disk.ovf", "member.img", "box"} {
			id, err := image.Identify(filepath.Join(dir, name), nil)
			errs = append(errs, err)
			found = append(found, fmt.Sprint(name, ": ", id))
		}
		return found, errors.Join(errs...)
	},
	"the files of a package": func(dir string) ([]string, error) {
		s, err := image.OpenFiles(filepath.Join(dir, "disk.ovf"), nil)
		if err != nil {
			return nil, err
		}
		var found []string
		errs := []error{}
		for _, name := range []string{"member.img", "within/member.img", "base.vmdk"} {
			if name != "base.vmdk" {
				f, err := s.Open(name)
				if errs = append(errs, err); err == nil {
					found = append(found, fmt.Sprint(f.Name(), f.Size()))
				}
			}
			img, err := s.OpenImage(name, image.Options{})
			if errs = append(errs, err); err == nil {
				all, err := everythingOf(img)
				found = append(found, all...)
				errs = append(errs, err, img.Close())
			}
		}
		return append(found, fmt.Sprint("files: ", len(s.Handles))),
			errors.Join(append(errs, s.Unchanged(), s.Close())...)
	},
	"an image in an archive": func(dir string) ([]string, error) {
		s, err := image.OpenFiles(filepath.Join(dir, "box"), nil)
		if err != nil {
			return nil, err
		}
		find := func(name string) (disk.Range, error) {
			if name != "in/base-flat.vmdk" {
				return disk.Range{}, fs.ErrNotExist
			}
			return disk.Range{Off: boxDisk, Len: boxSize}, nil
		}
		at := disk.Range{Off: boxDescriptor, Len: int64(len(flatText))}
		img, err := s.OpenInside("in/base.vmdk", at, find, image.Options{})
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
		found, err := everythingOf(img)
		return found, errors.Join(err, img.Close(), s.Close())
	},
}

var flatText = vmdkforge.Descriptor("monolithicFlat", fmt.Sprintf(`RW %d FLAT "base-flat.vmdk" 0`, boxSize/sector))

// everythingOf returns the report of an image on itself and its folder, and a digest of its disk.
func everythingOf(img *image.Image) (found []string, err error) {
	children, err1 := img.Children()
	owner, err2 := img.Owner()
	busy, err3 := img.Busy()
	h := sha256.New()
	_, err4 := io.Copy(h, io.NewSectionReader(img.Disk, 0, img.Disk.Size()))
	for _, f := range img.Files() {
		found = append(found, fmt.Sprint(f.Name, f.Size))
	}
	found = append(found, fmt.Sprint(img.Format, img.Chain, children, owner, busy), fmt.Sprintf("%x", h.Sum(nil)))
	return found, errors.Join(err1, err2, err3, err4)
}

// TestEveryCallOnAFolderFails makes each call on the file system of an image fail in turn: a question is answered as
// without a fault, or with the error.
func TestEveryCallOnAFolderFails(t *testing.T) {
	t.Parallel()
	if oddfs.Answered(t, question.answer) {
		return
	}
	if disktest.Raced {
		t.Skip("its processes have one goroutine each, and take a second to end")
	}
	behind := t.TempDir()
	questionable(t, behind)
	for text := range questions {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			ask := oddfs.Asker[question, answer](t)
			require.Empty(t, ask(question{text, behind, true}).Error)
			var j oddfs.Journal
			mounted := oddfs.Mount(t, behind, oddfs.Manners{Journal: &j})
			var good answer
			j.EachFailsByName(func(fails bool) {
				a := ask(question{text, mounted, false})
				switch {
				case !fails:
					require.Empty(t, a.Error)
					for _, part := range parts[text] {
						require.Contains(t, strings.Join(a.Found, "\n"), part)
					}
					good = a
				case a.Error == "":
					j.Ignored()
					require.Equal(t, good, a, "%s failed", j.Failed())
				default:
					require.Contains(t, a.Error, syscall.EIO.Error(), "%s failed", j.Failed())
				}
			})
			j.RequireNoticed(t, mayFail[text])
		})
	}
}

// questionable makes a folder with an example of everything that questions are about.
func questionable(t *testing.T, dir string) {
	t.Helper()
	data := imagetest.Noise(1, boxSize)
	imagetest.Write(t, dir, "base-flat.vmdk", data)
	imagetest.Write(t, dir, "base.vmdk", []byte(flatText))
	imagetest.Write(t, dir, ".lck-1", nil)
	disktest.Run(t, "qemu-img", "create", "-q", "-f", "vmdk", "-b", filepath.Join(dir, "base.vmdk"), "-F", "vmdk",
		filepath.Join(dir, "top.vmdk"))
	imagetest.Write(t, dir, "disk.ovf",
		[]byte(`<?xml version="1.0"?><Envelope xmlns="http://schemas.dmtf.org/ovf/envelope/1">`+
			`<References><File xmlns:o="http://schemas.dmtf.org/ovf/envelope/1" o:href="member.img" `+
			`o:id="f"/></References></Envelope>`))
	imagetest.Write(t, dir, "cut.ovf", []byte(`<?xml version="1.0"?><Envelope xmlns="http://schemas.dmtf.org/ovf/`+
		`envelope/1"><References><File href="box"/><File href="part.img"`))
	imagetest.Write(t, dir, "part.img.000000000", data)
	imagetest.Write(t, dir, "member.img", data)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "within"), 0o755))
	imagetest.Write(t, filepath.Join(dir, "within"), "member.img", data)
	box := make([]byte, boxDisk+boxSize)
	copy(box[boxDescriptor:], flatText)
	copy(box[boxDisk:], data)
	imagetest.Write(t, dir, "box", box)
}
