package windows_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/boot/windows"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/boottest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/hiveforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/fs/ntfs"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
)

// ntfsSectors is the length of the partition of an ntfsDisk, and ntfsCluster its cluster size in bytes.
const ntfsSectors, ntfsCluster = 10000, 4096

// ntfsDisk is the disk of these tests with an NTFS in its second partition.
type ntfsDisk struct {
	forge.Bytes
	fs guestfile.FS
}

// newNTFSDisk fills the NTFS with wimlib, which needs no mount.
func newNTFSDisk(t testing.TB, files map[string][]byte) *ntfsDisk {
	t.Helper()
	volume, tree, wim := filepath.Join(t.TempDir(), "ntfs"), t.TempDir(), filepath.Join(t.TempDir(), "wim")
	for name, b := range files {
		name = filepath.Join(tree, filepath.FromSlash(name))
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o700))
		require.NoError(t, os.WriteFile(name, b, 0o600))
	}
	list := filepath.Join(t.TempDir(), "list")
	require.NoError(t, os.WriteFile(list, []byte("[ExclusionList]\n"), 0o600)) // otherwise wimlib omits hiberfil.sys
	require.NoError(t, os.WriteFile(volume, make([]byte, ntfsSectors*512), 0o600))
	disktest.Run(t, "mkntfs", "-F", "-q", "-c", fmt.Sprint(ntfsCluster), "-p", "40063", "-H", "255", "-S", "63", volume)
	disktest.Run(t, "wimcapture", "--no-acls", "--compress=none", "--config="+list, tree, wim)
	disktest.Run(t, "wimapply", wim, "1", volume)
	b, err := os.ReadFile(volume)
	require.NoError(t, err)
	d := &ntfsDisk{Bytes: windowsDisk(t, nil)}
	d.Put(secondStart, b)
	d.fs, err = ntfs.Open(guestfile.NewBudget(), disk.Section(boottest.Disk(b), disk.Range{Len: int64(len(b))}))
	require.NoError(t, err)
	return d
}

// cluster returns the number of the cluster with a byte of a file.
func (d *ntfsDisk) cluster(t testing.TB, path string, off int64) int64 {
	t.Helper()
	f, err := d.fs.Open(path)
	require.NoError(t, err)
	at, err := f.Where(off, 1)
	require.NoError(t, err)
	return at[0].Off / ntfsCluster
}

// onRecord is an operation on a record of the MFT.
func (d *ntfsDisk) onRecord(t testing.TB, op uint16, n int64, redo []byte) []byte {
	t.Helper()
	return fsforge.OnRecord(op, n, d.cluster(t, "$MFT", 0), redo)
}

// trace returns the records on the path to a file.
func (d *ntfsDisk) trace(t testing.TB, path string) ntfs.Trace {
	t.Helper()
	trace, err := d.fs.(ntfs.Volume).Trace(path)
	require.NoError(t, err)
	return trace
}

// used returns the disk with an open log that contains these records.
func (d *ntfsDisk) used(t testing.TB, records ...[]byte) forge.Bytes {
	t.Helper()
	f, err := d.fs.Open("$LogFile")
	require.NoError(t, err)
	l := fsforge.NewLogFile(f.Size())
	for _, r := range records {
		l.Add(r)
	}
	out := slices.Clone(d.Bytes)
	out.Put(secondStart+d.cluster(t, "$LogFile", 0)*ntfsCluster, l.Sealed())
	return out
}

// letterOf reports whether the letter of the NTFS is updated, with the issue about it.
func letterOf(t testing.TB, b []byte) (follows bool, issues []ondisk.Issue) {
	t.Helper()
	r := boottest.ReadGuest(t, boottest.GuestOf(t, b))
	follows = slices.ContainsFunc(stored(r), boot.Ref.Follows)
	return follows, append(boottest.Issues(r, "mounted-devices"), boottest.Issues(r, "ntfs-open")...)
}

// ntfsLetters is a SYSTEM with a letter of the NTFS.
func ntfsLetters() forge.Bytes {
	return systemHive(binaryValue(`\DosDevices\C:`, mounted(signature, secondStart)))
}

const ntfsSystem = "Windows/System32/config/SYSTEM"

