package ova_test

import (
	"bytes"
	"context"
	"crypto/sha1" // as OVF 1 prescribes
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/diskcopy"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/tarforge"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/ova"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/ovf"
)

// archived writes an archive.
func archived(t *testing.T, members ...tarforge.Member) string {
	t.Helper()
	return imagetest.Write(t, t.TempDir(), "vm.ova", append(tarforge.New(members...), tarforge.End()...))
}

// openedArchive opens an archive of an OVF and further members.
func openedArchive(t *testing.T, own string, members ...tarforge.Member) *ova.Package {
	t.Helper()
	return openedPackage(t, archived(t, append([]tarforge.Member{text("vm.ovf", own)}, members...)...))
}

// diskOVF is an OVF that names disk.vmdk.
func diskOVF() tarforge.Member { return text("vm.ovf", envelope(`ovf:href="disk.vmdk"`)) }

func text(name, data string) tarforge.Member { return tarforge.Member{Name: name, Data: []byte(data)} }

// sparse is a disk of a mebibyte that can be written again.
func sparse(name string) tarforge.Member {
	return tarforge.Member{Name: name, Data: vmdkforge.NewSparse(noise(41, mib)).Bytes}
}

// An invalid package is refused when it is opened.
func TestArchivesThatAreNoPackages(t *testing.T) {
	t.Parallel()
	one := text("vm.ovf", envelope(`ovf:href="disk.vmdk"`))
	snapshot := text("vm.ovf", strings.Replace(envelope(`ovf:href="disk.vmdk"`), `ovf:capacity`,
		`ovf:parentRef="x" ovf:capacity`, 1))
	many := []tarforge.Member{}
	names := make([]string, 257)
	for i := range names {
		names[i] = fmt.Sprintf(`ovf:href="d%d.img"`, i)
		many = append(many, text(fmt.Sprintf("d%d.img", i), "data"))
	}
	for name, c := range map[string]struct {
		path string
		kind error
	}{
		"no ovf":         {archived(t, sparse("disk.vmdk")), ondisk.ErrUnsupported},
		"two of them":    {archived(t, one, text("b.ovf", "x"), sparse("disk.vmdk")), ondisk.ErrReference},
		"two manifests":  {archived(t, one, text("a.mf", ""), text("b.mf", "")), ondisk.ErrReference},
		"one name twice": {archived(t, one, sparse("disk.vmdk"), sparse("disk.vmdk")), ondisk.ErrReference},
		"a huge ovf": {
			archived(t, text("vm.ovf", envelope()+strings.Repeat(" ", ovf.MaxText))),
			ondisk.ErrLimit,
		},
		"a huge manifest": {
			archived(t, one, text("vm.mf", strings.Repeat(" ", ovf.MaxManifest+1))),
			ondisk.ErrLimit,
		},
		"too many disks": {archived(t, append(many, text("vm.ovf", envelope(names...)))...), ondisk.ErrLimit},
		"a snapshot":     {archived(t, snapshot, sparse("disk.vmdk")), ondisk.ErrUnsupported},
		"a member above the archive": {
			archived(t, one, sparse("../disk.vmdk")),
			ondisk.ErrReference,
		},
		"a member that is cut short": {
			archived(t, one, tarforge.Member{Name: "disk.vmdk", Size: "77777777777\x00"}),
			ondisk.ErrFormat,
		},
		"a name of a folder": {
			archived(t, text("vm.ovf", envelope(`ovf:href="`+strings.Repeat("%41", 400)+`"`))),
			ondisk.ErrReference,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := ova.OpenImage(c.path, image.Options{})
			require.ErrorIs(t, err, c.kind)
			if name == "a huge ovf" || name == "a huge manifest" {
				require.ErrorContains(t, err, `"vm.`)
			}
		})
	}
	for kind, name := range map[byte]string{
		'1': "hard link", '2': "symbolic link", '3': "character device", '4': "block device", '5': "folder",
		'6': "FIFO", 'Z': "type",
	} {
		_, err := ova.OpenImage(archived(t, one, tarforge.Member{Name: "disk.vmdk", Type: kind}), image.Options{})
		require.ErrorIs(t, err, ondisk.ErrReference)
		require.ErrorContains(t, err, name)
	}
}

