package realign

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/diskcopy"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/verify"
)

var errMarker = errors.New("marker")

// fakeOutput records whether it was published or discarded.
type fakeOutput struct{ published, discarded bool }

func (*fakeOutput) Files() []string       { return nil }
func (*fakeOutput) Notes() []ondisk.Issue { return nil }
func (*fakeOutput) Sums(context.Context, func(int64), func(int64)) ([]store.Sum, error) {
	return nil, errMarker
}
func (o *fakeOutput) Publish() error { o.published = true; return nil }
func (o *fakeOutput) Discard() error { o.discarded = true; return nil }

// An output is published if it was created and filled, and the source stayed unchanged; otherwise it is discarded.
func TestWhatIsPublished(t *testing.T) {
	nothing := func() error { return nil }
	for name, c := range map[string]struct {
		create, fill error
		unchanged    func() error
		cancel, sums bool
		want         error
	}{
		"all is well":                      {unchanged: nothing},
		"a source that cannot be asked":    {},
		"not created":                      {create: errMarker, unchanged: nothing, want: errMarker},
		"not filled":                       {fill: errMarker, unchanged: nothing, want: errMarker},
		"whose digests cannot be computed": {sums: true, unchanged: nothing, want: errMarker},
		"the source changed": {
			unchanged: func() error { return ondisk.ErrChanged },
			want:      ondisk.ErrChanged,
		},
		"which looked like another error": {
			fill: errMarker, unchanged: func() error { return ondisk.ErrChanged },
			want: ondisk.ErrChanged,
		},
		"which a canceled run is not told of": {
			fill:      context.Canceled,
			unchanged: func() error { return ondisk.ErrChanged }, want: context.Canceled,
		},
		"canceled at the end": {cancel: true, unchanged: nothing, want: context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			o := &fakeOutput{}
			_, err := (&Job{Sums: c.sums}).publish(ctx, func() (output, error) { return o, c.create },
				c.unchanged,
				func(*Written) error {
					if c.cancel {
						cancel()
					}
					return c.fill
				})
			require.Equal(t, c.want == nil, o.published)
			require.Equal(t, c.want != nil && c.create == nil, o.discarded)
			if c.want == nil {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, c.want)
			}
		})
	}
	require.NoError(t, cause(nil, nil))
	require.ErrorIs(t, cause(errMarker, nil), errMarker)
}

// checked is an image whose tables have these issues.
func checked(issues []ondisk.Issue, err error) *image.Image {
	return &image.Image{Image: &driver.Image{Check: func() ([]ondisk.Issue, error) { return issues, err }}}
}

// Damaged tables of a copy are reported as a difference.
func TestTablesOfACopy(t *testing.T) {
	require.NoError(t, intact(&image.Image{Image: &driver.Image{}}))
	require.NoError(t, intact(checked([]ondisk.Issue{{Effect: ondisk.Note}}, nil)))
	require.ErrorIs(t, intact(checked(nil, errMarker)), errMarker)
	require.ErrorIs(t, intact(checked([]ondisk.Issue{{Effect: ondisk.Warn, Text: "damage"}}, nil)), verify.ErrDifferent)
}

// Faults in the tables of a source are reported. Unreadable tables are an error.
func TestTablesOfASource(t *testing.T) {
	s := open(t, oldLinux(t, t.TempDir()))
	damage := ondisk.Issue{Code: "damage", Effect: ondisk.Warn}
	s.Image.Check = func() ([]ondisk.Issue, error) { return []ondisk.Issue{damage}, nil }
	require.NoError(t, s.read())
	require.Contains(t, s.Damage, damage)
	p := mustPlan(t, s)
	require.Equal(t, "damage", p.Notes[0].Code)
	s.Image.Check = func() ([]ondisk.Issue, error) { return nil, errMarker }
	require.ErrorIs(t, s.read(), errMarker)
	require.ErrorIs(t, s.Complete(t.Context(), true), errMarker)
}

