package remote

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"path"
	"strings"
	"sync"

	"github.com/trueup/trueup/internal/nbd"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
)

// ServeMany is what the clerk of a hub does, until its input ends. It restricts itself by confine to reading some files
// and asking the network, or to connecting to some sockets of this machine.
func ServeMany(in io.Reader, out io.Writer, confine func(read, sockets []string)) error {
	// Only the end of the input ends it: Ctrl-C is for the other process, which may have something to finish.
	signal.Notify(make(chan os.Signal, 1), append(sys.EndSignals(), sys.BrokenPipe)...)
	sys.NoCore()
	r := bufio.NewReader(in)
	first, err := r.ReadBytes('\n')
	if err != nil {
		return err
	}
	var o orders
	if err := json.Unmarshal(first, &o); err != nil {
		return err
	}
	if len(o.Sockets) > 0 {
		confine(nil, o.Sockets)
	} else {
		confine(trusted(), nil)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &serving{
		ctx: ctx, out: out, web: transport(o.Each), authorization: o.Authorization, open: map[uint32]*source{},
	}
	defer s.all.Wait()
	defer cancel()
	for {
		number, body, err := readMessage(r)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		s.take(number, body)
	}
}

// serving answers the questions about all files.
type serving struct {
	ctx           context.Context //nolint:containedctx // of the process
	out           io.Writer
	web           *http.Transport
	authorization string
	all           sync.WaitGroup
	sending       sync.Mutex
	mu            sync.Mutex
	open          map[uint32]*source
}

// source is a file that is open, or is being opened. Questions about it come one after the other.
type source struct {
	ctx    context.Context //nolint:containedctx // of all questions
	cancel func()
	mu     sync.Mutex
	object *Object     // nil for an export
	export *nbd.Client // nil for an object
}

// take begins with what a message asks for.
func (s *serving) take(number uint32, body []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.open[number]
	if len(body) > 0 && body[0] == saysClose {
		if delete(s.open, number); f != nil {
			f.cancel()
			s.all.Go(f.close)
		}
		return
	}
	if f == nil {
		f = &source{}
		f.ctx, f.cancel = context.WithCancel(s.ctx)
		s.open[number] = f
	}
	s.all.Go(func() {
		data, err := s.answer(f, body)
		s.sending.Lock()
		defer s.sending.Unlock()
		err = writeMessage(s.out, number, answerOf(data, err))
		if errors.Is(err, ondisk.ErrLimit) {
			_ = writeMessage(s.out, number, answerOf(nil, err)) // after another error the end of the input comes next
		}
	})
}

// answer answers one question. A fault in what speaks to a server is for one file.
func (s *serving) answer(f *source, question []byte) (data []byte, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	defer func() {
		if p := recover(); p != nil {
			data, err = nil, fmt.Errorf("internal error, please report it: %v", p)
		}
	}()
	switch {
	case len(question) == 0:
		return nil, errors.New("an empty question")
	case question[0] == asksOpen:
		return s.opened(f, string(question[1:]))
	case f.object == nil && f.export == nil:
		return nil, errors.New("a question about a file that is not open")
	case question[0] == asksUnchanged:
		return nil, f.unchanged()
	}
	off, n, err := readOf(question, f.size())
	if err != nil {
		return nil, err
	}
	data = make([]byte, n)
	return data, f.read(data, off)
}

// opened opens a file, and says what it is.
func (s *serving) opened(f *source, uri string) (data []byte, err error) {
	i := Info{Device: true}
	if IsWeb(uri) {
		if f.object, err = openObject(f.ctx, s.web, uri, s.authorization); err != nil {
			return nil, err
		}
		i = Info{Size: f.object.size, Tag: []byte(f.object.validator()), Modified: f.object.written()}
		if u, err := url.Parse(uri); err == nil {
			i.Name = u.Path
		}
	} else {
		if f.export, err = nbd.Dial(f.ctx, uri); err != nil {
			return nil, lost(err)
		}
		context.AfterFunc(f.ctx, func() { f.export.Abort(f.ctx.Err()) })
		i.Size, i.Name = f.export.Size(), f.export.Name()
	}
	if i.Name = plainName(i.Name); i.Name == "" {
		i.Name = "disk"
	}
	return json.Marshal(i)
}

// plainName returns the last name of a path, empty if it has none that a file may have.
func plainName(at string) string {
	name := path.Base(at)
	if name == "." || name == ".." || name == "/" || strings.ContainsRune(name, 0) {
		return ""
	}
	return name
}

// lost gives the error of a connection its class.
func lost(err error) error {
	if sys.FromSystem(err) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, os.ErrDeadlineExceeded) {
		return ondisk.In(errUnavailable, "%w", err)
	}
	return err
}

func (f *source) size() int64 {
	if f.object != nil {
		return f.object.Size()
	}
	return f.export.Size()
}

func (f *source) read(p []byte, off int64) (err error) {
	var n int
	if f.object != nil {
		n, err = f.object.readAt(f.ctx, p, off)
	} else if n, err = f.export.ReadAt(p, off); err != nil {
		err = lost(err)
	}
	if n == len(p) {
		return nil
	}
	return err
}

func (f *source) unchanged() error {
	if f.object != nil {
		return f.object.Unchanged(f.ctx)
	}
	return lost(f.export.Alive())
}

// close ends the connection of an export when no question is open.
func (f *source) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.export != nil {
		_ = f.export.Close()
	}
}
