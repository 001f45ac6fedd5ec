package boot_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/boottest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume"
)

// files are the files of a file system, or the error of opening one.
type files map[string]error

func (f files) Open(path string) (*guestfile.File, error) {
	if err, ok := f[path]; ok {
		return nil, err
	}
	return nil, fs.ErrNotExist
}

func (f files) List(string) ([]guestfile.Entry, error) { return nil, nil }

// kind is of the volumes that these tests read with a reader of their own.
const kind = volume.Kind("test")

// reader makes volumes of the kind open so, until the test ends.
func reader(t *testing.T, open func() (guestfile.FS, error)) {
	t.Helper()
	boot.Readers[kind] = func(*guestfile.Budget, disk.Disk) (guestfile.FS, error) { return open() }
	t.Cleanup(func() { delete(boot.Readers, kind) })
}

// guestOf has so many partitions of 16 sectors, from LBA 16 on.
func guestOf(n int) *boot.Guest {
	g := &boot.Guest{Disk: boottest.Disk(make([]byte, 16*512*(n+1))), Sector0: make([]byte, boot.CodeLen)}
	for i := range n {
		r := disk.Range{Off: int64(16 * 512 * (i + 1)), Len: 16 * 512}
		g.Partitions = append(g.Partitions, boot.Partition{
			Partition: table.Partition{Number: i + 1, Range: r}, Volume: &volume.Volume{Kind: kind},
		})
	}
	return g
}

// Files are read only of partitions that hold a volume and lie on the disk, and of at most 128 of them.
func TestFilesOfPartitions(t *testing.T) {
	const most = 128
	reader(t, func() (guestfile.FS, error) { return files{}, nil })
	g := guestOf(most + 1)
	for name, change := range map[string]func(p *boot.Partition){
		"extended": func(p *boot.Partition) { p.Kind = table.Extended },
		"empty":    func(p *boot.Partition) { p.Len = 0 },
		"too long": func(p *boot.Partition) { p.Len = g.Disk.Size() },
		"unknown":  func(p *boot.Partition) { p.Volume = &volume.Volume{} },
	} {
		p := g.Partitions[0]
		change(&p)
		_, err := g.Files(p)
		require.ErrorIs(t, err, ondisk.ErrNoMatch, name)
	}
	for _, p := range g.Partitions[:most] {
		_, err := g.Files(p)
		require.NoError(t, err)
	}
	_, err := g.Files(g.Partitions[most])
	require.ErrorIs(t, err, ondisk.ErrLimit)
	_, err = g.Files(g.Partitions[0])
	require.NoError(t, err, "it is open")
}

// The first of several paths that leads to a file counts, also to one that is not understood.
func TestWithFile(t *testing.T) {
	broken := &ondisk.FormatError{What: "a file"}
	reader(t, func() (guestfile.FS, error) { return files{"second": nil, "third": broken}, nil })
	g := guestOf(1)
	var got []string
	note := func(_ boot.Partition, path string) { got = append(got, path) }
	require.NoError(t, g.WithFile([]string{"first", "second", "third"}, note))
	require.NoError(t, g.WithFile([]string{"third", "second"}, note))
	require.Equal(t, []string{"second"}, got)
}

// What is rewritten of a file is what was read of it, at its places.
func TestPlacesOfAFile(t *testing.T) {
	g := guestOf(1)
	p := g.Partitions[0]
	volume := disk.Section(g.Disk, p.Range)
	f, err := guestfile.NewFile(volume, "file", 1024, []guestfile.Run{{Off: 0, Len: 512, At: 1024}})
	require.NoError(t, err)
	at, raw, err := g.At(p, f, 100, 8)
	require.NoError(t, err)
	require.Equal(t, []disk.Range{{Off: p.Off + 1124, Len: 8}}, at)
	require.Equal(t, make([]byte, 8), raw)
	_, _, err = g.At(p, f, 600, 8)
	require.ErrorIs(t, err, guestfile.ErrHole)

	other := bytes.Repeat([]byte{1}, int(p.Len))
	f, err = guestfile.NewFile(boottest.Disk(other), "file", 512, []guestfile.Run{{Off: 0, Len: 512, At: 1024}})
	require.NoError(t, err)
	_, _, err = g.At(p, f, 100, 8)
	require.ErrorContains(t, err, "a file and its places differ")
}

// A journal that cannot be read keeps no position, and an error of reading is none of the journal.
func TestJournalThatCannotBeRead(t *testing.T) {
	finder := boot.Finder{Name: "test", Find: func(*boot.Guest) (f boot.Found, err error) {
		r := refAt("a", disk.Range{Off: 17 * 512, Len: 4})
		r.Partition = 1
		f.Refs = []boot.Ref{r}
		return f, nil
	}}
	for name, tc := range map[string]struct {
		open error
		says string // in the refusal; empty: the error itself
	}{
		"broken":      {&ondisk.FormatError{What: "superblock"}, "superblock"},
		"no reader":   {ondisk.ErrNoMatch, ondisk.ErrNoMatch.Error()},
		"another one": {nil, "it cannot be read"},
		"bad sector":  {disktest.ErrFault, ""},
	} {
		t.Run(name, func(t *testing.T) {
			reader(t, func() (guestfile.FS, error) { return files{}, tc.open })
			g := guestOf(1)
			g.Partitions[0].Volume.Issues = []ondisk.Issue{{Code: "ext-journal"}}
			r, err := boot.Read(g, nil, []boot.Finder{finder})
			if tc.says == "" {
				require.ErrorIs(t, err, disktest.ErrFault)
				return
			}
			require.NoError(t, err)
			require.Len(t, r.Issues, 1)
			require.True(t, r.Issues[0].OnMove)
			require.NotEqual(t, ondisk.Note, r.Issues[0].Effect)
			require.Contains(t, r.Issues[0].Text, tc.says)
		})
	}
}

