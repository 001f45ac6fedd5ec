package ext

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
)

// s_backup_bgs ends at 0x254. Spec: Linux, Documentation/filesystems/ext4/super.rst.
func TestStructSize(t *testing.T) { require.Equal(t, 0x254, binary.Size(super{})) }
