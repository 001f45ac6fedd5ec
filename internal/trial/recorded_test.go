package trial

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// recorded is a film of a real machine in testdata: QEMU 7.2 with SeaBIOS or OVMF, recorded by a script of its own from
// disks of the tests in cmd/trueup. A broken disk is an aligned one whose one position has the old value. The kernel
// logs are Debian's kernel on a framebuffer of 640 by 480, of which the first pictures are omitted; the panic has no
// initrd.
func recorded(t testing.TB, name string) *Film {
	t.Helper()
	b := disktest.ReadFile(t, filepath.Join("testdata", name+".json"))
	var f Film
	require.NoError(t, json.Unmarshal(b, &f))
	return &f
}

func TestRecordedBoots(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		before, after string
		want          Verdict
		says          string // in the reason
		sees          string // what the first difference shows of the aligned view
	}{
		{"sys-chs", "sys-chs-aligned", Same, `"boot:"`, ""},
		{"sys-chs", "sys-chs-broken", Differs, "", "CHS:B"},
		{"sys-win", "sys-win-aligned", Same, `"boot:"`, ""},
		{"sys-win", "sys-win-broken", Differs, "Missing operating system", "Missing operating system"},
		{"sys-ownlba", "sys-ownlba-aligned", Same, `"boot:"`, ""},
		{"sys-ownlba", "sys-ownlba-broken", Differs, "Boot error", "Boot error"},
		{"legacy-list", "legacy-list-aligned", Same, "the guest is up", ""},
		{"legacy-list", "legacy-list-broken-list", Differs, "GRUB Loading stage2", ""},
		{"legacy-list", "legacy-list-broken-stage1", Differs, "GRUB GRUB", ""},
		{"grub2", "grub2-aligned", Same, "trueup: loaded", ""},
		{"grub2", "grub2-broken", Differs, "unknown filesystem", "error: unknown filesystem."},
		{"uefi", "uefi-aligned", Same, "the guest is up", ""},
		{"uefi", "uefi-empty", Differs, "Shell", ""},
		{"blank", "blank", Neither, "not a bootable disk", ""},
		{"uefi-empty", "uefi-empty", Neither, "Shell", ""},
		{"sys-win-broken", "sys-win-broken", Neither, "Missing operating system", ""},
		{"grub2-broken", "grub2-broken", Neither, "unknown filesystem", ""},
		{"legacy-list-broken-list", "legacy-list-broken-list", Unclear, "GRUB Loading stage2", ""},
		{"kernel-log", "kernel-log-aligned", Same, `both runs reach the line "trueup: the guest is up"`, ""},
		{"kernel-log", "kernel-panic", Differs, "aligned view stops: \"[    4.476313] Kernel panic", ""},
		{"kernel-panic", "kernel-panic", Neither, "Kernel panic", ""},
	} {
		j := Compare(recorded(t, c.before), recorded(t, c.after))
		require.Equal(t, c.want, j.Verdict, "%s, %s: %+v", c.before, c.after, j)
		require.Contains(t, j.Reason, c.says, c.after)
		if c.sees != "" {
			require.Equal(t, c.sees, j.Differences[0].After)
		}
	}
}

// Any two boots of different disks differ, and each is the same as itself, unless it failed.
func TestRecordedBootsAgainstEachOther(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.json")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	kinds := map[string]string{}
	films := map[string]*Film{}
	for _, path := range files {
		name := strings.TrimSuffix(filepath.Base(path), ".json")
		films[name] = recorded(t, name)
		kind := strings.TrimSuffix(name, "-aligned")
		if kind == "sys-chs" || kind == "sys-win" {
			kind = "sys-ownlba" // the same syslinux
		}
		kinds[name] = kind
	}
	for x := range films {
		for y := range films {
			got := Compare(films[x], films[y]).Verdict
			require.Equal(t, kinds[x] != kinds[y], got == Differs, "%s, %s: %s", x, y, got)
		}
	}
}
