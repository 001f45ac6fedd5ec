package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// allHostile are the hostile images of the other tests that need no flags.
func allHostile(t testing.TB) []hostile {
	t.Helper()
	all := slices.Concat(headersInRaw(), polyglots(), cuts(), parents(), otherLines(), bigTexts(), contradictions(),
		extentSums(), splitExtents(), cowdExtents(), seSparseExtents(), extentTables(), streamGrains(), streamHeaders(),
		brokenExFAT(), brokenBySize(), brokenByCount(), brokenApple(), brokenChecksums(), brokenLVM(), brokenMD(),
		brokenLUKS(), brokenOtherPools(), refusedPools(), qcow2References(), qcow2Names(), qcow2Numbers(),
		qcow2Tables(), qcow2Floods(), qcow2Features(), qcow2Snapshots(), qcow2Entries(), qcow2Packed(), qcow2Bombs(),
		brokenDisklabels(), brokenVTOCs(), grainSizes(), capacities(), directories(), overlaps(),
		entries(), twoCopies(), damaged(), brokenEntries(), refusedTables(), loops(), chainsOutside(), vhdFooters(),
		vhdMarks(), vhdHeaders(), vhdEntries(), vhdParents(), vhdxHeaders(), vhdxLogs(), vhdxRegions(), vhdxItems(),
		vhdxParents(), vhdxBlocks(), brokenNTFS(), brokenExt(), brokenFAT())
	return slices.DeleteFunc(all, func(h hostile) bool { return len(h.args) > 0 })
}

// TestScanOfHostileImages has every hostile image in one library: each costs its own row, with what inspect says about
// it.
func TestScanOfHostileImages(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := &shelf{t, dir}
	for i, h := range allHostile(t) {
		at := filepath.Join(dir, fmt.Sprintf("%03d", i))
		require.NoError(t, os.Mkdir(at, 0o755))
		h.image(t, at)
		if i%10 == 0 {
			s.put(fmt.Sprintf("%03d-good/good.img", i), offDisk())
		}
	}
	rows, _ := scanJSON(t, dir, ".")
	for _, r := range rows {
		if filepath.Base(r.Path) == "good.img" {
			require.Equal(t, isOff, r.String())
		}
		require.NotEqual(t, "internal", r.code(), "%s: %v", r.Path, r.Error)
	}
	require.Greater(t, len(rows), 500)
	sameAsInspect(t, dir, "--check", ".")
}
