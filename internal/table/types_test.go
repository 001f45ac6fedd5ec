package table

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// typesOf returns the types that sfdisk lists for a label.
func typesOf(t *testing.T, label string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^ *([0-9A-Fa-f-]+)  (.+)$`).FindAllStringSubmatch(disktest.Output(t,
		"sfdisk", "--label", label, "--list-types"), -1) {
		out[strings.ToLower(m[1])] = strings.TrimSpace(m[2])
	}
	return out
}

// ownNames are names that describe partitions of Windows and Linux better than those of sfdisk.
var ownNames = map[string]string{
	"7": "HPFS/NTFS/exFAT", "b": "W95 FAT32", "c": "W95 FAT32 (LBA)", "e": "W95 FAT16 (LBA)", "f": "W95 Ext'd (LBA)",
	"12": "Compaq diagnostics", "17": "Hidden HPFS/NTFS", "1b": "Hidden W95 FAT32", "1c": "Hidden W95 FAT32 (LBA)",
	"1e": "Hidden W95 FAT16 (LBA)", "27": "Hidden NTFS WinRE", "42": "SFS", "63": "GNU HURD or SysV",
	"82": "Linux swap / Solaris", "84": "OS/2 hidden or Intel hibernation", "af": "HFS / HFS+", "de": "Dell Utility",
	"ee": "GPT", "ef": "EFI (FAT-12/16/32)", "fb": "VMware VMFS", "fc": "VMware VMKCORE", "fd": "Linux raid autodetect",
	"c12a7328-f81f-11d2-ba4b-00a0c93ec93b": "EFI System",
	"5808c8aa-7e8f-42e0-85d2-e1e90434cfb3": "Microsoft LDM metadata",
	"af9b60a0-1431-4f62-bc68-3311714a69ad": "Microsoft LDM data",
	"de94bba4-06d1-4d40-a16a-bfd50179d6ac": "Windows recovery environment",
	"0fc63daf-8483-4772-8e79-3d69d8477de4": "Linux filesystem",
}

func checkType(t *testing.T, id, theirs, ours string) {
	t.Helper()
	if own, ok := ownNames[id]; ok {
		assert.Equal(t, own, theirs, id)
		assert.NotEmpty(t, ours, id)
		return
	}
	assert.Equal(t, theirs, ours, id)
}

func TestTypes(t *testing.T) {
	theirs := typesOf(t, "dos")
	require.NotEmpty(t, theirs)
	delete(theirs, "0")
	for id, name := range theirs {
		n, err := strconv.ParseUint(id, 16, 8)
		require.NoError(t, err)
		checkType(t, id, name, Partition{Kind: Primary, Type: byte(n)}.TypeName())
	}
	gpt := typesOf(t, "gpt")
	require.NotEmpty(t, gpt)
	for id, name := range gpt {
		checkType(t, id, name, Partition{Kind: Entry, TypeGUID: id}.TypeName())
	}
	require.Len(t, types(), len(theirs)+len(gpt))
}
