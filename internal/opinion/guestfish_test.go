package opinion

import (
	"bufio"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// conversation is a guestfish that answers as the one of libguestfs 1.48. It finds one file system with two files, and
// no operating system. A case stands before its own answers, with $side for the disk that it has.
const conversation = `#!/bin/sh
sums() { for name; do printf '%%s  ./%%s\n' $(printf %%064d 7) "$name"; done; }
fails() { echo "*stdin*:5: libguestfs: error: $1"; }
check() { printf '%%s\n' "$@"; }
while IFS= read -r line; do
  case "$line" in
  "-add-drive "*/source*) side=source;;
  "-add-drive "*/copy*) side=copy;;
  esac
  case "$side $line" in
  %s
  *" -add-drive "*|*" -run"|*" -mount-ro "*|*" -umount-all"|*" -inspect-os"|*" -list-partitions") ;;
  *" -version") printf 'major: 1\nminor: 48\nrelease: 6\nextra: \n';;
  *" -list-filesystems") echo '/dev/sda1: ext4';;
  *" -debug sh "*) check 'all is well' 'exit 0';;
  *" -find0 "*) printf 'one\0two\nlines\0';;
  *" -checksums-out "*) sums one two;;
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
	path := filepath.Join(t.TempDir(), "guestfish")
	disktest.RunInput(t, fmt.Sprintf(conversation, answers), "sh", "-c", `cat > "$0" && chmod 755 "$0"`, path)
	version, rows, err := compareFiles(t.Context(), path, t.TempDir(), disk{socket: "/a/source", sectorSize: 512},
		disk{path: "/b \"quoted\"/copy", format: "vmdk", sectorSize: 4096}, limit)
	if err == nil {
		require.Equal(t, "1.48.6", version)
	}
	for _, r := range rows {
		found = append(found, finding{r.Asked, r.Said, r.Verdict})
	}
	return found, err
}

func TestWhatAppliancesSay(t *testing.T) {
	t.Parallel()
	const files, check = "/dev/sda1: files of ext4", "/dev/sda1: e2fsck -f -n"
	const noSystem = "found no operating system on either disk"
	clean := finding{check, "no error", Agrees}
	equal := finding{files, "all names (2) and the SHA-256 of all regular files (2) are equal", Agrees}
	none := finding{"inspect-os", noSystem, NotLooked}
	for name, c := range map[string]struct {
		answers string
		want    []finding
	}{
		"the same": {"", []finding{clean, equal, none}},
		"another content": {
			`"copy -checksums-out "*) sums one; printf '%064d  ./two\n' 8;;`,
			[]finding{clean, {files, `SHA-256 differs: "./two"`, Differs}, none},
		},
		"all contents differ": {
			`"copy -checksums-out "*) for n in one two; do printf '%064d  ./%s\n' 8 $n; done;;`,
			[]finding{clean, {files, `SHA-256 differs: "./one", and 1 more`, Differs}, none},
		},
		"a file too many": {
			`"copy -find0 "*) printf 'one\0two\nlines\0three\0';;`,
			[]finding{clean, {files, `names differ: "three"`, Differs}, none},
		},
		"files are missing": {
			`"copy -find0 "*) ;;`, []finding{clean, {files, `names differ: "one"`, Differs}, none},
		},
		"a sum is missing": {
			`"copy -checksums-out "*) sums one;;`,
			[]finding{clean, {files, `SHA-256 differs: "./two"`, Differs}, none},
		},
		"a file cannot be read, on either disk": {
			`*" -checksums-out "*) sums one; fails "two: Input/output error";;`,
			[]finding{clean, {
				files, "equal SHA-256 for 1 of them; the others cannot be read on either disk: two: Input/output error",
				NotLooked,
			}, none},
		},
		"a file cannot be read in the copy": {
			`"copy -checksums-out "*) sums one two; fails "pipeline failed";;`,
			[]finding{clean, {files, "SHA-256 differs: SOURCE: ; DEST: pipeline failed", Differs}, none},
		},
		"mounted on neither": {
			`*" -mount-ro "*) fails "mount_ro: unknown filesystem type";;`,
			[]finding{clean, {
				files, "cannot be mounted on either disk: mount_ro: unknown filesystem type", NotLooked,
			}, none},
		},
		"not mounted in the copy": {
			`"copy -mount-ro "*) fails "bad superblock";;`,
			[]finding{clean, {files, "cannot be mounted on DEST: bad superblock", Differs}, none},
		},
		"other file systems": {
			`"copy -list-filesystems") echo '/dev/sda1: ext4'; echo '/dev/sda2: swap';;`,
			[]finding{{
				"file systems", "SOURCE has /dev/sda1: ext4, DEST has /dev/sda1: ext4, /dev/sda2: swap", Differs,
			}, none},
		},
		"no file system": {
			`*" -list-filesystems") ;;`, []finding{{"file systems", "found none on either disk", NotLooked}, none},
		},
		"locked": {
			`*" -list-filesystems") echo '/dev/sda1: swap'; echo '/dev/vg/a: ext4';;
			*" -list-partitions") for i in 1 2 3 4; do echo /dev/sda$i; done;;
			*" -vfs-type "*sda2*) echo BitLocker;; *" -vfs-type "*sda3*) echo LVM2_member;; *" -vfs-type "*sda4*) ;;`,
			[]finding{
				{"/dev/sda1", "its content (swap) has no files to read here", NotLooked},
				{"/dev/vg/a: e2fsck -f -n", "no error", Agrees},
				{"/dev/vg/a: files of ext4", equal.said, Agrees},
				{"/dev/sda2", "its content (BitLocker) has no files to read here", NotLooked},
				{"/dev/sda3", "its content (LVM2_member) has no files to read here", NotLooked},
				none,
			},
		},
		"another lock": {
			`*" -list-partitions") echo /dev/sda2;; *" -list-filesystems") ;; *" -vfs-type "*) echo "$side";;`,
			[]finding{{"/dev/sda2", "its content is source on SOURCE, copy on DEST", Differs}, none},
		},
		"another partition": {
			`"source -list-partitions") echo /dev/sda2;;`,
			[]finding{clean, equal, {"list-partitions", "SOURCE has /dev/sda2, DEST has none", Differs}, none},
		},
		"errors on both": {
			`*" -debug sh "*) check 'Pass 1' 'errors remain' 'exit 4';;`,
			[]finding{
				{check, "ends with exit 4 on both: SOURCE has the same errors (errors remain)", Agrees},
				equal, none,
			},
		},
		"a check that does not begin": {
			`*" -debug sh "*) check 'unsupported feature' 'exit 8';;`,
			[]finding{
				{check, "ends with exit 8 on both, and checked nothing (unsupported feature)", NotLooked},
				equal, none,
			},
		},
		"errors in the copy": {
			`"copy -debug sh "*) check 'errors remain' 'exit 4';;`,
			[]finding{{
				check, "ends with exit 0 on SOURCE (all is well), with exit 4 on DEST (errors remain)", Differs,
			}, equal, none},
		},
		"no checker": {
			`*" -debug sh "*) echo absent;;`,
			[]finding{{check, "the appliance lacks this program", NotLooked}, equal, none},
		},
		"a system": {
			`*" -inspect-os") echo /dev/sda1;;` + "\n" + `*" -inspect-get-product-name "*) echo 'Windows XP';;`,
			[]finding{clean, equal, {"inspect-os", "/dev/sda1 has Windows XP", Agrees}},
		},
		"another system": {
			`*" -inspect-os") echo /dev/sda1;;` + "\n" + `*" -inspect-get-product-name "*) echo "$side's own";;`,
			[]finding{clean, equal, {
				"inspect-os", "/dev/sda1 has source's own on SOURCE, copy's own on DEST", Differs,
			}},
		},
		"the system is gone": {
			`"source -inspect-os") echo /dev/sda1;;`,
			[]finding{clean, equal, {"inspect-os", "SOURCE has a system on /dev/sda1, DEST on none", Differs}},
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

// What did not come to an end is an error, and no agreement.
func TestAppliancesThatFail(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ answers, want string }{
		"takes no drive": {
			`"copy -add-drive "*) fails 'no such file';;`,
			`takes no such drive: "no such file"`,
		},
		"does not start":      {`*" -run") fails 'no kernel';;`, `does not start: "no kernel"`},
		"ends at once":        {`*" -add-drive "*) exit 1;;`, "guestfish"},
		"ends in an answer":   {`"copy -checksums-out "*) sums one; exit 1;;`, errEnded.Error()},
		"is killed":           {`"source -run") kill -9 $$;;`, errEnded.Error()},
		"has no version":      {`*" -version") echo none;;`, "prints no version"},
		"lists garbage":       {`"copy -list-filesystems") fails 'daemon died';;`, "daemon died"},
		"a check without end": {`"copy -debug sh "*) echo something;;`, "gave no exit code"},
		"a line without end":  {`"copy -find0 "*) head -c 200000 /dev/zero | tr '\0' x;;`, errItem.Error()},
		"an error without end": {
			`"copy -umount-all") while echo 'libguestfs: error: x' || exit; do :; done;;`,
			"did not end within",
		},
		"hangs":                   {`"copy -checksums-out "*) sums one; sleep 1000;;`, "did not end within"},
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

func TestAppliancesAreCancelled(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, err := compareFiles(ctx, "/bin/sh", t.TempDir(), disk{}, disk{}, time.Hour)
	require.ErrorIs(t, err, context.Canceled)
	_, _, err = compareFiles(t.Context(), filepath.Join(t.TempDir(), "absent"), t.TempDir(), disk{}, disk{}, time.Hour)
	require.Error(t, err)
}

func TestQuoted(t *testing.T) {
	t.Parallel()
	require.Equal(t, `"/a b/\"\\\x0a\xc3\xa9"`, quoted("/a b/\"\\\n\u00e9"))
}

// FuzzAnswers reads answers of two sessions, and looks whether all of it is bounded.
func FuzzAnswers(f *testing.F) {
	f.Add([]byte("one\x00two\x00MARK\n"), []byte("one\x00libguestfs: error: no\nMARK\n"), true)
	f.Add([]byte("/dev/sda1: ext4\nMARK\n"), []byte("x"), false)
	f.Fuzz(func(t *testing.T, a, b []byte, zero bool) {
		open := func(b []byte) *session {
			return &session{out: bufio.NewReader(strings.NewReader(string(b))), ctx: t.Context(), mark: "MARK"}
		}
		sep, valid := byte('\n'), isVolume().MatchString
		if zero {
			sep, valid = 0, anyLine
		}
		var all [][]string
		for _, s := range []*session{open(a), open(b)} {
			var items []string
			for {
				item, ok, err := s.next(sep, valid)
				require.LessOrEqual(t, s.said.Len(), mostSaid)
				require.LessOrEqual(t, len(item), mostItem)
				if !ok || err != nil {
					require.NotErrorIs(t, err, context.Canceled)
					break
				}
				require.True(t, valid(item))
				items = append(items, item)
			}
			all = append(all, items)
		}
		p := pair{source: open(a), dest: open(b)}
		c, err := p.streams(sep, valid)
		if err == nil && c.differs == "" {
			require.True(t, slices.Equal(all[0], all[1]))
		}
	})
}
