package fleetcmd

import (
	"fmt"
	"net"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/fleet"
	"github.com/trueup/trueup/internal/fleet/engine"
	"github.com/trueup/trueup/internal/fleet/queue"
)

func newServe() *cobra.Command {
	o := engine.Options{Rights: queue.Rights}
	listen := ""
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the server of a fleet that has none",
		Long: `Runs the server that keeps the jobs, until it is ended. What it knows is in the folder of --store: a
server that starts there again goes on. It listens on loopback. Beyond that it wants TLS, and the public nkeys of
all clients.`,
		Example: `  trueup-fleet serve --store /var/lib/trueup-fleet
  trueup-fleet serve --store /var/lib/trueup-fleet --listen 10.0.0.7:4222 --tls-cert server.pem --tls-key server.key \
    --nkeys keys`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			host, port, err := net.SplitHostPort(listen)
			if err == nil {
				o.Port, err = strconv.Atoi(port)
			}
			if err != nil {
				return usage("--listen %q, want ADDRESS:PORT", listen)
			}
			o.Host = host
			if err := os.MkdirAll(o.Store, 0o700); err != nil {
				return err
			}
			o.Warn = func(text string) { fmt.Fprintln(cmd.ErrOrStderr(), "trueup-fleet:", fleet.Plain(text)) }
			e, err := engine.Start(cmd.Context(), o)
			if err != nil {
				return err
			}
			defer e.Stop()
			if _, err := fmt.Fprintln(cmd.OutOrStdout(), e.URL()); err != nil {
				return err
			}
			<-cmd.Context().Done()
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Store, "store", "trueup-fleet", "keep the jobs in `DIR`")
	f.StringVar(&listen, "listen", "127.0.0.1:4222", "listen on `ADDRESS:PORT`; port 0 is any that is free")
	f.StringVar(&o.Cert, "tls-cert", "", "certificate of the server, in `FILE`")
	f.StringVar(&o.Key, "tls-key", "", "key of the certificate, in `FILE`")
	f.StringVar(&o.Nkeys, "nkeys", "", "`FILE` with the public nkeys of all clients, and their rights")
	return cmd
}
