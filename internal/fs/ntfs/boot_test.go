package ntfs

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestStructSize(t *testing.T) { require.Equal(t, 512, binary.Size(bootSector{})) }
