package remote

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/trueup/trueup/internal/nbd"
	"github.com/trueup/trueup/internal/ondisk"
)

// Address is a URI of many.
type Address struct {
	URI string
	// Shown is the URI without secrets. It tells the object from others by the URI alone, whatever else is read: if
	// what is left out may select the object, #HASH of that follows.
	Shown string
}

// Addresses returns the URIs among the words of a command line, each object once.
func Addresses(words []string) (out []Address) {
	seen := map[string]bool{}
	for _, word := range words {
		if !IsURI(word) {
			continue
		}
		a := Address{URI: word, Shown: identified(word)}
		if !seen[a.Shown] {
			seen[a.Shown] = true
			out = append(out, a)
		}
	}
	return out
}

// hashBytes is how many bytes of a hash tell addresses apart.
const hashBytes = 6

// identified returns a URI as it is shown, with a hash of all but the signature if more is left out.
func identified(uri string) string {
	shown := Shown(uri)
	u, err := url.Parse(uri)
	if shown == uri || err != nil || u.User != nil { // which is refused, and whose password is not hashed
		return shown
	}
	sent, _, _ := strings.Cut(uri, "#")
	place, query, _ := strings.Cut(sent, "?")
	query = unsigned(query)
	if query == "" && shown == place+hiddenQuery {
		return shown
	}
	sum := sha256.Sum256([]byte(place + "?" + query))
	return fmt.Sprintf("%s#%x", shown, sum[:hashBytes])
}

// signatures are the parameters of signed addresses: if a query has all of marks, it has one of those, and its
// parameters say who may read until when, and select no object. Others, such as a token, may select one.
var signatures = []struct{ marks, all []string }{
	{strings.Fields("X-Amz-Credential X-Amz-Signature"), strings.Fields("X-Amz-Algorithm X-Amz-Content-Sha256 " +
		"X-Amz-Credential X-Amz-Date X-Amz-Expires X-Amz-Security-Token X-Amz-Signature X-Amz-SignedHeaders")},
	{strings.Fields("X-Goog-Credential X-Goog-Signature"), strings.Fields("X-Goog-Algorithm X-Goog-Credential " +
		"X-Goog-Date X-Goog-Expires X-Goog-Signature X-Goog-SignedHeaders")},
	{strings.Fields("AWSAccessKeyId Signature"), strings.Fields("AWSAccessKeyId Expires Signature " +
		"x-amz-security-token")},
	{strings.Fields("GoogleAccessId Signature"), strings.Fields("GoogleAccessId Expires Signature")},
	{strings.Fields("Key-Pair-Id Signature"), strings.Fields("Expires Key-Pair-Id Policy Signature")},
	{strings.Fields("sig sv"), strings.Fields("saoid scid sdd se si sig sip ske skoid sks skt sktid skv sp spr sr " +
		"srt ss st suoid sv")},
}

// unsigned returns a query without the parameters of a signature.
func unsigned(query string) string {
	parts := strings.Split(query, "&")
	is := func(name string) func(part string) bool {
		return func(part string) bool { return strings.HasPrefix(part, name+"=") }
	}
	for _, s := range signatures {
		if slices.ContainsFunc(s.marks, func(mark string) bool { return !slices.ContainsFunc(parts, is(mark)) }) {
			continue
		}
		parts = slices.DeleteFunc(parts, func(part string) bool {
			return slices.ContainsFunc(s.all, func(name string) bool { return is(name)(part) })
		})
	}
	return strings.Join(parts, "&")
}

// socketOf returns the path of the socket of this machine that a URI names, empty for an address of the network.
func socketOf(uri string) string {
	if IsWeb(uri) {
		return ""
	}
	_, local, _ := nbd.ServerOf(uri)
	return local
}

// maxLost is how many files of a server in a row may fail since it does not answer, before no more are asked for.
const maxLost = 2

// server is what is to be visited of one server.
type server struct {
	addresses []Address
	next      atomic.Int64  // of addresses
	answers   chan struct{} // closed when it has answered, or nothing is left
	mu        sync.Mutex
	lost      int   // files in a row
	last      error // of them
}

// Visit opens the files of all addresses, several at once, and hands each or its error to use, which reads it. A server
// that does not answer takes the place of one file until it is given up. The first error of use ends the visits, and so
// does ctx.
func (h *Hub) Visit(ctx context.Context, addresses []Address, use func(a Address, o *Opened, err error) error) error {
	servers := map[string]*server{}
	var order []*server
	for _, a := range addresses {
		at := ServerOf(a.URI)
		s := servers[at]
		if s == nil {
			s = &server{answers: make(chan struct{})}
			servers[at], order = s, append(order, s)
		}
		s.addresses = append(s.addresses, a)
	}
	g, gctx := errgroup.WithContext(ctx)
	for _, s := range order {
		most := maxOfServer
		if !IsWeb(s.addresses[0].URI) {
			most = 1 // many servers of NBD take one client at a time
		}
		for n := range min(most, len(s.addresses)) {
			g.Go(func() error { return h.visits(gctx, s, n == 0, use) })
		}
	}
	return g.Wait()
}

// visits opens files of a server, one after the other, until none is left. A server gets one client, the first, until
// it has answered that.
func (h *Hub) visits(
	ctx context.Context, s *server, first bool, use func(a Address, o *Opened, err error) error,
) error {
	answered := sync.OnceFunc(func() { close(s.answers) })
	if first {
		defer answered()
	} else {
		<-s.answers
	}
	for {
		n := int(s.next.Add(1)) - 1
		if n >= len(s.addresses) {
			return nil
		}
		select {
		case h.slots <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		err := h.visit(ctx, s, s.addresses[n], use)
		<-h.slots
		if err != nil {
			return err
		}
		if first && s.lostFiles() == 0 {
			answered()
		}
	}
}

// visit opens one file.
func (h *Hub) visit(ctx context.Context, s *server, a Address, use func(a Address, o *Opened, err error) error) error {
	if err := s.isLost(); err != nil {
		return use(a, nil, err)
	}
	timed, cancel := context.WithTimeoutCause(ctx, h.time, ondisk.In(errUnavailable,
		"the server took longer than %s for one image", h.time))
	defer cancel()
	o, err := h.open(timed, a.URI)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		s.note(errors.Is(err, errUnavailable), err)
		return use(a, nil, err)
	}
	defer o.close()
	err = use(a, o, nil)
	s.note(o.lost != nil, o.lost)
	return err
}

// isLost returns the error of a file that is not asked for.
func (s *server) isLost() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lost < maxLost {
		return nil
	}
	return ondisk.In(errUnavailable, "it was not asked for, since its server did not answer for %d others: %w", s.lost,
		s.last)
}

// lostFiles returns how many files failed in a row since the server did not answer.
func (s *server) lostFiles() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lost
}

// note counts a file that failed since the server does not answer, or one that shows that it does.
func (s *server) note(lost bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !lost {
		s.lost = 0
		return
	}
	s.lost++
	s.last = err
}
