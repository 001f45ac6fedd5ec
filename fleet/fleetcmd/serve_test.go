package fleetcmd

import (
	"net"
	"os"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/fleet/web"
)

// A page whose address cannot be printed is not served.
func TestPageWithoutOutput(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := l.Addr().String()
	require.NoError(t, l.Close())
	cmd := &cobra.Command{}
	cmd.SetOut((*os.File)(nil))
	_, err = (&serveFlags{}).open(cmd, "page", address, web.Site{})
	require.ErrorIs(t, err, os.ErrInvalid)
	l, err = net.Listen("tcp", address)
	require.NoError(t, err)
	require.NoError(t, l.Close())
}