// The proof always checks the structures of a copy, and on request its bytes; unreadable data prove nothing.
func TestProof(t *testing.T) {
	s := open(t, oldLinux(t, t.TempDir()))
	p := mustPlan(t, s)
	view, err := s.View(p)
	require.NoError(t, err)
	sum, err := (&Job{Jobs: 1}).digest(t.Context(), view)
	require.NoError(t, err)
	const data = 24_000 * sector
	other := func(off int64) disk.Disk {
		return disk.Overlay(view, []disk.Patch{{Off: off, New: []byte{0, 0, 0, 0}}})
	}
	hole := disk.Overlay(view, []disk.Patch{{Off: 40_000 * sector, New: []byte{1}}})
	broken := disktest.NewBadDisk(view, 0)
	for name, c := range map[string]struct {
		got  disk.Disk
		full bool
		want error
		text string
	}{
		"as planned":                  {view, true, nil, ""},
		"another table":               {other(446 + 8), false, verify.ErrDifferent, "partition 1"},
		"other data":                  {other(data), true, verify.ErrDifferent, fmt.Sprintf("at byte %d", data)},
		"data in a hole":              {hole, true, verify.ErrDifferent, fmt.Sprintf("at byte %d", 40_000*sector)},
		"other data are not compared": {other(data), false, nil, ""},
		"a table that cannot be read": {broken, false, disktest.ErrFault, ""},
		"data that cannot be read":    {disktest.NewBadDisk(view, data), true, disktest.ErrFault, ""},
	} {
		got := &image.Image{Image: &driver.Image{Disk: c.got}}
		for i, digest := range []*diskcopy.Sum{nil, &sum} {
			x := planned{Source: s, plan: p, view: view}
			err := (&Job{Full: c.full, Jobs: 1}).prove(t.Context(), x, got, digest)
			if c.want == nil {
				require.NoError(t, err, name)
				continue
			}
			require.ErrorIs(t, err, c.want, "%s, %d", name, i)
			require.ErrorContains(t, err, c.text, name)
		}
	}
	err = (&Job{Full: true, Jobs: 1}).prove(t.Context(), planned{Source: s, plan: p, view: view},
		&image.Image{Image: &driver.Image{Disk: view}},
		new(diskcopy.Sum))
	require.ErrorIs(t, err, verify.ErrDifferent)
	require.ErrorContains(t, err, "SOURCE or the copy returned other bytes at a second reading")
	_, err = (&Job{Jobs: 1}).same(t.Context(), disktest.NewBadExtents(view), view)
	require.ErrorIs(t, err, disktest.ErrFault)
}

// A planned disk that would move again or cannot be read is an error, and so is a plan with patches after the end.
func TestUnsettledView(t *testing.T) {
	s := open(t, oldLinux(t, t.TempDir()))
	p := mustPlan(t, s)
	require.ErrorIs(t, settled(s.Image.Disk, s.Layout, p), verify.ErrDifferent)
	require.NoError(t, settled(s.Image.Disk, s.Layout, plan.Copy(diskSize)))
	_, after, err := s.promised(p)
	require.NoError(t, err)
	gap := disk.Overlay(p.View(s.Image.Disk), []disk.Patch{{Off: 22_100 * sector, New: []byte{1}}})
	require.ErrorIs(t, settled(disktest.NewBadDisk(gap, 22_100*sector), after, p), disktest.ErrFault)

	patches := p.Patches
	p.Patches = []disk.Patch{{Off: p.Size, Old: []byte{1}, New: []byte{2}}}
	require.Error(t, checkOld(s.Image.Disk, p))
	p.Patches = patches
	p.Patches[0].Old = []byte{^p.Patches[0].Old[0]}
	_, err = (&Job{}).Write(t.Context(), s, p, File{Path: filepath.Join(t.TempDir(), "copy.raw"), Format: "raw"})
	require.Error(t, err)
}

