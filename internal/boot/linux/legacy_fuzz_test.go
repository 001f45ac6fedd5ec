package linux_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/boot/linux"
	"github.com/trueup/trueup/internal/disktest/boottest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/grubforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
)

// installed is where scripts/install-tools.sh unpacks the real stages.
const installed = "/usr/local/lib/trueup-tests/grub-legacy/x86_64-pc/"

// FuzzGrubLegacy holds finder and references to each other: what was found at one place of the partition must be found,
// rewritten, at another.
func FuzzGrubLegacy(f *testing.F) {
	forged, s := legacyDisk(), grubforge.Stage2(64)
	grubforge.PutStage1(forged, 0, s)
	grubforge.PutStage(forged, s)
	f.Add([]byte(forged[:440]), []byte(forged[64*512:66*512]))
	s = grubforge.Stage15()
	grubforge.PutStage1(forged, 0, s)
	grubforge.PutStage(forged, s)
	f.Add([]byte(forged[:440]), []byte(forged[512:3*512]))
	for _, name := range []string{"stage2", "e2fs_stage1_5"} {
		one, err := os.ReadFile(installed + "stage1")
		two, bad := os.ReadFile(installed + name)
		if err == nil && bad == nil {
			one[0x44], two[0x1f8] = 64, 65
			f.Add(one[:440], two[:1024])
		}
	}
	f.Fuzz(func(t *testing.T, one, two []byte) {
		const sectors, shift = 1024, 65
		disks := [2]forge.Bytes{}
		for i := range disks {
			start := uint32(63 + i*shift)
			d := tableforge.NewMBR(sectors, tableforge.Slot{Type: 0x83, Flag: 0x80, Start: start, Sectors: 800})
			d.Put(int64(start+1)*512, two[:min(len(two), 1024)])
			d.Put(512, two[:min(len(two), 1024)])
			d.Put(0, one[:min(len(one), 440)])
			disks[i] = d
		}
		was := boottest.Read(t, disks[0])
		for _, r := range was.Refs {
			require.Len(t, r.Raw, int(r.At[0].Len))
			if r.Target != 0 {
				move := int64(0)
				if r.Partition != 0 {
					move = shift * 512
				}
				patches, err := r.Patches(move, r.Points+shift*512)
				require.NoError(t, err)
				for _, p := range patches {
					require.Equal(t, p.Old, []byte(disks[1][p.Off:][:len(p.Old)]))
					disks[1].Put(p.Off, p.New)
				}
			}
		}
		if len(was.Issues) > 0 || len(was.Refs) == 0 || was.Code != linux.Legacy {
			return
		}
		now := boottest.Read(t, disks[1])
		require.Empty(t, now.Issues)
		require.Len(t, now.Refs, len(was.Refs))
		for i, r := range now.Refs {
			want := was.Refs[i].Points
			if r.Target != 0 {
				want += shift * 512
			}
			require.Equal(t, want, r.Points)
			require.Equal(t, was.Refs[i].Target, r.Target)
		}
	})
}
