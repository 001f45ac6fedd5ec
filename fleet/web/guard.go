package web

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/trueup/trueup/fleet/overview"
)

// guard authenticates requests.
type guard struct {
	token   []byte // nil if no token is required
	local   bool   // the server listens on loopback
	secure  bool   // the server uses TLS
	version string
	next    http.Handler
}

// cookie is the name of the session cookie, and session its lifetime.
const (
	cookie  = "trueup_fleet"
	session = 12 * time.Hour
)

func (g guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	for name, value := range map[string]string{
		"Cache-Control": "no-store", "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
		"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
		"Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY",
	} {
		h.Set(name, value)
	}
	login := g.token != nil && r.URL.Path == "/login"
	switch {
	case g.local && !isLocal(r.Host): // against DNS rebinding: a foreign page whose name resolves to this machine
		http.Error(w, "This server accepts requests for this machine only, by the name localhost or a loopback "+
			"address.", http.StatusMisdirectedRequest)
	case login && r.Method == http.MethodPost:
		g.login(w, r)
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		h.Set("Allow", "GET, HEAD")
		http.Error(w, "This server is read-only.", http.StatusMethodNotAllowed)
	case g.token == nil || g.admits(r):
		if login {
			http.Redirect(w, r, "./", http.StatusSeeOther)
			return
		}
		g.next.ServeHTTP(w, r)
	case r.URL.Path == "/" || login:
		g.ask(w, false)
	default:
		h.Set("WWW-Authenticate", `Bearer realm="trueup-fleet"`)
		http.Error(w, "A token is required: Authorization: Bearer TOKEN.", http.StatusUnauthorized)
	}
}

// isLocal reports whether the host of a request is this machine.
func isLocal(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return strings.EqualFold(host, "localhost") || err == nil && ip.IsLoopback()
}

// admits reports whether a request carries the token or a valid session cookie.
func (g guard) admits(r *http.Request) bool {
	if shown, is := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); is {
		return g.is(shown)
	}
	c, err := r.Cookie(cookie)
	if err != nil {
		return false
	}
	until, _, _ := strings.Cut(c.Value, ".")
	seconds, err := strconv.ParseInt(until, 10, 64)
	return err == nil && hmac.Equal([]byte(c.Value), []byte(g.pass(seconds))) && time.Now().Unix() < seconds
}

// is compares a token in constant time, independent of its length.
func (g guard) is(shown string) bool {
	a, b := sha256.Sum256([]byte(shown)), sha256.Sum256(g.token)
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

// pass returns the value of a cookie that is valid until a time, in seconds since 1970.
func (g guard) pass(until int64) string {
	text := strconv.FormatInt(until, 10)
	mac := hmac.New(sha256.New, g.token)
	mac.Write([]byte("cookie " + text))
	return text + "." + hex.EncodeToString(mac.Sum(nil))
}

// ask sends the login page.
func (g guard) ask(w http.ResponseWriter, wrong bool) {
	w.Header().Set("Content-Security-Policy", overview.LoginPolicy()+"; frame-ancestors 'none'")
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("WWW-Authenticate", `Bearer realm="trueup-fleet"`)
	w.WriteHeader(http.StatusUnauthorized)
	_ = overview.Login(w, g.version, wrong) // the client may have disconnected
}

// login exchanges the token for a session cookie.
func (g guard) login(w http.ResponseWriter, r *http.Request) {
	const most = 8 << 10
	r.Body = http.MaxBytesReader(w, r.Body, most)
	if !g.is(strings.TrimSpace(r.PostFormValue("token"))) {
		g.ask(w, true)
		return
	}
	http.SetCookie(w, &http.Cookie{
		Name: cookie, Value: g.pass(time.Now().Add(session).Unix()), Path: "/", MaxAge: int(session.Seconds()),
		HttpOnly: true, Secure: g.secure, SameSite: http.SameSiteStrictMode,
	})
	http.Redirect(w, r, "./", http.StatusSeeOther)
}