// A position in a file of an NTFS that was in use is rewritten if the replay of its log changes nothing on the way to
// it: its bytes, its record, the folders on its path. For an open hive, its logs count too, and no names may be added
// or removed beside it.
func TestOpenLogOfNTFS(t *testing.T) {
	const mapping, times, toRoot, clusters = 0x09, 0x0b, 0x0c, 0x08
	hive, log := ntfsLetters(), ntfsSystem+".LOG1"
	old := slices.Clone(hive)
	old[len(old)-100]++
	for name, files := range map[string]map[string][]byte{
		"closed": {ntfsSystem: hive},
		"open":   {ntfsSystem: hiveforge.Dirty(old, 7), log: hiveforge.Log(old, 6, hive)},
	} {
		open := name == "open"
		if !open {
			files[log] = []byte("nothing") // which a closed hive does not need
		}
		t.Run(name, func(t *testing.T) {
			d := newNTFSDisk(t, files)
			own, beside := d.trace(t, ntfsSystem), d.trace(t, log)
			at := int64(bytes.Index(files[ntfsSystem], mounted(signature, secondStart)))
			other := make(forge.Bytes, 0x10) // the entry of a file in a folder
			other.U64(0, 7<<48|1000)
			for what, tc := range map[string]struct {
				pending [][]byte
				refused string
			}{
				"nothing":      {},
				"another file": {pending: [][]byte{d.onRecord(t, mapping, 1000, nil)}},
				"a cluster of another file": {pending: [][]byte{fsforge.OnCluster(clusters,
					d.cluster(t, ntfsSystem, 0)-1)}},
				"the bytes": {[][]byte{fsforge.OnCluster(clusters, d.cluster(t, ntfsSystem, at))}, "patched bytes"},
				"the file":  {[][]byte{d.onRecord(t, mapping, own.File[0], make([]byte, 8))}, "the file, record"},
				"a folder": {
					[][]byte{d.onRecord(t, mapping, own.Folders[1], make([]byte, 8))},
					"a folder of its path",
				},
				"the MFT": {[][]byte{d.onRecord(t, mapping, 0, make([]byte, 8))}, "writes $MFT, record 0"},
				"its log": {
					[][]byte{d.onRecord(t, times, beside.File[0], make([]byte, 8))},
					map[bool]string{true: "the file, record", false: ""}[open],
				},
				"a name beside it": {
					[][]byte{d.onRecord(t, toRoot, own.Parent[0], other)},
					map[bool]string{true: "a folder of its path", false: ""}[open],
				},
			} {
				follows, issues := letterOf(t, d.used(t, tc.pending...))
				require.Len(t, issues, 1, what)
				require.Equal(t, tc.refused == "", follows, "%s: %v", what, issues)
				if tc.refused == "" {
					require.Equal(t, "ntfs-open", issues[0].Code, what)
					require.Contains(t, issues[0].Text, fmt.Sprintf("its log (writes: %d) does not touch",
						len(tc.pending)))
					continue
				}
				require.Equal(t, ondisk.Unbootable, issues[0].Effect, what)
				require.Contains(t, issues[0].Text, "$LogFile of NTFS is open", what)
				require.Contains(t, issues[0].Text, tc.refused, what)
			}
		})
	}
}