// Nor is a file that is not an archive, and no OVF with its manifest in a link.
func TestFilesThatAreNoPackages(t *testing.T) {
	t.Parallel()
	one := text("vm.ovf", envelope(`ovf:href="disk.vmdk"`))
	dir := t.TempDir()
	disktest.OnUnix(t, "links")
	require.NoError(t, os.Symlink("elsewhere", filepath.Join(dir, "vm.mf")))
	_, err := ova.Open(imagetest.Write(t, dir, "vm.ovf", one.Data), nil)
	require.ErrorIs(t, err, ondisk.ErrReference)
	plain := imagetest.Write(t, dir, "plain.img", make([]byte, mib))
	_, err = ova.OpenImage(plain+"!disk.vmdk", image.Options{})
	require.ErrorIs(t, err, ondisk.ErrUsage)
	_, err = ova.Identify(filepath.Join(dir, "absent"), nil)
	require.ErrorIs(t, err, os.ErrNotExist)
	for _, name := range []string{"absent", "plain.img"} {
		_, err = ova.Open(filepath.Join(dir, name), nil)
		require.ErrorIs(t, err, ondisk.ErrNoMatch, name)
	}
	id, err := ova.Identify(archived(t, one, sparse("disk.vmdk")), nil)
	require.NoError(t, err)
	require.Equal(t, "ova", id.Format)
	require.Empty(t, id.Extents)
}

// A disk of a package is named, unless it is the only one.
func TestChosenDisks(t *testing.T) {
	t.Parallel()
	own := text("vm.ovf", envelope(`ovf:href="a.vmdk"`, `ovf:href="b.vmdk"`))
	two := archived(t, own, sparse("a.vmdk"), sparse("b.vmdk"))
	for member, says := range map[string]string{
		"": "the package has 2 disks, name one", "!c.vmdk": `the package has no disk "c.vmdk"; its disks are`,
	} {
		_, err := ova.OpenImage(two+member, image.Options{})
		require.ErrorIs(t, err, ondisk.ErrUsage)
		require.ErrorContains(t, err, says)
		require.ErrorContains(t, err, "'"+two+"!a.vmdk', '"+two+"!b.vmdk'")
	}
	opened(t, two+"!b.vmdk")
	_, err := ova.OpenImage(archived(t, text("vm.ovf", envelope())), image.Options{})
	require.ErrorIs(t, err, ondisk.ErrUnsupported)
	require.ErrorContains(t, err, "no disk with a file")
	_, err = ova.OpenImage(archived(t, text("vm.ovf", envelope()))+"!x", image.Options{})
	require.EqualError(t, err, `the package has no disk "x"; it has no disks at all`)
}

// sum is a line of a manifest.
func sum(algorithm string, m tarforge.Member) string {
	switch algorithm {
	case "SHA1":
		return fmt.Sprintf("SHA1(%s)= %x\n", m.Name, sha1.Sum(m.Data))
	default:
		return fmt.Sprintf("%s(%s)= %x\n", algorithm, m.Name, sha256.Sum256(m.Data))
	}
}

