package table

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/ondisk"
)

// The boot sector of a volume has code or text where the entries of an MBR stand. Spec: Linux,
// block/partitions/msdos.c, takes a sector with an illegal boot flag for no table.
func TestCodeInPlaceOfEntries(t *testing.T) {
	code := bytes.Repeat([]byte{0xf6, 0x8b, 0x5e, 0xeb}, 16)
	wrongFlag := []byte{0x7f, 0, 1, 0, 0x83, 0, 1, 0, 63, 0, 0, 0, 100, 0, 0, 0}
	elsewhere := []byte{0x7f, 0, 1, 0, 0x83, 0, 1, 0, 63, 0, 0, 0, 100, 0, 0, 1}
	sound := append([]byte{0x80}, wrongFlag[1:]...)
	legal := bytes.Clone(code) // by chance, in entries that name places behind the disk
	legal[0], legal[32] = 0, 0x80
	one := append(bytes.Clone(legal[:16]), code[:16]...)
	cut := append([]byte{0x80, 0, 1, 0, 0x83, 0, 1, 0, 63, 0, 0, 0, 100, 0, 1, 0}, wrongFlag...)
	for name, tc := range map[string]struct {
		entries []byte
		none    bool
	}{
		"code":                               {code, true},
		"code in the first entry alone":      {code[:16], true},
		"four illegal flags":                 {bytes.Repeat(wrongFlag, 4), true},
		"a flag that is wrong":               {wrongFlag, false},
		"a flag that is wrong, and no place": {elsewhere, true},
		"code behind a sound entry":          {append(bytes.Clone(sound), code[:48]...), false},
		"code with flags that are legal":     {legal, true},
		"code with one such flag":            {one, true},
		"one flag, on a disk cut short":      {cut, false},
		"no entry":                           {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := make(forge.Bytes, 1000*512)
			f.Put(atEntries, tc.entries)
			f.Put(atMagic, []byte{0x55, 0xaa})
			_, err := Read(disktest.ShortDisk(f, int64(len(f))))
			if tc.none {
				require.ErrorIs(t, err, ondisk.ErrNoMatch)
				return
			}
			require.NoError(t, err)
		})
	}
}
