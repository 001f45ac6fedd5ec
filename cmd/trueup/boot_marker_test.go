package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// markerCode is testdata/marker.S: it prints the text behind it and halts, wherever it is loaded.
const markerCode = "" +
	"fae800005e81c6210031c08ed88ed0bc0070fcfbac84c07409bb0700b40ecd10" +
	"ebf2f4ebfd"

// staleShown is what the console shows when a loader read the sectors that its next stage had before the move.
const staleShown = "trueup: a stale sector"

// marker is a boot sector that prints a text.
func marker(t testing.TB, text string) []byte {
	t.Helper()
	sector := make([]byte, sectorSize)
	n := copy(sector, assembled(markerCode)(t))
	require.Less(t, n+len(text), sectorSize-2)
	copy(sector[n:], text)
	sector[510], sector[511] = 0x55, 0xaa
	return sector
}
