// Package web serves the page of a fleet and its metrics, read-only.
package web

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"time"

	"golang.org/x/net/netutil"

	"github.com/trueup/trueup/fleet/overview"
	"github.com/trueup/trueup/internal/ondisk"
)

// Options configure the listener and its authentication.
type Options struct {
	Flag      string // name of the flag for Address, for messages
	Address   string // ADDRESS:PORT
	Cert, Key string // PEM files; empty without TLS
	Token     string // file with the token; empty if none is required
}

// Site is the content of a server.
type Site struct {
	Version  string
	Metrics  func(w io.Writer) error
	Overview *overview.Overview                           // nil without a page
	Report   func(ctx context.Context) (io.Reader, error) // HTML report of the last scans; nil without reports
	Warn     func(text string)                            // receives connection errors
	Tick     time.Duration                                // interval between checks for changes; 2 s if 0
}

// Server serves a site.
type Server struct {
	url   string
	http  *http.Server
	ended chan struct{}
	leave context.CancelFunc
}

// maxConnections limits the number of concurrent connections.
const maxConnections = 256

// Start listens, and serves until Stop is called. Addresses other than loopback require TLS and a token.
func Start(o Options, s Site) (*Server, error) {
	local, err := o.check()
	if err != nil {
		return nil, err
	}
	token, err := readToken(o.Token)
	if err != nil {
		return nil, err
	}
	scheme, config := "http", (*tls.Config)(nil)
	if o.Cert != "" {
		pair, err := tls.LoadX509KeyPair(o.Cert, o.Key)
		if err != nil {
			return nil, fmt.Errorf("--tls-cert %s: %w", o.Cert, err)
		}
		config = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
		scheme = "https"
	}
	l, err := net.Listen("tcp", o.Address)
	if err != nil {
		return nil, fmt.Errorf("--%s %s: %w", o.Flag, o.Address, err)
	}
	url := scheme + "://" + l.Addr().String()
	l = netutil.LimitListener(l, maxConnections)
	ctx, leave := context.WithCancel(context.Background())
	out := &Server{
		url: url, ended: make(chan struct{}), leave: leave,
		http: &http.Server{
			Handler:   guard{token: token, local: local, secure: config != nil, version: s.Version, next: s.routes()},
			TLSConfig: config, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second,
			WriteTimeout: 10 * time.Minute, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10,
			BaseContext: func(net.Listener) context.Context { return ctx },
			ErrorLog:    log.New(warner(s.Warn), "", 0),
		},
	}
	go func() {
		defer close(out.ended)
		if config != nil {
			_ = out.http.ServeTLS(l, "", "")
		} else {
			_ = out.http.Serve(l) // returns after Stop
		}
	}()
	return out, nil
}

// URL returns the URL of the server.
func (s *Server) URL() string { return s.url }

// Stop ends the server and all its requests.
func (s *Server) Stop() {
	s.leave()
	_ = s.http.Close()
	<-s.ended
}

// check refuses options that would expose the site to other hosts without protection. It reports whether the address is
// loopback.
func (o *Options) check() (local bool, err error) {
	host, port, err := net.SplitHostPort(o.Address)
	if err == nil && host == "" {
		host = "127.0.0.1"
		o.Address = net.JoinHostPort(host, port)
	}
	ip, parsed := netip.ParseAddr(host)
	switch {
	case err != nil || parsed != nil:
		return false, ondisk.In(ondisk.ErrUsage, "--%s %q: must be ADDRESS:PORT with an IP address, or :PORT", o.Flag,
			o.Address)
	case (o.Cert == "") != (o.Key == ""):
		return false, ondisk.In(ondisk.ErrUsage, "--tls-cert and --tls-key require each other")
	case ip.IsLoopback():
		return true, nil
	case o.Cert == "":
		return false, ondisk.In(ondisk.ErrUsage, "--%s %s is not loopback, and requires TLS; add --tls-cert and "+
			"--tls-key",
			o.Flag, host)
	case o.Token == "":
		return false, ondisk.In(ondisk.ErrUsage, "--%s %s is not loopback, and requires a token; add --token FILE",
			o.Flag, host)
	}
	return false, nil
}

