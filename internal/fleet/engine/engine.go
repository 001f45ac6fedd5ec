// Package engine runs the server of NATS inside of this program, for a fleet that has none.
package engine

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"

	"github.com/trueup/trueup/internal/ondisk"
)

// Options of a server.
type Options struct {
	Store     string // folder
	Host      string
	Port      int    // 0: any
	Cert, Key string // files for TLS; empty: none
	Nkeys     string // file with the public keys of those who may connect, one a line; empty: all may
	Version   string // of the program
}

// Engine is a running server.
type Engine struct{ s *server.Server }

// startLimit is how long a server may take to read its store.
const startLimit = 5 * time.Minute

// Start starts a server. Beyond loopback it wants TLS and nkeys.
func Start(o Options) (*Engine, error) {
	opts := &server.Options{
		ServerName: "trueup-fleet", Host: o.Host, Port: o.Port, JetStream: true, StoreDir: o.Store,
		NoSigs: true, NoLog: true,
		// A revision that was given out is never taken back: it is what keeps two workers apart.
		SyncAlways: true, DisableJetStreamBanner: true, NoSystemAccount: true,
	}
	if opts.Port == 0 {
		opts.Port = server.RANDOM_PORT
	}
	if err := o.allowed(); err != nil {
		return nil, err
	}
	var err error
	if o.Cert != "" {
		pair, err := tls.LoadX509KeyPair(o.Cert, o.Key)
		if err != nil {
			return nil, fmt.Errorf("--tls-cert %s: %w", o.Cert, err)
		}
		opts.TLS, opts.TLSTimeout = true, 10
		opts.TLSConfig = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	}
	if o.Nkeys != "" {
		if opts.Nkeys, err = readKeys(o.Nkeys); err != nil {
			return nil, fmt.Errorf("--nkeys %s: %w", o.Nkeys, err)
		}
	}
	s, err := server.NewServer(opts)
	if err != nil {
		return nil, fmt.Errorf("NATS server: %w", err)
	}
	s.Start()
	if !s.ReadyForConnections(startLimit) || !s.JetStreamEnabled() {
		s.Shutdown()
		return nil, fmt.Errorf("NATS server: not ready on %s:%d with its store in %s; is the port free, the folder "+
			"writable, and no other server in it?", o.Host, o.Port, o.Store)
	}
	return &Engine{s}, nil
}

// allowed refuses a server that strangers could reach.
func (o *Options) allowed() error {
	ip := net.ParseIP(o.Host)
	switch {
	case ip == nil:
		return ondisk.In(ondisk.ErrUsage, "--listen %q, want an IP address to listen on", o.Host)
	case (o.Cert == "") != (o.Key == ""):
		return ondisk.In(ondisk.ErrUsage, "--tls-cert and --tls-key belong together; give both")
	case ip.IsLoopback():
		return nil
	case o.Cert == "":
		return ondisk.In(ondisk.ErrUsage, "--listen %s is not loopback, and needs TLS: give --tls-cert and --tls-key",
			o.Host)
	case o.Nkeys == "":
		return ondisk.In(ondisk.ErrUsage, "--listen %s is not loopback, and needs --nkeys with the keys of those who "+
			"may connect", o.Host)
	}
	return nil
}

// readKeys reads public nkeys of users, one a line, with comments behind #.
func readKeys(path string) (out []*server.NkeyUser, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(b)) {
		key, _, _ := strings.Cut(line, "#")
		if key = strings.TrimSpace(key); key == "" {
			continue
		}
		if !nkeys.IsValidPublicUserKey(key) {
			return nil, fmt.Errorf("%.80q is not the public nkey of a user, which begins with U", key)
		}
		out = append(out, &server.NkeyUser{Nkey: key})
	}
	if len(out) == 0 {
		return nil, errors.New("it has no key, so that none may connect")
	}
	return out, nil
}

// URL returns where clients connect.
func (e *Engine) URL() string { return e.s.ClientURL() }

// Stop ends the server. Its store stays.
func (e *Engine) Stop() {
	e.s.Shutdown()
	e.s.WaitForShutdown()
}
