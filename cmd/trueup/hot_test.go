package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/hiveforge"
)

// hotWindows is an align of a Windows that was copied while running: its hive has changes in logs.
type hotWindows struct {
	windowsCase

	partition int
	hive      string   // its path
	logs      []string // suffixes of the logs, in the order of Windows
	by        []string // programs that can recover the hive
	export    func(t testing.TB, hive string) string
	text      func(signature uint32, off int64) string // a position in the format of export
	want      int                                      // positions in the recovered hive
	exports   exports
}

// exports caches texts of hives by their content. The runs of a test have the same hives under other names.
type exports map[[sha256.Size]byte]string

// exported returns the text of a hive after recovery by a program, or of the closed hive if program is empty.
func (c hotWindows) exported(t *testing.T, program string, hive forge.Bytes, logs ...forge.Bytes) string {
	t.Helper()
	e := c.exports
	key := sumOf(slices.Concat([]forge.Bytes{forge.Bytes(program), hive}, logs)...)
	if text, ok := e[key]; ok {
		return text
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "hive")
	hive = slices.Clone(hive)
	if program != "" {
		hive.Write(t, path)
		script := disktest.DataFile(t, "../../internal/hive/testdata/recover.py")
		args := []string{script, program, path, filepath.Join(dir, "out")}
		for i, l := range logs {
			args = append(args, filepath.Join(dir, fmt.Sprint("log", i)))
			l.Write(t, last(args))
		}
		disktest.Run(t, disktest.Python(t), args...)
		hive = disktest.ReadFile(t, filepath.Join(dir, "out"))
	}

	hive.U32(hiveforge.Sequence1, 7) // it was closed
	hive.U32(hiveforge.Sequence2, 7)
	hiveforge.Seal(hive)
	same := sumOf(hive)
	if _, ok := e[same]; !ok {
		hive.Write(t, path)
		e[same] = c.export(t, path)
	}
	e[key] = e[same]
	return e[key]
}

// sumOf returns a digest of parts and their lengths.
func sumOf(parts ...forge.Bytes) [sha256.Size]byte {
	var all []byte
	for _, p := range parts {
		all = append(binary.LittleEndian.AppendUint64(all, uint64(len(p))), p...)
	}
	return sha256.Sum256(all)
}

// run aligns the disk. Other programs recover the hive before and after, with all logs, with each alone, with none and
// with a torn one: only the positions differ.
func (c hotWindows) run(t *testing.T) {
	t.Helper()
	now, dest := c.windowsCase.run(t)
	v := c.disk.volume(c.partition)
	read := func(name string) (before, after forge.Bytes) {
		a := disktest.ReadFile(t, v.files[name])
		b := disktest.ReadFile(t, readGuestFile(t, dest, v, now[v.number], name))
		require.Len(t, b, len(a))
		return a, b
	}
	hive, moved := read(c.hive)
	var logs, movedLogs []forge.Bytes
	for _, suffix := range c.logs {
		a, b := read(c.hive + suffix)
		logs, movedLogs = append(logs, a), append(movedLogs, b)
	}
	same := func(what string, least int, logs, movedLogs []forge.Bytes) {
		for _, program := range c.by {
			before, after := c.exported(t, program, hive, logs...), c.exported(t, program, moved, movedLogs...)
			c.same(t, program+", "+what, least, now, before, after)
		}
	}
	same("all logs", c.want, logs, movedLogs)
	c.same(t, "no log", 0, now, c.exported(t, "", hive), c.exported(t, "", moved))
	if len(logs) > 1 {
		same("the last alone", 1, logs[1:], movedLogs[1:])
		for _, l := range []forge.Bytes{logs[0], movedLogs[0]} {
			l[len(l)-1]++ // the last entry
		}
		same("the first, torn", 1, logs[:1], movedLogs[:1])
	}
}

// same requires that the texts of two hives differ only in moved positions, in at least the given number.
func (c hotWindows) same(t *testing.T, what string, want int, now map[int]int64, before, after string) {
	t.Helper()
	var pairs []string
	found := 0
	for number, was := range c.disk.starts() {
		if now[number] != was {
			old := c.text(c.disk.signature, was)
			found += strings.Count(before, old)
			pairs = append(pairs, old, c.text(c.disk.signature, now[number]))
		}
	}
	require.GreaterOrEqual(t, found, want, what)
	require.Equal(t, strings.NewReplacer(pairs...).Replace(before), after, what)
}

