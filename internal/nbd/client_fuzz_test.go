package nbd

import (
	"bytes"
	"math/bits"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// FuzzHandshake has a server say anything: what is accepted can be asked for.
func FuzzHandshake(f *testing.F) {
	f.Add(negotiated())
	f.Add(slices.Concat(greets(), replies(optStructuredReply, repUnsupported), exports(5), blockSizes(1, 512, 4096),
		replies(optGo, repAck)))
	f.Fuzz(func(t *testing.T, said []byte) {
		var c *Client
		var err error
		server := &script{options: bytes.NewReader(said)}
		took := disktest.Allocated(func() { c, err = NewClient(t.Context(), server, "") })
		require.Less(t, took, int64(1<<20)+2*int64(len(said)))
		if err != nil {
			return
		}
		require.GreaterOrEqual(t, c.Size(), int64(0))
		require.Equal(t, 1, bits.OnesCount64(uint64(c.block)))
		require.Zero(t, c.most%c.block)
		require.Positive(t, c.most)
		from, to := c.blocksAround(c.Size()-1, 1)
		require.True(t, c.Size() == 0 || from >= 0 && to == c.Size(), "%d to %d", from, to)
	})
}

// FuzzAnswers has a server answer anything to one request: a read that succeeds has come whole, and a state is a part
// of what was asked for.
func FuzzAnswers(f *testing.F) {
	f.Add(dataAt(replyFlagDone, 0, 4096), false)
	f.Add(slices.Concat(dataAt(0, 512, 3584), chunkOf(replyFlagDone, replyHole, at(0, 0, 0, 2, 0)...)), false)
	f.Add(chunkOf(1, replyFails|1, 0, 0, 0, 5, 0, 1, 'x'), false)
	f.Add(chunkOf(1, replyBlockStatus, 0, 0, 0, 9, 0, 0, 2, 0, 0, 0, 0, 2, 0, 16, 0, 0, 0, 0, 0, 0), true)
	f.Fuzz(func(t *testing.T, said []byte, status bool) {
		c := answered(t, said)
		if status {
			e, err := c.Extent(512, 1<<20)
			require.True(t, err != nil || e.Off == 512 && e.Len > 0 && e.End() <= c.Size(), "%v", e)
			return
		}
		one, other := make([]byte, 4096), bytes.Repeat([]byte{1}, 4096)
		_, err := c.ReadAt(one, 0)
		_, again := answered(t, said).ReadAt(other, 0)
		require.Equal(t, err == nil, again == nil)
		require.True(t, err != nil || bytes.Equal(one, other), "bytes that did not come")
	})
}