// Positions that lie over each other are reported, whichever finders found them.
func TestReferencesOfTwoFinders(t *testing.T) {
	found := func(kind string) boot.Finder {
		return boot.Finder{Name: kind, Find: func(*boot.Guest) (boot.Found, error) {
			return boot.Found{Refs: []boot.Ref{refAt(kind, disk.Range{Off: 17 * 512, Len: 8})}}, nil
		}}
	}
	r, err := boot.Read(guestOf(1), nil, []boot.Finder{found("a"), found("b")})
	require.NoError(t, err)
	require.Len(t, r.Issues, 1)
	require.Equal(t, "references-overlap", r.Issues[0].Code)
}

// What is left of a reference is rewritten in the same way, or not at all.
func TestOnlyOfAReference(t *testing.T) {
	broken := errors.New("does not fit")
	r := refAt("a", disk.Range{Off: 8, Len: 4})
	r.Raw = []byte{1, 2, 3, 4}
	r.Encode = func(_ []byte, to int64) ([]byte, error) {
		if to == 0 {
			return nil, broken
		}
		return []byte{5, 6, 7, 8}, nil
	}
	r.Narrow([]int{1, 3})
	b, err := r.Encode(r.Raw, 1)
	require.NoError(t, err)
	require.Equal(t, []byte{6, 8}, b)
	_, err = r.Encode(r.Raw, 0)
	require.ErrorIs(t, err, broken)
}

// The finder of loaders returns the error of each of its reads.
func TestEachReadOfTheLoaders(t *testing.T) {
	f := make(forge.Bytes, 5*16*512)
	f.Text(16*512+0x180, "GRUB \x00Geom\x00Hard Disk\x00Read\x00 Error\x00")
	disktest.EveryReadCounts(t, boottest.Disk(f), func(d disk.Disk) error {
		g := guestOf(4)
		g.Disk, g.Codes = d, layout.Codes()
		g.Code = layout.Identify(g.Sector0)
		_, err := boot.Loaders.Find(g)
		return err
	})
}

// refAt is a reference in these places.
func refAt(kind string, at ...disk.Range) boot.Ref {
	return boot.Ref{Kind: kind, At: at, Target: 1, Encode: func(raw []byte, _ int64) ([]byte, error) {
		return raw,
			nil
	}}
}

// A file of two names has its positions once, also where they lie in two pieces.
func TestAReferenceThatIsFoundTwice(t *testing.T) {
	pieces := []disk.Range{{Off: 510, Len: 2}, {Off: 800, Len: 6}}
	kept, clash := boot.Distinct([]boot.Ref{
		refAt("a", pieces...), refAt("b", disk.Range{Off: 600, Len: 8}),
		refAt("a", pieces...), refAt("a", pieces...),
	})
	require.Nil(t, clash)
	require.Len(t, kept, 2)
	for _, r := range kept {
		require.True(t, r.Follows())
	}
}

// What lies under another reference stays, wherever in it, and so does that one.
func TestReferencesOverEachOther(t *testing.T) {
	kept, clash := boot.Distinct([]boot.Ref{
		refAt("region", disk.Range{Off: 0, Len: 1000}), refAt("first", disk.Range{Off: 100, Len: 8}),
		refAt("second", disk.Range{Off: 992, Len: 8}), refAt("behind", disk.Range{Off: 1000, Len: 8}),
	})
	require.NotNil(t, clash)
	require.Equal(t, ondisk.Unbootable, clash.Effect)
	require.Len(t, kept, 4)
	for _, r := range kept {
		require.Equal(t, r.Kind == "behind", r.Follows(), r.Kind)
	}
}

// Boot sectors that share a long map are compared once for each pair, and not once for each piece.
func TestReferencesOfManyPieces(t *testing.T) {
	var pieces []disk.Range
	for i := range int64(30_000) {
		pieces = append(pieces, disk.Range{Off: 1024 * i, Len: 512})
	}
	refs := make([]boot.Ref, 20)
	for i := range refs {
		refs[i] = refAt("map", pieces...)
	}
	kept, clash := boot.Distinct(refs)
	require.Nil(t, clash)
	require.Len(t, kept, 1)
}

// A slip of the pen in codes.json would make code unknown, or let it read another partition.
func TestListedCodes(t *testing.T) {
	d := json.NewDecoder(bytes.NewReader(boot.ListedText))
	d.DisallowUnknownFields()
	var rows []boot.ListedCode
	require.NoError(t, d.Decode(&rows))
	seen := map[string]bool{}
	for _, r := range rows {
		require.False(t, seen[r.ID], r.ID)
		seen[r.ID] = true
		require.NotEmpty(t, r.Name, r.ID)
		require.NotEmpty(t, r.Like, r.ID)
		require.NotEmpty(t, r.About, r.ID)
		if r.Picks != "" {
			require.Contains(t, boot.Picks, r.Picks, r.ID)
		}
		require.Equal(t, r.ID, boot.Named(r.ID).ID)
	}
	require.Len(t, rows, 25)
}