// Without a readable log, and on a dirty volume, no position of an NTFS is rewritten.
func TestNTFSWithoutItsLog(t *testing.T) {
	d := newNTFSDisk(t, map[string][]byte{ntfsSystem: ntfsLetters()})
	wide := func(s string) (b []byte) {
		for _, c := range []byte(s) {
			b = append(b, c, 0)
		}
		return b
	}
	broken := d.used(t)
	broken.Put(secondStart+d.cluster(t, "$LogFile", 0)*ntfsCluster, bytes.Repeat([]byte("CHKD"), 4*ntfsCluster))
	for name, tc := range map[string]struct {
		disk []byte
		why  string
	}{
		"none":   {bytes.ReplaceAll(d.Bytes, wide("$LogFile"), wide("$LogFilf")), "NTFS has no $LogFile"},
		"broken": {broken, "$LogFile of NTFS cannot be read"},
		"of tomorrow": {
			d.used(t, d.onRecord(t, 0x30, 1000, nil)),
			"$LogFile of NTFS cannot be read, so it is unknown whether Windows was shut down cleanly: " +
				"$LogFile record of LSN 1050685: operation 0x30 at byte 0: not supported",
		},
		"empty": {d.Bytes, ""},
	} {
		follows, issues := letterOf(t, tc.disk)
		require.Equal(t, tc.why == "", follows, name)
		if tc.why != "" {
			require.Len(t, issues, 1, name)
			require.Contains(t, issues[0].Text, tc.why, name)
		}
	}
	dd := boottest.Disk(d.Bytes)
	tab, parts := boottest.Partitions(t, dd)
	parts[1].Volume.Issues = append(parts[1].Volume.Issues, ondisk.Issue{Code: "ntfs-dirty"})
	r := boottest.ReadGuest(t, boottest.Guest(dd, tab, parts))
	require.False(t, slices.ContainsFunc(stored(r), boot.Ref.Follows))
	require.Len(t, boottest.Issues(r, "mounted-devices"), 1)
	require.Contains(t, boottest.Issues(r, "mounted-devices")[0].Text, "NTFS is marked dirty")
}

// Each finder returns errors of its reads, even if another finder has made the same read before.
func TestEachReadOfAFinder(t *testing.T) {
	stale := systemHive(binaryValue(`\DosDevices\C:`, mounted(signature, nowhere)),
		binaryValue(`\DosDevices\D:`, mounted(elsewhere, nowhere)))
	letters := systemHive(binaryValue(`\DosDevices\C:`, mounted(signature, fatStart)),
		binaryValue(`\DosDevices\D:`, mounted(elsewhere, fatStart)))
	files := map[string][]byte{
		ntfsSystem: hiveforge.Dirty(stale, 7), ntfsSystem + ".LOG1": hiveforge.Log(stale, 6, letters),
		"Boot/BCD":     bootStore(element{"11000001", plain(mbrDevice(signature, fatStart))}),
		"hiberfil.sys": []byte("wake"), "boot.ini": menu(`C:\linux.bin="Linux"`), "linux.bin": saved(40063),
		"Windows/System32/Recovery/ReAgent.xml": []byte(agent(location("\n  ", "WinreLocation", fmt.Sprint(signature),
			"32256"))),
	}
	n := newNTFSDisk(t, files)
	pending := n.used(t, n.onRecord(t, 0x09, 1000, nil))
	pending.U8(tableforge.MBREntries, 0)
	pending.U8(tableforge.MBREntries+16, 0x80)
	d := boottest.Disk(pending)
	tab, parts := boottest.Partitions(t, d)
	for _, finder := range []boot.Finder{
		windows.Hibernation, windows.Folders, windows.BootIni, windows.BCD, windows.MountedDevices, windows.Recovery,
		windows.Logs,
	} {
		t.Run(finder.Name, func(t *testing.T) {
			disktest.EveryReadCounts(t, d, func(d disk.Disk) error {
				_, err := finder.Find(boottest.Guest(d, tab, parts))
				return err
			})
		})
	}
}

// crossing is a BCD with a partition offset across two sectors, four bytes in each. at is its position.
func crossing(t *testing.T) (f forge.Bytes, at int) {
	t.Helper()
	device := mbrDevice(signature, fatStart)
	for n := range 80 {
		f := bootStore(element{"11000001", make([]byte, 8*n)}, element{"21000001", plain(device)})
		if at := bytes.Index(f, device) + 0x10; at%512 == 508 {
			return f, at
		}
	}
	t.Fatal("no such length")
	return nil, 0
}

