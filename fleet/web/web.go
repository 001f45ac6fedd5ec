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

// Options say where to listen, and who may ask.
type Options struct {
	Flag      string // the name of the flag of Address, for messages
	Address   string // and port
	Cert, Key string // files for TLS; empty: none
	Token     string // file with what each request has to show; empty: none
}

// Site is what is served.
type Site struct {
	Version  string
	Metrics  func(w io.Writer) error
	Overview *overview.Overview                           // nil: there is no page
	Report   func(ctx context.Context) (io.Reader, error) // that of the last scans, as a page; nil: none
	Warn     func(text string)                            // receives errors of connections
	Tick     time.Duration                                // between two looks for changes; 0: 2 s
}

// Server serves a site.
type Server struct {
	url   string
	http  *http.Server
	ended chan struct{}
	leave context.CancelFunc
}

// maxConnections bounds how many clients are served at once.
const maxConnections = 256

// Start listens, and serves until Stop is called. Beyond loopback it wants TLS and a token.
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
			_ = out.http.Serve(l) // it ends by Stop
		}
	}()
	return out, nil
}

// URL returns where the server listens.
func (s *Server) URL() string { return s.url }

// Stop ends the server, and all that it serves.
func (s *Server) Stop() {
	s.leave()
	_ = s.http.Close()
	<-s.ended
}

// check refuses a server that strangers could ask, and reports whether it is one of this machine alone.
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
		return false, ondisk.In(ondisk.ErrUsage, "--tls-cert and --tls-key belong together; give both")
	case ip.IsLoopback():
		return true, nil
	case o.Cert == "":
		return false, ondisk.In(ondisk.ErrUsage, "--%s %s is not loopback, and needs TLS: --tls-cert and --tls-key",
			o.Flag, host)
	case o.Token == "":
		return false, ondisk.In(ondisk.ErrUsage, "--%s %s is not loopback, and needs --token with a file", o.Flag, host)
	}
	return false, nil
}

// minToken is the least length of a token: it may be guessed at the speed of the network.
const minToken = 32

// readToken reads the token in a file, nil if none is named.
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
		return nil, ondisk.In(ondisk.ErrUsage, "--token %s has %d bytes: must be %d to %d; openssl rand -hex 32 "+
			"makes a token",
			path, len(b), minToken, most)
	}
	return b, nil
}

// warner passes on what the server of Go logs.
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

// answer sends what was written, or the error.
func (s Site) answer(w http.ResponseWriter, kind string, write func(w io.Writer) error) {
	var b bytes.Buffer
	if err := write(&b); err != nil {
		s.fail(w, err)
		return
	}
	w.Header().Set("Content-Type", kind)
	_, _ = w.Write(b.Bytes()) // to a client that may be gone
}

// fail says that there is no answer. What it was goes to the log: it may name files.
func (s Site) fail(w http.ResponseWriter, err error) {
	fmt.Fprintln(warner(s.Warn), err)
	http.Error(w, "There is no answer now. The log of trueup-fleet has the reason.", http.StatusServiceUnavailable)
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

// endure has an answer last longer than its request may: the end of that time would look like the end of the client.
func endure(w http.ResponseWriter) *http.ResponseController {
	to := http.NewResponseController(w)
	_ = to.SetReadDeadline(time.Time{}) // what does not know it has none
	return to
}

// report sends the report of the last scans. The page says itself which style and script it has, by their hashes.
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

// events sends each part of the page that changes, until the client or the server ends.
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