// The first finding is the error, with its class, and the number of the others.
func TestErrorsOfFindings(t *testing.T) {
	finding := func(effect ondisk.Effect) align.Finding {
		return align.FromIssue(ondisk.Issue{
			Code: "code", Effect: effect, Text: "text", Remedy: "remedy",
			Err: ondisk.ErrLimit,
		})
	}
	for effect, malformed := range map[ondisk.Effect]bool{
		ondisk.Broken: true, ondisk.BadVolume: true,
		ondisk.Refuse: false,
	} {
		err := Broken([]align.Finding{finding(ondisk.Note), finding(effect)})
		require.Equal(t, malformed, err != nil)
		err = Refusal([]align.Finding{finding(effect), finding(effect)})
		require.Equal(t, "limit", Code(err))
		require.Equal(t, malformed, errors.Is(err, ondisk.ErrLimit))
		require.Equal(t, !malformed, errors.As(err, new(*ondisk.Refusal)))
	}
	require.ErrorContains(t, Refusal([]align.Finding{finding(ondisk.Refuse), finding(ondisk.Refuse)}), "and 1 more")
}

// If verification is impossible, it is an error; a wrong copy is a difference, which names the first fault.
func TestTextOfVerify(t *testing.T) {
	dir := t.TempDir()
	raw := oldLinux(t, dir)
	f, err := os.OpenFile(raw, os.O_RDWR, 0)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte{1}, 40_000*sector) // after the last partition
	require.NoError(t, errors.Join(err, f.Close()))
	s := open(t, raw)
	p := mustPlan(t, s)
	dest := filepath.Join(dir, "copy.raw")
	_, err = (&Job{Full: true, Jobs: 1}).Write(t.Context(), s, p, File{Path: dest, Format: "raw"})
	require.NoError(t, err)
	held := func(change func(s, d *Source)) ([]Difference, error) {
		t.Helper()
		s, d := open(t, raw), open(t, dest)
		change(s, d)
		_, diffs, err := (&Job{Jobs: 1}).Verify(t.Context(), s, d, nil)
		return diffs, err
	}
	diffs, err := held(func(_, _ *Source) {})
	require.NoError(t, err)
	require.Empty(t, diffs)
	for name, change := range map[string]func(s, d *Source){
		"data of the copy":    func(_, d *Source) { d.Image.Disk = disktest.NewBadDisk(d.Image.Disk, 24_000*sector) },
		"data of the source":  func(s, _ *Source) { s.Image.Disk = disktest.NewBadDisk(s.Image.Disk, 22_000*sector) },
		"a gap of the source": func(s, _ *Source) { s.Image.Disk = disktest.NewBadDisk(s.Image.Disk, 40_000*sector) },
	} {
		_, err := held(change)
		require.ErrorIs(t, err, disktest.ErrFault, name)
	}
	_, err = held(func(s, _ *Source) { s.Damage = []ondisk.Issue{{Effect: ondisk.Broken, Err: errMarker}} })
	require.ErrorIs(t, err, errMarker)

	table := func(_, d *Source) {
		d.Image.Disk = disk.Overlay(d.Image.Disk, []disk.Patch{{Off: 446 + 4, New: []byte{0x17}}})
		require.NoError(t, d.read())
	}
	diffs, err = held(table)
	require.NoError(t, err)
	require.EqualValues(t, sector, diffs[0].Len, "the bytes come first")
	diffs, err = held(func(_, d *Source) {
		d.Damage = []ondisk.Issue{
			{Effect: ondisk.Refuse, Text: "damage"},
			{Effect: ondisk.Refuse, Code: image.CodeMisnamed},
			{Effect: ondisk.Warn},
		}
	})
	require.NoError(t, err)
	require.Equal(t, []Difference{{Text: "damage"}}, diffs)

	disktest.RunInput(t, "label: gpt\n2048,4000\n", "sfdisk", "-q", "--wipe", "always", dest)
	diffs, err = held(func(_, _ *Source) {})
	require.NoError(t, err)
	require.Contains(t, diffs[0].Text, "partition table gpt, want mbr")
}

