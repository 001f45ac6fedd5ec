package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// soakEntry is what a table says about a partition.
type soakEntry struct {
	start, sectors  int64
	typ, guid, name string
	active          bool
	attributes      string // the 64 bits in hexadecimal
}

// readFdisk reads a table with fdisk, which takes other sector sizes than 512, too. Each column is asked for alone,
// since names have spaces.
func readFdisk(t testing.TB, raw string, sector int64, gpt bool) map[int]soakEntry {
	t.Helper()
	column := func(name string) map[int]string { return fdiskColumn(t, raw, sector, name) }
	entries, sectors := map[int]soakEntry{}, column("Sectors")
	for number, start := range column("Start") {
		entries[number] = soakEntry{start: disktest.Number(t, start), sectors: disktest.Number(t, sectors[number])}
	}
	if gpt {
		types, guids, names, attributes := column("Type-UUID"), column("UUID"), column("Name"), column("Attrs")
		for number, e := range entries {
			e.typ, e.guid, e.name = types[number], guids[number], names[number]
			e.attributes = fdiskAttributes(t, attributes[number])
			entries[number] = e
		}
		return entries
	}
	types, boot := column("Id"), column("Boot")
	for number, e := range entries {
		e.typ, e.active = types[number], boot[number] == "*"
		entries[number] = e
	}
	return entries
}

// fdiskAttributes turns fdisk's words for bits back into bits. Source: libfdisk, gpt_entry_attrs_to_string.
func fdiskAttributes(t testing.TB, text string) string {
	t.Helper()
	var bits uint64
	words := map[string]int{"RequiredPartition": 0, "NoBlockIOProtocol": 1, "LegacyBIOSBootable": 2}
	for word := range strings.FieldsSeq(strings.ReplaceAll(strings.ReplaceAll(text, "GUID:", " "), ",", " ")) {
		bit, known := words[word]
		if !known {
			bit = int(disktest.Number(t, word))
		}
		bits |= 1 << bit
	}
	return fmt.Sprintf("%016X", bits)
}

// fdiskColumn is one column of fdisk's list, by partition number.
func fdiskColumn(t testing.TB, raw string, sector int64, column string) map[int]string {
	t.Helper()
	// fdisk prints names as its locale has letters.
	out := disktest.Output(t, "env", "LC_ALL=C.UTF-8", "fdisk", "-b", fmt.Sprint(sector), "-l", "-o", "Device,"+column,
		raw)
	values := map[int]string{}
	for line := range strings.Lines(out) {
		device, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		number, found := strings.CutPrefix(device, raw)
		if found && !strings.HasSuffix(device, ":") {
			values[int(disktest.Number(t, number))] = strings.TrimSpace(value)
		}
	}
	return values
}

// requireSoundTable has the tools look for errors of a table.
func requireSoundTable(t testing.TB, raw string, sector int64, gpt bool) {
	t.Helper()
	require.Contains(t, disktest.RunInput(t, "v\nq\n", "fdisk", "-b", fmt.Sprint(sector), raw), "No errors detected")
	if sector != sectorSize {
		return
	}
	require.Contains(t, disktest.Run(t, "sfdisk", "--verify", raw), "No errors detected")
	if gpt {
		require.Contains(t, disktest.Run(t, "sgdisk", "-v", raw), "No problems found")
	}
}

// requireSoundVolume runs the read-only check of the volume in the file part.
func requireSoundVolume(t testing.TB, v *soakVolume, part string) {
	t.Helper()
	switch v.name {
	case "xfs":
		disktest.Run(t, "xfs_repair", "-n", part)
	case "btrfs":
		disktest.Run(t, "btrfs", "check", part)
	case "lvm":
		lv := extract(t, part, lvmDataStart, (v.size-lvmDataStart)/lvmExtent*lvmExtent)
		disktest.Run(t, "e2fsck", "-f", "-n", lv)
	case "swap":
		require.Equal(t, "swap\n", disktest.Output(t, "blkid", "-p", "-o", "value", "-s", "TYPE", part))
	case "noise":
	case "fat12":
		fsck(t, "fat16", part)
	default:
		fsck(t, v.name, part)
	}
}
