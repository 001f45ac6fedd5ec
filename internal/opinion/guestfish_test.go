package opinion

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// conversation is a guestfish that answers as the one of libguestfs 1.48. It finds one file system with two files. A
// case stands before its own answers, with $side for the disk that it has.
const conversation = `
listing() { printf '%%016d%%048d  -\n%%d\n%%016d%%048d  -\n%%d\n' $1 0 $2 $3 0 $4; }
fails() { echo "*stdin*:5: libguestfs: error: $1"; }
check() { printf '%%s\n' "$@"; }
while IFS= read -r line; do
  case "$line" in
  "-add-drive "*/source*) side=source;;
  "-add-drive "*/copy*) side=copy;;
  esac
  case "$side $line" in
  %s
  *" -add-drive "*|*" -run"|*" -mount-ro "*|*" -umount-all"|*" -list-partitions") ;;
  *" -list-filesystems") echo '/dev/sda1: ext4';;
  *" -debug sh "*sha256sum*) listing 7 3 8 2; echo exit 0;;
  *" -debug sh "*) check 'all is well' 'exit 0';;
  *" echo "*) echo "${line#echo }";;
  *) fails "unknown command $line";;
  esac
done
`

// finding is what libguestfs was asked, and said.
type finding struct {
	asked, said string
	verdict     Verdict
}

// compare has the fake compare two disks.
func compare(t *testing.T, answers string, limit time.Duration) (found []finding, err error) {
	t.Helper()
	path := disktest.Program(t, "guestfish", fmt.Sprintf(conversation, answers))
	rows, err := compareFiles(t.Context(), path, t.TempDir(), disk{socket: "/a/source", sectorSize: 512},
		disk{path: "/b \"quoted\"/copy", format: "vmdk", sectorSize: 4096}, limit)
	for _, r := range rows {
		found = append(found, finding{r.Asked, r.Said, r.Verdict})
	}
	return found, err
}

// differs is what is said of listings whose last digits are these.
func differs(source, dest [4]int) string {
	words := func(n [4]int) string {
		return fmt.Sprintf("%d names with SHA-256 %016d…, %d regular files with %016d…", n[1], n[0], n[3], n[2])
	}
	return "SOURCE: " + words(source) + "; DEST: " + words(dest)
}

