// Package engine runs a NATS server inside this process.
package engine

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
)

// Options of a server.
type Options struct {
	Store     string // path of the folder
	Host      string
	Port      int               // 0 for any free port
	Cert, Key string            // PEM files; empty without TLS
	Nkeys     string            // file with the public keys of all clients, one per line; empty if none are required
	Rights    Rights            // of the keys followed by words
	Warn      func(text string) // receives warnings and errors of the server; may be nil
}

// Rights returns the subjects that a client may publish to (nil for all), and the prefix of the subjects it may receive
// on.
type Rights func(key string, words []string) (publish []string, receive string, err error)

// Engine is a running server.
type Engine struct {
	s    *server.Server
	lock *os.File      // holds the lock of the store
	own  nkeys.KeyPair // key of this process; nil if clients need none
}

// startLimit bounds the start of a server, including reading its store.
const startLimit = time.Minute

// Start starts a server. Addresses other than loopback require TLS and nkeys. Cancelling ctx affects only the start.
func Start(ctx context.Context, o Options) (*Engine, error) {
	opts, own, err := o.server()
	if err != nil {
		return nil, err
	}
	s, err := server.NewServer(opts)
	if err != nil {
		return nil, fmt.Errorf("NATS server: %w", err)
	}
	lock, err := lockStore(o.Store)
	if err != nil {
		return nil, err
	}
	e := &Engine{s, lock, own}
	if err := e.start(ctx, o.Warn); err != nil {
		e.Stop()
		return nil, fmt.Errorf("NATS server on %s:%d with its store in %s: %w", o.Host, o.Port, o.Store, err)
	}
	return e, nil
}

// start waits until the server listens or fails, or ctx is cancelled.
func (e *Engine) start(ctx context.Context, warn func(string)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	l := &logger{warn: warn, fatal: make(chan error, 1)}
	e.s.SetLoggerV2(l, false, false, false)
	ready := make(chan bool, 1)
	go func() {
		e.s.Start()
		ready <- len(l.fatal) > 0 || e.s.ReadyForConnections(startLimit) && e.s.JetStreamEnabled()
	}()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-l.fatal:
		return err
	case is := <-ready:
		select {
		case err := <-l.fatal:
			return err
		default:
		}
		if !is {
			return errors.New("it does not listen")
		}
		return nil
	}
}

