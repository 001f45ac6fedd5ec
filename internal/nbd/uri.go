package nbd

import (
	"net"
	"net/url"
	"strings"

	"github.com/trueup/trueup/internal/ondisk"
)

// IsURI reports whether a word of a command line names an export.
func IsURI(word string) bool {
	scheme, _, ok := strings.Cut(word, "://")
	scheme = strings.ToLower(scheme)
	return ok && (scheme == "nbd" || strings.HasPrefix(scheme, "nbd+") || strings.HasPrefix(scheme, "nbds"))
}

// defaultPort is that of servers whose address names none. Spec: IANA, service nbd.
const defaultPort = "10809"

// parseURI takes the address of an export apart. Spec: NetworkBlockDevice/nbd, doc/uri.md.
func parseURI(uri string) (network, address, export string, err error) {
	u, err := url.Parse(uri)
	if err != nil {
		return "", "", "", ondisk.In(ondisk.ErrUsage, "the address of the export cannot be read; want "+
			"nbd://HOST:PORT/EXPORT or nbd+unix:///EXPORT?socket=PATH")
	}
	export = strings.TrimPrefix(u.Path, "/")
	key, value, _ := strings.Cut(u.RawQuery, "=")
	socket, bad := url.PathUnescape(value) // in which a plus stays one, unlike in a query of a form
	switch {
	case strings.HasPrefix(u.Scheme, "nbds"):
		err = ondisk.In(ondisk.ErrUnsupported, "TLS is %w for NBD; forward the port with ssh -L, and name that",
			ondisk.ErrUnsupported)
	case u.User != nil, u.Fragment != "", bad != nil, strings.Contains(value, "&"),
		u.RawQuery != "" && key != "socket":
		err = ondisk.In(ondisk.ErrUsage, "the address of an export has a host or a socket, and a name, and "+
			"nothing else")
	case len(export) > maxName:
		err = ondisk.In(ondisk.ErrUsage, "the name of the export has %d bytes, want %d at most", len(export), maxName)
	case u.Scheme == "nbd" && u.Hostname() != "" && u.RawQuery == "":
		port := u.Port()
		if port == "" {
			port = defaultPort
		}
		return "tcp", net.JoinHostPort(u.Hostname(), port), export, nil
	case u.Scheme == "nbd+unix" && u.Host == "" && socket != "":
		return "unix", socket, export, nil
	default:
		err = ondisk.In(ondisk.ErrUsage, "want nbd://HOST:PORT/EXPORT or nbd+unix:///EXPORT?socket=PATH")
	}
	return "", "", "", err
}
