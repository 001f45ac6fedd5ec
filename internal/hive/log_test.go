package hive

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/hiveforge"
	"github.com/trueup/trueup/internal/ondisk"
)

// newLog is a log of Windows 8.1 and later with entries of these sequence numbers, the second of which is long.
func newLog(base uint32, entries ...uint32) forge.Bytes {
	f := oldLog(6, base)[:512]
	for i, sequence := range entries {
		e := make(forge.Bytes, 512+1536*(i%2))
		e.Text(0, "HvLE")
		e.U32(4, uint32(len(e)-i%2*8))
		e.U32(12, sequence)
		f = append(f, e...)
	}
	return append(f, make(forge.Bytes, 4096)...)
}

// oldLog is a log until Windows 8.
func oldLog(kind, sequence uint32) forge.Bytes {
	f := hiveforge.New(5, hiveforge.Key{})[:1024]
	f.U32(hiveforge.FileType, kind)
	f.U32(hiveforge.Sequence1, sequence)
	f.U32(hiveforge.Sequence2, sequence)
	hiveforge.Seal(f)
	f.Text(512, "DIRT")
	return f
}

func TestNewerThanAClosedHive(t *testing.T) {
	torn := oldLog(1, 9)
	torn.U32(hiveforge.Sequence2, 8)
	hiveforge.Seal(torn)
	unsealed := newLog(9, 8)
	unsealed.U32(hiveforge.Checksum, 1)
	for name, tc := range map[string]struct { // the hive has number 7
		log  forge.Bytes
		want bool
	}{
		"empty":                           {nil, false},
		"zeros":                           {make(forge.Bytes, 8192), false},
		"entries that were applied":       {newLog(3, 3, 4, 5, 6, 7), false},
		"a newer entry":                   {newLog(3, 3, 4, 5, 6, 7, 8), true},
		"a newer one first":               {newLog(3, 9, 4), true},
		"behind where numbers began anew": {newLog(3, 0xfffffff0, 2), false},
		"nothing but a base block":        {newLog(9), false},
		"base block is wrong":             {unsealed, false},
		"old, of the hive":                {oldLog(1, 7), false},
		"old, older":                      {oldLog(1, 5), false},
		"old, newer":                      {oldLog(1, 8), true},
		"old, second, newer":              {oldLog(2, 8), true},
		"old, newer, not finished":        {torn, false},
		"a hive":                          {oldLog(0, 9), false},
		"half a sector":                   {oldLog(1, 9)[:300], false},
		"cut off within an entry's head":  {newLog(3, 8)[:520], false},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := newer(bytes.NewReader(tc.log), 7)
			require.NoError(t, err)
			require.Equal(t, tc.want, got)
		})
	}
}

// The longest walk ends, and entries of size 0 do not stop it from getting on.
func TestLogOfManyEntries(t *testing.T) {
	f := newLog(3)[:512]
	for range maxLogEntries {
		e := make(forge.Bytes, 512)
		e.Text(0, "HvLE")
		f = append(f, e...)
	}
	got, err := newer(bytes.NewReader(f[:len(f)-512]), 7)
	require.NoError(t, err)
	require.False(t, got)
	_, err = newer(bytes.NewReader(f), 7)
	require.ErrorIs(t, err, ondisk.ErrLimit)
}