// Every digest of a manifest counts, of each algorithm.
func TestDigests(t *testing.T) {
	t.Parallel()
	disk, own := sparse("disk.vmdk"), text("vm.ovf", envelope(`ovf:href="disk.vmdk"`))
	good := sum("SHA1", disk) + sum("SHA256", disk) + sum("SHA256", own)
	for name, c := range map[string]struct {
		manifest, says string
	}{
		"right":              {good, ""},
		"a wrong one":        {sum("SHA256", own) + sum("SHA256", text("disk.vmdk", "x")), `"disk.vmdk" differs`},
		"a wrong second one": {sum("SHA256", disk) + sum("SHA1", text("disk.vmdk", "x")), `"disk.vmdk" differs`},
		"a wrong first one":  {sum("SHA1", text("disk.vmdk", "x")) + sum("SHA256", disk), `"disk.vmdk" differs`},
		"of no file": {
			good + sum("SHA256", text("more.vmdk", "x")),
			`"more.vmdk", but the package has no such file`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := openedPackage(t, archived(t, own, disk, text("vm.mf", c.manifest)))
			err := p.Check(t.Context(), diskcopy.Unwatched{})
			if c.says == "" {
				require.NoError(t, err)
				require.Equal(t, []string{"SHA1", "SHA256"}, p.Algorithms())
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				require.ErrorIs(t, p.Check(ctx, diskcopy.Unwatched{}), context.Canceled)
				return
			}
			require.ErrorIs(t, err, ova.ErrDigest)
			require.ErrorContains(t, err, c.says)
			img := opened(t, p.Path+"!disk.vmdk")
			require.Equal(t, name != "of no file", errors.Is(img.CheckDigests(t.Context()), ova.ErrDigest))
		})
	}
}