func TestOutputOfAppliances(t *testing.T) {
	t.Parallel()
	const files, check = "/dev/sda1: files of ext4", "/dev/sda1: e2fsck -f -n"
	clean := finding{check, "no errors", Agrees}
	equal := finding{files, "all names (3) and the SHA-256 of all regular files (2) are equal", Agrees}
	usual := [4]int{7, 3, 8, 2}
	for name, c := range map[string]struct {
		answers string
		want    []finding
	}{
		"the same": {"", []finding{clean, equal}},
		"another content": {
			`"copy -debug sh "*sha256sum*) listing 7 3 9 2; echo exit 0;;`,
			[]finding{clean, {files, differs(usual, [4]int{7, 3, 9, 2}), Differs}},
		},
		"another name": {
			`"copy -debug sh "*sha256sum*) listing 6 3 8 2; echo exit 0;;`,
			[]finding{clean, {files, differs(usual, [4]int{6, 3, 8, 2}), Differs}},
		},
		"a file too many": {
			`"copy -debug sh "*sha256sum*) listing 7 4 8 2; echo exit 0;;`,
			[]finding{clean, {files, differs(usual, [4]int{7, 4, 8, 2}), Differs}},
		},
		"a file cannot be read, on either disk": {
			`*" -debug sh "*sha256sum*) listing 7 3 8 2; check "two: Input/output error" "exit 0";;`,
			[]finding{clean, {
				files, "the readable ones are equal: two: Input/output error", NotLooked,
			}},
		},
		"a file cannot be read in the copy": {
			`"copy -debug sh "*sha256sum*) listing 7 3 8 2; check "two: no" "exit 0";;`,
			[]finding{clean, {files, differs(usual, usual) + ", two: no", Differs}},
		},
		"mounted on neither": {
			`*" -mount-ro "*) fails "mount_ro: unknown filesystem type";;`,
			[]finding{clean, {
				files, "cannot be mounted on either disk: mount_ro: unknown filesystem type", NotLooked,
			}},
		},
		"not mounted in the copy": {
			`"copy -mount-ro "*) fails "bad superblock";;`,
			[]finding{clean, {
				files, "SOURCE: 3 names with SHA-256 0000000000000007…, 2 regular files with 0000000000000008…; " +
					"DEST: cannot be mounted: bad superblock", Differs,
			}},
		},
		"other file systems": {
			`"copy -list-filesystems") echo '/dev/sda1: ext4'; echo '/dev/sda2: swap';;`,
			[]finding{{
				"file systems", "SOURCE: /dev/sda1: ext4; DEST: /dev/sda1: ext4, /dev/sda2: swap", Differs,
			}, clean, equal},
		},
		"no file system": {
			`*" -list-filesystems") ;;`, []finding{{"file systems", "none found on either disk", NotLooked}},
		},
		"locked": {
			`*" -list-filesystems") echo '/dev/sda1: swap'; echo '/dev/vg/a: ext4';;
			*" -list-partitions") for i in 1 2 3 4; do echo /dev/sda$i; done;;
			*" -vfs-type "*sda2*) echo BitLocker;; *" -vfs-type "*sda3*) echo LVM2_member;; *" -vfs-type "*sda4*) ;;`,
			[]finding{
				{"/dev/sda1", "its content (swap) has no readable files", NotLooked},
				{"/dev/vg/a: e2fsck -f -n", "no errors", Agrees},
				{"/dev/vg/a: files of ext4", equal.said, Agrees},
				{"/dev/sda2", "its content (BitLocker) has no readable files", NotLooked},
				{"/dev/sda3", "its content (LVM2_member) has no readable files", NotLooked},
			},
		},
		"another lock": {
			`*" -list-partitions") echo /dev/sda2;; *" -list-filesystems") ;; *" -vfs-type "*) echo "$side";;`,
			[]finding{{"/dev/sda2", "SOURCE: its content is source; DEST: its content is copy", Differs}},
		},
		"another partition": {
			`"source -list-partitions") echo /dev/sda2;;`,
			[]finding{{"partitions", "SOURCE: /dev/sda2; DEST: none", Differs}, clean, equal},
		},
		"errors on both": {
			`*" -debug sh "*e2fsck*) check 'Pass 1' 'errors remain' 'exit 4';;`,
			[]finding{
				{check, "ends with exit 4 on both: SOURCE has the same errors (errors remain)", Agrees},
				equal,
			},
		},
		"a check that does not begin": {
			`*" -debug sh "*e2fsck*) check 'unsupported feature' 'exit 8';;`,
			[]finding{
				{check, "ends with exit 8 on both, and checked nothing (unsupported feature)", NotLooked},
				equal,
			},
		},
		"errors in the copy": {
			`"copy -debug sh "*e2fsck*) check 'errors remain' 'exit 4';;`,
			[]finding{{
				check, "SOURCE: exit 0 (all is well); DEST: exit 4 (errors remain)", Differs,
			}, equal},
		},
		"no checker": {
			`*" -debug sh "*e2fsck*) check 'sh: 1: e2fsck: not found' 'exit 127';;`,
			[]finding{
				{check, "ends with exit 127 on both, and checked nothing (sh: 1: e2fsck: not found)", NotLooked}, equal,
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := compare(t, c.answers, time.Hour)
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
}

// What did not end is an error, and no agreement.
func TestAppliancesThatFail(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ answers, want string }{
		"takes no drive": {
			`"copy -add-drive "*) fails 'no such file';;`,
			`rejects the drive: "no such file"`,
		},
		"does not start":      {`*" -run") fails 'no kernel';;`, `does not start: "no kernel"`},
		"ends at once":        {`*" -add-drive "*) exit 1;;`, "guestfish"},
		"ends in an answer":   {`"copy -debug sh "*) check one; exit 1;;`, errEnded.Error()},
		"is killed":           {`"source -run") kill -9 $$;;`, errEnded.Error()},
		"lists garbage":       {`"copy -list-filesystems") fails 'daemon died';;`, "daemon died"},
		"a check without end": {`"copy -debug sh "*) echo something;;`, "returned no exit code"},
		"a line without end":  {`"copy -debug sh "*) head -c 200000 /dev/zero | tr '\0' x;;`, errLine.Error()},
		"no listing":          {`*" -debug sh "*sha256sum*) check "sh: cannot cd" "exit 2";;`, "cannot list them"},
		"an empty listing":    {`*" -debug sh "*sha256sum*) listing 7 0 8 0; echo exit 0;;`, "cannot list them"},
		"an error without end": {
			`"copy -umount-all") while echo 'libguestfs: error: x' || exit; do :; done;;`,
			"did not end within",
		},
		"hangs":                   {`"copy -debug sh "*) check one; sleep 1000;;`, "did not end within"},
		"hangs, and its children": {`"source -mount-ro "*) sleep 1000 & wait;;`, "did not end within"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limit := time.Hour
			if strings.Contains(c.want, "within") {
				limit = time.Millisecond
			}
			_, err := compare(t, c.answers, limit)
			require.ErrorContains(t, err, c.want)
			require.Less(t, len(err.Error()), 2000)
		})
	}
}

// A difference that was found counts although an appliance fails later: its error is one more row.
func TestDifferenceBeforeAFailure(t *testing.T) {
	t.Parallel()
	found, err := compare(t, `"copy -mount-ro "*sda2*) exit 1;;
  *" -list-filesystems") printf '/dev/sda1: ext4\n/dev/sda2: ext4\n';;
  "copy -debug sh "*sha256sum*) listing 1 3 8 2; echo exit 0;;`, time.Hour)
	require.ErrorIs(t, err, errEnded)
	require.Contains(t, found,
		finding{"/dev/sda1: files of ext4", differs([4]int{7, 3, 8, 2}, [4]int{1, 3, 8, 2}), Differs})
	require.NotContains(t, fmt.Sprint(found), "sda2: files")
}

func TestAppliancesAreCancelled(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := compareFiles(ctx, "/bin/sh", t.TempDir(), disk{}, disk{}, time.Hour)
	require.ErrorIs(t, err, context.Canceled)
	_, err = compareFiles(t.Context(), filepath.Join(t.TempDir(), "absent"), t.TempDir(), disk{}, disk{}, time.Hour)
	require.Error(t, err)
}

func TestQuoted(t *testing.T) {
	t.Parallel()
	require.Equal(t, `"/a b/\"\\\x0a\xc3\xa9"`, quoted("/a b/\"\\\n\u00e9"))
}

// FuzzAnswers reads the answer of a session, and looks whether all of it is bounded.
func FuzzAnswers(f *testing.F) {
	f.Add([]byte("one\x00two\x00MARK\n"), true)
	f.Add([]byte("one\nlibguestfs: error: no\nMARK\n"), true)
	f.Add([]byte("/dev/sda1: ext4\nMARK\n"), false)
	f.Fuzz(func(t *testing.T, answer []byte, plain bool) {
		valid := isVolume().MatchString
		if plain {
			valid = anyLine
		}
		s := &session{out: bufio.NewReaderSize(bytes.NewReader(answer), mostLine), ctx: t.Context(), mark: "MARK"}
		lines, _ := s.answer(valid)
		require.LessOrEqual(t, s.said.Len(), mostSaid)
		require.LessOrEqual(t, len(lines), mostLines)
		for _, l := range lines {
			require.True(t, valid(l))
			require.LessOrEqual(t, len(l), mostLine)
		}
	})
}
