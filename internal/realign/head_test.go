package realign

import (
	"bytes"
	"compress/gzip"
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest/forge/qcow2forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/unpack"
)

// An image that reaches past the first bytes is judged by them, unless its tables lie behind them.
func TestHeadOfALargeImage(t *testing.T) {
	t.Parallel()
	disk := tableforge.NewMBR(40<<11, tableforge.Slot{Type: 0x83, Start: 63, Sectors: 80000})
	for off := 1 << 20; off < len(disk); off += 512 {
		disk[off] = 1 // so that no cluster is left out
	}
	qcow2 := qcow2forge.New(disk, 16).Bytes
	require.Greater(t, len(qcow2), 32<<20)
	noise := bytes.Clone(disk)
	_, _ = rand.NewChaCha8([32]byte{}).Read(noise[1<<20:])
	vmdk := vmdkforge.NewStream(noise, vmdkforge.StreamLayout{}).Bytes // its tables lie at its end
	require.Greater(t, len(vmdk), 39<<20)
	for name, data := range map[string][]byte{
		"a.img.gz": disk, "a.qcow2.gz": qcow2,
		"a.vmdk.gz": vmdk,
	} {
		var stream bytes.Buffer
		w, err := gzip.NewWriterLevel(&stream, gzip.BestSpeed)
		require.NoError(t, err)
		_, err = w.Write(data)
		require.NoError(t, err)
		require.NoError(t, w.Close())
		path := filepath.Join(t.TempDir(), name)
		require.NoError(t, os.WriteFile(path, stream.Bytes(), 0o600))
		s, err := Head(context.Background(), path, image.Options{})
		if name == "a.vmdk.gz" {
			require.ErrorIs(t, err, unpack.ErrBeyond)
			continue
		}
		require.NoError(t, err, name)
		guessed := strings.HasSuffix(strings.TrimSuffix(name, ".gz"), ".img")
		require.Equal(t, guessed, s.Guessed(), name)
		if !guessed {
			require.Equal(t, int64(len(disk)), s.Layout.Size, name)
		}
		require.Equal(t, int64(63*512), s.Layout.Partitions[0].Off, name)
		s.Close()
	}
}
