package vhdx_test

import (
	"bytes"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/vhdxforge"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/ondisk"
)

// dirty is a disk of 8 blocks, of which the first four are stored.
func dirty(logMiB int64) (*vhdxforge.File, []byte) {
	data := imagetest.Noise(31, 8*mib)
	clear(data[4*mib:])
	return vhdxforge.New(vhdxforge.Layout{Size: 8 * mib, LogMiB: logMiB}).Fill(data), data
}

// present is the value of a BAT entry of a stored block.
func present(off int64) uint64 { return uint64(off)/mib<<20 | vhdxforge.Present }

// second is the second entry of a log; it changes nothing.
func second(v *vhdxforge.File) vhdxforge.Entry {
	at := v.Blocks + 3*mib
	return vhdxforge.Entry{
		Sequence: 2,
		Changes:  []vhdxforge.Change{{Off: at, Data: bytes.Clone(v.Bytes[at : at+4096])}},
	}
}

// aroundTheEnd has an entry that begins at the end of the ring and continues at its start, and possibly another one.
func aroundTheEnd(another bool) (*vhdxforge.File, []byte) {
	v, want := dirty(1)
	entries := []vhdxforge.Entry{{Sequence: 3}}
	for i := range int64(4) {
		data := bytes.Repeat([]byte{byte('a' + i)}, 4*kib)
		entries[0].Changes = append(entries[0].Changes, vhdxforge.Change{Off: v.Blocks + i*4*kib, Data: data})
		copy(want[i*4*kib:], data)
	}
	if another {
		zero := vhdxforge.Change{Off: v.Blocks, Zero: 4 * kib}
		entries = append(entries, vhdxforge.Entry{Sequence: 4, Changes: []vhdxforge.Change{zero}})
		clear(want[:4*kib])
	}
	v.Dirty(mib-12*kib, entries...)
	return v, want
}

// growing has an entry for a block behind the end of the file, which possibly ends with zeros.
func growing(zeros bool) (*vhdxforge.File, []byte) {
	v, want := dirty(1)
	end := int64(len(v.Bytes))
	copy(want[6*mib+8*kib:], bytes.Repeat([]byte("grown..."), 512))
	changes := []vhdxforge.Change{
		v.Sector(v.Entry(6), present(end)), {Off: end + 8*kib, Data: want[6*mib+8*kib:][:4096]},
	}
	if zeros {
		changes = append(changes, vhdxforge.Change{Off: end + 12*kib, Zero: mib - 12*kib})
	}
	v.Dirty(0, vhdxforge.Entry{Sequence: 1, Last: end + mib, Changes: changes})
	return v, want
}

// notByQemu lists logs that qemu 7.2 does not replay according to the specification: it reads several sectors of
// descriptors to one place, treats the entries at the start of the ring as a separate sequence, and does not let the
// file grow to a whole MiB.
var notByQemu = map[string]bool{
	"many descriptors": true, "sequence around the end of the ring": true,
	"a file that grows to its last offset": true,
}

