package windows

import (
	"bytes"
	"io/fs"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/hiveforge"
	"github.com/trueup/trueup/internal/hive"
	"github.com/trueup/trueup/internal/ondisk"
)

// The entries of logs that are kept for their hashes are bounded, and a place is never sought outside of a value.
func TestSealsAreBounded(t *testing.T) {
	made := func(data string) forge.Bytes {
		return hiveforge.New(3, hiveforge.Key{Name: "root", Keys: []hiveforge.Key{
			{Name: "key", Values: []hiveforge.Value{{Name: "v", Type: regBinary, Data: []byte(data)}}},
		}})
	}
	was, is := made("before it"), made("behind it")
	h := &guestHive{}
	var err error
	h.recovery, err = hive.NewBudget().Recover(bytes.NewReader(hiveforge.Dirty(was, 7)),
		hive.Log{Name: "log", Source: bytes.NewReader(hiveforge.Log(was, 6, is))})
	require.NoError(t, err)
	require.NoError(t, h.recovery.Each(func(state *hive.Hive) error {
		h.Hive = state
		return nil
	}))
	key, err := h.Key("key")
	require.NoError(t, err)
	v, err := key.Value("v")
	require.NoError(t, err)
	_, _, err = h.position("kind", v, 2)
	require.ErrorIs(t, err, fs.ErrInvalid)

	at, err := v.Where(0, 8)
	require.NoError(t, err)
	h.at, h.seals, h.bytes = map[int64][]int{}, map[sealed]*boot.Seal{}, maxSealed
	err = h.add(boot.Ref{Target: 1, At: []disk.Range{{Len: 8}}}, h.Places(at[0]))
	require.ErrorIs(t, err, ondisk.ErrLimit)
	require.ErrorContains(t, err, "log entries of a registry hive")
	require.Empty(t, h.refs)
}
