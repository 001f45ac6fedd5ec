package vmdk_test

import (
	"testing"

	"github.com/trueup/trueup/internal/disktest/hostile"
	"github.com/trueup/trueup/internal/disktest/imagetest"
)

// An extent is a regular file.
func TestHostileNodes(t *testing.T) { hostile.Check(t, hostile.Nodes(), imagetest.Issues) }
