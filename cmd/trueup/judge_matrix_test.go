package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/opinion"
)

// judgedVolume is a volume that libguestfs gets to see.
type judgedVolume struct {
	kind   string // of soakKinds, or one that makePart knows
	size   int64
	device string // under which libguestfs finds its files, empty: it has none to find
	looks  string // as which it looks at them
	check  string // that it runs
}

// judgedVolumes lie on one disk.
var judgedVolumes = []judgedVolume{
	{"ext4", 12 * mib, "/dev/sda1", "ext4", "e2fsck -f -n"},
	{"fat16", 18 * mib, "/dev/sda2", "vfat", "fsck.fat -n"},
	{"ntfs", 8 * mib, "/dev/sda3", "ntfs", "ntfsfix -n"},
	{"xfs", 34 * mib, "/dev/sda4", "xfs", "xfs_repair -n"},
	{"btrfs", 22 * mib, "/dev/sda5", "btrfs", "btrfs check --readonly"},
	{"exfat", 8 * mib, "/dev/sda6", "exfat", "fsck.exfat -n"},
	{"lvm", 12 * mib, "/dev/volumes/data", "ext4", "e2fsck -f -n"},
	{kind: "luks", size: 18 * mib},
	{kind: "swap", size: 1 * mib},
	{kind: "noise", size: 1 * mib},
}

// words are the bytes of a file on a volume, and of one that has no files.
func (v judgedVolume) words() []byte { return noise("words on "+v.kind, 20_000) }

// makePart makes the volume in a file of its own.
func (v judgedVolume) makePart(t *testing.T, part string) {
	t.Helper()
	s := soakVolume{
		soakKind: soakKind{name: v.kind}, sector: sectorSize, size: v.size, noise: "words on " + v.kind,
		group: "volumes", files: map[string][]byte{"words": v.words()},
	}
	switch v.kind {
	case "exfat": // the appliance puts its file there
		require.NoError(t, os.WriteFile(part, exfatTools(t, v.size, 0), 0o600))
	case "luks":
		disktest.MakeBlank(t, part, v.size)
		disktest.RunInput(t, "the key", "cryptsetup", "luksFormat", "--batch-mode", "--pbkdf", "pbkdf2",
			"--pbkdf-force-iterations", "1000", "--key-file=-", part)
		disktest.WriteAt(t, part, v.size-mib, v.words())
	default:
		s.make(t, part)
	}
}

// judgedDisk makes a disk of the volumes, each off all boundaries.
func judgedDisk(t *testing.T) string {
	t.Helper()
	raw := disktest.Blank(t, "disk.raw", 160*mib)
	table := "label: gpt\nfirst-lba: 34\n"
	start := int64(trackSectors)
	for _, v := range judgedVolumes {
		part := filepath.Join(t.TempDir(), "part")
		v.makePart(t, part)
		if v.kind == "exfat" {
			path := filepath.Join(t.TempDir(), "words")
			require.NoError(t, os.WriteFile(path, v.words(), 0o600))
			startGuestfish(t, "guestfish", fmt.Sprintf(
				"add-drive %q format:raw\nrun\nmount /dev/sda /\nupload %q /words\numount /\n", part, path))
		}
		placeVolume(t, part, raw, start*sectorSize)
		table += fmt.Sprintf("start=%d, size=%d\n", start, v.size/sectorSize)
		start += v.size/sectorSize + 1
	}
	disktest.RunInput(t, table, "sfdisk", "-q", raw)
	return raw
}

// TestOpinions has both judges look at a copy of each kind of volume, and at one in which a byte of each differs.
// `make opinions` runs it.
func TestOpinions(t *testing.T) {
	if os.Getenv("TRUEUP_OPINIONS") == "" {
		t.Skip("make opinions runs it: seven appliances of libguestfs")
	}
	requireKernel(t)
	t.Run("each kind", func(t *testing.T) {
		source := judgedDisk(t)
		good, bad := map[string]opinion.Verdict{}, map[string]opinion.Verdict{}
		for i, v := range judgedVolumes {
			partition := fmt.Sprintf("/dev/sda%d", i+1)
			if v.device != partition {
				good[partition] = opinion.NotLooked
			}
			if v.device != "" {
				good[v.device+": "+v.check] = opinion.Agrees
				good[v.device+": files of "+v.looks] = opinion.Agrees
				bad[v.device+": files of "+v.looks] = opinion.Differs
			}
			if v.kind == "xfs" { // Debian packs its check apart (libguestfs-xfs), and the tests do without it
				good[v.device+": "+v.check] = opinion.NotLooked
			}
		}
		for asked, verdict := range good {
			if bad[asked] == "" {
				bad[asked] = verdict
			}
		}
		dest := requireAgree(t, "align", source, good)

		data := disktest.ReadFile(t, dest)
		for _, v := range judgedVolumes {
			if at := bytes.Index(data, v.words()[:sectorSize]); v.kind != "swap" {
				require.Positive(t, at, v.kind)
				disktest.WriteAt(t, dest, int64(at), []byte{data[at] ^ 1})
			}
		}
		r, rows := judgesSay(t, opinion.All, source, dest)
		require.Equal(t, 5, r.code, r.stderr)
		require.Equal(t, bad, ofLibguestfs(rows), "%v", rows)
	})
	t.Run("no table", func(t *testing.T) {
		source := filepath.Join(t.TempDir(), "disk.raw")
		judgedVolumes[3].makePart(t, source)
		requireAgree(t, "convert", source, map[string]opinion.Verdict{
			"/dev/sda: xfs_repair -n": opinion.NotLooked, "/dev/sda: files of xfs": opinion.Agrees,
		})
	})
	t.Run("BitLocker", func(t *testing.T) {
		source, _ := bitlkDisk(t, bitlkVolumes(t)["bitlk-aes-xts-128-crc"])
		requireAgree(t, "align", source, map[string]opinion.Verdict{
			"/dev/sda1": opinion.NotLooked,
		})
	})
}

// requireAgree has a job make a copy, and both judges judge it: libguestfs gives the wanted answers. It returns the
// copy.
func requireAgree(t *testing.T, job, source string, want map[string]opinion.Verdict) (dest string) {
	t.Helper()
	dest = filepath.Join(t.TempDir(), "copy.raw")
	require.Equal(t, 0, trueup(t, job, "--to", "raw", source, dest).code)
	r, rows := judgesSay(t, opinion.All, source, dest)
	require.Equal(t, 0, r.code, r.stderr)
	require.Equal(t, want, ofLibguestfs(rows), "%v", rows)
	return dest
}
