package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// TestMovedDiskBoots boots disks under their own names: after an exchange and a move in place, after a kill and what
// goes on from it, and after what brings the old disk back. make boots runs all rows, make test the exchange and the
// move that is resumed.
func TestMovedDiskBoots(t *testing.T) {
	t.Parallel()
	const heads = 255
	disks := map[string]func(testing.TB) string{
		"mbr": func(t testing.TB) string {
			t.Helper()
			return bootDisk{code: assembled(ownLBACode), fat: 16, heads: heads}.build(t, t.TempDir())
		},
		"gpt": gptBootDisk,
	}
	for name, c := range map[string]struct {
		steps [][]string // commands; one without a name is a move in place that is killed
		moved bool       // at the end; else the disk has its old bytes
		quick bool
	}{
		"exchanged":                        {[][]string{{"replace"}}, true, true},
		"exchanged and taken back":         {[][]string{{"replace"}, {"undo"}}, false, false},
		"exchanged for good":               {[][]string{{"replace"}, {"finish"}}, true, false},
		"moved in place":                   {[][]string{{"move"}}, true, false},
		"moved in place, killed, resumed":  {[][]string{{}, {"resume"}}, true, true},
		"moved in place, killed, and back": {[][]string{{}, {"undo"}}, false, false},
	} {
		if !c.quick && !disktest.Exhaustive {
			continue
		}
		for kind, disk := range disks {
			t.Run(kind+", "+name, func(t *testing.T) {
				m := newMove(t, formatRaw, disk(t))
				for _, step := range c.steps {
					if len(step) == 0 {
						m.kill(t, callPoint{call: "fsync", number: 4})
						require.NotEqual(t, []byte{0x55, 0xAA}, readAt(t, m.path, 510, 2),
							"no firmware may start it now")
						continue
					}
					r := trueup(t, append(step, m.path)...)
					require.Equal(t, 0, r.code, "%q\n%s%s", step, r.stdout, r.stderr)
				}
				if c.moved {
					require.Equal(t, m.want, sha256Of(t, m.path))
				} else {
					m.requireOld(t)
				}
				require.Equal(t, booted, boot(t, m.path, heads))
			})
		}
	}
}
