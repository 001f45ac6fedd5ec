package vhdx_test

import (
	"testing"

	"github.com/trueup/trueup/internal/disktest/hostile"
	"github.com/trueup/trueup/internal/disktest/imagetest"
)

func TestHostileVHDX(t *testing.T) { hostile.Check(t, hostile.VHDX(), imagetest.Issues) }