// lockStore locks the folder of a store: a second server on it would lose acknowledged jobs.
func lockStore(store string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(store, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	switch err := sys.FromOS(f).Lock(sys.Exclusive); {
	case sys.Locked(err):
		err = fmt.Errorf("--store %s: %w by another trueup-fleet serve", store, ondisk.ErrBusy)
		return nil, errors.Join(err, f.Close())
	case err != nil:
		return nil, errors.Join(fmt.Errorf("--store %s: lock: %w", store, err), f.Close())
	}
	return f, nil
}

// logger forwards warnings and errors of the server.
type logger struct {
	warn  func(text string)
	fatal chan error // receives the first fatal error
}

func (l *logger) Warnf(format string, v ...any) {
	if l.warn != nil {
		l.warn(fmt.Sprintf(format, v...))
	}
}

func (l *logger) Errorf(format string, v ...any) { l.Warnf(format, v...) }

func (l *logger) Fatalf(format string, v ...any) {
	select {
	case l.fatal <- fmt.Errorf(format, v...):
	default:
		l.Warnf(format, v...)
	}
}

func (l *logger) Noticef(string, ...any) {}
func (l *logger) Debugf(string, ...any)  {}
func (l *logger) Tracef(string, ...any)  {}

// server returns NATS options, and the key of this process if clients need one.
func (o *Options) server() (opts *server.Options, own nkeys.KeyPair, err error) {
	opts = &server.Options{
		ServerName: "trueup-fleet", Host: o.Host, Port: o.Port, JetStream: true, StoreDir: o.Store,
		NoSigs: true, NoLog: true,
		// An acknowledged revision must survive a power cut: it keeps two workers apart.
		SyncAlways: true, DisableJetStreamBanner: true, NoSystemAccount: true,
	}
	if opts.Port == 0 {
		opts.Port = server.RANDOM_PORT
	}
	if err := o.allowed(); err != nil {
		return nil, nil, err
	}
	if o.Cert != "" {
		pair, err := tls.LoadX509KeyPair(o.Cert, o.Key)
		if err != nil {
			return nil, nil, fmt.Errorf("--tls-cert %s: %w", o.Cert, err)
		}
		opts.TLS, opts.TLSTimeout = true, 10
		opts.TLSConfig = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	}
	if o.Nkeys != "" {
		if opts.Nkeys, err = o.readKeys(); err != nil {
			return nil, nil, fmt.Errorf("--nkeys %s: %w", o.Nkeys, err)
		}
		if own, err = nkeys.CreateUser(); err != nil {
			return nil, nil, err
		}
		public, err := own.PublicKey()
		if err != nil {
			return nil, nil, err
		}
		opts.Nkeys = append(opts.Nkeys, &server.NkeyUser{Nkey: public})
	}
	return opts, own, nil
}

// Inside returns options for a connection within this process, without a listener and with a key of this run.
func (e *Engine) Inside() []nats.Option {
	options := []nats.Option{nats.InProcessServer(e.s)}
	if e.own != nil {
		public, _ := e.own.PublicKey() // Start has called it successfully
		options = append(options, nats.Nkey(public, e.own.Sign))
	}
	return options
}

// allowed refuses options that would expose the server to other hosts without protection.
func (o *Options) allowed() error {
	ip := net.ParseIP(o.Host)
	switch {
	case ip == nil:
		return ondisk.In(ondisk.ErrUsage, "--listen %q: must be an IP address", o.Host)
	case (o.Cert == "") != (o.Key == ""):
		return ondisk.In(ondisk.ErrUsage, "--tls-cert and --tls-key require each other")
	case ip.IsLoopback():
		return nil
	case o.Cert == "":
		return ondisk.In(ondisk.ErrUsage, "--listen %s is not loopback, and requires TLS; add --tls-cert and "+
			"--tls-key",
			o.Host)
	case o.Nkeys == "":
		return ondisk.In(ondisk.ErrUsage, "--listen %s is not loopback, and requires the keys of all clients; add "+
			"--nkeys FILE", o.Host)
	}
	return nil
}

// readKeys reads public user nkeys, one per line, each followed by optional words for its rights. A # starts a comment.
func (o *Options) readKeys() (out []*server.NkeyUser, err error) {
	b, err := os.ReadFile(o.Nkeys)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(b)) {
		text, _, _ := strings.Cut(line, "#")
		words := strings.Fields(text)
		if len(words) == 0 {
			continue
		}
		if !nkeys.IsValidPublicUserKey(words[0]) {
			return nil, fmt.Errorf("%.80q is not a public user nkey, which begins with U", words[0])
		}
		publish, receive, err := o.Rights(words[0], words[1:])
		if err != nil {
			return nil, fmt.Errorf("key %s: %w", words[0], err)
		}
		user := &server.NkeyUser{Nkey: words[0]}
		if publish != nil {
			user.Permissions = &server.Permissions{
				Publish:   &server.SubjectPermission{Allow: publish},
				Subscribe: &server.SubjectPermission{Allow: []string{receive + ".>"}},
			}
		}
		out = append(out, user)
	}
	if len(out) == 0 {
		return nil, errors.New("it contains no key, so no client could connect")
	}
	return out, nil
}

// URL returns the URL for clients.
func (e *Engine) URL() string { return e.s.ClientURL() }

// Stop ends the server and keeps its store.
func (e *Engine) Stop() {
	e.s.Shutdown()
	e.s.WaitForShutdown()
	_ = sys.Release(e.lock)
}