// A position of which Windows logged only one sector is in the hive and in the log. Each byte is rewritten once.
func TestPositionInHiveAndLog(t *testing.T) {
	want, at := crossing(t)
	for name, tc := range map[string]struct {
		hive  func(f forge.Bytes) // further content of the hive
		bytes int
	}{
		"half of it is old":                   {func(f forge.Bytes) { f[at+7]++ }, 8},
		"a neighbour is":                      {func(f forge.Bytes) { f[at+40]++ }, 12},
		"the old one means another partition": {func(f forge.Bytes) { f.U32(int64(at), secondStart) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			hive := slices.Clone(want)
			tc.hive(hive)
			r := boottest.Read(t, windowsDisk(t, map[string][]byte{
				"Boot/BCD":     hiveforge.Dirty(hive, 8),
				"Boot/BCD.LOG": hiveforge.OldLog(hive, 2, want),
			}))
			rewritten := map[int64]byte{}
			for _, ref := range stored(r) {
				if !ref.Follows() {
					continue
				}
				patches, err := ref.Patches(0, 0x1122334455667788)
				require.NoError(t, err)
				for _, p := range patches {
					for i, b := range p.New {
						off := p.Off + int64(i)
						require.NotContains(t, rewritten, off)
						rewritten[off] = b
					}
				}
			}
			require.Len(t, rewritten, tc.bytes)
		})
	}
}

// Positions are read from a hive and its logs. If no log fits, or the logs have two formats, the reason is reported.
func TestHotHives(t *testing.T) {
	c := binaryValue(`\DosDevices\C:`, mounted(signature, fatStart))
	stale := systemHive(binaryValue(`\DosDevices\C:`, mounted(signature, nowhere)))
	want := systemHive(c)
	const file = "WINDOWS/system32/config/SYSTEM"
	for name, tc := range map[string]struct {
		logs  map[string]forge.Bytes
		fates []string
		issue string // beginning of the reason; may be empty
	}{
		"in the log only": {
			map[string]forge.Bytes{".LOG1": hiveforge.Log(stale, 6, want)},
			[]string{"drive letter C:: 6320640 stays", "drive letter C:: 32256 follows 1"},
			"",
		},
		"an old log": {
			map[string]forge.Bytes{".LOG": hiveforge.OldLog(stale, 1, want)},
			[]string{"drive letter C:: 6320640 stays", "drive letter C:: 32256 follows 1"},
			"",
		},
		"no log fits": {
			map[string]forge.Bytes{".LOG1": hiveforge.Log(stale, 5, want)},
			[]string{"drive letter C:: 6320640 stays"},
			"no log fits",
		},
		"logs of two kinds": {map[string]forge.Bytes{
			".LOG1": hiveforge.Log(stale, 6, want),
			".LOG":  hiveforge.OldLog(stale, 1, want),
		}, []string{"drive letter C:: 6320640 stays"}, "two formats"},
	} {
		t.Run(name, func(t *testing.T) {
			files := map[string][]byte{file: hiveforge.Dirty(stale, 7)}
			for suffix, log := range tc.logs {
				files[file+suffix] = log
			}
			r := boottest.Read(t, windowsDisk(t, files))
			require.Equal(t, tc.fates, fates(stored(r)))
			issues := boottest.Issues(r, "mounted-devices")
			if tc.issue == "" {
				require.Empty(t, issues)
				require.Len(t, boottest.Issues(r, "hive-open"), 1)
				return
			}
			require.Len(t, issues, 1)
			require.Contains(t, issues[0].Text, tc.issue)
		})
	}
}

// A Windows 2000 may start from the mirror of an open SYSTEM. The mirror of a closed one does not matter.
func TestMirrorOfAnOpenHive(t *testing.T) {
	c := systemHive(binaryValue(`\DosDevices\C:`, mounted(signature, fatStart)))
	stale := systemHive(binaryValue(`\DosDevices\C:`, mounted(signature, nowhere)))
	const file = "WINNT/system32/config/SYSTEM"
	for name, tc := range map[string]struct {
		hive, mirror forge.Bytes
		fates        []string
		refused      string
	}{
		"open":   {hiveforge.Dirty(stale, 7), c, []string{"stays", "follows 1", "follows 1"}, ""},
		"closed": {c, hiveforge.Dirty(c, 7), []string{"follows 1"}, ""},
		"both": {
			hiveforge.Dirty(stale, 7), hiveforge.Dirty(c, 7),
			[]string{"stays", "follows 1", "stays"},
			"SYSTEM.ALT of partition 1 names",
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := boottest.Read(t, windowsDisk(t, map[string][]byte{
				file: tc.hive, file + ".LOG": hiveforge.OldLog(stale, 2, c), file + ".ALT": tc.mirror,
				file + ".ALT.ALT": c, // there is no mirror of a mirror
			}))
			var got []string
			for _, fate := range fates(stored(r)) {
				_, after, _ := strings.Cut(fate, ":: ")
				_, after, _ = strings.Cut(after, " ")
				got = append(got, after)
			}
			require.Equal(t, tc.fates, got)
			issues := boottest.Issues(r, "mounted-devices")
			require.Equal(t, tc.refused != "", len(issues) == 1)
			if tc.refused != "" {
				require.Contains(t, issues[0].Text, tc.refused)
			}
		})
	}
}

