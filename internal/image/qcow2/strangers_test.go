package qcow2_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/qcow2forge"
	"github.com/trueup/trueup/internal/disktest/hostile"
	"github.com/trueup/trueup/internal/disktest/imagetest"
)

func TestHostileQcow2(t *testing.T) { hostile.Check(t, hostile.Qcow2(), imagetest.Issues) }

// The hostile images differ from a good one in nothing but what they change.
func TestForgedQcow2IsValid(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.qcow2")
	qcow2forge.New(hostile.Disk(), 16).Write(t, path)
	require.Contains(t, disktest.Run(t, "qemu-img", "check", "-f", "qcow2", path), "No errors were found")
}