// Differences between packages outside of the disks are reported.
func TestDifferences(t *testing.T) {
	t.Parallel()
	disk, own, notes := sparse("disk.vmdk"), envelope(`ovf:href="disk.vmdk"`), text("notes.txt", "mine")
	manifest := text("vm.mf", sum("SHA256", disk)+sum("SHA256", notes)+sum("SHA256", text("vm.ovf", own)))
	s := openedPackage(t, archived(t, text("vm.ovf", own), manifest, disk, notes))
	for name, c := range map[string]struct {
		members []tarforge.Member
		says    string
	}{
		"nothing": {[]tarforge.Member{text("vm.ovf", own), manifest, disk, notes}, ""},
		"the ovf": {[]tarforge.Member{
			text("vm.ovf", strings.Replace(own, `diskId="d1"`, `diskId="dx"`, 1)),
			disk, notes,
		}, "the OVF differs in more than sizes"},
		"no manifest": {
			[]tarforge.Member{text("vm.ovf", own), disk, notes},
			"only one of the packages has a manifest",
		},
		"another file": {
			[]tarforge.Member{text("vm.ovf", own), manifest, disk, text("notes.txt", "yours")},
			`the file "notes.txt" is missing or differs`,
		},
		"a file of one": {
			[]tarforge.Member{text("vm.ovf", own), manifest, disk},
			`the file "notes.txt" is missing or differs`,
		},
		"a digest": {[]tarforge.Member{
			text("vm.ovf", own),
			text("vm.mf", sum("SHA256", text("notes.txt", "x"))), disk, notes,
		}, `"notes.txt" differs`},
		"a manifest in part": {
			[]tarforge.Member{text("vm.ovf", own), text("vm.mf", sum("SHA256", notes)), disk, notes},
			`the manifest has no digest of "disk.vmdk"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := openedPackage(t, archived(t, c.members...))
			out, err := d.Differs(t.Context(), s, diskcopy.Unwatched{})
			require.NoError(t, err)
			require.Equal(t, c.says == "", len(out) == 0, out)
			require.Contains(t, strings.Join(out, "\n"), c.says)
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if name == "nothing" {
				_, err = d.Differs(ctx, s, diskcopy.Unwatched{})
				require.ErrorIs(t, err, context.Canceled)
			}
		})
	}
}

// A file that cannot be read is not a difference.
func TestDifferencesThatCannotBeFound(t *testing.T) {
	t.Parallel()
	own := []byte(envelope(`ovf:href="disk.vmdk"`))
	own = bytes.Replace(own, []byte("</References>"), []byte(`<File ovf:id="n" ovf:href="notes.txt"/></References>`), 1)
	open := func() *ova.Package {
		dir := t.TempDir()
		imagetest.Write(t, dir, "disk.vmdk", sparse("").Data)
		imagetest.Write(t, dir, "notes.txt", []byte("mine"))
		return openedPackage(t, imagetest.Write(t, dir, "vm.ovf", own))
	}
	s, d := open(), open()
	out, err := d.Differs(t.Context(), s, diskcopy.Unwatched{})
	require.NoError(t, err)
	require.Empty(t, out)
	require.NoError(t, os.Truncate(filepath.Join(filepath.Dir(s.Path), "notes.txt"), 1))
	_, err = d.Differs(t.Context(), s, diskcopy.Unwatched{})
	require.ErrorIs(t, err, ondisk.ErrChanged)
}

// The OVF of an archive fills the blocks that were left for it, however few digits its numbers need.
func TestBlocksOfTheOVF(t *testing.T) {
	t.Parallel()
	disk := sparse("disk.vmdk")
	copied := func(comment int) (size, text int) {
		own := envelope(`ovf:href="disk.vmdk" ovf:size="1"`)
		own = strings.Replace(own, "<DiskSection>", "<!--"+strings.Repeat("x", comment)+"--><DiskSection>", 1)
		src := openedPackage(t, archived(t, tarforge.Member{Name: "vm.ovf", Data: []byte(own)}, disk))
		path := filepath.Join(t.TempDir(), "out.ova")
		out, err := rewritten(t, src, path, diskcopy.Unwatched{}, func() error { return nil })
		require.NoError(t, err)
		require.NoError(t, out.Publish())
		b := disktest.ReadFile(t, path)
		size = int(openedPackage(t, path).Members[0].Size)
		return size, len(bytes.TrimRight(b[512:512+size], "\n"))
	}
	_, plain := copied(0)
	for _, left := range []int{0, 511} {
		size, text := copied(1024 - plain%512 - left)
		require.Equal(t, left, (512-text%512)%512)
		require.Equal(t, left == 0, size > text, "the number that was thought possible has more digits")
	}
}

// A name is as long as in the OVF, even if the file of that name has a shorter one.
func TestLongNamesInAnOVF(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	imagetest.Write(t, dir, strings.Repeat("A", 100), sparse("").Data)
	own := envelope(`ovf:href="` + strings.Repeat("%41", 100) + `"`)
	p := openedPackage(t, imagetest.Write(t, dir, "vm.ovf", []byte(own)))
	_, err := p.Open(p.Disks()[0], image.Options{})
	require.ErrorIs(t, err, ondisk.ErrReference)
	require.ErrorContains(t, err, "has 300 bytes")
}

// Folders of an archive are kept, a file that ends in zeros keeps its size in a folder, and a name that an archive
// cannot hold is refused.
func TestCopiedMembers(t *testing.T) {
	t.Parallel()
	copied := func(path string, src *ova.Package) error {
		out, err := ova.Create(path, src, ova.CreateOptions{})
		require.NoError(t, err)
		if err = out.Write(t.Context(), diskcopy.Unwatched{}, nil); err == nil {
			err = out.Publish()
		}
		return errors.Join(err, out.Discard())
	}
	zeros := text("long.bin", "data"+strings.Repeat("\x00", 5*mib))
	own := text("vm.ovf", envelope(`ovf:href="disk.vmdk"`, `ovf:href="long.bin"`))
	src := archived(t, own, sparse("disk.vmdk"), zeros)
	dir := t.TempDir()
	require.NoError(t, copied(filepath.Join(dir, "out.ovf"), openedPackage(t, src)))
	b := disktest.ReadFile(t, filepath.Join(dir, "long.bin"))
	require.True(t, bytes.Equal(zeros.Data, b))

	own = text("vm.ovf", envelope(`ovf:href="disk.vmdk"`))
	src = archived(t, own, tarforge.Member{Name: "sub/", Type: '5'}, sparse("disk.vmdk"))
	dest := filepath.Join(dir, "out.ova")
	require.NoError(t, copied(dest, openedPackage(t, src)))
	want := disktest.ReadFile(t, src)
	got := disktest.ReadFile(t, dest)
	require.True(t, bytes.Equal(want, got))

	long := strings.Repeat("n", 120) + ".vmdk"
	imagetest.Write(t, dir, long, sparse("").Data)
	require.ErrorIs(t, copied(filepath.Join(dir, "long.ova"),
		openedPackage(t, imagetest.Write(t, dir, "vm.ovf", []byte(envelope(fmt.Sprintf("ovf:href=%q", long)))))),
		ondisk.ErrUsage)
}