// replaced returns a copy of a hive with all occurrences of some bytes replaced.
func replaced(t *testing.T, f forge.Bytes, was, now []byte) forge.Bytes {
	t.Helper()
	require.Len(t, now, len(was))
	require.Positive(t, bytes.Count(f, was))
	return bytes.ReplaceAll(f, was, now)
}

// A running Windows 10 from the corpus. The letter of its own partition is in the hive and in the first log, and the
// change of the other only in the second log. make test has the order that differs from the names.
func TestHotWindows10(t *testing.T) {
	t.Parallel()
	const system = "Windows/System32/config/SYSTEM"
	own, other := int64(63*sectorSize), int64(100_063*sectorSize)
	value := func(off int64) []byte { return mountedValue(windowsSignature, off) }
	b := disktest.ReadFile(t, mergeHive(t, disktest.Corpus(t, "regipy/SYSTEM_WIN_10_1709.xz"), letters(own, other)))
	end := forge.Bytes(b[:4096+binary.LittleEndian.Uint32(b[hiveforge.BinsSize:])])
	hive := replaced(t, end, value(other), value(99*sectorSize))
	touched := slices.Clone(hive)
	touched[bytes.Index(touched, value(77*sectorSize))+4]++ // in the page with the letters
	later := slices.Clone(touched)
	later[len(later)-5000]++
	log1, log2 := hiveforge.Log(hive, 4316, touched, later), hiveforge.Log(later, 4318, end)
	kept := exports{}
	xml := func(t testing.TB, hive string) string { // eight times as fast as hivexregedit: the hive has 15 MB
		t.Helper()
		return disktest.Output(t, "hivexml", hive)
	}
	text := func(signature uint32, off int64) string { // mountedText in the encoding of hivexml
		return ` value="` + base64.StdEncoding.EncodeToString(mountedValue(signature, off)) + `">`
	}
	for _, order := range [][]string{{".LOG1", ".LOG2"}, {".LOG2", ".LOG1"}} {
		if order[0] == ".LOG1" && !disktest.Exhaustive {
			continue
		}
		t.Run(order[0]+" first", func(t *testing.T) {
			hotWindows{
				windowsCase: windowsCase{disk: windowsDisk{
					signature: windowsSignature, sectors: 200_000,
					volumes: []windowsVolume{
						{
							number: 1, kind: "ntfs", typ: "7", start: 63, sectors: 100_000, loads: "BOOTMGR",
							files: map[string]string{
								system:            hostFile(t, string(hiveforge.Dirty(hive, 4317))),
								system + order[0]: hostFile(t, string(log1)),
								system + order[1]: hostFile(t, string(log2)),
								system + ".LOG":   hostFile(t, ""),
							},
						},
						{number: 2, kind: "fat32", typ: "c", start: 100_063, sectors: 90_000},
					},
				}},
				partition: 1, hive: system, logs: order, by: []string{"regipy", "registry"}, want: 4,
				export: xml, text: text, exports: kept,
			}.run(t)
		})
	}
}

// Windows 7, copied while it wrote its boot configuration: the store has only half of the change in the log.
func TestHotBootConfiguration(t *testing.T) {
	t.Parallel()
	own, other := int64(63*sectorSize), int64(100_063*sectorSize)
	b := disktest.ReadFile(t, bcdOnMBR(t, own, other))
	end := forge.Bytes(b)
	store := replaced(t, end, bcdDevice(windowsSignature, other)[:0x20],
		bcdDevice(windowsSignature, 99*sectorSize)[:0x20])
	hotWindows{
		windowsCase: windowsCase{disk: windowsDisk{
			signature: windowsSignature, sectors: 200_000,
			volumes: []windowsVolume{
				{
					number: 1, kind: "ntfs", typ: "7", start: 63, sectors: 100_000, loads: "BOOTMGR",
					files: map[string]string{
						"Boot/BCD":     hostFile(t, string(hiveforge.Dirty(store, 8))),
						"Boot/BCD.LOG": hostFile(t, string(hiveforge.OldLog(store, 1, end))),
					},
				},
				{number: 2, kind: "fat32", typ: "c", start: 100_063, sectors: 90_000},
			},
		}},
		partition: 1, hive: "Boot/BCD", logs: []string{".LOG"}, by: []string{"regipy"}, want: 4,
		export: func(t testing.TB, hive string) string { t.Helper(); return exportHive(t, hive, `\`) }, text: bcdText,
		exports: exports{},
	}.run(t)
}