// Read errors during planning are errors of the plan.
func TestPlanOfUnreadableDisks(t *testing.T) {
	raw := oldLinux(t, t.TempDir())
	disktest.WriteAt(t, raw, 40_000*sector, []byte{1})
	s := open(t, raw)
	good := s.Image.Disk
	s.Image.Disk = disktest.NewBadDisk(good, 40_000*sector)
	_, err := s.Plan(Goal{})
	require.ErrorIs(t, err, disktest.ErrFault)
	_, err = s.Refusals(Goal{})
	require.ErrorIs(t, err, disktest.ErrFault)
	_, _, err = Others{s}.machine(open(t, raw), nil, Goal{})
	require.ErrorIs(t, err, disktest.ErrFault)
	require.ErrorIs(t, Others{s}.Join(open(t, raw), Goal{}), disktest.ErrFault)
	require.ErrorIs(t, Others{open(t, raw)}.Join(s, Goal{}), disktest.ErrFault)

	s.Image.Disk = good
	p := mustPlan(t, s)
	require.ErrorIs(t, Others{{Image: s.Image, Layout: s.Layout}}.joinPlan(s, p, Goal{Only: []int{9}}),
		plan.ErrSelection)
	own := ondisk.Issue{Code: "own", Effect: ondisk.Warn}
	s.Layout.Issues = append(s.Layout.Issues, own)
	s.Damage = append(s.Damage, ondisk.Issue{Code: "damage", Effect: ondisk.Warn})
	p = mustPlan(t, s)
	codes := map[string]bool{}
	for _, n := range p.Notes {
		codes[n.Code] = true
	}
	require.True(t, codes["own"] && codes["damage"], "%v", codes)
	s.Image.Disk = disktest.NewBadDisk(good, 0)
	_, err = s.View(p)
	require.ErrorIs(t, err, disktest.ErrFault)
	require.ErrorIs(t, checkOld(s.Image.Disk, p), disktest.ErrFault)
	img := imagetest.Open(t, raw)
	img.Disk = disktest.NewBadDisk(img.Disk, 0)
	_, err = Survey(img)
	require.ErrorIs(t, err, disktest.ErrFault)
}

// A disk of the machine that would be refused stays, with a warning for both sides; so does a disk that another one
// refers to.
func TestOthersThatAreRefused(t *testing.T) {
	s, x := open(t, oldLinux(t, t.TempDir())), open(t, oldLinux(t, t.TempDir()))
	x.Layout.Table.Signature = 7
	x.Layout.Issues = append(x.Layout.Issues, ondisk.Issue{Code: "no", Effect: ondisk.Refuse, Text: "never"})
	x.Layout.Boot.Refs = []boot.Ref{
		{Kind: "letter C:", Disk: s.Layout.Signature(), Points: 63 * sector},
		{Kind: "letter C:", Disk: s.Layout.Signature(), Points: 63 * sector},
		{Kind: "letter D:", Disk: s.Layout.Signature(), Points: 20_063 * sector},
	}
	p := mustPlan(t, s)
	require.NoError(t, Others{x}.joinPlan(s, p, Goal{}))
	texts := map[string]string{}
	for _, n := range p.Notes {
		texts[n.Code] = n.Text
	}
	require.Contains(t, texts["with-refused"], "never")
	require.Contains(t, texts["named-by"], "letter C: means partition 1 (and 1 more)")
	require.NoError(t, Others{x}.Join(s, Goal{}))
	require.Equal(t, "with-refused", s.Beside[len(s.Beside)-1].Code)
}

// Used data of an image: the positions of its partitions, and the amount of nonzero data if it can be read.
func TestUseOfUnreadableDisks(t *testing.T) {
	s := open(t, oldLinux(t, t.TempDir()))
	u, err := s.Use(t.Context(), true, nil)
	require.NoError(t, err)
	require.Len(t, u.Map.Places, 2)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = s.Use(ctx, true, nil)
	require.ErrorIs(t, err, context.Canceled)
	s.Image.Disk = disktest.NewBadDisk(s.Image.Disk, 22_000*sector)
	u, err = s.Use(t.Context(), true, nil)
	require.NoError(t, err)
	require.Nil(t, u.NonZero)
	require.Equal(t, "unreadable-data", u.Issues[len(u.Issues)-1].Code)
}

// A file with the extension of a format but other content is an error as an image.
func TestMisnamedSource(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.vmdk")
	require.NoError(t, os.WriteFile(path, make([]byte, 1<<20), 0o644))
	s := open(t, path)
	require.Error(t, s.Misnamed())
}
