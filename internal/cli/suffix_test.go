package cli

import (
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/qcow2forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
)

// A copy whose name is that of another format is taken for broken by what opens it by its name.
func TestDestNamedAsAnotherFormat(t *testing.T) {
	own(t)
	putImage(t, "q.qcow2")
	for _, c := range []struct{ source, dest, why string }{
		{"src.img", "new.vmdk", "has the name of the format vmdk, and the copy would be raw as SOURCE is; say --to " +
			"vmdk, or --to raw to keep that format under this name"},
		{"src.img", "sub/../new.QCOW2", "has the name of the format qcow2, and"},
		{"q.qcow2", "new.raw", "say --to raw, or --to qcow2 to"},
		{"q.qcow2", "new.vhd", "say --to vhd, or --to qcow2 to"},
		{"q.qcow2", "new.avhdx", "say --to vhdx, or --to qcow2 to"},
		{"q.qcow2", "new.qed", "has the name of the format QED, which is not written, and the copy would be qcow2 as " +
			"SOURCE is; choose another name, or say --to qcow2 to"},
		{"src.ova!d.vmdk", "new.qcow2", "say --to qcow2, or --to vmdk to"},
	} {
		put(t, "src.ova", forgedPackage())
		for _, args := range [][]string{{"align"}, {"convert"}, {"align", "--force"}} {
			before := state(t)
			r := trueup(t, append(args, c.source, c.dest)...)
			require.Equal(t, 64, r.code, r.stderr)
			require.Contains(t, r.stderr, "DEST "+c.dest+" "+"has the name of the format ")
			require.Contains(t, r.stderr, c.why)
			require.Equal(t, before, state(t))
		}
	}
	r := trueup(t, "align", "src.img", "new.ova")
	require.Equal(t, 64, r.code)
	require.Contains(t, r.stderr, "DEST new.ova is a package, and SOURCE src.img is one disk")
}

// What QEMU sees is what the user asked for, as QEMU's users write it too.
func TestFormatsByTheirOtherNames(t *testing.T) {
	own(t)
	qemu := disktest.Tool(t, "qemu-img")
	for i, c := range []struct {
		dest, want string
		flags      []string
	}{
		{"a.img", "raw", nil},
		{"a.raw", "raw", nil},
		{"a", "raw", nil},
		{"a.bin", "raw", nil},
		{"a.vhd", "vpc", []string{"--to", "vpc"}},
		{"a.vhd", "vpc", []string{"--to", "VHD:Dynamic"}},
		{"a.vmdk", "vmdk", []string{"--to", "VMDK:StreamOptimized"}},
		{"a.qcow2", "qcow2", []string{"--to", "Qcow2", "--format", "RAW"}},
		{"a.vmdk", "qcow2", []string{"--to", "qcow2"}}, // an order
	} {
		dest := filepath.Join(t.TempDir(), c.dest)
		r := trueup(t, append([]string{"convert", "src.img", dest}, c.flags...)...)
		require.Zero(t, r.code, "%d: %s", i, r.stderr)
		var info struct{ Format string }
		require.NoError(t, json.Unmarshal([]byte(disktest.Run(t, qemu, "info", "--output=json", dest)), &info))
		require.Equal(t, c.want, info.Format, "%d", i)
	}
}

// The command that is proposed for a disk whose name is wrong can be run.
func TestProposedCommandKeepsTheFormat(t *testing.T) {
	t.Chdir(t.TempDir())
	off := tableforge.NewMBR(2560, tableforge.Slot{Type: 0x83, Start: 63, Sectors: 512})
	put(t, "disk.vmdk", qcow2forge.New(off, 16).Bytes)
	const want = "trueup align --to qcow2 disk.vmdk disk-aligned.vmdk"
	require.Contains(t, trueup(t, "inspect", "disk.vmdk").stdout, want)
	require.Contains(t, trueup(t, "plan", "disk.vmdk").stdout, want)
	require.Contains(t, trueup(t, "scan", "--isolation", "none", "--json", "disk.vmdk").stdout, want)
	require.Zero(t, trueup(t, "align", "--to", "qcow2", "disk.vmdk", "disk-aligned.vmdk").code)
}