// One checksum covers several positions: it is that of the entry with all of them rewritten.
func TestSealOfAnEntry(t *testing.T) {
	stale := systemHive(binaryValue(`\DosDevices\C:`, mounted(signature, nowhere)),
		binaryValue(`\DosDevices\D:`, mounted(signature, nowhere)))
	want := systemHive(binaryValue(`\DosDevices\C:`, mounted(signature, fatStart)),
		binaryValue(`\DosDevices\D:`, mounted(signature, secondStart)))
	const file = "WINDOWS/system32/config/SYSTEM"
	image := windowsDisk(t, map[string][]byte{
		file: hiveforge.Dirty(stale, 7), file + ".LOG1": hiveforge.Log(stale, 6, want),
	})
	var patches []disk.Patch
	var seal *boot.Seal
	for _, r := range stored(boottest.Read(t, image)) {
		if r.Follows() {
			p, err := r.Patches(0, r.Points+0x10000)
			require.NoError(t, err)
			patches = append(patches, p...)
			require.Len(t, r.Seals, 1)
			require.True(t, seal == nil || seal == r.Seals[0], "one entry")
			seal = r.Seals[0]
		}
	}
	require.Len(t, patches, 2)
	require.Empty(t, seal.Patches(0, nil), "nothing changed")
	patches = append(patches, seal.Patches(0, patches)...)
	for _, p := range patches {
		require.Equal(t, p.Old, []byte(image[p.Off:][:len(p.Old)]), p.Reason)
		image.Put(p.Off, p.New)
	}
	at := bytes.Index(image, []byte("HvLE"))
	require.Positive(t, at)
	entry := image[at:]
	entry = entry[:binary.LittleEndian.Uint32(entry[4:])]
	sealed := slices.Clone(entry)
	hiveforge.SealEntry(sealed)
	require.Equal(t, sealed, entry)
	got := fates(stored(boottest.Read(t, image)))
	require.Equal(t, []string{
		fmt.Sprintf("drive letter C:: %d stays", nowhere), fmt.Sprintf("drive letter D:: %d stays", nowhere),
		fmt.Sprintf("drive letter C:: %d stays", fatStart+0x10000), fmt.Sprintf("drive letter D:: %d stays",
			secondStart+0x10000),
	}, got, "the log is read with its new positions, where nothing starts yet")
}

// A limit applies to one state: many entries that touch the letters are no reason to refuse, nor to omit the guest's
// initial state.
func TestLimitsCountOneState(t *testing.T) {
	var values []hiveforge.Value
	for i := range 20 {
		values = append(values, binaryValue(fmt.Sprintf(`\DosDevices\%c:`, 'C'+i), mounted(signature, fatStart)),
			binaryValue(fmt.Sprint("other", i), mounted(elsewhere, fatStart)))
	}
	hive := systemHive(values...)
	at := bytes.Index(hive, []byte("other0"))
	var steps []forge.Bytes
	for i := range 60 {
		to := slices.Clone(hive)
		to[at] = byte('p' + i%2)
		steps = append(steps, to)
	}
	const file = "WINDOWS/system32/config/SYSTEM"
	r := boottest.Read(t, windowsDisk(t, map[string][]byte{
		file: hiveforge.Dirty(hive, 7), file + ".LOG1": hiveforge.Log(hive, 6, steps...),
	}))
	require.Empty(t, boottest.Issues(r, "mounted-devices"))
	count := map[string]int{}
	for _, ref := range stored(r) {
		count[ref.File]++
	}
	require.Equal(t, map[string]int{file: 40, file + ".LOG1": 40 * 60}, count)
	require.Zero(t, r.Unlisted)
}
