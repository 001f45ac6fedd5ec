package opinion

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/ondisk"
)

// asClerk is the argument that makes this test a clerk.
const asClerk = "serve-as-clerk"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == asClerk {
		if err := Serve(os.Stdin, os.Stdout); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestWhatATableAmountsTo(t *testing.T) {
	t.Parallel()
	row := func(v Verdict) Row { return Row{QemuImg + " 9", "all", "words", v} }
	for name, c := range map[string]struct {
		table Table
		want  string // in the error, empty for none
	}{
		"one agrees":                 {Table{row(Agrees)}, ""},
		"one agrees, one is missing": {Table{row(Agrees), row(Absent), row(NotLooked)}, ""},
		"none was asked":             {nil, "none was asked"},
		"none looked":                {Table{row(NotLooked), row(Absent)}, "no judge looked at anything"},
		"one failed": {
			Table{row(Agrees), row(Failed)},
			"--second-opinion=libguestfs asks the other",
		},
		"one differs, and one fails": {
			Table{row(Agrees), row(Failed), row(Differs)},
			"the second opinion differs: qemu-img 9, all",
		},
		"one differs, the other agrees": {Table{row(Agrees), row(Differs)}, "words"},
	} {
		err := c.table.Err()
		_, differs := errors.AsType[*DifferenceError](err)
		require.Equal(t, c.table.Differs(), differs, name)
		if c.want == "" {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorContains(t, err, c.want, name)
		require.Equal(t, !differs, errors.Is(err, ondisk.ErrUnsupported), name)
	}
}

// A clerk whose caller is gone before it says where its folder is leaves none.
func TestClerkOfACallerThatIsGone(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	require.NoError(t, err)
	dir := t.TempDir()
	read, write, err := os.Pipe()
	require.NoError(t, err)
	require.NoError(t, read.Close())
	cmd := exec.Command(self, asClerk)
	cmd.Env, cmd.Stdout = append(os.Environ(), "TMPDIR="+dir), write
	require.ErrorContains(t, cmd.Run(), "exit status 1")
	require.NoError(t, write.Close())
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

// A clerk without a place for its folder says which variable names one.
func TestClerkWithoutAFolder(t *testing.T) {
	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "missing"))
	_, err := Open(All, asClerk)
	require.ErrorContains(t, err, "TMPDIR can name another place")
}

// A copy of several files gets links with their final names, to nothing outside of its folder.
func TestLinksOfACopy(t *testing.T) {
	t.Parallel()
	dir, folder := t.TempDir(), t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{".a.partial", ".a-flat.partial"} {
		require.NoError(t, os.WriteFile(path(name), []byte(name), 0o600))
	}
	q := question{Folder: folder, Copy: Copy{
		Path: path(".a.partial"), Files: map[string]string{"a": path(".a.partial"), "a-flat": path(".a-flat.partial")},
	}}
	require.NoError(t, q.prepare())
	require.Equal(t, filepath.Join(folder, "named", "a"), q.Path)
	b := disktest.ReadFile(t, filepath.Join(folder, "named", "a-flat"))
	require.Equal(t, ".a-flat.partial", string(b))
	q = question{Folder: t.TempDir(), Copy: Copy{
		Path: path(".a.partial"), Files: map[string]string{"../a": path(".a.partial"), "b": path(".a-flat.partial")},
	}}
	require.ErrorContains(t, q.prepare(), "another folder")
	q = question{Folder: t.TempDir(), Copy: Copy{Path: path("absent"), Format: "raw"}, Judges: []string{All}}
	require.Equal(t, Failed, q.judge(t.Context())[0].Verdict)
}

// The clerk has qemu-img read what this process serves.
func TestClerk(t *testing.T) {
	t.Parallel()
	disktest.Tool(t, QemuImg)
	path := filepath.Join(t.TempDir(), "copy.raw")
	content := make([]byte, 1<<20)
	content[4096] = 1
	require.NoError(t, os.WriteFile(path, content, 0o600))
	for _, differs := range []bool{false, true} {
		p, err := Open(QemuImg, asClerk)
		require.NoError(t, err)
		view := append([]byte{}, content...)
		if differs {
			view[5000] ^= 1
		}
		d := disktest.NewMemPieces("view", 1<<20, disktest.MemPiece{Data: view})
		table, err := p.Ask(t.Context(), Disks{d, d, d}, Copy{
			Path: path, Format: "raw", SectorSize: 512,
			Size: 1 << 20,
		})
		require.NoError(t, err)
		require.Equal(t, differs, table.Differs(), "%v", table)
		require.Len(t, table, 2)
		require.NoError(t, p.Close())
		require.NoDirExists(t, p.folder)
	}
	p, err := Open(QemuImg, asClerk)
	require.NoError(t, err)
	require.DirExists(t, p.folder)
	require.NoError(t, p.Close()) // nothing was asked
	require.NoDirExists(t, p.folder)
}
