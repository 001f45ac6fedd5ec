package fleetcmd

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/fleet"
	"github.com/trueup/trueup/fleet/engine"
	"github.com/trueup/trueup/fleet/overview"
	"github.com/trueup/trueup/fleet/queue"
	"github.com/trueup/trueup/fleet/web"
)

// serveFlags holds the flags of serve.
type serveFlags struct {
	*base
	logged
	engine          engine.Options
	listen          string
	page, metrics   string
	token           string
	program, folder string
}

func newServe(b *base) *cobra.Command {
	f := serveFlags{base: b, engine: engine.Options{Rights: queue.Rights}}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the server of a fleet and its page",
		Long: `Runs the server that keeps the jobs, until it is ended. Its state is in the folder of --store, and
the next run continues from there. By default it listens on loopback; other addresses require TLS
and the public nkeys of all clients. With --nats, it runs no server, and serves only the page and
the metrics of the server at that URL.

--page serves a read-only page of the fleet. Beyond loopback, --page and --metrics require TLS and a --token.`,
		Example: `  trueup-fleet serve --store /var/lib/trueup-fleet --page :8080
  trueup-fleet serve --store /var/lib/trueup-fleet --listen 10.0.0.7:4222 --tls-cert server.pem --tls-key server.key \
    --nkeys keys
  trueup-fleet serve --nats nats://127.0.0.1:4222 --page :8080 --metrics :9464`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	fs := cmd.Flags()
	fs.StringVar(&f.engine.Store, "store", "trueup-fleet", "keep the jobs in `DIR`")
	fs.StringVar(&f.listen, "listen", "127.0.0.1:4222", "listen on `ADDRESS:PORT`; 0 means any free port")
	fs.StringVar(&f.engine.Cert, "tls-cert", "", "read the certificate of server and page from `FILE`")
	fs.StringVar(&f.engine.Key, "tls-key", "", "read the key of the certificate from `FILE`")
	fs.StringVar(&f.engine.Nkeys, "nkeys", "", "read the public nkeys and rights of all clients from `FILE`")
	fs.StringVar(&f.page, "page", "", "serve a page of the fleet at `ADDRESS:PORT`; :PORT means loopback")
	fs.StringVar(&f.metrics, "metrics", "", "serve /metrics for Prometheus at `ADDRESS:PORT`, and beside the page")
	fs.StringVar(&f.token, "token", "", "require the token in `FILE` for page and metrics")
	fs.StringVar(&f.program, "trueup", "",
		"run trueup for the report from `FILE` (default: beside this program, or in PATH)")
	fs.StringVar(&f.folder, "folder", resultsFolder, "look for large results for the report in `DIR`, like worker "+
		"--folder")
	f.register(fs)
	return cmd
}

func (f *serveFlags) run(cmd *cobra.Command) error {
	log := f.logger(cmd.ErrOrStderr())
	f.queue.Warn = func(err error) { log.Warn("connection to the server", "error", err) }
	if !cmd.Flags().Changed("nats") {
		e, err := f.start(cmd.Context(), log)
		if err != nil {
			return err
		}
		defer e.Stop()
		f.queue.Inside = e.Inside()
		if _, err := fmt.Fprintln(cmd.OutOrStdout(), e.URL()); err != nil {
			return err
		}
	} else if f.page+f.metrics == "" {
		return usage("with --nats, serve runs no server; add --page or --metrics")
	}
	if f.page+f.metrics == "" {
		<-cmd.Context().Done()
		return nil
	}
	return f.with(cmd.Context(), func(q *queue.Queue) error { return f.show(cmd, q, log) })
}

// start starts the NATS server.
func (f *serveFlags) start(ctx context.Context, log *slog.Logger) (*engine.Engine, error) {
	host, port, err := net.SplitHostPort(f.listen)
	if err == nil {
		f.engine.Port, err = strconv.Atoi(port)
	}
	if err != nil {
		return nil, usage("--listen %q: must be ADDRESS:PORT", f.listen)
	}
	f.engine.Host = host
	if err := os.MkdirAll(f.engine.Store, 0o700); err != nil {
		return nil, err
	}
	f.engine.Warn = func(text string) { log.Warn("server", "text", fleet.Plain(text)) }
	return engine.Start(ctx, f.engine)
}

// show serves the page and the metrics until the context is cancelled.
func (f *serveFlags) show(cmd *cobra.Command, q *queue.Queue, log *slog.Logger) error {
	o := overview.New()
	defer web.Follow(q, o)()
	site := web.Site{
		Version: f.version, Metrics: func(w io.Writer) error { return o.Metrics(w, f.version) },
		Warn: func(text string) { log.Warn("page", "text", fleet.Plain(text)) },
	}
	if f.metrics != "" {
		stop, err := f.open(cmd, "metrics", f.metrics, site)
		if err != nil {
			return err
		}
		defer stop()
	}
	if f.page != "" {
		site.Overview = o
		cache := reportCache{make: func(ctx context.Context, out *os.File) error {
			trueup, err := findTrueup(f.program)
			if err != nil {
				return err
			}
			run := exec.CommandContext(ctx, trueup, "report")
			run.Stdout, run.Stderr = out, cmd.ErrOrStderr()
			return report(ctx, q, "", f.folder, run, []string{"-o", "html"})
		}}
		site.Report = cache.get
		stop, err := f.open(cmd, "page", f.page, site)
		if err != nil {
			return err
		}
		defer stop()
	}
	<-cmd.Context().Done()
	return nil
}

// open starts a site and prints its URL.
func (f *serveFlags) open(cmd *cobra.Command, flag, address string, site web.Site) (stop func(), err error) {
	s, err := web.Start(web.Options{
		Flag: flag, Address: address, Cert: f.engine.Cert, Key: f.engine.Key, Token: f.token,
	}, site)
	if err != nil {
		return nil, err
	}
	if _, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %s/\n", flag, s.URL()); err != nil {
		s.Stop()
		return nil, err
	}
	return s.Stop, nil
}
