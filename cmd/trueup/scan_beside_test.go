package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest/forge/qcow2forge"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
)

// TestScanOfTheSameImagesAmongOthers has a catalogue, images that do not change, and what lies beside them, which does.
func TestScanOfTheSameImagesAmongOthers(t *testing.T) {
	t.Parallel()
	s, catalog := newShelf(t), t.TempDir()+"/c.db"
	off := offDisk()
	child := qcow2forge.New(make([]byte, len(off)), 16)
	child.SetBacking("base.qcow2", "qcow2")
	s.put("base.qcow2", qcow2forge.New(off, 16).Bytes)
	s.put("flat.vmdk", flatText("monolithicFlat", "flat-flat.vmdk"))
	s.put("flat-flat.vmdk", off)
	s.put("vm.ovf", ovfFor([]string{"d.vmdk"}))
	s.put("d.vmdk", vmdkforge.NewSparse(off).Bytes)
	s.put("notes.txt", []byte("notes"))
	want := map[string]string{"base.qcow2": isOff, "flat.vmdk": isOff, "vm.ovf": isOff}
	same := func() {
		t.Helper()
		for range 2 {
			s.requireRows(want, "--catalog", catalog, ".")
			s.requireRows(want, ".")
		}
	}
	same()

	s.put("child", child.Bytes)
	want["base.qcow2"], want["child"] = isOff+", refused: snapshot-parent", isOff+", refused: snapshot-child"
	same()
	s.put("base.qcow2.lck", nil)
	want["base.qcow2"], want["child"] = isOff+", refused: busy snapshot-parent", isOff+", refused: busy snapshot-child"
	same()
	require.NoError(t, os.Remove(s.path("base.qcow2.lck")))
	require.NoError(t, os.Remove(s.path("child")))
	want["base.qcow2"] = isOff
	delete(want, "child")
	same()

	s.put("flat-flat.vmdk", evenDisk())
	want["flat.vmdk"] = isEven
	same()
	require.NoError(t, os.Remove(s.path("flat.vmdk")))
	delete(want, "flat.vmdk")
	want["flat-flat.vmdk"] = "orphan"
	same()
	require.NoError(t, os.Remove(s.path("vm.ovf")))
	delete(want, "vm.ovf")
	want["d.vmdk"] = isOff
	same()
}
