package engine_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/fleet/engine"
	"github.com/trueup/trueup/internal/fleet/queue"
	"github.com/trueup/trueup/internal/ondisk"
)

// put writes a file, and returns its path.
func put(t *testing.T, name string, b []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, b, 0o600))
	return path
}

// certificate makes a certificate of loopback that signs itself.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	secret, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &secret.PublicKey, secret)
	require.NoError(t, err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(secret)
	require.NoError(t, err)
	return put(t, "cert.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		put(t, "key.pem", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}))
}

// user makes an nkey, and returns the file of its seed.
func user(t *testing.T) (public, seed string) {
	t.Helper()
	pair, err := nkeys.CreateUser()
	require.NoError(t, err)
	public, err = pair.PublicKey()
	require.NoError(t, err)
	secret, err := pair.Seed()
	require.NoError(t, err)
	return public, put(t, "seed", secret)
}

// Beyond loopback there is no server without TLS and keys. The refusal names what is missing.
func TestNoOpenServers(t *testing.T) {
	t.Parallel()
	cert, key := certificate(t)
	for want, o := range map[string]engine.Options{
		"needs TLS":        {Host: "0.0.0.0"},
		"needs --nkeys":    {Host: "::", Cert: cert, Key: key},
		"want an IP":       {Host: "localhost"},
		"belong together":  {Host: "127.0.0.1", Cert: cert},
		"want an IP addre": {Host: ""},
	} {
		o.Store = t.TempDir()
		_, err := engine.Start(t.Context(), o)
		require.ErrorContains(t, err, want)
		require.ErrorIs(t, err, ondisk.ErrUsage)
	}
	for want, text := range map[string]string{
		"no key": "# none\n\n", "is not the public nkey": "UABC\n", "no such file": "",
	} {
		o := engine.Options{Store: t.TempDir(), Host: "127.0.0.1", Nkeys: put(t, "keys", []byte(text))}
		if text == "" {
			o.Nkeys += ".absent"
		}
		_, err := engine.Start(t.Context(), o)
		require.ErrorContains(t, err, want)
	}
}

// A server with keys and TLS takes those who have one, and no others.
func TestKeys(t *testing.T) {
	t.Parallel()
	cert, key := certificate(t)
	public, seed := user(t)
	_, stranger := user(t)
	e, err := engine.Start(t.Context(), engine.Options{
		Store: t.TempDir(), Host: "0.0.0.0", Cert: cert, Key: key, Nkeys: put(t, "keys", []byte(public+" # one\n")),
	})
	require.NoError(t, err)
	t.Cleanup(e.Stop)
	_, port, err := net.SplitHostPort(e.URL()[len("tls://"):])
	require.NoError(t, err)
	url := "tls://127.0.0.1:" + port
	q, err := queue.Open(t.Context(), queue.Options{URL: url, Seed: seed, CA: cert})
	require.NoError(t, err)
	q.Close()
	for _, o := range []queue.Options{{URL: url, CA: cert}, {URL: url, CA: cert, Seed: stranger}} {
		_, err = queue.Open(t.Context(), o)
		require.ErrorIs(t, err, nats.ErrAuthorization)
	}
	_, err = queue.Open(t.Context(), queue.Options{URL: url, Seed: seed})
	require.ErrorAs(t, err, new(x509.UnknownAuthorityError))
}

// A store has one server. A second one is refused by name, and so is one whose port is taken, at once.
func TestOneServerOnAStore(t *testing.T) {
	t.Parallel()
	o := engine.Options{Store: t.TempDir(), Host: "127.0.0.1"}
	e, err := engine.Start(t.Context(), o)
	require.NoError(t, err)
	_, err = engine.Start(t.Context(), o)
	require.ErrorIs(t, err, ondisk.ErrBusy)
	require.ErrorContains(t, err, o.Store)
	e.Stop()
	e, err = engine.Start(t.Context(), o)
	require.NoError(t, err, "the store is free again")
	t.Cleanup(e.Stop)

	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	addr, ok := taken.Addr().(*net.TCPAddr)
	require.True(t, ok)
	o = engine.Options{Store: t.TempDir(), Host: "127.0.0.1", Port: addr.Port}
	_, err = engine.Start(t.Context(), o)
	require.ErrorContains(t, err, "address already in use")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = engine.Start(ctx, engine.Options{Store: t.TempDir(), Host: "127.0.0.1"})
	require.ErrorIs(t, err, context.Canceled)
}