// minToken is the minimum length of a token, in bytes, so that it cannot be guessed over the network.
const minToken = 32

// readToken reads the token from a file. It returns nil for an empty path.
func readToken(path string) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("--token: %w", err)
	}
	defer f.Close()
	const most = 4 << 10
	b, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return nil, fmt.Errorf("--token: %w", err)
	}
	if b = bytes.TrimSpace(b); len(b) < minToken || len(b) > most {
		return nil, ondisk.In(ondisk.ErrUsage, "--token %s has %d bytes: must be %d to %d; to make one: openssl "+
			"rand -hex 32",
			path, len(b), minToken, most)
	}
	return b, nil
}

// warner forwards log lines of Go's HTTP server.
type warner func(text string)

func (w warner) Write(b []byte) (int, error) {
	if w != nil {
		w(strings.TrimSpace(string(b)))
	}
	return len(b), nil
}

func (s Site) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", s.metrics)
	if s.Overview != nil {
		mux.HandleFunc("GET /{$}", s.page)
		mux.HandleFunc("GET /events", s.events)
	}
	if s.Report != nil {
		mux.HandleFunc("GET /report", s.report)
	}
	return mux
}

// answer sends the output of write, or its error.
func (s Site) answer(w http.ResponseWriter, kind string, write func(w io.Writer) error) {
	var b bytes.Buffer
	if err := write(&b); err != nil {
		s.fail(w, err)
		return
	}
	w.Header().Set("Content-Type", kind)
	_, _ = w.Write(b.Bytes()) // the client may have disconnected
}

// fail sends a general error. The real error may name files, so it only goes to the log.
func (s Site) fail(w http.ResponseWriter, err error) {
	fmt.Fprintln(warner(s.Warn), err)
	http.Error(w, "No answer is available now. See the log of trueup-fleet for the reason.",
		http.StatusServiceUnavailable)
}

func (s Site) metrics(w http.ResponseWriter, _ *http.Request) {
	s.answer(w, "text/plain; version=0.0.4; charset=utf-8", s.Metrics)
}

func (s Site) page(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Security-Policy", overview.Policy()+"; frame-ancestors 'none'")
	s.answer(w, "text/html; charset=utf-8", func(w io.Writer) error {
		return s.Overview.Page(w, s.Version, time.Now())
	})
}

// endure lifts the read deadline for a long response: when it expired, the request would look cancelled.
func endure(w http.ResponseWriter) *http.ResponseController {
	to := http.NewResponseController(w)
	_ = to.SetReadDeadline(time.Time{}) // an unsupported deadline needs no lifting
	return to
}

// report sends the report of the last scans. The page contains the hashes of its own style and script.
func (s Site) report(w http.ResponseWriter, r *http.Request) {
	endure(w)
	f, err := s.Report(r.Context())
	if err != nil {
		s.fail(w, err)
		return
	}
	w.Header().Set("Content-Security-Policy", "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "+
		"script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = io.Copy(w, f)
}

// events sends each changed part of the page until the client disconnects or the server stops.
func (s Site) events(w http.ResponseWriter, r *http.Request) {
	const patience = 30 * time.Second
	tick := time.NewTicker(cmp.Or(s.Tick, 2*time.Second))
	defer tick.Stop()
	w.Header().Set("Content-Type", "text/event-stream")
	to := endure(w)
	sent := map[string]string{}
	for {
		all, err := s.Overview.Events(s.Version, time.Now())
		if err == nil {
			err = to.SetWriteDeadline(time.Now().Add(patience))
		}
		for _, e := range all {
			if sent[e.Name] != e.Data && err == nil {
				sent[e.Name] = e.Data
				_, err = fmt.Fprintf(w, "event: %s\ndata: %s\n\n", e.Name, strings.ReplaceAll(e.Data, "\n", "\ndata: "))
			}
		}
		if err = errors.Join(err, to.Flush()); err != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-tick.C:
		}
	}
}