// replays are logs, and the content of the disk after their replay. Expected bytes come from the entries; qemu-img,
// which replays a log into the file, agrees.
var replays = map[string]func() (*vhdxforge.File, []byte){
	"data": func() (*vhdxforge.File, []byte) {
		v, want := dirty(1)
		at := v.AddBlock(5, vhdxforge.NotPresent, bytes.Repeat([]byte("new"), 1000))
		copy(want[5*mib:], v.Bytes[at:])
		v.Dirty(0, vhdxforge.Entry{Sequence: 1, Changes: []vhdxforge.Change{v.Sector(v.Entry(5), present(at))}})
		return v, want
	},
	"zeros and payload": func() (*vhdxforge.File, []byte) {
		v, want := dirty(1)
		patch := bytes.Repeat([]byte("payload!"), 512)
		clear(want[mib+8*kib : mib+24*kib])
		copy(want[mib+12*kib:], patch)
		copy(want[2*mib-4*kib:], patch)
		clear(want[2*mib : 3*mib])
		v.Dirty(16*kib,
			vhdxforge.Entry{Sequence: 70, Changes: []vhdxforge.Change{
				{Off: v.Blocks + mib + 16*kib, Data: patch},
				{Off: v.Blocks + mib + 8*kib, Zero: 16 * kib},
				{Off: v.Blocks + 2*mib - 4*kib, Zero: mib + 4*kib},
			}},
			vhdxforge.Entry{Sequence: 71, Changes: []vhdxforge.Change{
				{Off: v.Blocks + 2*mib - 4*kib, Data: patch},
				{Off: v.Blocks + mib + 12*kib, Data: patch},
			}},
		)
		return v, want
	},
	"many descriptors": func() (*vhdxforge.File, []byte) {
		v, want := dirty(2)
		e := vhdxforge.Entry{Sequence: 1 << 40}
		for i := range int64(300) { // three sectors of descriptors
			c := vhdxforge.Change{Off: v.Blocks + i%200*8*kib, Zero: 4 * kib}
			clear(want[i%200*8*kib:][:4*kib])
			if i%3 == 0 {
				c = vhdxforge.Change{Off: c.Off, Data: bytes.Repeat([]byte{byte(i), 1, 2, 3}, kib)}
				copy(want[i%200*8*kib:], c.Data)
			}
			e.Changes = append(e.Changes, c)
		}
		v.Dirty(0, e)
		return v, want
	},
	"entry around the end of the ring":    func() (*vhdxforge.File, []byte) { return aroundTheEnd(false) },
	"sequence around the end of the ring": func() (*vhdxforge.File, []byte) { return aroundTheEnd(true) },
	"torn last entry": func() (*vhdxforge.File, []byte) {
		v, want := dirty(1)
		clear(want[:4*kib])
		zero := []vhdxforge.Change{{Off: v.Blocks, Zero: 4 * kib}}
		at := v.Dirty(0, vhdxforge.Entry{Sequence: 1, Changes: zero}, second(v),
			vhdxforge.Entry{Sequence: 3, Changes: []vhdxforge.Change{
				{Off: v.Blocks + mib, Data: make([]byte, 4096)}, {Off: v.Blocks + 2*mib, Data: make([]byte, 4096)},
			}})
		clear(v.Bytes[v.Log+at[2]+8*kib:][:4*kib]) // its last sector was never written
		return v, want
	},
	"wrong checksum": func() (*vhdxforge.File, []byte) {
		v, want := dirty(1)
		clear(want[:4*kib])
		at := v.Dirty(0, vhdxforge.Entry{Sequence: 1, Changes: []vhdxforge.Change{{Off: v.Blocks, Zero: 4 * kib}}},
			vhdxforge.Entry{
				Sequence: 2,
				Changes:  []vhdxforge.Change{{Off: v.Blocks, Data: bytes.Repeat([]byte{1}, 4096)}},
			})
		v.Bytes[v.Log+at[1]+4*kib+100]++
		return v, want
	},
	"entries of an older log": func() (*vhdxforge.File, []byte) {
		v, want := dirty(1)
		clear(want[:4*kib])
		v.Dirty(0, vhdxforge.Entry{Sequence: 1, Changes: []vhdxforge.Change{{Off: v.Blocks, Zero: 4 * kib}}},
			vhdxforge.Entry{
				Sequence: 2, GUID: guidOf(5),
				Changes: []vhdxforge.Change{{Off: v.Blocks, Data: bytes.Repeat([]byte{1}, 4096)}},
			})
		return v, want
	},
	"an older sequence of the same log": func() (*vhdxforge.File, []byte) {
		v, want := dirty(1)
		clear(want[:4*kib])
		one := []vhdxforge.Change{{Off: v.Blocks, Data: bytes.Repeat([]byte{1}, 4096)}}
		v.Dirty(0, vhdxforge.Entry{Sequence: 5, Changes: one}, vhdxforge.Entry{Sequence: 6, Changes: one})
		v.Dirty(64*kib, vhdxforge.Entry{Sequence: 900, Changes: []vhdxforge.Change{{Off: v.Blocks, Zero: 4 * kib}}})
		v.Dirty(128*kib, vhdxforge.Entry{Sequence: 7, Changes: one})
		return v, want
	},
	"a file that grows":                    func() (*vhdxforge.File, []byte) { return growing(true) },
	"a file that grows to its last offset": func() (*vhdxforge.File, []byte) { return growing(false) },
	"region tables and metadata": func() (*vhdxforge.File, []byte) {
		// The log moves the BAT after the blocks.
		v, want := dirty(1)
		bat := int64(len(v.Bytes))
		v.Bytes = append(v.Bytes, v.Bytes[v.BAT:v.BAT+mib]...)
		clear(v.Bytes[v.BAT:v.Blocks])
		old := bytes.Clone(v.Bytes)
		v.SetRegions(vhdxforge.Region{GUID: vhdxforge.RegionBAT, Off: uint64(bat), Len: mib, Required: 1},
			vhdxforge.Region{GUID: vhdxforge.RegionMetadata, Off: uint64(v.Metadata), Len: mib, Required: 1})
		v.Seal()
		e := vhdxforge.Entry{Sequence: 1}
		for _, at := range []int64{vhdxforge.Regions1, vhdxforge.Regions2} {
			e.Changes = append(e.Changes, vhdxforge.Change{Off: at, Data: bytes.Clone(v.Bytes[at : at+4096])})
		}
		copy(v.Bytes, old)
		v.Dirty(0, e)
		return v, want
	},
}

func TestVHDXReplaysItsLogInMemory(t *testing.T) {
	for name, forged := range replays {
		t.Run(name, func(t *testing.T) {
			v, want := forged()
			dir := t.TempDir()
			img := imagetest.Open(t, imagetest.Write(t, dir, "disk.vhdx", v.Bytes))
			disktest.CheckBytes(t, img.Disk, want)
			issues, err := img.Check()
			require.NoError(t, err)
			for _, i := range issues {
				require.Equal(t, "orphaned-data", i.Code, i.Text)
			}
			require.Len(t, img.Issues, 1)
			require.Equal(t, "vhdx-log-replayed", img.Issues[0].Code)
			require.Equal(t, ondisk.Warn, img.Issues[0].Effect)

			if notByQemu[name] {
				return
			}
			// qemu replays into the file when it may write to it.
			copied := imagetest.Write(t, dir, "copy.vhdx", v.Bytes)
			disktest.Run(t, "qemu-img", "check", "-r", "all", "-f", "vhdx", copied)
			raw := filepath.Join(dir, "disk.img")
			disktest.Run(t, "qemu-img", "convert", "-f", "vhdx", "-O", "raw", copied, raw)
			disktest.CheckBytes(t, imagetest.Open(t, raw).Disk, want)
			require.Empty(t, imagetest.Open(t, copied).Issues, "qemu has marked the log as done")
		})
	}
}

// Data before the tail of the newest entry are in the file already, and may have been overwritten there since.
func TestVHDXReplayBeginsAtTheTail(t *testing.T) {
	v, want := dirty(1)
	clear(want[mib : mib+4*kib])
	old := vhdxforge.Entry{
		Sequence: 1, GUID: vhdxforge.LogID, Flushed: mib, Last: mib,
		Changes: []vhdxforge.Change{{Off: v.Blocks, Zero: 4 * kib}},
	}
	next := v.PutLog(0, old.Bytes())
	v.Dirty(next, vhdxforge.Entry{Sequence: 2, Changes: []vhdxforge.Change{{Off: v.Blocks + mib, Zero: 4 * kib}}})
	disktest.CheckBytes(t, imagetest.Open(t, imagetest.Write(t, t.TempDir(), "disk.vhdx", v.Bytes)).Disk, want)
}

// A log that Hyper-V had begun and not used is no reason to warn.
func TestVHDXLogWithoutChanges(t *testing.T) {
	v, want := dirty(1)
	v.Dirty(0, vhdxforge.Entry{Sequence: 1})
	img := imagetest.Open(t, imagetest.Write(t, t.TempDir(), "disk.vhdx", v.Bytes))
	disktest.CheckBytes(t, img.Disk, want)
	require.Len(t, img.Issues, 1)
	require.Equal(t, "vhdx-log-empty", img.Issues[0].Code)
	require.Equal(t, ondisk.Note, img.Issues[0].Effect)
}

func TestVHDXRefusesLogs(t *testing.T) {
	type entry = vhdxforge.Entry
	of := func(change func(e *entry)) func(v *vhdxforge.File) {
		return func(v *vhdxforge.File) {
			e := entry{Sequence: 1, Changes: []vhdxforge.Change{{Off: v.Blocks, Zero: 4 * kib}}}
			change(&e)
			v.Dirty(0, e)
		}
	}
	changed := func(change vhdxforge.Change, size int64, put func(e forge.Bytes)) func(v *vhdxforge.File) {
		return func(v *vhdxforge.File) {
			change.Off = v.Blocks
			at := v.Log + v.Dirty(0, entry{Sequence: 1, Changes: []vhdxforge.Change{change}})[0]
			put(v.Bytes[at:])
			vhdxforge.SealAt(v.Bytes, at, size)
		}
	}
	zero, data := vhdxforge.Change{Zero: 4 * kib}, vhdxforge.Change{Data: make([]byte, 4096)}
	const none = "want a sequence to replay"
	for name, tc := range map[string]struct {
		forge func(v *vhdxforge.File)
		says  string
	}{
		"no entry":   {func(v *vhdxforge.File) { v.Dirty(0) }, none},
		"wrong guid": {of(func(e *entry) { e.GUID = guidOf(1) }), none},
		"sequence 0": {of(func(e *entry) { e.Sequence = 0 }), none},
		"cut file": {
			of(func(e *entry) { e.Flushed = 100 * mib }), "flushed file offset 104857600, want at most",
		},
		"huge file": {of(func(e *entry) { e.Last = -mib }), "last file offset"},
		"far zeros": {
			of(func(e *entry) { e.Changes[0] = vhdxforge.Change{Off: 1 << 61, Zero: 1<<62 - 4096} }), none,
		},
		"odd zeros":                   {of(func(e *entry) { e.Changes[0].Zero = 512 }), none},
		"odd place":                   {of(func(e *entry) { e.Changes[0].Off += 512 }), none},
		"tail outside":                {changed(zero, 4096, func(e forge.Bytes) { e.U32(12, 64*kib) }), none},
		"other signature":             {changed(zero, 4096, func(e forge.Bytes) { e.Text(64, "none") }), none},
		"descriptor of another entry": {changed(zero, 4096, func(e forge.Bytes) { e.U64(64+24, 9) }), none},
		"data sector of another entry": {
			changed(data, 8192, func(e forge.Bytes) { e.U32(8188, 9) }), none,
		},
		"more data sectors than the entry has": {
			changed(data, 4096, func(e forge.Bytes) { e.U32(8, 4096) }), none,
		},
	} {
		t.Run(name, func(t *testing.T) {
			v, _ := dirty(1)
			tc.forge(v)
			_, err := image.Open(imagetest.Write(t, t.TempDir(), "disk.vhdx", v.Bytes), image.Options{})
			require.ErrorIs(t, err, ondisk.ErrFormat)
			require.ErrorContains(t, err, tc.says)
		})
	}
}

// A log full of entries that overlap, or with a missing tail, takes little time.
func TestVHDXHostileLogsAreQuick(t *testing.T) {
	for name, change := range map[string]func(e forge.Bytes, i int64){
		// the tail is the first entry, whose number 0 is not one
		"no tail":   func(e forge.Bytes, i int64) { e.U64(16, uint64(i)) },
		"overlap":   func(e forge.Bytes, i int64) { e.U32(8, uint32(15*mib)) },
		"own tails": func(e forge.Bytes, i int64) { e.U32(12, uint32(i*4096)) },
	} {
		t.Run(name, func(t *testing.T) {
			v := vhdxforge.New(vhdxforge.Layout{Size: mib, LogMiB: 16})
			v.Dirty(0)
			for i := range int64(16 * 256) {
				e := vhdxforge.Entry{Sequence: uint64(i + 1), GUID: vhdxforge.LogID}.Bytes()
				change(e, i)
				vhdxforge.SealAt(e, 0, 4096)
				v.PutLog(i*4096, e)
			}
			spent := disktest.Spent()
			img, err := image.Open(imagetest.Write(t, t.TempDir(), "disk.vhdx", v.Bytes), image.Options{})
			require.Less(t, spent(), 5*time.Second)
			if name == "own tails" {
				require.NoError(t, err)
				require.NoError(t, img.Close())
				return
			}
			require.True(t, errors.Is(err, ondisk.ErrFormat) || errors.Is(err, ondisk.ErrLimit), "%v", err)
		})
	}
}
